"""What `plan --explain` prints: the query of derived flows in words, and what they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from draindown.base.errors import DraindownError
from draindown.base.exits import exit_for
from draindown.cli.context import Setting, Target, derived_flows
from draindown.cli.output import Output, not_done
from draindown.cli.physical import physical

if TYPE_CHECKING:
    from draindown.config.models import PipelineSpec
    from draindown.planning.explanation import Explanation
    from draindown.spark.derived.physical import Physical


def explain(
    here: Setting, spec: PipelineSpec, target: Target, out: Output, *, with_physical: bool
) -> None:
    """Print the query of derived flows in words, what a change touches, what the next run reads and
    takes.

    `with_physical`: with Spark's plan of the next batch, which starts a JVM.
    """
    names = derived_flows(spec, target)
    explanations: dict[str, Explanation | DraindownError] = {}
    plans: dict[str, Physical | None] = {}
    for name in names:
        try:
            explanations[name] = _explained(spec, name)
            if with_physical:
                plans[name] = physical(here, spec, name)
        except DraindownError as error:  # the other flows can be explained
            if len(names) == 1:
                raise
            explanations[name] = error
    _tell(out, spec, explanations, plans)


def _explained(spec: PipelineSpec, flow: str) -> Explanation:
    from draindown.base.clock import now
    from draindown.config.derived import DerivedFlow
    from draindown.flow.state import FlowState
    from draindown.planning.explanation import explain as explained

    declared = spec.declared(flow)
    assert isinstance(declared, DerivedFlow)
    return explained(FlowState.of(spec.layout(flow)), declared, now())


def _tell(
    out: Output,
    spec: PipelineSpec,
    found: Mapping[str, Explanation | DraindownError],
    plans: Mapping[str, Physical | None],
) -> None:
    """Print the explanations, and in its place why a flow has none. Exits as the worst error of
    one.
    """
    from dataclasses import asdict

    data: dict[str, dict[str, object]] = {
        name: {"error": one.as_dict()} if isinstance(one, DraindownError) else asdict(one)
        for name, one in found.items()
    }
    for name, planned in plans.items():
        data[name]["physical"] = None if planned is None else asdict(planned)
    texts = [
        not_done(spec.pipeline, name, "explained", one)
        if isinstance(one, DraindownError)
        else _text(one, plans.get(name))
        for name, one in found.items()
    ]
    out.result(
        {"pipeline": spec.pipeline, "flows": data},
        "\n\n".join(texts)
        or f"pipeline {spec.pipeline} has no derived flow: draindown plan says what the others read",
    )
    failed = [one for one in found.values() if isinstance(one, DraindownError)]
    if failed:
        raise typer.Exit(max(map(exit_for, failed)))


def _text(one: Explanation, plan: Physical | None = None) -> str:
    from draindown.base.formatting import count, printable

    lines = [f"{one.pipeline}/{one.flow}", f"  query    {printable(one.query)}"]
    more = (
        "" if one.scope_keys == one.row_keys else f"; a row is named by {', '.join(one.row_keys)}"
    )
    lines.append(f"  touches  a changed row touches {one.touches}")
    lines.append(
        f"           recomputed together: all rows with the same {', '.join(one.scope_keys)}{more}"
    )
    lines += [f"  {word:<8} {printable(text)}" for word, text in _next(one)]
    if one.images:
        per = one.reread / one.images
        shown = f"{per:,.1f}" if per < 10 else count(round(per))
        lines.append(
            f"  recent   {count(one.batches, 'batch', 'batches')}: files of {count(one.reread, 'row')} read again for "
            f"{count(one.images, 'image')} of changed rows, {shown} per image"
        )
    else:
        lines.append("  recent   the ledger knows no batch that read rows again")
    lines += _costs(one)
    lines += [f"  fewer    {printable(one.advice)}"] if one.advice else []
    return "\n".join([*lines, *_plan_lines(plan)])


def _plan_lines(plan: Physical | None) -> list[str]:
    from draindown.base.formatting import count

    if plan is None:
        return []
    sums = f"{count(plan.shuffles, 'shuffle')}, {count(plan.broadcasts, 'broadcast')}"
    lines = [f"  plan     of a batch that would {plan.of}: {sums}"]
    for one in plan.reads:
        pruned = f"{one.of_files - one.files:,} left out"
        lines.append(
            f"           {one.table}: reads {one.files:,} of {count(one.of_files, 'file')}, {pruned}"
        )
    return [*lines, *(f"    {line}" for line in plan.plan.splitlines())]


def _costs(one: Explanation) -> list[str]:
    from draindown.base.formatting import age

    if one.seconds is None:
        return []
    return [f"  takes    about {age(one.seconds)}, by the batches of the ledger"]


def _next(one: Explanation) -> list[tuple[str, str]]:
    from draindown.base.formatting import count

    if one.waits:
        return [("next" if not at else "", text) for at, text in enumerate(one.waits)]
    applied = f"recomputes what {count(one.applied, 'late row')} touch that were released, yet to be counted"
    if not one.sources and not one.applied:
        return [
            (
                "next",
                "reads nothing: no published row of its sources changed since its newest batch",
            )
        ]
    lines: list[tuple[str, str]] = [("next", applied)] if one.applied else []
    for read in one.sources:
        what = (
            f"all rows, at version {read.until}"
            if read.since is None
            else f"{count(read.changed, 'row')} changed since version {read.since}, up to version {read.until}"
            if read.changed
            else f"no row changed, at version {read.until}"
        )
        lines += [
            ("next" if not lines else "", f"{read.table}: {what}"),
            ("", f"reads again of {read}"),
        ]
    return [*lines, *([("", f"compares with {one.result}")] if one.result else [])]
