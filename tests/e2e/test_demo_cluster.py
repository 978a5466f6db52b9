"""`make demo-cluster` as a user types it, with a few of the flights: drivers of tasks, executors of
the cluster.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.demos import demo
from tests.e2e.test_demo_kafka import left_behind


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_is_right_on_two_executors_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = demo("demo.py", tmp_path, "--cluster", DRAINDOWN_DEMO_FRACTION="0.01")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("oracle: exact") == 3 and done.stdout.count("  ✓") == 5
    assert (
        done.stdout.count("on        spark://127.0.0.1:") == 3
        and "2 executors, 2 cores" in done.stdout
    )
    assert left_behind(tmp_path) == []
