"""Commands for quarantined rows: list, release, discard."""

from __future__ import annotations

import shlex
from enum import StrEnum
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
from draindown.cli.output import Output, table

if TYPE_CHECKING:
    from draindown.flow.quarantine import Counts, Filter
    from draindown.lake.home import FlowHome


quarantine = typer.Typer(no_args_is_help=True, help="Quarantined rows, and what becomes of them.")


Reason = Annotated[
    str | None,
    typer.Option(
        help="Only rows refused for this reason: `type`, or `type:amount`.", callback=not_empty
    ),
]
RunId = Annotated[
    str | None, typer.Option("--run", help="Only rows refused by this run.", callback=not_empty)
]


class State(StrEnum):
    """The rows that `list` shows."""

    open = "open"
    released = "released"
    discarded = "discarded"
    all = "all"


_SHOWN = 5  # rows of a selection
HEADER = ("id", "reason", "field", "file", "line", "raw")
_OF_LOGS = ("id", "reason", "field", "partition", "offset", "raw")
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
    state: Annotated[
        State | None, typer.Option(help="Which rows. Default: open; with --id: all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows per flow.")] = 50,
    as_json: Json = False,
) -> None:
    """List quarantined rows with reason and place. One --id shows its row in full, with control
    characters encoded.
    """
    from draindown.flow import quarantine as rows_of
    from draindown.flow.state import FlowState

    spec = setting(ctx).spec(target.pipeline)
    shown = _STATES[state or (State.all if ids else State.open)]
    which = rows_of.Filter(reason, tuple(ids) if ids else None, run, shown)
    # one more than asked for tells whether there are more
    states = {name: FlowState.of(spec.layout(name)) for name in landing_flows(spec, target)}
    known = {name: rows_of.listed(state, which, limit + 1) for name, state in states.items()}
    found = {name: rows[:limit] for name, rows in known.items()}
    sums = {name: rows_of.counts(state) for name, state in states.items()}
    data = {name: {"counts": sums[name].as_dict(), "rows": rows} for name, rows in found.items()}
    meant = _meant(which) if which.restricts else ""
    rows = [row for rows in found.values() for row in rows]
    if ids and len(ids) == len(rows) == 1:
        text = _in_full(rows[0])
    else:
        text = "\n\n".join(
            _rows_text(spec.pipeline, name, sums[name], rows, meant, len(known[name]) > limit)
            for name, rows in found.items()
        )
    Output(as_json).result(data, text)


def _in_full(row: dict[str, Any]) -> str:
    from draindown.base.formatting import printable
    from draindown.flow.quarantine import place_of

    told = row | {"origin": place_of(row)}
    return "\n".join(
        f"{name:<14} {'' if value is None else printable(str(value))}"
        for name, value in told.items()
    )


@quarantine.command()
def release(
    ctx: typer.Context,
    target: OneFlow,
    reason: Reason = None,
    ids: Ids = None,
    run: RunId = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Feed quarantined rows through the flow again, after the contract or a rule was corrected."""
    here, out = setting(ctx), Output(as_json)
    spec = here.spec(target.pipeline)
    name = one_flow(spec, target, landing=True)
    chosen = _chosen(spec.layout(name), reason, ids, run, out, "release")
    if not chosen:
        out.result({"released": 0}, "no open row is meant; nothing to release")
        return
    refuse_without(yes)
    from draindown.cli.running import drain_instead

    command = (
        f"draindown quarantine release {spec.pipeline}/{name}{_options(reason, ids, run)} --yes"
    )
    drain_instead(here, spec, name, out, quarantine_ids=tuple(chosen), command=command)


@quarantine.command()
def discard(
    ctx: typer.Context,
    target: OneFlow,
    reason: Reason = None,
    ids: Ids = None,
    run: RunId = None,
    note: Note = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Give up quarantined rows."""
    here, out = setting(ctx), Output(as_json)
    spec = here.spec(target.pipeline)
    layout = spec.layout(one_flow(spec, target, landing=True))
    from draindown.base.formatting import count
    from draindown.flow import quarantine as rows_of
    from draindown.recovery.opening import Needs, open_flow

    done = 0
    chosen = _chosen(layout, reason, ids, run, out, "discard")
    if chosen:
        refuse_without(yes)
        # settled: what a release that died has applied is not for anyone to give up
        with open_flow(spec, layout.flow, Needs.SETTLED, owner=person(), run_id=new_run_id()):
            done = rows_of.discard(layout, chosen, by=person(), note=note)
    out.result({"discarded": done}, f"discarded {count(done, 'row')}")


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
    first = f"{pipeline}/{flow}  {count(sums.open)} open of {count(sums.refused)} quarantined ({decided})"
    lines = [first, *([f"  open by reason: {by_reason}"] if by_reason else [])]
    if meant and not rows:
        lines.append(f"  none is meant by{meant}")
    if rows:
        of_files = str(rows[0]["origin"]["input"]).startswith("/")
        header = HEADER if of_files else _OF_LOGS
        lines += table(header, [_row(row) for row in rows], (4,)).splitlines()
    if more:
        hint = f"more with --limit, one in full with: draindown quarantine list {pipeline}/{flow} --id ID"
        lines.append(f"{count(len(rows))} shown; {hint}")
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> list[str]:
    from draindown.base.formatting import printable

    unit, position = str(row["origin"]["input"]), str(row["origin"]["position"])
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
