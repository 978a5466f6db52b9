"""What was sent to each sink of a flow, and whether the sink holds all that it should.

    sinks/<name>.json            the newest batch of each writer that was sent, or may have been in part; which rows the
                                 sink was filled with; whether it is stale; a fill in progress

A batch is written down before it is sent, and again once the sink has it. Only the holder of the
flow's lease writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from draindown.base.clock import now
from draindown.base.errors import TransientError
from draindown.lake.home import FlowHome
from draindown.lake.transactions import WriterId
from draindown.sinks.port import FILL

_MOST = 32  # writers whose newest batch is remembered; each replay is one
SWAPPED = "a rebuilt table took the place of the one that it was sent from"
EDITED = "its keys, columns, condition or target were changed since"
ASIDE = "a reset put the table aside that it was sent from"
UNFILLED = "a fill of it was begun and has not ended"
GIVEN_UP = "a batch on its way to it was given up"
LEFT_OUT = "batches went by while it was not in `sinks`"
ADDED = "it was added when the table had rows already"
RESTORED = "its newest batches are not those that were sent to it: it, or the lake, was restored from an older copy"
ALL_PORTIONS = -1
"""The number of a `Skip` that is about a fill; its writer is `FILL`."""


@dataclass(frozen=True)
class Holds:
    """What decides what a sink holds: the fingerprint of its spec, and the table that its rows are
    from.
    """

    fingerprint: str
    table: str


@dataclass(frozen=True)
class Sending:
    """A batch on its way. `sent`: the sink has it. Until then it may have all of it, a part, or
    nothing.

    `refused`: the system behind the sink refused a row of it. `epoch`: of the driver that wrote it
    down. `recorded`: whether the sink recorded batches then, as `Sink.records`; that changes with
    `delivery`.
    """

    writer: str
    number: int
    kind: str
    rows: int
    digest: str
    sent: bool = False
    refused: bool = False
    epoch: int = 0
    recorded: bool = True


@dataclass(frozen=True)
class Skip:
    """A row that a person gave up, which the sink refuses, or all rows of a batch: they are not
    sent.

    `writer`, `number`: the batch; of a fill all portions, -1. `key`: the text of each key column's
    value by its name at the sink; empty for all rows.
    """

    writer: str
    number: int
    key: Mapping[str, str]
    by: str
    reason: str
    at: str


@dataclass(frozen=True)
class Fill:
    """A fill in progress: its `number`, the table's `version`, how many portions it has, and how
    many are done.

    `fingerprint`: of the sink's spec. `bases`: the earlier versions that the table is compared
    with. `whole`: whether every row is sent, or what differs from the base.
    """

    number: int
    version: int
    portions: int
    fingerprint: str
    bases: tuple[int, ...] = ()
    whole: bool = True
    done: int = 0

    def goes_on(self, asked: Fill) -> bool:
        """Return whether it is the fill that is asked for, begun by an earlier driver."""
        return self == replace(asked, number=self.number, done=self.done)


@dataclass(frozen=True)
class SinkState:
    """The document of one sink.

    Attributes:
        filled: fingerprint of the spec with which the sink was filled, or sent its first batch;
            empty before that.
        stale: why the sink may lack rows or hold others than the table; empty if it does not.
        fills: how many fills were begun.
        fill: the fill in progress.
        sendings: the newest batch of each writer, oldest first.
        given_up: what a person gave up: who, when, why and which batch.
        skips: rows that are not sent, of batches on their way and of a fill in progress.
        bases: versions of the table that rebuilds replaced, and that the sink has rows of.
    """

    filled: str = ""
    stale: str = ""
    fills: int = 0
    fill: Fill | None = None
    sendings: tuple[Sending, ...] = ()
    given_up: tuple[Mapping[str, Any], ...] = field(default=())
    skips: tuple[Skip, ...] = ()
    bases: tuple[int, ...] = ()

    @classmethod
    def read(cls, layout: FlowHome, name: str) -> Self:
        """Return the state of a sink; that of one which nothing was sent to if there is no
        document.

        Raises TerminalError `state-damaged`.
        """
        lost = f"then: draindown sink resync {layout.pipeline}/{layout.flow} {name} --yes"
        return layout.sink(name).parsed(cls._parsed, without=lost, copied=False) or cls()

    @classmethod
    def _parsed(cls, content: dict[str, Any]) -> Self:
        fill = content["fill"]
        return cls(
            filled=str(content["filled"]),
            stale=str(content["stale"]),
            fills=int(content["fills"]),
            fill=None if fill is None else Fill(**fill | {"bases": tuple(fill["bases"])}),
            sendings=tuple(Sending(**one) for one in content["sendings"]),
            given_up=tuple(content["given_up"]),
            skips=tuple(Skip(**one) for one in content["skips"]),
            bases=tuple(content["bases"]),
        )

    def write(self, layout: FlowHome, name: str) -> None:
        """Replace the document."""
        layout.sink(name).write(asdict(self))

    def of(self, writer: str) -> Sending | None:
        """Return the newest batch of a writer."""
        return next((one for one in self.sendings if one.writer == writer), None)

    def skipped(self, writer: str, number: int) -> list[Skip]:
        """Return what was given up of a batch, or of fills (`FILL`, `ALL_PORTIONS`)."""
        return [one for one in self.skips if (one.writer, one.number) == (writer, number)]

    def is_given_up(self, writer: str, number: int) -> bool:
        """Whether all rows of a batch were given up."""
        return any(not one.key for one in self.skipped(writer, number))

    def sending(self, batch: Sending) -> SinkState:
        """Return the state with `batch` as the newest of its writer."""
        others = [one for one in self.sendings if one.writer != batch.writer]
        return replace(self, sendings=(*others[1 - _MOST :], batch))

    def why_stale(self, fingerprint: str) -> str:
        """Return why the sink is not as the table, "" if it is. `fingerprint`: of its spec now."""
        edited = EDITED if self.filled and self.filled != fingerprint else ""
        return self.stale or edited

    def because(self, why: str) -> SinkState:
        """Return the state of a sink that is stale for this reason, unless every row has to be sent
        anyway.
        """
        return replace(self, stale=why) if self.stale in ("", SWAPPED) else self

    @property
    def is_of_base(self) -> bool:
        """Whether the sink has the rows of its only base, and what batches sent since, and nothing
        else.
        """
        return self.stale == SWAPPED and len(self.bases) == 1


def names(layout: FlowHome) -> list[str]:
    """Return the names of all sinks that were ever sent to."""
    return layout.names(layout.sinks)


def stale(layout: FlowHome, sinks: Mapping[str, Holds]) -> Iterator[tuple[str, str]]:
    """Yield the sinks that must be filled, each with the reason.

    Reads one document each, and counts the rows of its table where a sink got nothing yet.
    """
    for name, holds in sinks.items():
        state = SinkState.read(layout, name)
        why = state.why_stale(holds.fingerprint)
        if not state.filled and not why:
            why = ADDED if _has_rows(layout, holds.table) else ""
        if why:
            yield name, why


def _has_rows(layout: FlowHome, table: str) -> bool:
    log = layout.tables.at(table)
    return log.exists and log.row_count != 0


def begun(state: SinkState, holds: Holds, layout: FlowHome) -> SinkState:
    """Return the state of a sink that gets a batch by the spec of `holds`.

    It is stale from then on if the table has rows that it never got, or if it has rows by another
    spec: putting that back does not undo what was judged by this one.
    """
    if not state.filled:
        lacks = _has_rows(layout, holds.table)
        return replace(
            state, filled=holds.fingerprint, stale=state.stale or (ADDED if lacks else "")
        )
    return state.because(EDITED) if state.filled != holds.fingerprint else state


def in_flight(layout: FlowHome) -> dict[str, Sending]:
    """Return the batches that sinks have, or may have in part, and the table does not, by sink."""
    found: dict[str, Sending] = {}
    log = None
    for name in names(layout):
        for one in SinkState.read(layout, name).sendings:
            if one.kind == FILL:
                continue
            log = log or layout.live.tables.target
            last = log.last(WriterId(one.writer)) if log.exists else None
            if last is None or last < one.number:
                found[name] = one
    return found


def refuse_in_flight(layout: FlowHome, *, writer: str = "") -> None:
    """Refuse to go on while a sink has a batch that the table lacks, unless it is one of `writer`.

    Whatever ran before that batch would change its rows: the sink and the table would then differ
    for good.

    Raises TransientError `sink-batch-in-flight`.
    """
    for name, one in in_flight(layout).items():
        if one.writer == writer:
            continue
        raise TransientError(
            "sink-batch-in-flight",
            tried=f"write to flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"batch {one.number} of kind {one.kind} was sent to sink {name}, and is not in the table yet",
            changed="nothing",
            next=[
                f"{finishing(layout, one)}; then the same command again",
                f"draindown sink skip {layout.pipeline}/{layout.flow} {name} --note TEXT --yes"
                "   # gives it up; then resync it",
            ],
        )


def finishing(layout: FlowHome, one: Sending) -> str:
    """Return the command that finishes a batch on its way to a sink: of the kind that began it,
    with its options.
    """
    where = f"{layout.pipeline}/{layout.flow}"
    begun_with = {
        "drain": f"draindown run {where}   # it finishes the batch",
        "replay": f"draindown doctor {where}   # names the replay; the same one again finishes the batch",
        "release": f"draindown quarantine release {where} ...   # with the options as before; finishes the batch",
        "withdraw": f"draindown gate withdraw {where} ...   # with the options as before; finishes the batch",
    }
    return begun_with.get(
        one.kind.partition(":")[0], f"draindown doctor {where}   # says what waits"
    )


def give_up(layout: FlowHome, name: str, *, by: str, reason: str) -> list[Sending]:
    """Give up the batch that the sink has, or refuses, and the table lacks. The sink is stale then.
    Return it.

    What was sent of it is forgotten: it is computed again and sent as it is then. A batch that the
    system refused is not sent again, and still comes before all others. Call it under the lease.
    """
    state, lost = SinkState.read(layout, name), in_flight(layout).get(name)
    if lost is None:
        return []
    at = now().isoformat(timespec="seconds")
    given_up = {"by": by, "reason": reason, "at": at, **asdict(lost)}
    left = replace(state, stale=GIVEN_UP, given_up=(*state.given_up, given_up)[-_MOST:])
    if lost.refused:
        left = _with(left, lost, Skip(lost.writer, lost.number, {}, by, reason, at))
    else:
        left = replace(left, sendings=tuple(one for one in state.sendings if one != lost))
    left.write(layout, name)
    return [lost]


def on_its_way(layout: FlowHome, name: str) -> tuple[Sending | None, Fill | None]:
    """Return the batch that the sink has, or may get, before the table, and the fill in
    progress.
    """
    return in_flight(layout).get(name), SinkState.read(layout, name).fill


def skip_row(
    layout: FlowHome, name: str, key: Mapping[str, str], *, by: str, reason: str
) -> Skip | None:
    """Give up one row of the batch on its way to the sink, or of a fill in progress: it is not
    sent. Return it.

    None if neither is. `key`: as of `Skip`. The sink is no staler than by a row that it can't hold.
    Call it under the lease.
    """
    state, (waiting, filling) = SinkState.read(layout, name), on_its_way(layout, name)
    if waiting is not None:
        writer, number = waiting.writer, waiting.number
    elif filling is not None:
        writer, number = (
            FILL,
            ALL_PORTIONS,
        )  # a fill that begins again, as batches ran, goes by it too
    else:
        return None
    found = Skip(writer, number, dict(key), by, reason, now().isoformat(timespec="seconds"))
    _with(state, waiting, found).write(layout, name)
    return found


def _with(state: SinkState, waiting: Sending | None, skip: Skip) -> SinkState:
    """Return the state with one more skip, without those of batches that are done."""
    own = {(waiting.writer, waiting.number)} if waiting else {(skip.writer, skip.number)}
    kept = [one for one in state.skips if (one.writer, one.number) in own and one.key != skip.key]
    return replace(state, skips=(*kept, skip))


def fill_writer(layout: FlowHome, name: str, number: int) -> str:
    """Return the writer of a fill: each fill is one by itself."""
    return f"fill:{layout.pipeline}.{layout.flow}.{name}:{number}"
