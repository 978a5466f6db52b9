"""Sinks of joins, lookups, sessions and histories: what names a row there, and that the sink
follows the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.config.sinks import FlowSink
from draindown.lake.home import FlowHome
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import SINK_FATES
from draindown.sinks import refusals, registry
from draindown.sources.tables import source as tables
from draindown.spark.session import configured
from draindown.spark.targets import shares
from tests.derivation import Derivation
from tests.landing import Injected
from tests.sinks.fake import FakeServer, FakeSink
from tests.spark.test_history_flow import SEVERAL, event
from tests.spark.test_joined_flow import AIRLINES, JOINED, NAMED, Paired

ALSO_TO = {
    "every": {"postgres": {"url": "postgresql://u:${secret:X}@host:5432/d", "table": "every"}}
}
START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    found = FakeServer()

    def made(spec: FlowSink, place: Any, environ: Mapping[str, str]) -> FakeSink:
        return FakeSink(found, place)

    monkeypatch.setitem(registry.MAKERS, "postgres", made)
    yield found


def assert_as_the_table(server: FakeServer, layout: FlowHome, *keys: str) -> None:
    """The sink has every row of the table under its keys, and the ledger says how it got there."""
    rows = [
        {name: value for name, value in row.items() if name != "_changed_at"}
        for row in layout.tables.target.rows("select * from t")
    ]
    assert len(server.rows) == len(rows) > 0
    assert _plain(server.rows.values()) == _plain(rows)
    assert all(key in row for key in keys for row in server.rows.values())
    for batch in ledger_table.recent(layout, 9):
        counts = batch.sinks["every"]
        assert sum(counts[fate] for fate in SINK_FATES) == batch.applied
        # a row without a match has a key that is NULL, and is unsendable
        assert counts["filtered"] == 0


def _plain(values: Any) -> list[str]:
    return sorted(json.dumps(value, default=_text, sort_keys=True) for value in values)


def _text(value: Any) -> str:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)


@pytest.mark.long
def test_a_sink_follows_a_join(spark: SparkSession, tmp_path: Path, server: FakeServer) -> None:
    it = Paired(tmp_path / "project", spark, joined={**JOINED, "sinks": ALSO_TO})
    it.deliver(it.row(1, 10), it.row(2, 200))
    it.measure(it.station(7, 12))
    it.run()
    it.run()
    it.deliver(it.row(1, 11), it.row(2, op="d", minutes=200))
    it.measure(it.station(8, 15))
    it.run()
    assert len(it.pairs()) == 2
    assert_as_the_table(server, it.layout("joined"), *it.spec.declared("joined").target.row_keys)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", ["noted-every", "taken-every", "sent-every", "merged"])
def test_a_sink_follows_a_join_whose_batches_are_run_again(
    spark: SparkSession,
    tmp_path: Path,
    server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """Each row moves to another scope, whose batch is another one than that of the scope which it
    leaves.
    """
    it = Paired(tmp_path / "project", spark, joined={**JOINED, "sinks": ALSO_TO})
    it.deliver(*(it.row(number, 60 * number) for number in range(8)))
    it.measure(*(it.station(number, 60 * number + 5) for number in range(8)))
    it.run()
    it.run()
    monkeypatch.setattr(tables, "ROWS", 6)  # changes of many rows are several batches
    it.deliver(*(it.row(number, 60 * number + 600_000) for number in range(8)))
    it.measure(*(it.station(number, 60 * number + 600_005) for number in range(8)))
    it.run("flights", "weather")
    left, before = [2], server.sent

    def dying(name: str) -> None:
        left[0] -= name == step
        if left == [0]:
            raise Injected(name)

    with pytest.raises(Injected):
        it.drain("joined", reached=dying)
    it.run("joined")
    assert len(it.pairs()) == 8
    layout = it.layout("joined")
    assert_as_the_table(server, layout, *it.spec.declared("joined").target.row_keys)
    counts = [one.sinks["every"] for one in ledger_table.recent(layout, 99)]
    batches = [one for one in counts if one["sent"] + one["deleted"]]
    assert server.sent == len(batches) > before + 2, "each batch once"


@pytest.mark.long
def test_a_sink_follows_a_lookup(spark: SparkSession, tmp_path: Path, server: FakeServer) -> None:
    it = Paired(tmp_path / "project", spark, weather=AIRLINES, joined={**NAMED, "sinks": ALSO_TO})
    it.deliver(it.row(1, 10), it.row(2, 20, "BB"))
    it.measure({"code": "AA", "seq": 1, "name": "first"})
    it.run()
    it.run()
    it.measure({"code": "AA", "seq": 2, "name": "second"})
    it.run()
    assert_as_the_table(server, it.layout("joined"), "id")
    assert sorted(str(row["name"]) for row in server.rows.values()) == ["None", "second"]


@pytest.mark.long
def test_a_sink_follows_sessions(spark: SparkSession, tmp_path: Path, server: FakeServer) -> None:
    session = {"time": "at", "gap": "2 minutes", "group_by": ["k"], "measures": {"n": "count(*)"}}
    it = Derivation(tmp_path, spark, session=session, sinks=ALSO_TO)
    it.insert(*(event(number, 3 * number) for number in range(3)))
    it.derive()
    assert len(server.rows) == 3
    it.insert(event(5, 1), event(6, 2))  # joins the first two
    it.derive()
    assert len(server.rows) == 2
    assert_as_the_table(server, it.layout, "k", "session_start")


@pytest.mark.full
def test_a_sink_follows_a_history_whose_rows_are_named_by_a_struct(
    spark: SparkSession, tmp_path: Path, server: FakeServer
) -> None:
    it = Derivation(tmp_path, spark, appended=True, target=SEVERAL, sinks=ALSO_TO)
    it.insert(event(1, 0, 1), event(4, 10, 2))
    it.derive()
    it.insert(event(2, 5, 3))
    it.derive()
    assert len(server.rows) == 3
    assert_as_the_table(server, it.layout, "k", "__START_AT")


def test_a_row_whose_key_is_a_struct_can_be_given_up_as_an_error_spells_it(
    spark: SparkSession,
) -> None:
    kind = "struct<at:timestamp,n:int,text:string>"
    values = [(START + timedelta(microseconds=at), at, 'a"é') for at in range(3)]
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        rows = spark.createDataFrame([(1, value) for value in values], f"k bigint, s {kind}")
        spelt = '{"at":"2026-03-01T00:00:00.000001Z","n":1,"text":"a\\"é"}'
        typed = refusals.parsed(f'{{"k":1,"s":{spelt}}}')
        (found,) = rows.where(shares._is_key(rows, typed)).collect()
        assert found["s"]["n"] == 1
        assert rows.where(shares._is_key(rows, {"k": "1", "s": "no json"})).count() == 0
