"""The place of a record within a batch: which block of which unit, and where in the block.

Spark has no row numbers, but a partition reads its blocks one after the other. So
`monotonically_increasing_id` is consecutive within each block, and a record's position is its id
plus an offset that is the same for the whole block.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import DataFrame

PLACE = ("_unit", "_block", "_id")
"""Columns that every reader adds: the unit as the reader spells it, the block's start, an id that
rises within it.
"""

FIRST_SEEN = "_first_seen"
"""The time that rules call `arrived_at`, in microseconds since 1970, of records that don't share
the batch's time.
"""
ARRIVED = "_arrived"
"""When a record arrived, in microseconds since 1970, of records that didn't arrive with their
unit.
"""
ENVELOPE = "_envelope"
"""What a record came in, of records that have more than their text: a struct of ENVELOPE_FIELDS.

Such records are counted by their source, so a text of blanks is a record, too. A NULL text is a
record without a value.
"""
ENVELOPE_FIELDS = (
    "struct<key: binary, headers: array<struct<key: string, value: binary>>, "
    "timestamp: timestamp, topic: string, partition: int, offset: bigint>"
)
CUT = "_cut"
"""Names of the columns of which a record had a time with more than microseconds, where its file has
such columns.
"""
SHAPE = "_shape"
"""What the quarantine keeps beside the text of a record, of rows of files with types of their own:
see `kept_rows`.
"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Block = tuple[str, int, int, int]
"""(unit as in PLACE, block, records, smallest id) of one block that was read."""
Offset = tuple[str, int, int]
"""(unit as in PLACE, block, offset): id plus offset is the position of a record in its unit."""


@dataclass(frozen=True)
class BlockOrigin:
    """Where the records of a block come from: all have one unit and, unless they have their own,
    one arrival.

    Attributes:
        spelled, block: as in PLACE.
        offset: `_id` plus `offset` is the position of a record in its unit.
        unit: name of the unit, such as the path of a file.
        arrived_us: when the unit arrived, in microseconds since 1970.
        log: what tells the unit from a later one of its name, where its source tells them apart.
    """

    spelled: str
    block: int
    offset: int
    unit: str
    arrived_us: int
    log: str = ""


def micros(moment: datetime) -> int:
    """Return a moment in microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """Return all rows of all frames. Columns are matched by name."""
    return reduce(lambda left, right: left.unionByName(right), frames)
