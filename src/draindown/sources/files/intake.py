"""Take files in: list the source, inspect each new file, park unreadable ones, cut the rest into batches.

A cut is written before it is read, so every replay of a batch reads the same files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Protocol

from draindown.base.findings import Finding
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import Snapshot
from draindown.runs.request import Request
from draindown.sources.batch_size import Bound
from draindown.sources.files import catalog
from draindown.sources.files import parked as files_parked
from draindown.sources.files.batching import cut
from draindown.sources.files.catalog import KnownFile
from draindown.sources.files.inspection import Skipped, Unreadable, Verified, sha256_of, verify
from draindown.sources.files.listing import Listing, SourceFile, SourceListing, shown
from draindown.sources.files.parked import Event, State

_AT_ONCE, _BYTES_AT_ONCE = 512, 1024**3
_THREADS = 4
_REDELIVER = "deliver the new content under another name; it is read then"


@dataclass(frozen=True)
class Taken:
    """The progress of an intake. `parked` counts newly parked files."""

    cuts: int
    files: int
    parked: int
    findings: tuple[Finding, ...]


class Recorded(Protocol):
    """A file as intake recorded it: a row of the intake table, or a `Verified`."""

    @property
    def path(self) -> str:
        """Absolute path."""

    @property
    def size(self) -> int:
        """Bytes on disk."""

    @property
    def mtime_ns(self) -> int:
        """Modification time in nanoseconds."""

    @property
    def sha256(self) -> str:
        """Hash of the bytes on disk."""


@dataclass(frozen=True)
class Sorted:
    """The listed files that need work. Files that were completed are in neither group.

    `new` files are to be inspected. `differing` files are in a cut already, with another size or mtime. `events` holds
    the newest event of every path that has one.
    """

    new: list[SourceFile]
    differing: list[tuple[SourceFile, KnownFile]]
    events: dict[str, Event]


def sort_out(layout: FlowLayout, listing: Listing) -> Sorted:
    """Remove the files that need no work: in a cut, parked, discarded or noted with the same size and mtime."""
    events = files_parked.latest(layout)
    have = catalog.find(layout, (file.path for file in listing.files))
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


def _same(one: KnownFile | Event | None, other: SourceFile) -> bool:
    return one is not None and (one.size, one.mtime_ns) == (other.size, other.mtime_ns)


class Intake:
    """One intake: lists the source once, then writes cuts of the new files, portion by portion.

    Use it under the flow's lease, and close it. After a crash the next intake resumes: files in no cut are new to it.
    Creates the intake table. Raises TerminalError `source-missing`.
    """

    def __init__(
        self,
        request: Request,
        *,
        now: datetime,
        source: SourceListing | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Look at the source, or take over what `source` has seen of it.

        `now` becomes the files' `first_seen`; `progress` gets (files judged, files to judge).
        """
        layout = request.layout
        catalog.create(layout)
        seen = Snapshot.of(layout)
        self._layout, self._now, self._before = layout, now, catalog.last_cut(seen)
        source = source or SourceListing(request.flow_spec.source, Path(request.root))
        listing = source.hand_over(now)
        found = sort_out(seen, listing)
        self.new: Sequence[SourceFile] = found.new
        """Files that were in no cut when the intake began."""
        self._run = _Run(request, now, found.events, list(listing.findings))
        self._run.look_at_differing(found.differing)
        self._bound: Bound | None = None
        self._groups = cut(self._readable(progress), self._bounded)
        self._over = False
        self._cuts = self._files = 0

    def seen(self) -> SourceListing:
        """The source as this intake saw it, without the files that earlier ones were done with."""
        source = self._run.request.flow_spec.source
        return SourceListing(source, Path(self._run.request.root), Listing(list(self.new), []))

    def _readable(self, progress: Callable[[int, int], None] | None) -> Iterator[Verified]:
        yield from self._run.readable(self.new, progress)
        self._over = True

    def _bounded(self) -> Bound:
        assert self._bound is not None, "cuts are taken with a bound"
        return self._bound

    def take(self, bound: Bound, most: int | None = None) -> bool:
        """Write at most `most` cuts, each within the bound. Return whether files are left.

        Raises TransientError `lease-lost` if another driver takes in at the same time.
        """
        self._bound, before = bound, self._cuts
        for group in islice(self._groups, most):
            if files := [file for file in group if self._run.is_as_judged(file)]:
                self._append(files)
        if self._cuts > before:
            catalog.remember(self._layout)
        return not self._over

    def _append(self, files: Sequence[Verified]) -> None:
        # the cut after those this intake read: the commit fails if another driver appended a cut since
        catalog.append_cut(self._layout, files, self._now, self._before + self._cuts + 1)
        self._cuts, self._files = self._cuts + 1, self._files + len(files)

    @property
    def taken(self) -> Taken:
        """Return the progress so far."""
        return Taken(self._cuts, self._files, self._run.parked, tuple(self._run.findings))

    def close(self) -> None:
        """Stop the inspection of files in flight."""
        self._groups.close()


@dataclass
class _Run:
    """The state of one intake: what it found and parked so far."""

    request: Request
    now: datetime
    events: dict[str, Event]
    findings: list[Finding] = field(default_factory=list)
    parked: int = 0

    def readable(self, files: Sequence[SourceFile], progress: Callable[[int, int], None] | None) -> Iterator[Verified]:
        """Inspect files in their order, a few at a time, and yield the readable ones. Parks the unreadable ones."""
        source = self.request.flow_spec.source
        done = 0
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            for some in _rounds(files):
                judged = list(pool.map(lambda file: verify(file, source), some))
                # park first, so that no event is lost if the run dies before the cut
                self._record(judged)
                done += len(some)
                yield from (result for result in judged if isinstance(result, Verified))
                if progress:
                    progress(done, len(files))

    def is_as_judged(self, file: Verified) -> bool:
        """Return whether a file is unchanged since it was inspected; batches may have run in between."""
        if not _pinned(file):
            return True
        self.findings.append(
            _finding("unsettled", file.path, "changed since it was looked at", "the next run takes it")
        )
        return False

    def look_at_differing(self, pairs: Sequence[tuple[SourceFile, KnownFile]]) -> None:
        """Hash the files in cuts whose size or mtime differs, and record each as `touched` or parked as `changed`."""
        events = []
        for file, taken in pairs:
            event = self._compare(file, taken)
            if event:
                events.append(event)
            if event and event.is_open:
                self.parked += 1
                self.findings.append(_finding("changed", file.path, event.detail, _REDELIVER))
        files_parked.record(self.request.layout, events, self.now)

    def _compare(self, file: SourceFile, taken: KnownFile) -> Event | None:
        detail = f"was taken in with {taken.size} bytes, now has {file.size}"
        digest = ""
        if file.size == taken.size:
            try:
                digest = sha256_of(file.path)
            except OSError:
                return None  # missing or unreachable: the next listing decides
            if digest == catalog.sha256(self.request.layout, taken):
                return self._event(file, "touched", sha256=digest)
            detail = "was taken in with other bytes of the same size"
        return self._event(file, "parked", reason="changed", detail=detail, sha256=digest)

    def _record(self, judged: Sequence[Verified | Unreadable | Skipped]) -> None:
        events = []
        for result in judged:
            match result:
                case Skipped():
                    self.findings.append(result.finding)
                case Unreadable():
                    self.parked += 1
                    detail = f"{result.reason}: {result.detail}"
                    self.findings.append(_finding("parked", result.path, detail, self._advice()))
                    events.append(self._parked(result))
                case Verified() if (event := self.events.get(result.path)) and event.is_open:
                    events.append(self._event(result, "retried", note="the file changed and can be read now"))
        files_parked.record(self.request.layout, events, self.now)

    def _advice(self) -> str:
        return f"deliver it again, whole; see: draindown quarantine list {self.request.spec.pipeline} --files"

    def _parked(self, file: Unreadable) -> Event:
        return self._event(file, "parked", reason=file.reason, detail=file.detail, sha256=file.sha256, head=file.head)

    def _event(self, file: SourceFile | Verified | Unreadable, state: State, **more: object) -> Event:
        return Event(file.path, file.size, file.mtime_ns, state, run_id=self.request.run_id, **more)  # type: ignore[arg-type]


def _rounds(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield groups of files to inspect before the next cut, bounded in number and in bytes."""
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


def pinned(files: Iterable[Recorded]) -> list[Finding]:
    """Return findings about files that differ from what intake recorded: `changed`, `vanished`. Empty if none differs.

    Compares size and mtime, and hashes a file only if its mtime alone differs.
    """
    return [finding for file in files if (finding := _pinned(file))]


def _pinned(file: Recorded) -> Finding | None:
    try:
        found = Path(file.path).stat()
        if found.st_size != file.size:
            detail = f"was taken in with {file.size} bytes, now has {found.st_size}"
            return _finding("changed", file.path, detail, "restore its first content; " + _REDELIVER)
        if found.st_mtime_ns != file.mtime_ns and sha256_of(file.path) != file.sha256:
            detail = "was taken in with other bytes of the same size"
            return _finding("changed", file.path, detail, "restore its first content; " + _REDELIVER)
    except OSError as error:
        detail = f"was taken in, now can't be read: {error.strerror}"
        return _finding("vanished", file.path, detail, "put it back where it was")
    return None


def _finding(kind: str, path: str, detail: str, next: str) -> Finding:
    return Finding(kind=kind, subject=shown(path), detail=detail, next=next)  # type: ignore[arg-type]
