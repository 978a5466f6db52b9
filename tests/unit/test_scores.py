"""How bad input is scored, and that the published table says what was asked for."""

from __future__ import annotations

import re

import pytest

from tests.scores import AVERAGE, BEGIN, END, LEAST, ROOT, Trial, table


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
    trials = [{"score": score, "held": ["x"], "wrong": [], "place": str(score), "fired": "yes"} for score in (1, 0.5)]
    assert table({"B1": trials}).splitlines()[2].endswith("| 0.5 |")
    assert table({"B1": trials, "B2": []}).splitlines()[3].endswith("| - |")


@pytest.mark.docs
def test_the_published_table_holds_every_case_and_its_average() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    published = page.partition(BEGIN)[2].partition(END)[0]
    found = dict(re.findall(r"^\| (B\d+) \|.*\| (\S+) \|$", published, re.MULTILINE))
    assert set(found) == {f"B{number}" for number in range(1, 33)}
    scores = [float(score) for score in found.values() if score != "-"]
    assert min(scores) >= LEAST
    assert sum(scores) / len(scores) >= AVERAGE
