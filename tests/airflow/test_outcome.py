"""Every way a job can end, and what Airflow is told."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException

from draindown.airflow.outcome import LOOK_AGAIN, PATIENCE, LeaseHeld, fail, verdict, wait_or_fail
from draindown.base.clock import now
from draindown.base.errors import DraindownError, GateFailed, TerminalError, TransientError
from draindown.runs.report import StepReport


def left(code: str | None) -> StepReport:
    """A report that ended with error `code`, or well."""
    error = None if code is None else TerminalError(code, tried="t", found="f", next=["draindown run p"]).as_dict()
    outcome = "done" if code is None else "failed"
    at = now()
    return StepReport(
        pipeline="p", flow="f", run_id="r", step="drain", outcome=outcome, started_at=at, finished_at=at, error=error
    )


@pytest.mark.parametrize(
    ("exit_code", "report", "raised"),
    [
        (0, left(None), None),
        (0, None, AirflowException),
        (65, left("gate-failed"), AirflowFailException),
        (65, None, AirflowFailException),
        (78, left("checkpoint-mismatch"), AirflowFailException),
        (75, left("storage"), AirflowException),
        (75, left("lease-held"), LeaseHeld),
        (70, left("unforeseen"), AirflowException),
        (1, None, AirflowException),
        (2, None, AirflowException),
        (-9, None, AirflowException),
        (143, None, AirflowException),
        (9999, None, AirflowException),
    ],
)
def test_verdict(exit_code: int, report: StepReport | None, raised: type[Exception] | None) -> None:
    if raised is None:
        verdict(exit_code, report)
        return
    with pytest.raises(AirflowException) as caught:
        verdict(exit_code, report)
    assert type(caught.value) is raised


def test_verdict_says_what_to_type() -> None:
    with pytest.raises(AirflowFailException, match=r"checkpoint-mismatch: f(.|\n)*next: *draindown run p"):
        verdict(78, left("checkpoint-mismatch"))


@pytest.mark.parametrize(("exit_code", "said"), [(-9, "SIGKILL .out of memory"), (137, "SIGKILL"), (3, "exit code 3")])
def test_verdict_names_how_a_driver_died(exit_code: int, said: str) -> None:
    with pytest.raises(AirflowException, match=f"driver-died: .*{said}"):
        verdict(exit_code, None)


def test_a_driver_that_died_after_its_step_is_not_said_to_have_left_no_report() -> None:
    with pytest.raises(AirflowException, match=r"driver-died: the driver was stopped by SIGKILL.*, after its step"):
        verdict(-9, left(None))


@pytest.mark.parametrize(("exit_code", "helps"), [(65, False), (70, True), (75, True), (78, False)])
def test_a_driver_that_ended_in_order_without_a_report_did_not_die(exit_code: int, helps: bool) -> None:
    with pytest.raises(AirflowException, match="report-not-written: ") as caught:
        verdict(exit_code, None, "its.log")
    assert ("let Airflow retry" in str(caught.value)) == helps
    assert isinstance(caught.value, AirflowFailException) != helps
    assert "less its.log" in str(caught.value)


def test_what_a_driver_printed_stands_for_a_report_that_it_could_not_write() -> None:
    for code, exit_code, raised in (("disk-full", 78, AirflowFailException), ("lease-held", 75, LeaseHeld)):
        with pytest.raises(raised, match=f"{code}: f"):
            verdict(exit_code, None, printed=left(code).error)
    verdict(0, left(None), printed=left("disk-full").error)


@pytest.mark.parametrize(
    ("kind", "raised"),
    [(TerminalError, AirflowFailException), (GateFailed, AirflowFailException), (TransientError, AirflowException)],
)
def test_an_error_in_plan_is_judged_like_a_job_that_met_it(
    kind: type[DraindownError], raised: type[AirflowException]
) -> None:
    with pytest.raises(AirflowException, match="code: found") as caught:
        fail(kind("code", tried="t", found="found"))
    assert type(caught.value) is raised


def test_a_held_lease_waits_outside_the_retries_and_not_for_ever() -> None:
    at = now()
    with pytest.raises(AirflowRescheduleException) as caught:
        wait_or_fail(LeaseHeld("held by x"), None, at)
    assert caught.value.reschedule_date == at + LOOK_AGAIN
    with pytest.raises(AirflowRescheduleException):
        wait_or_fail(LeaseHeld("held by x"), at - PATIENCE + timedelta(seconds=1), at)
    with pytest.raises(AirflowException, match="held by x") as given_up:
        wait_or_fail(LeaseHeld("held by x"), at - PATIENCE, at)
    assert type(given_up.value) is AirflowException


def test_s10_what_an_error_quotes_does_not_command_the_terminal() -> None:
    hostile = TerminalError("code", tried="\x1b[2J", found="a\rb\u202e\u2028c", changed="\x9b31m", next="\x00")
    report = left(None).model_copy(update={"outcome": "failed", "error": hostile.as_dict()})
    for act in (lambda: fail(hostile), lambda: verdict(78, report)):
        with pytest.raises(AirflowFailException) as caught:
            act()
        assert not [c for c in str(caught.value) if c != "\n" and not c.isprintable()]
