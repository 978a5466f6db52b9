"""The reports of a flow on disk: written whole, read, listed by run, and removed when old."""

from __future__ import annotations

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

from draindown.lake import documents
from draindown.lake.documents import make_home
from draindown.lake.layout import FlowLayout, safe_name
from draindown.runs.report import StepReport
from draindown.runs.request import Step

KEPT_RUNS = 1000
KEPT_AGE = timedelta(days=90)
"""A run's reports stay while the run is among the newest, or young."""


def write(layout: FlowLayout, report: StepReport) -> str:
    """Write the report where `read` finds it, whole or not at all; returns its path."""
    path = layout.report(report.run_id, report.step)
    make_home(layout)
    documents.write_json(path, report.model_dump(mode="json"))
    return path


def read(layout: FlowLayout, run_id: str, step: Step) -> StepReport | None:
    """The report of a step, or None where the step left none (its driver died, or it never ran)."""
    path = Path(layout.report(run_id, step))
    return StepReport.model_validate_json(path.read_text()) if path.is_file() else None


def runs(layout: FlowLayout, limit: int = 20) -> list[str]:
    """Run ids that left reports, newest first (as path-safe names)."""
    return [name for name in _newest_first(layout.reports)[:limit] if name == safe_name(name)]


def forget_old(layout: FlowLayout, *, keep: int = KEPT_RUNS, age: timedelta = KEPT_AGE) -> int:
    """Remove reports and gate results of runs that are neither young nor among the newest; returns how many.

    The ledger keeps every batch for good: what goes is how single runs told of it.
    """
    gone = 0
    for home in (layout.reports, layout.all_validations):
        for name in _newest_first(home)[keep:]:
            directory = Path(home, name)
            if time.time() - directory.stat().st_mtime > age.total_seconds():
                shutil.rmtree(directory, ignore_errors=True)
                gone += 1
    return gone


def _newest_first(home: str) -> list[str]:
    if not Path(home).is_dir():
        return []
    with os.scandir(home) as entries:
        found = sorted(((entry.stat().st_mtime_ns, entry.name) for entry in entries if entry.is_dir()), reverse=True)
    return [name for _, name in found]
