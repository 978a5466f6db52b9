"""`draindown status --partitions`: where each partition stands, at the price of one look."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from draindown.cli.program import main
from draindown.sources.kafka.client import Client
from tests.kafka.cluster import Cluster
from tests.kafka.flow import KafkaFlow


def status(flow: KafkaFlow, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    flow.write_pipeline()
    assert main(["--root", str(flow.home), "status", "p", *words]) == 0
    return capsys.readouterr().out


def test_each_partition_tells_where_it_stands(
    cluster: Cluster, topic: str, flow: Callable[..., KafkaFlow], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create(topic, 3)
    record = {"value": b'{"n": 1}', "timestamp": int(datetime.now(UTC).timestamp() * 1000) - 60_000}
    cluster.send(topic, [record | {"partition": part} for part in (0, 0, 0, 1)])
    f = flow(source={"max_offsets_per_trigger": 2})
    assert f.dies_at("read")  # all is pinned, nothing is read
    cluster.send(topic, [record | {"partition": 1}] * 5)
    (told,) = json.loads(status(f, capsys, "--partitions", "--json"))
    parts = {one.pop("partition"): one for one in told["partitions"]}
    assert {name: (one["next"], one["end"], one["units"]) for name, one in parts.items()} == {
        f"{topic}/0": (0, 3, 3),
        f"{topic}/1": (0, 6, 6),
        f"{topic}/2": (0, 0, 0),
    }
    assert told["waiting"]["units"] == 9 == sum(one["units"] for one in parts.values())
    assert told["waiting"]["bytes"] == sum(one["bytes"] for one in parts.values()) == 9 * 8
    assert all(60 <= parts[f"{topic}/{part}"]["oldest_seconds"] < 300 for part in (0, 1))
    assert parts[f"{topic}/2"]["oldest_seconds"] is None
    rows = [line.split() for line in status(f, capsys, "--partitions").splitlines()]
    assert rows[0][:7] == ["FLOW", "PARTITION", "NEXT", "END", "WAITING", "BYTES", "OLDEST"]
    assert rows[2][:5] == [f"{topic}/0", "0", "3", "3", "records"]
    assert "partitions" not in json.loads(status(f, capsys, "--json"))[0]


@pytest.mark.parametrize(
    ("partitions", "records"), [(20, 3), pytest.param(200, 300, marks=pytest.mark.long)]
)
def test_many_partitions_cost_the_requests_of_one_look(
    cluster: Cluster,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    records: int,
) -> None:
    cluster.create(topic, partitions)
    numbers = range(partitions)
    cluster.send(
        topic,
        [{"value": b"x" * 100, "partition": part} for part in numbers for _ in range(records)],
    )
    asked = Counter[str]()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            asked[name] += 1
            return call(*given, **named)

        return counting

    for name in ("describe_topics", "list_offsets", "describe_configs", "list_topics"):
        monkeypatch.setattr(AdminClient, name, counted(name, getattr(AdminClient, name)))
    f = KafkaFlow(tmp_path, None, cluster, topic, kafka={"request_timeout": 20})
    client = Client(f.spec.flows["f"].source)
    cluster.until(lambda: len(client.look().partitions) == partitions)  # each has its leader
    asked.clear()
    started = time.monotonic()
    (told,) = json.loads(status(f, capsys, "--partitions", "--json"))
    took = time.monotonic() - started
    assert dict(asked) == {"describe_topics": 1, "list_offsets": 2, "describe_configs": 1}
    assert [one["units"] for one in told["partitions"]] == [records] * partitions
    assert all(one["oldest_seconds"] is not None for one in told["partitions"]), (
        "each gave its first record"
    )
    assert took < 10, "bounded; under 2 s on a machine that does nothing else"
    print(f"status of {partitions} partitions: {took:.2f} s")
