"""Which files of a table can hold rows of the keys that changes touch, by the statistics in Delta
logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from draindown.base.formatting import count, size
from draindown.lake.table import Table

File = Mapping[str, Any]
"""A file of a table, as `Table.files` returns it."""
Columns = Sequence[str | None]
"""The columns of a table by which keys are found, in the order of the keys; None for a key that it
does not have.
"""
Ends = tuple[Any, Any]
"""The least and the greatest value of a column in a file; None for one that the log lacks."""
Span = Sequence[Ends]
"""Where the keys of a changed file lie: the ends of each key."""


@dataclass(frozen=True)
class Reach:
    """What a run reads of one table, at most.

    Attributes:
        table: its name.
        since: the version that was read before; None if all rows are to be compared, or for the
            result.
        until: the version that a run would read.
        changed: rows that changed in between; 0 for the result.
        files: files that can hold rows of touched keys, of `of_files`. `rows` and `bytes`: what
            these files hold.
        partitions: partitions that have such files, of `of_partitions`; both 0 if the table has no
            partitions.
        sought_by: the columns by whose statistics files are left out.
    """

    table: str
    since: int | None
    until: int
    changed: int
    files: int
    of_files: int
    rows: int
    of_rows: int
    bytes: int
    partitions: int
    of_partitions: int
    partitioned_by: tuple[str, ...]
    sought_by: tuple[str, ...]

    def __str__(self) -> str:
        rows = f"{count(self.rows)} of {count(self.of_rows, 'row')}, {size(self.bytes)}"
        found = (
            f"{self.table}: at most {count(self.files)} of {count(self.of_files, 'file')} ({rows})"
        )
        if not self.partitioned_by:
            return found
        parts = count(self.of_partitions, "partition")
        return f"{found}, in {self.partitions} of {parts} by {', '.join(self.partitioned_by)}"


def changed_files(log: Table, since: int, until: int, columns: Columns) -> list[File]:
    """Return the files with what changed from version `since` to `until`: added, removed, or with
    rows deleted since.

    Files that compaction wrote in between are among them.
    """
    before, after = log.at(since), log.at(until)
    old, new = (
        {file["path"]: file for file in one.files(filter(None, columns))} for one in (before, after)
    )
    marked, were = after.deleted_rows(), before.deleted_rows()
    return [
        *(
            file
            for path, file in new.items()
            if path not in old or marked.get(path) != were.get(path)
        ),
        *(file for path, file in old.items() if path not in new),
    ]


def spans(files: Iterable[File], columns: Columns, margin: int) -> list[Span]:
    """Return where the keys of changed files lie. `margin`: seconds by which times reach further in
    both directions.
    """
    wider = timedelta(seconds=margin)
    return [[_wider(_ends(file, name), wider) for name in columns] for file in files]


def reach(
    table: str, log: Table, columns: Columns, touched: Sequence[Span] | None, **versions: Any
) -> Reach:
    """Return which files of a table a run reads. `touched`: None for all of them."""
    parts = log.partition_columns
    files = log.files(dict.fromkeys([*filter(None, columns), *parts]))
    read = (
        files
        if touched is None
        else [file for file in files if _is_reached(file, columns, touched)]
    )
    return Reach(
        table,
        files=len(read),
        of_files=len(files),
        rows=_rows(read),
        of_rows=_rows(files),
        bytes=sum(file["size_bytes"] for file in read),
        partitions=len(_partitions(read, parts)),
        of_partitions=len(_partitions(files, parts)),
        partitioned_by=tuple(parts),
        sought_by=tuple(filter(None, columns)),
        **versions,
    )


def _is_reached(file: File, columns: Columns, touched: Iterable[Span]) -> bool:
    own = [_ends(file, name) for name in columns]
    return any(all(map(_overlap, own, span)) for span in touched)


def _overlap(one: Ends, other: Ends) -> bool:
    """Return whether two ranges have a value in common. Without statistics, or among NULL, they may
    have.
    """
    if None in one or None in other:
        return True
    try:
        return bool(one[0] <= other[1] and other[0] <= one[1])
    # a date and a timestamp: the result's key is of another type than the source's column
    except TypeError:
        return True


def _ends(file: File, name: str | None) -> Ends:
    if name is None:
        return None, None
    if (partition := f"partition.{name}") in file:
        return file[partition], file[partition]
    return file.get(f"min.{name}"), file.get(f"max.{name}")


def _wider(ends: Ends, by: timedelta) -> Ends:
    if not by or not all(isinstance(end, date) for end in ends):
        return ends
    whole = by if isinstance(ends[0], datetime) else by + timedelta(days=1)
    try:
        return ends[0] - whole, ends[1] + whole
    except OverflowError:
        return None, None


def _rows(files: Iterable[File]) -> int:
    return sum(file.get("num_records") or 0 for file in files)


def _partitions(files: Iterable[File], names: Sequence[str]) -> set[tuple[Any, ...]]:
    return (
        {tuple(file.get(f"partition.{name}") for name in names) for file in files}
        if names
        else set()
    )
