"""Commands of recovery: reset, replay, rebuild, and what lets a table go on without a reader that
is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.base.run_size import largest, size_of
from draindown.cli.context import (
    Json,
    OneFlow,
    Yes,
    new_run_id,
    one_flow,
    person,
    refuse_without,
    request_of,
    setting,
)
from draindown.cli.output import Output
from draindown.lake.directories import absolute

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from datetime import datetime

    from draindown.recovery.opening import Needs, OpenFlow
    from draindown.recovery.rebuild import RebuildPlan
    from draindown.recovery.replay import Replay
    from draindown.recovery.reset import ResetPlan
    from draindown.runs.request import Request


_AcceptMissing = Annotated[
    bool,
    typer.Option(
        "--accept-missing", help="Begin although some input is gone or changed; it is left out."
    ),
]
_Since = Annotated[
    str | None,
    typer.Option("--from", help="Input first seen at this time or later; UTC unless it says."),
]
_Until = Annotated[str | None, typer.Option("--to", help="Input first seen before this time.")]
_Files = Annotated[list[str] | None, typer.Option("--file", help="This file. Repeatable.")]
_Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        help="Records of a topic: TOPIC/PARTITION:FROM-UNTIL, or TOPIC/PARTITION. Repeatable.",
    ),
]


def reset(
    ctx: typer.Context,
    target: OneFlow,
    accept_missing: _AcceptMissing = False,
    table_aside: Annotated[
        bool,
        typer.Option(
            "--table-aside",
            help="Put the table aside too: it is gone until the next run fills it anew.",
        ),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Go back, while the new generation has no batch yet.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Begin the next generation, which reads all input again: for a lost checkpoint, a lost or
    restored table.
    """
    from draindown.recovery import reset as reset_plan
    from draindown.recovery.opening import Needs

    here, out = setting(ctx), Output(as_json)
    request = request_of(here, target)
    if undo:
        if table_aside:
            raise typer.BadParameter("an undo moves no table", param_hint="--table-aside")
        _undo(request, yes, out)
        return
    plan = reset_plan.plan(request, table_aside=table_aside)
    out.note(_plan_text(plan))
    if not accept_missing:
        reset_plan.refuse_incomplete(request, plan)
    refuse_without(yes)
    flags = ["--table-aside"] * table_aside + ["--accept-missing"] * accept_missing
    with _opened(request, Needs.FINISHED, "reset", *flags) as opened:
        plan = reset_plan.plan(request, table_aside=table_aside)
        reset_plan.begin(
            request,
            plan,
            by=person(),
            accept_missing=accept_missing,
            check=opened.check,
            epoch=opened.layout.epoch,
        )
    follow = f"draindown run {plan.pipeline}/{plan.flow}"
    out.result(
        plan.as_dict() | {"next": follow}, f"generation {plan.generation} is live; next: {follow}"
    )


def _opened(request: Request, needs: Needs, *words: str) -> AbstractContextManager[OpenFlow]:
    """Open the request's flow under its lease. `words`: the command's verb and options, for who has
    to repeat it.
    """
    from draindown.recovery.opening import open_flow

    verb, *options = words
    again = " ".join(
        ["draindown", verb, f"{request.spec.pipeline}/{request.flow}", *options, "--yes"]
    )
    return open_flow(
        request.spec, request.flow, needs, owner=person(), run_id=request.run_id, again=again
    )


def _undo(request: Request, yes: bool, out: Output) -> None:
    from draindown.flow import generations
    from draindown.recovery import reset as reset_plan
    from draindown.recovery.opening import Needs

    live, previous = generations.generation(request.layout), reset_plan.undoable(request.layout)
    out.note(
        f"go back from generation {live} to generation {previous} of {request.spec.pipeline}/{request.flow}"
    )
    refuse_without(yes)
    with _opened(request, Needs.FINISHED, "reset", "--undo") as opened:
        previous = reset_plan.undo(
            request, by=person(), check=opened.check, epoch=opened.layout.epoch
        )
    out.result({"generation": previous}, f"generation {previous} is live again")


def _plan_text(plan: ResetPlan) -> str:
    from draindown.base.formatting import count, size
    from draindown.flow.generations import gone

    before = "can't be told" if plan.previous is None else plan.previous
    what = f"{count(plan.units, plan.unit)}, {size(plan.bytes)}, in {count(plan.slices, 'batch', 'batches')}"
    lines = [
        f"reset {plan.pipeline}/{plan.flow}: generation {before} -> {plan.generation}",
        f"  read again   {what}"
        if plan.slices
        else "  read again   whatever is at the source: the intake is empty or gone",
        *(f"  put aside    {path}: it can't be read" for path in plan.damaged),
        *[
            "  put aside    the table, as asked: its readers find none until the next run has filled it anew"
        ]
        * plan.table_aside,
        *["  put aside    the hidden events of its history"] * plan.hidden_aside,
        f"  gone         {gone(plan.missing, plan.forgotten, plan.unit) or 'nothing'}",
        f"  the table    {_meaning(plan)}",
        "  final        no --undo: what is put aside is missing before it"
        if plan.damaged or plan.table_aside or plan.hidden_aside
        else "  final        no --undo: which generation was live before can't be told"
        if plan.kept is None
        else f"  kept         generation {plan.kept}, for: draindown reset {plan.pipeline}/{plan.flow} --undo",
    ]
    return "\n".join(lines)


def _meaning(plan: ResetPlan) -> str:
    if plan.target != "filled":
        return f"is {plan.target}; it is filled anew"
    if plan.derived:
        return "is compared with its source key by key; only what differs is written"
    older = (
        "stays as it is: newer rows are kept, older ones count as superseded or "
        "duplicate, deleted keys stay deleted"
    )
    return (
        older
        if plan.holds_previous
        else "holds rows of other origin; keys that the input has are brought up to date"
    )


def replay(
    ctx: typer.Context,
    target: OneFlow,
    since: _Since = None,
    until: _Until = None,
    files: _Files = None,
    ranges: _Ranges = None,
    again: Annotated[
        bool, typer.Option("--again", help="Even if the same was replayed before.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Read input again that was drained before: what was first seen in a range of time, or named
    files or offsets.
    """
    from draindown.recovery import replay as replay_plan
    from draindown.runs.request import Again
    from draindown.sources.registry import source_of

    here, out = setting(ctx), Output(as_json)
    spec = here.spec(target.pipeline)
    # paths are relative to the working directory, not to the project root
    units = (*(absolute(name) for name in files or ()), *(ranges or ()))
    asked = Again(
        since=_time(since, "--from"), until=_time(until, "--to"), units=units, again=again
    )
    request = here.request(spec, one_flow(spec, target), "drain", new_run_id(), replay=asked)
    found = replay_plan.find(request)
    source = source_of(request)
    out.note(_replay_text(found, source.unit, derived=spec.is_derived(request.flow)))
    if not found.left:
        out.result({"replay": found.as_dict(), "batches": 0}, _nothing_left(found))
        return
    replay_plan.refuse_gone(source, request.layout, found.left)
    refuse_without(yes)
    from draindown.cli.running import drain_instead

    once_more = " --again" if again else ""
    command = f"draindown replay {spec.pipeline}/{request.flow} {found.asked}{once_more} --yes"
    drain_instead(here, spec, request.flow, out, replay=asked, command=command)


def rebuild(
    ctx: typer.Context,
    target: OneFlow,
    accept_missing: _AcceptMissing = False,
    drop_foreign: Annotated[
        bool,
        typer.Option(
            "--drop-foreign", help="Undo what commits of others did to rows, as the plan counts it."
        ),
    ] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="Throw away a rebuild that was begun.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Read all input again into a fresh table and swap it in: after a change of transform, rules,
    types or keys.
    """
    from draindown.recovery import rebuild as rebuild_plan
    from draindown.recovery.foreign_undone import refuse_undone

    here, out = setting(ctx), Output(as_json)
    request = request_of(here, target)
    spec = request.spec
    if abort:
        _abort(request, yes, out)
        return
    plan = rebuild_plan.plan(request)
    out.note(_rebuild_text(plan, request))
    if not accept_missing:
        rebuild_plan.refuse_incomplete(request, plan)
    if yes and not drop_foreign:
        refuse_undone(request.layout, plan.foreign)
    refuse_without(yes)
    from draindown.cli.running import rebuild_table

    # a rebuild is never small: it reads all that was ever taken in, and compares its table
    size = largest(("medium", size_of(plan.slices, plan.bytes)))
    rebuild_table(
        here,
        spec,
        request.flow,
        out,
        size,
        accept_missing=accept_missing,
        drop_foreign=drop_foreign,
    )


def _abort(request: Request, yes: bool, out: Output) -> None:
    from draindown.recovery.abort import abort, abortable
    from draindown.recovery.opening import Needs

    begun = abortable(request.layout)
    whose = f"generation {begun.generation} of {request.spec.pipeline}/{request.flow}, begun {begun.at} by {begun.by}"
    out.note(f"throw away the rebuild of {whose}; the live table stays as it is")
    refuse_without(yes)
    with _opened(request, Needs.LEASE, "rebuild", "--abort") as opened:
        generation = abort(opened.layout, opened.check)
    out.result(
        {"aborted": generation},
        f"the rebuild of generation {generation} is gone; the live table is as it was",
    )


def _rebuild_text(plan: RebuildPlan, request: Request) -> str:
    from draindown.base.formatting import count, size
    from draindown.flow.generations import gone

    head = f"rebuild {plan.pipeline}/{plan.flow}: generation {plan.previous} -> {plan.generation}"
    if plan.state == "swapped":
        return f"{head}\n  it is in the table's place; a crash came before what follows, which is done now"
    what = f"{count(plan.units, plan.unit)}, {size(plan.bytes)}, in {count(plan.slices, 'batch', 'batches')}"
    table, target = size(plan.table_bytes), request.declared.target
    ordered = [name for name in target.essential if name not in target.row_keys]
    by = f", by {', '.join(ordered)}" if ordered else ""
    rows = f"one per {', '.join(target.row_keys)}{by}" if target.row_keys else "all are appended"
    lines = [
        f"{head}{' (begun before, goes on)' if plan.state == 'begun' else ''}",
        f"  read again   {what}",
        f"  gone         {gone(plan.missing, plan.forgotten, plan.unit) or 'nothing'}",
        f"  rows         {rows}; the fresh table has what the input gives, nothing else",
        *(
            f"  {'of others' if not nth else '':<11}  {text}"
            for nth, text in enumerate(plan.foreign)
        ),
        f"  changes      {'; '.join(plan.changes) or 'none in columns or partitions'}",
        f"  disk         twice the table more ({table} now), once until VACUUM; {size(plan.free_bytes)} are free",
        "  until then   the live table stays as it is; no other run of this flow can start",
    ]
    return "\n".join(lines)


def _replay_text(found: Replay, unit: str, *, derived: bool) -> str:
    from draindown.base.formatting import count, size

    data: dict[str, Any] = found.as_dict()
    batches = count(len(found.parts), "batch", "batches")
    what = (
        f"what {batches} touched"
        if derived
        else f"{count(found.units, unit)}, {size(data['bytes'])}, in {batches}"
    )
    rows = "rows that are newer stay; what it holds already counts as duplicate or superseded"
    keys = "these keys are computed again, from the sources as the newest batch read them"
    lines = [
        f"replay {found.id} of {found.pipeline}/{found.flow}: {found.asked}",
        f"  read again   {what}",
        f"  the table    {keys if derived else rows}",
    ]
    if found.done:
        lines.append(f"  done before  {count(found.done, 'batch', 'batches')}")
    if found.waiting:
        lines.append(
            f"  left out     {count(found.waiting, unit)} that wait to be drained: draindown run {found.pipeline}"
        )
    return "\n".join(lines)


def _nothing_left(found: Replay) -> str:
    return found.nothing_left + (
        "; --again does it once more" if found.begun else "; nothing to replay"
    )


def _time(text: str | None, option: str) -> datetime | None:
    """Return a time from ISO 8601; a time without a zone is in UTC."""
    from draindown.config.units import parse_time

    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
