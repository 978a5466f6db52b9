"""Prove derived tables: recompute them by another engine and compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from draindown.base.errors import DraindownError
from draindown.base.exits import Exit, exit_for
from draindown.cli.context import (
    Flows,
    Json,
    Setting,
    derived_flows,
    new_run_id,
    setting,
)
from draindown.cli.output import Output, not_done

if TYPE_CHECKING:
    from draindown.config.models import PipelineSpec
    from draindown.proof.certificate import Certificate


_LEAST = 0.000_001  # keys are chosen by their hash, in so many parts


def prove(
    ctx: typer.Context,
    target: Flows,
    sample: Annotated[
        str, typer.Option(help="Share of the keys to compare, such as `1%`.")
    ] = "100%",
    as_json: Json = False,
) -> None:
    """Recompute derived tables from their sources, at the versions that were read. Exit 1 if a row
    differs.

    A flow that can't be proven keeps no other from it. Reports and the page name the newest
    certificate. A sample that holds does not replace one that found a row of the same version that
    differs.
    """
    here, out = setting(ctx), Output(as_json)
    spec, share = here.spec(target.pipeline), _share(sample)
    found: dict[str, Certificate | DraindownError] = {}
    for name in derived_flows(spec, target):
        try:
            found[name] = certificate = _prove(here, spec, name, share, out)
            _keep(spec, certificate, out)
        except DraindownError as error:  # the other flows can be proven
            found[name] = error
    _tell(spec, found, out)


def _tell(
    spec: PipelineSpec, found: Mapping[str, Certificate | DraindownError], out: Output
) -> None:
    """Print the certificates, and in its place why a flow has none. Exit 1 if one does not hold,
    else as the errors.
    """
    refused = {name: one for name, one in found.items() if isinstance(one, DraindownError)}
    if len(refused) == len(found) == 1:
        raise next(iter(refused.values()))
    certificates = [one for one in found.values() if not isinstance(one, DraindownError)]
    fails = any(not one.holds for one in certificates)
    data = {
        "holds": not fails and not refused,
        "certificates": [one.as_dict() for one in certificates],
        "refused": [
            {"pipeline": spec.pipeline, "flow": name, "error": one.as_dict()}
            for name, one in refused.items()
        ],
    }
    texts = [
        not_done(spec.pipeline, name, "proven", one)
        if isinstance(one, DraindownError)
        else str(one)
        for name, one in found.items()
    ]
    out.result(data, "\n\n".join(texts) or f"pipeline {spec.pipeline} has no derived flow")
    if fails:
        raise typer.Exit(Exit.FINDINGS)
    if refused:
        raise typer.Exit(max(map(exit_for, refused.values())))


def _keep(spec: PipelineSpec, found: Certificate, out: Output) -> None:
    """Keep a certificate for reports and the page. It is printed even if the lake takes nothing."""
    from draindown.flow import proven

    try:
        proven.keep(spec.layout(found.flow), found.as_dict())
    except OSError as error:
        out.note(f"{spec.pipeline}/{found.flow}: the certificate could not be kept: {error}")


def _share(text: str) -> float:
    from draindown.config.units import parse_share

    try:
        found = parse_share(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--sample") from None
    if found < _LEAST:
        raise typer.BadParameter(f"must be at least {_LEAST:.4%}", param_hint="--sample")
    return found


def _prove(here: Setting, spec: PipelineSpec, flow: str, share: float, out: Output) -> Certificate:
    from draindown.config.derived import DerivedFlow
    from draindown.proof import compare
    from draindown.proof.pinned import proving

    layout, declared = spec.layout(flow), spec.declared(flow)
    assert isinstance(declared, DerivedFlow)
    with proving(layout, declared.source) as found:
        if compare.is_provable(declared, found.sources):
            return compare.prove(layout, declared, found.sources, found.table, share, found.decided)
        from draindown.runs.driver_log import DriverLog
        from draindown.spark.derived.whole import prove as by_spark
        from draindown.spark.session import session, stop

        request = here.request(spec, flow, "drain", new_run_id())
        out.note(
            f"{spec.pipeline}/{flow}: starting Spark, since only its whole query is certain to be this one"
        )
        with DriverLog.of(request.layout, request.run_id, request.step) as log:
            spark = session(f"draindown {spec.pipeline} prove", log=log)
            try:
                return by_spark(
                    spark, layout, declared, found.sources, found.table, share, found.decided
                )
            finally:
                stop(spark)
