"""A flow over a real Postgres: the sink holds what its condition says of the table, wherever the
driver dies.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from draindown.spark.runs import sink_fill
from draindown.spark.session import INTERPRETED, configured
from scripts.postgres_server import USER, WORD, PostgresServer, public_directory, server
from tests.landing import Injected, Landing

COLUMNS = {
    "id": "bigint not null",
    "seq": "int not null",
    "amount": "decimal(12,2)",
    "at": "timestamp",
    "note": "string",
}
TARGET = {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "note = 'gone'"}


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    home = public_directory()
    monkeypatch.setenv("DRAINDOWN_SECRET_PG", WORD)
    with server(home / "pg") as found:
        yield found
    shutil.rmtree(home, ignore_errors=True)


def record(id_: int, seq: int, amount: str, note: str = "") -> str:
    return json.dumps(
        {
            "id": id_,
            "seq": seq,
            "amount": amount,
            "at": f"2026-01-0{seq} 00:00:00.123456Z",
            "note": note,
        }
    )


@pytest.mark.long
def test_postgres_follows_the_table(
    spark: SparkSession, landing: Callable[..., Landing], postgres: PostgresServer
) -> None:
    postgres.execute("create schema s")
    postgres.execute(
        "create table s.alerts (key bigint primary key, amount numeric(12,2), at timestamptz, note text)"
    )
    postgres.execute(f"grant usage, create on schema s to {USER}")
    postgres.execute(f"grant select, insert, update, delete on s.alerts to {USER}")
    sinks = {
        "alerts": {
            "postgres": {"url": postgres.url(), "table": "s.alerts", "create": True},
            "where": "amount > 10",
            "columns": {"id": "key", "amount": "amount", "at": "at", "note": "note"},
        }
    }
    flow = landing({"columns": COLUMNS, "target": TARGET, "sinks": sinks})

    def agree() -> None:
        read = (
            QueryBuilder()
            .register("t", DeltaTable(flow.layout.tables.target.path))
            .execute("select * from t")
        )
        rows = pa.RecordBatchReader.from_stream(read).read_all().to_pylist()
        wanted = {
            row["id"]: (row["amount"], row["at"], row["note"])
            for row in rows
            if row["amount"] > Decimal(10)
        }
        found: dict[Any, Any] = {
            row[0]: row[1:] for row in postgres.execute("select * from s.alerts")
        }
        assert found == wanted

    with configured(spark, INTERPRETED):
        flow.deliver(
            record(1, 1, "10.01"), record(2, 1, "5"), record(3, 1, "99.99", "é"), record(4, 1, "77")
        )
        with pytest.raises(Injected):
            flow.apply(spark, fault="remembered")
        assert postgres.execute("select count(*) from s.alerts") == [(0,)]
        flow.apply(spark)
        agree()
        flow.deliver(
            record(1, 2, "1"),
            record(2, 2, "50"),
            record(4, 2, "78", "gone"),
            record(5, 1, "12", "a\u0000b"),
        )
        with pytest.raises(Injected):
            flow.apply(spark, fault="sent-alerts")
        flow.apply(spark)
        (misfit,) = flow.read(flow.layout.tables.unsendable.path)
        assert json.loads(misfit["key"]) == {"key": 5}
        flow.deliver(record(5, 2, "13"))
        flow.apply(spark)
        agree()


@pytest.mark.long
def test_a_fill_makes_a_restored_database_as_the_table(
    spark: SparkSession, landing: Callable[..., Landing], postgres: PostgresServer
) -> None:
    postgres.execute("create schema s")
    postgres.execute("create table s.alerts (id bigint primary key, amount numeric(12,2))")
    postgres.execute(f"grant usage, create on schema s to {USER}")
    postgres.execute(f"grant select, insert, update, delete on s.alerts to {USER}")
    part = {"url": postgres.url(), "table": "s.alerts", "create": True}
    sinks = {"alerts": {"postgres": part, "columns": ["id", "amount"]}}
    flow = landing({"columns": COLUMNS, "target": TARGET, "sinks": sinks})
    with configured(spark, INTERPRETED):
        flow.deliver(*[record(at, 1, f"{at}.50") for at in range(9)])
        flow.drain(spark)
        postgres.execute("update s.alerts set id = id + 100 where id > 6")
        done = sink_fill.fill(flow.request(), spark, "alerts", progress=lambda line: None)
    assert (done.rows, done.deleted) == (9, 2)
    assert postgres.execute("select id, amount from s.alerts order by id") == [
        (at, Decimal(f"{at}.50")) for at in range(9)
    ]
