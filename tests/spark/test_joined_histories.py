"""Joins and lookups computed again where changes touch equal the query, over thousands of histories
in one job.

A history is what happens to two tables: step after step rows come, change, move and go on either
side. Each step of each history is a cell with keys of its own, so that all cells are one batch. A
model in plain Python knows the query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from draindown.config.derived import DerivedFlow
from draindown.config.pairing import Pairing
from draindown.sources.tables.division import Division
from draindown.spark.derived import difference, images, recompute
from draindown.spark.derived.batches import bucket_of
from draindown.spark.derived.kind import Kind, key_names
from draindown.spark.derived.registry import kind_of
from draindown.spark.derived.resolve import query
from draindown.spark.derived.scope import Bucket, Touched
from draindown.spark.session import configured
from draindown.spark.targets.pruning import Pruning

HISTORIES = 2_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_START = datetime(2026, 3, 1, tzinfo=UTC)
_COLUMNS = "cell int, k string, at timestamp, id int, n int"
_ORIGIN = "_origin struct<input: string, position: bigint>"
Source = tuple[int, str | None, datetime | None, int, int]
Result = dict[tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True)
class Side:
    """A table in one step of one history: before, after, and the images of what changed between."""

    before: Sequence[Source]
    after: Sequence[Source]
    images: Sequence[tuple[Source, int]]


Cell = tuple[Side, Side]


def cells(draw: Random, histories: int) -> Iterator[Cell]:
    number = 0
    for _ in range(histories):
        rows: tuple[list[Source], list[Source]] = ([], [])
        for _ in range(draw.randint(1, 4)):
            sides = []
            for own in rows:
                before, changes = list(own), list[tuple[Source, int]]()
                for _ in range(draw.choice((0, 0, 1, 2, 4))):
                    _change(draw, own, changes)
                moved = [[(number, *row[1:]) for row in some] for some in (before, own)]
                sides.append(Side(*moved, [((number, *row[1:]), sign) for row, sign in changes]))
            yield sides[0], sides[1]
            number += 1


def _change(draw: Random, rows: list[Source], changes: list[tuple[Source, int]]) -> None:
    """Insert, update or delete a row; an update may move its time, its key, or neither."""
    what = draw.random() if rows else 0.0
    if what < 0.5:
        known = {row[3] for row in rows}
        rows.append(_row(draw, next(one for one in range(100) if one not in known)))
        changes.append((rows[-1], 1))
        return
    old = rows.pop(draw.randrange(len(rows)))
    changes.append((old, -1))
    if what < 0.85:
        new = _row(draw, old[3])
        rows.append(
            draw.choice(
                (new, (*old[:4], new[4]), (*old[:2], new[2], *old[3:]), (0, new[1], *old[2:]))
            )
        )
        changes.append((rows[-1], 1))


def _row(draw: Random, number: int) -> Source:
    minutes = draw.choice((0, 1, -10, 9, 10, 11, 29, 30, 31, 39, 40, 41, draw.randint(-100, 100)))
    at = _START + timedelta(minutes=minutes, microseconds=draw.choice((0, 0, 0, 1, -1)))
    return (
        0,
        draw.choice((None, "a", "a", "b")),
        None if draw.random() < 0.1 else at,
        number,
        draw.randint(1, 3),
    )


def _joined(bound: tuple[int, int] | None, *, outer: bool, append: bool) -> Any:
    """The pairs of rows of a cell whose keys are equal and whose times are within the bound, in
    seconds.
    """

    def whole(left: Sequence[Source], right: Sequence[Source]) -> Result:
        found: Result = {}
        by_key: dict[tuple[Any, ...], list[Source]] = {}
        for row in right:
            by_key.setdefault(row[:2], []).append(row)
        for one in left:
            some = by_key.get(one[:2], []) if one[1] is not None else []
            matches = [other for other in some if _within(bound, one[2], other[2])]
            for other in matches or ([None] if outer else []):
                bucket = () if bound is None else (_bucket(one[2], max(bound[1] - bound[0], 1)),)
                names = [f"l{one[0]}:{one[3]}" if append else one[3], None]
                if other is not None:
                    names[1] = f"r{other[0]}:{other[3]}" if append else other[3]
                values = (one[2], *([one[3]] if append else []), one[4])
                theirs = (None, None, None) if other is None else (other[2], other[3], other[4])
                theirs = theirs if append else (theirs[0], theirs[2])
                found[(*one[:2], *bucket, *names)] = (*values, *theirs)
        return found

    return whole


def _within(bound: tuple[int, int] | None, one: datetime | None, other: datetime | None) -> bool:
    if bound is None:
        return True
    if one is None or other is None:
        return False
    return timedelta(seconds=bound[0]) <= other - one <= timedelta(seconds=bound[1])


def _bucket(at: datetime | None, seconds: int) -> datetime | None:
    return None if at is None else at - (at - _EPOCH) % timedelta(seconds=seconds)


def _join(*, append: bool = False, **parts: Any) -> DerivedFlow:
    """A join of tables `l` and `r`."""
    columns = {"at": "then", "id": "other", "n": "m"}
    part = {"table": "r", "on": ["cell", "k"], "columns": columns} | parts
    flow = DerivedFlow.model_validate({"source": {"table": "l"}, "join": part})
    for one in flow.source.read:
        one._row_keys = () if append else ("cell", "id")
    flow.settle()
    return flow


def _lookup(*, append: bool = False) -> DerivedFlow:
    """A lookup of table `r`, by its keys, beside each row of `l`."""
    columns = {"at": "then", "n": "m", "k": "name"}
    part = {"table": "r", "on": {"cell": "cell", "n": "id"}, "columns": columns}
    flow = DerivedFlow.model_validate({"source": {"table": "l"}, "lookup": part})
    for one in flow.source.read:
        one._row_keys = () if append and one.table == "l" else ("cell", "id")
    flow.settle()
    return flow


def _looked_up(left: Sequence[Source], right: Sequence[Source], *, append: bool = False) -> Result:
    """Each left row with the right row whose id is its n."""
    known = {row[:1] + row[3:4]: row for row in right}
    found: Result = {}
    for one in left:
        other = known.get((one[0], one[4]))
        theirs = (None, None, None) if other is None else (other[2], other[4], other[1])
        values = (other is not None, one[4], one[1], one[2], *theirs)
        if append:
            found[(f"l{one[0]}:{one[3]}",)] = (
                other is not None,
                one[0],
                *values[1:3],
                one[2],
                one[3],
                *theirs,
            )
        else:
            found[one[0], one[3]] = values
    return found


def _apart(low: str, high: str) -> dict[str, Any]:
    return {"interval": {"left": "at", "right": "at", "between": [low, high]}}


CASES: Mapping[str, tuple[DerivedFlow, Any]] = {
    "within": (
        _join(**_apart("0", "30 minutes")),
        _joined((0, 1800), outer=False, append=False),
    ),
    "outer": (
        _join(**_apart("-10 minutes", "30 minutes"), how="left_outer"),
        _joined((-600, 1800), outer=True, append=False),
    ),
    "after": (
        _join(**_apart("-40 minutes", "-10 minutes"), how="left_outer", append=True),
        _joined((-2400, -600), outer=True, append=True),
    ),
    "moment": (
        _join(**_apart("0", "0"), how="left_outer"),
        _joined((0, 0), outer=True, append=False),
    ),
    "keys": (_join(how="left_outer"), _joined(None, outer=True, append=False)),
    "append": (_join(append=True), _joined(None, outer=False, append=True)),
    "lookup": (_lookup(), _looked_up),
    "lookup append": (_lookup(append=True), partial(_looked_up, append=True)),
}


def _frame(
    spark: SparkSession,
    flow: DerivedFlow,
    rows: Sequence[tuple[Any, ...]],
    side: str,
    more: str = "",
) -> DataFrame:
    """Rows of a side, each with its origin if the flow reads it. `more`: a further column at their
    end.
    """
    if not _has_origin(flow, side):
        return spark.createDataFrame(rows, _COLUMNS + more)
    placed = [(*row[:5], (f"{side}{row[0]}", row[3]), *row[5:]) for row in rows]
    return spark.createDataFrame(placed, f"{_COLUMNS}, {_ORIGIN}{more}")


def _has_origin(flow: DerivedFlow, side: str) -> bool:
    assert isinstance(flow.derivation, Pairing)
    return flow.derivation.has_origin("lr".index(side))


def _used(flow: DerivedFlow, side: str) -> list[str]:
    names = [one.split()[0] for one in _COLUMNS.split(", ")]
    return [*names, "_origin"] if _has_origin(flow, side) else names


def _sides(cell: Cell) -> Iterator[tuple[str, Side]]:
    left, right = cell
    yield from (("l", left), ("r", right))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "buckets"),
    [
        *(("outer", 1), ("after", 3), ("lookup", 3)),
        *(pytest.param(name, 1, marks=pytest.mark.long) for name in CASES if name != "outer"),
        *(
            pytest.param(name, 3, marks=pytest.mark.long)
            for name in CASES
            if name not in ("after", "lookup")
        ),
    ],
)
def test_touched_keys_joined_again_equal_the_whole_query(
    spark: SparkSession, name: str, buckets: int
) -> None:
    flow, model = CASES[name]
    kind, some = kind_of(flow), list(cells(Random(7), HISTORIES // 4 if buckets > 1 else HISTORIES))
    before = {
        key: values
        for left, right in some
        for key, values in model(left.before, right.before).items()
    }
    after = {
        key: values
        for left, right in some
        for key, values in model(left.after, right.after).items()
    }
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        fated = [
            row
            for at in range(buckets)
            for row in _fated(spark, flow, kind, some, before, Bucket(at, buckets))
        ]
    table, width = dict(before), len(kind.row_keys)
    for row in fated:
        key, fate = values(row[:width]), row[difference.FATE]
        assert (fate != difference.INSERT) == (key in before), (key, fate)
        if fate == difference.DELETE:
            del table[key]
        elif fate != difference.UNCHANGED:
            assert fate == difference.INSERT or before[key] != values(row[width:-1]), (
                "only what differs"
            )
            table[key] = values(row[width:-1])
    wrong = [key for key in table.keys() | after.keys() if table.get(key) != after.get(key)]
    assert not wrong, (len(wrong), wrong[0], table.get(wrong[0]), after.get(wrong[0]))
    met = Counter(row[difference.FATE] for row in fated)
    needed = [fate for fate in difference.ACTS if fate != difference.UPDATE or name != "append"]
    least = 20 if buckets == 1 else 5
    assert min(met[fate] for fate in needed) >= least, met
    assert flow.join is None or met[difference.UNCHANGED] > least, met
    assert len(fated) < 0.95 * len(before.keys() | after.keys()), (
        "untouched keys are not recomputed"
    )
    matched = sum(values[-1] is not None for values in after.values())
    assert isinstance(flow.derivation, Pairing) and matched > least
    assert not flow.derivation.is_outer or len(after) - matched > least


def values(row: Sequence[Any]) -> tuple[Any, ...]:
    # Spark returns naive times of this machine's zone
    return tuple(one.astimezone(UTC) if isinstance(one, datetime) else one for one in row)


def _fated(
    spark: SparkSession,
    flow: DerivedFlow,
    kind: Kind,
    some: Sequence[Cell],
    before: Result,
    bucket: Bucket,
) -> list[Row]:
    changed: dict[str, list[Any]] = {"l": [], "r": []}
    rows: dict[str, list[Any]] = {"l": [], "r": []}
    for cell in some:
        for name, side in _sides(cell):
            changed[name] += [(*row, sign) for row, sign in side.images]
            rows[name] += side.after
    netted = [
        images.net(
            _frame(spark, flow, changed[name], name, f", {images.SIGN} int"),
            _used(flow, name),
            changes=True,
        )
        for name in changed
    ]
    sources = [_frame(spark, flow, rows[name], name) for name in rows]
    keys = recompute.touched(kind, netted, bucket, sources).persist()
    held = spark.createDataFrame(
        [(*key, *own) for key, own in before.items()], query(kind, sources).schema
    )
    scope = Touched(keys, keys.count(), Pruning())
    found = recompute.difference(kind, sources, scope, held).drop(difference.BEFORE).collect()
    keys.unpersist()
    return found


def _ranges(kind: Kind, name: str, type: str, starts: Sequence[str]) -> list[Bucket]:
    """The buckets of ranges of one key, two of each second range."""
    parts = tuple(1 + at % 2 for at in range(len(starts) + 1))
    own, by = str(Division(name, type, tuple(starts), parts)), list(kind.scope_keys)
    return [bucket_of({"division": own, "bucket": at}, by) for at in range(sum(parts))]


BUCKETS = {
    "hash": lambda kind: [Bucket(at, 4) for at in range(4)],
    "text": lambda kind: _ranges(kind, "k", "string", ["a", "b"]),
    "time": lambda kind: _ranges(
        kind,
        "time_bucket",
        "timestamp",
        ["2026-02-28 23:30:00", "2026-03-01 00:10:00", "2026-03-01 00:40:00.000001"],
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("outer", "time"),
        *(
            pytest.param(name, how, marks=pytest.mark.long)
            for name in ("within", "outer", "moment", "keys")
            for how in BUCKETS
            if (name, how) not in (("outer", "time"), ("keys", "time"))
        ),
    ],
)
def test_each_row_is_counted_in_one_bucket_of_its_keys(
    spark: SparkSession, name: str, how: str
) -> None:
    flow, _ = CASES[name]
    kind, some = kind_of(flow), list(cells(Random(3), 60))
    buckets = BUCKETS[how](kind)
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        for at, relation in enumerate(kind.relations):
            rows = _frame(
                spark,
                flow,
                [row for cell in some for row in list(_sides(cell))[at][1].after],
                "lr"[at],
            ).persist()
            homes = [rows.where(bucket.has(relation.home())) for bucket in buckets]
            assert reduce(DataFrame.unionAll, homes).count() == rows.count() > 60
            for bucket in buckets:
                keyed = relation.keyed(rows)
                within = keyed.where(bucket.has([keyed[key] for key in key_names(kind)])).count()
                assert rows.agg(F.sum(relation.places(bucket))).collect() == [(within,)], (
                    "each key of a row is counted"
                )
                if bucket.range is not None:  # what may be skipped is counted nowhere
                    far = rows.where(~F.coalesce(relation.near(bucket.range), F.lit(False)))
                    assert far.where(bucket.has(relation.home())).count() == 0
                    assert far.agg(
                        F.coalesce(F.sum(relation.places(bucket)), F.lit(0))
                    ).collect() == [(0,)]
                    assert far.count() > 0, "some of it can be skipped"
            rows.unpersist()


def test_what_is_read_again_has_all_rows_of_the_scopes(spark: SparkSession) -> None:
    flow, _ = CASES["outer"]
    kind, some = kind_of(flow), list(cells(Random(5), 60))
    start, end = "2026-03-01 00:00:00", "2026-03-01 00:40:00"
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        for at, relation in enumerate(kind.relations):
            rows = _frame(
                spark,
                flow,
                [row for cell in some for row in list(_sides(cell))[at][1].after],
                "lr"[at],
            )
            pruning = relation.source_pruning(
                Pruning({"k": ["a"]}, {"time_bucket": [(start, end)]})
            )
            read = reduce(DataFrame.where, pruning.conditions(rows.schema), rows)
            asked = F.col("_key1").eqNullSafe("a") & F.col("_key2").between(
                F.lit(start).cast("timestamp"), F.lit(end).cast("timestamp")
            )
            assert relation.keyed(rows).where(asked).exceptAll(relation.keyed(read)).count() == 0
            assert 0 < read.count() < rows.where("k = 'a'").count(), "times prune"
