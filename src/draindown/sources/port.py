"""The port of input sources: what the rest of draindown asks of a source, whatever kind it is. No
Spark.

A source looks at what is new and pins it in slices of the flow's intake. Everything else about a
slice is the same for all sources, and stands in `slices` and `intake`. What only some sources can
do is a capability (`NamedUnits`, `Perishable`, `Following`), which is None where a source lacks it;
the functions below the classes give the answer for both. Sources are listed in `registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from draindown.base.errors import DraindownError
from draindown.base.findings import Finding
from draindown.lake.home import FlowHome
from draindown.sources.batch_size import Bound
from draindown.sources.slices import Unit

Progress = Callable[[int, int], None]
"""Called with (units looked at, units to look at)."""


@dataclass(frozen=True)
class Forecast:
    """The expected number of slices, and the unpacked bytes of their units."""

    slices: int = 0
    unpacked: int = 0


@dataclass(frozen=True)
class Part:
    """What waits in one part of a source that is read in parts, each in order: a partition.

    `position`: what the next batch reads first. `end`: the end of what is there. `bytes`: an
    estimate. `oldest`: when the oldest that waits arrived, in seconds since 1970; None if nothing
    waits, or the source did not say in time.
    """

    name: str
    position: int
    end: int
    units: int
    bytes: int
    oldest: float | None


@dataclass(frozen=True)
class Look:
    """What waits at a source: new input, and input in slices that no batch has read.

    Attributes:
        unit: the noun of what is counted, such as `file`.
        units, bytes: the number of units that wait, and their size as the source stores it.
        oldest: when the oldest of it arrived, in seconds since 1970; None if nothing waits.
        findings: what a person should know about the input that does not wait.
        kept_out: the number of units that are kept out until a person decides. They do not wait.
        pinned: the slices that no batch has read.
        reasons: why a drain has work, in words; empty if it has none.
        forecast: returns the slices that the new input will make under a bound.
        parts: the same by part, of a source that is read in parts.
        expires: when the source may delete the first of what waits, in seconds since 1970; None if
            it keeps all.
        keeps: for how many seconds the source keeps what arrives now; None if it keeps all.
    """

    unit: str
    units: int
    bytes: int
    oldest: float | None
    findings: Sequence[Finding] = ()
    kept_out: int = 0
    pinned: Forecast = Forecast()
    reasons: Sequence[str] = ()
    forecast: Callable[[Bound], Forecast] = lambda _: Forecast()
    parts: Sequence[Part] = ()
    expires: float | None = None
    keeps: float | None = None


@dataclass(frozen=True)
class Taken:
    """The progress of a pinning: slices written, their units, and units newly kept out because
    nobody can read them.
    """

    slices: int = 0
    units: int = 0
    kept_out: int = 0
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why reading failed, as the reader of the source understands the engine's error.

    `kind`: `lost`, pinned input is not there; `refused`, this user may not read it; `away`, the
    source does not answer.
    """

    kind: Literal["lost", "refused", "away"]
    text: str


class Pinning(Protocol):
    """Pins the new input of one drain, portion by portion. Used under the flow's lease. Close
    it.
    """

    def forecast(self, bound: Bound) -> Forecast:
        """Return the slices that all of the new input will make, without reading it."""

    def take(self, bound: Bound, most: int | None = None) -> bool:
        """Write at most `most` slices, each within the bound. Return whether input is left.

        A slice is committed to the intake before anything reads its units. After a crash, the next
        pinning goes on: what is in no slice is new to it.

        Raises TransientError `lease-lost` if another driver pins at the same time.
        """

    @property
    def taken(self) -> Taken:
        """The progress so far."""

    def close(self) -> None:
        """Stop looking at units that are in no slice yet."""


class Moved(Protocol):
    """New units that equal known ones under other names.

    Attributes:
        before: where the known units were, `now`: where the equal ones are.
        files: number of equal units, `new`: of all new units there.
    """

    @property
    def before(self) -> str: ...  # noqa: D102
    @property
    def now(self) -> str: ...  # noqa: D102
    @property
    def files(self) -> int: ...  # noqa: D102
    @property
    def new(self) -> int: ...  # noqa: D102

    def answer(self, layout: FlowHome, *, same: bool, by: str, note: str, at: datetime) -> None:
        """Record a person's answer: the `same` units, or new ones. Call it under the lease."""

    def error(self, layout: FlowHome) -> DraindownError:
        """Return the error that asks the person."""


class NamedUnits(Protocol):
    """A source whose units a person names one by one, `--file PATH`, and may keep out of the
    table.
    """

    @property
    def bringing_back(self) -> Sequence[str]:
        """What a person does so that units which are gone or changed can be read again."""

    def open_findings(self, state: FlowHome) -> list[Finding]:
        """Return what is kept out until a person acts: one finding of each kind, with the number as
        subject.

        `state`: as for `Source.look`.
        """

    def refuse_findings(self, findings: Sequence[Finding]) -> None:
        """Fail a drain, after everything else was drained, if one of its findings about the source
        must not pass.

        Raises TerminalError `input-changed`.
        """

    def give_up(
        self, units: Sequence[str], unread: Collection[str], *, by: str, note: str, at: datetime
    ) -> None:
        """Record a person's decision that units are never read. Those in `unread` are in slices
        that wait.

        Called under the lease. Idempotent. Raises TerminalError `not-parked` before it changes
        anything.
        """

    def given_up(self) -> frozenset[str]:
        """Return the units that a person gave up before any batch read them. Every later generation
        leaves them out.
        """

    def place(self, unit: str) -> str:
        """Return under which name the source has a unit now; most have the one they were pinned
        by.
        """

    def moved(self, state: FlowHome, now: datetime) -> Moved | None:
        """Return what a person must answer before new units are pinned: they may be known ones
        under another name.
        """

    def headers(self, units: Collection[str]) -> Mapping[str, str | None]:
        """Return, by unit, the line that names the cells of its records; None for a unit without
        one.

        Units that the intake does not have are left out.
        """

    def samples(self, most: int) -> list[str]:
        """Return paths of at most `most` new files outside the lake that tasks read; empty if they
        read none.
        """


class Perishable(Protocol):
    """A source that deletes what it holds, read or not. The lake may keep what was read of it."""

    def losses(self, generation: int, first: int) -> Mapping[str, str]:
        """Return input that no batch has read, from slice `first` on or not pinned yet, and that is
        gone.

        By range, as a person types it, each with what is there instead.
        """

    def accept_losses(
        self, ranges: Sequence[str], reading: Mapping[int, int], *, by: str, note: str, at: datetime
    ) -> None:
        """Record a person's decision to go on without input that is lost. Idempotent. Called under
        the lease.

        `reading`: the first slice that no batch has read, by generation. Raises TerminalError
        `not-lost` if a range is not one of their `losses`.
        """

    def left_of(self, units: Sequence[Unit]) -> list[Unit]:
        """Return what a batch reads of pinned units: all but the ranges that were given up as
        lost.
        """

    def located(self, units: Sequence[Unit]) -> list[Unit]:
        """Return units in the pieces in which they are read: each has its `log`, and is wholly
        `kept` or not at all.
        """

    def missing_anew(
        self, units: Iterable[Unit], before: int, generation: int
    ) -> Mapping[str, Finding]:
        """Return what a new generation would not read of units that generation `before` pinned. As
        `missing`.

        With an intake per generation, a new one pins what is there, which may be less than what can
        be read. Raises a TerminalError if what is kept of units stands for other input.
        """

    def read_failed(self, failure: Failure, units: Sequence[Unit]) -> DraindownError:
        """Return the error of a read that failed."""


class Following(Protocol):
    """A source of versions that other flows publish. They keep what this one needs, and slices are
    for its query.
    """

    def is_void(self, state: FlowHome, generation: int) -> bool:
        """Return whether all slices were pinned for what the flow no longer is, and no batch has
        committed one.
        """

    def read_up_to(self, generation: int, first: int) -> None:
        """Take note that no batch reads the slices before `first` again. Called under the lease,
        after a drain.
        """


class Source(Protocol):
    """The input of one flow. Made by `registry.source_of`; looks at the source at most once."""

    @property
    def unit(self) -> str:
        """The noun of a unit, in the singular: `file`."""

    @property
    def named(self) -> NamedUnits | None:
        """Units that a person names one by one; None if the source is read in order."""

    @property
    def perishable(self) -> Perishable | None:
        """What may get lost; None if the source keeps its input whoever has read it."""

    @property
    def following(self) -> Following | None:
        """Published versions that are followed; None if slices hold input, whatever becomes of the
        flow.
        """

    def out_of_reach(self) -> tuple[str, str] | None:
        """Return what this machine lacks to reach the source, and the command that would help; None
        if it can.
        """

    def look(self, state: FlowHome, generation: int, first: int, now: datetime) -> Look:
        """Return what waits: new input, and the slices from `first` on.

        `state`: the home, or a view of it. The source is looked at by the first call; later
        calls compare what it saw then with the intake as it is now. Raises TerminalError if the
        source can't be seen.
        """

    def pin(self, generation: int, now: datetime, progress: Progress | None = None) -> Pinning:
        """Begin to pin what is new, by `now`, in the intake of a generation. Creates the intake."""

    def refuse_lost(self, state: FlowHome, generation: int, first: int) -> None:
        """Refuse to continue if the source no longer holds what follows the slices before `first`.

        `state`: as for `look`. Raises a TerminalError that names what is lost.
        """

    def missing(self, units: Iterable[Unit]) -> Mapping[str, Finding]:
        """Return what can't be read again as it was pinned, each with what is wrong: names of
        units, or of ranges.
        """

    def refuse_changed(self, units: Sequence[Unit]) -> None:
        """Refuse to read units that are not as they were pinned. Raises TerminalError
        `input-changed`.
        """

    def refuse_miscounted(
        self, number: int, units: Sequence[Unit], read: Mapping[str, int]
    ) -> None:
        """Refuse slice `number` if its units gave other numbers of records than they must. `read`:
        records by unit.

        Raises a TerminalError that names the units, each with both numbers.
        """

    def asked_again(self, asked: Collection[str], generation: int, first: int) -> list[str]:
        """Return what a replay reads again: names of units, or of their ranges, as the generation's
        intake has them.

        `asked`: what a person typed; empty for all of a range of time. `first`: the first slice
        that no batch has read. Raises TerminalError `bad-range`, TransientError `range-unfinished`
        if the replay can't be right now.
        """

    def leaving_out(self, units: Iterable[str]) -> str:
        """Return the command that goes on without units which can't be read."""


def left_of(source: Source, units: Sequence[Unit]) -> list[Unit]:
    """Return what a batch reads of pinned units: all but the ranges that were given up as lost."""
    return list(units) if source.perishable is None else source.perishable.left_of(units)


def located(source: Source, units: Sequence[Unit]) -> list[Unit]:
    """Return units in the pieces in which they are read, from the source or from what the lake
    keeps of them.
    """
    return list(units) if source.perishable is None else source.perishable.located(units)


def missing_anew(
    source: Source, units: Sequence[Unit], before: int, generation: int
) -> Mapping[str, Finding]:
    """Return what a new generation would not read of units that generation `before` pinned. As
    `Source.missing`.
    """
    if source.perishable is None:  # it reads the same units
        return source.missing(units)
    return source.perishable.missing_anew(units, before, generation)


def given_up(source: Source) -> frozenset[str]:
    """Return the units that a person gave up before any batch read them. Every later generation
    leaves them out.
    """
    return frozenset() if source.named is None else source.named.given_up()
