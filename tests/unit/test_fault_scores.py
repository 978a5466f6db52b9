"""The score of a fault follows from what happened, and the campaign fails where it should."""

from __future__ import annotations

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


def result(case: str, value: float, place: str = "first", **more: Any) -> dict[str, Any]:
    content = {
        "case": case,
        "place": place,
        "score": value,
        "seconds": [1.0],
        "fired": "a | b",
        "ended": ["signal 9"],
    }
    return content | {"typed": [], "checks": 3, "wrong": []} | more


def by_case(*found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {case: [one for one in found if one["case"] == case] for case in CASES}


def test_campaign_passes_only_if_all_cases_do() -> None:
    good = [result(case, 1) for case in CASES]
    assert score.verdict(by_case(*good)) == []
    assert score.verdict(by_case(*good[1:])) == ["F1 is missing"]
    [bad] = score.verdict(by_case(*good, result("F2", 0, place="last", wrong=["rows"])))
    assert bad == "F2 scores 0: last: rows"
    low = score.verdict(by_case(*(result(case, 0.5) for case in CASES)))
    assert [said.split(" ")[0] for said in low] == [case for case in CASES if case not in DECIDED]


def test_case_that_can_not_be_tried_is_named_and_counts_for_nothing() -> None:
    skipped = {"case": "F21", "place": "nowhere", "skipped": "no right to mount"}
    cases = by_case(*(result(case, 1) for case in CASES if case != "F21"), skipped)
    assert score.verdict(cases) == []
    assert "| 0 | no right to mount |" in score.table(cases, {})
    assert f"{len(CASES) - 1} cases" in score.table(cases, {})


def test_the_table_counts_each_case_as_its_worst_trial() -> None:
    found = by_case(
        result("F1", 0.5),
        result("F1", 1, place="last"),
        *(result(case, 1) for case in CASES if case != "F1"),
    )
    table = score.table(found, {"F1": "`abc`"})
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert {row.count(" | ") for row in rows} == {9}
    assert next(row for row in rows if row.startswith("| F1 ")).endswith(
        "| 1 s, at most 1 | 0.5 | `abc` |"
    )
    average = (len(CASES) - 0.5) / len(CASES)
    assert table.endswith(f"{len(CASES)} cases, {len(CASES) + 1} trials, {average:.2f} on average.")


def test_rounds_of_all_soaks_add_up_and_the_longest_is_shown() -> None:
    facts = {
        "seconds": 60,
        "seed": 1,
        "batches": 9,
        "batch_seconds": [2, 3],
        "table_files": 4,
        "vacuumed": 2,
        "rows": 5,
    }
    lines = [
        {"soak": facts | {"rounds": n, "fired": {"lease held": n}}, "commit": "abc"}
        for n in (3, 100)
    ]
    said = score.soak(lines)
    assert said.startswith("Soak: 103 rounds in 120 s, 2 runs (`abc`), 18 batches")
    assert "In the longest, 100 rounds" in said and said.endswith("Faults: lease held 103.")
    assert score.soak([]) == "Soak: none yet."
