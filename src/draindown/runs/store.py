"""The reports of a flow on disk: write atomically, read, list by run, remove old ones."""

from __future__ import annotations

import os
import shutil
import time
from datetime import timedelta
from itertools import islice
from pathlib import Path

from draindown.lake import documents
from draindown.lake.documents import make_home
from draindown.lake.layout import FlowLayout, safe_name
from draindown.runs.report import StepReport, _paths, _read
from draindown.runs.request import Step, new_start

KEPT_RUNS = 1000
KEPT_AGE = timedelta(days=90)
"""Reports are kept while their run is among the newest KEPT_RUNS or younger than KEPT_AGE."""


def write(layout: FlowLayout, report: StepReport) -> str:
    """Write the report atomically, beside every earlier one, and return its path."""
    if Path(layout.report(report.run_id, report.step, report.start)).exists():
        report = report.model_copy(update={"start": new_start()})
    path = layout.report(report.run_id, report.step, report.start)
    make_home(layout)
    documents.write_json(path, report.model_dump(mode="json"))
    return path


def read(layout: FlowLayout, run_id: str, step: Step, start: str | None = None) -> StepReport | None:
    """Return the report of a start of a step, by default of the newest one; None if it left none.

    A step leaves no report if its driver died or it never ran.
    """
    if start is not None:
        path = Path(layout.report(run_id, step, start))
        return _read(path) if path.is_file() else None
    found = _paths(layout, run_id, step)
    return _read(found[-1]) if found else None


def runs(layout: FlowLayout, limit: int = 20) -> list[str]:
    """Return the ids of runs that left reports, newest first, as path-safe names."""
    # a running or read-only step has a driver log there and no report
    left = (name for name in _newest_first(layout.reports) if any(Path(layout.reports, name).rglob("*.json")))
    return [name for name in islice(left, limit) if name == safe_name(name)]


def forget_old(layout: FlowLayout, *, keep: int = KEPT_RUNS, age: timedelta = KEPT_AGE) -> int:
    """Remove reports and gate results of runs that are neither young nor among the newest. Return their number.

    The ledger keeps every batch.
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
