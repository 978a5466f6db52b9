"""Small SVG charts: lines over run numbers, and bars in groups. Readable on light and dark pages.

Jinja is what the environment has that can write SVG: Altair is there too, but writes it only with a converter or a
browser that are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

COLOURS = ("#8c8c8c", "#c77d1e", "#2f81c9", "#2da05a", "#b0559f")
"""Each has enough contrast to white and to a dark page."""

_WIDTH, _HEIGHT = 760.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 16.0, 40.0, 96.0
_TICKS = 5


@dataclass(frozen=True)
class Chart:
    """Title and axes; units belong into the labels."""

    title: str
    x: str
    y: str


@dataclass(frozen=True)
class Line:
    """One series of points."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Bar:
    """One bar; bars of a group stand together, bars of a name have one colour."""

    group: str
    name: str
    value: float


def lines(chart: Chart, drawn: Sequence[Line]) -> str:
    """A line per series."""
    points = [point for line in drawn for point in line.points]
    if not points:
        return ""
    ticks, top = _ticks(max(y for _, y in points))
    first, last = min(x for x, _ in points), max(x for x, _ in points)

    def across(x: float) -> float:
        return _LEFT + (x - first) / ((last - first) or 1) * (_WIDTH - _LEFT - _RIGHT)

    paths = [
        {"colour": _colour(at), "points": " ".join(f"{across(x):.1f},{_up(y, top):.1f}" for x, y in line.points)}
        for at, line in enumerate(drawn)
    ]
    labels = [
        {"x": across(x), "text": f"{x:g}"} for x in sorted({x for x, _ in points}) if x in (first, last) or x % 5 == 0
    ]
    return _drawn(chart, ticks, top, [line.name for line in drawn], paths=paths, labels=labels)


def bars(chart: Chart, drawn: Sequence[Bar]) -> str:
    """A group of bars per group."""
    if not drawn:
        return ""
    ticks, top = _ticks(max(bar.value for bar in drawn))
    groups, names = list(dict.fromkeys(b.group for b in drawn)), list(dict.fromkeys(b.name for b in drawn))
    step = (_WIDTH - _LEFT - _RIGHT) / len(groups)
    wide = min(48.0, step * 0.8 / len(names))
    shapes = []
    for bar in drawn:
        group, at = groups.index(bar.group), names.index(bar.name)
        x = _LEFT + (group + 0.5) * step + (at - len(names) / 2) * wide
        shapes.append(
            {"x": x, "y": _up(bar.value, top), "width": wide - 2, "value": _short(bar.value), "colour": _colour(at)}
        )
    labels = [{"x": _LEFT + (at + 0.5) * step, "text": name} for at, name in enumerate(groups)]
    return _drawn(chart, ticks, top, names, bars=shapes, labels=labels)


def _drawn(chart: Chart, ticks: Sequence[float], top: float, names: Sequence[str], **shapes: object) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    legend = [{"name": name, "colour": _colour(at)} for at, name in enumerate(names)]
    grid = [{"y": _up(tick, top), "text": f"{tick:g}"} for tick in ticks]
    frame = {"width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "right": _WIDTH - _RIGHT, "bottom": _HEIGHT - _BOTTOM}
    given = {"chart": chart, "grid": grid, "legend": legend, "frame": frame, "paths": [], "bars": [], "labels": []}
    return environment.get_template("picture.svg.j2").render(given | shapes)


def _up(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - _TOP)


def _ticks(most: float) -> tuple[list[float], float]:
    """Round numbers from 0 to at least `most`, and the last of them."""
    rough = (most or 1) / _TICKS
    power: float = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    ticks = [round(step * at, 10) for at in range(math.ceil((most or 1) / step - 1e-9) + 1)]
    return ticks, ticks[-1]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _colour(at: int) -> str:
    return COLOURS[at % len(COLOURS)]
