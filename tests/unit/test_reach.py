"""Files that can hold rows of touched keys: none that holds one is left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from draindown.planning.reach import changed_files, reach, spans

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_SIZE = 3600


@dataclass
class Log:
    """A table of files by version, each a list of rows (time, group), with statistics as a Delta
    log has them.
    """

    versions: list[dict[str, list[tuple[Any, Any]]]]
    marked: list[dict[str, int]]
    version: int = -1
    partition_columns: tuple[str, ...] = ()

    def at(self, version: int) -> Log:
        return Log(self.versions, self.marked, version, self.partition_columns)

    def deleted_rows(self) -> dict[str, int]:
        return self.marked[self.version]

    def files(self, columns: Iterable[str]) -> list[dict[str, Any]]:
        return [
            _file(path, rows, self.partition_columns)
            for path, rows in self.versions[self.version].items()
        ]


def _file(path: str, rows: list[tuple[Any, Any]], parts: tuple[str, ...]) -> dict[str, Any]:
    file = {"path": path, "num_records": len(rows), "size_bytes": 10 * len(rows)}
    for at, name in enumerate(("time", "group")):
        known = [row[at] for row in rows if row[at] is not None]
        if name in parts:
            file[f"partition.{name}"] = rows[0][at]
        else:
            file |= {
                f"min.{name}": min(known, default=None),
                f"max.{name}": max(known, default=None),
            }
    return file


def _rows(draw: Random, group: str | None) -> list[tuple[Any, Any]]:
    begin, some = draw.randrange(200_000), range(draw.randint(1, 4))
    times = [_BEGIN + timedelta(seconds=begin + draw.randrange(4000)) for _ in some]
    return [(time, group if group is not None else draw.choice("abcdefgh")) for time in times]


def _windows(rows: Iterable[tuple[Any, Any]]) -> set[tuple[int, Any]]:
    return {((time - _BEGIN) // timedelta(seconds=_SIZE), group) for time, group in rows}


def test_no_file_with_rows_of_a_touched_window_is_left_out() -> None:
    left_out = 0
    for seed in range(2000):
        draw = Random(seed)
        parted = seed % 2 == 0
        old = {f"o{at}": _rows(draw, draw.choice("abc") if parted else None) for at in range(8)}
        kept = {path: rows for path, rows in old.items() if draw.random() < 0.8}
        new = kept | {
            f"n{at}": _rows(draw, draw.choice("abc") if parted else None) for at in range(2)
        }
        fewer = {path: 1 for path in kept if draw.random() < 0.1}  # rows deleted in place
        log = Log([old, new], [{}, fewer], partition_columns=("group",) if parted else ())
        changed = [
            row
            for path, rows in {**old, **new}.items()
            if path not in kept or path in fewer
            for row in rows
        ]
        touched = _windows(changed)
        found = spans(changed_files(log, 0, 1, ["time", "group"]), ["time", "group"], _SIZE)  # type: ignore[arg-type]
        read = reach("t", log.at(1), ["time", "group"], found, since=0, until=1, changed=1)  # type: ignore[arg-type]
        needed = [rows for rows in new.values() if _windows(rows) & touched]
        assert read.files >= len(needed) and read.rows >= sum(map(len, needed)), seed
        assert read.of_files == len(new) and read.of_rows == sum(map(len, new.values()))
        if parted:
            assert len({rows[0][1] for rows in needed}) <= read.partitions <= read.of_partitions
        left_out += read.of_files - read.files
    assert left_out > 2000  # it is of use, too


def test_a_file_without_statistics_is_read() -> None:
    log = Log([{"o": [(None, None)]}, {"o": [(None, None)], "n": [(_BEGIN, "a")]}], [{}, {}])
    found = spans(changed_files(log, 0, 1, ["time", "group"]), ["time", "group"], 0)  # type: ignore[arg-type]
    assert reach("t", log.at(1), ["time", "group"], found, since=0, until=1, changed=1).files == 2  # type: ignore[arg-type]
