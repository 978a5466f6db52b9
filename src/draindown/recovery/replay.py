"""Replays: which slices of the intake that were read to read again. The list is pinned in a
document before it begins.

The id of a replay is derived from the request, so the same command continues it after a crash.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.base.progress import StepHook, ignore_step
from draindown.flow import generations, integrity, orphan_memory, owner, release_intent, withdrawals
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.generations import gone, shown, without
from draindown.lake.home import FlowHome
from draindown.ledger import table as ledger_table
from draindown.recovery.input_gone import input_gone
from draindown.runs import store
from draindown.runs.request import Again, Request
from draindown.sources import intake
from draindown.sources.port import Source, left_of
from draindown.sources.registry import source_of
from draindown.sources.slices import Slice, Unit, slices_of

APPENDS = "it appends: reading input again would append each row a second time"
"""Why a flow without keys is not replayed."""


@dataclass(frozen=True)
class Part:
    """One batch of a replay: units of one slice. `batch`: its ledger number, unique in the
    generation's replays.
    """

    batch: int
    slice: Slice


@dataclass(frozen=True)
class Replay:
    """A replay: what it reads and how far it has come.

    `waiting`: number of requested units not drained yet. `requesters`: the runs that worked on it,
    as `_requester` names them.
    """

    id: str
    pipeline: str
    flow: str
    generation: int
    asked: str
    parts: tuple[Part, ...]
    begun: bool
    done: int
    waiting: int = 0
    requesters: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Kind of its batches, stored in its rows and part of its transaction ids."""
        return f"replay:{self.id}"

    @property
    def options(self) -> str:
        """What it was asked for, as options of the command that goes on with it. The same range was
        read before it.
        """
        return self.asked + (" --again" if "-" in self.id else "")

    @property
    def units(self) -> int:
        """Number of units that it reads."""
        return sum(len(part.slice.units) for part in self.parts)

    @property
    def left(self) -> tuple[Part, ...]:
        """Parts that the target does not hold yet."""
        return self.parts[self.done :]

    @property
    def nothing_left(self) -> str:
        """Reason why nothing remains to be done, if `left` is empty."""
        return (
            f"replay {self.id} is done already"
            if self.begun
            else "no drained input was first seen then"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the replay as a flat, JSON-ready dict without its list of units."""
        size = sum(part.slice.bytes for part in self.parts)
        whole = {"batches": len(self.parts), "units": self.units, "bytes": size}
        names = ("id", "pipeline", "flow", "generation", "asked", "begun", "done", "waiting")
        return {name: getattr(self, name) for name in names} | whole


def find(request: Request, layout: FlowHome | None = None) -> Replay:
    """Return the replay that `request.replay` asks for: the pinned one, or as it would be pinned
    now. Read-only.

    `layout`: the home of the request's flow, or a view of it.

    Raises TerminalError `table-of-another-flow`, `replay-would-double`, `bad-range`,
    `not-taken-in`, and `checkpoint-damaged`; TransientError `range-unfinished`.
    """
    asked, layout, source = request.replay, layout or request.layout, source_of(request)
    if asked is None:
        raise ValueError("the request asks for no replay")
    owner.refuse_other(layout)
    _refuse_append(request)
    generation = generations.generation(layout)
    names = sorted(
        source.asked_again(asked.units, generation, generations.first_unread(layout, generation))
    )
    _refuse_bad_range(request, asked, source.unit)
    identity = _identity(layout, generation, asked, names, _requester(request))
    pinned = _pinned(layout, identity)
    if pinned is not None:
        return _as_far(layout, pinned)
    slices, waiting = _slices(layout, generation, asked, names, source.unit)
    first = _next_batch(layout, generation)
    return Replay(
        identity,
        layout.pipeline,
        layout.flow,
        generation,
        wording(asked, source.unit),
        tuple(Part(first + at, one) for at, one in enumerate(slices)),
        begun=False,
        done=0,
        waiting=waiting,
    )


def pin(request: Request, replay: Replay) -> None:
    """Write down what the replay reads before it begins, and which run asks for it. Call it under
    the lease.

    Of an existing pin, what it reads is kept.
    """
    requester = _requester(request)
    if not replay.begun or (replay.left and requester not in replay.requesters):
        parts = [
            {"batch": part.batch, "units": [unit.row for unit in part.slice.units]}
            for part in replay.parts
        ]
        more = {"parts": parts, "requesters": [*replay.requesters, requester]}
        request.layout.replay(replay.id).write(vars(replay) | more)


def begun(layout: FlowHome) -> list[tuple[str, int | None]]:
    """Return kind and generation of every replay ever begun. The generation is None if the file is
    unreadable.
    """
    return [(f"replay:{name}", _generation_of(layout, name)) for name in _names(layout)]


def _names(layout: FlowHome) -> list[str]:
    """Return the ids of all replays that were ever begun."""
    # a replay whose file was moved aside as damaged may still have a running driver
    damaged = layout.names(layout.replays, ".json.damaged")
    return sorted({*layout.names(layout.replays), *damaged})


def _generation_of(layout: FlowHome, identity: str) -> int | None:
    try:
        pinned = _pinned(layout, identity)
    except TerminalError:
        return None
    return None if pinned is None else pinned.generation


def unfinished(layout: FlowHome) -> list[Replay]:
    """Return the unfinished replays of the live generation, oldest first."""
    pinned = (_pinned(layout, name) for name in layout.names(layout.replays))
    found = [_as_far(layout, replay) for replay in pinned if replay]
    live = generations.generation(layout)
    left = [replay for replay in found if replay.left and replay.generation == live]
    # which grows with each replay of a generation
    return sorted(left, key=lambda replay: replay.parts[0].batch)


def settle(layout: FlowHome, *, by: str, reached: StepHook = ignore_step) -> int:
    """Complete what a crash left half done beside the target. Return the number of released rows.

    Removes quarantine rows of withdrawals, and what batches remembered, that never committed.
    Releases the rows that `release_intent.release_applied` releases.

    Call it under the lease, before a run and before any decision about rows. Calls `reached` with
    looked, cleaned and released. Raises TerminalError `table-damaged`, `reset-unfinished`,
    `state-damaged`.
    """
    seen = layout.view()
    integrity.refuse(seen)
    withdrawals.clean(seen, reached=reached)
    orphan_memory.forget(seen, [f"replay:{name}" for name in _names(layout)])
    reached("cleaned")
    return release_intent.release_applied(layout, by=by, reached=reached)


def refuse_gone(source: Source, layout: FlowHome, parts: Iterable[Part]) -> None:
    """Refuse to begin if input is gone or changed. Raises as `refuse_missing`."""
    refuse_missing(source, layout, [unit for part in parts for unit in read_of(source, part).units])


def read_of(source: Source, part: Part) -> Slice:
    """Return what a batch of a replay reads: all but what was given up as lost, before the replay
    began or since.
    """
    return replace(part.slice, units=tuple(left_of(source, part.slice.units)))


def refuse_missing(source: Source, layout: FlowHome, units: Sequence[Unit]) -> None:
    """Refuse to read units that are gone or changed. Raises TerminalError `replay-input-gone`,
    which names them.
    """
    if wrong := source.missing(units):
        raise _input_gone(source, layout, units, gone([*wrong], 0, source.unit))


def refuse_changed(source: Source, layout: FlowHome, units: Sequence[Unit]) -> None:
    """Refuse units of a batch that are not as they were pinned, before and after it reads. Raises
    as `refuse_missing`.

    What is missing may have been seen long before: a source whose units have no names of their own
    is asked anew.
    """
    refuse_missing(source, layout, units)
    if source.named is None:
        try:
            source.refuse_changed(units)
        except TerminalError as error:
            raise _input_gone(source, layout, units, error.found) from error


def _input_gone(
    source: Source, layout: FlowHome, units: Sequence[Unit], found: str
) -> TerminalError:
    others = (
        f"--{source.unit} PATH   # name the others"
        if source.named
        else "--from TIME --to TIME   # without it"
    )
    return input_gone(
        "replay-input-gone",
        source,
        tried=f"read {count(len(units), source.unit)} of flow {layout.flow} again",
        found=found,
        without=[f"draindown replay {layout.pipeline}/{layout.flow} {others}"],
    )


def wording(asked: Again, unit: str) -> str:
    """Return the request as a person types it on the command line. `unit`: the source's noun, an
    option's name.
    """
    if asked.units:
        return " ".join(f"--{unit} {shlex.quote(name)}" for name in asked.units)
    return asked.times


def _iso(at: datetime | None) -> str:
    return "?" if at is None else at.astimezone(UTC).isoformat()


def _requester(request: Request) -> str:
    """Return the id of the run, and the start of its plan if it has one: a run that is planned
    again asks anew.
    """
    start = request.start if request.step == "plan" else ""
    with suppress(ValueError):  # a torn report
        if not start and (planned := store.read(request.layout, request.run_id, "plan")):
            start = planned.start
    return f"{request.run_id} {start}".rstrip()


def _identity(
    layout: FlowHome, generation: int, asked: Again, names: list[str], requester: str
) -> str:
    """Return the id of the request: with `again`, the first whose replay is not finished or is of
    `requester`.
    """
    what = {
        "generation": generation,
        "since": _iso(asked.since),
        "until": _iso(asked.until),
        "units": names,
    }
    base = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
    number, identity = 1, base
    while asked.again and (found := _pinned(layout, identity)) and not _as_far(layout, found).left:
        if requester in found.requesters:
            break
        number += 1
        identity = f"{base}-{number}"
    return identity


def _pinned(layout: FlowHome, identity: str) -> Replay | None:
    lost = "the replay's command begins it anew, and applies nothing twice; the file must not come back afterwards"
    return layout.replay(identity).parsed(_replay, without=lost, copied=False)


def _replay(content: dict[str, Any]) -> Replay:
    parts = tuple(Part(part["batch"], _slice(part["units"])) for part in content["parts"])
    return Replay(
        **(
            content
            | {"parts": parts, "requesters": tuple(content.get("requesters", ())), "begun": True}
        )
    )


def _slice(rows: list[dict[str, Any]]) -> Slice:
    times = ("first_seen", "arrived_at")
    (found,) = slices_of(
        row | {name: datetime.fromisoformat(row[name]) for name in times} for row in rows
    )
    return found


def _as_far(layout: FlowHome, replay: Replay) -> Replay:
    newest = layout.tables.target.last(layout.app_id(replay.generation, "rows", replay.kind))
    done = sum(newest is not None and part.batch <= newest for part in replay.parts)
    return Replay(**(vars(replay) | {"done": done}))


def _next_batch(layout: FlowHome, generation: int) -> int:
    """Return a batch number above those of every replay of the generation, finished or not."""
    begun = [_pinned(layout, name) for name in layout.names(layout.replays)]
    used = [
        part.batch
        for replay in begun
        if replay and replay.generation == generation
        for part in replay.parts
    ]
    recorded = ledger_table.last_batch(layout, generation, "replay")
    return max([*used, -1 if recorded is None else recorded]) + 1


def _slices(
    layout: FlowHome, generation: int, asked: Again, names: list[str], unit: str
) -> tuple[list[Slice], int]:
    """Return the requested slices that were read, and the number of requested units that were not
    read yet.
    """
    if names:
        found = list(intake.of_units(layout, generation, names))
        _refuse_unknown(layout, names, found, unit)
    elif asked.since is not None and asked.until is not None:
        found = list(intake.seen_within(layout, generation, asked.since, asked.until))
    else:
        found = []
    first = Checkpoint(layout.checkpoint(generation)).first_unread
    left_out = without(layout, generation)
    done = [some for one in found if one.number < first and (some := one.but(left_out)).units]
    return done, sum(len(one.units) for one in found if one.number >= first)


def _refuse_append(request: Request) -> None:
    if not request.declared.target.kind.idempotent:
        raise TerminalError(
            "replay-would-double",
            tried=f"replay input of flow {request.flow} of pipeline {request.spec.pipeline}",
            found=APPENDS,
            next=f"draindown rebuild {request.spec.pipeline}/{request.flow}   # all input, into a fresh table",
        )


def _refuse_bad_range(request: Request, asked: Again, unit: str) -> None:
    ranged = asked.since is not None and asked.until is not None and asked.since < asked.until
    if bool(asked.units) == ranged or (asked.units and (asked.since or asked.until)):
        raise TerminalError(
            "bad-range",
            tried=f"replay input of flow {request.flow} of pipeline {request.spec.pipeline}",
            found=f"{wording(asked, unit)}: neither {unit}s, nor a time and a later one",
            next=f"draindown replay {request.spec.pipeline}/{request.flow} "
            "--from 2026-01-01T00:00Z --to 2026-01-02T00:00Z",
        )


def _refuse_unknown(layout: FlowHome, names: list[str], found: Sequence[Slice], unit: str) -> None:
    unknown = sorted(name for name in names if not any(one.only([name]).units for one in found))
    if unknown:
        raise TerminalError(
            "not-taken-in",
            tried=f"replay {count(len(names), unit)} of flow {layout.flow}",
            found=f"never taken in: {shown(unknown)}",
            next=f"draindown run {layout.pipeline}/{layout.flow}   # reads new {unit}s",
        )
