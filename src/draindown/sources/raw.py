"""Raw records in the lake: what a batch read, beside its table, for the time when the source no
longer has it.

A batch appends its records in one commit, with the ranges that they fill: a range is there whole or
not at all, also one without a record. Records of one range are never kept twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

import pyarrow as pa

from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, literal
from draindown.sources.slices import Unit

RECORDS, RANGES = "records", "ranges"
"""Values of `part`: rows with a record, and rows with a range [from, until) that a batch kept."""
SCHEMA = pa.schema(
    [
        ("part", pa.string()),
        ("day", pa.date32()),
        ("input", pa.string()),
        ("log", pa.string()),
        *[(name, pa.int64()) for name in ("position", "from", "until")],
        ("arrived_at", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("generation", pa.int32()),
        ("batch", pa.int64()),
        ("kind", pa.string()),
    ]
)
"""`log`: what tells a unit from a later one of its name, such as the id of a topic. `day`: when the
batch ran.
"""
_PARTITIONS = ("part", "day")
_STATISTICS = ("input", "log", "position", "from", "until", "batch")


_FEW = 100  # ranges that one query names
_SAMPLED = 1000  # records that are weighed


@dataclass(frozen=True, order=True)
class Kept:
    """A range of a unit that is kept."""

    unit: str
    log: str
    start: int
    until: int


def create(layout: FlowHome) -> None:
    """Create the empty table, for its owner only. No-op if it exists."""
    delta.create(
        layout.tables.raw,
        SCHEMA,
        statistics=_STATISTICS,
        private=True,
        partition_by=_PARTITIONS,
    )


def ranges(layout: FlowHome, within: Sequence[Kept] | None = None) -> list[Kept]:
    """Return the ranges that are kept, in order, joined where they touch. `within`: only those that
    overlap these.
    """
    table = layout.tables.raw
    if not table.exists:
        return []
    conditions = ["true"]
    if within is not None:
        filled = list(_joined(one for one in within if one.start < one.until))
        conditions = [" or ".join(map(_overlaps, chunk)) for chunk in _chunks(filled)]
    sql = f'select input, log, "from", until from t where part = {literal(RANGES)}'
    kept: list[Kept] = []
    for condition in conditions:
        rows = table.rows(f"{sql} and ({condition})")
        kept += [Kept(row["input"], row["log"], row["from"], row["until"]) for row in rows]
    return list(_joined(kept))


def kept_of(layout: FlowHome, within: Sequence[Kept]) -> list[Kept]:
    """Return what is kept of these ranges: as `ranges`, and nothing outside of them."""
    found = _by_log(ranges(layout, within))
    return [
        replace(kept, start=max(kept.start, one.start), until=min(kept.until, one.until))
        for one in within
        for kept in found[one.unit, one.log]
        if max(kept.start, one.start) < min(kept.until, one.until)
    ]


def record_bytes(layout: FlowHome, within: Sequence[Kept]) -> float | None:
    """Return the bytes of key and value of a record, of a thousand of these ranges; None without
    one.
    """
    rows = layout.tables.raw.rows(
        f"select key, value from t where {_places(within[:_FEW])} limit {_SAMPLED}"
    )
    sizes = [len(row["key"] or b"") + len(row["value"] or b"") for row in rows]
    return sum(sizes) / len(sizes) if sizes else None


def _places(within: Iterable[Kept]) -> str:
    places = (
        f"(input = {literal(one.unit)} and log = {literal(one.log)} and position >= {one.start} "
        f"and position < {one.until})"
        for one in within
    )
    return f"part = {literal(RECORDS)} and ({' or '.join(places)})"


def counts(layout: FlowHome, within: Sequence[Kept]) -> dict[str, int]:
    """Return the number of records of these ranges, which are kept, by unit."""
    found: dict[str, int] = defaultdict(int)
    for few in _chunks(within):
        for row in layout.tables.raw.rows(
            f"select input, count(*) as n from t where {_places(few)} group by input"
        ):
            found[row["input"]] += row["n"]
    return dict(found)


def oldest(layout: FlowHome, within: Sequence[Kept]) -> dict[str, datetime]:
    """Return when the oldest record of these ranges, which are kept, arrived, by unit."""
    found: dict[str, datetime] = {}
    for few in _chunks(within):
        where = _places(few)
        for row in layout.tables.raw.rows(
            f"select input, min(arrived_at) as at from t where {where} group by input"
        ):
            found[row["input"]] = min(row["at"], found.get(row["input"], row["at"]))
    return found


def _chunks(within: Sequence[Kept]) -> Iterator[Sequence[Kept]]:
    return (within[at : at + _FEW] for at in range(0, len(within), _FEW))


def _overlaps(one: Kept) -> str:
    of_log = f"input = {literal(one.unit)} and log = {literal(one.log)}"
    return f'({of_log} and "from" < {one.until} and until > {one.start})'


def _joined(ranges: Iterable[Kept]) -> Iterator[Kept]:
    last: Kept | None = None
    for one in sorted(ranges):
        if (
            last is not None
            and (one.unit, one.log) == (last.unit, last.log)
            and one.start <= last.until
        ):
            last = replace(last, until=max(last.until, one.until))
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def divided(layout: FlowHome, units: Sequence[Unit]) -> list[Unit]:
    """Return the pieces of units, in order, each wholly kept or not at all. Units have their
    `log`.
    """
    asked = [Kept(one.name, one.log, one.start, one.until) for one in units]
    found = _by_log(ranges(layout, asked))
    return [
        piece
        for unit in units
        for piece in _pieces(unit, found[unit.name, unit.log], layout.tables.raw.path)
    ]


def _by_log(ranges: Iterable[Kept]) -> dict[tuple[str, str], list[Kept]]:
    found: dict[tuple[str, str], list[Kept]] = defaultdict(list)
    for one in ranges:
        found[one.unit, one.log].append(one)
    return found


def _pieces(unit: Unit, kept: Sequence[Kept], table: str) -> Iterator[Unit]:
    at = unit.start
    number = bisect_right(kept, at, key=lambda one: one.until)
    while number < len(kept) and kept[number].start < unit.until:
        start, until = max(kept[number].start, at), min(kept[number].until, unit.until)
        if at < start:
            yield _piece(unit, at, start)
        yield replace(_piece(unit, start, until), kept=table)
        at, number = until, number + 1
    if at < unit.until or unit.start == unit.until:
        yield _piece(unit, at, unit.until)


def _piece(unit: Unit, start: int, until: int) -> Unit:
    whole = max(1, unit.until - unit.start)
    share = (until - start) / whole if unit.until > unit.start else 1
    return replace(
        unit,
        start=start,
        until=until,
        bytes=round(unit.bytes * share),
        unpacked=round(unit.unpacked * share),
    )


def drop(layout: FlowHome, keep: int, now: datetime) -> None:
    """Drop the days that ended more than `keep` seconds ago, each with its ranges, in one commit.

    What they held stays on disk until a vacuum. Called under the lease.
    """
    log = layout.tables.raw
    if not log.exists:
        return
    first = (now - timedelta(seconds=keep)).date()
    if any(day < first for day in _days(log)):
        delta.delete(layout.tables.raw, f"day < '{first.isoformat()}'")


def _days(log: Table) -> Iterator[date]:
    for row in log.rows(f"select distinct day from t where part = {literal(RANGES)}"):
        yield row["day"]
