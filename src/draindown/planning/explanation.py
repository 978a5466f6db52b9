"""A derived flow explained: its query in words, what its next run reads, and what recent ones read.

From the pipeline file, Delta logs and the ledger, without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.config.derived import DerivedFlow
from draindown.flow.state import FlowState
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.planning.plan import start_seconds
from draindown.planning.reach import Columns, Reach, Span, changed_files, reach, spans
from draindown.sources import intake
from draindown.sources.batch_size import batch_seconds
from draindown.sources.slices import FIRST, Unit
from draindown.sources.tables import late
from draindown.sources.tables.followed import Followed, Piece
from draindown.sources.tables.source import Tables, by_table, part_way

_RECENT = 20  # batches
_MUCH = 20
"""Rows read again per image above which it is worth to say how to read fewer."""


@dataclass(frozen=True)
class Explanation:
    """A derived flow in words, and what it reads.

    Attributes:
        waits: in words, the source tables that can't be read yet and why, or why the next run is
            refused; then `sources` is empty.
        sources: what the next run reads again of each source table; empty if nothing changed in
            them.
        applied: late rows that were applied since the newest batch, which the next run counts.
        result: what it reads of the result, to compare; None if it reads nothing of it.
        batches: recent batches of which the ledger knows what they read again.
        images: images of changed rows in these batches. `reread`: rows in the files that they read
            again.
        advice: how fewer rows would be read again; empty if it is not much, or nothing helps.
        seconds: what the next run is expected to take, by the batches of the ledger, with the start
            of Spark; None if it has nothing to read, or no batch of the ledger read about as much.
    """

    pipeline: str
    flow: str
    query: str
    touches: str
    scope_keys: tuple[str, ...]
    row_keys: tuple[str, ...]
    waits: tuple[str, ...] = ()
    sources: tuple[Reach, ...] = ()
    applied: int = 0
    result: Reach | None = None
    batches: int = 0
    images: int = 0
    reread: int = 0
    advice: str = ""
    seconds: float | None = None


def explain(state: FlowState, flow: DerivedFlow, now: datetime) -> Explanation:
    """Explain a flow. Raises TerminalError `source-replaced`, `generation-damaged`,
    `checkpoint-damaged`.
    """
    derivation, source = flow.derivation, _source(state, flow)
    tables = source.tables
    rows = [
        row for row in ledger_table.recent(state, _RECENT) if row.kind == "drain" and row.reread
    ]
    waited_for = [table.finding() for table in tables if not table.is_ready]
    refused = _refused(state, source)
    known = Explanation(
        state.pipeline,
        state.flow,
        f"{derivation.in_words}; from {' and '.join(one.name for one in tables)}",
        derivation.touches,
        tuple(derivation.scope_keys),
        tuple(derivation.keys),
        waits=refused or tuple(f"{one.subject} {one.detail}" for one in waited_for),
        batches=len(rows),
        images=sum(row.records for row in rows),
        reread=sum(row.reread for row in rows),
    )
    if not known.waits:
        pieces = next_pieces(state, flow, tables, now)
        sources, result = _reads(state, flow, tables, pieces)
        known = replace(
            known, sources=sources, result=result, seconds=expected_seconds(state, sources)
        )
        known = replace(known, applied=_applied(state, pieces))
    return replace(known, advice=_advice(known))


def _refused(state: FlowState, source: Tables) -> tuple[str, ...]:
    """Return in words that the flow derives something else now, and what to do; empty if it
    doesn't.

    Raises TerminalError `source-replaced`.
    """
    try:
        source.refuse_lost(state, state.live_generation, state.live_checkpoint.first_unread)
    except TerminalError as error:
        if error.code != "derivation-changed":
            raise
        return (f"{error.code}: {error.found}", *error.next)
    return ()


def _source(state: FlowState, flow: DerivedFlow) -> Tables:
    return Tables(flow.source, state, Path(), "")


def expected_seconds(state: FlowState, sources: Sequence[Reach]) -> float | None:
    """Return what a run takes of one batch with as many images as there are changed rows, or rows
    of a fill.
    """
    images = sum(one.of_rows if one.since is None else one.changed for one in sources)
    rows = [
        row for row in ledger_table.recent(state, _RECENT) if row.kind == "drain" and row.records
    ]
    took = batch_seconds([(row.records, row.seconds) for row in rows], images) if images else None
    return (
        None
        if took is None
        else round(start_seconds(state, (row.run_id for row in reversed(rows))) + took, 1)
    )


def _applied(state: FlowState, pieces: Sequence[Piece]) -> int:
    """Return the number of late rows that changes alone do not bring: a fill finds all rows."""
    before, until = pieces[0].decided
    if any(piece.start is None for piece in pieces) or before == until:
        return 0
    after, counted = (len(late.applied(state, number)) for number in (until, before))
    return after - counted


def _reads(
    state: FlowState, flow: DerivedFlow, tables: Sequence[Followed], pieces: Sequence[Piece]
) -> tuple[tuple[Reach, ...], Reach | None]:
    """Return `sources` and `result` of the run that reads the pieces."""
    if not any(piece.commits for piece in pieces):
        return (), None
    columns: list[Columns] = [list(flow.derivation.sought(one)) for one in flow.source.read]
    logs = [Table(table.path) for table in tables]
    touched: list[Span] | None = None
    if not any(piece.start is None for piece in pieces):
        changed = [
            changed_files(log, piece.start or 0, piece.until, own) if piece.rows else []
            for log, piece, own in zip(logs, pieces, columns, strict=True)
        ]
        margin = flow.derivation.margin
        touched = [
            span
            for some, own in zip(changed, columns, strict=True)
            for span in spans(some, own, margin)
        ]
    sources = tuple(
        reach(
            table.name,
            log.at(piece.until),
            own,
            touched,
            since=piece.start,
            until=piece.until,
            changed=piece.rows,
        )
        for table, log, piece, own in zip(tables, logs, pieces, columns, strict=True)
    )
    result = state.tables.target
    if not result.exists:
        return sources, None
    keys, version = flow.derivation.scope_keys, result.version
    return sources, reach(
        state.table_name, result, keys, touched, since=None, until=version, changed=0
    )


def next_pieces(
    state: FlowState, flow: DerivedFlow, tables: Sequence[Followed], now: datetime
) -> list[Piece]:
    """Return what the next run reads of each source table, all of which are ready.

    Pieces without commits if nothing changed. All rows of all tables are compared where one of them
    was rebuilt.
    """
    units = _read_last(state, flow)
    found = [_new(table, unit, now) for table, unit in zip(tables, units, strict=True)]
    if any(piece.start is None for piece in found):
        found = [table.fill(now, unit) for table, unit in zip(tables, units, strict=True)]
        units = [None]
    counted = 0 if units[0] is None else units[0].row["decided"]
    return [replace(piece, decided=(counted, late.newest(state))) for piece in found]


def _read_last(state: FlowState, flow: DerivedFlow) -> list[Unit | None]:
    """Return the unit of each source table that the newest batch read; None where a fill is yet to
    be done.

    Of a range of versions of which a bucket is yet to be read, changes and decisions are still to
    be read.
    """
    generation, number = state.live_generation, state.live_checkpoint.first_unread - 1
    if _source(state, flow).is_void(state, generation):
        return [None] * len(flow.source.read)
    last = next(intake.slices(state, generation, number), None) if number >= FIRST else None
    if last is None or last.number != number:
        return [None] * len(flow.source.read)
    units = by_table(flow.source, last.units)
    if part_way(state, generation, number) is None:
        return units
    return [None if one is None or one.row["fill"] else _before(one) for one in units]


def _before(unit: Unit) -> Unit:
    return replace(unit, until=unit.start, row={**unit.row, "decided": unit.row["decided_from"]})


def _new(table: Followed, unit: Unit | None, now: datetime) -> Piece:
    if unit is None:
        return table.fill(now)
    found = table.changes(table.same(unit))
    return table.fill(now, unit) if found.rebuilt else table.since(unit, found, now)


def _advice(known: Explanation) -> str:
    """Return how fewer rows would be read again: files that are narrow in the columns by which they
    are sought.
    """
    if known.reread < _MUCH * known.images or not known.images:
        return ""
    wide = [one for one in known.sources if one.since is not None and one.files == one.of_files > 1]
    if not wide:
        return ""
    named = " and ".join(f"{one.table} in {', '.join(one.sought_by)}" for one in wide)
    return (
        f"no file is left out, since none is narrow: {named}. Partition that table by a column which these determine, "
        f"or let it read changes less often: each run reads {count(sum(one.rows for one in wide), 'row')}"
    )
