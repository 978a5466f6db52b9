"""Sessions and joins that accept rows for a while: what is late follows from the rows alone, of
each side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.lake.table import Table
from draindown.proof.compare import prove
from draindown.spark.derived import whole
from tests.spark.test_derived_late import APPEND, Event, World, event, is_late

_GAP, _LOW, _HIGH = timedelta(minutes=10), timedelta(minutes=-10), timedelta(minutes=30)
_SESSION = {
    "time": "at",
    "gap": "10 minutes",
    "group_by": ["carrier"],
    "measures": {"n": "count(*)", "delay": "sum(delay)"},
}
_JOIN = {
    "table": "gates",
    "on": ["carrier"],
    "interval": {"left": "at", "right": "at", "between": ["-10 minutes", "30 minutes"]},
    "columns": {"id": "other", "at": "seen", "delay": "m"},
}
_BOTH = {"source": {"table": "flights"}, "allowed_lateness": "2 hours"}
FLOWS: dict[str, Any] = {
    "flights": APPEND,
    "gates": APPEND,
    "session": {"source": {"table": "flights"}, "session": _SESSION, "allowed_lateness": "2 hours"},
    "inner": _BOTH | {"join": _JOIN},
    "outer": _BOTH | {"join": _JOIN | {"how": "left_outer"}},
}
DOCUMENT = {"pipeline": "p", "flows": FLOWS}
_COLUMNS = {
    "session": "carrier, session_start, session_end, n, delay",
    "inner": "id, other, delay, m",
    "outer": "id, other, delay, m",
}
Rows = Counter[tuple[Any, ...]]


def _sessions(rows: Sequence[Event]) -> Rows:
    """Carrier, start, end, number and sum of each session, by plain Python."""
    found: Rows = Counter()
    for carrier in {row[1] for row in rows}:
        timed = [(row[2], row[3]) for row in rows if row[1] == carrier and row[2] is not None]
        runs: list[list[tuple[datetime, int]]] = []
        for at, delay in sorted(timed):
            if not runs or at - runs[-1][-1][0] > _GAP:
                runs.append([])
            runs[-1].append((at, delay))
        found.update(
            (carrier, run[0][0], run[-1][0] + _GAP, len(run), sum(one[1] for one in run))
            for run in runs
        )
    return found


def _pairs(left: Sequence[Event], right: Sequence[Event], *, outer: bool) -> Rows:
    found: Rows = Counter()
    for one in left:
        matches = [other for other in right if _matches(one, other)]
        found.update((one[0], other[0], one[3], other[3]) for other in matches)
        if outer and not matches:
            found[one[0], None, one[3], None] += 1
    return found


def _matches(one: Event, other: Event) -> bool:
    at, seen = one[2], other[2]
    return (
        one[1] is not None
        and one[1] == other[1]
        and at is not None
        and seen is not None
        and _in_reach(at, seen)
    )


def _in_reach(at: datetime, seen: datetime) -> bool:
    return _LOW <= seen - at <= _HIGH


class Late:
    """A flow, the rows of its sources, and the decisions about them."""

    def __init__(self, home: Path, spark: SparkSession, flow: str, draw: Random, rows: int) -> None:
        self.it, self.flow, self.draw = World(home, spark, DOCUMENT, flow), flow, draw
        self.rows = {
            table: [event(draw, number) for number in range(rows)] for table in self.it.paths
        }
        # rows of one record, which both tables read: a decision is about one of them
        if len(self.rows) == 2:
            self.rows["gates"] = [
                (
                    *one[:2],
                    mine[2] + timedelta(minutes=draw.randint(-9, 9)) if mine[2] else None,
                    *one[3:4],
                    *mine[4:],
                )
                if number % 2
                else one
                for number, (one, mine) in enumerate(
                    zip(self.rows["gates"], self.rows["flights"], strict=True)
                )
            ]
        self.there: dict[str, list[Event]] = {table: [] for table in self.rows}
        self.applied: dict[str, list[Event]] = {table: [] for table in self.rows}

    def insert(self, start: int, end: int) -> None:
        for table, rows in self.rows.items():
            self.it.insert(*rows[start:end], of=table)
            self.there[table] += rows[start:end]

    def change(self) -> None:
        """Apply some late rows, and withdraw some rows, applied and late ones among them."""
        for table, there in self.there.items():
            own = [row for row in there if is_late(row) and self.draw.random() < 0.4]
            self.it.apply(*own, of=table)
            self.applied[table] += own
            gone = [row for row in there if self.draw.random() < 0.15]
            self.it.withdraw(*gone, of=table)
            self.there[table] = [row for row in there if row not in gone]

    def expected(self) -> Rows:
        counted = [
            [row for row in rows if not is_late(row) or row in self.applied[table]]
            for table, rows in self.there.items()
        ]
        return (
            _sessions(counted[0])
            if self.flow == "session"
            else _pairs(*counted, outer=self.flow == "outer")
        )

    def hold(self) -> None:
        """Compare the table with the model, its proofs, and what lies apart with what is late, of
        each side.
        """
        it = self.it
        names = _COLUMNS[self.flow]
        found = it.layout.tables.target.rows(f"select {names} from t")
        assert (
            Counter(tuple(row[name] for name in names.split(", ")) for row in found)
            == self.expected()
        )
        for table, there in self.there.items():
            assert it.apart(table) == Counter(row[0] for row in there if is_late(row)), table
        sources = [Table(path) for path in it.paths.values()]
        assert prove(it.layout, it.flow, sources, it.layout.tables.target, 1.0, it.decided).holds

    @property
    def left_out(self) -> int:
        return sum(
            is_late(row) and row not in self.applied[table]
            for table, rows in self.there.items()
            for row in rows
        )


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("flow", "seed"),
    [
        ("outer", 0),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (("session", 1), ("outer", 1), ("inner", 2))
        ),
    ],
)
def test_what_is_late_follows_from_the_rows(
    spark: SparkSession, tmp_path: Path, flow: str, seed: int
) -> None:
    draw, is_long = Random(seed), seed > 0
    them = Late(tmp_path, spark, flow, draw, 90 if is_long else 60)
    it, step, ledger = them.it, 30, []
    for at in range(3 if is_long else 2):
        them.insert(at * step, (at + 1) * step)
        if at:
            them.change()
        ledger += it.derive(
            1 + at % 2 if is_long else 1,
            dying=("merged", "late", "read")[at] if at or is_long else "",
        )
        them.hold()
    assert all(row.records == row.used + row.unused + row.late for row in ledger)
    assert sum(row.late for row in ledger) >= them.left_out > 5
    if not is_long:
        return
    some = [
        row for row in them.there["flights"] if is_late(row) and row not in them.applied["flights"]
    ][:3]
    it.apply(*some, of="flights")
    them.applied["flights"] += some
    (row,) = it.derive()  # of decisions alone
    them.hold()
    assert (row.records, row.late) == (3, 0)
    again = [it.replay(number, number) for number in range(len(it.slices))]
    assert not any(row.applied or row.late for row in again), (
        "the batches that they repeat kept them"
    )
    assert sum(row.recomputed for row in again) > 10
    sources, table = [Table(path) for path in it.paths.values()], it.layout.tables.target
    assert whole.prove(spark, it.layout, it.flow, sources, table, 1.0, it.decided).holds
    assert not whole.prove(spark, it.layout, it.flow, sources, table, 1.0, 0).holds, (
        "nobody had applied any"
    )
    (filled,) = it.derive(fill=True)
    assert (filled.applied, filled.late) == (0, them.left_out), "a fill finds the same"
    them.hold()
