"""Files of a history by the rows that they hold: those without an end, which later batches close,
or the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draindown.config.names import END_AT


@dataclass(frozen=True)
class HistoryFile:
    """A file of a history.

    `rows`: its rows, with deleted ones; `gone`: those that are deleted; `open`: the share of its
    rows that have no end, 0 to 1; `add`: its entry in the log.
    """

    size: int
    rows: int
    gone: int
    open: float
    add: Any = field(default=None, compare=False)

    @property
    def is_mixed(self) -> bool:
        """Whether it holds rows without an end and others."""
        return 0 < self.open < 1


def end_path(schema: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """Return the path of the statistics of a row's end, of several sequence columns those of the
    first.

    `schema`: the fields of a table, as in Delta's JSON. None for a table that has no such column.
    """
    kind = next((field["type"] for field in schema if field["name"] == END_AT), None)
    if kind is None:
        return None
    return (END_AT,) if isinstance(kind, str) else (END_AT, kind["fields"][0]["name"])


def open_share(rows: int | None, without_end: int | None) -> float:
    """Return the share of a file's rows that have no end, by its statistics; 0.5 if it has none."""
    return 0.5 if rows is None or without_end is None else without_end / max(rows, 1)


def worth_rewriting(
    files: Sequence[HistoryFile], target_file_size: int, ratio: float
) -> list[HistoryFile]:
    """Return the files of a partition to rewrite: small ones, and of any size those with both kinds
    of rows.

    Those too of which more than `ratio` of the rows are deleted. A small file that is the only one
    of its kind stays, unless others are rewritten into that kind.
    """
    needed = [one for one in files if one.is_mixed or one.gone > ratio * one.rows]
    small = [one for one in files if one not in needed and one.size < target_file_size // 2]
    kinds = [one.open for one in small]
    return [*needed, *(one for one in small if needed or kinds.count(one.open) > 1)]
