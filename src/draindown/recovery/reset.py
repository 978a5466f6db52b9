"""Resets: a new generation reads all input of the intake again into the existing table. An undo
returns to the old one.

Damaged tables are put aside first. The document of the generation is written last and makes the reset effective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.config.derived import DerivedFlow
from draindown.flow import checkpoint, discards, generations, integrity, quarantine, sink_state
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.generations import Card
from draindown.lake.home import FlowHome
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import WITHDRAW
from draindown.recovery import sink_bases
from draindown.recovery.input_gone import NO_ROWS, input_gone, regained
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.port import given_up, left_of, missing_anew
from draindown.sources.registry import source_of


@dataclass(frozen=True)
class ResetPlan:
    """What a reset would do. Sizes are bytes on disk.

    `previous`: the live generation; None if it is unknown.
    `unit`: noun of the source's units.
    `forgotten`: number of units that were read once and are no longer in the intake, if the table
    keeps no row of them. `target`: `absent`, `empty` or `filled`. `holds_previous`: whether the
    target holds batches of earlier generations. `damaged`: unreadable tables, which will be put
    aside. `table_aside`: the target will be put aside, too, as requested. `hidden_aside`: the
    target is put aside or gone, and its hidden events will be put aside. `derived`: every key is
    computed again from the source, and only what differs is written. `first`: commands after which
    less is missing. `kept`: the generation that an undo returns to; None if it can't be told.
    """

    pipeline: str
    flow: str
    keyed: bool
    previous: int | None
    generation: int
    slices: int
    unit: str
    units: int
    bytes: int
    missing: tuple[str, ...]
    forgotten: int
    target: str
    holds_previous: bool
    damaged: tuple[str, ...] = ()
    table_aside: bool = False
    derived: bool = False
    hidden_aside: bool = False
    first: tuple[str, ...] = ()
    kept: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a flat, JSON-ready dict."""
        return asdict(self)


def plan(request: Request, *, table_aside: bool = False) -> ResetPlan:
    """Return what the next generation would read again, and which input is gone. Read-only.

    With `table_aside`, the target is moved away and filled from scratch. Raises TerminalError
    `table-of-another-flow`, `nothing-to-reset`, `reset-would-double`, and as `Source.missing_anew`.
    """
    layout, kind = integrity.examined(request.layout), request.declared.target.kind
    live = generations.generation_if_told(layout)
    rows = None if table_aside else _rows_of(layout)
    if (
        rows is None
        and checkpoint.newest_directory(layout) == 0
        and not intake.newest(layout, live or 1)
    ):
        raise TerminalError(
            "nothing-to-reset",
            tried=f"reset flow {layout.flow} of pipeline {layout.pipeline}",
            found="it never drained anything",
            next=f"draindown run {layout.pipeline}/{layout.flow}",
        )
    if rows and not kind.idempotent:
        raise _would_double(layout, rows)
    source, reads = source_of(request), live or 1
    left_out = given_up(source)
    again = [some for one in intake.slices(layout, reads) if (some := one.but(left_out)).units]
    fresh = live is not None and _is_fresh(layout, live)
    generation = live if fresh and live is not None else generations.next_number(layout, live)
    units = left_of(source, [unit for one in again for unit in one.units])
    lacking = missing_anew(source, units, reads, generation)
    return ResetPlan(
        pipeline=layout.pipeline,
        flow=layout.flow,
        keyed=kind.keyed,
        previous=live,
        generation=generation,
        slices=len(again),
        unit=source.unit,
        units=sum(len(one.units) for one in again),
        bytes=sum(one.bytes for one in again),
        missing=tuple(lacking),
        forgotten=0
        if rows or request.declared.source.begins_with_fill or not layout.tables.ledger.is_whole
        else max(0, ledger_table.units_read(layout) - intake.count_units(layout, reads)),
        target="absent" if rows is None else "filled" if rows else "empty",
        holds_previous=rows is not None
        and _knows_any(layout, live or generations.next_number(layout, live)),
        damaged=tuple(integrity.damaged(layout)),
        table_aside=table_aside,
        derived=isinstance(request.declared, DerivedFlow),
        hidden_aside=rows is None and layout.tables.hidden.exists,
        first=regained(source, lacking),
        kept=_before(layout, generation, live),
    )


Check = Callable[[], None]


def _held() -> None:
    """Check nothing: for callers whose lease can't be lost, such as a lock of this host's
    kernel.
    """


def begin(
    request: Request,
    found: ResetPlan,
    *,
    by: str,
    accept_missing: bool,
    check: Check = _held,
    epoch: int = 0,
) -> None:
    """Make the planned generation the live one. Call it under the lease. Idempotent and atomic.

    `check` raises once the lease is lost; it is called before each write. `epoch`: that of the
    lease.

    Raises TerminalError `reset-input-gone` if input is missing and `accept_missing` is false,
    TransientError `sink-batch-in-flight`.
    """
    layout = request.layout.held(epoch)
    if not accept_missing:
        refuse_incomplete(request, found)
    loses_table = (
        found.table_aside or found.target == "absent" or layout.tables.target.path in found.damaged
    )
    if not loses_table:  # else no batch of this generation would be run again
        sink_state.refuse_in_flight(layout)
    if found.table_aside and not {layout.tables.target.path, layout.tables.ledger.path} & set(
        found.damaged
    ):
        # before the table and its commits are put aside, but for a batch that doesn't add up: it
        # goes with them
        check()
        ledger_table.heal(layout, found.generation)
    if loses_table:  # before the table goes: batches on their way to sinks can't be finished then
        check()
        sink_bases.put_aside(layout)
    check()
    integrity.put_aside(layout, found.generation)
    # while the target is there, whose transactions say which batches finished: one that is gone or
    # damaged can't, and the ledger may lack the newest. The retry of a batch whose generation goes
    # on after all writes the rows again
    if (
        found.previous is not None
        and found.previous < found.generation
        and layout.tables.target.is_whole
    ):
        check()
        discards.forget_unfinished(layout, found.previous)
    if loses_table:
        check()
        integrity.put_target_aside(layout, found.generation)
    # the table that took these rows is gone, and the new generation decides about them again
    if not found.holds_previous:
        # rows of the gate stay released: the input contains them, and the new generation applies
        # them
        ids = quarantine.released_from(layout, without_kind=WITHDRAW)
        check()
        quarantine.reopen(layout, ids, by=by, note=_reopened(found.generation))
    previous = _before(layout, found.generation, found.previous)
    # with an intake of its own, the new generation pins what is there: there is nothing to leave
    # out of it
    missing = () if layout.own_intakes else found.missing
    without = tuple(sorted({*missing, *given_up(source_of(request))}))
    fresh = Card(found.generation, previous, now().isoformat(timespec="seconds"), by, without)
    check()
    generations.make_live(layout, fresh)


def refuse_incomplete(request: Request, found: ResetPlan) -> None:
    """Raise TerminalError `reset-input-gone` if the input is no longer complete."""
    if not (found.missing or found.forgotten):
        return
    aside = " --table-aside" * found.table_aside
    then = "their rows stay as they are in the table" if found.holds_previous else NO_ROWS
    raise input_gone(
        "reset-input-gone",
        source_of(request),
        tried=f"read all {count(found.units, found.unit)} of flow {found.flow} again",
        found=generations.gone(found.missing, found.forgotten, found.unit),
        without=[*found.first]
        or [
            f"draindown reset {found.pipeline}/{found.flow}{aside} --accept-missing --yes   # {then}"
        ],
    )


def undo(request: Request, *, by: str, check: Check = _held, epoch: int = 0) -> int:
    """Return to the generation before the live one, whose checkpoint still exists. Return its
    number.

    It leaves out what a person gave up since, as far as it has not read that.

    Call it under the lease; `check`, `epoch`: as for `begin`. Raises TerminalError `nothing-to-undo`,
    `generation-has-batches`; TransientError `sink-batch-in-flight`.
    """
    layout = request.layout.held(epoch)
    live = generations.generation(layout)
    previous = undoable(layout)
    sink_state.refuse_in_flight(layout)
    unread = discards.unread(layout, previous, given_up(source_of(request)))
    check()
    discards.forget_generation(layout, live)  # rows of a batch that began and never committed
    check()
    quarantine.release_again(layout, by=by, note=_reopened(live))
    check()
    generations.go_back_to(layout, previous, without=unread, by=by)
    return previous


def undoable(layout: FlowHome) -> int:
    """Return the generation that an undo would return to. Raises like `undo`."""
    live = generations.generation(layout)
    found = generations.card(layout, live)
    tried = f"undo the reset of flow {layout.flow} of pipeline {layout.pipeline}"
    run = f"draindown run {layout.pipeline}/{layout.flow}"
    if found is None or found.previous is None:
        why = (
            "what was live before it could not be told"
            if found and live > 1
            else "no reset began it"
        )
        raise TerminalError(
            "nothing-to-undo", tried=tried, found=f"generation {live} is live, and {why}", next=run
        )
    # Check the ledger, too: a lost table has no transactions, and rows withdrawn from it must stay
    # out.
    if generations.knows(layout, live) or generations.newest_in_ledger(layout) >= live:
        raise TerminalError(
            "generation-has-batches",
            tried=tried,
            found=f"generation {live} has committed batches already",
            next=run,
        )
    if aside := integrity.missed(layout, found.previous):
        why = f"generation {found.previous} can't go on without {', '.join(aside)}, which a reset put aside"
        raise TerminalError("nothing-to-undo", tried=tried, found=why, next=run)
    return found.previous


def _reopened(generation: int) -> str:
    return f"generation {generation}: the table that took these rows is gone"


def _is_fresh(layout: FlowHome, live: int) -> bool:
    begun = Checkpoint(layout.checkpoint(live)).started or generations.knows(layout, live)
    return live > 1 and generations.card(layout, live) is not None and not begun


def _knows_any(layout: FlowHome, last: int) -> bool:
    return any(generations.knows(layout, number) for number in range(1, last + 1))


def _before(layout: FlowHome, generation: int, live: int | None) -> int | None:
    """Return the generation before one that a reset begins: a reset that is repeated goes on with
    the same one.
    """
    own = generations.card(layout, generation)
    return own.previous if own else live


def _rows_of(layout: FlowHome) -> int | None:
    table = layout.tables.target
    return table.row_count if table.is_whole else None


def _would_double(layout: FlowHome, rows: int) -> TerminalError:
    return TerminalError(
        "reset-would-double",
        tried=f"reset flow {layout.flow} of pipeline {layout.pipeline}",
        found=f"it appends, and {layout.tables.target.path} holds {count(rows, 'row')}: "
        "reading the input again would append each row a second time",
        next=["restore the checkpoint from a copy, as a whole", _anew(layout)],
    )


def _anew(layout: FlowHome) -> str:
    """Return the command that reads all input into a new table: a rebuild, or a reset if the live
    state is damaged.
    """
    flow = f"{layout.pipeline}/{layout.flow}"
    if integrity.damaged(layout, files=True) or integrity.missed(
        layout, generations.generation_if_told(layout) or 0
    ):
        return f"draindown reset {flow} --table-aside   # the table too is put aside, and filled anew by the next run"
    return f"draindown rebuild {flow}   # reads all input into a fresh table"
