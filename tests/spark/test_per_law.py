"""The law of `query` queries: key by key, a query gives what it gives over all rows; what breaks the
law is refused.
"""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.config.query import Query
from draindown.config.table_source import SourceTable
from draindown.spark.derived.plans import Refused
from draindown.spark.derived.query import KeyedQuery
from draindown.spark.derived.resolve import query
from draindown.spark.session import INTERPRETED, configured

_SCHEMA = "k string, g int, a int, b int"


def _kind(sql: str, *keys: str) -> KeyedQuery:
    return KeyedQuery(
        Query.model_construct(keys=list(keys or ("k", "g")), sql=sql), [SourceTable(table="t")]
    )


def _rows(spark: SparkSession) -> DataFrame:
    draw = Random(9)
    some = [
        (
            draw.choice((None, "", "x", "y")),
            draw.choice((None, 0, 1)),
            draw.randint(-2, 2),
            draw.choice((None, 1, 5)),
        )
        for _ in range(60)
    ]
    return spark.createDataFrame(some, _SCHEMA)


class _Draw:
    """Draws queries that return k, g and the integers v and w."""

    def __init__(self, seed: int) -> None:
        self._random, self._names = Random(seed), 0

    def query(self, depth: int = 3) -> str:
        if depth == 0:
            return self._plain()
        forms = (self._filter, self._group, self._rank, self._join, self._union, self._distinct)
        return self._random.choice(forms)(self._below(depth), self._below(depth))

    def _below(self, depth: int) -> str:
        self._names += 1
        return f"({self.query(self._random.randrange(depth))}) q{self._names}"

    def _plain(self) -> str:
        return self._random.choice(
            ("select k, g, a as v, b as w from t", "select k, g, a + b as v, a as w from t")
        )

    def _filter(self, one: str, _: str) -> str:
        condition = self._random.choice(
            ("v > 0", "w is not null", "k <=> 'x'", "v + w > 1 or g = 1")
        )
        return f"select k, g, v, coalesce(w, v) as w from {one} where {condition}"

    def _group(self, one: str, _: str) -> str:
        sums = (
            "sum(v) as v, count(*) as w",
            "min(v) as v, max(w) as w",
            "count(distinct v) as v, sum(w) as w",
        )
        measures, more = self._random.choice(sums), self._random.choice(("", ", v % 2"))
        having = self._random.choice(("", "having count(*) > 1", "having max(w) > 1"))
        grouped = f"select k, g, {measures} from {one} group by g, k{more} {having}"
        return f"select k, g, cast(v as int) v, cast(w as int) w from ({grouped})"

    def _rank(self, one: str, _: str) -> str:
        function = self._random.choice(("rank()", "dense_rank()", "count(w)", "sum(v)"))
        ranked = f"cast({function} over (partition by k, g order by v) as int)"
        return f"select k, g, {ranked} as v, w from {one}"

    def _join(self, one: str, other: str) -> str:
        how = self._random.choice(("join", "left join"))
        same = self._random.choice(
            ("x.k = y.k and x.g = y.g", "x.k <=> y.k and y.g <=> x.g and x.v < y.v")
        )
        return f"select x.k, x.g, x.v, y.w from (select * from {one}) x {how} (select * from {other}) y on {same}"

    def _union(self, one: str, other: str) -> str:
        what = self._random.choice(("union all", "union"))
        return f"select k, g, v, w from {one} {what} select k, g, v, w from {other}"

    def _distinct(self, one: str, _: str) -> str:
        return f"select distinct k, g, v, w from {one}"


@pytest.mark.full
@pytest.mark.parametrize("queries", [5, pytest.param(200, marks=pytest.mark.long)])
def test_a_query_over_two_sets_of_keys_is_the_query_over_both(
    spark: SparkSession, queries: int
) -> None:
    rows = _rows(spark).cache()
    split = F.coalesce(F.ascii("k"), F.lit(0)) + F.coalesce("g", F.lit(7)) + 3
    apart = [rows.where(F.pmod(split, F.lit(2)) == side) for side in range(2)]
    assert all(part.count() > 10 for part in apart)
    wrong, some = [], 0
    with configured(spark, INTERPRETED | {"spark.sql.shuffle.partitions": "1"}):
        for seed in range(queries):
            sql = _Draw(seed).query()
            kind = _kind(sql)
            whole, *parts = (query(kind, [part]) for part in (rows, *apart))
            signed = whole.withColumn("s", F.lit(1))
            for part in parts:
                signed = signed.unionAll(part.withColumn("s", F.lit(-1)))
            sums = signed.groupBy(*whole.columns).agg(
                F.sum("s").alias("s"), F.count("*").alias("n")
            )
            differing, number = sums.agg(F.count_if(F.col("s") != 0), F.sum("n")).collect()[0]
            some += bool(number)
            wrong += [(sql, differing)] if differing else []
    rows.unpersist()
    assert not wrong, (len(wrong), wrong[0])
    assert some >= 0.8 * queries, some


REFUSED = {
    "select k, g from t limit 3": "GlobalLimit",
    "select k, g from t order by a": "Sort",
    "select k, g from t sort by a": "Sort",
    "select k, g from t distribute by a": "RepartitionByExpression",
    "select k, g from t offset 1": "Offset",
    "select k, g from t intersect select k, g from t": "Intersect",
    "select k, g from t except select k, g from t": "Except",
    "select k, g from t lateral view explode(array(1)) e as z": "Generate",
    "select k, g, count(*) c from t group by rollup(k, g)": "Expand",
    "select k, g from t tablesample (10 percent)": "Sample",
    "select * from t pivot (sum(a) for b in (1, 5))": "Pivot",
    "select * from t unpivot (v for n in (a, b))": "Unpivot",
    "select k, g from values ('x', 1) v(k, g)": "LocalRelation",
    "select 'x' k, 1 g": "OneRowRelation",
    "select id k, id g from range(3)": "TableValuedFunction",
    "with c as (select * from t) select k, g from c": "With",
    "select k, g, (select max(a) from t) m from t": "ScalarSubquery",
    "select k, g from t where a in (select a from t)": "InSubquery",
    "select k, g from t where exists (select 1 from t)": "Exists",
    "select k, g from other": "the source is t",
    "select k, g from p.t": "the source is t",
    "select k, g from json.`/etc/hostname`": "the source is t",
    "select x.k, x.g from t x full join t y on x.k = y.k and x.g = y.g": "FullOuter",
    "select x.k, x.g from t x cross join t y": "Cross",
    "select x.k, x.g from t x left semi join t y on x.k = y.k and x.g = y.g": "LeftSemi",
    "select x.k, x.g from t x left anti join t y on x.k = y.k and x.g = y.g": "LeftAnti",
    "select x.k, x.g from t x join t y on x.k = y.k": "equal on all keys: g",
    "select x.k, x.g from t x join t y on x.k = y.k and x.g >= y.g": "equal on all keys: g",
    "select x.k, x.g from t x join t y on x.k = y.k and (x.g = y.g or x.a = y.a)": "equal on all keys: g",
    "select x.k, x.g from t x join t y on x.k = y.k and x.g = y.a": "equal on all keys: g",
    "select k, g, count(*) c from (select upper(k) k, g from t) group by k, g": "group by all keys: k",
    "select k, count(*) g from t group by k": "group by all keys: g",
    "select max(k) k, max(g) g from t": "group by all keys",
    "select k, g, rank() over (partition by k order by g, a, b) r from t": "partitioned by all keys: g",
    "select k, g, sum(a) over () r from t": "partitioned by all keys",
    "select distinct k, a g from t": "DISTINCT must keep all keys: g",
    "select k, g, row_number() over (partition by k, g order by a) r, b from t": "row_number() depends on the order",
    "select k, g, lag(a) over (partition by k, g order by a) r, b from t": "lag() depends on the order",
    "select k, g, sum(b) over (partition by k, g order by a rows 1 preceding) r from t": "sum() depends on the order",
    "select k, g, first(a) f from t group by k, g": "first() depends on the order",
    "select k, g, collect_list(a) f from t group by k, g": "collect_list()",
    "select k, g, max_by(a, b) f from t group by k, g": "max_by() depends on the order",
    "select k, g, rand() r from t": "rand()",
    "select k, g, (select max(a) from t) + rand() r from t": "subquery",
    "select k, a g from t": "does not return key g",
    "select k, g _g, g from t": "begin with '_'",
    "select k, g, a v, b V from t": "returns v twice",
    "drop table t": "DropTable",
    "insert into t select * from t": "InsertIntoStatement",
    "create table x as select * from t": "CreateTableAsSelect",
}


@cache
def _empty(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], _SCHEMA)


@pytest.mark.parametrize("sql", REFUSED)
def test_what_does_not_work_within_the_keys_is_refused_by_name(
    spark: SparkSession, sql: str
) -> None:
    kind, tables = _kind(sql), spark.sql("show tables").collect()
    with pytest.raises(Refused) as refused:
        query(kind, [_empty(spark)])
    assert REFUSED[sql] in str(refused.value)
    assert spark.sql("show tables").collect() == tables, (
        "no view stays behind, and nothing was made"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "select k, g, row_number() over (partition by k, g order by a, b) r from (select k, g, a, b from t)",
        "select k, g, sum(b) over (partition by k, g) r from t",
        "select k, g, sum(b) filter (where a > 0) s, count(distinct a) c from t group by g, k, a having count(*) > 0",
        "select k, g, w from (select k, g from t) x left join (select k, g, b w from t) y using (k, g)",
        "select k as k, g, case when a > 0 then 1 end s from t where abs(a) < 2 and k rlike '^x'",
        "select T.k, T.g from T",
    ],
)
def test_what_works_within_the_keys_is_let_through(spark: SparkSession, sql: str) -> None:
    kind = _kind(sql)
    assert query(kind, [_empty(spark)]).columns[:2] == ["k", "g"]


# of table t no two rows have the same a
TOLD_APART = {
    "by the keys": "select k, g, row_number() over (partition by k, g order by b, a) r, b from t",
    "renamed": "select k, g, lag(b) over (partition by k, g order by z desc) r, b "
    "from (select k, g, b, a z from t where b >= 0) q",
    "of both sides of a join": "select x.k, x.g, row_number() over (partition by x.k, x.g order by x.a, y.a) r, y.b "
    "from t x left join t y on x.k = y.k and x.g = y.g",
    "by what is grouped": "select k, g, row_number() over (partition by k, g order by v) r, c "
    "from (select k, g, b v, count(*) c from t group by k, g, b) q",
    "distinct": "select k, g, row_number() over (partition by k, g order by b) r, b "
    "from (select distinct k, g, b from t) q",
}
TIED = {
    "not the keys": "select k, g, row_number() over (partition by k, g order by b) r, a from t",
    "computed": "select k, g, row_number() over (partition by k, g order by z) r, b "
    "from (select k, g, b, abs(a) z from t) q",
    "left out": "select k, g, row_number() over (partition by k, g order by b) r, z "
    "from (select k, g, b, a + 1 z from t) q",
    "of one side of a join": "select x.k, x.g, row_number() over (partition by x.k, x.g order by x.a) r, y.b "
    "from t x join t y on x.k = y.k and x.g = y.g",
    "hidden by its name": "select k, g, r, _b as b from (select k, g, _b, row_number() over "
    "(partition by k, g order by z) r from (select k, g, b _b, abs(a) z from t) q) p",
    "twice in a union": "select k, g, row_number() over (partition by k, g order by a) r, b "
    "from (select k, g, a, b from t union all select k, g, a, b + 1 from t) q",
}


def _keyed(sql: str) -> KeyedQuery:
    table = SourceTable(table="t")
    table._row_keys = ("a",)
    return KeyedQuery(Query.model_construct(keys=["k", "g"], sql=sql), [table])


@pytest.mark.full
@pytest.mark.parametrize("how", TOLD_APART)
def test_an_order_by_what_tells_rows_apart_has_no_ties(spark: SparkSession, how: str) -> None:
    rows = [(draw, at % 2, at, at % 3) for at, draw in enumerate("xyxyxxyyx")]
    frames = (
        spark.createDataFrame(some, _SCHEMA).repartition(parts)
        for some, parts in ((rows, 1), (rows[::-1], 2))
    )
    one, other = (
        sorted(map(str, query(_keyed(TOLD_APART[how]), [frame]).collect())) for frame in frames
    )
    assert one == other and len(one) > 3


def test_the_columns_of_a_history_with_its_times_are_told_apart_too(spark: SparkSession) -> None:
    history = spark.createDataFrame([], "k string, v int, __START_AT timestamp, __END_AT timestamp")
    newest = (
        "select k, v, __START_AT as since from (select *, row_number() over (partition by k order by {}) n from t) "
        "where n = 1"
    )
    with pytest.raises(Refused, match="depends on the order of ties"):
        query(_kind(newest.format("v desc"), "k"), [history])
    told = _kind(newest.format("abs(v), v, __START_AT, __END_AT"), "k")
    assert query(told, [history]).columns == ["k", "v", "since"], (
        "what Spark names itself follows from these"
    )


@pytest.mark.parametrize("how", TIED)
def test_an_order_with_ties_is_refused_although_the_source_has_keys(
    spark: SparkSession, how: str
) -> None:
    with pytest.raises(Refused, match="depends on the order of ties"):
        query(_keyed(TIED[how]), [_empty(spark)])
