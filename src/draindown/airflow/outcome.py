"""Maps the end of a step to Airflow's outcomes: success, failure, retry, or reschedule. No other module does."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn

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


def verdict(exit_code: int, report: StepReport | None, log: str = "", printed: Mapping[str, Any] | None = None) -> None:
    """Return if the step is done; otherwise raise the exception that makes Airflow fail, retry or reschedule the task.

    `log` is the path of the driver log. `printed`: the error that the driver printed, if it left no report.

    Raises AirflowFailException (a person must act), LeaseHeld (wait), or AirflowException (retry).
    """
    if exit_code == Exit.DONE:
        if report is None:
            raise AirflowException("the job ended well but left no report: its driver may not see this lake")
        return
    error = (report.error if report is not None else printed) or _died(exit_code, report, log).as_dict()
    said = printable_lines(described(error))
    if exit_code in (Exit.GATE_FAILED, Exit.NEEDS_PERSON):
        raise AirflowFailException(said)
    if exit_code == Exit.TRY_AGAIN and error.get("code") == LEASE_HELD:
        raise LeaseHeld(said)
    raise AirflowException(said)


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


def _died(exit_code: int, report: StepReport | None, log: str) -> DraindownError:
    """Return the error of a driver of which nothing is known but its exit code: one of `Exit` is no death."""
    retry = ["clear this task, or let Airflow retry it: it goes on after the last whole batch"]
    look = [f"less {shlex.quote(log)}   # what Spark said last"] if log else []
    if report is None and exit_code in (Exit.GATE_FAILED, Exit.CRASH, Exit.TRY_AGAIN, Exit.NEEDS_PERSON):
        code = "report-not-written"
        found = f"the driver ended in order, with exit code {exit_code}, and its report could not be written"
        retry = retry if exit_code in (Exit.CRASH, Exit.TRY_AGAIN) else []
    else:
        code = "driver-died"
        found = f"{_ending(exit_code)}{'; it left no report' if report is None else ', after its step'}"
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
