"""Commands of the gate: the published version and its verdicts, waivers, withdrawal of rows that
fail.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.cli import accepting
from draindown.cli.context import (
    Flows,
    Json,
    Setting,
    Target,
    Yes,
    flows,
    one_flow,
    person,
    setting,
)
from draindown.cli.output import Output

if TYPE_CHECKING:
    from draindown.config.models import PipelineSpec
    from draindown.gate.waivers import Waiver
    from draindown.runs.report import StepReport


gate = typer.Typer(
    no_args_is_help=True, help="What passed its check and is published; waivers; rows in its way."
)
Expectation = Annotated[
    str, typer.Argument(metavar="EXPECTATION", help="Its name, as `gate show` lists it.")
]


@gate.command()
def show(ctx: typer.Context, target: Flows, as_json: Json = False) -> None:
    """Show the published version, the last verdict with its failures, and all waivers."""
    here = setting(ctx)
    spec = here.spec(target.pipeline)
    data = {name: _state(here, spec, name) for name in flows(spec, target)}
    text = "\n\n".join(_text(f"{spec.pipeline}/{name}", state) for name, state in data.items())
    Output(as_json).result(data, text)


@gate.command()
def waive(
    ctx: typer.Context,
    target: Flows,
    expectation: Expectation,
    note: Annotated[
        str | None, typer.Option(help="Why it may fail; required, and shown wherever it counts.")
    ] = None,
    until_version: Annotated[
        int | None, typer.Option(min=0, help="Newest table version it counts for.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--for", help="How long it counts, such as `2 days`.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take the waiver back.")] = False,
    as_json: Json = False,
) -> None:
    """Let the gate pass although an expectation fails. The next run checks again and publishes."""
    from draindown.gate import waivers

    here = setting(ctx)
    spec = here.spec(target.pipeline)
    if undo:
        _unwaive(spec, target, expectation, Output(as_json))
        return
    if note is None:
        raise typer.BadParameter("say why, for those who ask later", param_hint="--note")
    name = _flow_with(here, spec, target, expectation)
    waiver = waivers.waive(
        spec.layout(name),
        expectation,
        by=person(),
        reason=note,
        known=_names(here, spec, name),
        until_version=until_version,
        until=_until(duration),
    )
    text = f"waived {_waiver_text(waiver)}\nnext: draindown run {spec.pipeline}/{name}"
    Output(as_json).result({"flow": name, **waiver.model_dump(mode="json")}, text)


def _unwaive(spec: PipelineSpec, target: Target, expectation: str, out: Output) -> None:
    from draindown.gate import waivers

    waived = [
        name for name in flows(spec, target) if expectation in waivers.waivers(spec.layout(name))
    ]
    name = waived[0] if len(waived) == 1 else one_flow(spec, target)
    removed = waivers.unwaive(spec.layout(name), expectation)
    out.result(
        {"flow": name, **removed.model_dump(mode="json")}, f"took back {_waiver_text(removed)}"
    )


@gate.command()
def withdraw(
    ctx: typer.Context,
    target: Flows,
    expectation: Expectation,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Take unpublished rows that make an expectation fail out of the table, into the quarantine;
    the rest can pass.
    """
    from draindown.cli.running import withdraw_rows

    here = setting(ctx)
    spec = here.spec(target.pipeline)
    withdraw_rows(
        here, spec, _flow_with(here, spec, target, expectation), expectation, yes, Output(as_json)
    )


gate.command()(accepting.accept)


def _state(here: Setting, spec: PipelineSpec, flow: str) -> dict[str, Any]:
    from draindown.gate import published as gates
    from draindown.gate import waivers
    from draindown.runs import store

    layout = spec.layout(flow)
    checks = (store.read(layout, run, "check") for run in store.runs(layout, store.KEPT_RUNS))
    last = next((step for step in checks if step), None)
    pointer, state = gates.published(layout), gates.unpublished(layout)
    judged = last.check.version if last and last.check else None
    return {
        "pipeline": spec.pipeline,
        "flow": flow,
        "unjudged": state.version if state and state.pending and state.version != judged else None,
        "table": state.table_id if state else None,
        "published": pointer.model_dump(mode="json") if pointer else None,
        "last": last.model_dump(mode="json") if last else None,
        "expectations": _names(here, spec, flow),
        "waivers": {name: w.model_dump(mode="json") for name, w in waivers.waivers(layout).items()},
        **accepting.shown(spec, flow),
    }


def _text(where: str, state: dict[str, Any]) -> str:
    from draindown.base.formatting import count, printable
    from draindown.gate.waivers import Waiver
    from draindown.runs.card import card
    from draindown.runs.report import StepReport

    pointer = state["published"]
    lines = [where, "  published  none"]
    if pointer:
        lines[1] = (
            f"  published  version {pointer['version']}, {count(pointer['rows'], 'row')}, at {pointer['at']}"
        )
    lines += accepting.lines(state)
    waived = [Waiver.model_validate(waiver) for waiver in state["waivers"].values()]
    lines += [f"  waived     {_waiver_text(waiver, state.get('table'))}" for waiver in waived]
    lines += [f"  expects    {printable(name)}" for name in state["expectations"]]
    if state.get("unjudged") is not None:
        run = f"draindown run {state['pipeline']}/{state['flow']}   # judges it, and publishes it if it passes"
        lines += [f"  unjudged   version {state['unjudged']}", f"    next: {run}"]
    if state["last"]:
        told = StepReport.model_validate(state["last"])
        last = card([_with_advice(told, counts=state.get("unjudged") is None)])
        lines += ["  last check", *(f"    {line}" for line in last.splitlines())]
    return "\n".join(lines)


def _with_advice(check: StepReport, *, counts: bool) -> StepReport:
    """Return the check without the advice to type the command whose output it is shown in.

    `counts`: whether the table is as it was judged; otherwise the other advice may be followed
    already.
    """
    if not check.error:
        return check
    steps = [
        step
        for step in check.error.get("next") or ()
        if counts and not step.startswith("draindown gate show ")
    ]
    return check.model_copy(update={"error": check.error | {"next": steps}})


def _waiver_text(waiver: Waiver, table: str | None = None) -> str:
    """Return a waiver in words. `table`: Delta's id of the table; a waiver until a version of
    another is over.
    """
    from draindown.base.formatting import printable

    of = " of an earlier table" if table and waiver.table not in (None, table) else ""
    ends = [f"until version {waiver.until_version}{of}"] if waiver.until_version is not None else []
    ends += [f"until {waiver.until:%Y-%m-%d %H:%M}"] if waiver.until else []
    until = f" {' and '.join(ends)}" if ends else ""
    return f"{printable(waiver.expectation)}{until}, by {printable(waiver.by)}: {printable(waiver.reason)}"


def _names(here: Setting, spec: PipelineSpec, flow: str) -> list[str]:
    from draindown.config.derived import DerivedFlow
    from draindown.config.project import suite
    from draindown.gate import published as gates
    from draindown.gate import suite as gate_suite

    declared = spec.declared(flow)
    wanted = declared.expectations
    share = [] if isinstance(declared, DerivedFlow) else [gates.QUARANTINED_SHARE]
    return [*(gate_suite.names(suite(here.root, wanted)) if wanted else []), *share]


def _flow_with(here: Setting, spec: PipelineSpec, target: Target, expectation: str) -> str:
    having = [name for name in flows(spec, target) if expectation in _names(here, spec, name)]
    return having[0] if len(having) == 1 else one_flow(spec, target)


def _until(duration: str | None) -> datetime | None:
    from draindown.base.clock import now
    from draindown.config.units import parse_duration

    try:
        return None if duration is None else now() + timedelta(seconds=parse_duration(duration))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from None
    except OverflowError:
        raise typer.BadParameter(
            "there is no such time: leave it out, for good", param_hint="--for"
        ) from None
