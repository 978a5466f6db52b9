"""Detect running steps, and steps that died without a report, by a note file that each start keeps
locked.

The kernel releases the lock when the process ends for any reason. A process that ends in order also
removes the note; a killed one leaves it behind.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draindown.base.clock import now
from draindown.base.formatting import printable
from draindown.flow import traces
from draindown.lake.documents import Document, encode
from draindown.lake.home import FlowHome, safe_name
from draindown.lake.table import UNREADABLE
from draindown.lease import holder as lease_holder
from draindown.lease.holder import Card
from draindown.ledger import table as ledger_table
from draindown.runs import store
from draindown.runs.card import by_flow, silent
from draindown.runs.report import StepReport
from draindown.runs.request import STEPS, Request, Step, begun_at
from draindown.runs.unfinished import Unfinished

_ROOM = 128 * 1024  # bytes: the report of a drain of about a hundred batches


@contextmanager
def at_work(request: Request) -> Iterator[Callable[[], None]]:
    """Keep a locked note for the duration of a block: this process works on the request's step.

    Yield a function that gives back the room which the note keeps for the step's report on a full
    disk. Write no note if the lake is not writable. The step itself reports that error. At the end,
    also remove the notes of starts of the step that died: this start has reported them.
    """
    path = Path(request.layout.start(request.run_id, request.step, request.start).at_work)
    note: dict[str, Any] = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "at": now().isoformat(),
        "try": request.try_number,
        "run": request.run_id,
        "command": request.command,
    }
    handle = _locked(request.layout, path)
    try:
        if handle is not None:
            with suppress(OSError):
                os.ftruncate(handle, 0)
                os.write(handle, encode(note))
                os.write(handle, b" " * _ROOM)
        yield lambda: _give_back(handle)
    finally:
        if handle is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)
                for other in _of_step(request.layout, request.run_id, request.step, ".at-work"):
                    if not _is_held(other):
                        other.unlink(missing_ok=True)
            os.close(handle)


def _give_back(handle: int | None) -> None:
    """Shorten the note to its text, so that as many bytes are free."""
    with suppress(OSError):
        if handle is not None:
            os.ftruncate(handle, len(os.pread(handle, _ROOM, 0).rstrip()))


def _locked(layout: FlowHome, path: Path) -> int | None:
    """Open and lock the note. Return None if it can't be created or another process of the same run
    holds the lock.
    """
    try:
        layout.make()
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


def left(layout: FlowHome, pipeline: str, run_id: str, step: Step) -> Unfinished | None:
    """Return the unfinished start of a step whose driver died, as the next start finds it; None if
    there is none.
    """
    found = look(layout, pipeline, run_id, step)
    return found if found.state == "died" else None


def of_reports(
    layout_of: Callable[[str], FlowHome], reports: Iterable[StepReport]
) -> list[Unfinished]:
    """Return, for each flow and run, what `of_run` finds. `layout_of` returns the layout of a flow
    by its name.
    """
    runs = by_flow(reports).items()
    found = (of_run(layout_of(flow), pipeline, run, steps) for (pipeline, flow, run), steps in runs)
    return [one for one in found if one is not None]


def of_run(
    layout: FlowHome, pipeline: str, run_id: str, steps: Sequence[StepReport]
) -> Unfinished | None:
    """Return the step of a run that has no report: one at work, else one that ended without, else
    one that is due.

    `steps` are the newest reports of the run's steps, if any. A start that is older than the report
    of its step has been reported by that; a step is due if the plan requires it.
    """
    told = {report.step: report.order for report in steps}
    later = {
        step
        for step, start in store.begun(layout, run_id)
        if step not in told or _order(start) > told[step]
    }
    due = silent(steps) if steps else None
    looked = [
        look(layout, pipeline, run_id, step) for step in STEPS if step in later or step == due
    ]
    found = [one for one in looked if one.is_newer or one.step == due]
    return min(found, key=lambda one: _RANK.get(one.state, len(_RANK)), default=None)


_RANK = {"at work": 0, "died": 1, "not written": 2}


def _order(start: str) -> datetime:
    return begun_at(start) or datetime.min.replace(tzinfo=UTC)


def look(layout: FlowHome, pipeline: str, run_id: str, step: Step) -> Unfinished:
    """Return the state of a step of a run that left no report. Only probes locks and the lease; it
    takes neither.
    """
    notes, logs = (_of_step(layout, run_id, step, ending) for ending in (".at-work", ".log"))
    held = next(filter(_is_held, notes), None)
    path = held or next(iter(notes), Path(layout.start(run_id, step).at_work))
    of_start = [log for log in logs if not notes or log.stem == path.stem]
    log = str(of_start[0]) if of_start else ""
    unfinished = Unfinished(
        pipeline=pipeline,
        flow=layout.flow,
        run_id=run_id,
        step=step,
        log=log,
        state="no Spark" if log else "not begun",
    )
    note = _note(path)
    if note is None:
        return _without_note(layout, unfinished)
    began = _time(note.get("at"))
    unfinished = replace(
        unfinished,
        run_id=str(note.get("run") or run_id),
        start=path.stem.partition("@")[2],
        who=printable(f"process {note.get('pid', '?')} on {note.get('host', '?')}"),
        began=began,
        command=printable(str(note.get("command") or "")),
        try_number=_number(note.get("try")),
    )
    is_here = note.get("host") == socket.gethostname()
    if _is_held(path) or _holds_lease(layout, run_id, here=is_here):
        return replace(unfinished, state="at work", seconds=_between(began, now()))
    ended = _batches(layout, run_id)
    signs = [_modified(path), _modified(Path(log or path)), *(ended or ())]
    last = max((moment for moment in signs if moment is not None), default=None)
    number = None if ended is None else len(ended)
    return replace(unfinished, state="died", seconds=_between(began, last), batches=number)


def _without_note(layout: FlowHome, found: Unfinished) -> Unfinished:
    """Return the state of a step that left neither report nor note, perhaps with the log of its
    newest start.
    """
    if not found.log:
        return found
    if Path(found.log).with_suffix(".json").exists():  # of an earlier try, whose report is there
        return replace(found, state="not begun", log="")
    start = Path(found.log).stem.partition("@")[2]
    left = traces.of_start(layout, found.run_id, start, Path(found.log))
    found = replace(found, start=start, batches=left.batches, in_flight=left.in_flight)
    if found.step == "drain" and left.began:
        return replace(found, state="not written")
    return replace(found, state="no report") if left.spoke else found


def lease_holder_so_far(layout: FlowHome) -> tuple[Card | None, str]:
    """Return who holds the flow's lease and what its run has committed, as text. (None, "") if the
    lease is free.
    """
    holder = lease_holder.holder(layout, patient=False)
    return holder, "" if holder is None else ledger_table.so_far(layout, holder.run_id)


def _of_step(layout: FlowHome, run_id: str, step: Step, ending: str) -> list[Path]:
    """Return the files of all starts of a step with this ending, the newest start first."""
    found = Path(layout.run_reports(run_id)).glob(f"{step}*{ending}")
    return sorted(found, key=lambda path: path.stem.partition("@")[2], reverse=True)


def _note(path: Path) -> dict[str, Any] | None:
    """Return the content of the note: empty if it is torn, None if there is no note."""
    try:
        found = Document(str(path)).read()
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


def _holds_lease(layout: FlowHome, run_id: str, *, here: bool) -> bool:
    """Return whether the run holds the lease: a process keeps a lock of it, or its heartbeat is
    fresh.

    Only locks count of a driver that was on this host (`here`). Those of other hosts are not
    visible.
    """
    holder = lease_holder.holder(layout, patient=False)
    if holder is None or safe_name(holder.run_id) != safe_name(run_id):
        return False
    return lease_holder.is_locked(layout) or (not here and not holder.is_stale)


def _batches(layout: FlowHome, run_id: str) -> list[datetime | None] | None:
    """Return when each batch of the run ended; None if the ledger can't be read."""
    try:
        return [row.finished_at for row in ledger_table.of_run(layout, run_id)]
    except UNREADABLE:
        return None


def _modified(path: Path) -> datetime | None:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC) if path.exists() else None


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def _between(began: datetime | None, ended: datetime | None) -> float | None:
    return None if began is None or ended is None else max(0.0, (ended - began).total_seconds())
