"""How the keys of a fill are divided into buckets: by ranges of one key where files are narrow in
it, else by hash.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from itertools import groupby
from math import ceil
from operator import attrgetter
from typing import Any

_KINDS: Mapping[type, str] = {int: "bigint", str: "string", date: "date", datetime: "timestamp"}
"""The types of keys that have ranges, as the log has their values, and their names in Spark."""
_READ: Mapping[str, Callable[[str], Any]] = {
    "bigint": int,
    "string": str,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
}
_LONGEST = 200  # characters of a start, which is a literal of each query


@dataclass(frozen=True)
class Extent:
    """One file of a source: its rows, and the least and greatest value of a column; None where the
    log has none.
    """

    rows: int
    low: Any = None
    high: Any = None


@dataclass(frozen=True)
class Division:
    """Buckets of keys: ranges of one key in their order, each divided by the hash of the whole key.

    Attributes:
        by: the key whose ranges they are; empty if one range has all keys.
        kind: Spark's type of the starts.
        starts: where each range but the first begins, ascending, as text. NULL is in the first
            range.
        parts: number of buckets of each range: one number more than there are starts.
    """

    by: str = ""
    kind: str = ""
    starts: tuple[str, ...] = ()
    parts: tuple[int, ...] = (1,)

    @classmethod
    def of(cls, text: str) -> Division:
        """Return the division that `str` gave as text."""
        found = json.loads(text)
        return cls(found["by"], found["kind"], tuple(found["starts"]), tuple(found["parts"]))

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return sum(self.parts)

    def place(self, bucket: int) -> tuple[int, int]:
        """Return the range of a bucket, and its number among the buckets of this range."""
        for at, parts in enumerate(self.parts):
            if bucket < parts:
                return at, bucket
            bucket -= parts
        raise IndexError(bucket)

    def ends(self, at: int) -> tuple[str | None, str | None]:
        """Return where range `at` begins and ends; None for no bound."""
        return self.starts[at - 1] if at else None, self.starts[at] if at < len(
            self.starts
        ) else None


def extents(files: Iterable[Mapping[str, Any]], column: str | None) -> list[Extent]:
    """Return the extents of the files that `Table.files` returned. `column`: None if no column
    has the key.
    """
    return [
        Extent(
            file.get("num_records") or 0,
            *(
                _comparable(file.get(f"partition.{column}", file.get(f"{end}.{column}")))
                for end in ("min", "max")
            ),
        )
        for file in files
    ]


def divided(candidates: Mapping[str, Sequence[Extent]], total: int, rows: int) -> Division:
    """Return the division of `total` rows into buckets of about `rows` rows each.

    `candidates`: the extents of all source files by key. Ranges are taken where buckets read, in
    all, at most half of what they read by hash, which is every file for every bucket.
    """
    whole = Division(parts=(max(1, ceil(total / rows)),))
    if whole.buckets == 1:
        return whole
    ranged = [(by_range(key, some, rows), some) for key, some in candidates.items()]
    costs = [(read(one, some), at) for at, (one, some) in enumerate(ranged) if one is not None]
    cost, best = min(costs, default=(0, None))
    found = None if best is None or 2 * cost > total * whole.buckets else ranged[best][0]
    return found or whole


def by_range(key: str, files: Sequence[Extent], rows: int) -> Division | None:
    """Return ranges of a key of about `rows` rows each; None if its values have no order here or
    are long text.
    """
    known = [one for one in files if one.low is not None and one.high is not None]
    kinds = {type(value) for one in known for value in (one.low, one.high)}
    kind = _KINDS.get(kinds.pop()) if len(kinds) == 1 else None
    if kind is None:
        return None
    starts = _starts(known, rows)
    texts = tuple(map(str, starts))
    if any(len(text) > _LONGEST for text in texts):
        return None
    shares = [0.0] * (len(starts) + 1)
    for one in files:
        concerned = _ranges(one, starts)
        for at in concerned:
            shares[at] += one.rows / len(concerned)
    return Division(key, kind, texts, tuple(max(1, ceil(share / rows)) for share in shares))


def read(division: Division, files: Iterable[Extent]) -> int:
    """Return the rows that the buckets read in all: a file is read for each bucket of each range
    that it reaches into.

    `division`: what `by_range` returned for these files.
    """
    starts = [_READ[division.kind](text) for text in division.starts]
    return sum(one.rows * sum(division.parts[at] for at in _ranges(one, starts)) for one in files)


def _starts(known: Iterable[Extent], rows: int) -> list[Any]:
    """Return where ranges begin, without the first one. Each begins at the lowest value of a file,
    so that files end up in few ranges.
    """
    low_of = attrgetter("low")
    starts, filled = list[Any](), 0
    for low, files in groupby(sorted(known, key=low_of), low_of):
        added = sum(file.rows for file in files)
        if filled and filled + added > rows:
            starts.append(low)
            filled = 0
        filled += added
    return starts


def _ranges(file: Extent, starts: Sequence[Any]) -> range:
    """Return the ranges that a file reaches into: all of them if its ends are not known."""
    if file.low is None or file.high is None:
        return range(len(starts) + 1)
    return range(bisect_right(starts, file.low), bisect_right(starts, file.high) + 1)


def _comparable(value: Any) -> Any:
    """Return a time without its zone, in UTC, which is the zone of a derived flow's queries."""
    return (
        value.astimezone(UTC).replace(tzinfo=None)
        if isinstance(value, datetime) and value.tzinfo
        else value
    )
