"""The same records through files and through Kafka give the same table, and the same reasons in
quarantine.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.kafka.cluster import Cluster
from tests.kafka.flow import KafkaFlow
from tests.landing import COLUMNS, KEYED, Landing

BROKEN = [
    b"\xff\xfe",
    b"[1]",
    b"{",
    b"no json",
    b'{"id": "k1", "seq": 1} {"id": "k2", "seq": 1}',
    b'{"id": 1, "id": 2}',
]
RULES = {"sane": "a is null or a >= 0"}


def _value(draw: random.Random) -> bytes:
    if draw.random() < 0.15:
        return draw.choice(BROKEN)
    row: dict[str, Any] = {"id": f"k{draw.randrange(8)}", "seq": draw.randrange(6)}
    if draw.random() < 0.2:
        row["op"] = "d"
    for name, values in (
        ("a", [1, -1, 2.5, "x", "7", None]),
        ("b", ["", "text", 5, {"c": [1]}, "\u00e9"]),
        ("more", [1, [None], {"deep": True}]),
        ("id", [None, "", 9]),
        ("seq", ["x", None, 10**12]),
    ):
        if draw.random() < (0.5 if name in "ab" else 0.1):
            row[name] = draw.choice(values)
    return json.dumps(row, ensure_ascii=draw.random() < 0.5).encode()


def _table(flow: Landing) -> Counter[str]:
    own = ("_arrived_at", "_changed_at", "_origin")
    return Counter(
        str([(k, v) for k, v in sorted(row.items()) if k not in own]) for row in flow.rows()
    )


def _refused(flow: Landing) -> Counter[tuple[Any, ...]]:
    names = ("raw", "raw_bytes", "raw_length", "reason", "field", "detail")
    return Counter(tuple(row[name] for name in names) for row in flow.quarantine())


@pytest.mark.parametrize(
    ("seed", "rounds"), [(0, 1), *(pytest.param(n, 2, marks=pytest.mark.long) for n in range(4))]
)
@pytest.mark.long
def test_files_and_topics_of_the_same_records_give_the_same_table(
    tmp_path: Path, spark: SparkSession, cluster: Cluster, topic: str, seed: int, rounds: int
) -> None:
    draw = random.Random(seed)
    content = {"columns": COLUMNS, "rules": RULES, "target": KEYED if seed % 2 == 0 else {}}
    files = Landing(
        tmp_path / "files", spark, source={"max_files_per_trigger": draw.randrange(1, 3)}, **content
    )
    partitions = draw.randrange(1, 4)
    cluster.create(topic, partitions)
    bound = {"max_offsets_per_trigger": draw.randrange(20, 70)}
    records = KafkaFlow(tmp_path / "kafka", spark, cluster, topic, source=bound, **content)
    for _ in range(rounds):
        values = [_value(draw) for _ in range(draw.randrange(35, 60))]
        for start in range(0, len(values), 30):
            files.deliver(*values[start : start + 30])
        draw.shuffle(values)
        cluster.send(
            topic, [{"value": value, "partition": draw.randrange(partitions)} for value in values]
        )
        files.drain(spark)
        records.run()
    assert sum(_refused(files).values()) > 0
    assert _table(records) == _table(files)
    assert _refused(records) == _refused(files)
    mine, theirs = records.totals(), files.totals()
    assert {name: mine[name] for name in ("records", "quarantined")} == {
        name: theirs[name] for name in ("records", "quarantined")
    }
