"""The Delta tables of one flow: the only list of them.

Whoever has to treat all of a flow's tables (damage, fences, compaction, rights, a drill's
isolation) takes them from here, so that a new table needs one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draindown.lake.home import FlowHome

if TYPE_CHECKING:
    from draindown.lake.table import Table


@dataclass(frozen=True)
class FlowTable:
    """One Delta table of a flow.

    Attributes:
        name: the table's name in reports and in the documentation.
        table: the table itself.
        holds: its rows, in a few words.
        keys: the columns that identify a row; empty if nothing does.
        restored: how its rows come back after the table is lost.
        writes: the purpose in the transaction ids of a batch's writes, which a fence repeats; None
            if the table needs no fence.
        compacted: whether the compact step rewrites small files and removes old ones.
    """

    name: str
    table: Table
    holds: str
    keys: tuple[str, ...]
    restored: str
    writes: str | None = None
    compacted: bool = False

    @property
    def path(self) -> str:
        """Where the table is."""
        return self.table.path


# Why some tables need no fence: a straggler of a driver that lost its lease does them no harm.
# Intake: the slice's number is the version of the transaction, and two writers of one version can't
# both commit. Ledger: a row is written after the target's commit, which the target's fence
# prevents. Inputs: a slice is pinned, so a straggler writes the same rows; the batch's next attempt
# replaces what differs. Parked files and decisions are events, of which the newest counts.


def flow_tables(layout: FlowHome, generation: int) -> tuple[FlowTable, ...]:
    """Return the flow's tables in the order in which they are written: what a row refers to comes
    before it.

    `generation` selects the intake. Tables that do not exist are included.
    """
    return (*_decisions(layout), *_pinned(layout, generation), *_of_batches(layout))


def _decisions(layout: FlowHome) -> Iterator[FlowTable]:
    asked = "from a copy: people made them"
    late_keys = ("number", "late_id", "source_table", "input", "position")
    yield FlowTable(
        "late decisions",
        layout.tables.late_decisions,
        "decisions about late rows",
        late_keys,
        asked,
    )
    yield FlowTable(
        "resolutions",
        layout.tables.resolutions,
        "decisions about quarantined rows",
        ("quarantine_id", "at"),
        asked,
    )


def _pinned(layout: FlowHome, generation: int) -> Iterator[FlowTable]:
    yield FlowTable(
        "parked",
        layout.tables.parked,
        "events about files that can't be read",
        ("path", "at"),
        "by the next look",
    )
    yield FlowTable(
        "intake",
        layout.tables.intake(generation),
        "pinned input, one commit per slice",
        (),
        _RESET,
    )


def _of_batches(layout: FlowHome) -> Iterator[FlowTable]:
    """Yield the tables that a batch writes, in its order."""
    held, place = ("part", "input", "log", "position", "from"), ("generation", "kind", "batch")
    yield _written(
        "raw",
        layout.tables.raw,
        "records as the source had them",
        held,
        "from the source, what it still has",
    )
    yield FlowTable(
        "inputs",
        layout.tables.inputs,
        "what each batch read",
        (*place, "input", "from"),
        _RESET,
        compacted=True,
    )
    yield _written(
        "late",
        layout.tables.late,
        "rows that came too late",
        ("late_id", "generation", "slice"),
        _RESET,
    )
    yield _written(
        "quarantine",
        layout.tables.quarantine,
        "refused and withdrawn rows",
        ("quarantine_id",),
        _RESET,
    )
    yield _written("tombstones", layout.tables.tombstones, "deleted keys", (), _RESET)
    yield _written(
        "hidden events",
        layout.tables.hidden,
        "events that no row of a history holds whole",
        (),
        _RESET,
        purpose="hidden",
    )
    yield _written(
        "state",
        layout.tables.snapshots,
        "states of a processor's fold",
        (),
        "by the next run of each key",
        purpose="snapshots",
    )
    if layout.has_sinks:
        keys = ("sink", "generation", "kind", "batch", "key")
        again = "by `sink resync`, which finds them again"
        yield _written(
            "unsendable", layout.tables.unsendable, "rows that a sink can't hold", keys, again
        )
    yield _written("table", layout.tables.target, "the target", (), _RESET, purpose="rows")
    yield FlowTable(
        "ledger",
        layout.tables.ledger,
        "one row per batch",
        place,
        "from the target's commits",
        compacted=True,
    )


_RESET = "by reset, which reads all input again"


def _written(
    name: str,
    table: Table,
    holds: str,
    keys: tuple[str, ...],
    restored: str,
    *,
    purpose: str | None = None,
) -> FlowTable:
    """Return a table that batches write under a transaction id of their own, and that is
    compacted.
    """
    return FlowTable(name, table, holds, keys, restored, purpose or name, compacted=True)
