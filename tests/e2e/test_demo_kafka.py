"""`make demo-kafka` as a user types it, with a few of the events: a broker, Airflow and
spark-submit, twice.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.e2e.demos import demo


def left_behind(home: Path) -> list[str]:
    """The command lines of processes that were started for a demo and still run."""
    found = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [" ".join(words) for words in found if any(str(home) in word for word in words)]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_demo_is_right_and_leaves_nothing_behind(tmp_path: Path) -> None:
    first = demo("demo_kafka.py", tmp_path, DRAINDOWN_DEMO_RECORDS="5000")
    assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
    assert "oracle: exact" in first.stdout
    assert "  4 ranges, " in first.stdout and "quarantined  ✓" in first.stdout
    assert "null_value" in first.stdout
    assert "oracle: topics exact" in first.stdout and "oracle: alerts exact" in first.stdout
    assert left_behind(tmp_path) == []

    log = tmp_path / "demo" / "airflow-user_events.log"
    before = log.stat().st_mtime_ns
    second = demo("demo_kafka.py", tmp_path, DRAINDOWN_DEMO_RECORDS="5000")
    assert second.returncode == 0, second.stderr
    assert "Nothing to do" in second.stdout
    assert log.stat().st_mtime_ns == before
    assert left_behind(tmp_path) == []
