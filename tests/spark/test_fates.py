"""Which row of a key wins, and what becomes of the others, over thousands of histories in one job
of Spark.

A history is what happens to one key: batch after batch, and rows that a person takes out in
between. Each batch of each history is judged against all that came before it, which the model in
plain Python knows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from draindown.spark.targets import resolution
from tests.model import Change, Value, fate, newest

_KEYS, _SEQUENCE = ("history", "k", "step"), ("seq", "sub")
_PLACE = "history int, k string, step int, seq int, sub int"
_COLUMNS = ("text", "number", "tags", "_rescued_data")
_CONTENT = "text string, number double, tags map<string,int>, _rescued_data string"
_ORDER = ("history", "k", "step", "text", "number", "tags", "seq", "sub", "_rescued_data")
_BESIDES = ("_arrived_at", *resolution.LOSERS)
_HISTORIES = 4_000


@dataclass(frozen=True)
class _Cell:
    """One batch of one history: with all changes of its key before, its tombstones, and its rows
    that are kept out.
    """

    key: tuple[Value, ...]
    batch: Sequence[Change]
    before: Sequence[Change]
    died: Sequence[int]
    withheld: Sequence[int]

    @property
    def winner(self) -> Change:
        return max(self.batch, key=lambda change: change.rank)

    @property
    def fate(self) -> str:
        return fate(self.winner, self.before)

    @property
    def expected(self) -> tuple[Any, ...]:
        """Sequence, content, fate and arrival of the row that wins, and how many rows are equal and
        lose to it.
        """
        won = self.winner
        arrivals = [change.arrived for change in self.batch if change.rank == won.rank]
        equal = len(arrivals)
        content = (None,) * len(_COLUMNS) if won.delete else tuple(won.content.values())
        return won.sequence, content, self.fate, min(arrivals), equal - 1, len(self.batch) - equal


def _histories(draw: Random, number: int) -> Iterator[_Cell]:
    for history in range(number):
        key = (history // 2, f"k{history % 2}")  # neither tells histories apart by itself
        before: tuple[Change, ...] = ()
        died: tuple[int, ...] = ()
        withheld: tuple[int, ...] = ()
        for step in range(draw.randint(1, 6)):
            batch = tuple(_change(draw, key, step) for _ in range(draw.randint(1, 4)))
            cell = _Cell((*key, step), batch, before, died, withheld)
            yield cell
            died += (cell.winner.sequence,) if cell.fate in ("delete", "remember") else ()
            before += batch
            held = newest(before)
            if held and held.is_live and draw.random() < 0.2:
                withheld += (held.sequence,)
                before += (Change(key, held.sequence, withheld=True),)


def _change(draw: Random, key: tuple[Value, ...], step: int) -> Change:
    content: dict[str, Value] = dict.fromkeys(_COLUMNS)
    if draw.random() < 0.5:  # else few would be equal
        content["text"] = draw.choice((None, "", "a", "é"))
        content["number"] = draw.choice((None, 0.0, 1.5))
        content["tags"] = draw.choice((None, "{}", '{"t":1}'))
        content["_rescued_data"] = draw.choice((None, "{}"))
    return Change(
        key, draw.randrange(step, step + 6), draw.random() < 0.3, content, arrived=draw.randrange(3)
    )


def _place(cell: _Cell, sequence: int) -> tuple[Any, ...]:
    return (*cell.key, *divmod(sequence, 2))


def _row(cell: _Cell, change: Change) -> tuple[Any, ...]:
    text, number, tags, rescued = change.content.values()
    return (*_place(cell, change.sequence), text, number, tags and json.loads(str(tags)), rescued)


def _frame(spark: SparkSession, rows: list[tuple[Any, ...]], *columns: str) -> DataFrame:
    return spark.createDataFrame(rows, ", ".join((_PLACE, *columns)))


def _resolved(spark: SparkSession, cells: Sequence[_Cell]) -> DataFrame:
    """All cells at once, as one batch is."""
    batch = [
        (*_row(cell, change), change.delete, change.arrived)
        for cell in cells
        for change in cell.batch
    ]
    rows = _frame(spark, batch, _CONTENT, "_delete boolean", "_arrived_at long")
    stands = [(cell, newest(cell.before)) for cell in cells]
    held = _frame(
        spark,
        [_row(cell, change) for cell, change in stands if change and change.is_live],
        _CONTENT,
    )
    died = _frame(spark, [_place(cell, at) for cell in cells for at in cell.died])
    withheld = _frame(spark, [_place(cell, at) for cell in cells for at in cell.withheld])
    won = resolution.newest(rows, _KEYS, _SEQUENCE, _ORDER)
    assert won.columns == [*rows.columns, *resolution.LOSERS]
    return resolution.settle_ties(
        resolution.compare(won, held, died, _KEYS, _SEQUENCE, withheld), held, _KEYS, _ORDER
    )


def _found(row: Row) -> tuple[Any, ...]:
    tags = None if row["tags"] is None else json.dumps(row["tags"], separators=(",", ":"))
    content = (row["text"], row["number"], tags, row["_rescued_data"])
    return (
        2 * row["seq"] + row["sub"],
        content,
        row[resolution.FATE],
        *(row[name] for name in _BESIDES),
    )


@pytest.mark.full
def test_each_row_has_the_fate_that_all_changes_of_its_key_before_give_it(
    spark: SparkSession,
) -> None:
    cells = list(_histories(Random(7), _HISTORIES))
    rows = _resolved(spark, cells).collect()
    found = {tuple(row[name] for name in _KEYS): _found(row) for row in rows}
    assert len(rows) == len(found) == len(cells), "one row of each key"
    wrong = [
        (found[cell.key], cell.expected, cell) for cell in cells if found[cell.key] != cell.expected
    ]
    assert not wrong, f"{len(wrong)} differ; (found, expected, where): {wrong[0]}"
    met = Counter((cell.fate, bool(cell.died), bool(cell.withheld)) for cell in cells)
    assert len(met) == 6 * 2 * 2 and min(met.values()) >= 10, met


def test_moments_within_maps_differ_by_microseconds(spark: SparkSession) -> None:
    at = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
    rows = [("k", 1, {"t": at + timedelta(microseconds=more)}, False, at) for more in (2, 0, 1)]
    schema = "k string, seq int, m map<string,timestamp>, _delete boolean, _arrived_at timestamp"
    frame = spark.createDataFrame(rows, schema)
    won = resolution.newest(frame, ["k"], ["seq"], ["k", "seq", "m", "_rescued_data"])
    assert [
        tuple(row) for row in won.select(F.unix_micros("m.t") % 10, *resolution.LOSERS).collect()
    ] == [(3, 0, 2)]

    target = frame.where(F.unix_micros("m.t") % 10 == 1).drop("_delete")
    fated = resolution.compare(won, target, None, ["k"], ["seq"])
    assert [
        row[resolution.FATE]
        for row in resolution.settle_ties(fated, target, ["k"], ["k", "seq", "m"]).collect()
    ] == ["update"]


def test_rows_are_sorted_once(spark: SparkSession) -> None:
    """Each window of its own would be another pass over the whole batch."""
    frame = _frame(spark, [], _CONTENT, "_delete boolean", "_arrived_at timestamp")
    plan = (
        resolution.newest(frame, _KEYS, _SEQUENCE, _ORDER)
        ._jdf.queryExecution()
        .executedPlan()
        .toString()
    )
    operators = [line.strip(" +-:*()0123456789").split(" ")[0] for line in plan.splitlines()]
    assert (operators.count("Window"), operators.count("Sort"), operators.count("Exchange")) == (
        1,
        1,
        1,
    )
