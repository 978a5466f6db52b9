"""Commands for refused rows and parked files: list, show, replay, discard, retry."""

from __future__ import annotations

import shlex
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from draindown.cli.context import (
    Flows,
    Ids,
    Json,
    Note,
    OneFlow,
    Yes,
    landing_flows,
    new_run_id,
    not_empty,
    one_flow,
    person,
    refuse_without,
    setting,
)
from draindown.cli.output import Output, as_csv, table
from draindown.lake.directories import absolute

if TYPE_CHECKING:
    from draindown.cli.context import Setting
    from draindown.config.models import PipelineSpec
    from draindown.flow.quarantine import Counts, Filter
    from draindown.lake.home import FlowHome


quarantine = typer.Typer(
    no_args_is_help=True, help="Refused rows and parked files, and what becomes of them."
)


Reason = Annotated[
    str | None,
    typer.Option(
        help="Only rows refused for this reason: `type`, or `type:amount`.", callback=not_empty
    ),
]
RunId = Annotated[
    str | None, typer.Option("--run", help="Only rows refused by this run.", callback=not_empty)
]
Files = Annotated[bool, typer.Option("--files", help="Parked files instead of rows.")]
Paths = Annotated[
    list[str] | None, typer.Option("--path", help="With --files: only this file. Repeatable.")
]


class State(StrEnum):
    """The rows that `list` shows."""

    open = "open"
    released = "released"
    discarded = "discarded"
    all = "all"


_SHOWN = 5  # rows of a selection
HEADER = ("id", "reason", "field", "unit", "position", "raw")
"""The columns of `list`."""
_STATES: dict[State, Literal["open", "released", "discarded"] | None] = {
    State.open: "open",
    State.released: "released",
    State.discarded: "discarded",
    State.all: None,
}


@quarantine.command("list")
def list_(
    ctx: typer.Context,
    target: Flows,
    reason: Reason = None,
    ids: Ids = None,
    run: RunId = None,
    state: Annotated[State, typer.Option(help="Which rows.")] = State.open,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows per flow.")] = 50,
    files: Files = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print the rows as CSV, safe for spreadsheets.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List refused rows with reason and place, or parked files with --files."""
    spec = setting(ctx).spec(target.pipeline)
    if files:
        _list_files(spec, landing_flows(spec, target), Output(as_json))
        return
    from draindown.flow import quarantine as rows_of
    from draindown.flow.state import FlowState

    which = rows_of.Filter(reason, tuple(ids) if ids else None, run, _STATES[state])
    # one more than asked for tells whether there are more
    states = {name: FlowState.of(spec.layout(name)) for name in landing_flows(spec, target)}
    known = {name: rows_of.listed(state, which, limit + 1) for name, state in states.items()}
    found = {name: rows[:limit] for name, rows in known.items()}
    if csv:
        header = ("flow", "state", *rows_of.COLUMNS)
        every = [
            {"flow": name, **row, "origin": rows_of.place_of(row)}
            for name, rows in found.items()
            for row in rows
        ]
        typer.echo(as_csv(every, header), nl=False)
        return
    sums = {name: rows_of.counts(state) for name, state in states.items()}
    data = {name: {"counts": sums[name].as_dict(), "rows": rows} for name, rows in found.items()}
    meant = _meant(which) if which.restricts else ""
    text = "\n\n".join(
        _rows_text(spec.pipeline, name, sums[name], rows, meant, len(known[name]) > limit)
        for name, rows in found.items()
    )
    Output(as_json).result(data, text)


@quarantine.command()
def show(
    ctx: typer.Context,
    target: Flows,
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="Id of a refused row; its start is enough.")
    ],
    as_json: Json = False,
) -> None:
    """Show one refused row: raw text with control characters encoded, why it was refused, where it
    came from.
    """
    from draindown.base.errors import TerminalError
    from draindown.base.formatting import printable
    from draindown.flow import quarantine as rows_of

    spec = setting(ctx).spec(target.pipeline)
    which = rows_of.Filter(ids=(identity,), state=None)
    found = [
        row
        for name in landing_flows(spec, target)
        for row in rows_of.listed(spec.layout(name), which, 2)
    ]
    if len({row["quarantine_id"] for row in found}) != 1:
        raise TerminalError(
            "unknown-quarantine-id",
            tried=f"find refused row {identity!r} of pipeline {spec.pipeline}",
            found="more than one refused row begins with it" if found else "no refused row has it",
            next=f"draindown quarantine list {spec.pipeline}",
        )
    told = found[-1] | {"origin": rows_of.place_of(found[-1])}
    lines = [
        f"{name:<14} {'' if value is None else printable(str(value))}"
        for name, value in told.items()
    ]
    Output(as_json).result(found[-1], "\n".join(lines))


@quarantine.command()
def replay(
    ctx: typer.Context,
    target: OneFlow,
    reason: Reason = None,
    ids: Ids = None,
    run: RunId = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Feed refused rows through the flow again, after the contract or a rule was corrected."""
    here, out = setting(ctx), Output(as_json)
    spec = here.spec(target.pipeline)
    name = one_flow(spec, target, landing=True)
    chosen = _chosen(spec.layout(name), reason, ids, run, out, "replay")
    if not chosen:
        out.result({"replayed": 0}, "no open row is meant; nothing to replay")
        return
    refuse_without(yes)
    from draindown.cli.running import drain_instead

    command = (
        f"draindown quarantine replay {spec.pipeline}/{name}{_options(reason, ids, run)} --yes"
    )
    drain_instead(here, spec, name, out, quarantine_ids=tuple(chosen), command=command)


@quarantine.command()
def discard(
    ctx: typer.Context,
    target: OneFlow,
    reason: Reason = None,
    ids: Ids = None,
    run: RunId = None,
    files: Files = False,
    paths: Paths = None,
    note: Note = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Give up refused rows, or with --files parked files and files taken in that no batch has read
    yet.
    """
    here, out = setting(ctx), Output(as_json)
    spec = here.spec(target.pipeline)
    layout = spec.layout(one_flow(spec, target, landing=True))
    if files and (reason or ids or run):
        raise typer.BadParameter(
            "--reason, --id and --run choose rows; parked files are chosen with --path"
        )
    if paths and not files:
        raise typer.BadParameter("--path names a file: give --files too", param_hint="--path")
    if files:
        _close_files(here, spec, layout.flow, paths, note, yes, out, "discard")
        return
    from draindown.base.formatting import count
    from draindown.flow import quarantine as rows_of
    from draindown.recovery.opening import Needs, open_flow

    done = 0
    chosen = _chosen(layout, reason, ids, run, out, "discard")
    if chosen:
        refuse_without(yes)
        # settled: what a replay that died has applied is not for anyone to give up
        with open_flow(spec, layout.flow, Needs.SETTLED, owner=person(), run_id=new_run_id()):
            done = rows_of.discard(layout, chosen, by=person(), note=note)
    out.result({"discarded": done}, f"discarded {count(done, 'row')}")


@quarantine.command()
def retry(
    ctx: typer.Context,
    target: OneFlow,
    paths: Paths = None,
    note: Note = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Have the next run look at parked files again, after they were repaired."""
    here = setting(ctx)
    spec = here.spec(target.pipeline)
    _close_files(
        here, spec, one_flow(spec, target, landing=True), paths, note, yes, Output(as_json), "retry"
    )


def _options(reason: str | None, ids: list[str] | None, run: str | None) -> str:
    """Return the options of a command that select these rows."""
    given = [("--reason", reason), *(("--id", one) for one in ids or ()), ("--run", run)]
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value)


def _chosen(
    layout: FlowHome,
    reason: str | None,
    ids: list[str] | None,
    run: str | None,
    out: Output,
    verb: str,
) -> list[str]:
    """Return the ids of the selected rows, after printing the selection to stderr."""
    from draindown.base.formatting import count
    from draindown.flow import quarantine as rows_of

    which = rows_of.Filter(reason, tuple(ids) if ids else None, run)
    chosen = rows_of.identified(layout, which)
    out.note(
        f"{verb} {count(len(chosen), 'open row')} of {layout.pipeline}/{layout.flow}{_meant(which)}"
    )
    for row in rows_of.listed(layout, which, _SHOWN):
        out.note("  " + "  ".join(_row(row)))
    if len(chosen) > _SHOWN:
        out.note(
            f"  and {len(chosen) - _SHOWN:,} more: draindown quarantine list {layout.pipeline}/{layout.flow}"
        )
    return chosen


def _meant(which: Filter) -> str:
    from draindown.base.formatting import count

    parts = [
        f"reason {which.reason}" if which.reason else "",
        f"run {which.run_id}" if which.run_id else "",
    ]
    parts += [count(len(which.ids), "id")] if which.ids else []
    return (
        f" ({', '.join(part for part in parts if part)})" if which.restricts else " (all of them)"
    )


def _rows_text(
    pipeline: str, flow: str, sums: Counts, rows: list[dict[str, Any]], meant: str, more: bool
) -> str:
    from draindown.base.formatting import count, printable

    by_reason = ", ".join(
        f"{printable(reason)} {count(number)}" for reason, number in sums.by_reason.items()
    )
    decided = f"{count(sums.released)} released, {count(sums.discarded)} discarded"
    first = (
        f"{pipeline}/{flow}  {count(sums.open)} open of {count(sums.refused)} refused ({decided})"
    )
    lines = [first, *([f"  open by reason: {by_reason}"] if by_reason else [])]
    if meant and not rows:
        lines.append(f"  none is meant by{meant}")
    if rows:
        lines += table(HEADER, [_row(row) for row in rows], (4,)).splitlines()
    if more:
        hint = f"more with --limit, one in full with: draindown quarantine show {pipeline} ID"
        lines.append(f"{count(len(rows))} shown; {hint}")
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> list[str]:
    from draindown.base.formatting import printable

    unit, position = str(row["origin"]["unit"]), str(row["origin"]["position"])
    # of a path its last part; `topic/partition` whole
    unit = unit.rsplit("/", 1)[-1] if unit.startswith("/") else unit
    cells = (
        row["quarantine_id"][:12],
        row["reason"],
        row["field"] or "",
        unit,
        position,
        row["raw"] or "",
    )
    return [printable(cell, 60) for cell in cells]


def _list_files(spec: PipelineSpec, names: list[str], out: Output) -> None:
    from dataclasses import asdict

    from draindown.base.formatting import printable, size
    from draindown.sources.files import parked

    rows, data = [], []
    for name in names:
        for event in parked.open_files(spec.layout(name)):
            rows.append(
                [
                    name,
                    printable(event.path),
                    size(event.size),
                    event.reason,
                    printable(event.detail),
                ]
            )
            data.append(
                {
                    "flow": name,
                    **{k: v for k, v in asdict(event).items() if k not in ("head", "at")},
                }
            )
    text = (
        table(("flow", "file", "size", "reason", "detail"), rows, right=(2,))
        if rows
        else "no parked files"
    )
    out.result(data, text)


def _close_files(
    here: Setting,
    spec: PipelineSpec,
    flow: str,
    paths: list[str] | None,
    note: str,
    yes: bool,
    out: Output,
    verb: str,
) -> None:
    from draindown.base.clock import now
    from draindown.base.formatting import count, printable
    from draindown.flow import discards
    from draindown.recovery.losses import reading
    from draindown.recovery.opening import Needs, open_flow
    from draindown.sources.files import parked
    from draindown.sources.registry import source_of

    run_id, layout = new_run_id(), spec.layout(flow)
    wanted = [absolute(path) for path in paths or ()] or [
        event.path for event in parked.open_files(layout)
    ]
    out.note(f"{verb} {count(len(wanted), 'file')} of {layout.pipeline}/{layout.flow}")
    for path in wanted[:10]:
        out.note(f"  {printable(path)}")
    if wanted:
        refuse_without(yes)
        with open_flow(spec, flow, Needs.FINISHED, owner=person(), run_id=run_id):
            if verb == "retry":
                parked.retry(layout, wanted, by=person(), note=note, now=now())
            else:
                request = here.request(spec, flow, "drain", run_id)
                give_up = partial(
                    discards.discard_input,
                    source_of(request),
                    layout,
                    wanted,
                    reading=reading(request),
                )
                give_up(by=person(), note=note, at=now())
    done = "will be looked at again" if verb == "retry" else "discarded"
    out.result({verb: wanted}, f"{count(len(wanted), 'file')} {done}")
