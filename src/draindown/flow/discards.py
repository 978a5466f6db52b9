"""Files and refused rows that a generation gives up, by a person's decision or because its batch never finished."""

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
    """Keep files out for good: parked ones, and ones in a cut that no batch of the live generation has read.

    Call it under the lease. Idempotent. Raises TerminalError `not-parked`, before anything is changed.
    """
    wanted, number = list(dict.fromkeys(paths)), generations.generation(layout)
    unread = not_read(layout, number, wanted)
    parked.discard(layout, [path for path in wanted if path not in unread], by=by, note=note, now=at)
    if not unread:
        return
    # one that was changed is parked with the size it has now: that must stay the newest that is known of it
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
    """Files that a person kept out before a batch had read them: no later generation reads them either."""
    left_out = {path for one in cards(layout).values() for path in one.get("without", ())}
    return frozenset(
        path
        for path, event in parked.latest(layout).items()
        if event.state == "discarded" and (event.reason == _LEFT_OUT or path in left_out)
    )


def not_read(layout: FlowLayout, generation: int, paths: Iterable[str]) -> dict[str, catalog.KnownFile]:
    """Those of `paths` that lie in cuts which the generation is not done with, by path."""
    newest = log_of(layout, layout.table).last(app_id(layout, generation, "rows"))
    # batch N reads cut N + 1; what the table holds is done, also where a crash came before the checkpoint knew
    first = max(Checkpoint(layout.checkpoint(generation)).consumed_before, 0 if newest is None else newest + 2)
    return {path: file for path, file in catalog.find(layout, paths).items() if file.cut >= first}


def forget_unfinished(layout: FlowLayout, generation: int) -> None:
    """Drop what a batch of a generation that ends refused and that was cut short: no later run repeats it."""
    mine = f"generation = {int(generation)}"
    sql = f"select kind, array_agg(distinct run_id) as runs from t where {mine} group by kind"
    for row in log_of(layout, layout.quarantine).rows(sql):
        kind = row["kind"]
        if reads_files(kind):
            done = last_batch(layout, generation, kind, row["runs"])
            if done is None and integrity.put_aside_last(layout, layout.ledger) > generation:
                continue  # nothing is left that could tell
            cut_short = f"{mine} and kind = {literal(kind)} and batch > {-1 if done is None else done}"
            delta.delete_any(layout.quarantine, cut_short)


def forget_generation(layout: FlowLayout, generation: int) -> None:
    """Drop what a generation that ends refused and what deletes it remembered: it committed no batch."""
    for path in (layout.quarantine, layout.tombstones):
        delta.delete(path, f"generation = {int(generation)}")


def reads_files(kind: str) -> bool:
    """Whether rows of this kind were refused by a batch that read files: those are decided about anew."""
    return kind == "source" or kind.startswith("replay:")


def last_batch(layout: FlowLayout, generation: int, kind: str, runs: Iterable[str] = ()) -> int | None:
    """The newest batch that is done, by the table or the ledger: a table put back from a copy forgot some.

    Arguments as for `ledger_table.last_batch`.
    """
    told = log_of(layout, layout.table).last(app_id(layout, generation, "rows", kind))
    return max(
        (n for n in (told, ledger_table.last_batch(layout, generation, kind, runs)) if n is not None), default=None
    )
