"""Maps the end of a step to Airflow's outcomes: success, failure, retry, or reschedule. No other module does."""

from __future__ import annotations

import shlex
import signal
from datetime import datetime, timedelta
from typing import NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException

from draindown.base.errors import DraindownError, TransientError, described
from draindown.base.exits import Exit, exit_for
from draindown.base.formatting import printable_lines
from draindown.runs.report import StepReport

LEASE_HELD = "lease-held"
_HEAP_EXHAUSTED = 52  # Spark's exit code for an OutOfMemoryError
LOOK_AGAIN = timedelta(seconds=30)
PATIENCE = timedelta(hours=1)
"""How long a task waits for a lease before the try fails."""


class LeaseHeld(AirflowException):
    """Another driver holds the flow's lease. Waiting helps, and must not use up the task's retries."""


def verdict(exit_code: int, report: StepReport | None, log: str = "") -> None:
    """Return if the step is done; otherwise raise the exception that makes Airflow fail, retry or reschedule the task.

    `log` is the path of the driver log.

    Raises AirflowFailException (a person must act), LeaseHeld (wait), or AirflowException (retry).
    """
    match exit_code:
        case Exit.DONE if report is None:
            raise AirflowException("the job ended well but left no report: its driver may not see this lake")
        case Exit.DONE:
            return
        case Exit.GATE_FAILED | Exit.NEEDS_PERSON:
            raise AirflowFailException(_account(exit_code, report, log))
        case Exit.TRY_AGAIN if _code(report) == LEASE_HELD:
            raise LeaseHeld(_account(exit_code, report, log))
        case _:
            raise AirflowException(_account(exit_code, report, log))


def fail(error: DraindownError) -> NoReturn:
    """Raise what `verdict` raises for the exit code of a job that ended with `error`."""
    code = exit_for(error)
    kind = AirflowFailException if code in (Exit.GATE_FAILED, Exit.NEEDS_PERSON) else AirflowException
    raise kind(printable_lines(str(error))) from error


def wait_or_fail(held: LeaseHeld, first_wait: datetime | None, now: datetime) -> NoReturn:
    """Reschedule the task outside its retry budget. If it has waited for PATIENCE, fail the try."""
    if first_wait is not None and now - first_wait >= PATIENCE:
        raise AirflowException(f"waited {PATIENCE} for the lease\n{held}") from held
    raise AirflowRescheduleException(now + LOOK_AGAIN) from held  # type: ignore[no-untyped-call]


def _code(report: StepReport | None) -> str | None:
    return (report.error or {}).get("code") if report else None


def _account(exit_code: int, report: StepReport | None, log: str) -> str:
    """Return the error's tried, found, changed and next as text, from the report if there is one."""
    if report is not None and report.error:
        return printable_lines(described(report.error))
    died = TransientError(
        "driver-died",
        tried="run the step's driver to its end",
        found=f"{_ending(exit_code)}; it left no report",
        changed="whole batches only; the ledger lists them",
        next=["clear this task, or let Airflow retry it: it goes on after the last whole batch"]
        + ([f"less {shlex.quote(log)}   # what Spark said last"] if log else []),
    )
    return printable_lines(str(died))


def _ending(exit_code: int) -> str:
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number in signal.valid_signals():
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"the driver was stopped by {signal.Signals(number).name}{hint}"
    hint = " (out of memory)" if exit_code == _HEAP_EXHAUSTED else ""
    return f"the driver ended with exit code {exit_code}{hint}"
