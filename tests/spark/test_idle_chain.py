"""A chain of five flows with nothing to do: `draindown run` looks, and starts no JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.test_derived_flow import CARRIERS, DAILY, HOURLY, Chain

WEEKLY: dict[str, Any] = {
    "source": {"table": "daily"},
    "window": {
        "time": "window_start",
        "size": "7 days",
        "measures": {"flights": "sum(flights)", "days": "count(*)"},
    },
}


class Typed:
    """`draindown run` as a process whose Java notes each start. `starts`: of the newest run;
    `seconds`: its time.
    """

    def __init__(self, home: Path) -> None:
        self._home, self._notes = home, home / "starts"
        self.starts, self.seconds = 0, 0.0
        java = home / "java" / "bin" / "java"
        java.parent.mkdir(parents=True)
        real = (
            Path(os.environ["JAVA_HOME"]) / "bin" / "java"
            if "JAVA_HOME" in os.environ
            else Path(_which("java"))
        )
        java.write_text(f'#!/bin/sh\necho start >> "{self._notes}"\nexec "{real}" "$@"\n')
        java.chmod(0o755)
        self._environment = os.environ | {"JAVA_HOME": str(java.parents[1])}

    def run(self) -> list[dict[str, Any]]:
        """Run the pipeline; the reports."""
        self._notes.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "draindown.cli",
            "--root",
            str(self._home),
            "run",
            "p",
            "--json",
        ]
        begun = time.monotonic()
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )
        self.seconds = time.monotonic() - begun
        assert done.returncode == 0, done.stderr[-2000:]
        self.starts = len(self._notes.read_text().splitlines()) if self._notes.exists() else 0
        reports: list[dict[str, Any]] = json.loads(done.stdout)["reports"]
        return reports


def _which(name: str) -> str:
    return subprocess.run(
        ["/bin/sh", "-c", f"command -v {name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.long
def test_a_chain_of_five_with_nothing_to_do_starts_no_jvm(
    spark: SparkSession, tmp_path: Path
) -> None:
    flows = {"hourly": HOURLY, "daily": DAILY, "weekly": WEEKLY, "carriers": CARRIERS}
    it, typed = Chain(tmp_path / "project", spark, **flows), Typed(tmp_path / "project")
    it.write_pipeline()
    it.deliver(it.row(1, 0), it.row(2, 90, "B6"))
    for _ in range(6):
        if not any(it.waits(flow) for flow in it.spec.flows):
            break
        it.run()
    assert it.rows("weekly") and it.rows("carriers")

    it.deliver(it.row(3, 200))
    busy = typed.run()
    assert typed.starts > 0, "a run with work starts a JVM, and it is counted"
    assert {report["flow"] for report in busy if report["step"] == "drain"} == set(it.spec.flows)

    while any(report["step"] != "plan" for report in typed.run()):  # compaction
        assert typed.starts > 0
    idle = typed.run()
    assert (typed.starts, len(idle)) == (0, 5), "a plan of each flow, and nothing else"
    assert all(it.proven(flow) for flow in ("hourly", "daily", "weekly"))
    print(f"idle: {typed.seconds:.2f} s")
