"""Histories kept batch by batch equal the fold of all events, over thousands of them in a few jobs
of Spark.

Each history gets its events in batches at random, late and twice; rows are withdrawn between them
and released again. The model is plain Python: it holds every event and folds them anew after each
step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf, nan
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.ledger.rows import RUNS
from draindown.spark.session import configured
from draindown.spark.targets import events, folding, resolution
from draindown.spark.targets.events import WHY, WHYS, Shape
from draindown.spark.targets.folding import GONE
from draindown.spark.targets.resolution import FATE
from tests.folding import Row, _content, fold

_START = datetime(2026, 3, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", tz="UTC")
_COLUMNS = {
    "h": pa.int32(),
    "n": pa.int32(),
    "t": _TIME,
    "a": pa.string(),
    "op": pa.string(),
    "u": pa.int32(),
    "x": pa.float64(),
}
_SCHEMA = pa.schema(_COLUMNS)
_SHAPES = {
    "one": Shape(["h"], ["n"], list(_COLUMNS), ["a", "op", "t", "u", "x"], ["a", "x"]),
    "two": Shape(["h"], ["n", "t"], list(_COLUMNS), ["a", "op", "u", "x"], ["a"]),
}


def _event(draw: Random, number: int) -> Row:
    return {
        "h": number,
        "n": draw.randrange(7),
        "t": _START + timedelta(microseconds=draw.randrange(2)),
        "a": draw.choice((None, "", "\uff5e", "\U0001f600")),
        "op": draw.choice((None, "d", "u", "u")),
        "u": draw.choice((None, 1, 2, 3)),
        "x": draw.choice((None, 0.1, -0.0, 0.0, nan, inf)) if draw.random() < 0.3 else None,
    }


def _is_delete(event: Row) -> bool:
    return event["op"] == "d"


@dataclass
class Model:
    """All events of one history that ever came, and those of them that are withheld."""

    shape: Shape
    events: dict[Any, list[Row]] = field(default_factory=lambda: defaultdict(list))
    withheld: dict[Any, Row] = field(default_factory=dict)

    def at(self, event: Row) -> tuple[Any, ...]:
        return tuple(event[name] for name in self.shape.sequence_by)

    def rank(self, event: Row) -> Any:
        return (
            (True,)
            if _is_delete(event)
            else (False, _content({n: event[n] for n in self.shape.content}))
        )

    def key(self, event: Row) -> Any:
        return self.at(event), str(self.rank(event))

    def take(self, batch: Sequence[Row], *, released: bool = False) -> Counter[str]:
        fates: Counter[str] = Counter()
        moments = defaultdict(list)
        for event in batch:
            moments[self.at(event)].append(event)
        for at, some in moments.items():
            ranks = [self.rank(event) for event in some]
            best = max(ranks)
            top = some[ranks.index(best)]
            held = max((self.rank(event) for event in self.events[at]), default=None)
            twins = ranks.count(best) - 1
            fates["duplicate"] += twins
            fates["superseded"] += len(some) - twins - 1
            if held is None or best > held:
                fates["applied"] += 1
            elif best == held and self.key(top) not in self.withheld:
                fates["applied" if released else "duplicate"] += 1
            else:
                fates["superseded"] += 1
            self.events[at] += some
        return fates

    @property
    def counting(self) -> list[Row]:
        tops = (max(some, key=self.rank) for some in self.events.values() if some)
        return [top for top in tops if self.key(top) not in self.withheld]

    @property
    def rows(self) -> list[Row]:
        return fold(
            self.counting, self.shape.keys, self.shape.sequence_by, self.shape.tracked, _is_delete
        )

    def run_of(self, row: Row) -> list[Row]:
        within = (
            one for one in self.counting if row["start"] <= self.at(one) and not _is_delete(one)
        )
        return [one for one in within if row["end"] is None or self.at(one) < row["end"]]

    @property
    def hidden(self) -> list[Row]:
        """Events that no row holds whole."""
        rows, last, found = self.rows, None, []
        newest = {tuple(row[name] for name in self.shape.sequence_by) for row in rows}
        for one in sorted(self.counting, key=self.at):
            if _is_delete(one):
                found += [one] if last is None or _is_delete(last) else []
            elif self.at(one) not in newest:
                found.append(one)
            last = one
        return found


class Kept:
    """Rows and hidden events of all histories, as frames made of what the last step left."""

    def __init__(self, spark: SparkSession, shape: Shape) -> None:
        self.spark, self.shape = spark, shape
        self.rows: DataFrame | None = None
        self.hidden: DataFrame | None = None

    def step(self, what: str, batch: Sequence[Row], withheld: Sequence[Row] = ()) -> dict[str, int]:
        order = self.shape.content
        given = self._frame(batch).withColumn(
            "_delete", F.coalesce(F.col("op") == "d", F.lit(False))
        )
        given = given.withColumn("_arrived_at", F.lit(_START))
        new = resolution.newest(given, [*self.shape.keys, *self.shape.sequence_by], [], order)
        times = events.since(new, self._at(), self.shape)
        if what == "withdraw":
            keys = (
                self._frame(withheld)
                .groupBy(*self.shape.keys)
                .agg(F.min(self._at()).alias("_since"))
            )
            times = (
                times.unionByName(keys)
                .groupBy(*self.shape.keys)
                .agg(F.min("_since").alias("_since"))
            )
        rows = (
            None if self.rows is None else events.rows_since(self.rows, times, self.shape).persist()
        )
        hidden = (
            None
            if self.hidden is None
            else events.hidden_since(self.hidden, rows, times, self.shape)
        )
        before = events.known(rows, hidden, self.shape)
        out = self._frame(withheld) if withheld else None
        judged = events.judged(before, new, self.shape, out, released=what == "release")
        fates = events.fates(judged)
        folded = events.folded(judged, self.shape).persist()
        added = events.unseen(folded, self.shape).toArrow()
        different = events.difference(folded, rows, self.shape).persist()
        steps, remembered = events.account(different, folded)
        assert remembered == added.num_rows
        acts = different.toArrow()
        folded.unpersist()
        different.unpersist()
        self._merge(acts)
        if added.num_rows:
            more = self._held(added)
            self.hidden = (
                more
                if self.hidden is None
                else self._held(pa.concat_tables([self.hidden.toArrow(), added]))
            )
        return fates | steps

    def _at(self) -> Column:
        return folding.sequence(self.shape.sequence_by)

    def _frame(self, rows: Sequence[Row]) -> DataFrame:
        return self.spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=_SCHEMA))

    def _held(self, table: pa.Table) -> DataFrame:
        return self.spark.createDataFrame(table)

    def _merge(self, acts: pa.Table) -> None:
        """What the MERGE does, in plain Python: each act must fit the table."""
        held = (
            {}
            if self.rows is None
            else {_name(row): row for row in self.rows.toArrow().to_pylist()}
        )
        for act in acts.to_pylist():
            fate, why = act.pop(FATE), act.pop(WHY)
            assert WHYS[why] == fate and (_name(act) in held) == (fate != "insert"), (
                fate,
                why,
                act,
            )
            if fate == "delete":
                del held[_name(act)]
            else:
                held[_name(act)] = act
        schema = pa.schema([field for field in acts.schema if field.name not in (FATE, WHY)])
        self.rows = (
            self._held(pa.Table.from_pylist(list(held.values()), schema=schema)) if held else None
        )


def _name(row: Row) -> str:
    return str((row["h"], row["__START_AT"]))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(map(_plain, value.values()))
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, datetime):
        return (value - _START) // timedelta(microseconds=1)
    return abs(value) if value == 0 else value


def _sequence(value: Any) -> Any:
    return None if value is None else value if isinstance(value, (dict, tuple)) else (value,)


def _row(row: Row, start: Any, end: Any) -> str:
    return str(
        [
            _plain(one)
            for one in (_sequence(start), _sequence(end), *(row[name] for name in _COLUMNS))
        ]
    )


def _compare(kept: Kept, models: Iterable[Model]) -> None:
    models = list(models)
    held = [] if kept.rows is None else kept.rows.toArrow().to_pylist()
    found = sorted(_row(row, row["__START_AT"], row["__END_AT"]) for row in held)
    assert found == sorted(
        _row(row, row["start"], row["end"]) for model in models for row in model.rows
    )
    hidden = [] if kept.hidden is None else kept.hidden.toArrow().to_pylist()
    remembered = Counter(_hidden(row, row[GONE], kept.shape) for row in hidden)
    wanted = {_hidden(row, _is_delete(row), kept.shape) for model in models for row in model.hidden}
    assert wanted <= set(remembered), "an event that no row holds is remembered"
    assert not remembered or max(remembered.values()) == 1, "and once"


def _hidden(row: Row, is_delete: bool, shape: Shape) -> str:
    names = (*shape.keys, *shape.sequence_by) if is_delete else tuple(_COLUMNS)
    return str([is_delete, *(_plain(row[name]) for name in names)])


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "histories"),
    [
        ("one", 2_000),
        *(pytest.param(name, 10_000, marks=pytest.mark.long) for name in ("one", "two")),
    ],
)
def test_thousands_of_histories_in_batches_equal_the_fold_of_their_events(
    spark: SparkSession, name: str, histories: int
) -> None:
    draw, shape = Random(name), _SHAPES[name]
    models = [Model(shape) for _ in range(histories)]
    kept, seen = Kept(spark, shape), Counter[str]()
    with configured(
        spark, {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    ):
        for step in ("batch", "batch", "withdraw", "batch", "release", "batch"):
            batch, expected, told = list[Row](), Counter[str](), list[Row]()
            for number, model in enumerate(models):
                some: list[Row] = []
                if step == "batch":
                    for _ in range(draw.randint(0, 3)):
                        earlier = [one for same in model.events.values() for one in same]
                        event = (
                            draw.choice(earlier)
                            if earlier and draw.random() < 0.15
                            else _event(draw, number)
                        )
                        some += [event] * draw.choice((1, 1, 1, 2))
                elif step == "withdraw" and draw.random() < 0.4 and (rows := model.rows):
                    model.withheld = {
                        model.key(one): one for one in model.run_of(draw.choice(rows))
                    }
                elif step == "release" and model.withheld and draw.random() < 0.5:
                    some, model.withheld = list(model.withheld.values()), {}
                told += model.withheld.values()
                expected += model.take(some, released=step == "release")
                batch += some
            counts = kept.step(step, batch, told)
            fates = {name: counts[name] for name in ("applied", "duplicate", "superseded")}
            assert fates == {name: expected[name] for name in fates}, step
            _compare(kept, models)
            seen.update({name: number for name, number in counts.items() if name in WHYS})
    assert tuple(WHYS) == RUNS and min(seen[name] for name in RUNS) > 20, seen


@pytest.mark.full
def test_an_event_that_lost_its_sequence_after_it_was_hidden_is_no_duplicate(
    spark: SparkSession,
) -> None:
    kept = Kept(spark, _SHAPES["one"])
    first = {"h": 1, "n": 1, "t": _START, "a": "a", "op": "u", "u": 1, "x": None}
    with configured(
        spark, {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    ):
        # the first is hidden: the row holds the second whole
        kept.step("batch", [first, first | {"n": 2}])
        assert kept.step("batch", [first])["duplicate"] == 1
        assert kept.step("batch", [first | {"a": "b"}])["applied"] == 1
        counts = kept.step("batch", [first])
    assert (counts["superseded"], counts["duplicate"]) == (1, 0)


@pytest.mark.full
def test_events_in_order_that_change_nothing_are_not_read_again(spark: SparkSession) -> None:
    kept, shape = Kept(spark, _SHAPES["one"]), _SHAPES["one"]
    event = {"h": 1, "t": _START, "a": "a", "op": "u", "u": 1, "x": None}
    with configured(
        spark, {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    ):
        for day in range(5):
            kept.step("batch", [event | {"n": day, "u": day}])
        assert kept.hidden is not None and kept.hidden.count() == 4 and kept.rows is not None
        for n, read in ((5, 0), (4, 4), (2, 4)):  # the newest event is at 4
            times = kept._frame([event | {"n": n}]).select("h", F.col("n").alias("_since"))
            rows = events.rows_since(kept.rows, times, shape)
            assert events.hidden_since(kept.hidden, rows, times, shape, few=True).count() == read, n
