"""The inputs of each batch: which piece of which unit of the source it read. A child table of the
ledger.

A batch writes its inputs before its other tables. So the inputs of every committed batch are there,
and the commit of the target need not carry them: its metadata stays small, however many units a
batch has. Inputs of a batch without a ledger row are those of an attempt that did not commit, and
mean nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from draindown.base.formatting import count
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.lake.table import literal
from draindown.ledger.rows import BatchRow, Place, not_adding_up

SCHEMA = pa.schema(
    [
        ("generation", pa.int32()),
        ("kind", pa.string()),
        ("batch", pa.int64()),
        ("input", pa.string()),
    ]
    + [(name, pa.int64()) for name in ("from", "until", "bytes", "records")]
)


@dataclass(frozen=True)
class Input:
    """What a batch read of one unit.

    Attributes:
        unit: name of the unit, such as the path of a file.
        start, until: positions [start, until) in the unit's own count. A whole file: 0 and the
            lines or rows that the intake counted; a partition of Kafka: offsets; a table: its
            versions (start, until], from -1 if all of its rows were compared. The column of `start`
            is `from`.
        bytes: size of the piece.
        records: records in it; at most `until - start`, as blank lines, a header and the markers of
            transactions are none. Of a table images of rows, of which a version has any number.
    """

    unit: str
    start: int
    until: int
    bytes: int
    records: int


def record(layout: FlowHome, row: BatchRow, inputs: Sequence[Input]) -> None:
    """Write the inputs of a batch, before its target is written. Idempotent: a retry replaces what
    differs.

    An earlier attempt may have read more units: a person may discard those of a batch that did not
    commit.

    Raises TerminalError `ledger-does-not-add-up` if the inputs are not those that `row` counts.
    """
    conserve(row, inputs)
    app, (generation, kind, batch) = row.child("inputs"), row.place
    flat = pa.Table.from_pylist([_flat(row.place, one) for one in inputs], schema=SCHEMA)
    newest = layout.tables.inputs.last(app)
    if newest is None or newest < batch:
        if inputs:
            delta.append(layout.tables.inputs, flat, app=(app, batch))
    elif sorted(of_batch(layout, row.place), key=_unit) != sorted(inputs, key=_unit):
        delta.replace_where(layout.tables.inputs, flat, _is(generation, kind, batch))


def conserve(row: BatchRow, inputs: Sequence[Input]) -> None:
    """Check that the inputs of a batch add up to what its ledger row counts.

    Raises TerminalError `ledger-does-not-add-up`, which names every sum that fails.
    """
    sums = {
        "inputs": (row.inputs, len({one.unit for one in inputs})),
        "bytes": (row.bytes, sum(one.bytes for one in inputs)),
        "records": (row.records, sum(one.records for one in inputs)),
    }
    wrong = [
        f"{name}: {said} against {read} of its inputs"
        for name, (said, read) in sums.items()
        if said != read
    ]
    wrong += [
        f"{one.unit}: {count(one.records, 'record')} in {count(one.until - one.start, 'place')}"
        for one in inputs
        if row.form != "derive" and not 0 <= one.records <= one.until - one.start
    ]
    if wrong:
        raise not_adding_up(row, wrong)


def of_batch(layout: FlowHome, place: Place) -> list[Input]:
    """Return the inputs of a batch; none if it read no unit."""
    return by_batch(layout, f"where {_is(*place)}").get(place, [])


def by_batch(layout: FlowHome, where: str = "") -> dict[Place, list[Input]]:
    """Return all inputs by batch, or those of the batches that `where` (SQL) selects."""
    found: dict[Place, list[Input]] = {}
    for row in layout.tables.inputs.rows(f"select * from t {where}"):
        one = Input(row["input"], row["from"], row["until"], row["bytes"], row["records"])
        found.setdefault((row["generation"], row["kind"], row["batch"]), []).append(one)
    return found


def has_any(layout: FlowHome, units: Collection[str]) -> bool:
    """Return whether some batch, or an attempt at one, read one of these units."""
    names = ", ".join(literal(name) for name in units) or "null"
    return bool(
        layout.tables.inputs.rows(f"select 1 as one from t where input in ({names}) limit 1")
    )


def among(places: Collection[Place]) -> str:
    """Return SQL that is true for the inputs of these batches."""
    return " or ".join(f"({_is(*place)})" for place in places) or "false"


def _is(generation: int, kind: str, batch: int) -> str:
    return f"generation = {int(generation)} and kind = {literal(kind)} and batch = {int(batch)}"


def _flat(place: Place, one: Input) -> dict[str, Any]:
    generation, kind, batch = place
    ends = {"from": one.start, "until": one.until, "bytes": one.bytes, "records": one.records}
    return {"generation": generation, "kind": kind, "batch": batch, "input": one.unit} | ends


def _unit(one: Input) -> tuple[str, int]:
    return one.unit, one.start
