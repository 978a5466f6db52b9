"""Rebuilds: a generation reads all input into staged tables of its own, which then replace the live
ones.

    rebuild/NNNNNNNNNN.json         which generation, since when, by whom, under which contract
    generations/NNNN/checkpoint/    its checkpoint, which it keeps
    generations/NNNN/rebuilt/       its tables, and a generation/ under which the engine drains into them

One commit of the live table decides: it contains the rows and the transaction id of the
generation's last batch. Before that commit nothing live changes. After it, `finish` completes the
rest, under whichever driver holds the lease next.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from draindown.base.clock import now
from draindown.base.digests import digest
from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.config.derived import DerivedFlow
from draindown.flow import altered, checkpoint, foreign, generations, owner
from draindown.flow.generations import Card, card
from draindown.lake import directories, storage
from draindown.lake.home import FlowHome
from draindown.ledger import table as ledger_table
from draindown.recovery import spec_changes
from draindown.recovery.foreign_undone import Undone, refuse_undone, undone
from draindown.recovery.input_gone import NO_ROWS, input_gone, nothing_to_rebuild, regained
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.batch_size import bound_now
from draindown.sources.port import Source, given_up, left_of, missing_anew
from draindown.sources.registry import source_of
from draindown.sources.slices import FIRST, Slice

State = Literal["new", "begun", "swapped"]


@dataclass(frozen=True)
class Rebuild:
    """A rebuild in progress.

    `contract`: hash of everything that determines what its batches make of the input; empty if lost
    or being aborted. `foreign`: version and commit time of each commit of others that the live
    table had when the rebuild began or continued, and that it may undo.
    """

    generation: int
    previous: int
    at: str
    by: str
    contract: str
    foreign: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class RebuildPlan:
    """What a rebuild would read and change. Sizes are bytes; `table_bytes` is the size of the live
    table.

    `state`: `new`; `begun` (the same command continues it; units and slices are the remaining
    ones); or `swapped` (only the steps after the swap remain). `unit`: noun of the source's units.
    `missing`: units that are gone or changed at the source, or that the generation would not read.
    `first`: commands after which less is missing. `forgotten`: number of further units that were
    read once and are no longer in the intake. `changes`: differences from the live table, in words.
    `foreign`, `foreign_rows`, `foreign_deleted`: see `Undone`.
    """

    pipeline: str
    flow: str
    keyed: bool
    previous: int
    generation: int
    state: State
    slices: int
    unit: str
    units: int
    bytes: int
    missing: tuple[str, ...]
    forgotten: int
    table_bytes: int
    free_bytes: int
    changes: tuple[str, ...]
    first: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    foreign_rows: int | None = 0
    foreign_deleted: int | None = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a flat, JSON-ready dict."""
        return asdict(self)


def unfinished(layout: FlowHome) -> Rebuild | None:
    """Return the rebuild in progress, or None. Raises TerminalError `rebuild-damaged`."""
    try:
        content = layout.rebuild.read()
        if content is None:
            return None
        return Rebuild(
            **{
                **content,
                "foreign": tuple((int(v), int(at)) for v, at in content["foreign"]),
            }
        )
    except (ValueError, TypeError, LookupError):
        return _as_staged(layout)


def _as_staged(layout: FlowHome) -> Rebuild | None:
    """Reconstruct the rebuild in progress from its staging directory when its note is torn.

    Return None if nothing is staged. Raises TerminalError `rebuild-damaged` if it is swapped and
    its card is torn, too.
    """
    layout = layout.live
    over = generations.cards(layout)  # a finished rebuild leaves its table's log behind
    for number in checkpoint.directories(layout):
        staged = layout.beside(number)
        if str(number) in over or not directories.exists(staged.staging):
            continue
        begun = Rebuild(number, generations.generation_if_told(layout) or 0, "?", "?", contract="")
        with suppress(TypeError, AttributeError):
            own = card(staged, number)
            if own is not None and own.previous is not None:
                return replace(begun, previous=own.previous, at=own.at, by=own.by)
        if not is_swapped(layout, begun):
            return begun
        if staged.generation.exists:
            raise TerminalError(
                "rebuild-damaged",
                tried=f"finish the rebuild of generation {number} of flow {layout.flow}",
                found=f"it is in the table's place, and {layout.rebuild.path} and {staged.generation.path} "
                "are both torn",
                next=f"restore {staged.generation.path} from a copy, or write it anew as docs/runbook.md has it",
            )
    return None


def is_swapped(layout: FlowHome, begun: Rebuild) -> bool:
    """Return whether the rebuilt table has replaced the live one. False if the table is
    unreadable.
    """
    table = layout.tables.target
    return table.damage is None and table.last(layout.app_id(begun.generation, "rows")) is not None


def refuse_half_swapped(layout: FlowHome, tried: str) -> None:
    """Refuse to run between a swap and the steps that follow it. Raises TerminalError
    `rebuild-unfinished`.
    """
    begun = unfinished(layout)
    if begun is not None and is_swapped(layout, begun):
        raise TerminalError(
            "rebuild-unfinished",
            tried=tried,
            found=f"the rebuilt generation {begun.generation} is in the table's place, a crash came before its ledger, "
            "quarantine and tombstones were",
            next=f"draindown run {layout.pipeline}/{layout.flow}   # finishes it",
        )


def refuse_begun(layout: FlowHome, tried: str) -> None:
    """Refuse a withdrawal, or a release of withdrawn rows, while a rebuild is unfinished.

    What it has read already was decided without that, and takes the table's place. Raises
    TerminalError `rebuild-unfinished`.
    """
    begun = unfinished(layout)
    if begun is not None:
        again = f"draindown rebuild {layout.pipeline}/{layout.flow}"
        raise TerminalError(
            "rebuild-unfinished",
            tried=tried,
            found=f"a rebuild was begun, generation {begun.generation}, and each slice that it has read goes by "
            "the rows that were withdrawn then",
            changed="nothing",
            next=[f"{again} --yes   # finishes it", f"{again} --abort --yes   # gives it up"],
        )


def plan(request: Request) -> RebuildPlan:
    """Return what a rebuild would do now, or what remains of one in progress. Read-only.

    Raises TerminalError `table-of-another-flow`, `nothing-to-rebuild`, `rebuild-overtaken`,
    `rebuild-other-contract`, `rebuild-damaged`, `generation-damaged`, and as `Source.missing_anew`.
    """
    layout = request.layout
    owner.refuse_other(layout)
    altered.refuse_append_only(layout)
    live, begun = generations.generation(layout), unfinished(layout)
    known, before = intake.count_units(layout, live), ledger_table.units_read(layout)
    if not known and not before:
        run = f"draindown run {layout.pipeline}/{layout.flow}"
        raise nothing_to_rebuild(layout, "it never drained anything", [run])
    state: State = "new" if begun is None else "swapped" if is_swapped(layout, begun) else "begun"
    if begun is not None and state == "begun":
        _refuse_overtaken(layout, begun, live)
        _refuse_other_contract(request, begun)
    source, fills = source_of(request), request.declared.source.begins_with_fill
    generation = generations.next_number(layout, live) if begun is None else begun.generation
    left = [] if fills or begun else _read_by(layout, live, 0, given_up(source))
    left = _left(source, layout, begun) if begun and state == "begun" else left
    new = source.look(layout, generation, FIRST, now()) if fills and begun is None else None
    if new is not None and not new.units:
        told = [f"{one.subject} {one.detail}" for one in new.findings]
        raise nothing_to_rebuild(layout, "; ".join(told), [one.next for one in new.findings])
    units = left_of(source, [unit for one in left for unit in one.units])
    lacking = source.missing(units) if begun else missing_anew(source, units, live, generation)
    return RebuildPlan(
        pipeline=layout.pipeline,
        flow=layout.flow,
        keyed=request.declared.target.kind.keyed,
        previous=live if begun is None else begun.previous,
        generation=generation,
        state=state,
        slices=new.forecast(bound_now(layout, request.declared.source)).slices
        if new
        else len(left),
        unit=source.unit,
        units=new.units if new else sum(len(one.units) for one in left),
        bytes=new.bytes if new else sum(one.bytes for one in left),
        missing=tuple(lacking),
        forgotten=max(0, before - known) if state == "new" and not fills else 0,
        table_bytes=layout.tables.target.size,
        free_bytes=storage.free_bytes(layout.home),
        changes=tuple(spec_changes.changes(request)) if state != "swapped" else (),
        first=() if begun else regained(source, lacking),
        **asdict(undone(layout, request.declared) if state != "swapped" else Undone()),
    )


def _left(source: Source, layout: FlowHome, begun: Rebuild) -> list[Slice]:
    """Return what the generation has not read and nobody agreed to leave out."""
    staged, number = layout.beside(begun.generation), begun.generation
    left_out = generations.without(staged, number) | given_up(source)
    return _read_by(layout, number, generations.first_unread(staged, number), left_out)


def _read_by(
    layout: FlowHome, generation: int, first: int, left_out: frozenset[str]
) -> list[Slice]:
    return [
        some
        for one in intake.slices(layout, generation, first)
        if (some := one.but(left_out)).units
    ]


def _refuse_overtaken(layout: FlowHome, begun: Rebuild, live: int) -> None:
    if begun.previous != live:
        raise TerminalError(
            "rebuild-overtaken",
            tried=f"go on with the rebuild of generation {begun.generation} of flow {layout.flow}",
            found=f"it was begun beside generation {begun.previous}, and a reset made generation {live} the live one",
            next=f"draindown rebuild {layout.pipeline}/{layout.flow} --abort --yes",
        )


def _refuse_other_contract(request: Request, begun: Rebuild) -> None:
    if not begun.contract:
        raise damaged_staging(
            request.layout, begun.generation, "its note is torn, or an abort was cut short"
        )
    if begun.contract != _contract(request):
        raise TerminalError(
            "rebuild-other-contract",
            tried=f"go on with the rebuild of generation {begun.generation} of flow {request.flow}",
            found=f"the flow, a file of jobs/transforms/ or draindown was changed since it was begun ({begun.at}): its "
            "first batches would have been read by other rules than its last",
            next=[
                "put the flow and the transforms back as they were, then try again",
                f"draindown rebuild {request.spec.pipeline}/{request.flow} --abort --yes   # then begin anew",
            ],
        )


def _contract(request: Request) -> str:
    """Return a digest of the spec's row-related settings and the code of all transforms, which may
    import each other.
    """
    flow = request.declared
    home = Path(request.root) / "jobs" / "transforms"
    files = sorted(home.rglob("*.py")) if flow.transform else []
    code = {
        str(file.relative_to(home)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }
    return digest({**flow.meaning(), "code": code})


def refuse_incomplete(request: Request, found: RebuildPlan) -> None:
    """Raise TerminalError `rebuild-input-gone` if the input is no longer complete."""
    if not (found.missing or found.forgotten):
        return
    source, rebuild = source_of(request), f"draindown rebuild {found.pipeline}/{found.flow}"
    without = [*found.first] or [f"{rebuild} --accept-missing --yes   # {NO_ROWS}"]
    if request.layout.own_intakes and found.state == "begun":  # it has pinned what is gone
        left_out = (
            f"{source.leaving_out(found.missing)}   # then the same rebuild goes on without it"
        )
        without = [
            left_out,
            f"{rebuild} --abort --yes   # throws away what it has read; the live table stays",
        ]
    raise input_gone(
        "rebuild-input-gone",
        source,
        tried=f"read {count(found.units, found.unit)} of flow {found.flow} into a fresh table",
        found=generations.gone(found.missing, found.forgotten, found.unit),
        without=without,
    )


def begin(
    request: Request, *, by: str, accept_missing: bool, drop_foreign: bool = False, epoch: int = 0
) -> Rebuild:
    """Begin a rebuild, or continue the one in progress. Call it under the lease. Idempotent.

    `epoch`: that of the lease.

    Raises TerminalError like `plan`, `rebuild-input-gone` if input is missing and `accept_missing`
    is false, and `rebuild-drops-rows` if the table has changes of others and `drop_foreign` is
    false.
    """
    layout, found = request.layout.held(epoch), plan(request)
    if not accept_missing:
        refuse_incomplete(request, found)
    if not drop_foreign:
        refuse_undone(layout, found.foreign)
    begun, at, seen = unfinished(layout), now().isoformat(timespec="seconds"), _foreign_of(layout)
    if begun is None:
        begun = Rebuild(found.generation, found.previous, at, by, _contract(request), seen)
        # before a later generation gets a directory: else the live one would be ambiguous
        generations.name_live(layout, found.previous)
        layout.rebuild.write(asdict(begun))
    elif begun.foreign != seen:
        begun = replace(begun, foreign=seen)
        layout.rebuild.write(asdict(begun))
    staged = layout.beside(begun.generation)
    own = card(staged, begun.generation) or Card(
        begun.generation, begun.previous, at, by, rebuilt=True
    )
    # an intake of its own holds only what is there
    missing = () if layout.own_intakes else found.missing
    # given up before it began, or since: `discard_input` refuses what it has read
    own = replace(
        own, without=tuple(sorted({*own.without, *missing, *given_up(source_of(request))}))
    )
    generations.begin_staged(staged, own)
    return begun


def refuse_later_foreign(request: Request, begun: Rebuild) -> None:
    """Refuse to replace a table that got row changes of others since the rebuild began or
    continued.

    Raises TerminalError `rebuild-drops-rows`. The staged rows stay, and the same command continues.
    Rows of a derived flow follow from its sources.
    """
    layout = request.layout
    if isinstance(request.declared, DerivedFlow):
        return
    later = [one for one in foreign.in_table(layout).commits if one.mark not in begun.foreign]
    refuse_undone(layout, tuple(f"{one}; committed while the rebuild ran" for one in later))


def _foreign_of(layout: FlowHome) -> tuple[tuple[int, int], ...]:
    return tuple(one.mark for one in foreign.in_table(layout).commits)


def damaged_staging(layout: FlowHome, generation: int, found: str) -> TerminalError:
    """Return the error `rebuild-damaged` for a staged generation; `found` describes the damage."""
    return TerminalError(
        "rebuild-damaged",
        tried=f"go on with the rebuild of generation {generation} of flow {layout.flow}",
        found=found,
        changed="the live table and all that belongs to it are as they were",
        next=f"draindown rebuild {layout.pipeline}/{layout.flow} --abort --yes   # then begin anew",
    )


def give_up(layout: FlowHome, begun: Rebuild) -> None:
    """Mark a rebuild as aborted. No later command resumes it or swaps it in, however much of it is
    still there.
    """
    layout.rebuild.write(asdict(replace(begun, contract="")))


def forget_given_up(layout: FlowHome) -> None:
    """Remove the note of a rebuild that was given up, once nothing of it is left. Call it under the
    lease.
    """
    layout.rebuild.delete()


def forget(layout: FlowHome, begun: Rebuild) -> None:
    """Remove the note of a finished rebuild, unless a later rebuild has begun. Call it under the
    lease.
    """
    if unfinished(layout) in (begun, None):  # None: the file is torn and the staging area is gone
        layout.rebuild.delete()
