"""A spark-submit job around one step: decode the request, run it, leave a report whatever happens, exit by its code."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NoReturn

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.errors import DraindownError, TerminalError, said
from draindown.base.exits import Exit, exit_for
from draindown.base.formatting import printable_lines
from draindown.flow import schema_drift
from draindown.gate.refusal import Refused
from draindown.launch import settings as spark_settings
from draindown.ledger import rows as ledger_rows
from draindown.ledger import table as ledger_table
from draindown.runs import report, store
from draindown.runs.report import DrainPart, StepReport
from draindown.runs.request import Request, Step
from draindown.spark.limits import Stop
from draindown.spark.session import session

_HEAP_EXHAUSTED = 52
"""How Spark ends a JVM in which a task found no memory."""
_ENDING_SECONDS = 30.0
Work = Callable[[Request, SparkSession, Stop], StepReport]
"""One step: what to do with a request and a session."""


def job_main(step: Step, work: Work, argv: list[str] | None = None) -> NoReturn:
    """The main of a job in jobs/. Its last line on stdout is `draindown: {json}`; its exit code one of `Exit`."""
    parser = argparse.ArgumentParser(prog=f"{step}.py", description=f"The {step} step of one flow.")
    parser.add_argument("--request", required=True, help="what `Request.encode` returned")
    try:
        request = Request.decode(parser.parse_args(argv).request)
    except DraindownError as error:
        print(error, file=sys.stderr)
        _last_line({"step": step, "outcome": "failed", "error": error.as_dict()})
        sys.exit(exit_for(error))
    outcome, code = attempt(request, lambda stop: work(request, _session(request), stop))
    _last_line({"step": step, "outcome": outcome.outcome, "run_id": outcome.run_id, "error": outcome.error})
    sys.exit(code)


def attempt(request: Request, work: Callable[[Stop], StepReport]) -> tuple[StepReport, Exit]:
    """Do the work; whatever becomes of it, a report is written (if the disk takes it) and returned with the exit code.

    The first SIGTERM or SIGINT asks for an end before the next batch, the second ends at once (the next run resumes).
    """
    started, stop = now(), Stop()
    restore = _on_signals(stop)
    try:
        result, code = work(stop), Exit.DONE
    except Exception as raised:
        error = _foreseen(raised, request)
        result, code = failed(request, error, started), exit_for(error)
        text = str(error) if isinstance(error, DraindownError) else traceback.format_exc()
        print(printable_lines(text), file=sys.stderr)  # it may quote a record
    finally:
        restore()
    return result, _left(request, result, code)


def _left(request: Request, result: StepReport, code: Exit) -> Exit:
    """Write the report; where that fails, as on a full disk, the step is not done, whatever it says itself."""
    try:
        store.write(request.layout, result)
        store.forget_old(request.layout)
    except OSError as error:
        print(f"draindown: the report could not be written: {error}", file=sys.stderr)
        return code or Exit.CRASH
    return code


def _foreseen(error: Exception, request: Request) -> Exception:
    """The error to report: the one raised, or where the heap was too small one that says so."""
    if isinstance(error, DraindownError):
        return error
    if not any("OutOfMemoryError" in said(one) for one in _chain(error)) and _ended(error) != _HEAP_EXHAUSTED:
        return error
    heap = spark_settings.heap()
    return TerminalError(
        "out-of-memory",
        tried=f"{request.step} flow {request.flow} of pipeline {request.spec.pipeline} in a heap of {heap}",
        found=f"the heap was too small: {_first_line(error)}",
        changed="whole batches only; the ledger lists them",
        next=[
            f"export DRAINDOWN_DRIVER_MEMORY={2 * spark_settings.heap_bytes(heap) // 1024**2}m   # then the same again",
            "look at what the transform makes of one row, if more memory does not help",
        ],
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those it came of: what tidies up after the first one may fail too, and be raised in its place."""
    seen, at = set[int](), [error]
    while at:
        one = at.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            at += [before for before in (one.__cause__, one.__context__) if before is not None]


def _ended(error: Exception) -> int | None:
    """How the JVM ended, if one was started here and did."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    if isinstance(error, (ConnectionError, Py4JNetworkError)):  # it answers no more; its exit takes a moment longer
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECONDS)
    return process.poll()


def failed(request: Request, error: Exception, started: datetime) -> StepReport:
    """The report of a step that ended in an error: what the error says, and for a drain what was done before it."""
    return report.of(
        request,
        started,
        "failed",
        error=error.as_dict() if isinstance(error, DraindownError) else _crash(error, request),
        drain=_done_so_far(request) if request.step == "drain" else None,
        check=error.part if isinstance(error, Refused) else None,
        findings=schema_drift.findings(request.layout, request.flow_spec, request.run_id)
        if request.step == "drain"
        else [],
    )


def _done_so_far(request: Request) -> DrainPart | None:
    try:
        rows = ledger_table.of_run(request.layout, request.run_id)
    except Exception:  # the report of the error matters more than its embellishment
        return None
    batches = [row.as_dict() for row in rows]
    generation = rows[-1].generation if rows else 0
    return DrainPart(generation=generation, batches=batches, totals=ledger_rows.total(rows))


def _crash(error: Exception, request: Request) -> dict[str, object]:
    return DraindownError(
        "crash",
        tried=f"{request.step} flow {request.flow} of pipeline {request.spec.pipeline}",
        found=_killed(_ended(error)) + _first_line(error),
        changed="whole batches only; the ledger lists them",
        next=["retry: it resumes where it ended", f"draindown audit {request.spec.pipeline}"],
    ).as_dict()


def _killed(code: int | None) -> str:
    """Which signal ended the JVM, in words, if one did."""
    if code is None or code >= 0:
        return ""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = ", as the kernel does where memory is short" if -code == signal.SIGKILL else ""
    return f"the JVM was ended by {name}{why}; "


def _first_line(error: Exception) -> str:
    text = said(error)
    if isinstance(error, Py4JJavaError):  # which call it was, and then the exception, after a colon
        text = text.partition("\n: ")[2] or text
    return f"{type(error).__name__}: {text.strip().splitlines()[0][:500] if text.strip() else ''}"


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


def _session(request: Request) -> SparkSession:
    return session(f"draindown {request.spec.pipeline}.{request.flow} {request.step}")


def _last_line(content: dict[str, object]) -> None:
    print("draindown: " + json.dumps(content, default=str), flush=True)
