"""Verify that a drill did not change the flow's own lake and the source files that it copied."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draindown.base.formatting import count, printable
from draindown.lake.flow_tables import flow_tables
from draindown.lake.home import FlowHome
from draindown.lease import holder
from draindown.runs import store

Seen = Mapping[str, tuple[int, int]]
"""Path to size in bytes and mtime in ns."""
_REPORTS = "reports"


@dataclass(frozen=True)
class Before:
    """The files of the lake and the source, and the flow's runs, before a drill."""

    layout: FlowHome
    lake: Seen
    source: Seen
    runs: frozenset[str]
    reports: Seen
    is_busy: bool

    def changes(self) -> tuple[list[str], list[str]]:
        """Return what changed since, and what can't be decided because the flow's own pipeline ran
        meanwhile.
        """
        changed = [
            f"source: {printable(path)} changed"
            for path in differing(self.source, _stats(self.source))
        ]
        moved = differing(self.lake, kept(self.layout))
        if not moved:
            return changed, []
        what = f"{count(len(moved), 'file')} of it changed, {printable(moved[0])} for one"
        new = set(store.runs(self.layout, 1000)) - self.runs or differing(
            self.reports, _reports(self.layout)
        )
        if new or self.is_busy or holder.holder(self.layout):
            return changed, [
                f"whether the lake was left alone: its own pipeline ran meanwhile ({what})"
            ]
        return [*changed, f"lake: {what}"], []


def look(layout: FlowHome, source: Iterable[str]) -> Before:
    """Record the files of a flow in its lake, and the files of its source."""
    runs, is_busy = frozenset(store.runs(layout, 1000)), holder.holder(layout) is not None
    return Before(layout, kept(layout), _stats(source), runs, _reports(layout), is_busy)


def kept(layout: FlowHome) -> Seen:
    """Return the files of a flow in the lake, without reports, as an idle run writes one too, and
    without what flows that read its table note there.
    """
    outside = [
        table.path
        for table in flow_tables(layout, 1)
        if not table.path.startswith(f"{layout.home}/")
    ]
    return {
        path: seen
        for place in (*outside, layout.home)
        for path, seen in _files(place, (_REPORTS, "readers"))
    }


def _reports(layout: FlowHome) -> Seen:
    return dict(_files(f"{layout.home}/{_REPORTS}"))


def differing(before: Seen, after: Seen) -> list[str]:
    """Return the files that were created, changed or removed between two snapshots."""
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


def _files(place: str, without: Sequence[str] = ()) -> Iterator[tuple[str, tuple[int, int]]]:
    for directory, below, names in os.walk(place):
        below[:] = [name for name in below if name not in without]
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
