"""Queries over several tables: touched keys recomputed equal what DuckDB computes, whichever table
changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError
from draindown.base.progress import StepHook, ignore_step
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.config.query import Query
from draindown.config.table_source import SourceTable
from draindown.lake.table import Table
from draindown.ledger import inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.spark.derived import difference, images, recompute
from draindown.spark.derived.batch import DeriveBatch, TableSlice, Versions
from draindown.spark.derived.derive import derive
from draindown.spark.derived.plans import Refused
from draindown.spark.derived.query import KeyedQuery
from draindown.spark.derived.resolve import _used, query, resolve
from draindown.spark.derived.scope import Bucket, Touched
from draindown.spark.derived.whole import prove
from draindown.spark.session import INTERPRETED, configured
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.targets.pruning import Pruning
from tests.landing import Injected

ORDERS = {
    "no": "bigint not null",
    "seq": "int not null",
    "customer_id": "bigint",
    "amount": "int",
    "noise": "string",
}
CUSTOMERS = {
    "row": "bigint not null",
    "seq": "int not null",
    "id": "bigint",
    "name": "string",
    "score": "int",
}
SOURCE = {"tables": ["orders", {"table": "customers", "keys": {"customer_id": "id"}}]}


def queries(own: str = "") -> dict[str, str]:
    """Queries over both tables by name. `own`: a further key of both, `cell`."""
    by, o, c = (f"{own}, ", f"o.{own}, ", f"c.{own}, ") if own else ("", "", "")
    both = f"o.{own} = c.{own} and " if own else ""
    sums = f"(select {by}customer_id, count(*) as n, sum(amount) as total from orders group by {by}customer_id) o"
    named = f"(select {by}id, max(name) as name, count(*) as c from customers where score > 0 group by {by}id) c"
    of_orders = f"select {by}customer_id, amount as v from orders"
    values = f"({of_orders} union all select {by}id as customer_id, score as v from customers)"
    joined = f"select {o}o.customer_id, o.n, o.total, c.name, c.c from {sums}"
    return {
        "left": f"{joined} left join {named} on {both}o.customer_id = c.id",
        "inner": f"{joined} join {named} on {both}o.customer_id = c.id",
        "null-safe": f"{joined} join {named} on {both}o.customer_id is not distinct from c.id",
        "right": f"select {c}c.id customer_id, c.name, o.n from {named} left join {sums} on {both}c.id = o.customer_id",
        "union": f"select {by}customer_id, count(*) as n, sum(v) as v from {values} group by {by}customer_id",
    }


QUERIES, CELLS = queries(), queries("cell")
LEFT = QUERIES["left"]


class Shop:
    """Tables `orders` and `customers`, and a flow `d` over both."""

    def __init__(self, home: Path, spark: SparkSession, sql: str, source: Any = SOURCE) -> None:
        self.spark, self.batch, self.consumed = spark, 0, list[int]()
        flows = {
            name: {
                "source": {"files": f"{name}/*", "format": "json"},
                "columns": columns,
                "target": {"keys": [key], "sequence_by": ["seq"]},
            }
            for name, columns, key in (("orders", ORDERS, "no"), ("customers", CUSTOMERS, "row"))
        }
        per = {"source": source, "query": {"keys": ["customer_id"], "sql": sql}}
        self.spec = PipelineSpec.model_validate(
            {"pipeline": "p", "lake": str(home / "lake"), "flows": {**flows, "d": per}}
        )
        declared = self.spec.declared("d")
        assert isinstance(declared, DerivedFlow)
        self.flow, self.sql_ = declared, sql
        self.paths = [
            self.spec.layout(one.table).tables.target.path for one in declared.source.read
        ]
        for one, path in zip(declared.source.read, self.paths, strict=True):
            columns = ORDERS if one.table == "orders" else CUSTOMERS
            types = ", ".join(
                f"`{name}` {kind.removesuffix(' not null')}" for name, kind in columns.items()
            )
            spark.sql(
                f"create table delta.`{path}` ({types}, _changed_at timestamp) using delta tblproperties "
                "('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
            )

    def path(self, table: str) -> str:
        return self.spec.layout(table).tables.target.path

    def insert(self, table: str, *rows: tuple[Any, ...]) -> None:
        columns = ORDERS if table == "orders" else CUSTOMERS
        types = ", ".join(
            f"`{name}` {kind.removesuffix(' not null')}" for name, kind in columns.items()
        )
        self.spark.createDataFrame(rows, types).write.format("delta").mode("append").save(
            self.path(table)
        )

    def sql(self, table: str, statement: str) -> None:
        self.spark.sql(statement.format(t=f"delta.`{self.path(table)}`"))

    def derive(
        self, buckets: int = 1, reached: StepHook = ignore_step, *, fill: bool = False
    ) -> list[BatchRow]:
        """Derive what changed in both tables since the last call. The first call fills."""
        until = [Table(path).version for path in self.paths]
        start = [None] * len(until) if fill or not self.consumed else self.consumed
        tables = [Versions(*one) for one in zip(self.paths, start, until, strict=True)]
        rows = [
            self._batch(TableSlice(self.batch + 1, tables, Bucket(at, buckets)), reached)
            for at in range(buckets)
        ]
        self.consumed = until
        return rows

    def _batch(self, piece: TableSlice, reached: StepHook) -> BatchRow:
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.batch)
        writer = TableWriter(self.spec.layout("d"), self.flow, 1, self.batch)
        batch = DeriveBatch(
            writer=writer,
            flow=self.flow,
            slice=piece,
            run_id="r",
            changed_at=at,
            started_at=at,
            reached=reached,
        )
        row = derive(self.spark, batch)
        self.batch += 1
        return row

    def table(self) -> list[tuple[Any, ...]]:
        found = self.spec.layout("d").tables.target.rows("select * from t")
        return sorted(
            (tuple(row[name] for name in row if name != "_changed_at") for row in found), key=str
        )

    def expected(self) -> list[tuple[Any, ...]]:
        """What DuckDB computes from both tables, which deltalake reads."""
        with duckdb.connect() as db:
            for table in ("orders", "customers"):
                db.register(table, Table(self.path(table)).query("select * from t"))
            return sorted(db.execute(self.sql_).fetchall(), key=str)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Callable[..., Shop]:
    return lambda sql=LEFT, **more: Shop(tmp_path, spark, sql, **more)


def change(draw: Random, it: Shop, step: int) -> None:
    """Insert, update, delete and move rows of one of the tables, or of both."""
    key = lambda: draw.choice((None, *range(8)))  # noqa: E731
    for table in (
        draw.choice((["orders"], ["customers"], ["orders", "customers"]))
        if step
        else ["orders", "customers"]
    ):
        id_ = "customer_id" if table == "orders" else "id"
        first = "no" if table == "orders" else "`row`"
        number = "amount" if table == "orders" else "score"
        for _ in range(draw.randint(1, 2)):
            match draw.randrange(5) if step else 0:
                case 0:
                    rows = [
                        (step * 100 + draw.randrange(100), 1, key(), draw.choice((None, 1, 2)), "")
                        for _ in range(6)
                    ]
                    it.insert(
                        table,
                        *(
                            rows
                            if table == "orders"
                            else [(*r[:3], draw.choice("ab"), r[3]) for r in rows]
                        ),
                    )
                case 1:
                    it.sql(
                        table,
                        f"update {{t}} set {number} = {draw.randint(-1, 3)} where {id_} % 3 = {draw.randrange(3)}",
                    )
                case 2:
                    it.sql(table, f"delete from {{t}} where {first} % 5 = {draw.randrange(5)}")
                case 3:
                    it.sql(
                        table,
                        f"update {{t}} set {id_} = {draw.randrange(8)} where {first} % 4 = {draw.randrange(4)}",
                    )
                case 4:
                    it.sql(
                        table, f"update {{t}} set seq = seq + 1 where {id_} = {draw.randrange(8)}"
                    )


@pytest.mark.parametrize("name", ["left", pytest.param("union", marks=pytest.mark.long)])
@pytest.mark.long
def test_histories_of_both_tables_equal_what_another_engine_computes(
    shop: Callable[..., Shop], name: str
) -> None:
    draw, it = Random(name), shop(QUERIES[name])
    met = set()
    for step in range(4):
        change(draw, it, step)
        rows = it.derive(buckets=1 + step % 2)
        assert it.table() == it.expected(), step
        met |= {
            fate
            for row in rows
            for fate in ("inserted", "updated", "deleted")
            if getattr(row, fate)
        }
    assert len(met) > 1
    before = it.spec.layout("d").tables.target.version
    it.sql("orders", "update {t} set seq = seq + 1, noise = 'other'")
    (row,) = it.derive()
    assert (row.recomputed, row.used) == (0, 0) and row.records == row.unused > 0, (
        "columns that no query reads"
    )
    assert it.spec.layout("d").tables.target.version == before + 1, "an empty commit"


Rows = list[tuple[Any, ...]]
Cell = tuple[list[Rows], list[Rows], list[Rows]]
"""One step of one history, with keys of its own: of both tables the rows before, the rows after,
and signed images.
"""


def _cells(draw: Random, histories: int) -> Iterator[Cell]:
    number = 0
    for _ in range(histories):
        rows: list[Rows] = [[], []]
        for _ in range(draw.randint(1, 4)):
            before, changes = [list(one) for one in rows], [Rows(), Rows()]
            for _ in range(draw.randint(0, 5)):
                at = draw.randrange(2)
                _change(draw, rows[at], changes[at], at)
            own = [
                [[(number, *row) for row in one] for one in part]
                for part in (before, rows, changes)
            ]
            yield own[0], own[1], own[2]
            number += 1


def _change(draw: Random, rows: Rows, changes: Rows, at: int) -> None:
    """Insert, delete or update a row: its value, its key, or a column that no query reads."""

    def new() -> tuple[Any, ...]:
        key, number = draw.choice((None, 0, 1)), draw.choice((None, -1, 1, 2))
        return (key, number, 0, "") if at == 0 else (key, draw.choice("ab"), number, "")

    what = draw.random() if rows else 0.0
    if what < 0.5:
        rows.append(new())
        changes.append((*rows[-1], 1))
        return
    old = rows.pop(draw.randrange(len(rows)))
    changes.append((*old, -1))
    if what < 0.85:
        rows.append((*old[:-1], str(draw.random())) if draw.random() < 0.2 else new())
        changes.append((*rows[-1], 1))


_SCHEMAS = (
    "cell int, customer_id int, amount int, x int, noise string",
    "cell int, id int, name string, score int, noise string",
)


@pytest.mark.parametrize(
    "name",
    [
        "left",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("union", "inner", "null-safe", "right")
        ),
    ],
)
def test_a_thousand_random_histories_as_one_batch(spark: SparkSession, name: str) -> None:
    draw = Random(name)
    cells, buckets = list(_cells(draw, 1_000)), draw.choice((1, 3))
    sql = CELLS[name]
    per = Query.model_construct(keys=["cell", "customer_id"], sql=sql)
    kind = KeyedQuery(
        per,
        [SourceTable(table="orders"), SourceTable(table="customers", keys={"customer_id": "id"})],
    )
    before, after = (_computed(sql, cells, at) for at in (0, 1))
    sources = [_frame(spark, cells, 1, at) for at in range(2)]
    changed, used = [_frame(spark, cells, 2, at) for at in range(2)], _used(kind, sources)
    netted = [
        images.net(one, names, changes=True).persist()
        for one, names in zip(changed, used, strict=True)
    ]
    held = spark.createDataFrame(list(before.values()), query(kind, sources).schema)
    table, met = dict(before), Counter[str]()
    for bucket in (Bucket(at, buckets) for at in range(buckets)):
        keys = recompute.touched(kind, netted, bucket).persist()
        fated = recompute.difference(kind, sources, Touched(keys, keys.count(), Pruning()), held)
        for row in fated.drop(difference.BEFORE).collect():
            key, fate = tuple(row[:2]), row[difference.FATE]
            met[fate] += 1
            assert (fate != difference.INSERT) == (key in before), (key, fate)
            if fate == difference.DELETE:
                del table[key]
            else:
                assert (fate == difference.UNCHANGED) == (before.get(key) == tuple(row[:-1]))
                table[key] = tuple(row[:-1])
    assert table == after
    assert min(met[fate] for fate in difference.ACTS) > 40, met
    assert sum(met.values()) < 0.9 * len(before.keys() | after.keys()), (
        "untouched keys are not recomputed"
    )


def _computed(sql: str, cells: Sequence[Cell], part: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What DuckDB computes, by key."""
    with duckdb.connect() as db:
        for table, schema, at in (("orders", _SCHEMAS[0], 0), ("customers", _SCHEMAS[1], 1)):
            columns = [column.split() for column in schema.split(", ")]
            values = zip(*(row for cell in cells for row in cell[part][at]), strict=True)
            kinds = [pa.string() if kind == "string" else pa.int32() for _, kind in columns]
            arrays = [pa.array(one, kind) for one, kind in zip(values, kinds, strict=True)]
            db.register(table, pa.table(arrays, [name for name, _ in columns]))
        found = db.execute(sql).fetchall()
    by_key = {row[:2]: row for row in found}
    assert len(by_key) == len(found)
    return by_key


def _frame(spark: SparkSession, cells: Sequence[Cell], part: int, at: int) -> DataFrame:
    schema = _SCHEMAS[at] + (f", {images.SIGN} int" if part == 2 else "")
    return spark.createDataFrame([row for cell in cells for row in cell[part][at]], schema)


@pytest.mark.long
def test_a_change_of_one_table_touches_its_keys_alone_and_reads_the_other_at_its_version(
    shop: Callable[..., Shop],
) -> None:
    it = shop()
    it.insert("orders", *((number, 1, number % 4, number, "") for number in range(12)))
    it.insert("customers", *((number, 1, number, "ann", 1) for number in range(4)))
    (filled,) = it.derive()
    assert (filled.records, filled.units, filled.inserted) == (16, 2, 4)
    read = [one.records for one in inputs.of_batch(it.spec.layout("d"), filled.place)]
    assert sorted(read) == [4, 12]
    it.sql("customers", "update {t} set name = 'bob' where id = 2")
    (changed,) = it.derive()
    assert (changed.records, changed.recomputed, changed.updated, changed.unchanged) == (2, 1, 1, 0)
    assert {
        (one.until - one.start, one.records)
        for one in inputs.of_batch(it.spec.layout("d"), changed.place)
    } == {
        (0, 0),
        (1, 2),
    }
    found = prove(
        it.spark,
        it.spec.layout("d"),
        it.flow,
        [Table(one) for one in it.paths],
        it.spec.layout("d").tables.target,
    )
    assert (
        found.holds and found.found == 4 and [one.version for one in found.sources] == it.consumed
    )
    it.sql("customers", "update {t} set name = 'carol' where id = 3")
    stale = prove(
        it.spark,
        it.spec.layout("d"),
        it.flow,
        [Table(one) for one in it.paths],
        it.spec.layout("d").tables.target,
    )
    assert [one.key for one in stale.falsehoods] == [{"customer_id": 3}]


@pytest.mark.long
@pytest.mark.parametrize("step", ["read", "merged"])
def test_a_batch_that_died_is_done_once(shop: Callable[..., Shop], step: str) -> None:
    it, left = shop(), [step]
    it.insert("orders", (1, 1, 1, 5, ""))
    it.insert("customers", (1, 1, 1, "ann", 1))

    def dying(name: str) -> None:
        if left and name == left[0]:
            left.clear()
            raise Injected(name)

    with pytest.raises(Injected):
        it.derive(reached=dying)
    it.derive()
    assert it.table() == it.expected() and not left
    assert [row.batch for row in ledger_table.recent(it.spec.layout("d"), 5)] == [0]


def test_keys_of_several_types_are_refused(shop: Callable[..., Shop]) -> None:
    it = shop(
        source={"tables": ["orders", {"table": "customers", "keys": {"customer_id": "score"}}]},
        sql=LEFT,
    )
    sources = [images.at(it.spark, path, Table(path).version) for path in it.paths]
    with pytest.raises(TerminalError) as error:
        resolve(it.flow, sources, "", "")
    assert error.value.code == "invalid-derivation"
    assert "key score of customers is int, and customer_id of orders is bigint" in error.value.found


def test_the_columns_that_a_query_reads_are_told_apart_by_table(shop: Callable[..., Shop]) -> None:
    it = shop()
    sources = [images.at(it.spark, path, Table(path).version) for path in it.paths]
    assert resolve(it.flow, sources, "", "").used == [
        ["customer_id", "amount"],
        ["id", "name", "score"],
    ]


@pytest.mark.full
def test_the_keys_of_a_table_that_spark_finds_needless_are_read_all_the_same(
    shop: Callable[..., Shop],
) -> None:
    one, other = "(select distinct customer_id from orders)", "(select distinct id from customers)"
    it = shop(f"select o.customer_id from {one} o left join {other} c on o.customer_id = c.id")
    it.insert("orders", (1, 1, 1, 5, ""))
    it.derive()
    it.insert("customers", (1, 1, 1, "ann", 1))
    (row,) = it.derive()
    assert (row.recomputed, row.unchanged) == (1, 1) and it.table() == it.expected() == [(1,)]


@pytest.mark.full
@pytest.mark.parametrize("each", [9, pytest.param(1, marks=pytest.mark.long)])
def test_the_law_holds_for_several_tables(spark: SparkSession, each: int) -> None:
    """Computed apart for disjoint sets of keys, a query gives what it gives over all rows."""
    draw = Random(4)
    rows = [
        [(draw.choice((None, 0, 1, 2, 3)), draw.randint(-1, 2)) for _ in range(40)]
        for _ in range(2)
    ]
    frames = [
        spark.createDataFrame(rows[0], "k int, a int"),
        spark.createDataFrame(rows[1], "i int, b int"),
    ]
    joins = ["join", "left join"]
    sides = ["(select k, max(a) v from t group by k)", "(select k, a v from t where a > 0)", "t"]
    others = ["(select distinct i, b from u)", "(select i, sum(b) b from u group by i)", "u"]
    for how, side, other, same in [
        (how, side, other, same)
        for how in joins
        for side in sides
        for other in others
        for same in ("x.k = y.i", "y.i <=> x.k")
    ][::each]:
        sql = (
            f"select k, count(*) c, sum(b) s from (select x.k, y.b from {side} x {how} "
            f"{other} y on {same}) group by k"
        )
        kind = KeyedQuery(Query.model_construct(keys=["k"], sql=sql), TABLES)
        with configured(spark, INTERPRETED):
            whole = query(kind, frames)
            parts = [
                query(kind, [one.where(_is_even(one, even)) for one in frames])
                for even in (True, False)
            ]
            together = parts[0].unionAll(parts[1])
            assert sorted(whole.collect(), key=str) == sorted(together.collect(), key=str), sql


TABLES = [SourceTable(table="t"), SourceTable(table="u", keys={"k": "i"})]


def _is_even(rows: DataFrame, even: bool) -> Any:
    key = F.coalesce(F.col(rows.columns[0]), F.lit(0)) % 2 == 0
    return key if even else ~key


REFUSED = {
    "select k from t": "does not read u: leave it out",
    "select x.k from t x join u y on x.k = y.b": "equal on all keys: k",
    "select x.k from t x join u y on x.a = y.i": "equal on all keys: k",
    "select x.k from t x right join u y on x.k = y.i": "RightOuter",
    "select i from t join u on k = i": "does not return key k",
    "select y.i as k from t x left join u y on x.k = y.i": "does not return key k",
    "select k from (select k from t union all select b as k from u)": "does not return key k",
    "select k from t union select i from v": "the sources are t, u",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_does_not_work_within_the_keys_of_all_tables_is_refused(
    spark: SparkSession, sql: str
) -> None:
    frames = [spark.createDataFrame([], "k int, a int"), spark.createDataFrame([], "i int, b int")]
    kind = KeyedQuery(Query.model_construct(keys=["k"], sql=sql), TABLES)
    with pytest.raises(Refused) as refused:
        query(kind, frames)
    assert REFUSED[sql] in str(refused.value)
