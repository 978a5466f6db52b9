"""Tables of a flow whose newest commits are empty, torn or gone, as a power cut leaves them, and the way out.

An empty commit reads as one that did nothing: intake, tombstones and quarantine would forget without a word.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from draindown.base.errors import TerminalError
from draindown.flow import generations
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.lake.transactions import app_id


def damaged(layout: FlowLayout) -> dict[str, str]:
    """The flow's tables that can't be read whole: path, and in words what is wrong."""
    found = {path: words for path in _tables(layout) if (words := delta.damage(path))}
    generation = generations.generation_if_told(layout)
    if generation is not None and layout.ledger not in found and delta.exists(layout.ledger):
        for path, purpose, counted in _side_tables(layout, generation):
            words = None if path in found else _behind(layout, path, app_id(layout, generation, purpose), counted)
            found |= {path: f"{words} of generation {generation}"} if words else {}
    return found


def _side_tables(layout: FlowLayout, generation: int) -> list[tuple[str, str, str]]:
    """Path, purpose, and where the ledger counts a batch's rows there. A later generation refuses most rows again."""
    tombstones = (layout.tombstones, "tombstones", f"generation = {generation} and deleted + remembered > 0")
    quarantine = (layout.quarantine, "quarantine", f"generation = {generation} and quarantined > 0")
    return [tombstones] if generation > 1 else [tombstones, quarantine]


def _behind(layout: FlowLayout, path: str, app: str, counted: str) -> str | None:
    """Whether a side table lacks the newest batch that the ledger counts rows of; doctor says if it is gone."""
    sql = f"select max(batch) as batch from t where kind = 'source' and {counted}"
    last = delta.query(layout.ledger, sql).to_pylist()[0]["batch"]
    newest = delta.transaction_version(path, app)
    if last is None or not delta.exists(path) or (newest is not None and newest >= last):
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
                f"or restore {' and '.join(found)} from a copy, as a whole",
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
                f"or restore {' and '.join(gone)} from a copy, as a whole",
            ],
        )


def missed(layout: FlowLayout, generation: int) -> list[str]:
    """The tables that a generation worked with, that a reset put aside for a later one, and that nobody put back."""
    aside = {path: put_aside_last(layout, path) for path in _tables(layout)}
    return [path for path, began in aside.items() if began > generation and not _is_back(layout, began, path)]


def _is_back(layout: FlowLayout, generation: int, path: str) -> bool:
    """Whether a copy of the table that was put aside is in its place again: by its id, as far as that can be told."""
    if delta.damage(path) or not delta.exists(path):
        return False
    with suppress(Exception):  # deltalake raises what it likes for a torn log; its oldest version may tell even so
        return delta.table_id(path) == delta.table_id(str(_aside(layout, generation, path)), version=0)
    return False


def put_aside(layout: FlowLayout, generation: int, *, target: bool = False) -> list[str]:
    """Move damaged tables out of the way of a new generation, as a whole; returns where they are now.

    `target`: that one too, whether damaged or not.
    """
    moved, whole = [], [layout.table] if target and delta.exists(layout.table) else []
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
    everyone = (layout.table, layout.tombstones, layout.quarantine, layout.ledger)
    return (*everyone, layout.intake, layout.parked, layout.resolutions)
