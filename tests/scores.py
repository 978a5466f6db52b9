"""Scores of bad input: what was recorded of each case, and the table that says so in
docs/guarantees.md.

     1    everything held
     0.5  it was loud, and the documented command put it right
     0    it took surgery, or it stays red
    -1    exit 0 although something is wrong

`make campaign` writes the table from the newest run of each case (tests/campaign).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.inputs import WHAT

ROOT = Path(__file__).parents[1]
RESULTS = Path(os.environ.get("DRAINDOWN_BAD_INPUT") or ROOT / ".work" / "bad-input.jsonl")
LEAST, AVERAGE = 0.5, 0.95
ABOUT = ("sources/files", "spark/batch", "spark/contract", "spark/sources", "spark/targets")
"""The packages that bad input is about."""


@dataclass
class Trial:
    """One case at one place (a format, a process). `fired` is the proof that the input was met.

    `held` and `wrong` are promises by name; `loud`: whether something red or named told of what
    went wrong; `after`: what is still wrong after the documented command.
    """

    case: str
    place: str
    injected: str
    fired: str = ""
    held: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    loud: bool = False
    after: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def promise(self, words: str, holds: object, *, mended: object = False) -> None:
        """Note whether something holds; `mended`: whether it did in the end, once a documented
        command was typed.
        """
        (self.held if holds else self.wrong).append(words)
        if not holds and not mended:
            self.after.append(words)

    @property
    def score(self) -> float:
        """See the module. Input that was never met has none: AssertionError."""
        assert self.fired, f"{self.case} {self.place}: the input was never met"
        assert self.held or self.wrong, f"{self.case} {self.place}: nothing was looked at"
        if not self.wrong:
            return 1
        if not self.loud:
            return -1
        return 0 if self.after else 0.5


def conclude(trials: Sequence[Trial]) -> None:
    """Write down all trials, then insist on each."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as out:
        for trial in trials:
            out.write(json.dumps(asdict(trial) | {"score": trial.score, "test": _running()}) + "\n")
    bad = [trial for trial in trials if trial.wrong]
    assert not bad, "\n".join(str(trial) for trial in bad)


def _running() -> str:
    return os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0].partition("[")[0]


def score(trials: Sequence[Mapping[str, Any]]) -> float:
    """The worst of a case's trials."""
    return float(min(trial["score"] for trial in trials))


def table(found: Mapping[str, Sequence[Mapping[str, Any]]], commits: Mapping[str, str]) -> str:
    """The table, its average in the last line. A case counts as its worst trial; one that was not
    tried says so.

    `commits`: which commits the results of a case are of.
    """
    rows = [
        "| # | input | tried as | proof that it was met | what held | score | of commit |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    scores = {case: score(trials) for case, trials in found.items() if trials}
    for case, trials in found.items():
        held = list(dict.fromkeys(words for trial in trials for words in trial["held"]))
        wrong = list(dict.fromkeys(words for trial in trials for words in trial["wrong"]))
        said = "; ".join([*held, *(f"**not:** {words}" for words in wrong)])
        places, proofs = (
            list(dict.fromkeys(t[name] for t in trials)) for name in ("place", "fired")
        )
        cells = [case, WHAT[case], ", ".join(places) or "not tried yet", "; ".join(proofs), said]
        shown = f"{scores[case]:g}" if trials else "-"
        rows.append(
            f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} | {shown} | {commits.get(case, '')} |"
        )
    average = sum(scores.values()) / len(scores)
    rows += ["", f"{len(scores)} cases, average {average:.2f}, lowest {min(scores.values()):g}."]
    return "\n".join(rows)


def verdict(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """What the table lacks; empty is good."""
    scores = {case: score(trials) for case, trials in found.items() if trials}
    wrong = [f"{case} is missing" for case in found if case not in scores]
    wrong += [f"{case} scores {value:g}" for case, value in scores.items() if value < LEAST]
    average = sum(scores.values()) / len(scores) if scores else 0
    return wrong + ([f"bad input scores {average:.2f} on average"] if average < AVERAGE else [])
