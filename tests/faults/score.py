"""The score of the campaign: its table, what soaks found, and what keeps it from passing
(tests/campaign writes them).

A case is as good as its worst trial. A case that could not be tried here is named, with the reason,
and counts for nothing.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from draindown.base import formatting
from tests.faults.cases import CASES, Case, least

Result = Mapping[str, Any]


def soak(lines: Sequence[Result]) -> str:
    """What all soaks found together, and how the longest went."""
    found = [line["soak"] for line in lines]
    if not found:
        return "Soak: none yet."
    rounds, seconds, batches, vacuumed = (
        sum(int(one[name]) for one in found)
        for name in ("rounds", "seconds", "batches", "vacuumed")
    )
    long = max(found, key=lambda one: int(one["rounds"]))
    first, last = long["batch_seconds"]
    fired = sum((Counter(one["fired"]) for one in found), Counter[str]())
    faults = ", ".join(f"{name} {count}" for name, count in sorted(fired.items()))
    commits = ", ".join(dict.fromkeys(f"`{line['commit']}`" for line in lines))
    return (
        f"Soak: {rounds} rounds in {seconds} s, {formatting.count(len(found), 'run')} ({commits}), {batches} batches, "
        f"each round equal to the oracle; VACUUM removed {vacuumed} files. In the longest, {long['rounds']} rounds of "
        f"seed {long['seed']}, a batch took {first} s at first and {last} s at last; the table ended with "
        f"{long['rows']} rows in {formatting.count(long['table_files'], 'file')}. Faults: {faults}."
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
    return f"{worst['place']}: {'; '.join(worst['wrong'])}"


def table(cases: Mapping[str, Sequence[Result]], commits: Mapping[str, str]) -> str:
    """The table, with a line about all of it. `commits`: which commits the results of a case are
    of.
    """
    lines = [
        "| # | fault | injected | trials | proof, of one trial | how it ended | held | recovery | score | of commit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        _row(case, cases.get(case.id, ()), commits.get(case.id, "")) for case in CASES.values()
    ]
    found = {case: tried(cases.get(case, ())) for case in CASES}
    scores = [score(results) for results in found.values() if results]
    count = sum(_trials(results) for results in found.values())
    mean = statistics.mean(scores) if scores else 0
    lines += ["", f"{len(scores)} cases, {count} trials, {mean:.2f} on average."]
    lacking = [case for case, results in found.items() if not results]
    lines += [f"Not tried when this table was made: {', '.join(lacking)}."] if lacking else []
    return "\n".join(lines)


def _trials(results: Sequence[Result]) -> int:
    return sum(int(result.get("trials", 1)) for result in results)


def _row(case: Case, results: Sequence[Result], commit: str) -> str:
    found = tried(results)
    cells = [case.id, case.fault, case.injected]
    if not found:
        why = results[0]["skipped"] if results else "not tried"
        return _cells([*cells, "0", why, "", case.must, "", "-", commit])
    shown = found[len(found) // 2]
    seconds = [one for result in found for one in result["seconds"]]
    recovery = f"{statistics.median(seconds):.0f} s, at most {max(seconds):.0f}"
    held = f"{case.must}: {max(result['checks'] for result in found)} checks"
    shown_score = f"{score(found):g}"
    return _cells(
        [
            *cells,
            str(_trials(found)),
            shown["fired"],
            _endings(found),
            held,
            recovery,
            shown_score,
            commit,
        ]
    )


def _endings(results: Sequence[Result]) -> str:
    """The errors that trials met, and the commands that they typed besides `run`."""
    ends, typed = (
        {one for result in results for one in result[name]} for name in ("ended", "typed")
    )
    return ", ".join(
        [*(f"`{end}`" for end in sorted(ends)), *(f"then `{command}`" for command in sorted(typed))]
    )


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"
