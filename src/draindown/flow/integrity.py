"""Tables of a flow whose newest commits are empty, torn or gone, as a power cut leaves them, and the way out.

An empty commit reads as one that did nothing: intake, tombstones and quarantine would forget without a word.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from draindown.base.errors import TerminalError
from draindown.flow import generations
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog, log_of
from draindown.lake.transactions import app_id
from draindown.ledger import table as ledger_table

SideTable = Literal["tombstones", "quarantine"]


def damaged(layout: FlowLayout) -> dict[str, str]:
    """The flow's tables that can't be read whole: path, and in words what is wrong."""
    found = {path: words for path in _tables(layout) if (words := log_of(layout, path).damage)}
    generation = generations.generation_if_told(layout)
    if generation is not None and layout.ledger not in found and log_of(layout, layout.ledger).exists:
        for path, purpose in _side_tables(layout, generation):
            words = None if path in found else _behind(layout, path, generation, purpose)
            found |= {path: f"{words} of generation {generation}"} if words else {}
    return found


def _side_tables(layout: FlowLayout, generation: int) -> list[tuple[str, SideTable]]:
    """The side tables that the ledger tells of, by path. A later generation refuses most rows again."""
    tombstones: tuple[str, SideTable] = (layout.tombstones, "tombstones")
    return [tombstones] if generation > 1 else [tombstones, (layout.quarantine, "quarantine")]


def _behind(layout: FlowLayout, path: str, generation: int, purpose: SideTable) -> str | None:
    """Whether a side table lacks the newest batch that the ledger counts rows of; doctor says if it is gone."""
    last = ledger_table.last_with(layout, generation, "deletes" if purpose == "tombstones" else "refused")
    table = log_of(layout, path)
    newest = table.last(app_id(layout, generation, purpose))
    if last is None or not table.exists or (newest is not None and newest >= last):
        return None
    return f"the ledger counts rows of batch {last}, it {'knows none' if newest is None else f'ends at batch {newest}'}"


def refuse(layout: FlowLayout) -> None:
    """Refuse to work on tables that forgot something. Raises TerminalError `table-damaged`, `reset-unfinished`."""
    _refuse_half_a_reset(layout)
    found = damaged(layout)
    if found:
        raise TerminalError(
            "table-damaged",
            tried=f"read the tables of flow {layout.flow} of pipeline {layout.pipeline}",
            found="; ".join(f"{path}: {words}" for path, words in found.items()),
            next=[
                f"draindown reset {layout.pipeline} --flow {layout.flow}   # puts them aside and reads all input again",
                f"restore {' and '.join(found)} from a copy, as a whole",
            ],
        )


def _refuse_half_a_reset(layout: FlowLayout) -> None:
    """A reset puts tables aside before it names its generation: the one before would go on without what they knew."""
    live = generations.generation_if_told(layout)
    gone = [] if live is None else missed(layout, live)
    if gone:
        raise TerminalError(
            "reset-unfinished",
            tried=f"go on with generation {live} of flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"a reset that did not end put aside what it worked with: {', '.join(gone)}",
            next=[
                f"draindown reset {layout.pipeline} --flow {layout.flow}",
                f"restore {' and '.join(gone)} from a copy, as a whole",
            ],
        )


def missed(layout: FlowLayout, generation: int) -> list[str]:
    """The tables that a generation worked with, that a reset put aside for a later one, and that nobody put back."""
    aside = {path: put_aside_last(layout, path) for path in _tables(layout)}
    return [path for path, began in aside.items() if began > generation and not _is_back(layout, began, path)]


def _is_back(layout: FlowLayout, generation: int, path: str) -> bool:
    """Whether a copy of the table that was put aside is in its place again: by its id, as far as that can be told."""
    table = log_of(layout, path)
    if not table.is_whole:
        return False
    with suppress(Exception):  # deltalake raises what it likes for a torn log; its oldest version may tell even so
        return table.id == TableLog(str(_aside(layout, generation, path)), version=0).id
    return False


def put_aside(layout: FlowLayout, generation: int, *, target: bool = False) -> list[str]:
    """Move damaged tables out of the way of a new generation, as a whole; returns where they are now.

    `target`: that one too, whether damaged or not.
    """
    moved, whole = [], [layout.table] if target and log_of(layout, layout.table).exists else []
    for path in dict.fromkeys([*damaged(layout), *whole]):
        aside = _aside(layout, generation, path)
        aside.parent.mkdir(parents=True, exist_ok=True)
        Path(path).rename(aside)
        moved.append(str(aside))
    return moved


def put_aside_last(layout: FlowLayout, path: str) -> int:
    """The newest generation that began without a table, because its reset put it aside; 0 if none did."""
    known = Path(layout.aside(0)).parent.glob("[0-9]*")
    return max((int(one.name) for one in known if _aside(layout, int(one.name), path).exists()), default=0)


def _aside(layout: FlowLayout, generation: int, path: str) -> Path:
    return Path(layout.aside(generation)) / Path(path).parent.name / Path(path).name


def _tables(layout: FlowLayout) -> tuple[str, ...]:
    """The flow's tables. A batch writes them from the last to the first: read in this order, none seems to lack what
    another tells of it while a drain is at work.
    """
    everyone = (layout.ledger, layout.table, layout.tombstones, layout.quarantine)
    return (*everyone, layout.intake, layout.parked, layout.resolutions)
