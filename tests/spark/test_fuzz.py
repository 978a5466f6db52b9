"""A thousand mutated files of every format: each record is accounted for, nothing crashes, the
audit is clean.

A columnar file that pyarrow reads and Spark doesn't ends red; the command that the error names must
put it right.

Files of one format are drained together. When that goes wrong, halves of them are, until the seeds
are known.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from draindown.audit.recount import audit
from draindown.base.exits import Exit
from draindown.cli.program import main
from tests.spark.mutants import FLOWS, Found, found_in, mutant

Make = Callable[[Mapping[str, Any]], Any]
KEY = {"text": "value"}


def fuzz(landing: Make, form: str, seeds: Sequence[int]) -> str | None:
    """Drain the mutants of all seeds at once; what is wrong, or None."""
    here = landing({"source": {"format": form}, **FLOWS[form]})
    found: dict[str, Found] = {}
    for seed in seeds:
        name, content = mutant(form, seed)
        found[name] = found_in(form, here.land(name, content))
    report, code = here.attempt()
    left_out = set()
    while code == Exit.NEEDS_PERSON and form in ("parquet", "orc"):  # damage that only Spark minds
        named = _leave_out(here, report.error)
        if not named - left_out:
            break
        left_out |= named
        report, code = here.attempt()
    if code != Exit.DONE:
        return f"{code}: {report.error}"
    found = {name: what for name, what in found.items() if name not in left_out}
    try:
        return _wrong(here, form, found)
    except AssertionError as error:
        return f"sums: {error}"


def _leave_out(here: Any, error: Mapping[str, Any]) -> set[str]:
    """Type the command that the error names; the files that it names."""
    commands = [
        shlex.split(step, comments=True) for step in error["next"] if "input discard" in step
    ]
    if error["code"] not in ("file-unreadable", "lines-differ") or not commands:
        return set()
    here.write_pipeline()
    assert main(["--root", str(here.home), *commands[0][1:]]) == 0
    return {Path(path).name for word, path in pairwise(commands[0]) if word == "--file"}


def _wrong(here: Any, form: str, found: Mapping[str, Found]) -> str | None:
    parked = here.parked()
    sums, refused = here.sums(), Counter(name for name, _ in here.refused())
    read = {name: what for name, what in found.items() if name not in parked}
    columnar = form in ("parquet", "orc")
    if not columnar and (
        broken := {name for name, what in found.items() if what.lines is None}
    ) != set(parked):
        return f"parked: {parked}; by plain Python: {broken}"
    if any(what.lines is None for what in read.values()):
        return f"read, though it can't be: {[name for name, what in read.items() if what.lines is None]}"
    if sums["lines"] != sum(what.lines or 0 for what in read.values()) and form != "csv":
        return f"lines: {sums['lines']} in the ledger"
    if form != "csv" and sums["blank"] != sum(what.blank for what in read.values()):
        return f"blank: {sums['blank']} in the ledger"
    residues = audit(here.spec, "f", root=here.home).residues
    if residues:
        return "; ".join(map(str, residues[:5]))
    if form in ("json", "text"):
        return _other_rows(here, form, read, refused)
    return None if here.attempt()[0].outcome == "idle" else "the next run is not idle"


def _other_rows(
    here: Any, form: str, read: Mapping[str, Found], refused: Mapping[str, int]
) -> str | None:
    """Whether exactly the rows are there that plain Python finds good."""
    wanted: Counter[Any] = sum((what.lands or Counter() for what in read.values()), Counter())
    held = Counter(row[KEY.get(form, "k")] for row in here.rows())
    for name, what in read.items():
        if what.lands and (what.lines or 0) - what.blank - refused[name] != what.lands.total():
            return f"{name}: {refused[name]} refused"
    return None if held == wanted else f"rows: {held - wanted} too many, {wanted - held} too few"


def culprits(landing: Make, form: str, seeds: Sequence[int], why: str) -> list[str]:
    """The seeds that are wrong by themselves."""
    if len(seeds) == 1:
        return [f"{form} seed {seeds[0]}: {why}"]
    named = []
    for half in (seeds[: len(seeds) // 2], seeds[len(seeds) // 2 :]):
        wrong = fuzz(landing, form, half)
        named += culprits(landing, form, half, wrong) if wrong else []
    return named or [f"{form} seeds {seeds[0]} to {seeds[-1]}, only together: {why}"]


def check(landing: Make, form: str, seeds: Sequence[int]) -> None:
    wrong = fuzz(landing, form, seeds)
    assert not wrong, "\n".join(culprits(landing, form, seeds, wrong))


@pytest.mark.parametrize("form", FLOWS)
@pytest.mark.long
def test_mutated_files_are_accounted_for(landing: Make, form: str) -> None:
    check(landing, form, range(20))


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", [1000, 1100])
@pytest.mark.parametrize("form", FLOWS)
def test_a_thousand_mutated_files_are_accounted_for(landing: Make, form: str, start: int) -> None:
    check(landing, form, range(start, start + 100))
