"""A topic that gets each batch exactly once: its contract, and senders that are killed and
frozen.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draindown.base.exits import Exit
from draindown.config.kafka_sink import KafkaSink
from draindown.sinks.kafka.transactions import KafkaTransactions
from tests.kafka import once_sender
from tests.kafka.cluster import Cluster
from tests.kafka.once_sender import BATCHES, PARTS, ROWS
from tests.kafka.test_sink import read
from tests.sinks import contract
from tests.sinks.contract import BATCH, COLUMNS, Bench, place_of

ROOT = Path(__file__).resolve().parents[2]


def sink(cluster: Cluster, topic: str, **more: Any) -> KafkaTransactions:
    given = {
        "topic": topic,
        "bootstrap_servers": cluster.address,
        "delivery": "exactly_once",
        "marker_topic": f"{topic}-markers",
    }
    return KafkaTransactions(KafkaSink(**(given | more)), place_of(topic), {})


def plain(messages: list[Any]) -> dict[int, tuple[str | None, str | None]]:
    """What a consumer has that applies every message it gets, without a look at its id."""
    rows: dict[int, tuple[str | None, str | None]] = {}
    for message in messages:
        if message.value() is None:
            rows.pop(int(message.key()), None)
        else:
            row: Mapping[str, Any] = json.loads(message.value())
            rows[int(message.key())] = (row["name"], row["note"])
    return rows


@pytest.fixture
def bench(cluster: Cluster, topic: str) -> Bench:
    cluster.create(topic, 3)
    return Bench(lambda: sink(cluster, topic), lambda: plain(read(cluster, topic, committed=True)))


@pytest.mark.full
@pytest.mark.parametrize("rule", contract.EVERY)
def test_contract_of_a_topic_that_gets_batches_once(
    rule: Callable[[Bench], None], bench: Bench
) -> None:
    rule(bench)


def sender(
    cluster: Cluster, topic: str, epoch: int, strike: str = "", *, log: Path
) -> subprocess.Popen[bytes]:
    words = [cluster.address, topic, str(epoch), *([strike] if strike else [])]
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.kafka.once_sender", *words],
            cwd=ROOT,
            stdout=out,
            stderr=out,
        )


def assert_once(cluster: Cluster, topic: str) -> None:
    """0 doubled, 0 missing, 0 torn: a reader of committed messages has each row of each batch once,
    batch by batch.
    """
    messages = read(cluster, topic, committed=True)
    found = Counter((json.loads(one.value())["name"], one.key()) for one in messages)
    keys = [key for part in range(PARTS) for key in once_sender.keys(part)]
    assert found == Counter(
        (str(batch), str(key).encode()) for batch in range(BATCHES) for key in keys
    )
    batches = [dict(one.headers())["batch"] for one in messages if one.partition() == 0]
    assert batches == sorted(batches)
    ids = Counter(dict(one.headers())["id"] for one in messages)
    assert set(ids.values()) == {1} and len(ids) == BATCHES * PARTS * ROWS


def until(log: Path, word: str, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while word not in log.read_text():
        assert process.poll() is None and time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.01)


@pytest.mark.full
def test_a_sender_that_is_killed_in_a_transaction_leaves_nothing_that_a_reader_sees(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create(topic, 2)
    killed = sender(cluster, topic, 1, f"1:3:{signal.SIGKILL:d}", log=tmp_path / "log")
    assert killed.wait(60) == -signal.SIGKILL, (tmp_path / "log").read_text()
    half = read(cluster, topic, committed=True)
    assert len(half) == (PARTS + 2) * ROWS, (
        "the first batch, and of the second the portion that was committed"
    )
    assert sender(cluster, topic, 2, log=tmp_path / "log").wait(60) == 0
    assert_once(cluster, topic)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_sender_that_was_frozen_and_thaws_after_its_successor_sends_nothing(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create(topic, 2)
    zombie = sender(cluster, topic, 1, f"2:4:{signal.SIGSTOP:d}", log=tmp_path / "zombie")
    until(tmp_path / "zombie", "struck", zombie)
    assert sender(cluster, topic, 2, log=tmp_path / "log").wait(60) == 0
    before = len(read(cluster, topic, committed=True))
    os.kill(zombie.pid, signal.SIGCONT)
    assert zombie.wait(60) == Exit.TRY_AGAIN and "sink-fenced" in (tmp_path / "zombie").read_text()
    assert len(read(cluster, topic, committed=True)) == before
    assert_once(cluster, topic)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_senders_that_are_killed_twenty_times_anywhere_send_each_row_once(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create(topic, 3)
    log, chance, kills = tmp_path / "log", random.Random(40), 0
    for epoch in range(1, 200):
        before = len(log.read_text()) if log.exists() else 0
        process = sender(cluster, topic, epoch, log=log)
        end = time.monotonic() + 60
        while "begun" not in log.read_text()[before:]:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.005)
        try:
            code = process.wait(chance.uniform(0.0, 1.2) if kills < 20 else 60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            continue
        assert code == 0, log.read_text()[-2000:]
        if kills >= 20:
            break
    assert kills == 20
    assert_once(cluster, topic)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_frozen_sender_of_another_sink_holds_others_up_and_hides_no_batch(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Its marker is in the partition that all share, in a transaction that is open."""
    cluster.create(topic, 1)
    mine = sink(cluster, topic)
    mine.fence(1)
    other = cluster.producer(transactional_id=f"{topic}-other")
    other.init_transactions(20)
    other.begin_transaction()
    other.produce(
        f"{topic}-markers", key=b'["lake", "p", "f", "other", "w"]', value=b"{}", partition=0
    )
    other.flush(20)
    rows = contract.upserts({1: ("a", None)})
    mine.send(BATCH, COLUMNS, contract.batches(rows))
    mine.close()
    cluster.later(2.0, lambda: other.abort_transaction(20))
    again, began = sink(cluster, topic), time.monotonic()
    again.fence(2)
    assert time.monotonic() - began > 1.0, "it waited for what the other one left open"
    again.send(replace(BATCH, epoch=2), COLUMNS, contract.batches(rows))
    again.close()
    assert len(read(cluster, topic, committed=True)) == 1


def test_the_topic_of_markers_is_made_by_the_first_driver(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, 1)
    sink(cluster, topic).check(COLUMNS)
    assert f"{topic}-markers" not in cluster.admin.list_topics(timeout=20).topics, (
        "a look makes nothing"
    )
    found = sink(cluster, topic)
    found.fence(1)
    found.close()
    assert f"{topic}-markers" in cluster.admin.list_topics(timeout=20).topics
