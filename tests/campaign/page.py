"""What docs/guarantees.md shows of the campaign: its parts, faults, soaks, and bad input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import scores
from tests.campaign import parts, results
from tests.campaign.results import ROOT, Line
from tests.faults import score
from tests.faults.cases import CASES
from tests.spark.inputs import WHAT

PAGE = ROOT / "docs" / "guarantees.md"


def sections(lines: Sequence[Line]) -> dict[str, str]:
    """Return what stands between the page's markers, by marker."""
    cases = results.by_case(lines)
    said = {name: results.commits(found) for name, found in cases.items() if found}
    return {
        "parts": _parts(lines),
        "faults": score.table({case: cases[case] for case in CASES}, said),
        "soak": score.soak([line for line in lines if "soak" in line]),
        "bad input": scores.table({case: cases[case] for case in WHAT}, said),
    }


def _parts(lines: Sequence[Line]) -> str:
    newest = parts.last(lines)
    rows = ["| part | tries | last run | of commit | ended |", "| --- | --- | --- | --- | --- |"]
    for number, part in enumerate(parts.PARTS, start=1):
        run = newest.get(number)
        cells = (
            (run["at"][:10], f"`{run['commit']}`", _ended(run)) if run else ("", "", "not run yet")
        )
        rows.append(f"| {number} | {part.what} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _ended(run: Line) -> str:
    said = "green" if not run["code"] else f"exit {run['code']}"
    left = (
        f", no time for {', '.join(Path(name).stem for name in run['left'])}" if run["left"] else ""
    )
    return f"{said} after {run['minutes']} min{left}"


def filled(page: str, texts: Mapping[str, str]) -> str:
    """Return the page with texts between their markers."""
    for name, text in texts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        assert found and closed, f"docs/guarantees.md has no markers for {name}"
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def wrong(lines: Sequence[Line]) -> list[str]:
    """Return what keeps the campaign from passing: cases that are missing, or score less than they
    must.
    """
    cases = results.by_case(lines)
    return [
        *score.verdict({case: cases[case] for case in CASES}),
        *scores.verdict({case: cases[case] for case in WHAT}),
    ]
