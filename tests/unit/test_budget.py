"""A tier that costs more CPU than its budget fails, whatever process of it used the time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.budget import REFERENCE, slowness, verdict

ROOT = Path(__file__).resolve().parents[2]
BURNING = """\
import subprocess, sys, time

BURN = "import time\\nwhile time.process_time() < 0.6: pass\\nprint(flush=True)\\ntime.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE)

def test_that_leaves_a_process_at_work():
    assert child.stdout.readline()
"""


def run(home: Path, budget: float, *options: str) -> tuple[int, float, str]:
    """Run the test file as a tier with a budget; the exit code, the seconds that were counted, and
    all output.
    """
    (home / "test_burning.py").write_text(BURNING)
    (home / "budget.toml").write_text(f"[test]\nmine = {budget}\n")
    (home / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.budget",
        "--budget",
        "test.mine",
    ]
    done = subprocess.run(
        [*command, "--budgets", str(home / "budget.toml"), *options],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    counted = re.search(r"^test\.mine: (\d+) CPU", done.stdout, re.MULTILINE)
    return done.returncode, float(counted[1]) if counted else -1, done.stdout + done.stderr


def test_what_a_living_child_of_a_test_uses_is_counted_in_workers_too(tmp_path: Path) -> None:
    code, counted, output = run(tmp_path, 0.5, "-n", "1")
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert counted >= 1, "0.6 of the child, and the start of pytest"
    assert "too much" in output


@pytest.mark.long
def test_a_tier_within_its_budget_passes_and_one_without_tests_too(tmp_path: Path) -> None:
    code, counted, output = run(tmp_path, 600)
    assert (code, counted >= 1) == (pytest.ExitCode.OK, True), output
    code, counted, output = run(tmp_path, 0.1, "-m", "long")
    assert (code, counted) == (pytest.ExitCode.OK, -1), output


def test_a_slow_machine_is_allowed_more_and_a_fast_one_no_less() -> None:
    assert slowness([REFERENCE, REFERENCE * 2, REFERENCE * 9]) == 2
    assert slowness([REFERENCE / 2]) == 1
    assert verdict("test.unit", 150, 100, 2) == ("test.unit: 150 CPU seconds of 200", True)
    assert not verdict("test.unit", 150, 100, 1)[1]


def test_generated_examples_are_not_judged_by_the_time_of_a_busy_machine() -> None:
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
