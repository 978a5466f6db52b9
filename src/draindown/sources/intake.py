"""The intake of a flow: the Delta table in which its source pins slices. Its columns are the same
for all sources.

Commit N of the table is slice N; version 0 creates the table. The holder of the flow's lease is the
only writer. A source adds columns of its own, of types that JSON has, too.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from draindown.base.errors import TransientError
from draindown.base.formatting import count
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, literal, moment, rows
from draindown.sources.slices import Slice, slices_of

COLUMNS = pa.schema(
    [
        ("slice", pa.int64()),
        ("first_seen", pa.timestamp("us", "UTC")),
        ("input", pa.string()),
        ("start", pa.int64()),
        ("until", pa.int64()),
        ("bytes", pa.int64()),
        ("unpacked", pa.int64()),
        ("records", pa.int64()),
        ("arrived_at", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of every intake: those of `Slice` and `Unit`."""
LOG = "topic_id"
"""The column, of sources that have it, of what tells a unit from a later one of its name."""
_STATISTICS = ("input", "slice", "first_seen")
_APP = "intake"
_RANGE = re.compile(r":\d+-\d+$")

Origin = tuple[str, int]
"""Where a record comes from: the name of its unit, and its position in the source's own count."""


@dataclass(frozen=True)
class Waiting:
    """Slices that no batch has read. `oldest`: first arrival, in seconds since 1970; None without
    any.
    """

    slices: int = 0
    units: int = 0
    bytes: int = 0
    unpacked: int = 0
    oldest: float | None = None


def create(layout: FlowHome, generation: int, own: pa.Schema) -> None:
    """Create the empty intake if it does not exist, so that a stream can start on it. `own`:
    columns of the source.
    """
    intake, schema = layout.tables.intake(generation), pa.schema([*COLUMNS, *own])
    delta.create(intake, schema, statistics=_STATISTICS, private=True)


def append(
    layout: FlowHome,
    generation: int,
    own: pa.Schema,
    units: Sequence[Mapping[str, Any]],
    now: datetime,
    number: int,
) -> None:
    """Pin slice `number` in one commit: one row per unit, without `slice` and `first_seen`. `now`:
    its `first_seen`.

    Raises TransientError `lease-lost` if the slice exists already: another driver pins at the same
    time, and its slices may hold these units.
    """
    create(layout, generation, own)
    found = [{**unit, "first_seen": now, "slice": number} for unit in units]
    held = _log(
        layout, generation
    ).column_types  # a stream reads it: columns that came later are of the next intake
    table = pa.Table.from_pylist(
        found, schema=pa.schema([*COLUMNS, *(one for one in own if one.name in held)])
    )
    if not delta.append(layout.tables.intake(generation), table, app=(_APP, number)):
        raise TransientError(
            "lease-lost",
            tried=f"take in input of flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"another driver pinned slice {number} ({count(len(units), 'unit')} here) in the meantime",
            changed="whole slices only, each unit in one",
            next=f"draindown run {layout.pipeline}",
        )


def newest(layout: FlowHome, generation: int) -> int:
    """Return the number of the newest slice; 0 before the first."""
    log = _log(layout, generation)
    return log.version if log.exists else 0


def waiting(layout: FlowHome, generation: int, first: int) -> Waiting:
    """Return what the slices from `first` on hold."""
    if newest(layout, generation) < first:
        return Waiting()
    sql = (
        "select count(distinct slice) as slices, count(*) as units, coalesce(sum(bytes), 0) as bytes, "
        "coalesce(sum(unpacked), 0) as unpacked, cast(min(to_unixtime(arrived_at)) as double) as oldest "
        f"from t where slice >= {int(first)}"
    )
    return Waiting(**_log(layout, generation).rows(sql)[0])


def slices(layout: FlowHome, generation: int, first: int = 0) -> Iterator[Slice]:
    """Yield the slices from `first` on, in order; none if the intake is absent or damaged."""
    return _slices(layout, generation, f"slice >= {int(first)}")


def pinned(layout: FlowHome, generation: int, number: int) -> Slice | None:
    """Return a slice from its own commit, without opening the log. None if that commit is not one
    whole file.
    """
    import pyarrow.parquet as pq  # takes as long as a plan may: only a drain needs it

    intake = layout.tables.intake(generation)
    try:
        actions = intake.log.actions(number)
        (added,) = [action["add"]["path"] for action in actions if "add" in action]
        held = pq.read_table(intake.file(added), partitioning=None)
        (found,) = slices_of(sorted(rows(held), key=lambda row: row["input"]))
    except (ValueError, LookupError, TypeError, OSError, pa.ArrowException):
        return None
    return found if found.number == number else None


def of_units(layout: FlowHome, generation: int, names: Collection[str]) -> Iterator[Slice]:
    """Yield the slices that hold units that these names mean, in order, with these units only."""
    found = {name: _RANGE.sub("", name) for name in names}
    units = ", ".join(map(literal, {*found, *found.values()}))
    for one in _slices(layout, generation, f"input in ({units})") if names else ():
        if (some := one.only(names)).units:
            yield some


def seen_within(
    layout: FlowHome, generation: int, since: datetime, until: datetime
) -> Iterator[Slice]:
    """Yield the slices first seen at `since` or later and before `until`, in order."""
    return _slices(
        layout, generation, f"first_seen >= {moment(since)} and first_seen < {moment(until)}"
    )


def find(
    layout: FlowHome,
    generation: int,
    records: Mapping[str, Origin],
    left_out: Collection[str] = (),
) -> dict[str, int]:
    """Return the number of the slice that each record is in, by its id; records that no slice holds
    are absent.

    `records`: origins by `quarantine_id`. Where units have a `LOG`, a slice holds a record only if
    the id is of its log: a later topic of the name has other records at the same positions.
    `left_out`: names of units, or of ranges, that count as held by no slice.

    A position counts from 1 within a file, and from 0 elsewhere. So the end of a range belongs to
    it, unless the next range of the unit begins there.
    """
    wanted: dict[str, list[tuple[int, str]]] = {}
    for id, (unit, position) in sorted(records.items(), key=lambda one: one[1][1]):
        wanted.setdefault(unit, []).append((position, id))
    intake = _log(layout, generation)
    if not wanted or not intake.is_whole:
        return {}
    names = [
        "input",
        "start",
        "until",
        "slice",
        *[name for name in intake.column_types if name == LOG],
    ]
    held = intake.query(f"select {', '.join(names)} from t")
    held = held.filter(pc.is_in(held["input"], value_set=strings(wanted)))
    found: dict[str, int] = {}
    for row in held.to_pylist():
        unit, log = row["input"], row.get(LOG)
        if unit in left_out or f"{unit}:{row['start']}-{row['until']}" in left_out:
            continue
        some = wanted[unit]
        first, end = (
            bisect_left(some, at, key=lambda one: one[0]) for at in (row["start"], row["until"] + 1)
        )
        for position, id in some[first:end]:
            if not log or record_id(unit, position, log) == id:
                found[id] = max(row["slice"], found.get(id, 0))
    return found


def record_id(unit: str, position: int, log: str = "") -> str:
    """Return the `quarantine_id` of a record: what a batch computes when it refuses it. `log`:
    empty without one.
    """
    return sha256(
        "\u0001".join([unit, str(position), *([log] if log else [])]).encode()
    ).hexdigest()


def count_units(layout: FlowHome, generation: int) -> int:
    """Return the number of units in all slices; 0 if the intake is absent or damaged."""
    log = _log(layout, generation)
    return int(log.rows("select count(*) as n from t")[0]["n"]) if log.is_whole else 0


def strings(texts: Collection[str]) -> pa.Array:
    """Return an array of strings without `pa.array`, which imports pandas."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    offsets = array("q", [0, *accumulate(map(len, encoded))])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers).cast(pa.string())


def _slices(layout: FlowHome, generation: int, where: str) -> Iterator[Slice]:
    log = _log(layout, generation)
    if not log.is_whole:
        return
    held = log.query(f"select * from t where {where} order by slice, input")
    yield from slices_of(_one_by_one(held))


def _one_by_one(held: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows a few thousand at a time: Arrow holds many rows in less memory than Python."""
    for batch in held.combine_chunks().to_batches(max_chunksize=4096):
        yield from rows(pa.Table.from_batches([batch]))


def _log(layout: FlowHome, generation: int) -> Table:
    return layout.tables.intake(generation)
