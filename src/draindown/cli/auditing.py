"""The command `audit`: landing flows recounted from raw input, derived ones recomputed from their
sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.base.errors import DraindownError
from draindown.base.exits import Exit, exit_for
from draindown.cli import overview
from draindown.cli.context import AnyFlows, Json, Setting, flows, new_run_id, setting
from draindown.cli.failures import naming
from draindown.cli.output import Output, not_done

if TYPE_CHECKING:
    from draindown.audit.derived import Unaudited
    from draindown.audit.model import Audit
    from draindown.config.models import PipelineSpec
    from draindown.proof.certificate import Certificate

    Found = Audit | Certificate | DraindownError

_ALL = "100%"
_LEAST = 0.000_001  # keys are chosen by their hash, in so many parts


def audit(
    ctx: typer.Context,
    target: AnyFlows = None,
    sample: Annotated[
        str,
        typer.Option(help="Share of the keys of derived tables to recompute, such as `1%`."),
    ] = _ALL,
    as_json: Json = False,
) -> None:
    """Recount landing flows from raw input, recompute derived tables from their sources by another
    engine. Exit 1 if anything doesn't fit.

    A flow that can't be audited keeps no other from it. Without TARGET derived tables are not
    recomputed: the newest certificate of each is named. A sample that holds does not replace a
    certificate that names rows of the same version.
    """
    here, out = setting(ctx), Output(as_json)
    if target is None:
        overview.refuse_choice(sample=sample != _ALL)
        overview.audit(here, out, lambda spec: _in_brief(here, spec, out))
        return
    spec, share = here.spec(target.pipeline), _share(sample)
    found: dict[str, Found] = {}
    for name in flows(spec, target):
        try:
            with naming(f"draindown audit {spec.pipeline}/{name}"):
                found[name] = _audited(here, spec, name, share, out)
        except DraindownError as error:  # the other flows can be audited
            found[name] = error
        out.progress_done()
    _tell(spec, found, out)


def _audited(
    here: Setting, spec: PipelineSpec, flow: str, share: float, out: Output
) -> Audit | Certificate:
    if not spec.is_derived(flow):
        return _recounted(here, spec, flow, out)
    certificate = _prove(here, spec, flow, share, out)
    _keep(spec, certificate, out)
    return certificate


def _recounted(here: Setting, spec: PipelineSpec, flow: str, out: Output) -> Audit:
    from draindown.audit.recount import audit as audit_flow

    return audit_flow(spec, flow, root=here.root, progress=_every_tenth(out))


def _tell(spec: PipelineSpec, found: Mapping[str, Found], out: Output) -> None:
    """Print what was found of each flow, or in its place why it can't be audited. Exit 1 if
    something does not fit, else as the errors.
    """
    refused = [one for one in found.values() if isinstance(one, DraindownError)]
    if len(refused) == len(found) == 1:
        raise refused[0]
    wrong = any(
        not isinstance(one, DraindownError) and not _is_clean(one) for one in found.values()
    )
    data = {
        "clean": not wrong and not refused,
        "flows": [_data(spec, name, one) for name, one in found.items()],
    }
    texts = [
        not_done(spec.pipeline, name, "audited", one)
        if isinstance(one, DraindownError)
        else str(one)
        for name, one in found.items()
    ]
    out.result(data, "\n\n".join(texts))
    if wrong:
        raise typer.Exit(Exit.FINDINGS)
    if refused:
        raise typer.Exit(max(map(exit_for, refused)))


def _is_clean(found: Audit | Certificate) -> bool:
    from draindown.proof.certificate import Certificate

    return found.holds if isinstance(found, Certificate) else found.clean


def _data(spec: PipelineSpec, flow: str, found: Found) -> dict[str, Any]:
    from draindown.proof.certificate import Certificate

    if isinstance(found, DraindownError):
        return {"pipeline": spec.pipeline, "flow": flow, "clean": False, "error": found.as_dict()}
    if isinstance(found, Certificate):
        return found.as_dict() | {"clean": found.holds}
    return found.asdict()


def _in_brief(
    here: Setting, spec: PipelineSpec, out: Output
) -> dict[str, Audit | Unaudited | DraindownError]:
    """Return the recount of each landing flow, and the newest certificate of each derived one; of
    one that can't be audited the error.
    """
    from draindown.audit.derived import unaudited

    found: dict[str, Audit | Unaudited | DraindownError] = {}
    for name in spec.graph.order:
        try:
            with naming(f"draindown audit {spec.pipeline}/{name}"):
                found[name] = (
                    unaudited(spec, name)
                    if spec.is_derived(name)
                    else _recounted(here, spec, name, out)
                )
        except DraindownError as error:  # the other flows can be audited
            found[name] = error
        out.progress_done()
    return found


def _every_tenth(out: Output) -> Any:
    def progress(done: int, of: int, name: str) -> None:
        step = max(of // 10, 1)
        if done % step == 0:
            out.progress(f"reading raw files: {done} of {of}  {name}")

    return progress


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
            spark = session(f"draindown {spec.pipeline} audit", log=log)
            try:
                return by_spark(
                    spark, layout, declared, found.sources, found.table, share, found.decided
                )
            finally:
                stop(spark)
