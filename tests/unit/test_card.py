"""The run card says what happened, adds the numbers up itself, and fits a terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.ledger.rows import BatchRow, total
from draindown.runs.card import ALL_FINDINGS, card, verdict
from draindown.runs.report import (
    Backlog,
    CheckPart,
    CompactPart,
    DrainPart,
    Expectation,
    PlanPart,
    RunSums,
    StepReport,
)
from draindown.runs.unfinished import Unfinished

AT = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)

GOLDEN = """\
OK  flights/flights  104 files, 1,003,210 records -> 998,001 applied; version 3 published  in 48 s
run          scheduled__2026-11-21T03:00:00+00:00
records      1,003,210 read = 998,001 applied + 3,000 superseded + 1,225 duplicate + 984 quarantined  ✓
applied      336,776 inserted, 660,175 updated, 950 deleted, 100 deletes of keys that were not in the table
quarantined  0.1%: malformed 700, type:dep_delay 284
batches      1 batch of generation 1; 2 files parked
waiting      nothing (before: 104 files, 31.2 MB, oldest 3 h 5 min)
check        1 of 2 expectations held on 336,000 changed rows, 1 waived; published version 3 (none before)
             waived  expect_column_values_to_be_between:dep_delay  3 of 336,000 changed rows  e.g. 1301
compact      40 files -> 12 in 12 partitions, 64.0 MB rewritten  (small files)
finding      parked  landing/flights/x.json.gz  corrupt-gzip: is damaged after 10 bytes
             next: draindown input list flights"""


def batch(**changes: Any) -> dict[str, Any]:
    numbers = {
        "inputs": 104,
        "records": 1_003_210,
        "superseded": 3000,
        "duplicate": 1225,
    }
    done = {
        "inserted": 336_776,
        "updated": 660_175,
        "deleted": 950,
        "tombstoned": 100,
        "quarantined": 984,
    }
    row = BatchRow(
        "flights",
        "flights",
        1,
        0,
        "r",
        reasons={"type:dep_delay": 284, "malformed": 700},
        **(numbers | done),
    )
    return row.as_dict() | changes


def step(name: Any, seconds: float = 0, outcome: Any = "done", **parts: Any) -> StepReport:
    ends = {"started_at": AT, "finished_at": AT + timedelta(seconds=seconds)}
    who = {
        "pipeline": "flights",
        "flow": "flights",
        "run_id": "scheduled__2026-11-21T03:00:00+00:00",
    }
    return StepReport.model_validate({**who, **ends, "step": name, "outcome": outcome, **parts})


def drained(**changes: Any) -> StepReport:
    batches = [batch()]
    part = DrainPart(
        generation=1,
        before=Backlog(units=104, bytes=32_715_571, oldest_seconds=11_100),
        after=Backlog(),
        taken=104,
        kept_out=2,
        batches=batches,
        totals=total([BatchRow.from_dict(b) for b in batches]),
        quarantined_share=984 / 1_003_210,
    )
    finding = Finding(
        kind="parked",
        subject="landing/flights/x.json.gz",
        detail="corrupt-gzip: is damaged after 10 bytes",
        next="draindown input list flights",
    )
    return step("drain", 40, drain=part.model_copy(update=changes), findings=[finding])


def checked(*failed: Expectation, published: int | None = 3) -> StepReport:
    good = Expectation(name="good", success=True, scope="changed")
    part = CheckPart(
        version=3, published_after=published, changed_rows=336_000, expectations=[good, *failed]
    )
    return step("check", 6, check=part)


def failing(**more: Any) -> Expectation:
    fields = {
        "unexpected": 3,
        "judged": 336_000,
        "sample": [1301],
        "scope": "changed",
        "success": False,
    }
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
    ("expectations", "line"),
    [
        (
            [failing(severity="warning")],
            "1 of 2 expectations held on 336,000 changed rows, 1 failed as warning or info;",
        ),
        (
            [failing(severity="warning"), failing(name="c")],
            "FAILED: 1 of 3 expectations failed on 336,000 changed rows, 1 failed as warning or info;",
        ),
    ],
)
def test_what_failed_without_refusing_is_counted_and_left_to_the_findings(
    expectations: list[Expectation], line: str
) -> None:
    text = card([step("plan"), drained(), checked(*expectations)])
    assert line in text and "failed  expect_column_values_to_be_between:dep_delay" not in text


@pytest.mark.parametrize(
    "name", ["applied", "superseded", "duplicate", "quarantined", "late", "records", "deleted"]
)
def test_the_card_adds_up_by_itself(name: str) -> None:
    right = drained().drain
    assert right is not None
    wrong = dict(right.totals) | {name: right.totals[name] + 1}
    text = card([drained(totals=wrong)])
    assert "DOES NOT ADD UP" in text and "✓" not in text


def test_an_idle_run_says_so_in_its_first_line() -> None:
    plan = step("plan", 0.4, "idle", plan=PlanPart(backlog=Backlog()))
    assert (
        card([plan]).splitlines()[0]
        == "IDLE  flights/flights  no new input; nothing to do  in 0.4 s"
    )


WANTED = PlanPart(backlog=Backlog(units=1), drain=True, check=True, compact=True)


def test_a_step_without_a_report_is_not_called_ok() -> None:
    said = verdict([step("plan", plan=WANTED)])
    assert (
        said.startswith("UNFINISHED  flights/flights  drain left no report")
        and "nothing to do" not in said
    )
    said = verdict([step("plan", plan=WANTED), drained(), compacted()])
    assert said.startswith("UNFINISHED  flights/flights  check left no report")
    idle = WANTED.model_copy(update={"drain": False, "compact": False})
    assert verdict([step("plan", plan=idle)]).startswith(
        "UNFINISHED  flights/flights  check left no report"
    )
    assert verdict([step("plan", plan=WANTED), drained(), checked()]).startswith(
        "OK  flights/flights  104 files"
    )


def test_what_an_earlier_attempt_of_a_cleared_run_left_is_not_told() -> None:
    before = drained()
    after = before.finished_at + timedelta(seconds=1)
    planned = step("plan", plan=WANTED).model_copy(
        update={"started_at": after, "finished_at": after}
    )
    assert verdict([planned, before]).startswith("UNFINISHED") and card(
        [planned, before]
    ).startswith("UNFINISHED")
    again = before.model_copy(update={"started_at": after, "finished_at": after})
    assert verdict([planned, again]).startswith("UNFINISHED  flights/flights  check left no report")


def test_a_verdict_from_before_the_drain_was_done_again_is_not_told() -> None:
    error = {
        "code": "gate-failed",
        "tried": "publish",
        "found": "3 rows",
        "changed": "nothing",
        "next": [],
    }
    judged = checked(failing(), published=None).model_copy(
        update={"outcome": "failed", "error": error}
    )
    planned = step("plan", plan=WANTED)
    assert verdict([planned, drained(), judged]).startswith("FAILED")
    later = judged.finished_at + timedelta(seconds=1)
    again = drained().model_copy(update={"started_at": later, "finished_at": later})
    assert verdict([planned, again, judged]).startswith(
        "UNFINISHED  flights/flights  check left no report"
    )


def test_a_check_that_found_nothing_new_says_nothing_of_the_suite() -> None:
    again = checked().model_copy(update={"outcome": "idle"})
    again = again.model_copy(update={"check": again.check.model_copy(update={"expectations": []})})
    said = card([step("plan", plan=WANTED), drained(), again])
    assert "nothing new to judge; published version 3" in said and "no expectations" not in said


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_a_verdict_stands_where_the_drain_found_nothing_when_it_was_done_again(
    outcome: Any,
) -> None:
    error = {
        "code": "gate-failed",
        "tried": "publish",
        "found": "3 rows",
        "changed": "nothing",
        "next": [],
    }
    judged = checked().model_copy(
        update={"outcome": outcome, "error": error if outcome == "failed" else None}
    )
    later = judged.finished_at + timedelta(seconds=1)
    again = step("drain", outcome="idle").model_copy(
        update={"started_at": later, "finished_at": later}
    )
    said = verdict([step("plan", plan=WANTED), again, judged])
    assert said.startswith("OK" if outcome == "done" else "FAILED")


def test_a_check_that_was_left_out_is_named() -> None:
    wanted = WANTED.model_copy(update={"left_out": ("check",)})
    said = verdict([step("plan", plan=wanted), drained()])
    assert said.startswith("NOT CHECKED") and "-> 998,001 applied  in" in said
    idle = step("plan", plan=wanted.model_copy(update={"drain": False, "compact": False}))
    assert verdict([idle]).startswith("NOT CHECKED  flights/flights  no new input  in")
    unneeded = wanted.model_copy(update={"drain": False, "check": False, "compact": False})
    assert verdict([step("plan", outcome="idle", plan=unneeded)]).startswith("IDLE")


def test_a_refused_check_names_the_expectation_its_rows_and_the_next_command() -> None:
    error = {
        "code": "gate-failed",
        "tried": "publish",
        "found": "3 rows",
        "changed": "nothing was published",
    }
    check = checked(failing(), published=None)
    check = check.model_copy(
        update={"outcome": "failed", "error": error | {"next": ["draindown gate show flights"]}}
    )
    text = card([drained(), check])
    assert text.startswith("FAILED  flights/flights  the check failed; nothing was published")
    assert "failed  expect_column_values_to_be_between:dep_delay  3 of 336,000 changed rows" in text
    assert "nothing is published" in text
    assert "next: draindown gate show flights" in text


def test_an_error_shows_its_four_parts_and_never_cuts_a_command() -> None:
    command = "draindown quarantine release flights/flights --reason type --run " + "x" * 80
    error = {
        "code": "input-changed",
        "tried": "t " * 250,
        "found": "f " * 250,
        "changed": "c " * 250,
        "next": [command],
    }
    text = card([step("drain", 1, "failed", error=error)])
    assert "input-changed in drain" in text
    assert command in text.splitlines()[-1]
    for name in ("found: f", "tried: t", "changed: c"):
        assert name in text


@pytest.mark.parametrize("batches", [[], [batch()]])
def test_a_step_that_did_not_look_what_waits_says_nothing_of_a_backlog(
    batches: list[dict[str, Any]],
) -> None:
    error = {
        "code": "crash",
        "tried": "drain",
        "found": "boom",
        "changed": "nothing",
        "next": ["draindown run p"],
    }
    looked = drained(before=Backlog(), after=Backlog(), batches=batches, totals={})
    assert "waiting      nothing (before: nothing)" in card([looked])
    part = DrainPart(
        generation=2,
        batches=batches,
        bound="rebuild of generation 2: it was in the table's place before",
    )
    for outcome in ("done", "idle", "failed"):
        said = card(
            [step("drain", 1, outcome, drain=part, error=error if outcome == "failed" else None)]
        )
        assert "waiting" not in said and "no new input" not in said and part.bound in said


def test_the_worst_card_is_short_and_narrow() -> None:
    many = [
        Finding(kind="parked", subject=f"p{i}", detail="d " * 150, next="act") for i in range(50)
    ]
    texts = {"tried": "t " * 450, "found": "f " * 450, "changed": "c " * 450}
    error = {"code": "gate-failed", "next": ["a"] * 9, **texts}
    refused = checked(
        *(failing(name=f"{'n' * 60}{i}", detail="d " * 250) for i in range(20)), published=None
    )
    reasons = {f"{'r' * 60}{i}": 1 for i in range(30)}
    drain = drained(batches=[batch(reasons=reasons)]).model_copy(update={"findings": many})
    failed = refused.model_copy(update={"outcome": "failed", "error": error})
    lines = card([step("plan"), drain, failed, compacted()]).splitlines()
    assert len(lines) <= 55 and max(map(len, lines)) <= 110
    assert any("and 48 more" in line for line in lines)


PATH = "/srv/lake/" + "/".join(["a_directory_of_a_name_that_is_long"] * 5) + "/2026-01-01.json.gz"


def lines_of(text: str) -> list[str]:
    wide = [line for line in text.splitlines() if len(line) > 110]
    assert all(len(line.split()) == 1 or "next: " in line for line in wide)
    return text.splitlines()


@pytest.mark.parametrize("start", range(60, 110))
def test_no_number_and_no_path_is_cut_wherever_the_line_ends(start: int) -> None:
    found = "x" * (start - 17) + f" process 20434 on vm read {PATH} at 1,003,210 rows"
    error = {
        "code": "lease-held",
        "tried": "take it",
        "found": found,
        "changed": "nothing",
        "next": [f"less {PATH}"],
    }
    lines = lines_of(card([step("drain", 1, "failed", error=error)]))
    for whole in ("20434", PATH, "1,003,210", f"next: less {PATH}"):
        assert any(whole in line for line in lines), whole


def test_paths_reasons_and_names_of_findings_rows_and_expectations_are_whole() -> None:
    reason, name = f"rule:{'r' * 80}", f"expect_{'e' * 120}"
    finding = Finding(
        kind="parked",
        subject=PATH,
        detail=f"its bytes are not those of {PATH}",
        next=f"less {PATH}",
    )
    drain = drained(batches=[batch(reasons={reason: 984})]).model_copy(
        update={"findings": [finding]}
    )
    text = card([step("plan"), drain, checked(failing(name=name, detail="d"), published=None)])
    lines_of(text)
    assert text.count(PATH) == 3 and reason in text and name in text
    assert "..." not in text


def test_steps_are_numbered_and_alternatives_are_told_as_such() -> None:
    error = {
        "code": "c",
        "tried": "t",
        "found": "f",
        "changed": "n",
        "next": ["make down", "make up"],
    }
    for in_order, labels in (
        (True, ["next 1: make down", "next 2: make up"]),
        (False, ["next: make down", "or: make up"]),
    ):
        text = card([step("drain", 1, "failed", error=error | {"in_order": in_order})])
        assert [line.strip() for line in text.splitlines()[-2:]] == labels
    told = str(
        TerminalError("c", tried="t", found="f", next=["make down", "make up"], in_order=True)
    )
    assert told.splitlines()[-2:] == ["  next 1:  make down", "  next 2:  make up"]


def test_a_refused_gate_shows_all_that_may_be_typed() -> None:
    ways = [
        "draindown gate show p",
        "draindown gate withdraw p e",
        "draindown gate waive p e --note TEXT",
    ]
    error = {
        "code": "gate-failed",
        "tried": "publish",
        "found": "3 rows",
        "changed": "nothing",
        "next": ways,
    }
    text = card([step("check", 1, "failed", error=error)])
    assert all(way in text for way in ways)


UNFINISHED = Unfinished(
    "flights", "flights", step("plan").run_id, "drain", "died", began=AT, seconds=200, batches=2
)


def test_an_unfinished_step_is_told_with_what_is_known_of_it() -> None:
    known = replace(UNFINISHED, who="process 20434 on vm", log="/lake/reports/r/drain.log")
    lines = card([step("plan", 0.4, plan=WANTED)], [known]).splitlines()
    assert lines[0].startswith(
        "DIED  flights/flights  drain was at work since 2026-11-21 03:00:00 UTC"
    )
    text = " ".join(line.strip() for line in lines)
    assert (
        "its driver died, 3 min 20 s or more after it began, process 20434 on vm; 2 batches of it committed"
        in text
    )
    assert "in 0.4 s" not in text
    assert (
        "next: draindown run flights/flights" in text and "less /lake/reports/r/drain.log" in text
    )


def test_an_unfinished_step_of_another_flow_is_not_mixed_in() -> None:
    other = replace(UNFINISHED, flow="other", who="process 1 on vm")
    assert "process 1" not in card([step("plan", plan=WANTED)], [other])


def test_foreign_text_cannot_command_the_terminal() -> None:
    finding = Finding(kind="ignored", subject="a\x1b[2Jb", detail="c\r\nd\u202ee")
    text = card([step("drain", findings=[finding])])
    assert "\x1b" not in text and "\r" not in text and "\u202e" not in text
    assert "a\\x1b[2Jb" in text and "c\\r\\nd\\u202ee" in text


def test_each_flow_has_its_own_block() -> None:
    other = drained().model_copy(update={"flow": "other"})
    blocks = card([drained(), other]).split("\n\n")
    assert [block.splitlines()[0].split("  ")[1] for block in blocks] == [
        "flights/flights",
        "flights/other",
    ]


def test_no_reports_is_said() -> None:
    assert card([]) == "no reports: nothing ran, or every step died before it could write one"


def test_a_bounded_run_is_marked() -> None:
    stopped = drained(bound="max_batches: 1").model_copy(update={"outcome": "stopped"})
    assert verdict([stopped]).startswith("STOPPED EARLY")
    assert "max_batches: 1" in card([stopped])


def test_what_was_read_has_the_noun_of_a_unit_and_not_of_what_waits() -> None:
    log = {"unit": "partition", "before": Backlog(units=10, unit="record")}
    own = drained(**log)
    own = own.model_copy(
        update={"drain": own.drain and own.drain.model_copy(update={"totals": of_run().totals})}
    )
    assert "2 partitions, 10 records" in verdict([own])
    told = step(
        "drain", 1, "idle", drain=DrainPart(generation=1, totals=total([]), **log), run=of_run()
    )
    assert "by other starts: 2 partitions, 10 records" in card([told])
    planned = WANTED.model_copy(update={"unit": "partition", "backlog": Backlog(unit="record")})
    assert "this run has 2 batches: 2 partitions, 10 records" in card(
        [step("plan", plan=planned, run=of_run())]
    )


def of_run(**totals: int) -> RunSums:
    return RunSums(
        starts=2, totals={"inputs": 2, "batches": 2, "records": 10, "applied": 8} | totals
    )


def test_a_check_without_expectations_that_published_did_something() -> None:
    published = step("check", check=CheckPart(version=1, published_after=1))
    assert "  published version 1  in" in verdict([published])
    idle = step(
        "check", 1, "idle", check=CheckPart(version=1, published_before=1, published_after=1)
    )
    assert "  nothing to do  in" in verdict([idle])


def test_what_a_killed_start_committed_is_not_called_no_new_input() -> None:
    nothing = DrainPart(generation=1, totals=total([]))
    told = step("drain", 1, "idle", drain=nothing, run=of_run())
    assert "no new input" not in verdict([told]) and "2 files, 10 records -> 8 applied" in verdict(
        [told]
    )
    assert (
        "ledger       this run has 2 batches by other starts: 2 files, 10 records -> 8 applied"
        in card([told])
    )
    own = step(
        "drain", 1, drain=nothing.model_copy(update={"totals": of_run().totals}), run=of_run()
    )
    assert "by other starts" not in card([own]), "they are this start's own"
    assert "by other starts" not in card([checked().model_copy(update={"run": of_run()})]), (
        "a check makes none"
    )
    unreported = step("plan", plan=WANTED, run=of_run())
    assert "this run has 2 batches: 2 files, 10 records" in card([unreported]), (
        "those of a drain at work, perhaps"
    )
    assert verdict([unreported]).startswith("UNFINISHED")


def test_a_batch_that_another_run_committed_and_this_one_found_done_is_named() -> None:
    settled = [batch(run_id="other\x1b"), batch()]
    text = card([step("drain", 1, drain=DrainPart(generation=1, settled=settled).model_copy())])
    assert "earlier      batch 0 was committed by run other\\x1b" in text and "\x1b" not in text


def test_a_withdrawal_is_no_refused_share() -> None:
    taken_out = batch(kind="withdraw", quarantined=0)
    assert "%" not in card([drained(batches=[taken_out], quarantined_share=None)])


def test_a_refused_share_that_held_is_what_was_judged_without_expectations() -> None:
    share = Expectation(name="quarantined_share", success=True, scope="input", judged=4)
    part = CheckPart(version=3, published_before=1, published_after=3, expectations=[share])
    said = card([step("check", check=part)])
    assert (
        "check        the quarantined share held; no expectations; published version 3 (version 1 before)"
        in said
    )
    nothing = card([step("check", check=part.model_copy(update={"expectations": []}))])
    assert "check        no expectations; published version 3 (version 1 before)" in nothing


CHECK_NEXT = "next: draindown run flights/flights   # checks and publishes"


def test_a_replay_without_a_check_says_that_nothing_of_it_is_published_and_what_to_type() -> None:
    said = card([drained(replay="of 3 files", kept_out=0)])
    assert said.startswith("NOT CHECKED") and "-> 998,001 applied  in" in said.splitlines()[0]
    assert (
        "check        not checked by this run: what it committed is published by the next check"
        in said
    )
    assert CHECK_NEXT in said


def test_what_follows_a_drain_is_not_told_of_where_only_the_drain_is_shown() -> None:
    assert "not checked" not in card([drained()], whole=False).lower()
    assert verdict([drained()], whole=False).startswith("OK")
    planned = step("plan", plan=WANTED)
    for steps in ([planned, drained()], [planned, drained(), checked()], [drained(), checked()]):
        assert "not checked" not in card(steps).lower()


def test_a_replay_that_found_nothing_has_nothing_to_check() -> None:
    said = card([drained(replay="of 3 files", batches=[], totals={}, kept_out=0)])
    assert "not checked" not in said.lower()


PARKED_NEXT = "next: draindown input list flights/flights"


def test_a_run_whose_only_new_file_was_parked_says_so() -> None:
    said = card([drained(batches=[], totals={}, kept_out=1, parked=1)])
    assert "no new input but 1 file that was parked" in said.splitlines()[0]
    assert (
        "parked       1 file waits for a decision: deliver again, or discard" in said
        and PARKED_NEXT in said
    )


def test_parked_files_are_told_of_until_someone_decides() -> None:
    plan = PlanPart(backlog=Backlog(), parked=2)
    said = card([step("plan", 0.4, "idle", plan=plan)])
    assert said.splitlines()[0] == "IDLE  flights/flights  no new input; 2 files parked  in 0.4 s"
    assert "parked       2 files wait for a decision" in said and PARKED_NEXT in said
    done = card([step("plan", plan=plan), drained(parked=0, kept_out=0), checked()])
    assert "wait for a decision" not in done
    failed = drained(parked=0).model_copy(update={"outcome": "failed", "error": {"code": "x"}})
    assert "2 files wait for a decision" in card([step("plan", plan=plan), failed])


def test_a_derived_flow_shows_both_accounts() -> None:
    row = BatchRow(
        "p",
        "f",
        1,
        0,
        "r",
        form="derive",
        records=1_234,
        used=1_200,
        unused=34,
        recomputed=9,
        updated=6,
    )
    row = replace(row, unchanged=2, deleted=1)
    part = DrainPart(
        generation=1,
        batches=[row.as_dict()],
        totals=total([row]),
        before=Backlog(units=1, unit="commit"),
    )
    text = card([step("drain", 1, drain=part)])
    assert "changes      1,234 read = 1,200 used + 34 unused  ✓" in text
    recomputed = "0 inserted + 6 updated + 1 deleted + 2 unchanged + 0 empty  ✓"
    assert f"rows         9 recomputed = {recomputed}" in text
    assert "1,234 row changes -> 7 rows changed" in text
    wrong = part.model_copy(update={"totals": total([replace(row, recomputed=10)])})
    assert "DOES NOT ADD UP" in card([step("drain", 1, drain=wrong)])


def test_an_idle_run_with_a_finding_does_not_say_that_there_is_nothing_to_do() -> None:
    lost = Finding(
        kind="unread", subject="/in/a", detail="left out of this run: EIO", next="ls -l /in/a"
    )
    plan = step("plan", 0.4, "idle", plan=PlanPart(backlog=Backlog()), findings=[lost])
    assert (
        card([plan]).splitlines()[0] == "IDLE  flights/flights  no new input; 1 finding  in 0.4 s"
    )


def test_report_shows_the_findings_that_a_run_leaves_out() -> None:
    many = [Finding(kind="parked", subject=f"p{i}", detail="d", next="act") for i in range(5)]
    told = drained().model_copy(update={"findings": many})
    text = card([told])
    assert (
        "and 3 more" in text
        and f"next: draindown report flights/flights --run {told.run_id}" in text
    )
    every = card([told], findings=ALL_FINDINGS)
    assert all(f"parked  p{i}" in every for i in range(5)) and "more" not in every


@pytest.mark.parametrize("width", [1, 80, 300])
def test_a_failing_value_is_shown_whole_and_as_json(width: int) -> None:
    value = {"order_id": "B-1", "amount": -5.0, "note": "n " * (width // 2), "none": None}
    text = card([step("plan"), checked(failing(sample=[value]), published=None)])
    assert (
        json.dumps(value, ensure_ascii=False).split()
        == text[text.index("{") : text.index("}") + 1].split()
    )


def test_a_failing_value_without_end_is_cut() -> None:
    text = card([step("plan"), checked(failing(sample=["x" * 5000]), published=None)])
    assert "x" * 500 in text and "x" * 601 not in text


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        pytest.param(
            [drained(rebuilt=True, generation=2)],
            "rebuilt generation 2: read 104 files",
            id="rebuild",
        ),
        pytest.param(
            [step("drain", drain=DrainPart(generation=2, rebuilt=True))],
            "finished the rebuild of generation 2",
            id="what followed its swap",
        ),
        pytest.param(
            [
                step("plan", plan=PlanPart(backlog=Backlog(), check=True)),
                step("check", check=CheckPart(version=2, published_before=1, published_after=2)),
            ],
            "no new input; published version 2  in",
            id="the run after a rebuild, without expectations",
        ),
        pytest.param(
            [
                step("plan", plan=PlanPart(backlog=Backlog(), check=True)),
                step("check", check=CheckPart(version=1, published_before=1, published_after=1)),
            ],
            "no new input; nothing to do  in",
            id="a check that found nothing",
        ),
    ],
)
def test_a_rebuild_and_what_it_publishes_are_not_nothing(
    steps: list[StepReport], said: str
) -> None:
    assert said in verdict(steps) and (" nothing to do" in said) == (
        "nothing to do" in verdict(steps)
    )


def test_a_rebuilt_derived_table_says_what_was_derived() -> None:
    part = DrainPart(
        generation=2,
        rebuilt=True,
        batches=[batch(form="derive")],
        totals={"records": 5, "recomputed": 3, "applied": 3},
    )
    said = verdict([step("drain", drain=part)])
    assert "rebuilt generation 2: 5 row changes -> 3 rows changed" in said and "nothing" not in said
