"""The table of the campaign, and what the soak found: `python -m tests.faults.score [RESULTS]` writes both into
docs/guarantees.md; what there are no results of, a case or the soak, stays there as it is.

A case is as good as its worst trial. Exit 1, after writing, if a case is missing or scores less than it must. A case
that could not be tried here is named, with the reason, and counts for nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draindown.base import formatting
from tests.faults.cases import CASES, Case, least

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
TABLE, SOAK = "faults", "soak"

Result = Mapping[str, Any]


def read(lines: Iterable[str]) -> dict[str, list[Result]]:
    """Results by case; of several at one place the newest counts."""
    newest: dict[tuple[str, str], Result] = {}
    for found in map(json.loads, lines):
        if "case" in found:
            newest[found["case"], found["place"]] = found
    cases: dict[str, list[Result]] = defaultdict(list)
    for (case, _), found in newest.items():
        cases[case].append(found)
    return cases


def soak(lines: Iterable[str]) -> str | None:
    """What the longest soak found, in a sentence; of several of that length the newest counts. None without one."""
    found = [line["soak"] for line in map(json.loads, lines) if "soak" in line]
    if not found:
        return None
    long = max(reversed(found), key=lambda one: int(one["rounds"]))
    first, last = long["batch_seconds"]
    faults = ", ".join(f"{name} {count}" for name, count in sorted(long["fired"].items()))
    return (
        f"Soak: {long['rounds']} rounds in {long['seconds']} s (seed {long['seed']}), {long['batches']} batches, each "
        f"round equal to the oracle; a batch took {first} s at first and {last} s at last; "
        f"VACUUM removed {long['vacuumed']} files; the table ends with {long['rows']} rows in "
        f"{formatting.count(long['table_files'], 'file')}. Faults: {faults}."
    )


def tried(results: Sequence[Result]) -> list[Result]:
    """Those that were tried, not skipped."""
    return [result for result in results if "skipped" not in result]


def score(results: Sequence[Result]) -> float:
    """The worst of a case's trials."""
    return float(min(result["score"] for result in results))


def verdict(cases: Mapping[str, Sequence[Result]]) -> list[str]:
    """What keeps the campaign from passing; empty is good."""
    wrong = [f"{case} is missing" for case in CASES if not cases.get(case)]
    scores = {case: score(found) for case in CASES if (found := tried(cases.get(case, ())))}
    low = [case for case, value in scores.items() if value < least(case)]
    wrong += [f"{case} scores {scores[case]:g}: {_worst(cases[case])}" for case in low]
    return wrong


def _worst(results: Sequence[Result]) -> str:
    worst = min(tried(results), key=lambda result: float(result["score"]))
    return f"{worst['place']}: {'; '.join([*worst['wrong'], *worst['surgery']])}"


def table(cases: Mapping[str, Sequence[Result]], page: str = "") -> str:
    """The table, with a line about all of it. Rows of `page` whose cases have no results stay as they are."""
    lines = [
        "| # | fault | injected | trials | proof, of one trial | how it ended | held | recovery | score |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    before = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if line.startswith("| F")}
    rows = [
        before[case.id] if case.id in before and case.id not in cases else _row(case, cases.get(case.id, ()))
        for case in CASES.values()
    ]
    cells = [row.removesuffix(" |").split(" | ") for row in rows]
    scores, count = [float(row[-1]) for row in cells if row[-1] != "-"], sum(int(row[3]) for row in cells)
    mean = statistics.mean(scores) if scores else 0
    lines += [*rows, "", f"{len(scores)} cases, {count} trials, {mean:.2f} on average."]
    lacking = [row[0].removeprefix("| ") for row in cells if row[-1] == "-"]
    lines += [f"Not tried when this table was made: {', '.join(lacking)}."] if lacking else []
    return "\n".join(lines)


def _row(case: Case, results: Sequence[Result]) -> str:
    found = tried(results)
    cells = [case.id, case.fault, case.injected]
    if not found:
        why = results[0]["skipped"] if results else "not tried"
        return _cells([*cells, "0", why, "", case.must, "", "-"])
    shown = found[len(found) // 2]
    seconds = [result["recovery"] for result in found]
    recovery = f"{statistics.median(seconds):.0f} s, at most {max(seconds):.0f}"
    held = f"{case.must}: {len({words for result in found for words in result['held']})} checks"
    return _cells([*cells, str(len(found)), shown["fired"], _endings(found), held, recovery, f"{score(found):g}"])


def _endings(results: Sequence[Result]) -> str:
    """The errors that trials met, and the commands that they typed besides `run`."""
    ends = {run["error"] or _exit(run["code"]) for result in results for run in result["runs"] if run["code"]}
    typed = {command for result in results for command in result["commands"]}
    return ", ".join([*(f"`{end}`" for end in sorted(ends)), *(f"then `{command}`" for command in sorted(typed))])


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"


def place(page: str, part: str, text: str) -> str:
    """The page with `text` between the markers of `part`."""
    begin, end = markers(part)
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    assert found and closed, f"{PAGE} has no markers for {part}"
    return f"{before}{begin}\n{text}\n{end}{after}"


def markers(part: str) -> tuple[str, str]:
    """What stands before and after a generated part of the page."""
    return f"<!-- {part}: begin -->", f"<!-- {part}: end -->"


def main(results: Path) -> int:
    """Write what there is; the exit code."""
    lines = results.read_text().splitlines() if results.exists() else []
    cases, rounds = read(lines), soak(lines)
    parts = ({TABLE: table(cases, PAGE.read_text())} if cases else {}) | ({SOAK: rounds} if rounds else {})
    if not parts:
        print(f"{results} holds no results; run tests/faults, then this again", file=sys.stderr)
        return 1
    for part, text in parts.items():
        PAGE.write_text(place(PAGE.read_text(), part, text))
    wrong = verdict(cases) if cases else []
    skipped = [f"{case}: {found['skipped']}" for case in CASES for found in cases.get(case, ()) if "skipped" in found]
    for words in (*(f"NOT TRIED {one}" for one in skipped), *wrong):
        print(words, file=sys.stderr)
    trials = sum(len(tried(found)) for found in cases.values())
    print(f"{PAGE.relative_to(ROOT)}: {', '.join(parts)}, {trials} trials")
    return 1 if wrong else 0


if __name__ == "__main__":
    from tests.faults.trial import RESULTS

    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS))
