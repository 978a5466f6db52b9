"""The command plan: what waits, and what a run would do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.base.errors import DraindownError
from draindown.base.exits import exit_for
from draindown.cli.context import Flows, Json, Setting, flows, new_run_id, setting
from draindown.cli.failures import naming
from draindown.cli.inspect import unnamed as unnamed_drift
from draindown.cli.output import Output, not_done
from draindown.launch.settings import is_local, master

if TYPE_CHECKING:
    from draindown.base.findings import Finding
    from draindown.config.flow_graph import FlowGraph
    from draindown.config.models import PipelineSpec
    from draindown.lease.holder import Card
    from draindown.runs.report import PlanPart


def plan(
    ctx: typer.Context,
    target: Flows,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Explain derived flows: query, what a change touches, what the next run reads.",
        ),
    ] = False,
    physical: Annotated[
        bool,
        typer.Option(
            "--physical", help="With --explain: Spark's plan of the next run too; starts a JVM."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what waits and what a run would do now. Starts no JVM."""
    from draindown.lease.holder import holder

    here = setting(ctx)
    spec = here.spec(target.pipeline)
    if physical and not explain:
        raise typer.BadParameter("it is part of --explain: say that too", param_hint="--physical")
    if explain:
        from draindown.cli.explaining import explain as explained

        explained(here, spec, target, Output(as_json), with_physical=physical)
        return
    found, failed = _planned(here, spec, flows(spec, target))
    holders = {name: holder(spec.layout(name), patient=False) for name in found}
    unnamed = {
        name: [row for row in unnamed_drift(spec, name) if row["kind"] == "new-field"]
        for name in found
    }
    follows = _follows(spec.graph, found, failed)
    data: dict[str, dict[str, Any]] = {
        name: {
            "plan": part.model_dump(mode="json"),
            "findings": [f.model_dump(mode="json") for f in findings],
            "drift": unnamed[name],
            "holder": None if holders[name] is None else str(holders[name]),
            "follows": follows[name],
        }
        for name, (part, findings) in found.items()
    }
    data |= {name: {"error": error.as_dict()} for name, error in failed.items()}
    more = {
        name: (
            _master_line(),
            _lease_line(holders[name]),
            _drift_line(unnamed[name], spec.pipeline, name),
        )
        for name in found
    }
    texts = {
        name: _plan_text(f"{spec.pipeline}/{name}", *parts, follows[name], *more[name])
        for name, parts in found.items()
    }
    texts |= {
        name: not_done(spec.pipeline, name, "planned", error) for name, error in failed.items()
    }
    text = "\n\n".join(texts[name] for name in flows(spec, target))
    Output(as_json).result({"pipeline": spec.pipeline, "master": master(), "flows": data}, text)
    if failed:
        raise typer.Exit(max(map(exit_for, failed.values())))


def _planned(
    here: Setting, spec: PipelineSpec, names: list[str]
) -> tuple[dict[str, tuple[PlanPart, list[Finding]]], dict[str, DraindownError]]:
    """Return the plans of flows, and why others can't be planned. Raises the error if there is one
    flow only.
    """
    found, failed = {}, {}
    for name in names:
        try:
            with naming(f"draindown plan {spec.pipeline}/{name}"):
                found[name] = planned(here, spec, name)
        except DraindownError as error:
            if len(names) == 1:
                raise
            failed[name] = error
    return found, failed


def _follows(
    graph: FlowGraph, found: Mapping[str, tuple[PlanPart, list[Finding]]], failed: Collection[str]
) -> dict[str, list[str]]:
    """Return for each flow those upstream where this run may change or publish rows, so that it may
    have work then.
    """
    moving, follows = set[str](failed), dict[str, list[str]]()
    for name in (name for name in graph.order if name in found):
        part, _ = found[name]
        follows[name] = [one for one in graph.upstream(name) if one in moving]
        if part.drain or part.check or follows[name]:
            moving.add(name)
    return follows


def planned(
    here: Setting, spec: PipelineSpec, flow: str, **bounds: Any
) -> tuple[PlanPart, list[Finding]]:
    """Return the plan of one flow, as the DAG's plan task makes it."""
    from draindown.base.clock import now
    from draindown.planning.plan import plan as plan_flow

    part, findings = plan_flow(here.request(spec, flow, "plan", new_run_id(), **bounds), now())
    return part, list(findings)


def _plan_text(
    where: str, part: PlanPart, findings: list[Finding], follows: Sequence[str], *more: str
) -> str:
    from draindown.base.formatting import age, count, printable
    from draindown.runs.card_parts import backlog_words
    from draindown.runs.request import STEPS

    time = (
        f", about {age(part.seconds)}"
        if part.seconds is not None
        else "; how long it takes can't be told yet"
    )
    forecast = (
        f"  forecast about {count(part.batches, 'batch', 'batches')}{time}" if part.batches else ""
    )
    lines = [where, f"  waiting  {backlog_words(part.backlog)}"] + ([forecast] if forecast else [])
    for step in STEPS[1:]:
        lines.append(
            f"  {step:<8} {'yes' if getattr(part, step) else 'no '}  {part.reasons.get(step, '')}".rstrip()
        )
    if follows:
        after = (
            f"once {' and '.join(follows)} ran, there may be more to do: the run looks again then"
        )
        lines.append(f"  follows  {after}")
    if part.parked:
        pipeline, flow = where.split("/")
        command = f"draindown input list {pipeline}/{flow}"
        lines.append(
            f"  parked   {count(part.parked, part.backlog.unit)} until someone decides   ({command})"
        )
    for finding in findings:
        lines.append(
            f"  {finding.kind:<8} {printable(finding.subject)}: {printable(finding.detail)}"
        )
        lines += [f"           next: {printable(finding.next)}"] if finding.next else []
    return "\n".join([*lines, *filter(None, more)])


def _master_line() -> str:
    return (
        ""
        if is_local(master())
        else f"  on       {master()} (DRAINDOWN_MASTER; a DAG takes its Spark connection)"
    )


def _lease_line(holder: Card | None) -> str:
    from draindown.base.formatting import printable

    return f"  lease    held by {printable(str(holder))}" if holder else ""


def _drift_line(fields: list[dict[str, Any]], pipeline: str, flow: str) -> str:
    from draindown.base.formatting import count, printable

    if not fields:
        return ""
    shown = ", ".join(printable(row["name"]) for row in fields[:3]) + (
        ", ..." if len(fields) > 3 else ""
    )
    many = count(len(fields), "field")
    return (
        f"  fields   {many} kept in _rescued_data: {shown}   (draindown report {pipeline}/{flow})"
    )
