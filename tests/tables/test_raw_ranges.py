"""Ranges of raw records: joined, dropped by days, and units divided by them as a model of single
positions says.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.sources import raw
from draindown.sources.slices import Unit

AT = datetime(2026, 1, 1, tzinfo=UTC)


def unit(name: str, log: str, start: int, until: int) -> Unit:
    return Unit(name, start, until, 10 * (until - start), 0, None, AT, {}, log=log)


def keep(layout: FlowHome, ranges: list[raw.Kept], at: datetime = AT) -> None:
    """Write ranges as batches do, without their records."""
    rows = [
        {
            "part": raw.RANGES,
            "day": at.date(),
            "input": one.unit,
            "log": one.log,
            "from": one.start,
            "until": one.until,
        }
        for one in ranges
    ]
    delta.append(layout.tables.raw, pa.Table.from_pylist(rows, schema=raw.SCHEMA))


def positions(pieces: list[Unit], *, kept: bool) -> list[tuple[str, str, int]]:
    return [
        (one.name, one.log, at)
        for one in pieces
        if bool(one.kept) == kept
        for at in range(one.start, one.until)
    ]


@pytest.mark.parametrize("units", [1, 3, 100, 101, 250])
def test_pieces_of_units_are_kept_wholly_or_not_at_all(tmp_path: Path, units: int) -> None:
    draw, layout = random.Random(units), FlowHome(str(tmp_path), "p", "f", "f")
    raw.create(layout)
    starts = [(f"t/{n % 120}", draw.choice("ab"), draw.randrange(30)) for n in range(300)]
    ranges = [raw.Kept(name, log, at, at + draw.randrange(1, 9)) for name, log, at in starts]
    keep(layout, ranges)
    held = {(one.unit, one.log, at) for one in ranges for at in range(one.start, one.until)}
    asked = [
        unit(f"t/{n}", draw.choice("ab"), at, at + draw.randrange(0, 20))
        for n in range(units)
        for at in [n % 25]
    ]
    pieces = raw.divided(layout, asked)
    wanted = [(one.name, one.log, at) for one in asked for at in range(one.start, one.until)]
    assert sorted(positions(pieces, kept=True)) == sorted(
        place for place in wanted if place in held
    )
    assert sorted(positions(pieces, kept=False)) == sorted(
        place for place in wanted if place not in held
    )
    assert [one.name for one in pieces if one.start == one.until] == [
        one.name for one in asked if not one.bytes
    ]


def test_ranges_of_one_log_are_joined_where_they_touch(tmp_path: Path) -> None:
    layout = FlowHome(str(tmp_path), "p", "f", "f")
    raw.create(layout)
    keep(layout, [raw.Kept("a", "1", 5, 9), raw.Kept("a", "1", 0, 5), raw.Kept("a", "2", 9, 10)])
    assert raw.ranges(layout) == [raw.Kept("a", "1", 0, 9), raw.Kept("a", "2", 9, 10)]
    assert raw.ranges(replace(layout, flow="nobody")) == []


def test_days_are_dropped_whole(tmp_path: Path) -> None:
    layout, day = FlowHome(str(tmp_path), "p", "f", "f"), timedelta(days=1)
    raw.create(layout)
    kept = [raw.Kept("a", "1", 0, 5), raw.Kept("b", "1", 0, 5)]
    for number, one in enumerate(kept):
        keep(layout, [one], AT + number * day)
    raw.drop(layout, 2 * 86_400, AT + 2 * day)
    assert raw.ranges(layout) == kept, "the day ended less than two days ago"
    raw.drop(layout, 2 * 86_400, AT + 3 * day)
    assert raw.ranges(layout) == kept[1:]
    raw.drop(layout, 2 * 86_400, AT + 4 * day)
    assert raw.ranges(layout) == []
