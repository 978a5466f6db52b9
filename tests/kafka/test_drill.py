"""A drill of a flow of Kafka: copies read the same records of the topic, and the flow itself stays
as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draindown.cli.program import main
from draindown.drill import faults
from tests.kafka.cluster import Cluster
from tests.kafka.flow import KEYED, KafkaFlow
from tests.kafka.test_drain import record


def _files(place: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in place.rglob("*") if p.is_file()
    }


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_drill_reads_the_topic_into_copies(
    cluster: Cluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DRAINDOWN_MASTER", "local[2]")
    names = ["kill-after-raw", "lose-checkpoint"]
    # these of all: one control for both
    monkeypatch.setattr(faults, "FAULTS", tuple(map(faults.named, names)))
    cluster.create(topic, 2)
    some = [
        record(n if n % 7 else "bad", n % 2, key=b"k%d" % (n % 9), timestamp=1000 + n)
        for n in range(60)
    ]
    cluster.send(topic, some)
    flow = KafkaFlow(tmp_path / "project", None, cluster, topic, **KEYED)
    flow.write_pipeline()
    before = _files(flow.home)
    words = [
        "--root",
        str(flow.home),
        "drill",
        "all",
        "p",
        "--json",
        "--scratch",
        str(tmp_path / "scratch"),
    ]
    code = main(words)
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert code == 0 and found["held"], said.out[-3000:]
    assert [result["fault"] for result in found["results"]] == names
    assert all(result["fired"] and result["unlooked"] == [] for result in found["results"])
    assert _files(flow.home) == before
