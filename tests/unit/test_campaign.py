"""The campaign: its parts, how results of several runs add up, and what a change of code makes
stale.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tests.campaign import page, parts, results
from tests.campaign.results import ROOT, SOURCE
from tests.faults.cases import CASES
from tests.scores import ABOUT
from tests.spark.inputs import WHAT

OLD = {"case": "F1", "place": "as published", "score": 1, "commit": "old", "code": ""}


def recorded(place: str, test: str = "t.py::test_a", case: str = "F1") -> dict[str, Any]:
    """What a fault test writes down."""
    runs = [{"code": -9, "error": None}, {"code": 78, "error": "crash"}, {"code": 0, "error": None}]
    held = {
        "held": ["rows", "rows", "sums"],
        "wrong": [],
        "surgery": [],
        "commands": ["draindown reset"],
    }
    return {
        "case": case,
        "place": place,
        "test": test,
        "fired": "yes",
        "score": 0.5,
        "recovery": 2.0,
        "runs": runs,
        **held,
    }


def test_what_is_kept_of_a_trial_is_what_the_table_shows() -> None:
    kept = results.brief(recorded("first"))
    assert (kept["ended"], kept["typed"], kept["checks"]) == (
        ["signal 9", "crash"],
        ["draindown reset"],
        2,
    )
    assert kept["seconds"] == [2.0] and "runs" not in kept and "held" not in kept


def test_results_of_runs_add_up_and_the_newest_run_of_a_test_counts() -> None:
    first = results.added(
        [OLD], [recorded("a"), recorded("b"), recorded("c", "t.py::test_b")], "one"
    )
    assert [(one["place"], one["commit"]) for one in first] == [
        ("a", "one"),
        ("b", "one"),
        ("c", "one"),
    ]
    second = results.added(first, [recorded("a"), recorded("a")], "two")
    assert [(one["place"], one["commit"]) for one in second] == [("c", "one"), ("a", "two")]
    other = results.added([OLD], [recorded("a", case="F2")], "one")
    assert [one["case"] for one in other] == ["F1", "F2"]


def test_soaks_and_runs_of_parts_are_kept_beside_results() -> None:
    soak = {"soak": {"rounds": 3}, "test": "t.py::test_soak"}
    lines = results.added(
        [{"part": 1, "at": "2026"}], [soak, soak | {"soak": {"rounds": 4}}], "one"
    )
    assert [one.get("soak", {}).get("rounds") for one in results.added(lines, [soak], "two")] == [
        None,
        3,
        4,
        3,
    ]


def test_a_case_is_stale_once_code_of_its_packages_is_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in (*CASES["F32"].about, "lease"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "a.py").write_text("x = 1")
    monkeypatch.setattr(
        results, "digest", lambda packages, of=results.digest: of(packages, tmp_path)
    )
    lines = results.added([], [recorded("a", case="F32")], "one")
    assert (results.is_stale(lines), results.commits(lines)) == (False, "`one`")
    (tmp_path / "lease" / "a.py").write_text("x = 2")
    (tmp_path / "gate" / "a.pyc").write_text("x")
    assert not results.is_stale(lines)
    (tmp_path / "gate" / "a.py").write_text("x = 2")
    assert (results.is_stale(lines), results.commits(lines)) == (True, "stale: `one`")


def test_every_case_is_about_packages_that_exist() -> None:
    named = {package for case in CASES.values() for package in case.about} | {*ABOUT}
    assert all(case.about for case in CASES.values())
    assert {
        package for package in named if not (SOURCE / package / "__init__.py").exists()
    } == set()


def test_the_part_that_was_not_run_for_longest_is_next() -> None:
    runs = [
        {"part": number, "at": f"2026-01-{number:02}"} for number in range(1, len(parts.PARTS) + 1)
    ]
    assert parts.due([]) == 1
    assert parts.due(runs[:3]) == 4
    assert parts.due([*runs, {"part": 1, "at": "2026-02-01"}]) == 2
    assert parts.chosen("3", []) == 3
    with pytest.raises(ValueError, match="parts 1 to"):
        parts.chosen("99", [])


def test_files_that_a_run_had_no_time_for_come_first() -> None:
    first, second, third = parts.PARTS[0].tests
    assert parts.command(1, [third])[-3:] == [third, first, second]


def test_every_campaign_test_is_in_a_part() -> None:
    covered = {name for part in parts.PARTS for name in part.tests if name.endswith(".py")}
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if any(
            isinstance(node, ast.Attribute) and node.attr == "campaign"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert {
        name for name in marked if name not in covered and not name.startswith("tests/spark/")
    } == set()
    assert {name for name in covered if not (ROOT / name).exists()} == set()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_texts_are_put_between_their_markers_and_can_be_put_again() -> None:
    old = "before\n<!-- soak: begin -->\nOLD\n<!-- soak: end -->\nafter\n"
    new = page.filled(old, {"soak": "NEW"})
    assert new.startswith("before\n") and new.endswith("\nafter\n") and "OLD" not in new
    assert page.filled(new, {"soak": "NEW"}) == new


@pytest.mark.docs
def test_the_published_tables_hold_every_case_and_call_none_fresh_that_is_stale() -> None:
    text, lines = page.PAGE.read_text(), results.read()
    rows = {
        row.split(" | ")[0].removeprefix("| "): row
        for row in text.splitlines()
        if re.match(r"\| [FB]\d+ \|", row)
    }
    assert set(rows) == {*CASES, *WHAT}
    assert [
        said for said in page.wrong(lines) if not said.endswith(" is missing")
    ] == []  # a new case is tried later
    fresh = {case for case, row in rows.items() if "| stale: " not in row}
    found = results.by_case(lines)
    assert {case for case in fresh if results.is_stale(found[case])} == set(), (
        "python -m tests.campaign page"
    )
