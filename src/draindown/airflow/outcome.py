"""Maps the end of a step to Airflow's outcomes: success, failure, retry, or reschedule. No other
module does.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from airflow.sdk import RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowRescheduleException

from draindown.base import panics
from draindown.base.errors import (
    Crash,
    DraindownError,
    TransientError,
    described,
    first_line,
    next_steps,
)
from draindown.base.exits import Exit, exit_for
from draindown.base.formatting import printable, printable_lines, shortened
from draindown.runs.report import StepReport

if TYPE_CHECKING:
    from airflow.sdk import Context

# as operators have it; not all of logging's reaches a task's log
_LOG = structlog.get_logger("airflow.task")
LEASE_HELD = "lease-held"
_HEAP_EXHAUSTED = 52  # Spark's exit code for an OutOfMemoryError
LOOK_AGAIN = timedelta(seconds=30)
PATIENCE = timedelta(hours=1)
"""How long a task waits for a lease before the try fails."""


class StepFailed(SystemExit):
    """A foreseen failure of a task. Airflow logs the end of a task by SystemExit without a
    traceback.

    `error`: as `DraindownError.as_dict` returns it. `is_final`: a person must act; Airflow does not
    retry.
    """

    def __init__(self, error: Mapping[str, Any], code: int) -> None:
        super().__init__(int(code))
        self.error, self.is_final = dict(error), code in (Exit.GATE_FAILED, Exit.NEEDS_PERSON)

    def __str__(self) -> str:
        return printable_lines(described(self.error))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.error, self.code))


class LeaseHeld(Exception):
    """Another driver holds the flow's lease. Waiting helps, and must not use up the task's retries.

    `error`: as `DraindownError.as_dict` returns it.
    """

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(printable_lines(described(error)))
        self.error = dict(error)


class OnlyIfItHelps(RetryPolicy):
    """Do not retry a task that failed until a person acts."""

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """Return the decision for an error of a task."""
        del try_number, max_tries, context
        is_final = isinstance(exception, StepFailed) and exception.is_final
        return RetryDecision.fail() if is_final else RetryDecision.default()


def verdict(
    exit_code: int,
    report: StepReport | None,
    log: str = "",
    printed: Mapping[str, Any] | None = None,
) -> None:
    """Return if the step is done; otherwise raise the exception that makes Airflow fail, retry or
    reschedule the task.

    `log` is the path of the driver log. `printed`: the error that the driver printed, if it left no
    report. An error that no report has, so no card shows, is logged.

    Raises StepFailed, or LeaseHeld (wait).
    """
    if exit_code == Exit.DONE and report is not None:
        return
    reported = report.error if report is not None else None
    error = reported or printed or _died(exit_code, report, log).as_dict()
    if exit_code == Exit.TRY_AGAIN and error.get("code") == LEASE_HELD:
        raise LeaseHeld(error)
    if not reported:
        _tell(error)
    raise StepFailed(error, exit_code or Exit.CRASH)


def fail(error: DraindownError) -> NoReturn:
    """Log an error and raise what `verdict` raises for the exit code of a job that ended with
    it.
    """
    fail_with(error.as_dict(), exit_for(error))


def fail_with(error: Mapping[str, Any], code: int) -> NoReturn:
    """Log an error, as `DraindownError.as_dict` returns it, and raise StepFailed with the exit code
    of such a job.
    """
    _tell(error)
    raise StepFailed(error, code) from None


@contextmanager
def panics_named(tried: str) -> Iterator[None]:
    """Raise a panic of the block as a Crash: of a library's own trace Airflow would log all."""
    try:
        with panics.as_error():
            yield
    except panics.Panic as error:
        raise Crash(
            "crash",
            tried=tried,
            found=f"{type(error).__name__}: {shortened(first_line(error))}",
            next=[
                "clear this task, or let Airflow retry it",
                "df -h   # a full disk makes libraries panic",
            ],
        ) from None


def wait_or_fail(held: LeaseHeld, first_wait: datetime | None, now: datetime) -> NoReturn:
    """Reschedule the task outside its retry budget. If it has waited for PATIENCE, fail the try."""
    if first_wait is not None and now - first_wait >= PATIENCE:
        error = held.error | {
            "found": f"waited {PATIENCE} for the lease; {held.error.get('found')}"
        }
        fail_with(error, Exit.TRY_AGAIN)
    raise AirflowRescheduleException(now + LOOK_AGAIN) from held  # type: ignore[no-untyped-call]


def say_next(context: Context) -> None:
    """Log the command to type as the last line of a task that failed. A callback of Airflow, which
    logs the error.
    """
    error, task = context.get("exception"), context.get("task")
    known = error.error if isinstance(error, StepFailed) else {}
    spec, flow = getattr(task, "spec", None), getattr(task, "flow", "")
    about = "/".join(filter(None, (spec.pipeline, flow))) if spec is not None else ""
    doctor = f"{f'draindown doctor {about}'.rstrip()}   # then clear this task"
    label, command = next(iter(next_steps(known)), ("next", doctor))
    _LOG.info("::endgroup::")  # Airflow folds what is logged after the task
    _LOG.error(f"{label}: {printable(command)}")


def _tell(error: Mapping[str, Any]) -> None:
    for line in printable_lines(described(error)).splitlines():
        _LOG.error(line)


def _died(exit_code: int, report: StepReport | None, log: str) -> DraindownError:
    """Return the error of a driver of which nothing is known but its exit code: one of `Exit` is no
    death.
    """
    retry = ["clear this task, or let Airflow retry it: it goes on after the last whole batch"]
    look = [f"less {shlex.quote(log)}   # what Spark said last"] if log else []
    if exit_code == Exit.DONE:
        code, retry = "report-not-written", retry[:1]
        found = "the driver ended well, and left no report: it may not see this lake"
    elif report is None and exit_code in (
        Exit.GATE_FAILED,
        Exit.CRASH,
        Exit.TRY_AGAIN,
        Exit.NEEDS_PERSON,
    ):
        code = "report-not-written"
        found = f"the driver ended in order, with exit code {exit_code}, and its report could not be written"
        retry = retry if exit_code in (Exit.CRASH, Exit.TRY_AGAIN) else []
    else:
        code = "driver-died"
        found = (
            f"{_ending(exit_code)}{'; it left no report' if report is None else ', after its step'}"
        )
    return TransientError(
        code,
        tried="run the step's driver to its end",
        found=found,
        changed="whole batches only; the ledger lists them",
        next=[*retry, *look],
    )


def _ending(exit_code: int) -> str:
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number in signal.valid_signals():
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"the driver was stopped by {signal.Signals(number).name}{hint}"
    hint = " (out of memory)" if exit_code == _HEAP_EXHAUSTED else ""
    return f"the driver ended with exit code {exit_code}{hint}"
