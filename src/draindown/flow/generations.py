"""Generations: the lives of a flow's checkpoints. A reset starts the next one; an undo returns to
the previous one.

The document `generation` names the live generation and keeps a card for each generation that a
reset or a rebuild began. Only this module writes it, for the holder of the lease: a function that
writes raises TransientError `lease-lost` if a later holder did. Beginning a generation writes it as
the last step.

A new generation reads its intake from the first slice, under transaction ids that are new to the
target. Otherwise Delta would skip its batches as already committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.base.formatting import count, printable
from draindown.flow import checkpoint
from draindown.flow.checkpoint import Checkpoint, _restore, newest_directory
from draindown.lake.home import FlowHome
from draindown.lake.torn import UNREAD
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import WITHDRAW
from draindown.sources.slices import unread_after


def generation_if_told(layout: FlowHome) -> int | None:
    """Return the live generation; None if the document is damaged. Raises TerminalError
    `format-unknown`.
    """
    try:
        return generation(layout)
    except TerminalError as error:
        if error.code != "generation-damaged":
            raise
        return None


def generation(layout: FlowHome) -> int:
    """Return the live generation; 1 if no document says it.

    Raises TerminalError `generation-damaged` if the document is damaged, `format-unknown` if it has
    another format.
    """
    try:
        content = layout.generation.read()
        number = 1 if content is None else int(content["generation"])
    except (ValueError, KeyError, TypeError):
        raise _generation_error(layout, "it can't be read") from None
    if content is None and newest_directory(layout) > 1:
        raise _generation_error(
            layout, f"it is missing, yet generation {newest_directory(layout)} has a checkpoint"
        )
    return number


def refuse_lost(layout: FlowHome, generation: int, app_known: int | None) -> None:
    """Refuse a missing checkpoint if target or ledger already have batches of this generation.

    `app_known` is the newest batch of the generation in the target or the ledger. A new checkpoint
    would count from 0 again, and Delta would skip the new batches as already committed. Raises
    TerminalError `checkpoint-missing`.
    """
    checkpoint = Checkpoint(layout.checkpoint(generation))
    if app_known is None or checkpoint.last_offset is not None:
        return
    raise TerminalError(
        "checkpoint-missing",
        tried=f"resume generation {generation} of flow {layout.flow} of pipeline {layout.pipeline}",
        found=f"{checkpoint.path} is {'empty' if checkpoint.exists else 'gone'}, "
        f"yet batches up to {app_known} are in the table",
        next=_restore(checkpoint.path),
    )


def _generation_error(layout: FlowHome, found: str) -> TerminalError:
    return TerminalError(
        "generation-damaged",
        tried=f"find the live generation of flow {layout.flow} of pipeline {layout.pipeline}",
        found=f"{layout.generation.path}: {found}",
        next=[
            f"draindown reset {layout.pipeline}/{layout.flow}",
            f"restore {layout.generation.path} from a copy",
        ],
    )


_SHOWN = 5


@dataclass(frozen=True)
class Card:
    """How a generation began.

    `without`: units of the intake that the generation leaves out because they are gone, changed, or
    given up. `rebuilt`: the generation was read into a table of its own, which then replaced the
    live one.

    The first generation gets a card only when someone gives up a unit that it pinned and did not
    read.
    """

    generation: int
    previous: int | None
    at: str
    by: str
    without: tuple[str, ...] = ()
    rebuilt: bool = False


def card(layout: FlowHome, generation: int) -> Card | None:
    """Return the card of a generation; None if it has none, as the first one that no reset
    began.
    """
    found = cards(layout).get(str(generation))
    return None if found is None else Card(**(found | {"without": tuple(found.get("without", ()))}))


def without(layout: FlowHome, generation: int) -> frozenset[str]:
    """Return units that a generation leaves out: accepted as missing when it began, or given up
    before being read.
    """
    found = card(layout, generation)
    return frozenset(found.without if found else ())


def gone(missing: Sequence[str], forgotten: int, unit: str) -> str:
    """Describe in words which input can't be read again. `unit`: the source's noun."""
    lost = [f"{count(len(missing), unit)} gone or changed at the source: {shown(missing)}"] * bool(
        missing
    )
    lost += [f"no longer in the intake: {count(forgotten, unit)} that a run has read"] * bool(
        forgotten
    )
    return "; ".join(lost)


def shown(names: Iterable[str]) -> str:
    """Return the first few of many names, escaped for printing, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - _SHOWN:,} more" if len(every) > _SHOWN else ""
    return ", ".join(printable(name) for name in every[:_SHOWN]) + more


def cards(layout: FlowHome) -> dict[str, dict[str, Any]]:
    """Return all cards by generation number; none if the document is unreadable."""
    try:
        content = layout.generation.read()
    except ValueError:
        return {}
    found = None if content is None else content.get("cards")
    return dict(found) if isinstance(found, dict) else {}


def make_live(layout: FlowHome, own: Card) -> None:
    """Make a new generation the live one and store its card. Call it under the lease, as a reset's
    last step.
    """
    _write(layout, own.generation, own)


def go_back_to(
    layout: FlowHome, previous: int, *, without: Collection[str] = (), by: str = ""
) -> None:
    """Make an earlier generation the live one again, which from now on leaves out the units
    `without`.

    Cards are kept so that no number is used twice.
    """
    _write(layout, previous, _leaving(layout, previous, without, by, now()) if without else None)


def name_live(layout: FlowHome, live: int) -> None:
    """Write down which generation is live, even the first, before a later generation gets a
    directory beside it.
    """
    _write(layout, live)


def begin_staged(staged: FlowHome, own: Card) -> None:
    """Write the document under which the tables of `staged`, a rebuild's layout, are
    drained.
    """
    staged.generation.write(
        {"generation": own.generation, "cards": {str(own.generation): asdict(own)}},
    )


def take_place(staged: FlowHome) -> None:
    """Make a rebuild's generation the live one, with its card from the staging area."""
    live, number = staged.live, staged.staged
    live.generation.write({"generation": number, "cards": cards(live) | cards(staged)})


def leave_out(layout: FlowHome, units: Iterable[str], *, by: str, at: datetime) -> None:
    """Add units that the live generation pinned and did not read to those that it leaves out."""
    number = generation(layout)
    _write(layout, number, _leaving(layout, number, units, by, at))


def _leaving(layout: FlowHome, number: int, units: Iterable[str], by: str, at: datetime) -> Card:
    """Return the card of a generation that leaves out units, too."""
    own = card(layout, number) or Card(number, None, at.isoformat(timespec="seconds"), by)
    return replace(own, without=tuple(sorted({*own.without, *units})))


def left_out(layout: FlowHome) -> dict[int, frozenset[str]]:
    """Return the units that each generation leaves out, by number. Only generations with a card are
    included.
    """
    return {
        int(number): frozenset(one.get("without") or ()) for number, one in cards(layout).items()
    }


def _write(layout: FlowHome, live: int, own: Card | None = None) -> None:
    changed = {} if own is None else {str(own.generation): asdict(own)}
    layout.generation.write({"generation": live, "cards": cards(layout) | changed})


def next_number(layout: FlowHome, live: int | None) -> int:
    """Return the first generation number that was never used."""
    begun = [
        live or 0,
        checkpoint.newest_directory(layout),
        newest_in_ledger(layout),
        *map(int, cards(layout)),
    ]
    number = max(begun) + 1
    while knows(layout, number):
        number += 1
    return number


def newest_in_ledger(layout: FlowHome) -> int:
    """Return the newest generation in the ledger; 0 if the ledger has no batch or is unreadable."""
    with suppress(*UNREAD):
        return ledger_table.newest_generation(layout) if layout.tables.ledger.is_whole else 0
    return 0


def knows(layout: FlowHome, generation: int) -> bool:
    """Return whether the target holds a batch of the generation: from the source, the quarantine,
    or the gate.
    """
    table = layout.tables.target
    apps = (layout.app_id(generation, "rows", kind) for kind in ("drain", "release", WITHDRAW))
    return table.is_whole and any(table.last(app) is not None for app in apps)


def first_unread(layout: FlowHome, generation: int) -> int:
    """Return the first slice that no batch of the generation has read.

    The table's batches count even if the checkpoint lacks their commit after a crash.
    """
    newest = layout.tables.target.last(layout.app_id(generation, "rows"))
    return max(Checkpoint(layout.checkpoint(generation)).first_unread, unread_after(newest))
