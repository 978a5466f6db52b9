"""Touched keys recomputed equal the whole query, over thousands of histories in one job of Spark.

A history is what happens to one source: step after step, rows that come, change, go and come twice.
Each step of each history is a cell with keys of its own, so that all cells are one batch. A model
in plain Python knows the whole query.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cmp_to_key, partial, reduce
from math import inf, isclose, nan
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from draindown.config.history import History
from draindown.config.query import Query
from draindown.config.ranking import Deduplicate, Top
from draindown.config.session import Session
from draindown.config.table_source import SourceTable
from draindown.config.window import Window
from draindown.sources.tables.division import Division
from draindown.spark.derived import difference, images, recompute
from draindown.spark.derived.batches import bucket_of
from draindown.spark.derived.histories import Histories
from draindown.spark.derived.kind import Kind, Relation, key_names
from draindown.spark.derived.query import KeyedQuery
from draindown.spark.derived.ranked import FirstPerKey, TopOfGroup
from draindown.spark.derived.resolve import query
from draindown.spark.derived.scope import Bucket, Scope, Touched, spanned
from draindown.spark.derived.sessions import Sessions
from draindown.spark.derived.standing import standing
from draindown.spark.derived.window import Windows
from draindown.spark.session import configured
from draindown.spark.targets.pruning import Pruning
from tests.folding import fold

HISTORIES = 2_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_START = datetime(2026, 3, 1, tzinfo=UTC)
_SOURCE = "cell int, k string, at timestamp, n int, x double, d decimal(20,4), noise string"
_TEXTS = ("", "Z", "a", "\u00e9", "\uff5e", "\U0001f600")
"""In the order of code points, which is not that of UTF-16."""
_USED = ["cell", "k", "at", "n", "x", "d"]
Source = tuple[int, str | None, datetime | None, int | None, float | None, Decimal, str]


@dataclass(frozen=True)
class Cell:
    """One step of one history: the source before and after, and the images of what changed
    between.
    """

    number: int
    before: Sequence[Source]
    after: Sequence[Source]
    images: Sequence[tuple[Source, int]]


def _cells(draw: Random, histories: int) -> Iterator[Cell]:
    number = 0
    for _ in range(histories):
        rows: list[Source] = []
        for _ in range(draw.randint(1, 4)):
            before, changes = list(rows), list[tuple[Source, int]]()
            for _ in range(draw.randint(0, 5)):
                _change(draw, rows, changes)
            own = [(number, *row[1:]) for row in before]
            yield Cell(
                number,
                own,
                [(number, *row[1:]) for row in rows],
                [((number, *r[1:]), s) for r, s in changes],
            )
            number += 1


def _change(draw: Random, rows: list[Source], changes: list[tuple[Source, int]]) -> None:
    """Insert, duplicate, update or delete a row; some updates change only a column that the query
    does not read.
    """
    what = draw.random() if rows else 0.0
    if what < 0.5:
        new = draw.choice(rows) if rows and draw.random() < 0.2 else _row(draw)
        rows.append(new)
        changes.append((new, 1))
        return
    at = draw.randrange(len(rows))
    old = rows.pop(at)
    changes.append((old, -1))
    if what < 0.8:
        new = (*old[:-1], f"noise {draw.random()}") if draw.random() < 0.3 else _row(draw)
        rows.append(new)
        changes.append((new, 1))


def _row(draw: Random) -> Source:
    minutes = draw.choice((0, 1, 59, 60, 61, 119, 120, -1, draw.randint(-200, 200)))
    at = (
        None
        if draw.random() < 0.1
        else _START + timedelta(minutes=minutes, microseconds=draw.choice((0, 0, 1, 999_999)))
    )
    x = draw.choice((None, 0.1, 0.2, 1e300, -0.0, 3.5, nan, inf))
    return (
        0,
        draw.choice((None, "", "a", "b")),
        at,
        draw.choice((None, 1, 2, 3)),
        x,
        Decimal(draw.randint(-3, 3)),
        draw.choice(_TEXTS),
    )


Result = dict[tuple[Any, ...], tuple[Any, ...]]


def _windows(size: int, step: int, rows: Iterable[Source]) -> Result:
    """Count, sum, sum of doubles, sum of decimals, minimum and distinct of the rows of each window
    and group.
    """
    found: dict[tuple[Any, ...], list[Source]] = defaultdict(list)
    for row in rows:
        if row[2] is None:
            continue
        micros = (row[2] - _EPOCH) // timedelta(microseconds=1)
        start = micros - micros % (step * 1_000_000)
        while start > micros - size * 1_000_000:
            found[_EPOCH + timedelta(microseconds=start), row[0], row[1]].append(row)
            start -= step * 1_000_000
    return {key: (key[0] + timedelta(seconds=size), *_measures(own)) for key, own in found.items()}


def _sessions(gap: int, rows: Iterable[Source]) -> Result:
    """End, seconds and measures of each run of rows of a cell and key that follow each other within
    a gap.
    """
    groups: dict[tuple[Any, ...], list[tuple[datetime, Source]]] = defaultdict(list)
    for row in rows:
        if row[2] is not None:
            groups[row[0], row[1]].append((row[2], row))
    found: Result = {}
    for key, own in groups.items():
        sessions: list[list[tuple[datetime, Source]]] = []
        for at, row in sorted(own, key=lambda one: one[0]):
            if not sessions or at - sessions[-1][-1][0] > timedelta(seconds=gap):
                sessions.append([])
            sessions[-1].append((at, row))
        for session in sessions:
            start, last = session[0][0], session[-1][0]
            seconds = Decimal((last - start) // timedelta(microseconds=1)) / 1_000_000
            found[(*key, start)] = (
                last + timedelta(seconds=gap),
                seconds,
                *_measures([row for _, row in session]),
            )
    return found


def _measures(rows: Sequence[Source]) -> tuple[Any, ...]:
    numbers = [row[3] for row in rows if row[3] is not None]
    doubles = [row[4] for row in rows if row[4] is not None]
    return (
        len(rows),
        sum(numbers) if numbers else None,
        sum(doubles) if doubles else None,
        int(sum(row[5] for row in rows)),
        min(numbers, default=None),
        len({str(abs(one)) if one == 0 else str(one) for one in doubles}),
    )


def _per_key(rows: Iterable[Source]) -> Result:
    """The measures per cell and key, of the rows with a number, for keys with two of them or
    more.
    """
    found: dict[tuple[Any, ...], list[Source]] = defaultdict(list)
    for row in rows:
        if row[3] is not None:
            found[row[0], row[1]].append(row)
    return {key: _measures(own) for key, own in found.items() if len(own) > 1}


def _compared(one: Any, other: Any, *, descending: bool) -> int:
    """The order of two values: NULL last, NaN greater than any number."""
    if one is None or other is None:
        return (one is None) - (other is None)
    left, right = (((value != value), 0 if value != value else value) for value in (one, other))
    return (((left > right) - (left < right)) * (-1 if descending else 1)) if left != right else 0


def _placed(
    rows: Iterable[Source], order: Sequence[tuple[int, bool]]
) -> dict[tuple[Any, ...], list[Source]]:
    """The rows of each cell and key, by columns of the source and their direction."""

    def compared(one: Source, other: Source) -> int:
        found = (_compared(one[at], other[at], descending=down) for at, down in order)
        return next(filter(None, found), 0)

    groups: dict[tuple[Any, ...], list[Source]] = defaultdict(list)
    for row in rows:
        groups[row[0], row[1]].append(row)
    return {key: sorted(own, key=cmp_to_key(compared)) for key, own in groups.items()}


def _deduplicated(last: bool, rows: Iterable[Source]) -> Result:
    """By n, then by the other columns by name: at, d, noise, x."""
    order = [(at, last) for at in (3, 2, 5, 6, 4)]
    return {key: own[0][2:] for key, own in _placed(rows, order).items()}


def _top(number: int, ties: bool, rows: Iterable[Source]) -> Result:
    """By x from the greatest, then by the other columns by name: at, d, n, noise."""
    found: Result = {}
    for key, own in _placed(rows, [(4, True), *((at, False) for at in (2, 5, 3, 6))]).items():
        ranks = [
            1 + sum(_compared(other[4], row[4], descending=True) < 0 for other in own)
            for row in own
        ]
        for position, (row, rank) in enumerate(zip(own, ranks, strict=True), 1):
            if (rank if ties else position) <= number:
                found[(*key, position)] = (*([rank] if ties else []), *row[2:])
    return found


def _history(rows: Iterable[Source]) -> Result:
    """By n: at and x begin a row where they change; noise Z deletes."""
    names = ("cell", "k", "at", "n", "x", "d", "noise")
    events = [dict(zip(names, row, strict=True)) for row in rows]
    found = fold(events, ["cell", "k"], ["n"], ["at", "x"], lambda event: event["noise"] == "Z")
    return {
        (row["cell"], row["k"], *row["start"]): (
            (row["end"] or [None])[0],
            *(row[name] for name in names[2:]),
        )
        for row in found
    }


_MEASURES = (
    "count(*) c, sum(n) s, sum(x) x, cast(sum(d) as bigint) d, min(n) m, count(distinct x) u"
)
_SQL = f"select k, cell, {_MEASURES} from source where n is not null group by cell, k having count(*) > 1"


def _window(size: int, slide: int | None) -> Windows:
    measures = dict(reversed(one.rsplit(" ", 1)) for one in _MEASURES.split(", "))
    parts = {
        "time": "at",
        "size": size,
        "slide": slide,
        "group_by": ["cell", "k"],
        "measures": measures,
    }
    return Windows(Window.model_validate(parts))


def _session(gap: int) -> Sessions:
    measures = dict(reversed(one.rsplit(" ", 1)) for one in _MEASURES.split(", "))
    part = {"time": "at", "gap": gap, "group_by": ["cell", "k"], "measures": measures}
    return Sessions(Session.model_validate(part), "source")


def _deduplicate(keep: str) -> FirstPerKey:
    part = {"keys": ["cell", "k"], "sequence_by": ["n"], "keep": keep}
    return FirstPerKey(Deduplicate.model_validate(part), "source")


def _top_of(*, ties: bool) -> TopOfGroup:
    part = {"group_by": ["cell", "k"], "order_by": ["x desc"], "rows": 2, "with_ties": ties}
    return TopOfGroup(Top.model_validate(part), "source")


def _of_history() -> Histories:
    part = {"scope_keys": ["cell", "k"], "sequence_by": ["n"], "track_history": ["at", "x"]}
    return Histories(History.model_validate(part | {"apply_as_deletes": "noise = 'Z'"}), "source")


def _same(kind: Kind, one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether rows are equal, doubles that the kind computes within 1e-9, those that pass through
    exactly.
    """
    near = 1e-9 if _computes(kind) else 0
    return len(one) == len(other) and all(
        a == b
        or (
            isinstance(a, float)
            and isinstance(b, float)
            and (isclose(a, b, rel_tol=near) or (a != a and b != b))
        )
        for a, b in zip(one, other, strict=True)
    )


def _computes(kind: Kind) -> bool:
    return kind.computed is None or len(kind.computed) > 0


def _held(kind: Kind, result: Result) -> list[tuple[Any, ...]]:
    """The rows of the table: results, with sums a little off, as another order of rows gives, which
    is no change.
    """
    off = 1 + 2e-16 if _computes(kind) else 1
    return [
        (*key, *(one * off if isinstance(one, float) else one for one in values))
        for key, values in result.items()
    ]


CASES: dict[str, tuple[Any, Any]] = {
    "tumbling": (_window(3600, None), lambda rows: _windows(3600, 3600, rows)),
    "hopping": (_window(3600, 1200), lambda rows: _windows(3600, 1200, rows)),
    "uneven": (_window(3000, 1200), lambda rows: _windows(3000, 1200, rows)),
    "session": (_session(3600), partial(_sessions, 3600)),
    "first": (_deduplicate("first"), partial(_deduplicated, False)),
    "last": (_deduplicate("last"), partial(_deduplicated, True)),
    "top": (_top_of(ties=False), partial(_top, 2, False)),
    "ties": (_top_of(ties=True), partial(_top, 2, True)),
    "history": (_of_history(), _history),
    "query": (
        KeyedQuery(
            Query.model_validate({"keys": ["cell", "k"], "sql": _SQL}),
            [SourceTable(table="source")],
        ),
        _per_key,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "buckets"),
    [
        *(("uneven", 3), ("ties", 3), ("session", 1), ("last", 3), ("history", 3)),
        *(pytest.param(name, 1, marks=pytest.mark.long) for name in CASES if name != "session"),
        *(
            pytest.param(name, 3, marks=pytest.mark.long)
            for name in ("tumbling", "hopping", "query", "session")
        ),
    ],
)
def test_touched_keys_recomputed_equal_the_whole_query(
    spark: SparkSession, name: str, buckets: int
) -> None:
    kind, model = CASES[name]
    cells = list(_cells(Random(11), HISTORIES // 4 if buckets > 1 else HISTORIES))
    before = {key: values for cell in cells for key, values in model(cell.before).items()}
    after = {key: values for cell in cells for key, values in model(cell.after).items()}
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        # without netting noise away, many touched keys are unchanged
        used = (
            [*_USED, "noise"]
            if buckets == 1 or isinstance(kind, FirstPerKey | TopOfGroup | Histories)
            else _USED
        )
        fated = [
            row
            for at in range(buckets)
            for row in _fated(spark, kind, cells, before, used, Bucket(at, buckets))
        ]
    table, width = dict(before), len(kind.row_keys)
    for row in fated:
        key, fate = _values(row[:width]), row[difference.FATE]
        assert (fate != difference.INSERT) == (key in before), (key, fate)
        assert fate != difference.UNCHANGED or _same(kind, before[key], after[key])
        if fate == difference.DELETE:
            del table[key]
        elif fate != difference.UNCHANGED:
            assert fate == difference.INSERT or not _same(
                kind, before[key], _values(row[width:-1])
            ), "only what differs"
            table[key] = _values(row[width:-1])
    wrong = [
        key
        for key in table.keys() | after.keys()
        if not _same(kind, table.get(key, ()), after.get(key, ()))
    ]
    assert not wrong, (len(wrong), wrong[0], table.get(wrong[0]), after.get(wrong[0]))
    met = Counter(row[difference.FATE] for row in fated)
    assert min(met[fate] for fate in difference.ACTS) >= 40 and (
        buckets > 1 or met[difference.UNCHANGED] > 40
    ), met
    assert len(fated) < 0.9 * len(before.keys() | after.keys()), "untouched keys are not recomputed"


def _values(row: Sequence[Any]) -> tuple[Any, ...]:
    # Spark returns naive times of this machine's zone
    return tuple(one.astimezone(UTC) if isinstance(one, datetime) else one for one in row)


def _fated(
    spark: SparkSession,
    kind: Kind,
    cells: Sequence[Cell],
    before: Result,
    used: Sequence[str],
    bucket: Bucket,
) -> list[Row]:
    changed = spark.createDataFrame(
        [(*row, sign) for cell in cells for row, sign in cell.images],
        f"{_SOURCE}, {images.SIGN} int",
    )
    source = spark.createDataFrame([row for cell in cells for row in cell.after], _SOURCE)
    netted = images.net(changed, used, changes=True)
    keys = recompute.touched(kind, [netted], bucket).persist()
    schema = query(kind, [source]).schema
    held = spark.createDataFrame(_held(kind, before), schema)
    with ExitStack() as kept:
        scope: Scope = Touched(keys, keys.count(), Pruning())
        if kind.absorbs:
            scope = standing(_of(kind), scope, netted, held, kept)
            assert 0 < scope.went.number < scope.touched.number
            names = key_names(kind)  # of the other keys no row of the source is there to be read
            source = scope.went.within(_of(kind).keyed(source), names).drop(*names)
        if kind.span is not None:
            scope = spanned(scope, kind.span, held, kind.scope_keys, kept)
            assert scope.times.ranges
            held = reduce(DataFrame.where, scope.times.conditions(held.schema), held)
        found = recompute.difference(kind, [source], scope, held).drop(difference.BEFORE).collect()
    keys.unpersist()
    return found


def _of(kind: Kind) -> Relation:
    """The one source of a kind."""
    (relation,) = kind.relations
    return relation


def test_only_what_came_is_netted_without_a_shuffle(spark: SparkSession) -> None:
    rows: DataFrame = spark.createDataFrame([(1, 1), (1, 1)], f"n int, {images.SIGN} int")
    assert images.net(rows, ["n"], changes=False).count() == 2
    assert [tuple(row) for row in images.net(rows, ["n"], changes=True).collect()] == [(1, 2, 2)]


def test_rows_with_maps_are_netted_whatever_the_order_of_their_entries(spark: SparkSession) -> None:
    one, other = "map('a', map(1, 2), 'b', null)", "map('b', null, 'a', map(1, 2))"
    nested = (
        "{m} as m, named_struct('m', {m}) as s, array({m}, null) as a, {sign} as " + images.SIGN
    )
    parts = [
        nested.format(m=m, sign=sign)
        for m, sign in ((one, 1), (other, -1), ("map('a', map(1, 3))", 1))
    ]
    rows = spark.sql(" union all ".join(f"select {part}" for part in [*parts, *parts[2:]]))
    found = images.net(rows, ["m", "s", "a"], changes=True)
    assert [one.dataType for one in found.schema][:3] == [one.dataType for one in rows.schema][:3]
    assert {
        (row["s"]["m"]["a"][1], row[images.NET], row[images.IMAGES]) for row in found.collect()
    } == {
        (2, 0, 2),
        (3, 2, 2),
    }


def test_doubles_are_equal_within_a_tolerance_where_they_are_computed(spark: SparkSession) -> None:
    near = (1760000000.0, 1760000001.0)
    pairs = [near, (nan, nan), (0.0, -0.0), (None, 1.0), (inf, 1.0), (1.0, 1.1)]
    held = spark.createDataFrame(
        [(at, was) for at, (was, _) in enumerate(pairs)], "k int, x double"
    )
    fresh = spark.createDataFrame(
        [(at, now) for at, (_, now) in enumerate(pairs)], "k int, x double"
    )
    for computed, changed in (
        (("x",), {3, 4, 5}),
        (None, {3, 4, 5}),
        ((), {0, 3, 4, 5}),
        (("y",), {0, 3, 4, 5}),
    ):
        fated = difference.compare(fresh, held, ["k"], computed=computed).collect()
        assert {
            row["k"] for row in fated if row[difference.FATE] == difference.UPDATE
        } == changed, computed


def _ranges(kind: Kind, name: str, type: str, starts: Sequence[str]) -> list[Bucket]:
    """The buckets of ranges of one key, two of each second range."""
    parts = tuple(1 + at % 2 for at in range(len(starts) + 1))
    own, by = str(Division(name, type, tuple(starts), parts)), list(kind.scope_keys)
    return [bucket_of({"division": own, "bucket": at}, by) for at in range(sum(parts))]


BUCKETS = {
    "hash": lambda kind: [Bucket(at, 4) for at in range(4)],
    "text": lambda kind: _ranges(kind, "k", "string", ["", "a", "b"]),
    "number": lambda kind: _ranges(kind, "cell", "bigint", ["3", "40", "41"]),
    "time": lambda kind: _ranges(
        kind,
        "window_start",
        "timestamp",
        ["2026-02-28 23:59:59", "2026-03-01 00:20:00", "2026-03-01 01:00:00.000001"],
    ),
}


_WINDOWS = ("tumbling", "hopping", "uneven")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(
            name, how, marks=() if (name, how) == ("hopping", "text") else pytest.mark.long
        )
        for name in CASES
        for how in BUCKETS
        if how != "time" or name in _WINDOWS
    ],
)
def test_each_row_is_counted_in_one_bucket_of_its_keys(
    spark: SparkSession, name: str, how: str
) -> None:
    kind, _ = CASES[name]
    rows = spark.createDataFrame(
        [row for cell in _cells(Random(3), 50) for row in cell.after], _SOURCE
    )
    buckets = BUCKETS[how](kind)
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        homes = [rows.where(bucket.has(_of(kind).home())) for bucket in buckets]
        assert reduce(DataFrame.unionAll, homes).count() == rows.count()
        for home, bucket in zip(homes, buckets, strict=True):
            keyed, belongs = _of(kind).keyed(rows), _of(kind).belongs()
            within = keyed.where(bucket.has([keyed[name] for name in key_names(kind)])).count()
            places = rows.agg(F.sum(_of(kind).places(bucket))).collect()
            assert places == [(within,)], "each key of a row is counted"
            own = home.where(belongs).exceptAll(rows.where(~belongs))
            touched = recompute.touched(kind, [own.withColumn(images.NET, F.lit(1))], bucket)
            assert touched.select(keyed.columns[-1]).count() > 0 or own.count() == 0
            if bucket.range is not None:  # what may be skipped is counted nowhere
                far = rows.where(~F.coalesce(_of(kind).near(bucket.range), F.lit(False)))
                assert far.where(bucket.has(_of(kind).home())).count() == 0
                assert far.agg(F.coalesce(F.sum(_of(kind).places(bucket)), F.lit(0))).collect() == [
                    (0,)
                ]
                assert far.count() > 0, "some of it can be skipped"
