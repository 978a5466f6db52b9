"""The picture of how late rows came: which share each delay covers, and the lateness of each day.
SVG, no script.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from draindown.base.formatting import age, percent

WIDTH, HEIGHT = 760, 560
_LEFT, _RIGHT = 70, 740
_UPPER, _LOWER = (48, 248), (318, 508)
_MARKS = (1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
_MOST_LABELS = 8
_TEMPLATES = Environment(
    loader=PackageLoader("draindown.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)


@dataclass(frozen=True)
class Point:
    """A delay in seconds, and the share of rows that it covers, 0 to 1."""

    delay: float
    share: float


@dataclass(frozen=True)
class DayBar:
    """The lateness of a day's rows in seconds: median, 95th centile, most."""

    day: str
    median: float
    p95: float
    most: float


def picture(
    title: str, curve: Sequence[Point], days: Sequence[DayBar], allowed: float | None = None
) -> str:
    """Return the picture as SVG. `allowed`: the delay that a flow allows, drawn as a line. Both
    axes of delays are logarithmic: a minute and a month fit on one; what came before its time
    stands at their start."""
    longest = max([1.0, *(one.delay for one in curve), *(one.most for one in days), allowed or 0])
    marks = [mark for mark in _MARKS if mark <= longest * 1.2]
    line = [(_across(one.delay, longest), _up(one.share, _UPPER)) for one in curve]
    bars = [_bar(at, one, len(days), longest) for at, one in enumerate(days)]
    return _TEMPLATES.get_template("lateness.svg").render(
        title=title,
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        upper=_UPPER,
        lower=_LOWER,
        shares=[
            {"y": _up(share, _UPPER), "text": percent(share)}
            for share in (0, 0.25, 0.5, 0.75, 0.9, 1)
        ],
        delays=[
            {"x": _across(mark, longest), "text": _named(mark)} for mark in _spread(marks, longest)
        ],
        heights=[
            {"y": _down(mark, longest), "text": _named(mark)} for mark in _thinned(marks, longest)
        ],
        line=" ".join(_steps(line)),
        bars=bars,
        labels=[bar for at, bar in enumerate(bars) if at % -(-len(bars) // _MOST_LABELS) == 0],
        allowed=None
        if allowed is None
        else {"x": _across(allowed, longest), "y": _down(allowed, longest), "text": age(allowed)},
    )


def _named(mark: float) -> str:
    return "≤ 1 s" if mark == 1 else age(mark)


def _scale(delay: float, longest: float) -> float:
    return math.log10(max(delay, 1.0)) / math.log10(max(longest, 10.0))


def _across(delay: float, longest: float) -> float:
    return _LEFT + _scale(delay, longest) * (_RIGHT - _LEFT)


def _up(share: float, panel: tuple[int, int]) -> float:
    top, bottom = panel
    return bottom - share * (bottom - top)


def _down(delay: float, longest: float) -> float:
    return _up(_scale(delay, longest), _LOWER)


def _steps(line: Sequence[tuple[float, float]]) -> list[str]:
    """Return the points of a curve that rises at each delay and is level in between."""
    points: list[str] = []
    last: float | None = None
    for x, y in line:
        points += [f"{x:.1f},{last:.1f}"] if last is not None else []
        points.append(f"{x:.1f},{y:.1f}")
        last = y
    return points


def _bar(at: int, one: DayBar, number: int, longest: float) -> dict[str, object]:
    step = (_RIGHT - _LEFT) / number
    wide = max(min(step * 0.7, 40.0), 1.0)
    middle = _LEFT + (at + 0.5) * step
    median, p95, most = (_down(value, longest) for value in (one.median, one.p95, one.most))
    return {
        "x": middle - wide / 2,
        "wide": wide,
        "middle": middle,
        "median": median,
        "p95": p95,
        "most": most,
        "day": one.day,
    }


def _apart(marks: Sequence[float], at: Callable[[float], float], least: float) -> list[float]:
    """Return marks of which no two are closer than `least`."""
    kept: list[float] = []
    for mark in marks:
        if not kept or at(mark) - at(kept[-1]) >= least:
            kept.append(mark)
    return kept


def _spread(marks: Sequence[float], longest: float) -> list[float]:
    return _apart(marks, lambda mark: _across(mark, longest), 52)


def _thinned(marks: Sequence[float], longest: float) -> list[float]:
    return _apart(marks, lambda mark: -_down(mark, longest), 16)
