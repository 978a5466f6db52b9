"""Verify that a drill did not change the flow's own lake and the source files that it copied."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from draindown.base.formatting import count, printable
from draindown.lake.flow_tables import flow_tables
from draindown.lake.layout import FlowLayout
from draindown.lease import holder
from draindown.runs import store

Seen = Mapping[str, tuple[int, int]]
"""Path to size in bytes and mtime in ns."""
_REPORTS = "reports"


@dataclass(frozen=True)
class Before:
    """The files of the lake and the source, and the flow's runs, before a drill."""

    layout: FlowLayout
    lake: Seen
    source: Seen
    runs: frozenset[str]

    def changes(self) -> tuple[list[str], list[str]]:
        """Return what changed since, and what can't be decided because the flow's own pipeline ran meanwhile."""
        changed = [f"source: {printable(path)} changed" for path in differing(self.source, _stats(self.source))]
        moved = differing(self.lake, kept(self.layout))
        if not moved:
            return changed, []
        what = f"{count(len(moved), 'file')} of it changed, {printable(moved[0])} for one"
        if set(store.runs(self.layout, 1000)) - self.runs or holder.holder(self.layout):
            return changed, [f"whether the lake was left alone: its own pipeline ran meanwhile ({what})"]
        return [*changed, f"lake: {what}"], []


def look(layout: FlowLayout, source: Iterable[str]) -> Before:
    """Record the files of a flow in its lake, and the files of its source."""
    return Before(layout, kept(layout), _stats(source), frozenset(store.runs(layout, 1000)))


def kept(layout: FlowLayout) -> Seen:
    """Return the files of a flow in the lake, without reports: an idle run writes one too."""
    outside = [table.path for table in flow_tables(layout, 1) if not table.path.startswith(f"{layout.home}/")]
    return {path: seen for place in (*outside, layout.home) for path, seen in _files(place)}


def differing(before: Seen, after: Seen) -> list[str]:
    """Return the files that were created, changed or removed between two snapshots."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _files(place: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for directory, below, names in os.walk(place):
        below[:] = [name for name in below if name != _REPORTS]
        yield from _stats(os.path.join(directory, name) for name in names).items()  # noqa: PTH118 (many)


def _stats(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    found = {}
    for path in paths:
        try:
            seen = Path(path).stat()
        except OSError:
            continue
        found[path] = (seen.st_size, seen.st_mtime_ns)
    return found
