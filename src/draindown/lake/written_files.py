"""Data files that the commits of a table added: they hold the rows that the table has, and rows
that it had.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

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


def written_files(log: Table) -> Written:
    """Return the files that commits up to this version added. A row of any of them is one that a
    version had.
    """
    first, commits = _known_commits(log)
    gone = []
    found: dict[str, Values] = {}
    if first > 0:
        gone.append(
            f"commits of table {Path(log.path).name} before version {first}: the log has no more"
        )
        try:
            found |= _of_snapshot(log.at(min(first, log.version)))
        except UNREADABLE:
            gone.append(
                f"files of table {Path(log.path).name} at version {first}: the log has no checkpoint of them"
            )
    for commit in commits:
        found |= _added(commit)
    root = Path(_plain(log.path))
    places = {str(root / unquote(path)): values for path, values in found.items()}
    there = {place: values for place, values in places.items() if Path(place).is_file()}
    if lost := len(places) - len(there):
        gone.append(
            f"{count(lost, 'file')} that table {Path(log.path).name} had earlier: removed by VACUUM"
        )
    return Written(there, tuple(gone))


def _known_commits(log: Table) -> tuple[int, list[Path]]:
    """Return the number of the oldest commit without a gap up to this version, and the commits from
    there on.
    """
    directory = Path(_plain(log.path)) / "_delta_log"
    first, commits = log.version + 1, list[Path]()
    while first > 0 and (commit := directory / f"{first - 1:020}.json").is_file():
        commits.append(commit)
        first -= 1
    return first, commits[::-1]


def _added(commit: Path) -> Iterator[tuple[str, Values]]:
    with commit.open(encoding="utf-8") as lines:
        for line in lines:
            if '"add"' in line and (add := json.loads(line).get("add")):
                yield add["path"], add.get("partitionValues") or {}


def _of_snapshot(log: Table) -> Iterator[tuple[str, Values]]:
    names = log.partition_columns
    for file in log.files(names):
        yield file["path"], {name: file.get(f"partition.{name}") for name in names}


def _plain(path: str) -> str:
    return path.removeprefix("file://") if path.startswith("file:///") else path
