"""The score of a fault follows from what happened, and the campaign fails where it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults import score
from tests.faults.cases import CASES, DECIDED
from tests.faults.trial import Trial

RED = {"code": "checkpoint-missing", "next": ["draindown reset p"]}


def trial(*runs: int, **more: Any) -> Trial:
    made = Trial("F1", "first", "x", fired="yes", held=["rows"])
    for code in runs:
        made.ran(code, RED if code == 78 else None)
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (trial(-9, 0), 1),
        (trial(75, 0), 1),
        (trial(78, 0, commands=["draindown reset"]), 0.5),
        (trial(70, 0, commands=["draindown reset"]), 0),  # red, but nothing named the command
        (trial(78, 0, commands=["draindown reset"], surgery=["rm"]), 0),
        (trial(78, 78), 0),
        (trial(78, 78, wrong=["rows"]), 0),
        (trial(-9, 0, wrong=["rows"]), -1),
        (trial(78, 0, wrong=["rows"], commands=["draindown reset"]), -1),
    ],
)
def test_score_follows_from_what_happened(found: Trial, expected: float) -> None:
    assert found.score == expected


@pytest.mark.parametrize("lacking", [{"fired": ""}, {"runs": []}, {"held": []}])
def test_what_never_fired_or_was_not_looked_at_has_no_score(lacking: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        _ = trial(-9, 0, **lacking).score


def result(case: str, value: float, place: str = "first", **more: Any) -> str:
    content = {"case": case, "place": place, "score": value, "recovery": 1.0, "fired": "a | b", "runs": []}
    content |= {"commands": [], "surgery": [], "held": ["rows"], "wrong": [], "injected": "x"}
    return json.dumps(content | more)


def test_campaign_passes_only_if_all_cases_do() -> None:
    good = [result(case, 1) for case in CASES]
    assert score.verdict(score.read(good)) == []
    assert score.verdict(score.read(good[1:])) == ["F1 is missing"]
    [bad] = score.verdict(score.read([*good, result("F2", 0, place="last", wrong=["rows"])]))
    assert bad == "F2 scores 0: last: rows"
    assert score.verdict(score.read([*good, result("F2", 0), result("F2", 1)])) == []  # the newest at a place counts
    low = score.verdict(score.read([result(case, 0.5) for case in CASES]))
    assert [said.split(" ")[0] for said in low] == [case for case in CASES if case not in DECIDED]


def test_case_that_can_not_be_tried_is_named_and_counts_for_nothing() -> None:
    lines = [result(case, 1) for case in CASES if case != "F21"]
    lines.append(json.dumps({"case": "F21", "place": "nowhere", "skipped": "no right to mount"}))
    cases = score.read(lines)
    assert score.verdict(cases) == []
    assert "| 0 | no right to mount |" in score.table(cases)
    assert f"{len(CASES) - 1} cases" in score.table(cases)


def test_table_is_put_between_its_markers_and_stays_a_table() -> None:
    begin, end = score.markers(score.TABLE)
    page = f"before\n{begin}\nOUTDATED\n{end}\nafter\n"
    new = score.place(page, score.TABLE, score.table(score.read([result("F1", 1)])))
    assert new.startswith("before\n") and new.endswith("\nafter\n")
    assert "OUTDATED" not in new
    rows = [line for line in new.splitlines() if line.startswith("| ")]
    assert {row.count(" | ") for row in rows} == {8}
    assert score.place(new, score.TABLE, score.table(score.read([result("F1", 1)]))) == new


def _soaked(rounds: int) -> str:
    facts = {
        "rounds": rounds,
        "seconds": 60,
        "seed": 1,
        "batches": 9,
        "batch_seconds": [2, 3],
        "table_files": 4,
        "vacuumed": 2,
    }
    return json.dumps({"soak": facts | {"rows": 5, "fired": {"lease held": rounds}}})


def test_only_what_there_are_results_of_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results.jsonl"
    page.write_text("".join(f"{line}\n" for part in ("faults", "soak") for line in score.markers(part)))
    monkeypatch.setattr(score, "PAGE", page)
    monkeypatch.setattr(score, "ROOT", tmp_path)
    assert score.main(results) == 1, "nothing was tried"
    empty = page.read_text()

    results.write_text(f"{_soaked(100)}\n{_soaked(3)}\n")
    assert score.main(results) == 0
    assert "Soak: 100 rounds in 60 s" in page.read_text() and "| F1 |" not in page.read_text()

    results.write_text("\n".join(result(case, 1) for case in CASES if case != "F1"))
    assert score.main(results) == 1, "F1 is missing"
    assert "| F2 |" in page.read_text() and "Soak: 100 rounds" in page.read_text()
    assert f"{len(CASES) - 1} cases, {len(CASES) - 1} trials, 1.00 on average.\nNot tried" in page.read_text()
    assert page.read_text() != empty

    results.write_text("\n".join([result("F1", 0.5), result("F1", 1, place="last")]))
    score.main(results)
    average = (len(CASES) - 0.5) / len(CASES)
    assert f"{len(CASES)} cases, {len(CASES) + 1} trials, {average:.2f} on average.\n" in page.read_text()
    assert "Not tried" not in page.read_text()


def test_the_page_has_a_place_for_each_part() -> None:
    page = score.PAGE.read_text()
    assert all(page.count(marker) == 1 for part in (score.TABLE, score.SOAK) for marker in score.markers(part))
    shown = {line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| F")}
    assert shown == set(CASES)
