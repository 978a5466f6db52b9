"""The run card says what happened, adds the numbers up itself, and fits a terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from draindown.base.findings import Finding
from draindown.ledger.rows import BatchRow, total
from draindown.runs.card import card, verdict
from draindown.runs.report import Backlog, CheckPart, CompactPart, DrainPart, Expectation, PlanPart, StepReport

AT = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)

GOLDEN = """\
OK  flights/flights  drained 104 files, 1,003,210 rows -> 998,001 applied  in 48 s
run       scheduled__2026-11-21T03:00:00+00:00
rows      applied        998,001  inserted 336,776  updated 660,175  deleted 950  remembered 100
          superseded       3,000
          duplicate        1,225
          quarantined        984  malformed 700, type:dep_delay 284
          late                 0
          records      1,003,210
          adds up ✓  (2 blank lines apart)
batches   1 batch of generation 1; 2 files parked
backlog   104 files, 31.2 MB, oldest 3 h 5 min -> nothing
gate      passed: 2 expectations on 336,000 changed rows held, 1 waived; published 3 (was none)
          waived  expect_column_values_to_be_between:dep_delay  3 of 336,000 changed rows  e.g. 1301
compact   40 files -> 12 in 12 partitions, 64.0 MB rewritten  (small files)
finding   parked  landing/flights/x.json.gz  corrupt-gzip: is damaged after 10 bytes
          next: draindown quarantine list flights --files"""


def batch(**changes: Any) -> dict[str, Any]:
    numbers = {
        "files": 104,
        "lines": 1_003_212,
        "blank": 2,
        "records": 1_003_210,
        "superseded": 3000,
        "duplicate": 1225,
    }
    done = {"inserted": 336_776, "updated": 660_175, "deleted": 950, "remembered": 100, "quarantined": 984}
    row = BatchRow(
        "flights", "flights", 1, 0, "r", reasons={"type:dep_delay": 284, "malformed": 700}, **(numbers | done)
    )
    return row.as_dict() | changes


def step(name: Any, seconds: float = 0, outcome: Any = "done", **parts: Any) -> StepReport:
    ends = {"started_at": AT, "finished_at": AT + timedelta(seconds=seconds)}
    who = {"pipeline": "flights", "flow": "flights", "run_id": "scheduled__2026-11-21T03:00:00+00:00"}
    return StepReport.model_validate({**who, **ends, "step": name, "outcome": outcome, **parts})


def drained(**changes: Any) -> StepReport:
    batches = [batch()]
    part = DrainPart(
        generation=1,
        before=Backlog(files=104, bytes=32_715_571, oldest_seconds=11_100),
        after=Backlog(),
        new_files=104,
        parked_files=2,
        batches=batches,
        totals=total([BatchRow.from_dict(b) for b in batches]),
    )
    finding = Finding(
        kind="parked",
        subject="landing/flights/x.json.gz",
        detail="corrupt-gzip: is damaged after 10 bytes",
        next="draindown quarantine list flights --files",
    )
    return step("drain", 40, drain=part.model_copy(update=changes), findings=[finding])


def checked(*failed: Expectation, published: int | None = 3) -> StepReport:
    good = Expectation(name="good", success=True, scope="changed")
    part = CheckPart(version=3, published_after=published, changed_rows=336_000, expectations=[good, *failed])
    return step("check", 6, check=part)


def failing(**more: Any) -> Expectation:
    fields = {"unexpected": 3, "judged": 336_000, "sample": [1301], "scope": "changed", "success": False}
    name = "expect_column_values_to_be_between:dep_delay"
    return Expectation.model_validate({"name": name, **fields, **more})


def compacted() -> StepReport:
    part = CompactPart(
        evidence="small files",
        partitions=[str(i) for i in range(12)],
        files_before=40,
        files_after=12,
        bytes_rewritten=64 * 1024**2,
    )
    return step("compact", 2, compact=part)


def test_a_good_run_reads_as_a_person_would_say_it() -> None:
    assert card([step("plan"), drained(), checked(failing(waived=True)), compacted()]) == GOLDEN


@pytest.mark.parametrize(
    "name", ["applied", "superseded", "duplicate", "quarantined", "late", "records", "blank", "deleted"]
)
def test_the_card_adds_up_by_itself(name: str) -> None:
    right = drained().drain
    assert right is not None
    wrong = dict(right.totals) | {name: right.totals[name] + 1}
    text = card([drained(totals=wrong)])
    assert "DOES NOT ADD UP" in text and "✓" not in text


def test_an_idle_run_says_so_in_its_first_line() -> None:
    plan = step("plan", 0.4, "idle", plan=PlanPart(backlog=Backlog()))
    assert card([plan]).splitlines()[0] == "IDLE  flights/flights  no new input; nothing to do  in 0.4 s"


WANTED = PlanPart(backlog=Backlog(files=1), drain=True, check=True, compact=True)


def test_a_step_without_a_report_is_not_called_ok() -> None:
    said = verdict([step("plan", plan=WANTED)])
    assert said.startswith("UNFINISHED  flights/flights  drain left no report") and "nothing to do" not in said
    said = verdict([step("plan", plan=WANTED), drained(), compacted()])
    assert said.startswith("UNFINISHED  flights/flights  check left no report")
    idle = WANTED.model_copy(update={"drain": False, "compact": False})
    assert verdict([step("plan", plan=idle)]).startswith("UNFINISHED  flights/flights  check left no report")
    assert verdict([step("plan", plan=WANTED), drained(), checked()]).startswith("OK  flights/flights  drained")


def test_what_an_earlier_attempt_of_a_cleared_run_left_is_not_told() -> None:
    before = drained()
    after = before.finished_at + timedelta(seconds=1)
    planned = step("plan", plan=WANTED).model_copy(update={"started_at": after, "finished_at": after})
    assert verdict([planned, before]).startswith("UNFINISHED") and card([planned, before]).startswith("UNFINISHED")
    again = before.model_copy(update={"started_at": after, "finished_at": after})
    assert verdict([planned, again]).startswith("UNFINISHED  flights/flights  check left no report")


def test_a_verdict_from_before_the_drain_was_done_again_is_not_told() -> None:
    error = {"code": "gate-failed", "tried": "publish", "found": "3 rows", "changed": "nothing", "next": []}
    judged = checked(failing(), published=None).model_copy(update={"outcome": "failed", "error": error})
    planned = step("plan", plan=WANTED)
    assert verdict([planned, drained(), judged]).startswith("FAILED")
    later = judged.finished_at + timedelta(seconds=1)
    again = drained().model_copy(update={"started_at": later, "finished_at": later})
    assert verdict([planned, again, judged]).startswith("UNFINISHED  flights/flights  check left no report")


def test_a_check_that_was_left_out_is_named() -> None:
    wanted = WANTED.model_copy(update={"left_out": ("check",)})
    said = verdict([step("plan", plan=wanted), drained()])
    assert said.startswith("OK") and "-> 998,001 applied; not checked  in" in said
    idle = step("plan", plan=wanted.model_copy(update={"drain": False, "compact": False}))
    assert verdict([idle]).startswith("OK  flights/flights  no new input; not checked  in")
    unneeded = wanted.model_copy(update={"drain": False, "check": False, "compact": False})
    assert "not checked" not in verdict([step("plan", outcome="idle", plan=unneeded)])


def test_a_refused_check_names_the_expectation_its_rows_and_the_next_command() -> None:
    error = {"code": "gate-failed", "tried": "publish", "found": "3 rows", "changed": "nothing was published"}
    check = checked(failing(), published=None)
    check = check.model_copy(update={"outcome": "failed", "error": error | {"next": ["draindown gate show flights"]}})
    text = card([drained(), check])
    assert text.startswith("FAILED  flights/flights  the gate refused the rows; nothing was published")
    assert "failed  expect_column_values_to_be_between:dep_delay  3 of 336,000 changed rows" in text
    assert "published stays none" in text
    assert "next: draindown gate show flights" in text


def test_an_error_shows_its_four_parts_and_never_cuts_a_command() -> None:
    command = "draindown quarantine replay flights --flow flights --reason type --run " + "x" * 80
    error = {"code": "input-changed", "tried": "t" * 500, "found": "f" * 500, "changed": "c" * 500, "next": [command]}
    text = card([step("drain", 1, "failed", error=error)])
    assert "input-changed in drain" in text
    assert command in text.splitlines()[-1]
    for name in ("found: f", "tried: t", "changed: c"):
        assert name in text


def test_the_worst_card_fits_thirty_lines_and_a_hundred_columns() -> None:
    many = [Finding(kind="parked", subject="p" * 300 + str(i), detail="d" * 300, next="act") for i in range(50)]
    error = {"code": "gate-failed", "tried": "t" * 900, "found": "f" * 900, "changed": "c" * 900, "next": ["a"] * 9}
    refused = checked(*(failing(name=f"{'n' * 150}{i}", detail="d" * 500) for i in range(20)), published=None)
    reasons = {f"{'r' * 60}{i}": 1 for i in range(30)}
    drain = drained(batches=[batch(reasons=reasons)]).model_copy(update={"findings": many})
    failed = refused.model_copy(update={"outcome": "failed", "error": error})
    lines = card([step("plan"), drain, failed, compacted()]).splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 100
    assert any("and 48 more" in line for line in lines)


def test_foreign_text_cannot_command_the_terminal() -> None:
    finding = Finding(kind="ignored", subject="a\x1b[2Jb", detail="c\r\nd\u202ee")
    text = card([step("drain", findings=[finding])])
    assert "\x1b" not in text and "\r" not in text and "\u202e" not in text
    assert "a\\x1b[2Jb" in text and "c\\r\\nd\\u202ee" in text


def test_each_flow_has_its_own_block() -> None:
    other = drained().model_copy(update={"flow": "other"})
    blocks = card([drained(), other]).split("\n\n")
    assert [block.splitlines()[0].split("  ")[1] for block in blocks] == ["flights/flights", "flights/other"]


def test_no_reports_is_said() -> None:
    assert card([]) == "no reports: nothing ran, or every step died before it could write one"


def test_a_bounded_run_is_marked() -> None:
    stopped = drained(bound="max_batches: 1").model_copy(update={"outcome": "bounded"})
    assert verdict([stopped]).startswith("STOPPED EARLY")
    assert "max_batches: 1" in card([stopped])
