"""The results of a drill: for each fault whether it happened, whether everything held, and how long
recovery took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draindown.base.formatting import age, columns, printable


@dataclass(frozen=True)
class Result:
    """One fault on one copy.

    `where`: batch and step; `fired`: the proof that it happened, empty without one; `wrong`: what
    did not hold; `unlooked`: what the audit could not check; `commands`: the recovery; `recovery`:
    its wall time in seconds, process starts included; `project`: root of the copy.
    """

    flow: str
    fault: str
    where: str
    fired: str
    wrong: tuple[str, ...] = ()
    unlooked: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    recovery: float = 0.0
    project: str = ""

    @property
    def held(self) -> bool:
        """Whether the fault happened and did no harm. A fault that did not happen proves
        nothing.
        """
        return bool(self.fired) and not self.wrong

    def as_dict(self) -> dict[str, Any]:
        """Return a flat, JSON-ready dictionary."""
        return {**asdict(self), "held": self.held}


@dataclass(frozen=True)
class Drill:
    """All results of one drill. `wrong`: changes outside its copies; `unlooked`: what could not be
    checked.
    """

    pipeline: str
    scratch: str
    results: tuple[Result, ...]
    wrong: tuple[str, ...] = ()
    unlooked: tuple[str, ...] = ()
    seed: int = 1

    @property
    def held(self) -> bool:
        """Whether every fault happened and did no harm, in its copy and in the flow's own lake."""
        return bool(self.results) and not self.wrong and all(result.held for result in self.results)

    def as_dict(self, *, kept: bool) -> dict[str, Any]:
        """Return a JSON-ready dictionary. `kept`: the scratch directory still exists, so it is
        named.
        """
        results = [result.as_dict() for result in self.results]
        whole = {
            "pipeline": self.pipeline,
            "held": self.held,
            "seed": self.seed,
            "results": results,
        }
        return whole | {
            "wrong": self.wrong,
            "unlooked": self.unlooked,
            "scratch": self.scratch if kept else None,
        }

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("FLOW", "FAULT", "WHERE", "FIRED", "HELD", "RECOVERY")]
        rows += [_row(result) for result in self.results]
        one = len({result.flow for result in self.results}) == 1
        lines = columns([row[one:] for row in rows], right=(5 - one,))
        lines += [line for result in self.results for line in _details(result)]
        lines += [f"WRONG  {printable(text)}" for text in self.wrong]
        unlooked = [
            *self.unlooked,
            *(f"{one.flow}: {text}" for one in self.results for text in one.unlooked),
        ]
        lines += [f"not looked at  {printable(text)}" for text in dict.fromkeys(unlooked)]
        return "\n".join([*lines, self._verdict()])

    def _verdict(self) -> str:
        held = sum(result.held for result in self.results)
        untouched = (
            ""
            if self.wrong or self.unlooked
            else "; the pipeline's own lake and files are as they were"
        )
        return f"{held} of {len(self.results)} held{untouched}"


def _row(result: Result) -> tuple[str, ...]:
    back = age(result.recovery) if result.commands else "-"
    fired = "yes" if result.fired else "no"
    return (result.flow, result.fault, result.where, fired, "yes" if result.held else "NO", back)


def _details(result: Result) -> Sequence[str]:
    if result.held:
        return ()
    problems = result.wrong if result.fired else ("it is not proven that it fired", *result.wrong)
    looked = f"  look    draindown --root {result.project} doctor" if result.project else ""
    return [
        f"{result.flow}: {result.fault}",
        *(f"  wrong   {printable(text)}" for text in problems),
        looked,
    ]
