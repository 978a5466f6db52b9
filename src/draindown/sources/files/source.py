"""Files that land in a directory, as a source: a unit is a file, read whole or parked whole."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path

from draindown.base import clock
from draindown.base.errors import TerminalError, TransientError
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.config.sources import FilesSource
from draindown.lake.directories import absolute
from draindown.lake.home import FlowHome
from draindown.ledger import inputs
from draindown.sources import intake
from draindown.sources.batch_size import Bound
from draindown.sources.files import catalog, listing, moved, parked
from draindown.sources.files.batching import forecast
from draindown.sources.files.listing import Listing, directories_of, directory_of
from draindown.sources.files.moved import Moved
from draindown.sources.files.pinning import FilesOf, FilesPinning, Sorted, moved_files, sort_out
from draindown.sources.files.recorded import PinnedFile, differences, other_form
from draindown.sources.intake import Waiting
from draindown.sources.moves import Moves
from draindown.sources.port import Forecast, Look, Progress
from draindown.sources.slices import Unit

_SHOWN = 5
_PUT_BACK = "put the flow's source back as it was then, if it was changed (format, multiline, quote, escape, header)"


class Files:
    """The `Source` of files. Lists the source once: what a plan saw is what the drain after it
    takes in.
    """

    unit = "file"
    perishable = None
    following = None
    bringing_back: Sequence[str] = (
        "put them back as they were (size and content), then try again",
    )

    def __init__(self, source: FilesSource, layout: FlowHome, root: Path, run_id: str) -> None:
        self._flow = FilesOf(source, layout, root, run_id)
        self._seen: Listing | None = None
        self._pinning: FilesPinning | None = None

    @property
    def named(self) -> Files:
        """Return itself: a file is named by its path."""
        return self

    def _listing(self, now: datetime) -> Listing:
        if self._seen is None:
            self._seen = listing.list_source(self._flow.source, self._flow.root, now)
        return self._seen

    def out_of_reach(self) -> tuple[str, str] | None:
        """Return the directory that holds the files, if it is not there."""
        home = directory_of(self._flow.source, self._flow.root)
        return (
            None
            if home.is_dir()
            else (f"no directory {home} on this machine", f"mkdir -p {shlex.quote(str(home))}")
        )

    def samples(self, most: int) -> list[str]:
        """Return the newest files, which nobody clears away yet. Raises like `look`."""
        return [file.path for file in self._listing(clock.now()).files[-most:]]

    def look(self, state: FlowHome, generation: int, first: int, now: datetime) -> Look:
        """Compare the listing with the intake. Raises TerminalError `source-missing`,
        `source-unreadable`.
        """
        listed = self._listing(now)
        waiting = intake.waiting(state, generation, first)
        found = self._sorted(state, now)
        oldest = [] if waiting.oldest is None else [waiting.oldest]

        def expected(bound: Bound) -> Forecast:
            return forecast(state, self._flow.source, found.new, bound)

        return Look(
            unit=self.unit,
            units=len(found.new) + waiting.units,
            bytes=sum(file.size for file in found.new) + waiting.bytes,
            oldest=min(oldest + [file.mtime_ns / 1e9 for file in found.new], default=None),
            findings=[*listed.findings, *_differing(found)],
            kept_out=sum(event.is_open for event in found.events.values()),
            pinned=Forecast(waiting.slices, waiting.unpacked),
            reasons=_reasons(found, waiting),
            forecast=expected,
        )

    def _sorted(self, state: FlowHome, now: datetime) -> Sorted:
        """Return the listed files by whether they are known. A view is asked once."""
        return state.once(
            f"{state.tables.intake(1).path} sorted", lambda: sort_out(state, self._listing(now))
        )

    def pin(self, generation: int, now: datetime, progress: Progress | None = None) -> FilesPinning:  # noqa: ARG002
        """Begin to take in what is new. Parks files that changed since they were taken in. Raises
        like `look`.
        """
        catalog.create(self._flow.layout)
        listed, seen = self._listing(now), self._flow.layout.view()
        found = sort_out(seen, listed)
        # files that earlier pinnings were done with are done with
        self._seen = Listing(list(found.new), [])
        last = catalog.last_slice(seen)
        self._pinning = FilesPinning(self._flow, found, listed.findings, now, last, progress)
        return self._pinning

    def place(self, unit: str) -> str:
        """Return where a file is now, by the answers about directories that moved."""
        return self._moves.place(unit)

    @cached_property
    def _moves(self) -> Moves:
        return Moves.of(self._flow.layout)

    def moved(self, state: FlowHome, now: datetime) -> Moved | None:
        """Return the new files that are known ones of another directory, as long as nobody
        answered.
        """
        new = self._sorted(state, now).new
        return (
            moved.find(state, new, directories_of(self._flow.source, self._flow.root))
            if new
            else None
        )

    def refuse_lost(self, state: FlowHome, generation: int, first: int) -> None:
        """Files lie where they are, in no order: what was not seen yet can't have been lost."""

    def missing(self, units: Iterable[Unit]) -> dict[str, Finding]:
        """Return the files that are gone, or whose bytes are other ones. Raises TerminalError
        `form-changed`.
        """
        asked = list(units)
        found = differences(map(PinnedFile.of, asked), self.place)
        self._refuse_other_form([unit for unit in asked if unit.name not in found])
        return found

    def _refuse_other_form(self, units: Sequence[Unit]) -> None:
        """Refuse files that were taken in under another `format`, `multiline` or `header`: they
        would be misread.
        """
        found = {unit.name: form for unit in units if (form := other_form(unit, self._flow.source))}
        if found:
            layout, shown = (
                self._flow.layout,
                [f"{path}: {form}" for path, form in list(found.items())[:_SHOWN]],
            )
            more = [f"and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
            raise TerminalError(
                "form-changed",
                tried=f"read {count(len(units), 'file')} of flow {layout.flow} as the source says now",
                found=f"taken in by another form of the source: {'; '.join([*shown, *more])}",
                changed="nothing of these files was read",
                next=[
                    f"{_PUT_BACK}, then: {self._again}",
                    "deliver them again under new names and take these away, then: "
                    f"draindown rebuild {layout.pipeline}/{layout.flow} --accept-missing",
                ],
            )

    def open_findings(self, state: FlowHome) -> list[Finding]:
        """Return the finding `parked` if files are parked."""
        number = len(parked.open_files(state))
        next_ = f"draindown input list {self._flow.layout.pipeline}"
        detail = "can't be read or changed"
        return (
            [Finding(kind="parked", subject=count(number, "file"), detail=detail, next=next_)]
            if number
            else []
        )

    def refuse_changed(self, units: Sequence[Unit]) -> None:
        """Check that files are as intake recorded them. Raises TerminalError `input-changed`, and
        as `missing`.
        """
        found = self.missing(units)
        if found:
            raise TerminalError(
                "input-changed",
                tried=f"read {count(len(units), 'file')} of flow {self._flow.layout.flow} as they were taken in",
                found=_told([*found.values()]),
                changed="nothing of this batch is in the table",
                next=self._without([*found]),
            )

    def _without(self, changed: Sequence[str]) -> list[str]:
        layout = self._flow.layout
        back = "put the file back as it was (size and content), then: draindown"
        if layout.staged:
            rebuild = f"rebuild {layout.pipeline}/{layout.flow}"
            return [
                f"{back} {rebuild} --yes",
                f"draindown {rebuild} --accept-missing --yes   # its rows will be missing",
            ]
        return [f"{back} run {layout.pipeline}", self.leaving_out(changed[:_SHOWN])]

    def refuse_miscounted(
        self, number: int, units: Sequence[Unit], read: Mapping[str, int]
    ) -> None:
        """Compare lines or rows with those that the intake counted, but of files whose records may
        span lines.

        Raises TerminalError `lines-differ`.
        """
        may_span = self._flow.source.dialect.quote is not None
        wrong = {
            unit.name: f"{unit.name}: {count(unit.until, 'line')} when it was taken in, {read.get(unit.name, 0)} now"
            for unit in units
            if not (unit.row["multiline"] and may_span) and unit.until != read.get(unit.name, 0)
        }
        if wrong:
            raise TerminalError(
                "lines-differ",
                tried=f"read slice {number} of flow {self._flow.layout.flow}",
                found="; ".join(list(wrong.values())[:_SHOWN]) + "; their bytes are as they were",
                changed="nothing of this batch is in the table",
                next=[
                    f"{_PUT_BACK}, then: {self._again}",
                    f"draindown audit {self._flow.layout.pipeline}",
                    self.leaving_out(wrong),
                ],
            )

    @property
    def _again(self) -> str:
        """The command that reads the batch again once the source is as it was: a rebuild goes on by
        one contract.
        """
        layout = self._flow.layout
        if layout.staged:
            return f"draindown rebuild {layout.pipeline}/{layout.flow} --abort --yes   # and begin it anew"
        return f"draindown run {layout.pipeline}"

    def refuse_findings(self, findings: Sequence[Finding]) -> None:
        """Fail if a file's content changed after it was read, or if this machine could read none of
        the new files.

        Raises TerminalError `input-changed`, TransientError `files-unread`.
        """
        if self._pinning is not None and self._pinning.trouble:
            unread = [finding for finding in findings if finding.kind == "unread"]
            raise TransientError(
                "files-unread",
                tried=f"read {count(len(unread), 'file')} that are new to flow {self._flow.layout.flow}",
                found=f"none of them could be read: {self._pinning.trouble}",
                changed="none of them was taken in or parked; what was taken in before was drained",
                next=[
                    *(finding.next for finding in unread[:1]),
                    f"draindown run {self._flow.layout.pipeline}",
                ],
                in_order=True,
            )
        changed = [finding for finding in findings if finding.kind == "changed"]
        if changed:
            raise TerminalError(
                "input-changed",
                tried=f"drain flow {self._flow.layout.flow}",
                found=_told(changed),
                changed="everything else was drained; the new bytes of these files were not read",
                next=[finding.next for finding in changed[:1] if finding.next]
                + [f"draindown input list {self._flow.layout.pipeline}"],
            )

    def asked_again(self, asked: Collection[str], generation: int, first: int) -> list[str]:  # noqa: ARG002
        """Return absolute paths: a file is read whole. A relative one begins at the project root.

        A file of a directory that moved has the path by which it is known.
        """
        paths = [absolute(self._flow.root / name) for name in asked]
        known = moved_files(self._flow.layout, paths)
        return [known[path].path if path in known else path for path in paths]

    def give_up(
        self, units: Sequence[str], unread: Collection[str], *, by: str, note: str, at: datetime
    ) -> None:
        """Discard parked files, and files of slices that no batch has read."""
        parked.give_up(
            self._flow.layout,
            units,
            catalog.find(self._flow.layout, unread),
            by=by,
            note=note,
            at=at,
        )

    def given_up(self) -> frozenset[str]:
        """Return the files that a person discarded before any batch read them."""
        return parked.given_up(self._flow.layout)

    def headers(self, units: Collection[str]) -> Mapping[str, str | None]:  # noqa: ARG002 - one query gives all
        """Return the CSV header of every file, by path."""
        return catalog.headers(self._flow.layout) if self._flow.source.has_header else {}

    def leaving_out(self, units: Iterable[str]) -> str:
        """Return the command that discards files unread.

        In a rebuild that reads again what the live table has, it is the one that throws the rebuild
        away.
        """
        layout, names = self._flow.layout, list(units)
        flow, chosen = (
            f"{layout.pipeline}/{layout.flow}",
            " ".join(f"--file {shlex.quote(path)}" for path in names),
        )
        if layout.staged and inputs.has_any(layout.live, names):
            return f"draindown rebuild {flow} --abort --yes   # throws away what it has read; the live table stays"
        return f"draindown input discard {flow} {chosen} --yes   # never read: all its records"


def _told(findings: Sequence[Finding]) -> str:
    return "; ".join(f"{finding.subject}: {finding.detail}" for finding in findings[:_SHOWN])


def _differing(found: Sorted) -> list[Finding]:
    detail = "its size or mtime is not what was taken in; the drain compares the bytes"
    return [
        Finding(kind="changed", subject=file.path, detail=detail)
        for file, _ in found.differing[:10]
    ]


def _reasons(found: Sorted, waiting: Waiting) -> list[str]:
    reasons = [count(len(found.new), "new file")] if found.new else []
    if differing := len(found.differing):
        verb = "differs" if differing == 1 else "differ"
        reasons.append(f"{count(differing, 'file')} {verb} from what was taken in")
    if waiting.slices:
        batches = count(waiting.slices, "batch", "batches")
        reasons.append(f"{count(waiting.units, 'file')} taken in for {batches} yet to be processed")
    return reasons
