"""Which steps are at work, and which died without a report, by a note that a step's driver keeps locked.

The kernel lets go of the lock when the process ends, however it does; the note stays behind unless it ended by itself.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draindown.base.clock import now
from draindown.base.formatting import printable
from draindown.lake.documents import encode, make_home, read_json
from draindown.lake.layout import FlowLayout
from draindown.lease import holder as lease_holder
from draindown.ledger import table as ledger_table
from draindown.runs.card import by_flow, silent
from draindown.runs.report import StepReport
from draindown.runs.request import Request, Step
from draindown.runs.unfinished import Unfinished


@contextmanager
def at_work(request: Request) -> Iterator[None]:
    """Say for the time of a block that this process works on the request's step.

    Nothing is said where the lake can't be written: the work itself is what tells of that.
    """
    path = Path(request.layout.at_work(request.run_id, request.step))
    note = {"pid": os.getpid(), "host": socket.gethostname(), "at": now().isoformat(), "try": request.try_number}
    handle = _locked(request.layout, path)
    try:
        if handle is not None:
            with suppress(OSError):
                os.ftruncate(handle, 0)
                os.write(handle, encode(note))
        yield
    finally:
        if handle is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            os.close(handle)


def _locked(layout: FlowLayout, path: Path) -> int | None:
    """The note, open and locked; None where it can't be made, or another process of the same run is at work."""
    try:
        make_home(layout)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def left(layout: FlowLayout, pipeline: str, run_id: str, step: Step) -> Unfinished | None:
    """The start of a step whose driver died, as the next one finds it; None if there is none."""
    found = look(layout, pipeline, run_id, step)
    return found if found.state == "died" else None


def of_reports(layout_of: Callable[[str], FlowLayout], reports: Iterable[StepReport]) -> list[Unfinished]:
    """Of each flow and run the first step that its plan found necessary and that left no report.

    `layout_of` gives the layout of a flow by its name.
    """
    silences = [(key, silent(steps)) for key, steps in by_flow(reports).items()]
    return [look(layout_of(flow), pipeline, run, step) for (pipeline, flow, run), step in silences if step]


def look(layout: FlowLayout, pipeline: str, run_id: str, step: Step) -> Unfinished:
    """What is known of a step of a run that left no report. Takes nothing away from anyone."""
    path = Path(layout.at_work(run_id, step))
    log = layout.log(run_id, step) if Path(layout.log(run_id, step)).is_file() else ""
    facts: dict[str, Any] = {"pipeline": pipeline, "flow": layout.flow, "run_id": run_id, "step": step, "log": log}
    note = _note(path)
    if note is None:
        return Unfinished(**facts, state="no Spark" if log else "not begun")
    began = _time(note.get("at"))
    facts |= {"who": printable(f"process {note.get('pid', '?')} on {note.get('host', '?')}"), "began": began}
    if _is_held(path) or _holds_lease(layout, run_id):
        return Unfinished(**facts, state="at work", seconds=_between(began, now()))
    done = _batches(layout, run_id)
    last = max((at for at in (*map(_modified, (path, Path(log or path))), *done) if at is not None), default=None)
    return Unfinished(**facts, state="died", seconds=_between(began, last), batches=len(done))


def _note(path: Path) -> dict[str, Any] | None:
    """What is written down; empty where it is torn, None where there is nothing."""
    try:
        found = read_json(str(path))
    except ValueError:
        return {}
    return found if isinstance(found, dict) or found is None else {}


def _is_held(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _holds_lease(layout: FlowLayout, run_id: str) -> bool:
    """Whether the run's driver is at work on a host whose locks are not seen from here."""
    holder = lease_holder.holder(layout, patient=False)
    return holder is not None and holder.run_id == run_id


def _batches(layout: FlowLayout, run_id: str) -> list[datetime | None]:
    try:
        return [row.finished_at for row in ledger_table.of_run(layout, run_id)]
    except Exception:  # noqa: BLE001 - whatever reading a ledger raises: that a driver died is told all the same
        return []


def _modified(path: Path) -> datetime | None:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC) if path.exists() else None


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def _between(began: datetime | None, ended: datetime | None) -> float | None:
    return None if began is None or ended is None else max(0.0, (ended - began).total_seconds())
