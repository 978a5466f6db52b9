"""Take files in: inspect each new file, park unreadable ones, pin the others in slices, portion by
portion.

A slice is written before it is read, so every replay of a batch reads the same files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path

from draindown.base.findings import Finding
from draindown.config.sources import FilesSource
from draindown.lake.home import FlowHome
from draindown.sources.batch_size import Bound
from draindown.sources.files import catalog
from draindown.sources.files import parked as files_parked
from draindown.sources.files.batching import divided, forecast
from draindown.sources.files.catalog import KnownFile
from draindown.sources.files.inspection import (
    Skipped,
    Unreadable,
    Verified,
    unread,
    verify,
)
from draindown.sources.files.listing import Listing
from draindown.sources.files.parked import Event, State
from draindown.sources.files.recorded import REDELIVER, difference, finding
from draindown.sources.moves import Moves
from draindown.sources.objects import SourceFile, sha256_of
from draindown.sources.port import Forecast, Progress, Taken

_AT_ONCE, _BYTES_AT_ONCE = 512, 1024**3
_THREADS = 4


@dataclass(frozen=True)
class FilesOf:
    """The files of one flow, for the run `run_id`. `root`: directory that relative globs begin
    at.
    """

    source: FilesSource
    layout: FlowHome
    root: Path
    run_id: str


@dataclass(frozen=True)
class Sorted:
    """The listed files that need work. Files that were completed are in neither group.

    `new` files are to be inspected. `differing` files are in a slice already, with another size or
    mtime. `events` holds the newest event of every path that has one.
    """

    new: list[SourceFile]
    differing: list[tuple[SourceFile, KnownFile]]
    events: dict[str, Event]


def sort_out(layout: FlowHome, listing: Listing) -> Sorted:
    """Remove the files that need no work: in a slice, parked, discarded or noted with the same size
    and mtime.
    """
    events = files_parked.latest(layout)
    have = catalog.find(layout, (file.path for file in listing.files))
    have |= moved_files(layout, [file.path for file in listing.files if file.path not in have])
    new, differing = [], []
    for file in listing.files:
        event, taken = events.get(file.path), have.get(file.path)
        # `touched` is meaningless if the intake table that held the file was lost
        settled = event and event.state != "retried" and (taken or event.state != "touched")
        if _same(taken, file) or (settled and _same(event, file)):
            continue
        if taken:
            differing.append((file, taken))
        else:
            new.append(file)
    return Sorted(new, differing, events)


def moved_files(layout: FlowHome, paths: Sequence[str]) -> dict[str, KnownFile]:
    """Return the known files of directories that moved, by their path now."""
    moves = Moves.of(layout)
    names = {path: moves.names(path) for path in paths} if moves.answers else {}
    known = (
        catalog.find(layout, [name for every in names.values() for name in every]) if names else {}
    )
    found = {
        path: next((known[name] for name in every if name in known), None)
        for path, every in names.items()
    }
    return {path: file for path, file in found.items() if file}


def _same(one: KnownFile | Event | None, other: SourceFile) -> bool:
    return one is not None and (one.size, one.mtime_ns) == (other.size, other.mtime_ns)


class FilesPinning:
    """The `Pinning` of files. `before`: the newest slice when the intake was read."""

    def __init__(
        self,
        flow: FilesOf,
        found: Sorted,
        findings: Iterable[Finding],
        now: datetime,
        before: int,
        progress: Progress | None,
    ) -> None:
        self._flow, self._now, self._new, self._before = flow, now, found.new, before
        self._run = _Run(flow, now, found.events, list(findings))
        self._run.look_at_differing(found.differing)
        self._bound: Bound | None = None
        self._groups = divided(self._readable(progress), self._bounded)
        self._over = False
        self._slices = self._files = 0

    def forecast(self, bound: Bound) -> Forecast:
        """Estimate the slices of all files that were in none when this began."""
        return forecast(self._flow.layout, self._flow.source, self._new, bound)

    def _readable(self, progress: Progress | None) -> Iterator[Verified]:
        yield from self._run.readable(self._new, progress)
        self._over = True

    def _bounded(self) -> Bound:
        assert self._bound is not None, "slices are taken with a bound"
        return self._bound

    def take(self, bound: Bound, most: int | None = None) -> bool:
        """Write at most `most` slices, each within the bound. Return whether files are left. Raises
        `lease-lost`.
        """
        self._bound, before = bound, self._slices
        for group in islice(self._groups, most):
            if files := [file for file in group if self._run.is_as_judged(file)]:
                self._append(files)
        if self._slices > before:
            catalog.remember(self._flow.layout)
        return not self._over

    def _append(self, files: Sequence[Verified]) -> None:
        # the slice after those this pinning read: the commit fails if another driver appended a
        # slice since
        catalog.append_slice(self._flow.layout, files, self._now, self._before + self._slices + 1)
        self._slices, self._files = self._slices + 1, self._files + len(files)

    @property
    def trouble(self) -> str:
        """Why no file could be read, if the machine kept all that were looked at from it: the first
        and its error.
        """
        return (
            self._run.troubles[0]
            if self._run.troubles and len(self._run.troubles) == self._run.looked
            else ""
        )

    @property
    def taken(self) -> Taken:
        """The progress so far."""
        return Taken(self._slices, self._files, self._run.parked, tuple(self._run.findings))

    def close(self) -> None:
        """Stop the inspection of files in flight."""
        self._groups.close()


@dataclass
class _Run:
    """The state of one intake: what it found and parked so far."""

    flow: FilesOf
    now: datetime
    events: dict[str, Event]
    findings: list[Finding] = field(default_factory=list)
    parked: int = 0
    looked: int = 0
    troubles: list[str] = field(default_factory=list)
    """Of files that the machine could not read: path and error."""

    def readable(
        self, files: Sequence[SourceFile], progress: Progress | None
    ) -> Iterator[Verified]:
        """Inspect files in their order, a few at a time, and yield the readable ones. Parks the
        unreadable ones.
        """
        source = self.flow.source
        done = 0
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            for some in _rounds(files):
                judged = list(pool.map(lambda file: verify(file, source), some))
                # park first, so that no event is lost if the run dies before the slice is written
                self._record(judged)
                done += len(some)
                yield from (result for result in judged if isinstance(result, Verified))
                if progress:
                    progress(done, len(files))

    def is_as_judged(self, file: Verified) -> bool:
        """Return whether a file is unchanged since it was inspected; batches may have run in
        between.
        """
        if not difference(file):
            return True
        self.findings.append(
            finding(
                "unsettled", file.path, "changed since it was looked at", "the next run takes it"
            )
        )
        return False

    def look_at_differing(self, pairs: Sequence[tuple[SourceFile, KnownFile]]) -> None:
        """Hash the files in slices whose size or mtime differs, and record each as `touched` or
        parked as `changed`.
        """
        events = []
        self.looked += len(pairs)
        for file, taken in pairs:
            event = self._compare(file, taken)
            if event:
                events.append(event)
            if event and event.is_open:
                self.parked += 1
                self.findings.append(finding("changed", file.path, event.detail, REDELIVER))
        files_parked.record(self.flow.layout, events, self.now)

    def _compare(self, file: SourceFile, taken: KnownFile) -> Event | None:
        detail = f"was taken in with {taken.size} bytes (slice {taken.slice}), now has {file.size}"
        digest = ""
        if file.size == taken.size:
            try:
                digest = sha256_of(file.path)
            except FileNotFoundError:
                return None  # the next listing decides
            except (OSError, MemoryError) as error:
                self._skip(unread(file.path, error))
                return None
            if digest == catalog.sha256(self.flow.layout, taken):
                return self._event(file, "touched", sha256=digest)
            detail = f"was taken in with other bytes of the same size (slice {taken.slice})"
        return self._event(file, "parked", reason="changed", detail=detail, sha256=digest)

    def _record(self, judged: Sequence[Verified | Unreadable | Skipped]) -> None:
        events = []
        self.looked += len(judged)
        for result in judged:
            match result:
                case Skipped():
                    self._skip(result)
                case Unreadable():
                    self.parked += 1
                    detail = f"{result.reason}: {result.detail}"
                    self.findings.append(finding("parked", result.path, detail, self._advice()))
                    events.append(self._parked(result))
                case Verified() if (event := self.events.get(result.path)) and event.is_open:
                    events.append(
                        self._event(result, "retried", note="the file changed and can be read now")
                    )
        files_parked.record(self.flow.layout, events, self.now)

    def _skip(self, left_out: Skipped) -> None:
        self.findings.append(left_out.finding)
        if left_out.trouble:
            self.troubles.append(f"{left_out.finding.subject}: {left_out.trouble}")

    def _advice(self) -> str:
        return f"deliver it again, put right; see: draindown input list {self.flow.layout.pipeline}"

    def _parked(self, file: Unreadable) -> Event:
        return self._event(
            file,
            "parked",
            reason=file.reason,
            detail=file.detail,
            sha256=file.sha256,
            head=file.head,
        )

    def _event(
        self, file: SourceFile | Verified | Unreadable, state: State, **more: object
    ) -> Event:
        return Event(file.path, file.size, file.mtime_ns, state, run_id=self.flow.run_id, **more)  # type: ignore[arg-type]


def _rounds(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield groups of files to inspect before the next slice, bounded in number and in bytes."""
    some: list[SourceFile] = []
    size = 0
    for file in files:
        if some and (len(some) == _AT_ONCE or size + file.size > _BYTES_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(file)
        size += file.size
    if some:
        yield some
