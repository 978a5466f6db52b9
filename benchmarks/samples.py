"""Measured runs and the arithmetic over them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.contenders import BASELINE
from benchmarks.measure import Cost

Row = dict[str, object]

_ENDS = 5  # runs at either end of a series that are compared
_UNCOUNTED = "end"  # kind of the run that is there for the oracle only


@dataclass(frozen=True)
class Sample:
    """One run, measured. `kind`: which of the work's kinds of run; `facts`: numbers that the run
    told of itself.
    """

    contender: str
    kind: str
    cost: Cost
    number: int = 0
    """Of the run in its series, from 1."""
    wrong_rows: int = 0
    quarantined: int = 0
    verdict: str = ""
    """What the oracle says; empty where it was not asked."""
    facts: Mapping[str, float] = field(default_factory=dict)


def of(samples: Sequence[Sample], kind: str, contender: str | None = None) -> list[Sample]:
    """The samples of a kind, of one contender or of all."""
    return [s for s in samples if s.kind == kind and contender in (None, s.contender)]


def median(group: Sequence[Sample], what: str) -> float | None:
    """Median of a field of the cost, or of a fact; None where nobody has it."""
    values = [float(getattr(s.cost, what, s.facts.get(what, float("nan")))) for s in group]
    known = [value for value in values if value == value]
    return round(float(statistics.median(known)), 2) if known else None


def ratio(over: float | None, under: float | None, digits: int = 2) -> float | None:
    """A quotient, where there is one."""
    return round(over / under, digits) if over is not None and under else None


def last_first(group: Sequence[Sample], ends: int = _ENDS) -> float | None:
    """Median wall time of the last runs of a series over that of the first; None for a short
    series.
    """
    if len(group) < 2 * ends:
        return None
    return ratio(median(group[-ends:], "wall_s"), median(group[:ends], "wall_s"))


def last_over_mean(group: Sequence[Sample]) -> float | None:
    """Wall time of the last run over the mean of those before it."""
    if len(group) < 2:
        return None
    return ratio(group[-1].cost.wall_s, statistics.fmean(s.cost.wall_s for s in group[:-1]))


def kinds(samples: Sequence[Sample]) -> list[str]:
    """The kinds of run, in order."""
    return [kind for kind in dict.fromkeys(s.kind for s in samples) if kind != _UNCOUNTED]


def contenders(samples: Sequence[Sample]) -> list[str]:
    """Who ran, in order."""
    return list(dict.fromkeys(s.contender for s in samples))


def summary(samples: Sequence[Sample]) -> list[Row]:
    """One row per kind of run and contender: medians, and their ratios to the baseline of the same
    kind.
    """
    pairs = [
        (kind, name)
        for kind in kinds(samples)
        for name in contenders(samples)
        if of(samples, kind, name)
    ]
    return [_row(kind, name, samples) for kind, name in pairs]


def _row(kind: str, name: str, samples: Sequence[Sample]) -> Row:
    own, group = [s for s in samples if s.contender == name], of(samples, kind, name)
    base = of(samples, kind, BASELINE) or of(
        samples, kind, next(one.contender for one in samples if one.kind == kind)
    )
    row: Row = {"kind": kind, "contender": name, "runs": len(group)}
    for what in ("wall_s", "cpu_s", "rss_mb"):
        row[what] = median(group, what)
        row[f"{what}_ratio"] = ratio(median(group, what), median(base, what)) if base else None
    row["last_first"] = last_first(group)
    row["failed"] = sum(s.cost.exit_code != 0 for s in group)
    # where the oracle was asked after other runs only, their result says it of these too
    judged = [s for s in group if s.verdict] or own
    return row | {"wrong_rows": _wrong(judged), "quarantined": max(s.quarantined for s in judged)}


def _wrong(own: Sequence[Sample]) -> int | str:
    unjudged = next((s.verdict for s in own if s.verdict.startswith("could not compare")), "")
    return unjudged or max(s.wrong_rows for s in own)
