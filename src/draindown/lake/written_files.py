"""Data files that the commits of a table added: they hold the rows that the table has, and rows
that it had.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from draindown.base.formatting import count
from draindown.lake.table import UNREADABLE, Table

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Written:
    """Data files by path, each with its partition values, as far as they exist. `gone`: what can't
    be read, as text.
    """

    files: Mapping[str, Values]
    gone: tuple[str, ...] = ()


def written_files(table: Table) -> Written:
    """Return the files that commits up to this version added. A row of any of them is one that a
    version had.
    """
    name = table.path.rpartition("/")[2]
    first, commits = _known_commits(table)
    gone = []
    found: dict[str, Values] = {}
    if first > 0:
        gone.append(f"commits of table {name} before version {first}: the log has no more")
        try:
            found |= _of_snapshot(table.at(min(first, table.version)))
        except UNREADABLE:
            gone.append(
                f"files of table {name} at version {first}: the log has no checkpoint of them"
            )
    for number in commits:
        content = table.log.content(number)
        if content is None:
            gone.append(f"commit {number} of table {name}: removed while the log was read")
        else:
            found |= _added(content)
    places = {table.file(path) or path: values for path, values in found.items()}
    absent = table.absent(places)
    there = {place: values for place, values in places.items() if place not in absent}
    if lost := len(places) - len(there):
        gone.append(f"{count(lost, 'file')} that table {name} had earlier: removed by VACUUM")
    return Written(there, tuple(gone))


def _known_commits(table: Table) -> tuple[int, range]:
    """Return the number of the oldest commit without a gap up to this version, and the numbers from
    there on.
    """
    held = table.log.commits()
    first = table.version + 1
    while first - 1 in held:
        first -= 1
    return first, range(first, table.version + 1)


def _added(commit: bytes) -> Iterator[tuple[str, Values]]:
    for line in commit.splitlines():
        if b'"add"' in line and (add := json.loads(line).get("add")):
            yield add["path"], add.get("partitionValues") or {}


def _of_snapshot(table: Table) -> Iterator[tuple[str, Values]]:
    names = table.partition_columns
    for file in table.files(names):
        yield file["path"], {name: file.get(f"partition.{name}") for name in names}
