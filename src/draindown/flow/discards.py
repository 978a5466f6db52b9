"""Discard input and quarantined rows of a generation: by a person's decision, or because their batch
never finished.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.flow import generations, integrity
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.lake.table import literal
from draindown.ledger import table as ledger_table
from draindown.sources import intake
from draindown.sources.intake import Origin
from draindown.sources.port import Source


def discard_input(
    source: Source,
    layout: FlowHome,
    units: Iterable[str],
    *,
    by: str,
    note: str,
    at: datetime,
    reading: Mapping[int, int] | None = None,
) -> None:
    """Give up units for good: those that the source keeps out, and those that no batch of the live
    generation has read.

    `reading`: the first slice that no batch has read, of the live generation and of that of a
    rebuild in progress; by default of the live one alone. What the rebuild has read is refused: it
    would bring the rows. What it has not read it leaves out once it goes on.

    Call it under the lease. Idempotent. Raises TerminalError `not-parked` before it changes
    anything.
    """
    wanted, live = list(dict.fromkeys(units)), generations.generation(layout)
    if source.named is None:
        raise _read_in_order(source, layout, wanted)
    left = unread(layout, live, wanted)
    for number, until in (reading or {}).items():
        if number != live and (read := sorted(_among(layout, number, left, range(until)))):
            raise TerminalError(
                "not-parked",
                tried=f"discard {count(len(wanted), source.unit)} of flow {layout.flow} of pipeline {layout.pipeline}",
                found=f"a rebuild that was begun has read {generations.shown(read)}: its table would have the rows",
                changed="nothing",
                next=f"draindown rebuild {layout.pipeline}/{layout.flow} --abort --yes   # then discard again",
            )
    source.named.give_up(wanted, left, by=by, note=note, at=at)
    if left:
        generations.leave_out(layout, left, by=by, at=at)


def _read_in_order(source: Source, layout: FlowHome, wanted: Sequence[str]) -> TerminalError:
    return TerminalError(
        "not-parked",
        tried=f"discard {', '.join(wanted)}",
        found=f"flow {layout.flow} reads its {source.unit}s in order: none is parked, and none can be left out",
        changed="nothing",
        next=f"draindown quarantine list {layout.pipeline}/{layout.flow}   # quarantined records",
    )


_END = 2**63  # a slice that never comes


def unread(layout: FlowHome, generation: int, names: Collection[str]) -> set[str]:
    """Return those of `names` that slices hold which the generation has not read."""
    return _among(
        layout, generation, names, range(generations.first_unread(layout, generation), _END)
    )


def _among(layout: FlowHome, generation: int, names: Collection[str], slices: range) -> set[str]:
    """Return those of `names` that one of these slices holds."""
    held = [one for one in intake.of_units(layout, generation, list(names)) if one.number in slices]
    return {name for name in names if any(one.only([name]).units for one in held)}


def not_read(layout: FlowHome, generation: int, records: Mapping[str, Origin]) -> set[Origin]:
    """Return the origins of records in slices that the generation has not read yet. `records`: as
    of `intake.find`.
    """
    first = generations.first_unread(layout, generation)
    return {
        records[id]
        for id, number in intake.find(layout, generation, records).items()
        if number >= first
    }


def forget_unfinished(layout: FlowHome, generation: int) -> None:
    """Delete the quarantined rows of an ending generation's unfinished batches. No later run repeats
    these batches.
    """
    mine = f"generation = {int(generation)}"
    sql = f"select kind, array_agg(distinct run_id) as runs from t where {mine} group by kind"
    for row in layout.tables.quarantine.rows(sql):
        kind = row["kind"]
        if reads_input(kind):
            done = last_batch(layout, generation, kind, row["runs"])
            if done is None and integrity.put_aside_last(layout, layout.tables.ledger) > generation:
                continue  # neither table nor ledger can tell which batches finished
            cut_short = (
                f"{mine} and kind = {literal(kind)} and batch > {-1 if done is None else done}"
            )
            delta.delete_any(layout.tables.quarantine, cut_short)


def forget_generation(layout: FlowHome, generation: int) -> None:
    """Delete the quarantined rows, tombstones and hidden events of an ending generation that committed
    no batch.
    """
    delta.delete(layout.tables.quarantine, f"generation = {int(generation)}")
    for table in (layout.tables.tombstones, layout.tables.hidden):
        delta.delete(table, f"_generation = {int(generation)}")


def reads_input(kind: str) -> bool:
    """Return whether batches of this kind read slices. A new generation decides about their refused
    rows again.
    """
    return kind == "drain" or kind.startswith("replay:")


def last_batch(
    layout: FlowHome, generation: int, kind: str, runs: Iterable[str] = ()
) -> int | None:
    """Return the newest finished batch according to table and ledger; None if there is none.

    The ledger is asked too because a table restored from a copy may lack recent batches. Arguments
    as for `ledger_table.last_batch`.
    """
    told = layout.tables.target.last(layout.app_id(generation, "rows", kind))
    return max(
        (
            n
            for n in (told, ledger_table.last_batch(layout, generation, kind, runs))
            if n is not None
        ),
        default=None,
    )
