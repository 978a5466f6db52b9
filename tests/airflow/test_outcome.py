"""Every way a job can end, and what Airflow is told."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowRescheduleException
from structlog.testing import capture_logs

from draindown.airflow.outcome import (
    LOOK_AGAIN,
    PATIENCE,
    LeaseHeld,
    OnlyIfItHelps,
    StepFailed,
    fail,
    panics_named,
    say_next,
    verdict,
    wait_or_fail,
)
from draindown.base.clock import now
from draindown.base.errors import DraindownError, GateFailed, TerminalError, TransientError
from draindown.runs.report import StepReport


def left(code: str | None) -> StepReport:
    """A report that ended with error `code`, or well."""
    error = (
        None
        if code is None
        else TerminalError(code, tried="t", found="f", next=["draindown run p"]).as_dict()
    )
    outcome = "done" if code is None else "failed"
    at = now()
    return StepReport(
        pipeline="p",
        flow="f",
        run_id="r",
        step="drain",
        outcome=outcome,
        started_at=at,
        finished_at=at,
        error=error,
    )


@pytest.mark.parametrize(
    ("exit_code", "report", "ends"),
    [
        (0, left(None), "done"),
        (0, None, "retry"),
        (65, left("gate-failed"), "final"),
        (65, None, "final"),
        (78, left("checkpoint-mismatch"), "final"),
        (75, left("storage"), "retry"),
        (75, left("lease-held"), "wait"),
        (70, left("unforeseen"), "retry"),
        (1, None, "retry"),
        (2, None, "retry"),
        (-9, None, "retry"),
        (143, None, "retry"),
        (9999, None, "retry"),
    ],
)
def test_verdict(exit_code: int, report: StepReport | None, ends: str) -> None:
    if ends == "done":
        verdict(exit_code, report)
        return
    with pytest.raises((StepFailed, LeaseHeld)) as caught:
        verdict(exit_code, report)
    assert isinstance(caught.value, LeaseHeld) == (ends == "wait")
    if isinstance(caught.value, StepFailed):
        assert caught.value.code, (
            "Airflow takes the end of a process with 0 for a failure, too; people do not"
        )
        decided = OnlyIfItHelps().evaluate(caught.value, 1, 3).action
        assert decided == (RetryAction.FAIL if ends == "final" else RetryAction.DEFAULT)
        assert not isinstance(caught.value, Exception), "Airflow logs a traceback of these"


def test_other_errors_are_retried_as_airflow_does() -> None:
    assert OnlyIfItHelps().evaluate(ValueError("x"), 1, 3).action == RetryAction.DEFAULT


def test_verdict_says_what_to_type() -> None:
    with pytest.raises(StepFailed, match=r"checkpoint-mismatch: f(.|\n)*next: *draindown run p"):
        verdict(78, left("checkpoint-mismatch"))


LONG = f"draindown run p/f --root /{'x' * 300}   # goes on"


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (
            StepFailed(
                TerminalError("c", tried="t", found="f", next=[LONG, "other"]).as_dict(), 78
            ),
            f"next: {LONG}",
        ),
        (
            StepFailed(
                TerminalError("c", tried="t", found="f", next=["a", "b"], in_order=True).as_dict(),
                70,
            ),
            "next 1: a",
        ),
        (
            StepFailed(TerminalError("c", tried="t", found="f").as_dict(), 78),
            "next: draindown doctor p/f",
        ),
        (ValueError("a bug"), "next: draindown doctor p/f"),
        (None, "next: draindown doctor p/f"),
    ],
)
def test_the_last_line_is_what_to_type_and_whole(error: BaseException | None, last: str) -> None:
    task = SimpleNamespace(spec=SimpleNamespace(pipeline="p"), flow="f")
    with capture_logs() as logged:
        say_next(cast(Any, {"exception": error, "task": task}))
    assert logged[-1]["event"].removesuffix("   # then clear this task") == last


def test_a_panic_of_a_library_is_an_error_without_its_trace() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(DraindownError) as caught, panics_named("plan flow f"):
        raise panic("Already shut down\nstack backtrace: 1: x")
    assert caught.value.code == "crash" and "backtrace" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    with pytest.raises(KeyboardInterrupt), panics_named("plan flow f"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("exit_code", "said"), [(-9, "SIGKILL .out of memory"), (137, "SIGKILL"), (3, "exit code 3")]
)
def test_verdict_names_how_a_driver_died(exit_code: int, said: str) -> None:
    with pytest.raises(StepFailed, match=f"driver-died: .*{said}"):
        verdict(exit_code, None)


def test_a_driver_that_died_after_its_step_is_not_said_to_have_left_no_report() -> None:
    with pytest.raises(
        StepFailed, match=r"driver-died: the driver was stopped by SIGKILL.*, after its step"
    ):
        verdict(-9, left(None))


@pytest.mark.parametrize(("exit_code", "helps"), [(65, False), (70, True), (75, True), (78, False)])
def test_a_driver_that_ended_in_order_without_a_report_did_not_die(
    exit_code: int, helps: bool
) -> None:
    with pytest.raises(StepFailed, match="report-not-written: ") as caught:
        verdict(exit_code, None, "its.log")
    assert ("let Airflow retry" in str(caught.value)) == helps
    assert caught.value.is_final != helps
    assert "less its.log" in str(caught.value)


def test_what_a_driver_printed_stands_for_a_report_that_it_could_not_write() -> None:
    for code, exit_code, raised in (("disk-full", 78, StepFailed), ("lease-held", 75, LeaseHeld)):
        with pytest.raises(raised, match=f"{code}: f"):
            verdict(exit_code, None, printed=left(code).error)
    verdict(0, left(None), printed=left("disk-full").error)


@pytest.mark.parametrize(
    ("kind", "is_final"), [(TerminalError, True), (GateFailed, True), (TransientError, False)]
)
def test_an_error_in_plan_is_judged_like_a_job_that_met_it(
    kind: type[DraindownError], is_final: bool
) -> None:
    with pytest.raises(StepFailed, match="code: found") as caught:
        fail(kind("code", tried="t", found="found"))
    assert caught.value.is_final == is_final


def test_a_held_lease_waits_outside_the_retries_and_not_for_ever() -> None:
    at, held = (
        now(),
        LeaseHeld(TransientError("lease-held", tried="t", found="held by x").as_dict()),
    )
    with pytest.raises(AirflowRescheduleException) as caught:
        wait_or_fail(held, None, at)
    assert caught.value.reschedule_date == at + LOOK_AGAIN
    with pytest.raises(AirflowRescheduleException):
        wait_or_fail(held, at - PATIENCE + timedelta(seconds=1), at)
    with pytest.raises(StepFailed, match="held by x") as given_up:
        wait_or_fail(held, at - PATIENCE, at)
    assert not given_up.value.is_final


def test_s10_what_an_error_quotes_does_not_command_the_terminal() -> None:
    hostile = TerminalError(
        "code", tried="\x1b[2J", found="a\rb\u202e\u2028c", changed="\x9b31m", next="\x00"
    )
    report = left(None).model_copy(update={"outcome": "failed", "error": hostile.as_dict()})
    for act in (lambda: fail(hostile), lambda: verdict(78, report)):
        with pytest.raises(StepFailed) as caught:
            act()
        assert not [c for c in str(caught.value) if c != "\n" and not c.isprintable()]
