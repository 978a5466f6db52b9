"""`make demo` as a user types it, with a few of the flights: through Airflow and spark-submit,
twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.demos import demo


@pytest.mark.timeout(600)
def test_the_demo_is_right_and_the_second_time_has_nothing_to_do(tmp_path: Path) -> None:
    first = demo("demo.py", tmp_path, DRAINDOWN_DEMO_FRACTION="0.01")
    assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
    assert first.stdout.count("oracle: exact") == 3 and "WRONG" not in first.stdout
    for flow in ("flights", "departures_hourly", "carrier_month"):
        assert f"OK  flights/{flow}" in first.stdout and f"{flow}.check\n" in first.stdout
    assert first.stdout.count("  ✓") == 5, (
        "of the flow that lands one law, of two that follow two each"
    )
    assert "Worst hours" in first.stdout and "Worst months of an airline" in first.stdout
    assert "Busiest airports" in first.stdout

    logs = {
        found.parent.name: found for found in (tmp_path / "airflow" / "logs").rglob("attempt=1.log")
    }
    assert all(
        f"task_id={name}.drain" in logs
        for name in ("flights", "departures_hourly", "carrier_month")
    )
    assert "batch 0" in logs["task_id=flights.drain"].read_text(), "what the UI shows of the task"

    log = tmp_path / "demo" / "airflow.log"
    before = log.stat().st_mtime_ns
    second = demo("demo.py", tmp_path, DRAINDOWN_DEMO_FRACTION="0.01")
    assert second.returncode == 0, second.stderr
    assert "Nothing to do" in second.stdout
    assert log.stat().st_mtime_ns == before
