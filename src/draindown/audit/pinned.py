"""The audit of input that is no files: what each batch read, against what was pinned for it, and the slices in order.

The records themselves are at their source, which is not asked: it may not have them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draindown.audit.context import AuditContext, of_source, where_of
from draindown.base.formatting import count
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog
from draindown.ledger.rows import BatchRow
from draindown.sources.registry import source_of
from draindown.sources.slices import Unit
from draindown.spec.models import FlowSpec

_Range = tuple[int, int]


@dataclass(frozen=True)
class _Asked:
    """What a source is made from."""

    declared: FlowSpec
    layout: FlowLayout
    root: str
    run_id: str = ""


def inputs_against_pinned(context: AuditContext) -> None:
    """Add a residue for every input that is not what its batch had to read, and for every overlap of slices."""
    batches, source = of_source(context), source_of(_Asked(context.flow, context.layout, str(context.root)))
    for generation in sorted({batch.generation for batch in batches}):
        rows = TableLog(context.layout.intake_of(generation)).rows("select * from t order by slice")
        units: dict[int, list[Unit]] = {}
        for row in rows:
            units.setdefault(row["slice"], []).append(Unit.of(row))
        for batch in batches:
            if batch.generation == generation >= context.inputs_since:
                pinned = units.get(batch.cut, [])
                _against_pinned(context, batch, pinned, source.left_of(pinned))
        _in_order(context, generation, rows)
    records = sum(batch.records for batch in batches)
    context.unlooked.append(f"the raw text of {count(records, 'record')}: it is at the source, which is not asked")


def _against_pinned(context: AuditContext, batch: BatchRow, units: Sequence[Unit], left_of: Sequence[Unit]) -> None:
    """Compare the inputs of a batch with the units of its slice, by unit.

    `left_of`: the units without what was given up as lost, which may have been after the batch had read it.
    """
    pinned, left = _ranges(units), _ranges(left_of)
    read = {one.unit: (one.start, one.until) for one in context.inputs.get(batch.place, [])}
    for name in sorted(pinned.keys() | read.keys()):
        if not _between(left.get(name), read.get(name), pinned.get(name)):
            where, said = f"{where_of(batch)}, {name}", "from and until, in the intake against the inputs"
            context.expect("inputs-unit", where, left.get(name, "no unit"), read.get(name, "no input"), said)
    for one in context.inputs.get(batch.place, []):
        if one.records > one.until - one.start:
            where, most = f"{where_of(batch)}, {one.unit}", f"at most {count(one.until - one.start, 'record')}"
            context.expect("recount-records", where, most, count(one.records, "record"), "the input against its range")


def _ranges(units: Iterable[Unit]) -> dict[str, _Range]:
    """Return, by name, the range from the start of a unit's first piece to the end of its last."""
    found: dict[str, _Range] = {}
    for unit in units:
        start, until = found.get(unit.name, (unit.start, unit.until))
        found[unit.name] = min(start, unit.start), max(until, unit.until)
    return found


def _between(least: _Range | None, read: _Range | None, most: _Range | None) -> bool:
    """Return whether `read` holds all of `least`, and nothing outside of `most`. None: nothing at all."""
    if read is None:
        return least is None
    if most is None or read[0] < most[0] or read[1] > most[1]:
        return False
    return least is None or (read[0] <= least[0] and least[1] <= read[1])


def _in_order(context: AuditContext, generation: int, rows: list[dict[str, object]]) -> None:
    """Each range begins where the one before it ended, unless the topic is another one or a loss was accepted."""
    ends: dict[object, int] = {}
    for row in rows:
        log, start = (row["unit"], row.get("topic_id")), int(str(row["start"]))
        if start < ends.get(log, start):
            where = f"generation {generation}, slice {row['slice']}, {row['unit']}"
            context.expect("intake-double-file", where, f"from {ends[log]} on", f"from {start} on", "pinned twice")
        ends[log] = int(str(row["until"]))
