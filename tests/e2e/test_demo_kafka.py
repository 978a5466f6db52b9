"""`make demo-kafka` as a user types it, with a few of the events: a broker, Airflow and spark-submit, twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def demo(home: Path) -> subprocess.CompletedProcess[str]:
    """Run the demo with broker, lake and Airflow under `home`."""
    environ = os.environ | {
        "DRAINDOWN_DEMO_RECORDS": "5000",
        "DRAINDOWN_DEMO_HOME": str(home / "demo"),
        "DRAINDOWN_AIRFLOW_HOME": str(home / "airflow"),
    }
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "demo_kafka.py")], env=environ, capture_output=True, text=True
    )


def left_behind(home: Path) -> list[str]:
    """The command lines of processes that were started for a demo and still run."""
    found = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [" ".join(words) for words in found if any(str(home) in word for word in words)]


@pytest.mark.timeout(600)
def test_the_demo_is_right_and_leaves_nothing_behind(tmp_path: Path) -> None:
    first = demo(tmp_path)
    assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
    assert "oracle: exact" in first.stdout
    assert "drained 4 partitions" in first.stdout and "adds up" in first.stdout
    assert "null_value" in first.stdout
    assert left_behind(tmp_path) == []

    log = tmp_path / "demo" / "airflow-user_events.log"
    before = log.stat().st_mtime_ns
    second = demo(tmp_path)
    assert second.returncode == 0, second.stderr
    assert "Nothing to do" in second.stdout
    assert log.stat().st_mtime_ns == before
    assert left_behind(tmp_path) == []
