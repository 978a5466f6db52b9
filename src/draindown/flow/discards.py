"""Discard files and refused rows of a generation: by a person's decision, or because their batch never finished."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from draindown.flow import generations, integrity
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.generations import cards
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import literal, log_of
from draindown.lake.transactions import app_id
from draindown.ledger import table as ledger_table
from draindown.sources.files import catalog, parked

_LEFT_OUT = "left-out"


def discard_files(layout: FlowLayout, paths: Iterable[str], *, by: str, note: str, at: datetime) -> None:
    """Discard files for good: parked files, and files of cuts that no batch of the live generation has read.

    Call it under the lease. Idempotent. Raises TerminalError `not-parked` before it changes anything.
    """
    wanted, number = list(dict.fromkeys(paths)), generations.generation(layout)
    unread = not_read(layout, number, wanted)
    parked.discard(layout, [path for path in wanted if path not in unread], by=by, note=note, now=at)
    if not unread:
        return
    # A changed file is parked with its current size. That event must stay the newest one of the file.
    shut = [event.path for event in parked.open_files(layout) if event.path in unread]
    parked.discard(layout, shut, by=by, note=note, now=at)
    done = {path for path, event in parked.latest(layout).items() if event.state == "discarded"}
    detail = f"generation {number} leaves it out, unread"
    fresh = [file for path, file in unread.items() if path not in done]
    parked.record(layout, (_left_out(file, detail, by, note) for file in fresh), at)
    generations.leave_out(layout, unread, by=by, at=at)


def _left_out(file: catalog.KnownFile, detail: str, by: str, note: str) -> parked.Event:
    return parked.Event(
        file.path, file.size, file.mtime_ns, "discarded", reason=_LEFT_OUT, detail=detail, by=by, note=note
    )


def given_up(layout: FlowLayout) -> frozenset[str]:
    """Return the files that a person discarded before any batch read them. Later generations leave them out, too."""
    left_out = {path for one in cards(layout).values() for path in one.get("without", ())}
    return frozenset(
        path
        for path, event in parked.latest(layout).items()
        if event.state == "discarded" and (event.reason == _LEFT_OUT or path in left_out)
    )


def not_read(layout: FlowLayout, generation: int, paths: Iterable[str]) -> dict[str, catalog.KnownFile]:
    """Return, by path, those of `paths` that lie in cuts the generation has not consumed yet."""
    newest = log_of(layout, layout.table).last(app_id(layout, generation, "rows"))
    # Batch N reads cut N + 1. The table's batches are consumed even if the checkpoint lacks their commit after a crash.
    first = max(Checkpoint(layout.checkpoint(generation)).consumed_before, 0 if newest is None else newest + 2)
    return {path: file for path, file in catalog.find(layout, paths).items() if file.cut >= first}


def forget_unfinished(layout: FlowLayout, generation: int) -> None:
    """Delete the refused rows of an ending generation's unfinished batches. No later run repeats these batches."""
    mine = f"generation = {int(generation)}"
    sql = f"select kind, array_agg(distinct run_id) as runs from t where {mine} group by kind"
    for row in log_of(layout, layout.quarantine).rows(sql):
        kind = row["kind"]
        if reads_files(kind):
            done = last_batch(layout, generation, kind, row["runs"])
            if done is None and integrity.put_aside_last(layout, layout.ledger) > generation:
                continue  # neither table nor ledger can tell which batches finished
            cut_short = f"{mine} and kind = {literal(kind)} and batch > {-1 if done is None else done}"
            delta.delete_any(layout.quarantine, cut_short)


def forget_generation(layout: FlowLayout, generation: int) -> None:
    """Delete the refused rows and the tombstones of an ending generation that committed no batch."""
    for path in (layout.quarantine, layout.tombstones):
        delta.delete(path, f"generation = {int(generation)}")


def reads_files(kind: str) -> bool:
    """Return whether batches of this kind read files. A new generation decides about their refused rows again."""
    return kind == "source" or kind.startswith("replay:")


def last_batch(layout: FlowLayout, generation: int, kind: str, runs: Iterable[str] = ()) -> int | None:
    """Return the newest finished batch according to table and ledger; None if there is none.

    The ledger is asked too because a table restored from a copy may lack recent batches. Arguments as for
    `ledger_table.last_batch`.
    """
    told = log_of(layout, layout.table).last(app_id(layout, generation, "rows", kind))
    return max(
        (n for n in (told, ledger_table.last_batch(layout, generation, kind, runs)) if n is not None), default=None
    )
