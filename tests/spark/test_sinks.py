"""Batches that go to sinks too: the table, the sinks and the ledger say the same, wherever the
driver dies.

The sinks are in memory. What they should hold is the table as deltalake reads it, filtered in
Python.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError, TransientError
from draindown.config.models import PipelineSpec
from draindown.config.sinks import FlowSink
from draindown.flow import sink_columns, sink_state
from draindown.ledger.rows import SINK_FATES
from draindown.runs.request import Again
from draindown.sinks import registry
from draindown.spark.runs import sink_fill
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_input import replay as replay_input
from draindown.spark.runs.replay_rows import replay as replay_rows
from draindown.spark.runs.withdrawal import withdraw
from draindown.spark.session import INTERPRETED, configured
from draindown.spark.targets import outlets
from draindown.spark.targets.append import Appended
from draindown.spark.targets.shares import Judged, fate_at
from draindown.spark.targets.table_files import TableFiles
from tests.derivation import Derivation
from tests.landing import COLUMNS, Injected, Landing
from tests.sinks.fake import FakeServer, FakeSink

URL = "postgresql://u:${secret:X}@host:5432/d"
EVERYTHING = Again(since=datetime(2000, 1, 1, tzinfo=UTC), until=datetime(2100, 1, 1, tzinfo=UTC))


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, FakeServer]]:
    """The servers by the name of the table that a sink writes to."""
    found: dict[str, FakeServer] = {}

    def made(spec: FlowSink, place: Any, environ: Mapping[str, str]) -> FakeSink:
        assert spec.postgres is not None
        return FakeSink(found.setdefault(spec.postgres.table, FakeServer()), place)

    monkeypatch.setitem(registry.MAKERS, "postgres", made)
    yield found


@pytest.fixture(autouse=True)
def interpreted(spark: SparkSession) -> Iterator[None]:
    """A dozen rows are judged faster by plans that nobody compiles."""
    with configured(spark, INTERPRETED):
        yield


def sink(table: str, **more: Any) -> dict[str, Any]:
    return {"postgres": {"url": URL, "table": table}, **more}


def record(id_: str, seq: int, **more: Any) -> str:
    return json.dumps({"id": id_, "seq": seq, **more})


def table(path: str) -> list[dict[str, Any]]:
    """The rows of a table, by another reader."""
    found = QueryBuilder().register("t", DeltaTable(path)).execute("select * from t")
    rows: list[dict[str, Any]] = pa.RecordBatchReader.from_stream(found).read_all().to_pylist()
    return rows


def batches(flow: Landing) -> list[dict[str, Any]]:
    return [row | {"sinks": json.loads(row["sinks"])} for row in flow.ledger()]


def assert_sums(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        for counts in row["sinks"].values():
            assert sum(counts[fate] for fate in SINK_FATES) == counts.get(
                "quarantined", row["applied"]
            ), row


ALSO_TO = {
    "every": sink("every", columns=["id", "a"]),
    "flagged": sink("flagged", where="a > 10", columns={"id": "key", "a": "amount"}),
}


def assert_agree(flow: Landing, servers: Mapping[str, FakeServer]) -> None:
    rows = table(flow.layout.tables.target.path)
    assert servers["every"].rows == {(row["id"],): {"id": row["id"], "a": row["a"]} for row in rows}
    flagged = [row for row in rows if row["a"] is not None and row["a"] > 10]
    assert servers["flagged"].rows == {
        (row["id"],): {"key": row["id"], "amount": row["a"]} for row in flagged
    }
    assert_sums(batches(flow))


LATER = (
    *("connecting", "remembered", "counted-every", "noted-every", "portion-every", "sent-every"),
    *(
        "counted-flagged",
        "noted-flagged",
        "portion-flagged",
        "taken-flagged",
        "sent-flagged",
        "merged",
    ),
)
CHANGES = (
    record("1", 2, a=5),  # matched, does not now: deleted there
    record("2", 2, a=50),  # did not match, does now
    record("3", 2, op="d"),  # matched, and goes
    record("4", 2, op="d"),  # did not match, and goes
    record("5", 1, a=70),  # new
    record("6", 1, op="d"),  # deletes what was never there
    record("7", 0, a=1),  # too late: the table stays as it is
    record("8", 1, a=90),  # as new as what is there, and greater
    record("9", 1, a=10),  # as new as what is there, and less
)
FIRST = {"1": 11, "2": 5, "3": 33, "4": 4, "7": 37, "8": 20, "9": 20}


@pytest.mark.full
@pytest.mark.parametrize(
    "fault",
    ["taken-every", *(pytest.param(one, marks=pytest.mark.long) for one in LATER)],
)
def test_a_keyed_flow_its_sinks_and_its_ledger_agree_wherever_it_dies(
    spark: SparkSession, landing: Callable[..., Landing], servers: dict[str, FakeServer], fault: str
) -> None:
    flow = landing(
        {
            "target": {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"},
            "sinks": ALSO_TO,
        }
    )
    flow.deliver(*[record(id_, 1, a=a) for id_, a in FIRST.items()])
    flow.apply(spark)
    assert_agree(flow, servers)
    flow.deliver(*CHANGES)
    with pytest.raises(Injected):
        flow.apply(spark, fault=fault)
    flow.apply(spark)
    assert_agree(flow, servers)
    assert [server.sent for server in servers.values()] == [2, 2], (
        "a batch that a sink has is not sent again"
    )
    fates = batches(flow)[-1]["sinks"]
    assert fates["every"] == {"sent": 4, "deleted": 2, "filtered": 1, "unsendable": 0}
    assert fates["flagged"] == {"sent": 3, "deleted": 2, "filtered": 2, "unsendable": 0}


@pytest.mark.long
@pytest.mark.parametrize("fault", ["noted-every", "taken-every", "sent-flagged"])
def test_older_rows_that_are_replayed_change_nothing_at_the_sinks(
    spark: SparkSession, landing: Callable[..., Landing], servers: dict[str, FakeServer], fault: str
) -> None:
    """A rule refused one row at first; a replay without that rule brings it, beside rows that were
    superseded.
    """
    target = {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"}
    flow = landing({"target": target, "sinks": ALSO_TO, "rules": {"sane": "a is null or a >= 0"}})
    flow.deliver(
        *[record(id_, 1, a=a) for id_, a in FIRST.items()],
        record("10", 1, a=-5),
        record("11", 1, a=-20),
    )
    flow.drain(spark)
    flow.deliver(*CHANGES)
    flow.drain(spark)
    assert_agree(flow, servers)
    before = {name: dict(server.rows) for name, server in servers.items()}
    content = dict(flow.document["flows"]["f"], rules={"sane": "a is null or a >= -9"})
    flow.spec = PipelineSpec.model_validate({**flow.document, "flows": {"f": content}})
    again = partial(
        replay_input, flow.request("again", replay=EVERYTHING), spark, progress=lambda line: None
    )
    with pytest.raises(Injected):
        again(reached=_dying(fault))
    again(reached=lambda step: None)
    assert_agree(flow, servers)
    assert servers["every"].rows == before["every"] | {("10",): {"id": "10", "a": -5}}
    assert servers["flagged"].rows == before["flagged"]
    sent = [server.sent for server in servers.values()]
    again(reached=lambda step: None)
    assert [server.sent for server in servers.values()] == sent, (
        "a replay that is done sends nothing"
    )
    assert_agree(flow, servers)


@pytest.mark.long
def test_other_batches_wait_for_one_that_a_sink_has_and_the_table_lacks(
    spark: SparkSession, landing: Callable[..., Landing], servers: dict[str, FakeServer]
) -> None:
    flow = landing(
        {"target": {"keys": ["id"], "sequence_by": ["seq"]}, "sinks": {"every": ALSO_TO["every"]}}
    )
    flow.deliver(record("1", 1, a=1), '{"id": 5}')
    with pytest.raises(Injected):
        flow.apply(spark, fault="sent-every")
    with pytest.raises(TransientError, match="not in the table yet") as raised:
        sink_state.refuse_in_flight(flow.layout)
    assert raised.value.code == "sink-batch-in-flight"
    flow.apply(spark)
    sink_state.refuse_in_flight(flow.layout)
    assert_sums(batches(flow))


@pytest.mark.long
def test_what_a_sink_refuses_is_given_up_as_a_row_and_as_a_batch_and_filled_in_portions(
    spark: SparkSession,
    landing: Callable[..., Landing],
    servers: dict[str, FakeServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = landing(
        {"target": {"keys": ["id"], "sequence_by": ["seq"]}, "sinks": {"every": ALSO_TO["every"]}}
    )
    server = servers.setdefault("every", FakeServer())

    def refused_and(act: Callable[[], Any]) -> None:
        with pytest.raises(TerminalError) as raised:
            act()
        assert raised.value.code == "sink-refused"

    def given_up(id_: str) -> None:
        assert (
            sink_state.skip_row(flow.layout, "every", {"id": id_}, by="me", reason="broken")
            is not None
        )

    server.refused = {("2",)}
    flow.deliver(*[record(str(at), 1, a=at) for at in range(5)])
    refused_and(lambda: flow.drain(spark))
    assert server.rows == {}
    given_up("2")
    flow.drain(spark)
    assert sorted(server.rows) == [("0",), ("1",), ("3",), ("4",)]
    assert batches(flow)[-1]["sinks"]["every"] == {
        "sent": 4,
        "deleted": 0,
        "filtered": 0,
        "unsendable": 1,
    }
    (kept,) = table(flow.layout.tables.unsendable.path)
    assert json.loads(kept["key"]) == {"id": "2"} and kept["reason"].startswith(
        "given-up: broken (by me, "
    )

    flow.deliver(record("5", 1, a=5), record("2", 2, a=22))
    refused_and(lambda: flow.drain(spark))
    assert len(sink_state.give_up(flow.layout, "every", by="me", reason="later")) == 1
    flow.drain(spark)
    assert ("5",) not in server.rows and server.sent == 1, "a batch that was given up is not sent"
    assert batches(flow)[-1]["sinks"]["every"] == {
        "sent": 0,
        "deleted": 0,
        "filtered": 0,
        "unsendable": 2,
    }
    assert [one.subject for one in sink_columns.findings(flow.request(), flow.layout)] == ["every"]
    flow.deliver(record("6", 1, a=6))  # a file of its own in the table
    flow.drain(spark)
    assert_sums(batches(flow))

    read: list[int] = []
    portion = TableFiles.portion
    monkeypatch.setattr(
        TableFiles, "portion", lambda files, at: read.append(at) or portion(files, at)
    )
    monkeypatch.setattr(sink_fill, "PORTION", 1)
    fill = partial(sink_fill.fill, flow.request(), spark, "every", progress=lambda line: None)
    refused_and(fill)
    given_up("2")
    done = fill()
    assert max(read) >= 1, "there are several portions"
    assert (done.unsendable, done.deleted) == (1, 0)
    assert {key for (key,) in server.rows} == {"0", "1", "3", "4", "5", "6"}
    assert sink_columns.findings(flow.request(), flow.layout) == []
    server.refused = set()
    flow.deliver(record("2", 3, a=23))
    flow.drain(spark)
    assert server.rows[("2",)] == {"id": "2", "a": 23}, "what was given up was one row of one batch"
    assert_sums(batches(flow))


@pytest.mark.parametrize(
    "faults", [("sent-dead",), pytest.param(("sent-big", "sent-dead"), marks=pytest.mark.long)]
)
def test_an_append_flow_sends_each_row_by_its_origin_and_what_it_refuses_once(
    spark: SparkSession,
    landing: Callable[..., Landing],
    servers: dict[str, FakeServer],
    faults: Sequence[str],
) -> None:
    sinks = {
        "big": sink("big", where="a > 10", columns=["id", "b"]),
        "dead": sink("dead", columns=["quarantine_id", "reason", "raw"], **{"from": "quarantine"}),
    }
    flow = landing({"sinks": sinks})
    flow.deliver(
        record("1", 1, a=11, b="x"),
        record("2", 1, a=1),
        record("3", 1, a=12, b="\u0000"),
        "{broken",
    )
    for fault in faults:
        with pytest.raises(Injected):
            flow.apply(spark, fault=fault)
    flow.apply(spark)
    flow.deliver(record("1", 1, a=13, b="y"))
    flow.apply(spark)
    rows = [
        row
        for row in table(flow.layout.tables.target.path)
        if row["a"] > 10 and row["b"] != "\u0000"
    ]
    keys = [f"{row['_origin']['input']}:{row['_origin']['position']}" for row in rows]
    assert sorted(servers["big"].rows) == sorted((key,) for key in keys)
    assert {row["b"] for row in servers["big"].rows.values()} == {"x", "y"}
    (dead,) = servers["dead"].rows.values()
    assert (dead["reason"], dead["raw"]) == ("malformed", "{broken")
    assert [row["sinks"]["big"]["unsendable"] for row in batches(flow)] == [1, 0]
    (kept,) = table(flow.layout.tables.unsendable.path)
    assert (kept["sink"], kept["reason"], kept["batch"]) == ("big", "nul-in-text: b", 0)
    assert_sums(batches(flow))


def test_one_reading_of_the_batch_serves_all_sinks(
    spark: SparkSession,
    landing: Callable[..., Landing],
    servers: dict[str, FakeServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows are computed once, and persisted before they are counted and sent."""
    asked, kept = [], []
    changes, shares = Appended.changes, Judged.shares

    def counted(self: Appended, was: Any) -> Any:
        asked.append(len(was))
        return changes(self, was)

    def looked(self: Judged) -> Any:
        kept.append(self._rows.storageLevel.useMemory)
        return shares(self)

    monkeypatch.setattr(Appended, "changes", counted)
    monkeypatch.setattr(Judged, "shares", looked)
    sinks = {f"s{at}": sink(f"s{at}", where="a > 3", columns=["id", "a"]) for at in range(3)}
    flow = landing({"sinks": sinks})
    flow.deliver(*[record(str(at), 1, a=at) for at in range(20)])
    flow.apply(spark)
    assert [len(server.rows) for server in servers.values()] == [16, 16, 16]
    assert (asked, kept) == ([3], [True])


@pytest.mark.long
def test_each_sink_costs_the_jobs_that_send_its_rows_and_a_flow_without_sinks_none(
    spark: SparkSession,
    tmp_path: Path,
    servers: dict[str, FakeServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = list[str]()
    monkeypatch.setattr(
        sink_state.SinkState, "read", _told(looks, "state", sink_state.SinkState.read)
    )
    for look in ("_refused_rows", "_refused"):
        monkeypatch.setattr(outlets, look, _told(looks, look, getattr(outlets, look)))

    def jobs(name: str, sinks: int) -> int:
        sinks = {f"{name}{at}": sink(f"{name}{at}", columns=["id", "a"]) for at in range(sinks)}
        flow = Landing(
            tmp_path / name,
            columns=COLUMNS,
            target={"keys": ["id"], "sequence_by": ["seq"]},
            sinks=sinks,
        )
        for seq in (1, 2):
            flow.deliver(*[record(str(at), seq, a=at) for at in range(9)])
            looks.clear()
            spark.sparkContext.setJobGroup(f"{name} {seq}", "")
            flow.apply(spark)
        assert bool(looks) == bool(sinks) == Path(flow.layout.sinks).exists()
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"{name} 2"))

    none, one, two, three = (
        jobs(name, at) for at, name in enumerate(("none", "one", "two", "three"))
    )
    assert 0 < none < one < two
    assert two - one == three - two <= 2, (
        "one more sink reads the batch once more from memory: no scan, no commit"
    )
    assert one - none <= 6


def _told(looks: list[str], what: str, right: Callable[..., Any]) -> Callable[..., Any]:
    def look(*given: Any, **named: Any) -> Any:
        looks.append(what)
        return right(*given, **named)

    return look


def test_a_derived_flow_sends_what_differs(
    spark: SparkSession, tmp_path: Path, servers: dict[str, FakeServer]
) -> None:
    sinks = {
        "counts": sink("counts"),
        "busy": sink("busy", where="n > 1", columns=["k", "n"]),
    }
    per = {"keys": ["k"], "sql": "select k, count(*) as n, avg(x) as x from source group by k"}
    flow = Derivation(tmp_path, spark, query=per, sinks=sinks)
    flow.insert(
        (1, 1, "a", None, 1, 0.1, ""), (2, 1, "a", None, 1, 0.2, ""), (3, 1, "b", None, 1, 0.3, "")
    )
    flow.derive()
    flow.insert((4, 1, "b", None, 1, 0.4, ""), (5, 1, "c", None, 1, 0.5, ""))
    flow.sql("delete from {t} where id = 1")
    consumed = flow.consumed
    with pytest.raises(Injected):
        flow.derive(reached=_dying("sent-busy"))
    flow.consumed = consumed
    # a mean may differ in its last digits
    with configured(spark, {"spark.sql.shuffle.partitions": "7"}):
        flow.derive()
    rows = table(flow.layout.tables.target.path)
    assert servers["counts"].rows == {
        (row["k"],): {n: row[n] for n in ("k", "n", "x")} for row in rows
    }
    assert servers["busy"].rows == {
        (row["k"],): {n: row[n] for n in ("k", "n")} for row in rows if row["n"] > 1
    }
    assert [server.sent for server in servers.values()] == [2, 2]


@pytest.mark.full
@pytest.mark.parametrize("rebuilt", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_fill_makes_a_sink_that_was_added_later_as_the_table(
    spark: SparkSession,
    landing: Callable[..., Landing],
    servers: dict[str, FakeServer],
    rebuilt: bool,
) -> None:
    flow = landing({"sinks": {}, "target": {"keys": ["id"], "sequence_by": ["seq"]}})
    flow.deliver(*[record(str(at), 1, a=at) for at in range(8, 15)])
    flow.drain(spark)
    content = dict(flow.document["flows"]["f"], sinks=ALSO_TO)
    flow.spec = PipelineSpec.model_validate({**flow.document, "flows": {"f": content}})
    assert [one.subject for one in sink_columns.findings(flow.request(), flow.layout)] == [
        "every",
        "flagged",
    ]
    servers["flagged"] = FakeServer(rows={("99",): {"key": "99", "amount": 99}})
    servers["every"] = FakeServer()

    def refuses(step: str) -> None:
        raise TerminalError("sink-missing", tried=step, found="no such table")

    servers["every"].fault = refuses
    before = sink_columns.findings(flow.request(), flow.layout)
    with pytest.raises(TerminalError):
        sink_fill.fill(flow.request(), spark, "every", progress=lambda line: None)
    assert sink_columns.findings(flow.request(), flow.layout) == before, "no fill was begun"

    def dies(step: str) -> None:
        if step == "recorded" and servers["every"].sent == 1:
            raise Injected

    servers["every"].fault = dies
    with pytest.raises(Injected):
        sink_fill.fill(flow.request(), spark, "every", progress=lambda line: None)
    servers["every"].fault = lambda step: None
    done = [
        sink_fill.fill(flow.request(), spark, name, progress=lambda line: None) for name in ALSO_TO
    ]
    assert_agree(flow, servers)
    assert [one.deleted for one in done] == [0, 1]
    assert sink_columns.findings(flow.request(), flow.layout) == []
    assert servers["every"].sent == 2, "the portion that was there is not sent again"
    if not rebuilt:
        return
    flow.deliver(record("8", 2, a=100))
    rebuild(flow.request(), spark, progress=lambda line: None)
    assert [server.sent for server in servers.values()] == [2, 2], "a rebuild sends nothing"
    assert [one.subject for one in sink_columns.findings(flow.request(), flow.layout)] == [
        "every",
        "flagged",
    ]
    for name in ALSO_TO:
        sink_fill.fill(flow.request(), spark, name, progress=lambda line: None)
    assert_agree(flow, servers)


@pytest.mark.full
def test_a_withdrawal_deletes_at_the_sinks_and_a_release_writes_again(
    spark: SparkSession, landing: Callable[..., Landing], servers: dict[str, FakeServer]
) -> None:
    flow = landing({"target": {"keys": ["id"], "sequence_by": ["seq"]}, "sinks": ALSO_TO})
    flow.deliver(record("1", 1, a=50), record("2", 1, a=5), record("3", 1, a=60))
    flow.drain(spark)
    low = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", "max_value": 55}}
    asked = flow.request(run_id="w", suite={"name": "s", "expectations": [low], "meta": {}})
    with pytest.raises(Injected):
        withdraw(
            asked,
            spark,
            f"{low['type']}:a",
            agreed=lambda plan: True,
            reached=_dying("sent-flagged"),
        )
    withdraw(asked, spark, f"{low['type']}:a", agreed=lambda plan: True)
    assert_agree(flow, servers)
    assert sorted(servers["every"].rows) == [("1",), ("2",)]
    assert batches(flow)[-1]["sinks"]["flagged"] == {
        "sent": 0,
        "deleted": 1,
        "filtered": 0,
        "unsendable": 0,
    }
    ids = tuple(row["quarantine_id"] for row in flow.quarantine())
    replay_rows(flow.request(run_id="q", quarantine_ids=ids), spark)
    assert_agree(flow, servers)
    assert sorted(servers["flagged"].rows) == [("1",), ("3",)]


def _dying(fault: str) -> Callable[[str], None]:
    def reached(step: str) -> None:
        if step == fault:
            raise Injected(step)

    return reached


def test_the_fate_of_a_row_at_a_sink_follows_from_the_row_before_and_after(
    spark: SparkSession,
) -> None:
    """All combinations, in one query. A row is what the sink holds if, and only if, it matches
    after the batch.
    """
    cases = [
        (fate, was, matches)
        for fate in ("upsert", "delete", None)
        for was in (True, False)
        for matches in (True, False)
    ]
    frame = spark.createDataFrame(cases, "fate string, was boolean, matches boolean")
    found = frame.select(
        "*", fate_at(F.col("fate"), F.col("was"), F.col("matches")).alias("to")
    ).collect()
    for row in found:
        holds_before = row["was"]
        gone = row["fate"] == "delete"
        holds_after = holds_before if row["fate"] is None else row["matches"] and not gone
        after = {"upsert": True, "delete": False, None: holds_before}[row["to"]]
        assert after == holds_after, row
        assert row["to"] is not None or holds_before == holds_after


@pytest.mark.parametrize(("of", "column"), [("table", "id"), ("quarantine", "reason")])
def test_a_condition_that_spark_can_not_resolve_is_named_before_anything_is_sent(
    spark: SparkSession,
    landing: Callable[..., Landing],
    servers: dict[str, FakeServer],
    of: str,
    column: str,
) -> None:
    sinks = {"every": sink("every", where=f"map(1, 2) = {column}", **{"from": of})}
    flow = landing({"target": {"keys": ["id"], "sequence_by": ["seq"]}, "sinks": sinks})
    server = servers.setdefault("every", FakeServer())
    flow.deliver(record("1", 1), "no record")
    with pytest.raises(TerminalError) as raised:
        flow.drain(spark)
    assert raised.value.code == "sink-condition" and "map(1, 2)" in raised.value.tried
    assert server.rows == {} and not flow.ledger()
