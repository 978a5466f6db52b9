"""Topics drained into tables: every committed record once, whatever kills the drain."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from draindown.audit.recount import audit
from draindown.base.clock import now
from draindown.ledger import inputs
from draindown.planning import plan
from draindown.sources import intake
from draindown.spark.runs.dispatch import run_drain
from tests.kafka.cluster import Cluster
from tests.kafka.flow import KEYED, KafkaFlow

Flow = Callable[..., KafkaFlow]
STEPS = ("begun", "read", "kept", "quarantined", "remembered", "merged", "recorded")


def record(n: Any, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"value": json.dumps({"n": n}).encode(), "partition": partition, **more}


def test_records_become_rows_with_what_they_came_in(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic, 2)
    at = datetime(2026, 9, 21, 13, 46, 40, 123000, tzinfo=UTC)
    headers = [("trace", b"first"), ("other", b"x"), ("trace", b"last")]
    cluster.send(
        topic,
        [
            record(1, 1, key=b"k", headers=headers, timestamp=int(at.timestamp() * 1000)),
            record(2, 0),
        ],
    )
    f = flow()
    report = f.run()
    assert report.outcome == "done" and report.drain is not None
    assert (report.drain.before.units, report.drain.before.unit) == (2, "record")
    assert report.drain.after.units == 0
    rows = {row["n"]: row for row in f.rows()}
    assert (rows[1]["key"], rows[1]["trace"], rows[1]["at"]) == ("k", "last", at)
    assert (rows[2]["key"], rows[2]["trace"], rows[2]["part"], rows[2]["offset"]) == (
        None,
        None,
        0,
        0,
    )
    assert {
        n: (row["_origin"]["input"], row["_origin"]["position"]) for n, row in rows.items()
    } == {
        1: (f"{topic}/1", 0),
        2: (f"{topic}/0", 0),
    }
    (pinned,) = intake.slices(f.layout, 1)
    assert (
        rows[1]["_arrived_at"] == min(at, pinned.first_seen)
        and rows[2]["_arrived_at"] <= pinned.first_seen
    )
    read = {
        one.unit: (one.start, one.until, one.records)
        for one in inputs.of_batch(f.layout, (1, "drain", 0))
    }
    assert read == {f"{topic}/0": (0, 1, 1), f"{topic}/1": (0, 1, 1)}
    assert report.drain.unit == "range" and report.drain.totals["inputs"] == 2
    assert f.totals()["records"] == 2


@pytest.mark.full
def test_what_is_no_record_of_the_contract_is_refused_with_its_offset(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic)
    values = [
        b"\xff\xfe garbage",
        b"",
        b"   ",
        b"[1]",
        b'{"n": "x"}',
        None,
        b'{"n": 1}',
        b'{"n": 2, "key": "mine"}',
    ]
    cluster.send(
        topic,
        [
            {"value": value, "key": b"\xff"} if value == b'{"n": 1}' else {"value": value}
            for value in values
        ],
    )
    f = flow()
    f.run()
    refused = {
        row["origin"]["position"]: (row["origin"]["input"], row["reason"]) for row in f.quarantine()
    }
    unit = f"{topic}/0"
    assert refused == {
        0: (unit, "malformed"),
        1: (unit, "malformed"),
        2: (unit, "malformed"),
        3: (unit, "malformed"),
        4: (unit, "type"),
        5: (unit, "null_value"),
        6: (unit, "type"),  # its key is no text
    }
    (kept,) = f.rows()
    assert (kept["n"], kept["key"], json.loads(kept["_rescued_data"])) == (2, None, {"key": "mine"})


@pytest.mark.long
def test_a_column_is_taken_from_a_field_of_another_name(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    """Also from one that is called like a place, or like another column."""
    cluster.create(topic)
    sent: list[dict[str, Any]] = [
        {"Invoice No": "R-1", "Net €": "1.234,50", "key": "k", "at": 7},
        {"Invoice No": "R-2", "Net €": "12.34", "key": "k", "at": 8},
        {"invoice": "R-3", "Net €": "1,0"},
    ]
    cluster.send(topic, [{"value": json.dumps(one).encode(), "key": b"K"} for one in sent])
    columns: dict[str, Any] = {
        "invoice": {"type": "string not null", "from": "field:Invoice No"},
        "net": {
            "type": "decimal(9,2)",
            "from": "field:Net €",
            "decimal_separator": ",",
            "thousands_separator": ".",
        },
        "inner": {"type": "string", "from": "field:key"},
        "key": {"type": "string", "from": "key"},
        "n": {"type": "int", "from": "field:at"},
        "at": {"type": "timestamp not null", "from": "timestamp"},
    }
    f = flow(columns=columns, target={"keys": ["invoice"], "sequence_by": ["at"]})
    f.run()
    (row,) = f.rows()
    assert [row[name] for name in ("invoice", "net", "inner", "key", "n")] == [
        "R-1",
        Decimal("1234.50"),
        "k",
        "K",
        7,
    ]
    refused = {row["origin"]["position"]: (row["reason"], row["field"]) for row in f.quarantine()}
    assert refused == {1: ("type", "net"), 2: ("not_null", "invoice")}
    found = audit(f.spec, "f", root=f.home)
    assert found.residues == [] and found.unlooked == [] and found.seen["raw records"] == 3


def test_a_drain_reads_what_is_new_and_an_idle_plan_says_so(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic, 3)
    f = flow()
    for number, parts in enumerate([(0, 1), (0,)]):
        cluster.send(topic, [record(number, at) for at in parts for _ in range(10)])
        found, _ = plan.plan(f.request(), now())
        assert found.drain and (found.backlog.units, found.backlog.unit) == (
            10 * len(parts),
            "record",
        )
        assert found.batches == 1
        assert found.backlog.oldest_seconds is not None and found.backlog.oldest_seconds < 60
        f.run()
    assert f.offsets() == [
        (part, offset) for part, end in ((0, 20), (1, 10)) for offset in range(end)
    ]
    found, _ = plan.plan(f.request(), now())
    assert not found.drain and found.backlog.units == 0
    assert f.run().outcome == "idle"


@pytest.mark.long
def test_a_batch_holds_no_more_records_than_asked_for(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic, 2)
    cluster.send(topic, [record(1, 0)] * 70 + [record(1, 1)] * 30)
    f = flow(source={"max_offsets_per_trigger": 40})
    f.run()
    assert [row["records"] for row in f.ledger()] == [40, 40, 20]
    assert f.offsets() == [(0, offset) for offset in range(70)] + [
        (1, offset) for offset in range(30)
    ]


@pytest.mark.full
def test_a_null_value_deletes_the_key_and_an_older_record_does_not_bring_it_back(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic)
    sent = [
        (b"a", b'{"n": 1}', 1000),
        (b"b", b'{"n": 2}', 1000),
        (b"a", None, 3000),
        (b"a", b'{"n": 3}', 2000),
    ]
    cluster.send(topic, [{"key": k, "value": v, "timestamp": at} for k, v, at in sent])
    f = flow(**KEYED)
    f.run()
    assert [(row["user"], row["n"]) for row in f.rows()] == [("b", 2)]
    assert f.totals()["quarantined"] == 0


@pytest.mark.parametrize(
    ("target", "steps"),
    [
        ("keyed", ("merged",)),  # `kept` is in test_raw.py
        *(
            pytest.param(target, STEPS, marks=pytest.mark.long, id=f"{target}-all")
            for target in ("append", "keyed")
        ),
    ],
)
def test_killed_in_any_gap_every_record_is_there_once(
    cluster: Cluster, topic: str, flow: Flow, target: str, steps: Sequence[str]
) -> None:
    """Of the append table each batch dies once, of the keyed one a batch dies in gap after gap."""
    cluster.create(topic, 2)
    keyed = target == "keyed"
    f = flow(source={"max_offsets_per_trigger": 12}, **(KEYED if keyed else {}))
    sent = 0
    for step in steps:
        cluster.send(
            topic,
            [
                record(n if n % 5 else "bad", n % 2, key=f"k{n}".encode())
                for n in range(sent, sent + 10)
            ],
        )
        sent += 10
        assert f.dies_at(step), step
        if not keyed:
            f.run()
    f.run()
    kept = f.layout.tables.raw.rows(
        "select input, position from t where part = 'records' order by input, position"
    )
    places = [(f"{topic}/{part}", offset) for part in (0, 1) for offset in range(sent // 2)]
    assert [(row["input"], row["position"]) for row in kept] == places
    found = audit(f.spec, "f", root=f.home)
    assert found.residues == [] and found.unlooked == []
    assert found.seen["raw records"] == sent
    good = [n for n in range(sent) if n % 5]
    assert sorted(row["n"] for row in f.rows("n")) == good
    refused = [(row["origin"]["input"], row["origin"]["position"]) for row in f.quarantine()]
    assert len(refused) == len(set(refused)) == sent - len(good)
    assert f.totals()["records"] == sent


@pytest.mark.full
def test_aborted_records_are_not_read_and_what_a_transaction_leaves_is_no_loss(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic)
    for number, commit in enumerate([True, False, True]):
        cluster.send_transaction(topic, [record(number)] * 3, commit=commit, id=topic)
    f = flow()
    with pytest.raises(Exception) as red:
        f.run()
    assert getattr(red.value, "code", "") == "records-absent"
    assert f.offsets() == []
    f = flow(kafka={"transactional": True})
    f.run()
    assert sorted(row["n"] for row in f.rows("n")) == [0, 0, 0, 2, 2, 2]


@pytest.mark.long
def test_records_of_an_open_transaction_wait(cluster: Cluster, topic: str, flow: Flow) -> None:
    cluster.create(topic)
    cluster.send(topic, [record(0)])
    producer = cluster.producer(transactional_id=topic)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, record(1)["value"])
    assert producer.flush(20) == 0
    cluster.send(topic, [record(2)])
    f = flow(kafka={"transactional": True})
    f.run()
    assert [row["n"] for row in f.rows("n")] == [0]
    producer.commit_transaction(20)
    cluster.until(lambda: bool(f.run().drain and len(f.rows("n")) == 3))


@pytest.mark.long
def test_a_compacted_topic_is_read_with_its_gaps(cluster: Cluster, topic: str, flow: Flow) -> None:
    cluster.create(
        topic,
        cleanup_policy="compact",
        segment_ms=100,
        min_cleanable_dirty_ratio=0.01,
        max_compaction_lag_ms=100,
    )
    for number in range(4):
        cluster.send(topic, [record(number, key=f"k{at}".encode()) for at in range(10)])
        cluster.pause(0.2)
    cluster.send(topic, [record(9, key=b"last")])
    cluster.until(lambda: cluster.count(topic) < 41)
    f = flow(**KEYED)
    f.run()
    rows = {row["user"]: row["n"] for row in f.rows()}
    assert rows == {f"k{at}": 3 for at in range(10)} | {"last": 9}


def test_text_is_one_column_and_a_blank_record_is_a_record(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic)
    cluster.send(topic, [{"value": b"one\ntwo"}, {"value": b""}, {"value": b"  "}])
    columns = {"value": "string", "offset": {"type": "bigint", "from": "offset"}}
    f = flow(source={"format": "text"}, columns=columns)
    f.run()
    assert {row["offset"]: row["value"] for row in f.rows()} == {0: "one\ntwo", 1: "", 2: "  "}


@pytest.mark.long
def test_a_flow_begins_where_it_is_told(cluster: Cluster, topic: str, flow: Flow) -> None:
    cluster.create(topic, 2)
    cluster.send(topic, [record(1, 0, timestamp=1_000_000), record(2, 0, timestamp=2_000_000)])
    latest = flow(kafka={"starting_offsets": "latest"})
    latest.run()
    cluster.send(topic, [record(3, 0), record(4, 1)])
    latest.run()
    assert sorted(row["n"] for row in latest.rows("n")) == [3, 4]


@pytest.mark.long
def test_a_flow_begins_at_a_time(cluster: Cluster, topic: str, flow: Flow) -> None:
    cluster.create(topic, 2, message_timestamp_type="CreateTime", retention_ms=-1)
    cluster.send(topic, [record(n, 0, timestamp=1_790_000_000_000 + n * 1000) for n in range(5)])
    f = flow(kafka={"starting_offsets": "2026-09-21T14:13:22Z"})
    f.run()
    assert sorted(row["n"] for row in f.rows("n")) == [2, 3, 4]


@pytest.mark.full
def test_large_records_pass_and_those_above_the_limit_are_refused(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic)
    large = {"value": json.dumps({"n": 1, "text": "x" * 1024**2}).encode()}
    cluster.send(topic, [large, record(2)], message_max_bytes=8 * 1024**2)
    f = flow(source={"max_record_bytes": "1mb"})
    f.run()
    assert [(row["origin"]["position"], row["reason"]) for row in f.quarantine()] == [
        (0, "too_large")
    ]
    assert [row["n"] for row in f.rows("n")] == [2]


@pytest.mark.full
def test_a_refused_record_is_replayed_with_what_it_came_in(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic, 2)
    at = 1_790_000_000_123
    cluster.send(
        topic,
        [record("x", 1, key=b"k\x00", headers=[("trace", b"\xff"), ("trace", None)], timestamp=at)],
    )
    cluster.send(
        topic, [record(1, 1, key=b"k", headers=[("trace", b"t")], timestamp=at), record(1, 0)]
    )
    f = flow(rules={"large": "n > 100"})
    f.run()
    assert len(f.quarantine()) == 3 and f.rows() == []
    again = flow()
    request = again.request(quarantine_ids=tuple(row["quarantine_id"] for row in f.quarantine()))
    assert f.spark is not None
    run_drain(request, f.spark, progress=lambda _: None)
    rows = {(row["part"], row["offset"]): row for row in again.rows()}
    assert set(rows) == {(1, 1), (0, 0)}
    assert (rows[1, 1]["key"], rows[1, 1]["trace"], rows[1, 1]["n"]) == ("k", "t", 1)
    assert rows[1, 1]["at"] == datetime(2026, 9, 21, 14, 13, 20, 123000, tzinfo=UTC)
    (pinned,) = intake.slices(f.layout, 1)
    assert rows[1, 1]["_arrived_at"] == min(rows[1, 1]["at"], pinned.first_seen)
    assert rows[1, 1]["_origin"]["position"] == 1
    assert {row["arrived_at"] <= row["first_seen"] for row in f.quarantine()} == {True}
    assert (rows[0, 0]["key"], rows[0, 0]["trace"]) == (None, None)


@pytest.mark.long
def test_a_table_takes_batches_of_several_partitions_and_of_one(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic, 2)
    f = flow()
    for parts in ((0, 1), (0,), (1, 0)):
        cluster.send(topic, [record(part, part) for part in parts])
        f.run()
    assert f.offsets() == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
