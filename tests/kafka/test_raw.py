"""Raw records in the lake: kept once, before all else, and read again when the topic no longer has
them.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from draindown.audit.recount import audit
from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.recovery import reset
from draindown.runs.request import Again
from draindown.sources import raw
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_input import replay
from tests.kafka.cluster import Cluster
from tests.kafka.flow import KEYED, KafkaFlow, once

Flow = Callable[..., KafkaFlow]
GARBAGE = b"\xff\x00\xfe{"


def record(n: int, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"value": b'{"n": %d}' % n, "key": b"k%d" % n, "partition": partition, **more}


def held(flow: KafkaFlow) -> list[dict[str, Any]]:
    """The raw records of a flow, by unit and position."""
    log = flow.layout.tables.raw
    return (
        log.rows("select * from t where part = 'records' order by input, position")
        if log.exists
        else []
    )


def places(rows: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["input"], row["position"]) for row in rows]


def audited(flow: KafkaFlow, records: int, *, unlooked: Sequence[str] = ()) -> None:
    """Audit a flow: nothing is wrong, all raw records are recounted, and all that was not looked at
    is named.
    """
    found = audit(flow.spec, "f", root=flow.home)
    assert found.residues == [] and found.seen["raw records"] == records
    assert len(found.unlooked) == len(unlooked) and all(
        map(str.__contains__, found.unlooked, unlooked)
    )


def begin_again(flow: KafkaFlow, *, accept_missing: bool = False) -> None:
    request = flow.request()
    reset.begin(
        request, reset.plan(request, table_aside=True), by="t", accept_missing=accept_missing
    )


@pytest.mark.full
def test_what_a_record_came_in_and_its_bytes_are_kept(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic, 2)
    headers = [("trace", b"a"), ("trace", GARBAGE)]
    cluster.send(topic, [record(1, 1, headers=headers, timestamp=1_790_000_000_123)])
    cluster.send(
        topic, [{"value": value, "partition": 0} for value in (GARBAGE, b"", None, b"x" * 100_000)]
    )
    f = flow()
    f.run()
    rows = held(f)
    assert places(rows) == [(f"{topic}/0", n) for n in range(4)] + [(f"{topic}/1", 0)]
    assert [row["value"] for row in rows] == [GARBAGE, b"", None, b"x" * 100_000, b'{"n": 1}']
    last = rows[-1]
    assert [(one["key"], one["value"]) for one in last["headers"]] == headers
    assert (last["key"], last["timestamp"].timestamp()) == (b"k1", 1_790_000_000.123)
    assert [(one.unit, one.start, one.until) for one in raw.ranges(f.layout)] == [
        (f"{topic}/0", 0, 4),
        (f"{topic}/1", 0, 1),
    ]
    assert stat.S_IMODE(Path(f.layout.tables.raw.path).stat().st_mode) == 0o700


@pytest.mark.full
def test_a_batch_that_died_after_it_was_kept_reads_no_broker(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic)
    cluster.send(topic, [record(n) for n in range(5)])
    f = flow()
    assert f.dies_at("kept")
    cluster.trim(topic, 0, 5)
    f.run()
    assert f.offsets() == [(0, n) for n in range(5)]


@pytest.mark.long
def test_a_reset_reads_from_the_lake_what_the_topic_lost(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic, 2)
    cluster.send(topic, [record(n, n % 2, timestamp=1000 + n) for n in range(20)])
    f = flow(source={"max_offsets_per_trigger": 8})
    f.run()
    before, kept = f.rows(), held(f)
    cluster.trim(topic, 0, 7)
    cluster.trim(topic, 1, 10)
    cluster.send(topic, [record(n, n % 2, timestamp=1000 + n) for n in range(20, 24)])
    begin_again(f)
    f.run()
    assert f.offsets() == [(part, offset) for part in (0, 1) for offset in range(12)]
    again = {row["n"]: row for row in f.rows()}
    own = ("_changed_at",)
    assert all(
        {k: v for k, v in again[row["n"]].items() if k not in own} == _without(row, own)
        for row in before
    )
    assert held(f)[: len(kept) // 2] == kept[: len(kept) // 2], "nothing is kept twice"
    assert places(held(f)) == [
        (f"{topic}/{part}", offset) for part in (0, 1) for offset in range(12)
    ]
    audited(f, 24, unlooked=["3 batches of older generations"])


def _without(row: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


@pytest.mark.long
def test_a_rebuild_of_a_compacted_topic_has_what_compaction_removed(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic, cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01)
    cluster.send(
        topic, [{"key": b"k", "value": b'{"n": %d}' % n, "timestamp": 1000 + n} for n in range(20)]
    )
    f = flow()
    f.run()
    cluster.pause(0.2)
    cluster.send(topic, [{"key": b"other", "value": b'{"n": 99}'}])
    cluster.until(lambda: cluster.count(topic) < 21)
    rebuild(f.request(), f.spark, progress=lambda _: None)
    assert f.offsets() == [(0, n) for n in range(21)]
    audited(f, 21, unlooked=["1 batch of older generations"])


@pytest.mark.full
def test_a_replay_reads_what_aged_out(cluster: Cluster, topic: str, flow: Flow) -> None:
    cluster.create(topic)
    cluster.send(topic, [record(n, timestamp=1000 + n) for n in range(6)])
    f = flow(**KEYED)
    f.run()
    assert [row["value"] for row in held(f)] == [b'{"n": %d}' % n for n in range(6)]
    cluster.trim(topic, 0, 6)
    request = f.request(
        replay=Again(since=now() - timedelta(hours=1), until=now() + timedelta(hours=1))
    )
    report = replay(request, f.spark, progress=lambda _: None)
    assert report.drain is not None and report.drain.totals["records"] == 6
    assert report.drain.totals["duplicate"] == 6, "all of it is there, as it was"
    audited(f, 6)


@pytest.mark.long
def test_without_raw_what_aged_out_is_missing(cluster: Cluster, topic: str, flow: Flow) -> None:
    cluster.create(topic)
    cluster.send(topic, [record(n) for n in range(6)])
    f = flow(kafka={"keep_raw": False})
    f.run()
    assert not f.layout.tables.raw.exists
    cluster.trim(topic, 0, 3)
    with pytest.raises(TerminalError) as found:
        begin_again(f)
    assert found.value.code == "reset-input-gone"
    begin_again(f, accept_missing=True)
    f.run()
    assert f.offsets() == [(0, n) for n in range(3, 6)]
    audited(f, 0, unlooked=["1 batch of older generations", "3 of 3 records"])


@pytest.mark.long
def test_what_was_not_kept_then_is_read_at_the_brokers_and_kept_now(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic)
    f = flow(kafka={"keep_raw": False}, source={"max_offsets_per_trigger": 3})
    cluster.send(topic, [record(n) for n in range(3)])
    f.run()
    f = flow(source={"max_offsets_per_trigger": 3})
    cluster.send(topic, [record(n) for n in range(3, 6)])
    f.run()
    assert [position for _, position in places(held(f))] == [3, 4, 5]
    audited(f, 3, unlooked=["3 of 6 records"])
    f = flow(source={"max_offsets_per_trigger": 100})
    begin_again(f)
    f.run()
    assert f.offsets() == [(0, n) for n in range(6)]
    assert [position for _, position in places(held(f))] == list(range(6))


@pytest.mark.long
def test_days_are_dropped_whole(cluster: Cluster, topic: str, flow: Flow) -> None:
    cluster.create(topic)
    cluster.send(topic, [record(n) for n in range(3)])
    f = flow(kafka={"keep_raw": "2 days"})
    f.run()
    (kept,) = raw.ranges(f.layout)
    raw.drop(f.layout, 2 * 86_400, now() + timedelta(days=2))
    assert raw.ranges(f.layout) == [kept] and len(held(f)) == 3, (
        "the day ended less than two days ago"
    )
    raw.drop(f.layout, 2 * 86_400, now() + timedelta(days=3))
    assert raw.ranges(f.layout) == [] and held(f) == []
    audited(f, 0, unlooked=["3 of 3 records"])


@pytest.mark.long
def test_a_topic_that_was_created_again_is_not_read_from_the_raw_of_the_old_one(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic)
    cluster.send(topic, [*[record(n) for n in range(3)], {"value": b"old"}, {"value": b"old"}])
    f = flow()
    f.run()
    cluster.delete(topic)
    cluster.create(topic)
    cluster.send(topic, [*[record(n) for n in range(10, 13)], {"value": b"new"}, record(14)])
    begin_again(f, accept_missing=True)
    f.run()
    assert sorted(row["n"] for row in f.rows()) == [10, 11, 12, 14]
    refused = sorted(
        (row["origin"]["position"], row["raw"], row["generation"]) for row in f.quarantine()
    )
    assert refused == [(3, "new", 2), (3, "old", 1), (4, "old", 1)], (
        "another record, although at the same offset"
    )
    assert not f.layout.tables.resolutions.exists, "nothing of the old topic was accepted"
    audited(f, 5, unlooked=["1 batch of older generations"])
    assert len({one.log for one in raw.ranges(f.layout)}) == 2


def test_the_id_is_compared_before_raw_is_written(cluster: Cluster, topic: str, flow: Flow) -> None:
    cluster.create(topic)
    cluster.send(topic, [record(n) for n in range(3)])
    f = flow()

    def recreate() -> None:
        cluster.delete(topic)
        cluster.create(topic)
        cluster.send(topic, [record(n) for n in range(10, 13)])

    with pytest.raises(TerminalError) as found:
        f.run(reached=once("begun", recreate))
    assert found.value.code == "topic-recreated"
    assert held(f) == []


@pytest.mark.long
def test_a_replay_applies_no_record_of_a_topic_that_is_created_again_while_it_reads(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic)
    cluster.send(topic, [record(n, timestamp=1000 + n) for n in range(6)])
    f = flow(kafka={"keep_raw": False}, **KEYED)
    f.run()
    before = f.rows("n")

    def recreate() -> None:
        cluster.delete(topic)
        cluster.create(topic)
        cluster.send(topic, [record(n, timestamp=9000 + n) for n in range(20)])

    request = f.request(
        replay=Again(since=now() - timedelta(hours=1), until=now() + timedelta(hours=1))
    )
    with pytest.raises(TerminalError) as found:
        replay(request, f.spark, progress=lambda _: None, reached=once("begun", recreate))
    assert found.value.code == "replay-input-gone" and "created again" in found.value.found
    assert f.rows("n") == before
