"""Small SVG charts: lines over run numbers, and bars in groups. Readable on light and dark pages.

Jinja is what the environment has that can write SVG: Altair is there too, but writes it only with a
converter or a browser that are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

COLOURS = ("#8c8c8c", "#c77d1e", "#2f81c9", "#2da05a", "#b0559f", "#d0504a", "#8a6d3b")
"""Each has enough contrast to white and to a dark page."""

_WIDTH = 760.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 744.0, 56.0, 246.0  # of the field that is drawn in
_TICKS = 5
_LETTER, _SMALL_LETTER = 6.4, 5.9  # how wide letters of labels and of values are, about
_LINE, _ROW = 14.0, 20.0  # height of a line of a label, and of a row of the legend


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


@dataclass(frozen=True)
class Label:
    """Text under the axis."""

    x: float
    lines: Sequence[str]


def lines(chart: Chart, drawn: Sequence[Line]) -> str:
    """A line per series."""
    points = [point for line in drawn for point in line.points]
    if not points:
        return ""
    ticks, top = _ticks(max(y for _, y in points))
    first, last = min(x for x, _ in points), max(x for x, _ in points)

    def across(x: float) -> float:
        return _LEFT + (x - first) / ((last - first) or 1) * (_RIGHT - _LEFT)

    paths = [
        {
            "colour": _colour(at),
            "points": " ".join(f"{across(x):.1f},{_up(y, top):.1f}" for x, y in line.points),
        }
        for at, line in enumerate(drawn)
    ]
    labels = [Label(across(x), [f"{x:g}"]) for x in _marks(sorted({x for x, _ in points}), across)]
    return _drawn(chart, ticks, top, [line.name for line in drawn], paths=paths, labels=labels)


def bars(chart: Chart, drawn: Sequence[Bar]) -> str:
    """A group of bars per group."""
    if not drawn:
        return ""
    ticks, top = _ticks(max(bar.value for bar in drawn))
    groups, names = (
        list(dict.fromkeys(b.group for b in drawn)),
        list(dict.fromkeys(b.name for b in drawn)),
    )
    step = (_RIGHT - _LEFT) / len(groups)
    wide = min(48.0, step * 0.86 / len(names))
    upright = any(len(_short(bar.value)) * _SMALL_LETTER > wide for bar in drawn)
    shapes = []
    for bar in drawn:
        group, at = groups.index(bar.group), names.index(bar.name)
        x = _LEFT + (group + 0.5) * step + (at - len(names) / 2) * wide
        shapes.append(
            {
                "x": x,
                "y": _up(bar.value, top),
                "width": wide - 2,
                "value": _short(bar.value),
                "colour": _colour(at),
            }
        )
    labels = [
        Label(_LEFT + (at + 0.5) * step, _wrapped(name, step)) for at, name in enumerate(groups)
    ]
    return _drawn(chart, ticks, top, names, bars=shapes, labels=labels, upright=upright)


def _drawn(
    chart: Chart,
    ticks: Sequence[float],
    top: float,
    names: Sequence[str],
    *,
    labels: Sequence[Label],
    **shapes: object,
) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    axis = _BOTTOM + 16 + _LINE * max(len(label.lines) for label in labels) + 6
    legend, height = _legend(names, axis + 16)
    grid = [{"y": _up(tick, top), "text": f"{tick:g}"} for tick in ticks]
    frame = {
        "width": _WIDTH,
        "height": height,
        "left": _LEFT,
        "right": _RIGHT,
        "top": _TOP,
        "bottom": _BOTTOM,
    }
    given = {
        "chart": chart,
        "grid": grid,
        "legend": legend,
        "frame": frame,
        "axis": axis,
        "line": _LINE,
    }
    return environment.get_template("picture.svg.j2").render(
        {"paths": [], "bars": [], **given, **shapes, "labels": labels}
    )


def _legend(names: Sequence[str], y: float) -> tuple[list[dict[str, object]], float]:
    """The entries from `y` on, in as many rows as they need, and where the picture ends."""
    entries, x = list[dict[str, object]](), _LEFT
    for at, name in enumerate(names):
        wide = 17 + len(name) * _LETTER + 18
        if x > _LEFT and x + wide > _WIDTH:
            x, y = _LEFT, y + _ROW
        entries.append({"x": x, "y": y, "name": name, "colour": _colour(at)})
        x += wide
    return entries, y + _ROW + 4


def _wrapped(text: str, wide: float) -> list[str]:
    """Lines of a label that is so wide at most: a part between commas has lines of its own."""
    lines: list[str] = []
    for part in text.split(", "):
        fresh = True
        for word in part.split(" "):
            longer = word if fresh else f"{lines[-1]} {word}"
            if fresh or len(longer) * _LETTER > wide:
                lines.append(word)
            else:
                lines[-1] = longer
            fresh = False
    return lines


def _marks(known: Sequence[float], across: Callable[[float], float]) -> list[float]:
    """Which places on the axis have a label: the first, the last, and multiples of five that leave
    them room.
    """
    first, last = known[0], known[-1]
    room = 24.0
    inner = [
        x for x in known if x % 5 == 0 and across(first) + room < across(x) < across(last) - room
    ]
    return sorted({first, *inner, last})


def _up(value: float, top: float) -> float:
    return _BOTTOM - value / top * (_BOTTOM - _TOP)


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
