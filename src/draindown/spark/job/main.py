"""One step in a driver: run it, name the cause of a failure, write its report. Never raises what
the step raised.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext

from draindown.base import panics
from draindown.base.clock import now
from draindown.base.errors import (
    Crash,
    DraindownError,
    TerminalError,
    TransientError,
    first_line,
    said,
)
from draindown.base.exits import Exit, exit_for
from draindown.base.findings import Finding
from draindown.base.formatting import printable_lines, shortened
from draindown.config import environment
from draindown.flow import at_work, drain_part, schema_drift
from draindown.gate.refusal import Refused
from draindown.lake import storage, torn
from draindown.lake.presence import Lake
from draindown.launch import settings as spark_settings
from draindown.ledger import table as ledger_table
from draindown.runs import report, starts, store
from draindown.runs.driver_log import DriverLog
from draindown.runs.report import DrainPart, Fused, StepReport
from draindown.runs.request import Request
from draindown.runs.unfinished import Unfinished
from draindown.spark import cluster
from draindown.spark.causes import HEAP_EXHAUSTED, of_memory
from draindown.spark.limits import Stop
from draindown.spark.session import context_state

_NO_ANSWER = (ConnectionError, Py4JNetworkError)
_ENDING_SECONDS = 30.0
_WHOLE = "whole batches only; the ledger lists them"


def _tell(error: DraindownError) -> None:
    _say(printable_lines(str(error)))  # it may quote a record


def attempt(
    request: Request,
    work: Callable[[Stop], StepReport],
    *,
    tell: Callable[[DraindownError], None] = _tell,
    stop: Stop | None = None,
) -> tuple[StepReport, Exit]:
    """Run a step. Returns its report, which is written whether or not the step failed, and its exit
    code.

    Without its lake, or in a process of another environment, the step does not run and its report
    is not written.

    The first SIGTERM or SIGINT ends the step before the next batch, the second at once; the next
    run resumes. If the report can't be written, it has an error, and the exit code is not DONE.
    `tell` is called with the error of a step that failed. `stop`: shared with the steps that follow
    in this process.
    """
    started, stop = now(), stop or Stop()
    if (other := _other_environment(request)) is not None:
        tell(other)
        return report.of(request, started, "failed", error=other.as_dict()), exit_for(other)
    if (missing := _missing_lake(request)) is not None:  # a report would begin another one
        tell(missing)
        return failed(request, missing, started), exit_for(missing)
    before = at_work.left(request.layout, request.spec.pipeline, request.run_id, request.step)
    restore = _on_signals(stop)
    with at_work.at_work(request) as make_room:
        try:
            with panics.as_error():
                done = work(stop)
            result, code = done.model_copy(update={"started_at": started}), Exit.DONE
        except Exception as raised:  # noqa: BLE001 - the edge of the process: whatever fails, a report is left
            error = _named(raised, request, stop)
            result, code = failed(request, error, started), exit_for(error)
            tell(error)
        finally:
            restore()
        if before is not None:
            result = result.model_copy(update={"findings": [*result.findings, _died(before)]})
        if request.after:
            result = result.model_copy(update={"fused": Fused(drain=request.after, exit=code)})
        result = _with_sums(request, result.model_copy(update={"cluster": cluster.described()}))
        return _left(request, result, code, make_room)


def refuse_other_environment(request: Request) -> None:
    """Raise TerminalError `environment-mismatch` in a process of another environment."""
    again = f"DRAINDOWN_ENV={request.environment} {request.resume}"
    environment.refuse_other(request.environment, tried=_tried(request), next=again)


def _other_environment(request: Request) -> DraindownError | None:
    try:
        refuse_other_environment(request)
    except DraindownError as error:
        return error
    return None


def _missing_lake(request: Request) -> DraindownError | None:
    try:
        Lake.look(request.layout.lake, Path(request.root), request.spec.pipeline).refuse_missing()
    except DraindownError as error:
        return error
    return None


def _say(text: str) -> None:
    """Print to stderr. That its reader is gone, as once a task's runner was killed, must not cost
    the report.
    """
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _died(before: Unfinished) -> Finding:
    """Return the finding that an earlier start of the step died, for the report of this one."""
    return Finding(kind="died", subject="an earlier start", detail=str(before))


def _left(
    request: Request, result: StepReport, code: Exit, make_room: Callable[[], None]
) -> tuple[StepReport, Exit]:
    """Write the report. If that fails, as on a full disk, return one with an error, for a step that
    succeeded too.

    `make_room` gives back what was kept for this.
    """
    try:
        _write(request, result, make_room)
    except OSError as error:
        _say(f"draindown: the report could not be written: {error}")
        refused = storage.refusal(
            error, request.layout, tried=_tried(request), changed=_WHOLE, again=request.resume
        )
        why = refused or _crash(error, request, logged(error, request))
        return result.model_copy(update={"error": result.error or why.as_dict()}), code or exit_for(
            why
        )
    with contextlib.suppress(OSError):  # the next step does it
        store.forget_old(request.layout)
    return result, code


def _write(request: Request, result: StepReport, make_room: Callable[[], None]) -> None:
    try:
        store.write(request.layout, result)
    except OSError:
        make_room()
        store.write(request.layout, result)


def _with_sums(request: Request, result: StepReport) -> StepReport:
    """Return the report with the sums of its run; if they can't be made, with a finding that says
    so.
    """
    try:
        [summed] = starts.with_sums(request.layout, [result])
    except Exception as error:  # noqa: BLE001 - a bug in the sums must not cost the report
        logged(error, request)
        return result.model_copy(
            update={"findings": [*result.findings, _incomplete(request, error)]}
        )
    return summed


def _incomplete(request: Request, error: Exception) -> Finding:
    """Return the finding that this report lacks what the ledger knows of its batches."""
    detail = f"this report lacks what the ledger knows of its batches: {_brief(error)}"
    audit = f"draindown doctor {request.spec.pipeline}/{request.flow}"
    return Finding(kind="incomplete", subject="report", detail=detail, next=audit)


def logged(error: Exception, request: Request) -> str:
    """Write the trace of an error to the driver log. Return the log's path."""
    with DriverLog.of(request.layout, request.run_id, request.step, request.start) as log:
        log.heading(f"{type(error).__name__} in {_tried(request)}")
        log.write("".join(traceback.format_exception(error)))
    return log.path


def _named(error: Exception, request: Request, stop: Stop) -> DraindownError:
    """Return the error to report: `error` itself if it is draindown's, else one that names the
    cause.

    The trace of a foreign error goes to the driver log.
    """
    if isinstance(error, DraindownError):
        return error
    log = logged(error, request)
    try:
        return _foreseen(error, request, stop, log)
    except Exception as bug:  # noqa: BLE001 - an error in finding the cause must not cost the report
        logged(bug, request)
        return _crash(error, request, log)


def _foreseen(error: Exception, request: Request, stop: Stop, log: str) -> DraindownError:
    """Return the error that names the cause of a foreign one; `crash` if the cause is not known."""
    if any(map(of_memory, storage.causes(error))) or _ended(error) == HEAP_EXHAUSTED:
        return _out_of_memory(error, request)
    refused = storage.refusal(
        error, request.layout, tried=_tried(request), changed=_WHOLE, again=request.resume
    )
    if refused is not None:
        return refused
    ended = _stopped(error, request, stop) or _jvm_gone(error, request, log)
    return ended or torn.of_error(error) or _crash(error, request, log)


def _tried(request: Request) -> str:
    return f"{request.step} flow {request.flow} of pipeline {request.spec.pipeline}"


def _stopped(error: Exception, request: Request, stop: Stop) -> TransientError | None:
    """Return the error `stopped` if Spark ended because of a signal: what fails then is not a
    crash. Else None.

    On a cluster Spark also ends if the master is gone, or ends the application: `cluster-gone`.
    """
    ended, context = _ended(error), context_state()
    by = signal.Signals(-ended).name if ended in (-signal.SIGTERM, -signal.SIGINT) else stop.why
    if context == "at work" or (by is None and context != "stopped"):
        return None
    running = SparkContext._active_spark_context
    master = str(getattr(running, "master", spark_settings.DEFAULT_MASTER))
    if by is None and running is not None and not spark_settings.is_local(master):
        return cluster.gone(running, request, error)
    return TransientError(
        "stopped",
        tried=_tried(request),
        found=f"it was told to end{f' by {by}' if by else ''}, and Spark ended before its batch did",
        changed="whole batches only; the same command goes on after the last one",
        next=request.resume,
    )


def _jvm_gone(error: Exception, request: Request, log: str) -> TransientError | None:
    """Return the error `jvm-gone` if the JVM that started this process no longer answers. Else
    None.

    Under spark-submit the JVM is the parent of this process: its exit code can't be read here. One
    that lives although an answer of it was lost is a crash.
    """
    unanswered = any(isinstance(one, _NO_ANSWER) for one in storage.causes(error))
    if _ended(error) is not None or not unanswered or context_state() != "gone":
        return None
    return TransientError(
        "jvm-gone",
        tried=_tried(request),
        found="the JVM of this driver no longer answers: it was killed, or it died",
        changed=_WHOLE,
        next=[
            f"{request.resume}   # goes on after the last whole batch",
            f"less {shlex.quote(log)}   # what Spark said last",
        ],
        in_order=True,
    )


def _out_of_memory(error: Exception, request: Request) -> TerminalError:
    heap = spark_settings.heap()
    doubled = 2 * spark_settings.heap_bytes(heap) // 1024**2
    where = f"a heap of {heap}"
    remedy = f"export DRAINDOWN_DRIVER_MEMORY={doubled}m && {request.resume}"
    executors = cluster.described()
    if executors and any("Lost task" in said(cause) for cause in storage.causes(error)):
        where = f"executors of {executors}"
        remedy = f"set spark.executor.memory in spark-defaults.conf higher, {request.resume}"
    return TerminalError(
        "out-of-memory",
        tried=f"{_tried(request)} in {where}",
        found=f"the heap was too small: {_brief(error)}",
        changed=_WHOLE,
        next=[remedy, "look at what the transform makes of one row, if more memory does not help"],
    )


def _ended(error: Exception) -> int | None:
    """Return the exit code of the JVM that this process started; None if it started none, or it
    still runs.
    """
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    if isinstance(error, _NO_ANSWER):  # the connection closes before the JVM has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECONDS)
    return process.poll()


def failed(request: Request, error: DraindownError, started: datetime) -> StepReport:
    """Return the report of a step that failed: the error, and for a drain the batches done before
    it.
    """
    part, findings = _done_so_far(request) if request.step == "drain" else (None, [])
    return report.of(
        request,
        started,
        "failed",
        error=error.as_dict(),
        drain=part,
        check=error.part if isinstance(error, Refused) else None,
        findings=findings,
    )


def _done_so_far(request: Request) -> tuple[DrainPart | None, list[Finding]]:
    try:
        of_run = ledger_table.of_run(request.layout, request.run_id)
        # drift that a batch met is kept before its commit, which may have failed
        told = schema_drift.findings(
            request.layout, request.declared, "", {row.place for row in of_run}
        )
        rows = [row for row in of_run if row.attempt == request.start]
        part, refused = drain_part.part(request, rows[-1].generation if rows else 0, rows)
    except Exception as error:  # noqa: BLE001 - the error of the step must be reported whatever else fails
        logged(error, request)
        return None, [_incomplete(request, error)]
    return part, [*refused, *told]


def _crash(error: Exception, request: Request, log: str) -> Crash:
    return Crash(
        "crash",
        tried=_tried(request),
        found=_killed(_ended(error)) + _brief(error),
        changed=_WHOLE,
        next=[
            f"{request.resume}   # goes on after the last whole batch",
            f"less {shlex.quote(log)}   # the trace, to report if it comes again",
        ],
        in_order=True,
    )


def _killed(code: int | None) -> str:
    """Return a sentence that names the signal that ended the JVM; empty if none did."""
    if code is None or code >= 0:
        return ""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = ", as the kernel does where memory is short" if -code == signal.SIGKILL else ""
    return f"the JVM was ended by {name}{why}; "


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {shortened(first_line(error))}"


def _on_signals(stop: Stop) -> Callable[[], None]:
    def ask(number: int, frame: object) -> None:
        del frame
        if stop.why:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.ask(signal.Signals(number).name)
        print("draindown: stopping after this batch; once more to stop at once", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore
