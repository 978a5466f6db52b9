"""The audit of input that is no files: what each batch read, against what was pinned for it, and
the slices in order.

The source is not asked: it may not have the records any more. Those that the lake keeps are in
`records`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draindown.audit.context import AuditContext, of_source, where_of
from draindown.base.errors import TerminalError
from draindown.config.landing import FlowSpec
from draindown.lake.home import FlowHome
from draindown.ledger.rows import BatchRow
from draindown.sources import intake
from draindown.sources.port import Source, left_of
from draindown.sources.registry import source_of
from draindown.sources.slices import Unit

_Range = tuple[int, int]


@dataclass(frozen=True)
class _Asked:
    """What a source is made from."""

    declared: FlowSpec
    layout: FlowHome
    root: str
    run_id: str = ""


@dataclass(frozen=True)
class Piece:
    """A range of a unit that a batch read. `log`: what tells the unit from a later one of its name,
    or nothing.
    """

    batch: BatchRow
    unit: str
    log: str
    start: int
    until: int

    @property
    def log_key(self) -> tuple[str, str]:
        """The unit, and what tells it from others of its name."""
        return self.unit, self.log

    @property
    def range(self) -> _Range:
        """Its positions [start, until)."""
        return self.start, self.until


def inputs_against_pinned(context: AuditContext) -> list[Piece]:
    """Add a residue for every input that is not what its batch had to read, and for slices that are
    not in order.

    Return what each batch read.
    """
    batches, source = (
        of_source(context),
        source_of(_Asked(context.flow, context.layout, str(context.root))),
    )
    pieces: list[Piece] = []
    logs: set[tuple[str, str]] = set()
    for generation in sorted({batch.generation for batch in [*batches, *context.lost]}):
        rows = context.layout.tables.intake(generation).rows("select * from t order by slice")
        logs |= {(row["input"], _log_of(row)) for row in rows}
        units: dict[int, list[Unit]] = defaultdict(list)
        for row in rows:
            units[row["slice"]].append(Unit.of(row))
        for batch in batches:
            if batch.generation == generation:
                read = left_of(source, units[batch.slice])
                if generation >= context.inputs_since:
                    fits = _against_pinned(context, batch, units[batch.slice], read)
                    read = (
                        _counted(context, source, batch, units[batch.slice], read) if fits else read
                    )
                pieces += [
                    Piece(batch, one.name, _log_of(one.row), one.start, one.until) for one in read
                ]
        _in_order(context, source, generation, rows)
        _all_read(context, generation)
    context.logs = dict(Counter(unit for unit, _ in logs))
    return pieces


def _log_of(row: Any) -> str:
    return str(row.get(intake.LOG) or "")


def _counted(
    context: AuditContext,
    source: Source,
    batch: BatchRow,
    pinned: Sequence[Unit],
    left: Sequence[Unit],
) -> list[Unit]:
    """Return the units that a batch read, and add a residue if its source refuses their numbers of
    records.

    A range may have been given up after the batch had read it: then `pinned` fits, and not what is
    `left`.
    """
    inputs = context.inputs.get(batch.place, [])
    read, ranges = (
        {one.unit: one.records for one in inputs},
        {one.unit: (one.start, one.until) for one in inputs},
    )
    refused = ""
    for units in sorted((pinned, left), key=lambda units: _ranges(units) != ranges):
        try:
            source.refuse_miscounted(batch.slice, units, read)
            return list(units)
        except TerminalError as error:
            refused = error.found
    context.expect(
        "recount-records", where_of(batch), "a record for each place", refused, "the inputs"
    )
    return list(left)


def _all_read(context: AuditContext, generation: int) -> None:
    """Add a residue for each slice without a batch before the newest slice that has one: slices are
    read one after the other.
    """
    batches = [*of_source(context), *context.lost]
    read = {batch.slice for batch in batches if batch.generation == generation}
    for number in range(1, max(read, default=0)):
        if number not in read:
            where = f"generation {generation}, slice {number}"
            context.expect("ledger-gap", where, "a batch that read it", "none")


def _against_pinned(
    context: AuditContext, batch: BatchRow, units: Sequence[Unit], left_of: Sequence[Unit]
) -> bool:
    """Compare the inputs of a batch with the units of its slice, by unit. Return whether they are
    the same.

    `left_of`: the units without what was given up as lost, which may have been after the batch had
    read it.
    """
    pinned, left = _ranges(units), _ranges(left_of)
    read = {one.unit: (one.start, one.until) for one in context.inputs.get(batch.place, [])}
    names = pinned.keys() | read.keys()
    wrong = [
        name
        for name in sorted(names)
        if not _between(left.get(name), read.get(name), pinned.get(name))
    ]
    for name in wrong:
        where, said = (
            f"{where_of(batch)}, {name}",
            "from and until, in the intake against the inputs",
        )
        context.expect(
            "inputs-unit", where, left.get(name, "no unit"), read.get(name, "no input"), said
        )
    return not wrong


def _ranges(units: Iterable[Unit]) -> dict[str, _Range]:
    """Return, by name, the range from the start of a unit's first piece to the end of its last."""
    found: dict[str, _Range] = {}
    for unit in units:
        start, until = found.get(unit.name, (unit.start, unit.until))
        found[unit.name] = min(start, unit.start), max(until, unit.until)
    return found


def _between(least: _Range | None, read: _Range | None, most: _Range | None) -> bool:
    """Return whether `read` holds all of `least`, and nothing outside of `most`. None: nothing at
    all.
    """
    if read is None:
        return least is None
    if most is None or read[0] < most[0] or read[1] > most[1]:
        return False
    return least is None or (read[0] <= least[0] and least[1] <= read[1])


def _in_order(
    context: AuditContext, source: Source, generation: int, rows: list[dict[str, Any]]
) -> None:
    """Each range begins where the one before it ended, unless the log is another one or a loss was
    accepted.
    """
    ends: dict[tuple[str, str], int] = {}
    for row in rows:
        log, start = (row["input"], _log_of(row)), int(row["start"])
        end = ends.get(log, start)
        where = f"generation {generation}, slice {row['slice']}, {row['input']}"
        if start < end:
            context.expect(
                "intake-double-file", where, f"from {end} on", f"from {start} on", "pinned twice"
            )
        for gap in (
            left_of(source, [replace(Unit.of(row), start=end, until=start)]) if start > end else ()
        ):
            what = "in no slice, and not given up as lost"
            context.expect(
                "intake-gap", where, f"from {end} on", f"from {start} on", f"{gap.range}: {what}"
            )
        ends[log] = int(row["until"])
