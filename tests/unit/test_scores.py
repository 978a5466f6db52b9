"""How bad input is scored, and that the published table says what was asked for."""

from __future__ import annotations

import pytest

from tests.scores import Trial, table, verdict


def trial(**more: object) -> Trial:
    return Trial("B1", "json", "cut in half", fired="1 of 1", **more)  # type: ignore[arg-type]


def test_a_score_is_what_really_happened() -> None:
    green = trial()
    green.promise("lands", True)
    assert green.score == 1
    silent = trial()
    silent.promise("lands", False, mended=True)
    assert silent.score == -1
    loud = trial(loud=True)
    loud.promise("lands", False, mended=True)
    assert loud.score == 0.5
    loud.promise("audit clean", False)
    assert loud.score == 0


def test_input_that_was_never_met_has_no_score() -> None:
    never = Trial("B1", "json", "cut in half", held=["lands"])
    with pytest.raises(AssertionError, match="never met"):
        _ = never.score


def test_a_case_counts_as_its_worst_trial() -> None:
    trials = [
        {"score": score, "held": ["x"], "wrong": [], "place": str(score), "fired": "yes"}
        for score in (1, 0.5)
    ]
    assert table({"B1": trials}, {"B1": "`abc`"}).splitlines()[2].endswith("| 0.5 | `abc` |")
    assert table({"B1": trials, "B2": []}, {}).splitlines()[3].endswith("| - |  |")


def test_each_case_must_be_there_and_nearly_all_must_hold() -> None:
    good = {f"B{number}": [{"score": 1}] for number in range(1, 20)}
    assert verdict(good) == []
    assert verdict(good | {"B20": []}) == ["B20 is missing"]
    assert verdict(good | {"B20": [{"score": 1}, {"score": -1}]}) == [
        "B20 scores -1",
        "bad input scores 0.90 on average",
    ]
    assert verdict(good | {"B20": [{"score": 0.5}]}) == []
