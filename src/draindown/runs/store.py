"""The reports of a flow: written whole, read, listed by run, and removed when old."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.lake.documents import Document
from draindown.lake.home import FlowHome, safe_name
from draindown.lake.stores import store_of
from draindown.runs.report import StepReport
from draindown.runs.request import STEPS, Step, begun_at, new_start

_START = re.compile(r"\d{4}-\d\d-\d\dT[\d-]{8}\.\d{6}_")  # of `new_start`, up to its random end
KEPT_RUNS = 1000
KEPT_AGE = timedelta(days=90)
"""Reports are kept while their run is among the newest KEPT_RUNS or younger than KEPT_AGE."""


def write(layout: FlowHome, report: StepReport) -> str:
    """Write the report where `read` finds it, whole or not at all, beside every earlier one.
    Returns its path.
    """
    if layout.start(report.run_id, report.step, report.start).report.exists:
        report = report.model_copy(update={"start": next_start(layout)})
    document = layout.start(report.run_id, report.step, report.start).report
    layout.make()
    document.write(report.model_dump(mode="json"))
    return document.path


def next_start(layout: FlowHome) -> str:
    """Return the id of a new start of a step, which sorts after those of all starts that left a
    file in this lake.
    """
    try:
        start = new_start(_newest_start(layout))
        if layout.exists:  # an id alone begins no lake
            layout.newest_start.write({"start": start})
        return start
    except OSError:  # the step itself says what is wrong with the lake
        return new_start()


def _newest_start(layout: FlowHome) -> str:
    """Return the id of the newest start; "" before the first."""
    with suppress(ValueError, LookupError, TerminalError):
        return str((layout.newest_start.read() or {})["start"])
    # without the file, from the reports: thousands of runs take seconds
    keys = (entry.key for entry in store_of(layout.reports).list(f"{layout.reports}/"))
    return max((found[0] for key in keys if (found := _START.search(key))), default="")


def read(layout: FlowHome, run_id: str, step: Step, start: str | None = None) -> StepReport | None:
    """Return the report of a start of a step, of its newest one unless one is named; None where it
    left none.

    A step leaves none where its driver died, or where it never ran. Raises ValueError if the report
    is torn, TerminalError `format-unknown` if another version of draindown wrote it.
    """
    if start is not None:
        return _read(layout.start(run_id, step, start).report)
    written = _reports(layout, run_id, step)
    return _read(written[-1]) if written else None


def starts(layout: FlowHome, run_id: str) -> list[StepReport]:
    """Return the reports of all starts of a run's steps, in the order in which they began."""
    found = map(_read, _reports(layout, run_id))
    return sorted((report for report in found if report), key=lambda report: report.order)


def begun(layout: FlowHome, run_id: str) -> set[tuple[Step, str]]:
    """Return step and id of every start of a run that left a note or a driver log."""
    home, found = layout.run_reports(run_id), set[tuple[Step, str]]()
    for entry in store_of(home).list(f"{home}/"):
        name, _, ending = entry.key.removeprefix(f"{home}/").rpartition(".")
        step, _, start = name.partition("@")
        if ending in ("at-work", "log") and start and step in STEPS:
            found.add((step, start))
    return found


def _reports(layout: FlowHome, run_id: str, step: str = "") -> list[Document]:
    """Return the reports of a run, or of one step of it, the oldest start first."""
    home = layout.run_reports(run_id)
    found = []
    for entry in store_of(home).list(f"{home}/{step}"):
        name, _, start = entry.key.removeprefix(f"{home}/").removesuffix(".json").partition("@")
        if entry.key.endswith(".json") and step in ("", name):
            found.append((start, entry.key))
    return [layout.document(key) for _, key in sorted(found)]


def _read(report: Document) -> StepReport | None:
    found = report.read()
    return None if found is None else StepReport.model_validate(found)


def runs(layout: FlowHome, limit: int = 20) -> list[str]:
    """Run ids that left reports, newest first (as path-safe names)."""
    # a step at work, or one that only looks, has a driver log there and no report
    return list(islice(_names(_contents(layout.reports, ".json")), limit))


def runs_and_silent(layout: FlowHome, limit: int = 20) -> list[tuple[str, bool]]:
    """Run ids that left reports or a note, newest first, each with whether it left no report.

    A run without one is at work, or its driver died.
    """
    written = list(_contents(layout.reports, (".json", ".at-work")))
    told = {one.run for one in written if one.name.endswith(".json")}
    return list(islice(((name, name not in told) for name in _names(written)), limit))


def _names(contents: Iterable[_File]) -> Iterator[str]:
    return (name for name in _newest_first(contents) if name == safe_name(name))


def forget_old(layout: FlowHome, *, keep: int = KEPT_RUNS, age: timedelta = KEPT_AGE) -> int:
    """Remove reports and gate results of runs that are neither young nor among the newest. Return
    their number.

    The ledger keeps every batch.
    """
    gone = 0
    for home in (layout.reports, layout.all_validations):
        written = list(_contents(home))
        # an id of a start may be ahead of the clock
        last = _newest(written, lambda one: min(one.began, one.modified))
        for name in _newest_first(written)[keep:]:
            if now() - last[name] > age:
                store_of(home).delete_prefix(f"{home}/{name}/")
                gone += 1
    return gone


def _newest_first(contents: Iterable[_File]) -> list[str]:
    """Return the runs that have one of these files, that of the newest start first."""
    began = _newest(contents, lambda one: one.began)
    return sorted(began, key=lambda run: (began[run], run), reverse=True)


def _newest(contents: Iterable[_File], at: Callable[[_File], datetime]) -> dict[str, datetime]:
    """Return the greatest time of the files of each run."""
    found: dict[str, datetime] = {}
    for one in contents:
        found[one.run] = max(at(one), found.get(one.run, at(one)))
    return found


class _File(NamedTuple):
    """A file of a run: when its step began or, without the id of a start, when the store wrote it;
    and the latter.
    """

    run: str
    name: str
    began: datetime
    modified: datetime


def _contents(home: str, ending: str | tuple[str, ...] = "") -> Iterator[_File]:
    """Yield the files of all runs. The store's time is that of a copy, so the id of the start
    counts before it.
    """
    for entry in store_of(home).list(f"{home}/"):
        name, _, inside = entry.key.removeprefix(f"{home}/").partition("/")
        if inside and inside.endswith(ending):
            start = _START.search(inside)
            yield _File(
                name, inside, (start and begun_at(start[0])) or entry.modified, entry.modified
            )
