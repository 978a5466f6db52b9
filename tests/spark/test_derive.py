"""Derive batches over real tables: fill, increments, buckets, crashes, accounts, and what is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError
from draindown.config.derived import DerivedFlow
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.ledger import target_log
from draindown.proof import windows as proof_windows
from draindown.proof.compare import prove
from draindown.sources.tables.division import Division
from draindown.spark.derived import difference, images, scope
from draindown.spark.derived.batch import TableSlice, Versions
from draindown.spark.derived.batches import bucket_of
from draindown.spark.derived.derive import SETTINGS
from draindown.spark.derived.kind import key_names
from draindown.spark.derived.registry import kind_of
from draindown.spark.derived.resolve import resolve
from draindown.spark.derived.scope import pruning_of
from draindown.spark.derived.whole import prove as by_spark
from draindown.spark.derived.window import Windows
from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.session import configured
from draindown.spark.targets.pruning import Pruning
from tests.derivation import COLUMNS, Derivation
from tests.landing import Injected

START = datetime(2026, 3, 1, tzinfo=UTC)
WINDOW = {
    "time": "at",
    "size": "1 hour",
    "group_by": ["k"],
    "measures": {
        "c": "count(*)",
        "s": "sum(n)",
        "x": "avg(x)",
        "low": "min(n)",
        "high": "max(at)",
        "u": "count(distinct n)",
    },
}
HOPPING = WINDOW | {"slide": "20 minutes"}
PER = {
    "keys": ["k"],
    "sql": "select k, count(*) c, sum(n) s, max(at) as newest from source where n > 0 group by k",
}
RANKED = {
    "keys": ["k", "id"],
    "sql": "select s.k, s.id, s.r, t.n from (select k, id, rank() over (partition by k, id order by at) r "
    "from source) s left join source t on s.k <=> t.k and s.id = t.id",
}
KINDS: dict[str, dict[str, Any]] = {
    "tumbling": {"window": WINDOW},
    "hopping": {"window": HOPPING},
    "query": {"query": PER},
}


def row(
    number: int, minutes: int | None, k: str | None = "a", n: int | None = 1, noise: str = ""
) -> tuple[Any, ...]:
    return (
        number,
        1,
        k,
        None if minutes is None else START + timedelta(minutes=minutes),
        n,
        0.1 * number,
        noise,
    )


@pytest.fixture
def derivation(spark: SparkSession, tmp_path: Path) -> Callable[..., Derivation]:
    return lambda **parts: Derivation(tmp_path, spark, **parts)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Derivation:
    """Three windows, derived once for all tests that go on from there."""
    it = Derivation(tmp_path_factory.mktemp("filled"), spark, window=WINDOW)
    it.insert(row(1, 0), row(2, 5), row(3, 90), row(40, 200))
    it.derive()
    return it


@pytest.fixture
def filled(made: Derivation, tmp_path: Path) -> Derivation:
    """A copy of it: windows of two rows, of one and of one."""
    return made.copied(tmp_path / "filled")


def test_a_fill_and_increments_equal_the_query(derivation: Callable[..., Derivation]) -> None:
    it = derivation(window=WINDOW)
    it.insert(row(1, 0), row(2, 5, n=3), row(3, 70, k=None), row(4, None))
    (filled,) = it.derive()
    assert (filled.records, filled.used, filled.unused) == (4, 3, 1)
    assert (filled.recomputed, filled.inserted) == (2, 2) and it.table() == it.whole()

    it.upsert(row(2, 65, k=None), row(5, 6, n=9))
    it.sql("delete from {t} where id = 3")
    (changed,) = it.derive()
    assert it.table() == it.whole()
    assert (changed.records, changed.used, changed.unused) == (
        4,
        4,
        0,
    )  # two images of 2, one each of 5 and 3
    assert (changed.recomputed, changed.updated, changed.deleted, changed.inserted) == (2, 2, 0, 0)

    it.sql("delete from {t} where k is null")
    (emptied,) = it.derive()
    assert (emptied.deleted, emptied.recomputed) == (1, 1) and it.table() == it.whole(), (
        "a window without rows goes"
    )


@pytest.mark.long
def test_a_change_without_effect_leaves_an_empty_commit(
    derivation: Callable[..., Derivation], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = derivation(window=WINDOW | {"measures": {"c": "count(*)", "s": "sum(n)"}})
    it.insert(row(1, 0), row(2, 5))
    it.derive()
    assert resolve(it.flow, [images.at(it.spark, it.path, it.version)], "", "").used == [
        ["k", "at", "n"]
    ]
    it.upsert(row(1, 0, noise="other"))
    with monkeypatch.context() as patch:
        patch.setattr(
            difference,
            "count",
            lambda *_: pytest.fail("no key was touched, and nothing is to compare"),
        )
        (noise,) = it.derive()
    assert (noise.records, noise.used, noise.unused, noise.recomputed) == (2, 0, 2, 0)
    it.insert(row(9, 0))
    it.sql("delete from {t} where id = 9")
    (passing,) = it.derive()
    assert (passing.records, passing.unused, passing.recomputed) == (2, 2, 0)
    it.upsert(row(1, 0, n=2), row(2, 5, n=0))
    (moved,) = it.derive()
    assert (moved.recomputed, moved.unchanged) == (1, 1), "the sum is the same"
    newest = target_log.last_commit(it.layout.tables.target.path)
    assert newest.rows_changed == (0, 0, 0) and it.layout.tables.target.version == newest.version


LONG = pytest.mark.long


@LONG
@pytest.mark.parametrize("kind", KINDS)
def test_random_histories_in_buckets_equal_the_query(
    derivation: Callable[..., Derivation], kind: str
) -> None:
    draw, it = Random(kind), derivation(**KINDS[kind])
    for step in range(5):
        some = [
            row(
                draw.randrange(30),
                draw.randint(-90, 90),
                draw.choice("abc"),
                draw.choice((None, 0, 1, 2)),
            )
            for _ in range(8)
        ]
        it.upsert(*{one[0]: one for one in some}.values())
        if draw.random() < 0.6:
            it.sql(f"delete from {{t}} where id % 7 = {draw.randrange(7)}")
        rows = it.derive(buckets=1 + step % 3)
        assert it.table() == it.whole(), step
        assert sum(one.recomputed for one in rows) >= 1


@LONG
def test_buckets_count_each_image_once(derivation: Callable[..., Derivation]) -> None:
    it = derivation(window=HOPPING)
    it.insert(*(row(i, 7 * i, k="abc"[i % 3], n=i) for i in range(40)), row(99, None))
    filled = it.derive(buckets=3)
    assert sum(one.records for one in filled) == 41 and sum(one.used for one in filled) == 40
    it.upsert(*(row(i, 7 * i + 3, k="abc"[i % 2], n=i) for i in range(0, 40, 4)))
    again = it.derive(buckets=4)
    assert sum(one.records for one in again) == 20 and it.table() == it.whole()
    assert len([one for one in again if one.recomputed]) > 1


@LONG
@pytest.mark.parametrize("kind", ["tumbling", "hopping"])
def test_rows_that_a_fill_does_not_read_again_end_red(
    derivation: Callable[..., Derivation], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = derivation(**KINDS[kind])
    it.insert(row(1, 0), row(2, 5), row(3, 90))
    monkeypatch.setattr(Windows, "source_pruning", lambda _, keys: Pruning(values={"n": ["2"]}))
    with pytest.raises(TerminalError) as filling:
        it.derive()
    assert filling.value.code == "rows-miscounted" and not it.layout.tables.target.rows(
        "select 1 from t"
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "buckets"),
    [("tumbling", 1), *(pytest.param(kind, 2, marks=LONG) for kind in ("tumbling", "hopping"))],
)
def test_rows_that_are_not_read_again_end_red(
    derivation: Callable[..., Derivation],
    filled: Derivation,
    kind: str,
    buckets: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = filled
    if kind != "tumbling":
        it = derivation(**KINDS[kind])
        it.insert(row(1, 0), row(2, 5), row(3, 90))
        it.derive()
    before = it.table()
    it.insert(row(4, 10, n=2))
    monkeypatch.setattr(Windows, "source_pruning", lambda _, keys: Pruning(values={"n": ["2"]}))
    with pytest.raises(TerminalError) as more:
        it.derive(buckets=buckets)
    assert more.value.code == "rows-miscounted" and it.table() == before
    monkeypatch.undo()
    it.derive(buckets=buckets)
    assert it.table() == it.whole()


RANGES = {
    "by group": Division("k", "string", ("b", "c"), (1, 2, 1)),
    "by time": Division(
        "window_start", "timestamp", ("2026-03-01 00:30:00", "2026-03-01 03:00:00"), (2, 1, 1)
    ),
}


@LONG
@pytest.mark.parametrize(
    ("kind", "how"),
    [("query", "by group"), *((kind, how) for kind in ("tumbling", "hopping") for how in RANGES)],
)
def test_a_fill_in_ranges_equals_the_query(
    derivation: Callable[..., Derivation], kind: str, how: str
) -> None:
    it = derivation(**KINDS[kind])
    keys, division = it.flow.derivation.keys, RANGES[how]
    ranges = [
        bucket_of({"division": str(division), "bucket": at}, keys) for at in range(division.buckets)
    ]
    it.insert(
        *(
            row(i, 11 * i - 60, k=("a", "b", "bb", "c", None, "")[i % 6], n=i % 3)
            for i in range(40)
        ),
        row(99, None),
    )
    filled = it.derive(buckets=ranges)
    assert it.table() == it.whole() and sum(one.records for one in filled) == 41
    it.upsert(
        *(row(i, 7 * i + 3, k="abc"[i % 3], n=i) for i in range(0, 40, 4)), row(50, 9, k="bz")
    )
    it.sql("delete from {t} where id % 5 = 1 or k = 'bb'")
    it.derive(buckets=ranges, fill=True)
    assert it.table() == it.whole()


@pytest.mark.long
def test_rows_of_a_range_that_are_not_read_again_end_red(
    derivation: Callable[..., Derivation], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = derivation(window=WINDOW)
    ranges = [
        bucket_of({"division": str(RANGES["by group"]), "bucket": at}, ["window_start", "k"])
        for at in range(4)
    ]
    it.insert(row(1, 0, k="b"), row(2, 5, k="bb"), row(3, 90, k="b"))
    monkeypatch.setattr(Windows, "source_pruning", lambda _, keys: Pruning(values={"n": ["2"]}))
    with pytest.raises(TerminalError) as filling:
        it.derive(buckets=ranges)
    assert filling.value.code == "rows-miscounted"


@pytest.mark.full
@pytest.mark.parametrize("again", [False, pytest.param(True, marks=LONG)])
def test_a_count_that_somebody_changed_ends_red_once_its_window_is_touched_until_a_fill(
    filled: Derivation, again: bool
) -> None:
    it = filled
    it.spark.sql(f"update delta.`{it.layout.tables.target.path}` set c = 3 where c = 2")
    if again:
        it.insert(row(4, 95))
        it.derive()  # another window
    it.insert(row(5, 7))
    with pytest.raises(TerminalError) as refused:
        it.derive()
    assert refused.value.code == "rows-miscounted" and "before" in refused.value.found.lower()
    if not again:
        return
    it.spark.sql(f"alter table delta.`{it.layout.tables.target.path}` add columns (old int)")
    it.spark.sql(f"update delta.`{it.layout.tables.target.path}` set old = 7")
    it.derive(fill=True)
    assert it.table() == [(*one, None) for one in it.whole()], (
        "what a column holds that the query has no more is gone"
    )


@pytest.mark.full
def test_a_refill_writes_only_what_differs(filled: Derivation) -> None:
    it = filled
    it.sql("delete from {t} where id in (2, 3)")
    it.insert(row(8, 3000))
    (refilled,) = it.derive(fill=True)
    sums = [getattr(refilled, name) for name in ("inserted", "updated", "deleted", "unchanged")]
    assert sums == [1, 1, 1, 1], "row 2 was in a window with row 1"
    assert it.table() == it.whole()


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("tumbling", "merged"),
        *(pytest.param(*one, marks=LONG) for one in (("tumbling", "read"), ("query", "read"))),
    ],
)
def test_a_batch_that_died_is_whole_when_it_is_tried_again(
    derivation: Callable[..., Derivation], kind: str, step: str
) -> None:
    it = derivation(**KINDS[kind])
    it.insert(row(1, 0), row(2, 5, k="b"))

    def dying(name: str) -> None:
        if name == step:
            raise Injected(name)

    with pytest.raises(Injected):
        it.derive(reached=dying)
    (found,) = it.derive()
    assert it.table() == it.whole() and found.batch == 0
    assert [one.batch for one in ledger_table.recent(it.layout, 9)] == [0], "recorded once"
    before = it.layout.tables.target.version
    again = it.attempt(TableSlice(1, [Versions(it.path, None, it.version)]), 0)
    assert again == found and it.layout.tables.target.version == before, "nothing is written twice"


def test_both_sides_of_a_join_are_read(derivation: Callable[..., Derivation]) -> None:
    it = derivation(query=RANKED)
    it.insert(row(1, 0))
    assert resolve(it.flow, [images.at(it.spark, it.path, it.version)], "", "").used == [
        ["id", "k", "at", "n"]
    ]


def test_a_row_per_key_is_checked(derivation: Callable[..., Derivation]) -> None:
    it = derivation(query={"keys": ["k"], "sql": "select k, n from source"})
    it.insert(row(1, 0), row(2, 5))
    with pytest.raises(TerminalError) as error:
        it.derive()
    assert error.value.code == "result-not-unique" and it.layout.tables.target.row_count == 0


@pytest.mark.full
@pytest.mark.parametrize("fills", [(False,), pytest.param((False, True), marks=LONG)])
def test_rows_that_the_table_has_twice_are_told_from_those_of_the_query(
    derivation: Callable[..., Derivation], fills: Sequence[bool]
) -> None:
    it = derivation(query=PER)
    it.insert(row(1, 0))
    it.derive()
    twice = it.spark.read.format("delta").load(it.layout.tables.target.path)
    twice.write.format("delta").mode("append").save(it.layout.tables.target.path)
    it.insert(row(2, 5))
    for fill in fills:
        with pytest.raises(TerminalError) as error:
            it.derive(fill=fill)
        assert (
            error.value.code == "result-not-unique"
            and "the table has several rows for 1" in error.value.found
        )
        assert "draindown rebuild" in error.value.next[0] and it.layout.tables.target.row_count == 2


@pytest.mark.full
@pytest.mark.parametrize("others", [pytest.param((), marks=LONG), (row(1, 0, k=None),)])
def test_an_empty_string_by_which_the_table_is_partitioned_ends_red(
    derivation: Callable[..., Derivation], others: tuple[Any, ...]
) -> None:
    it = derivation(window=WINDOW | {"measures": {"s": "sum(n)"}}, target={"partition_by": ["k"]})
    it.insert(row(2, 0), *others)
    it.derive()
    it.insert(row(3, 0, k=""), row(4, 0, k="__HIVE_DEFAULT_PARTITION__"), row(5, 0, k="a\x00b"))
    for _ in range(1 if others else 2):
        with pytest.raises(TerminalError) as error:
            it.derive()
        assert error.value.code == "partition-empty"
        reasons = [
            part.removeprefix("in 1 key partition column k has ")
            for part in error.value.found.split("; ")
        ]
        assert [reason.split(",")[0] for reason in reasons] == [
            "an empty string",
            "__HIVE_DEFAULT_PARTITION__",
            "a NUL character",
        ]
    assert it.layout.tables.target.row_count == 1 + len(others)


CALENDAR: dict[str, tuple[dict[str, Any], Callable[[date], tuple[date, date]]]] = {
    "month": ({"size": "1 month"}, lambda d: (d.replace(day=1), _later(d.replace(day=1), 1))),
    "quarter": ({"size": "3 months"}, lambda d: (_quarter(d), _later(_quarter(d), 3))),
    "week": (
        {"size": "1 week"},
        lambda d: (d - timedelta(d.weekday()), d + timedelta(7 - d.weekday())),
    ),
    "week from sunday": (
        {"size": "1 week", "week_starts": "sunday"},
        lambda d: (d - timedelta(d.isoweekday() % 7), d + timedelta(7 - d.isoweekday() % 7)),
    ),
    "week from thursday": (
        {"size": "1 week", "week_starts": "thursday"},
        lambda d: (d - timedelta((d.weekday() - 3) % 7), d + timedelta(7 - (d.weekday() - 3) % 7)),
    ),
}


def _quarter(day: date) -> date:
    return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)


def _micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _later(day: date, months: int) -> date:
    return day.replace(
        year=day.year + (day.month + months > 12), month=(day.month + months - 1) % 12 + 1
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "buckets"), [("month", 1), *(pytest.param(name, 2, marks=LONG) for name in CALENDAR)]
)
def test_windows_of_the_calendar_begin_and_end_with_it(
    derivation: Callable[..., Derivation], name: str, buckets: int
) -> None:
    """The oracle is Python's calendar; DuckDB's query, which `audit` runs, finds the same."""
    parts, of = CALENDAR[name]
    it = derivation(
        window={"time": "at", "group_by": ["k"], "measures": {"c": "count(*)", "s": "sum(n)"}}
        | parts
    )
    days = [
        date(1969, 12, 31),
        date(1970, 1, 1),
        date(2023, 12, 31),
        date(2024, 1, 1),
        date(2024, 2, 29),
    ]
    days += [
        date(2024, 3, 1),
        date(2026, 3, 31),
        date(2026, 4, 5),
        date(2026, 4, 6),
        date(2026, 12, 31),
    ]
    late = [datetime.combine(day, time(23, 59, 59, 999999), UTC) for day in days]
    early = [datetime.combine(day, time(), UTC) for day in days]
    rows = [(i, 1, "ab"[i % 2], at, i, 0.5, "") for i, at in enumerate([*late, *early])]
    changed, dateless = (0, 2, "a", rows[9][3], 100, 0.5, ""), (99, 1, "a", None, 1, 0.5, "")
    if buckets > 1:
        it.insert(*rows, dateless)
        it.derive(buckets=buckets)
        it.upsert(changed)
        it.sql("delete from {t} where id in (3, 99)")
    rows = [changed, *(row for row in rows if row[0] not in (0, 3))]
    if buckets == 1:
        it.insert(*rows, dateless)
    it.derive(buckets=buckets)
    wanted = dict[tuple[datetime, datetime, str], tuple[int, int]]()
    for row in rows:
        first, end = (datetime.combine(day, time(), UTC) for day in of(row[3].date()))
        count, total = wanted.get((first, end, row[2]), (0, 0))
        wanted[first, end, row[2]] = (count + 1, total + row[4])
    with configured(it.spark, {"spark.sql.session.timeZone": "UTC"}):
        table = it.spark.read.format("delta").load(it.layout.tables.target.path)
        micros = [F.unix_micros(name) for name in ("window_start", "window_end")]
        found = {
            tuple(row)[:3]: tuple(row)[3:] for row in table.select(*micros, "k", "c", "s").collect()
        }
    assert found == {
        (_micros(first), _micros(end), k): value for (first, end, k), value in wanted.items()
    }
    assert it.flow.window is not None
    sql = proof_windows.query(it.flow.window, {"k": "string", "n": "integer", "at": "timestamp"})
    source = pa.table(
        {
            "at": [row[3] for row in rows],
            "k": [row[2] for row in rows],
            "n": [row[4] for row in rows],
        }
    )
    con = duckdb.connect()
    con.register("source", source)
    assert sql is not None
    proven = {(start, end, k): (c, s) for start, k, end, c, s in con.execute(sql).fetchall()}
    assert proven == found


@LONG
def test_a_query_with_a_window_function_and_a_join(derivation: Callable[..., Derivation]) -> None:
    it = derivation(query=RANKED)
    it.insert(row(1, 0), row(2, 5), row(3, None, k=None))
    it.derive()
    it.upsert(row(2, 1, k="b", n=7), row(4, 1))
    it.derive()
    assert it.table() == it.whole() and len(it.table()) == 4


@pytest.fixture(scope="module")
def one_row(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose source has a row, from which nothing was derived."""
    home = tmp_path_factory.mktemp("one-row")
    Derivation(home, spark, query=PER).insert(row(1, 0))
    return home


@pytest.mark.parametrize(
    ("parts", "part"),
    [
        ({"window": WINDOW | {"measures": {"s": "n"}}}, "window.measures.s"),
        ({"window": WINDOW | {"measures": {"s": "1"}}}, "is no aggregate"),
        ({"window": WINDOW | {"measures": {"s": "sum(k, n)"}}}, "window.measures.s"),
        ({"query": {"keys": ["k"], "sql": "select k, n from source limit (3)"}}, "GlobalLimit"),
        ({"query": {"keys": ["k"], "sql": "select k, source.missing from source"}}, "missing"),
        ({"query": {"keys": ["k"], "sql": "select k, map(n, n) m from source"}}, "can't compare"),
        ({"query": {"keys": ["k"], "sql": "select k, null m from source"}}, "has no type"),
        (
            {"query": {"keys": ["k"], "sql": "select k, count(1) from source group by k"}},
            "column count(1): Delta",
        ),
        (
            {
                "query": {"keys": ["k"], "sql": "select k, count(*) c from source group by k"},
                "columns": {"c": "int"},
            },
            "bigint",
        ),
        # averages that would lose digits
        *(
            ({"window": WINDOW | {"measures": {"a": text}}}, "decimal(20,0)")
            for text in (
                "avg(distinct id)",
                "avg(id) filter (where n > 0)",
                "1 + avg(id)",
                "try_avg(id)",
            )
        ),
    ],
)
def test_what_spark_alone_can_tell_is_refused_before_anything_is_written(
    spark: SparkSession, one_row: Path, parts: dict[str, Any], part: str
) -> None:
    it = Derivation(one_row, spark, **parts)
    with pytest.raises(TerminalError) as error:
        it.derive()
    assert error.value.code == "invalid-derivation" and part in error.value.found
    assert not it.layout.tables.target.exists


@pytest.mark.parametrize(
    ("parts", "part"),
    [
        ({"time": "text"}, "window.time: 'text' is string: a window needs a timestamp"),
        ({"time": "day"}, "window.time: 'day' is date: a window needs a timestamp"),
        ({"time": "At"}, "window.time: 'At' is no column of the source; did you mean 'at'"),
        (
            {"group_by": ["K"]},
            "window.group_by.0: 'K' is no column of the source; did you mean 'k'",
        ),
    ],
)
def test_columns_of_a_source_whose_columns_its_file_does_not_show_are_checked(
    spark: SparkSession, parts: dict[str, Any], part: str
) -> None:
    found = spark.sql(
        "select 'a' as k, timestamp'2026-03-01' as at, date'2026-03-01' as day, '2026-03-01' as text"
    )
    window = {"time": "at", "size": "1 hour", "group_by": ["k"], "measures": {"c": "count(*)"}}
    flow = DerivedFlow.model_validate({"source": {"table": "t"}, "window": window | parts})
    with pytest.raises(TerminalError) as error:
        resolve(flow, [found], "", "", {"window.measures.c": "p.yaml:9:7"})
    assert error.value.code == "invalid-derivation" and part in error.value.found


def test_what_spark_refuses_of_a_query_is_told_with_its_line(spark: SparkSession) -> None:
    sources = [spark.sql("select 'a' as k")]
    per = {
        "source": {"table": "t"},
        "query": {"keys": ["k"], "sql": "select k, sum(k, 1) as n from t group by k"},
    }
    measures = {"n": "sum(k, 1)"}
    window = {
        "source": {"table": "t"},
        "window": {"time": "at", "size": "1 hour", "measures": measures},
    }
    timed = [spark.sql("select 'a' as k, timestamp'2026-03-01' as at")]
    for flow, path, rows in ((per, "query.sql", sources), (window, "window.measures.n", timed)):
        with pytest.raises(TerminalError) as error:
            resolve(DerivedFlow.model_validate(flow), rows, "", "", {path: "p.yaml:9:7"})
        assert error.value.found.startswith(f"p.yaml:9:7: {path.partition('.')[0]}")


@pytest.mark.full
def test_only_files_with_rows_of_touched_windows_are_read_again(
    derivation: Callable[..., Derivation],
) -> None:
    it = derivation(window=HOPPING)
    for day in range(4):
        it.insert(*(row(1000 * day + i, 1440 * day + i, k="abcd"[day]) for i in range(5)))
    source, kind = images.at(it.spark, it.path, it.version), kind_of(it.flow)
    with configured(it.spark, SETTINGS):
        keys = (
            kind.keyed(source.where("id between 2000 and 2004")).select(*key_names(kind)).distinct()
        )
        number, found = pruning_of(keys.toDF(*kind.scope_keys), kind.scope_keys)
        assert number == keys.count()
        again = kind.source_pruning(found)
        assert set(found.ranges) == {"window_start"} and set(found.values) == {"k"}
        assert set(again.ranges) == {"at"}
        starts, ends = zip(*again.ranges["at"], strict=True)
        assert (min(starts), max(ends)) == ("2026-03-02 23:20:00", "2026-03-03 01:00:00")
        assert source.where("id between 2000 and 2004").count() == _matching(source, again) == 5
    files = Table(it.path).files(["at", "k"])
    assert 0 < len(again.files(source.schema, files)) * 4 == len(files), "one day of four"


def test_no_more_values_of_a_key_are_collected_than_some_of_each_task(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = F.when(F.col("id") % 5 > 0, F.col("id") % 5).cast("int").alias("few")
    rare = F.when(F.col("id") == 1999, "z").otherwise("a").alias("rare")
    keys = spark.range(0, 2000, 1, 3).select(F.col("id").alias("many"), few, rare)
    whole, sizes = pruning_of(keys, keys.columns), list[int]()
    assert set(whole[1].values) == {"few", "rare"} and set(whole[1].values["few"]) == {
        None,
        "1",
        "2",
        "3",
        "4",
    }
    assert set(whole[1].values["rare"]) == {"a", "z"} and whole[1].ranges == {
        "many": [("0", "1999")]
    }
    told = scope._pruning

    def sized(name: str, kind: str, found: dict[str, Any]) -> Pruning:
        sizes.append(len(found["some"]))
        return told(name, kind, found)

    monkeypatch.setattr(scope, "_pruning", sized)
    monkeypatch.setattr(scope.F, "slice", lambda values, *_: values)  # as large as it is collected
    monkeypatch.setattr(scope, "_COLLECTED", 100)
    bounded = pruning_of(keys, keys.columns)
    assert bounded[0] == 2000 and sizes == [300, 5, 2]
    assert bounded[1].ranges == whole[1].ranges
    assert {name: set(found) for name, found in bounded[1].values.items()} == {
        name: set(found) for name, found in whole[1].values.items()
    }


def _matching(source: DataFrame, pruning: Pruning) -> int:
    for condition in pruning.conditions(source.schema):
        source = source.where(condition)
    return source.count()


@pytest.mark.full
def test_times_of_all_years_are_the_same_to_other_readers(
    derivation: Callable[..., Derivation],
) -> None:
    it = derivation(window=HOPPING | {"measures": {"c": "count(*)", "newest": "max(at)"}})
    for number, text in enumerate(
        ("0001-01-02 00:00:00", "1600-02-29 12:00:00.000001", "9999-12-31 22:59:59.999999")
    ):
        it.sql(f"insert into {{t}} select {number}, 1, 'a', timestamp'{text}', 1, 0, '', null")
    it.derive()
    sql = "select cast(window_start as varchar) as s, cast(newest as varchar) as n from t order by window_start"
    found = it.layout.tables.target.rows(sql)
    assert [row["s"][:19] for row in found[::3]] == [
        "0001-01-01T23:20:00",
        "1600-02-29T11:20:00",
        "9999-12-31T22:00:00",
    ]
    assert found[-1]["n"] == "9999-12-31T22:59:59.999999Z"
    assert prove(it.layout, it.flow, [Table(it.path)], it.layout.tables.target).holds


@pytest.mark.full
@pytest.mark.parametrize(
    "part",
    [
        {"window": WINDOW | {"measures": {"c": "count(*)"}}},
        {
            "session": {
                "time": "at",
                "gap": "30 minutes",
                "group_by": ["k"],
                "measures": {"c": "count(*)"},
            }
        },
    ],
    ids=["window", "session"],
)
def test_windows_and_sessions_hold_at_both_ends_of_the_years(
    derivation: Callable[..., Derivation], part: dict[str, Any]
) -> None:
    it = derivation(**part)
    ends = [
        ("0001-01-01 00:00:00", "0001-01-01 00:10:00"),
        ("9999-12-31 23:50:00", "9999-12-31 23:59:59.999999"),
    ]
    for number, (first, last) in enumerate(ends):
        for offset, text in ((0, first), (2, last)):
            it.sql(
                f"insert into {{t}} select {number + offset}, 1, 'a', timestamp'{text}', 1, 0, '', null"
            )
        it.derive()
    counts = [row["c"] for row in it.layout.tables.target.rows("select c from t")]
    assert counts == [2, 2]
    it.sql("delete from {t} where id = 3")
    it.derive()
    assert sorted(row["c"] for row in it.layout.tables.target.rows("select c from t")) == [1, 2]
    assert prove(it.layout, it.flow, [Table(it.path)], it.layout.tables.target).holds


@pytest.mark.full
def test_columns_that_somebody_renamed_end_red_until_a_fill(filled: Derivation) -> None:
    it = filled
    it.sql("alter table {t} set tblproperties ('delta.columnMapping.mode' = 'name')")
    it.insert(row(4, 5))
    it.sql("alter table {t} rename column noise to remark")
    with pytest.raises(TerminalError) as error:
        it.derive()
    assert error.value.code == "source-replaced" and "renamed" in error.value.found
    assert "draindown reset" in error.value.next[0]
    it.derive(fill=True)
    assert it.table() == it.whole()


def test_changes_of_a_table_that_lacks_a_column_by_now_end_red(filled: Derivation) -> None:
    it, before = filled, filled.table()
    it.insert(row(4, 5))
    piece = TableSlice(2, [Versions(it.path, it.consumed, it.version)])
    fewer = it.spark.read.format("delta").load(it.path).drop("noise")
    fewer.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(it.path)
    with pytest.raises(TerminalError) as error:
        it.attempt(piece, 1)
    assert error.value.code == "source-replaced" and "lacks noise now" in error.value.found
    assert "draindown reset" in error.value.next[0] and it.table() == before


@pytest.mark.full
def test_versions_that_the_log_has_no_more_end_red(filled: Derivation) -> None:
    it, before = filled, filled.table()
    it.sql("alter table {t} set tblproperties ('delta.checkpointInterval' = '1')")
    for number in (4, 5):
        it.insert(row(number, 90))
    for file in sorted((Path(it.path) / "_delta_log").glob("*")):
        if file.name[:20].isdigit() and int(file.name[:20]) < it.version:
            file.unlink()
    it.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    with pytest.raises(TerminalError) as refused:
        it.derive()
    assert refused.value.code == "history-gone" and it.table() == before


@pytest.mark.parametrize("of", [pytest.param("the table", marks=LONG), "its changes"])
def test_versions_whose_files_are_gone_end_red(filled: Derivation, of: str) -> None:
    it, before = filled, filled.table()
    it.upsert(row(1, 0, n=7), row(3, 90))
    found = [one for one in Path(it.path).rglob("*.parquet") if "_delta_log" not in str(one)]
    gone = [one for one in found if ("_change_data" in str(one)) == (of == "its changes")]
    assert gone, "there are files to remove"
    for one in gone:
        one.unlink()
    with pytest.raises(TerminalError) as refused:
        it.derive()
    assert refused.value.code == "history-gone" and it.table() == before


@pytest.mark.full
def test_both_engines_certify_the_same_numbers_of_a_table_with_a_doubled_row(
    filled: Derivation,
) -> None:
    it, expected = filled, len(filled.whole())
    source, right = Table(it.path), it.layout.tables.target
    assert right.version == 1, "opened before somebody adds a row"
    path = f"delta.`{it.layout.tables.target.path}`"
    it.spark.sql(
        f"insert into {path} select * from {path} where window_start = (select min(window_start) from {path})"
    )
    for table, differing in ((right, 0), (it.layout.tables.target, 1)):
        ours, theirs = (
            prove(it.layout, it.flow, [source], table),
            by_spark(it.spark, it.layout, it.flow, [source], table),
        )
        for found in (ours, theirs):
            assert (found.expected, found.differing, len(found.falsehoods)) == (
                expected,
                differing,
                differing,
            )
        assert (ours.found, ours.digest) == (theirs.found, theirs.digest)


_BIG = 2**53
_AVERAGES: dict[str, dict[str, Any]] = {
    "window": {
        "window": WINDOW | {"measures": {"a": "avg(id)", "b": "mean(`id`)", "c": "count(*)"}}
    },
    "query": {
        "query": {
            "keys": ["k"],
            "sql": "select k, avg(id) as a, 1 + 2 * mean(id) - 1 as b from source group by k",
        }
    },
}


@pytest.mark.parametrize("kind", ["window", pytest.param("query", marks=LONG)])
def test_an_average_of_large_whole_numbers_is_exact(
    derivation: Callable[..., Derivation], kind: str
) -> None:
    it = derivation(**_AVERAGES[kind])
    it.insert(row(_BIG + 2, 0), row(-_BIG - 1, 1), row(1, 2, k="b"), row(2, 3, k="b"))
    it.derive()
    held = it.layout.tables.target.rows("select k, a, b from t order by k")
    factor = 2 if kind == "query" else 1
    assert [(one["k"], one["a"], one["b"]) for one in held] == [
        ("a", 0.5, 0.5 * factor),
        ("b", 1.5, 1.5 * factor),
    ]
    if kind == "window":
        table, source = it.layout.tables.target, Table(it.path)
        assert prove(it.layout, it.flow, [source], table).holds


_SUMMED = {"s": "sum(x)", "t": "try_sum(2 * x)", "a": "avg(x)", "b": "avg(id)", "c": "count(*)"}
_BY_KEY = f"select k, {', '.join(f'{text} as {name}' for name, text in _SUMMED.items())} from source group by k"
_CANCELLING: dict[str, dict[str, Any]] = {
    "window": {"window": WINDOW | {"measures": _SUMMED}},
    "query": {"query": {"keys": ["k"], "sql": _BY_KEY}},
}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["query", pytest.param("window", marks=LONG)])
def test_doubles_that_cancel_out_are_proven_by_the_amounts_that_were_added(
    derivation: Callable[..., Derivation], kind: str
) -> None:
    it = derivation(**_CANCELLING[kind])
    it.insert(*((*row(number, number)[:5], x, "") for number, x in enumerate((1e9, -1e9, 0.1))))
    it.derive()

    def differing(*added: str) -> int:
        """Number of keys that differ once so much was added to columns."""
        changes = ", ".join(f"{one.partition(' ')[0]} = {one}" for one in added)
        it.spark.sql(f"update delta.`{it.layout.tables.target.path}` set {changes}")
        return by_spark(
            it.spark, it.layout, it.flow, [Table(it.path)], it.layout.tables.target
        ).differing

    assert differing("s + 0.5", "t - 0.5", "a - 0.5") == 0, "of 2e9, 4e9 and a third of 2e9"
    assert differing("s + 3") == 1 and differing("s - 3", "b + 0.001") == 1, (
        "an average of whole numbers is exact"
    )


_FAILING: dict[str, tuple[dict[str, Any], str]] = {
    "window": (
        {"window": WINDOW | {"measures": {"c": "count(*)", "q": "sum(seq) div sum(n)"}}},
        "q of group",
    ),
    "query": (
        {
            "query": {
                "keys": ["k"],
                "sql": "select k, sum(seq) / sum(n) q, count(*) c from source group by k",
            }
        },
        "q of",
    ),
    "sum": (
        {"query": {"keys": ["k"], "sql": "select k, sum(id * n) q from source group by k"}},
        "q of group k bad",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "goes_on"),
    [("window", False), *(pytest.param(kind, True, marks=LONG) for kind in _FAILING)],
)
def test_a_group_that_cannot_be_computed_is_named(
    derivation: Callable[..., Derivation], kind: str, goes_on: bool
) -> None:
    parts, words = _FAILING[kind]
    it = derivation(**parts)
    it.insert(*(row(number, number, k=f"k{number}") for number in range(1, 20)))
    it.derive()
    before, good = it.table(), 2**62
    it.insert(row(good, 5, k="bad", n=2 if kind == "sum" else 0), row(good - 1, 6, k="fine"))
    with pytest.raises(TerminalError) as caught:
        it.derive()
    assert caught.value.code == "group-not-computed" and it.table() == before
    assert words in caught.value.found and "k bad" in caught.value.found, caught.value.found
    if not goes_on:
        return
    it.sql("delete from {t} where k = 'bad'")
    it.derive()
    assert it.table() == it.whole(), "once the row is gone, the flow goes on"


@pytest.mark.full
def test_a_time_that_has_no_window_is_named(derivation: Callable[..., Derivation]) -> None:
    it = derivation(window=WINDOW)
    it.sql(
        "insert into {t} select 1, 1, 'a', timestamp_micros(9223372036854775807), 1, 0.1, '', null"
    )
    with pytest.raises(TerminalError) as caught:
        it.derive()
    assert caught.value.code == "group-not-computed" and "flow d of" in caught.value.tried


@pytest.mark.full
@pytest.mark.parametrize("moves", [False, pytest.param(True, marks=LONG)])
def test_a_row_with_a_map_that_came_and_went_between_two_versions_touches_nothing(
    derivation: Callable[..., Derivation], moves: bool
) -> None:
    landing = {
        "source": {"files": "landing/*", "format": "json"},
        "columns": COLUMNS | {"labels": "map<string, string>"},
        "target": {"keys": ["id"], "sequence_by": ["seq"]},
    }
    it = derivation(
        beside={"source": landing}, window=WINDOW | {"measures": {"c": "count(labels)"}}
    )
    it.sql("alter table {t} add column labels map<string, string>")
    add = "insert into {{t}} select {}, 1, 'a', timestamp'2026-03-01 0{}:00:00', 1, 0.1D, '', null, map('a', 'b')"
    it.sql(add.format(1, 1))
    it.derive()
    if moves:
        for hour in (2, 3):
            it.sql(f"update {{t}} set at = timestamp'2026-03-01 0{hour}:00:00'")
    else:
        it.sql(add.format(2, 5))
        it.sql("delete from {t} where id = 2")
    (row,) = it.derive()
    assert (row.recomputed, row.empty, row.unused) == (
        (2, 0, 2) if moves else (0, 0, 2)
    ) and it.table() == it.whole()


@pytest.mark.full
def test_a_double_that_passes_through_follows_its_source(
    derivation: Callable[..., Derivation],
) -> None:
    it = derivation(deduplicate={"keys": ["k"], "sequence_by": ["at"]})
    it.insert((*row(1, 0)[:5], 1760000000.0, ""))
    it.derive()
    it.upsert((*row(1, 0)[:5], 1760000001.0, ""))
    (changed,) = it.derive()
    assert changed.updated == 1 and it.table() == it.whole()


@LONG
def test_a_source_whose_columns_have_other_types_is_named(
    derivation: Callable[..., Derivation],
) -> None:
    it = derivation(window=WINDOW | {"measures": {"low": "min(n)"}})
    it.insert(row(1, 0))
    it.derive()
    wider = it.spark.read.format("delta").load(it.path).withColumn("n", F.col("n").cast("bigint"))
    wider.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(it.path)
    with pytest.raises(TerminalError) as error:
        it.derive(fill=True)
    assert error.value.code == "table-mismatch" and error.value.next[0].startswith(
        "draindown rebuild p/d"
    )
    assert "column low is int in the table and bigint by the query" in error.value.found
    assert "n bigint of table source" in error.value.found


def test_the_columns_of_a_scope_may_be_named_as_what_is_counted(spark: SparkSession) -> None:
    rows = [
        ("a", 1, "insert"),
        ("a", 2, "unchanged"),
        ("b", 1, "delete"),
        ("b", 1, "delete"),
        (None, 1, "update"),
    ]
    fated = relation(spark, {"old": TEXT, "update": NUMBER, "_fate": TEXT}, rows)
    fated = fated.withColumn(difference.BEFORE, F.lit(2).cast("bigint"))
    counts = difference.count(fated, ["old", "update"], scope_keys=["old"])
    assert counts.keys == {"insert": 1, "unchanged": 1, "delete": 1, "update": 1}
    assert (counts.scopes, counts.twice, counts.before) == (3, 1, 10)
    assert difference.count(fated, ["old", "update"]).scopes == 4
