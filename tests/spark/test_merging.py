"""Rows merged column by column equal the fold of each column, over thousands of keys in a few jobs
of Spark.

Each key gets records with random subsets of columns, in batches at random, late and twice. The
model is plain Python: it has every record and folds each column anew after each batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf, nan
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from draindown.config.partial import SEQUENCES
from draindown.spark.frames import persisted
from draindown.spark.session import configured
from draindown.spark.targets.merging import BURIES, COUNTS, Shape, merged
from draindown.spark.targets.resolution import FATE
from tests.merging import Row, merge

_START = datetime(2026, 3, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", tz="UTC")
_COLUMNS = {
    "h": pa.int32(),
    "n": pa.int32(),
    "t": _TIME,
    "op": pa.string(),
    "at": pa.string(),
    "b": pa.int32(),
    "x": pa.float64(),
    "m": pa.map_(pa.string(), pa.int32()),
}
_RECORD = pa.schema(_COLUMNS)
_SHAPES = {
    "all": Shape(["h"], ["n"], ["t", "op", "at", "b", "x", "m"], []),
    "some": Shape(["h"], ["n", "t"], ["at", "b"], ["op", "x", "m"]),
    "every": Shape(["h"], ["n", "t"], ["op", "at", "b", "x", "m"], []),
}


def _record(draw: Random, number: int) -> Row:
    def maybe(*values: Any) -> Any:
        return draw.choice(values) if draw.random() < 0.4 else None

    return {
        "h": number,
        "n": draw.randrange(8),
        "t": _START + timedelta(microseconds=draw.randrange(2)),
        "op": "d" if draw.random() < 0.12 else maybe("u", "v"),
        "at": maybe("", "\uff5e", "\U0001f600"),
        "b": maybe(1, 2, 3),
        "x": maybe(0.1, -0.0, 0.0, nan, inf),
        "m": maybe([("k", 1)], [("k", 2)], []),
    }


def _is_delete(record: Row) -> bool:
    return bool(record["op"] == "d")


def _text(value: Any) -> str:
    return str(abs(value) if value == 0 else value)


@dataclass
class Model:
    """All records of one key that ever came."""

    shape: Shape
    came: list[Row] = field(default_factory=list)

    def groups(self) -> dict[str, tuple[Any, str]]:
        """The value of each group of columns with its sequence."""
        found = merge(
            self.came,
            self.shape.keys,
            self.shape.sequence_by,
            self.shape.whole,
            self.shape.partial,
            _is_delete,
        )
        if not found:
            return {}
        ((row, sequences),) = found
        whole = {"": (self.at(row), str([_text(row[name]) for name in self.shape.whole]))}
        return whole | {name: (at, _text(row[name])) for name, at in sequences.items()}

    def given(self, record: Row) -> dict[str, tuple[Any, str]]:
        at = self.at(record)
        whole = {"": (at, str([_text(record[name]) for name in self.shape.whole]))}
        own = {
            name: (at, _text(record[name]))
            for name in self.shape.partial
            if record[name] is not None
        }
        return whole | own

    def at(self, record: Row) -> tuple[Any, ...]:
        return tuple(record[name] for name in self.shape.sequence_by)

    @property
    def dead(self) -> Any:
        return max((self.at(one) for one in self.came if _is_delete(one)), default=None)

    def take(self, batch: Sequence[Row]) -> Counter[str]:
        before, dead = self.groups(), self.dead
        self.came += batch
        after, now = self.groups(), self.dead
        fates: Counter[str] = Counter()
        known = set[str]()
        for record in batch:
            own, at = self.given(record), self.at(record)
            name = str((at, "d" if _is_delete(record) else sorted(own.items())))
            if name in known:
                fates["duplicate"] += 1
            elif _is_delete(record):
                new = at == now and (dead is None or at > dead)
                fates["applied" if new else "duplicate" if at == dead else "superseded"] += 1
            elif any(
                after.get(group) == value != before.get(group) for group, value in own.items()
            ):
                fates["applied"] += 1
            else:
                says = (
                    own
                    if self.shape.whole or len(own) == 1
                    else {g: v for g, v in own.items() if g}
                )
                there = (now is None or at > now) and all(
                    after.get(group) == value for group, value in says.items()
                )
                fates["duplicate" if there else "superseded"] += 1
            known.add(name)
        had, has = "" in before, "" in after
        fates["insert"] += has and not had
        fates["delete"] += had and not has
        fates["update"] += had and has and before != after
        fates["buries"] += now != dead
        return fates


class Kept:
    """Rows and tombstones of all keys, as frames made of what the last batch left."""

    def __init__(self, spark: SparkSession, shape: Shape) -> None:
        self.spark, self.shape = spark, shape
        at = pa.int32() if shape.sequence_by == ["n"] else pa.struct({"n": pa.int32(), "t": _TIME})
        self.schema = pa.schema(
            {**_COLUMNS, "_arrived_at": _TIME, SEQUENCES: pa.map_(pa.string(), at)}
        )
        self.table: StructType = spark.createDataFrame(self.schema.empty_table()).schema
        self.rows: dict[int, Row] = {}
        self.dead: list[Row] = []

    def step(self, batch: Sequence[Row]) -> Mapping[str, int]:
        given = self._frame(batch, _RECORD).withColumn(
            "_delete", F.coalesce(F.col("op") == "d", F.lit(False))
        )
        given = given.withColumn("_arrived_at", F.lit(_START))
        held = self._frame(list(self.rows.values()), self.schema) if self.rows else None
        names = [*self.shape.keys, *self.shape.sequence_by]
        dead = (
            self._frame(self.dead, pa.schema({name: _COLUMNS[name] for name in names}))
            if self.dead
            else None
        )
        found, counts = merged(given, held, dead, self.shape, self.table), Counter[str]()
        with persisted(found):
            outcome = found.toArrow().to_pylist()
        for row in outcome:
            fate, at = row.pop(FATE), row.pop(BURIES)
            counts.update({name[1:]: row.pop(name) for name in COUNTS})
            counts[fate] += 1
            counts["buries"] += at is not None
            self.dead += [{"h": row["h"], **at}] if at is not None else []
            assert (row["h"] in self.rows) == (fate != "insert") or fate is None, (
                "each act fits the table"
            )
            if fate == "delete":
                del self.rows[row["h"]]
            elif fate is not None:
                self.rows[row["h"]] = row
            elif row["h"] in self.rows:
                assert _plain(row) == _plain(self.rows[row["h"]]), "what has no fate stays as it is"
        return counts

    def _frame(self, rows: Sequence[Row], schema: pa.Schema) -> DataFrame:
        return self.spark.createDataFrame(
            pa.Table.from_pylist(list(rows), schema=schema.remove_metadata())
        )


def _plain(row: Row) -> str:
    """A row as text, with its map of sequences as tuples."""
    at = {
        name: tuple(one.values()) if isinstance(one, dict) else (one,)
        for name, one in row[SEQUENCES] or ()
    }
    return _as_text(row, at)


def _as_text(row: Row, sequences: Mapping[str, Any]) -> str:
    at = {name: list(map(str, one)) for name, one in sequences.items()}
    return str([*(_text(row[name]) for name in _COLUMNS), sorted(at.items())])


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "keys"),
    [("some", 500), *(pytest.param(name, 5_000, marks=pytest.mark.long) for name in _SHAPES)],
)
def test_thousands_of_keys_in_batches_equal_the_fold_of_each_column(
    spark: SparkSession, name: str, keys: int
) -> None:
    draw, shape = Random(name), _SHAPES[name]
    models = [Model(shape) for _ in range(keys)]
    kept, seen = Kept(spark, shape), Counter[str]()
    with configured(
        spark, {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    ):
        for _ in range(4):
            batch, expected = list[Row](), Counter[str]()
            for number, model in enumerate(models):
                some: list[Row] = []
                for _ in range(draw.randint(0, 3)):
                    again = model.came and draw.random() < 0.15
                    record = draw.choice(model.came) if again else _record(draw, number)
                    some += [record] * draw.choice((1, 1, 1, 2))
                expected += model.take(some)
                batch += some
            counts = kept.step(batch)
            assert {name: counts[name] for name in expected} == dict(expected)
            seen.update(expected)
            want = defaultdict[int, list[str]](list)
            for model in models:
                for row, sequences in merge(
                    model.came,
                    shape.keys,
                    shape.sequence_by,
                    shape.whole,
                    shape.partial,
                    _is_delete,
                ):
                    want[row["h"]].append(_as_text(row, sequences))
            assert {h: [_plain(row)] for h, row in kept.rows.items()} == want
    assert (
        min(
            seen[one]
            for one in (
                "applied",
                "superseded",
                "duplicate",
                "insert",
                "update",
                "delete",
                "buries",
            )
        )
        > 20
    )
