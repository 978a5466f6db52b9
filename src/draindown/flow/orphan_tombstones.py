"""Tombstones of batches that never reached the target, told from table, ledger and checkpoints. No Spark.

A batch remembers its deletes before its MERGE. One that died in between and that nothing repeats would keep older rows
of those keys out for good, by a delete that is in no ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from draindown.flow import generations, resume
from draindown.flow.checkpoint import Checkpoint
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import literal, log_of
from draindown.lake.transactions import app_id
from draindown.ledger import table as ledger_table

_REPEATED = "source"
"""The kind whose batches the live generation does again by itself."""


def forget(layout: FlowLayout, replays: Sequence[str]) -> int:
    """Remove tombstones that no batch made good; returns of how many batches. Call it under the lease.

    `replays`: the kinds of all replays of input that were ever begun; one that is gone on with writes its own again.
    Where the target lacks what others know of it, nothing is removed: it may be put back yet, and holds the rows then.
    """
    if not log_of(layout, layout.tombstones).exists or not log_of(layout, layout.table).exists:
        return 0
    live = generations.generation(layout)
    found = [one for one in _unmade(layout, live, replays) if not _is_known(layout, *one)]
    if not found or resume.behind(layout, Checkpoint(layout.checkpoint(live)), live):
        return 0
    for generation, kind, batch in found:
        mine = f"_generation = {generation} and _kind = {literal(kind)} and _batch = {batch}"
        delta.delete_any(layout.tombstones, mine)
    return len(found)


def _unmade(layout: FlowLayout, live: int, replays: Iterable[str]) -> Iterator[tuple[int, str, int]]:
    """Generation, kind and number of batches that wrote tombstones and are in the target by no transaction."""
    kinds = (_REPEATED, "quarantine", *replays)
    every = [(n, kind) for n in range(1, live + 1) for kind in kinds if (n, kind) != (live, _REPEATED)]
    tombstones, table = log_of(layout, layout.tombstones), log_of(layout, layout.table)
    for generation, kind in every:
        newest = tombstones.last(app_id(layout, generation, "tombstones", kind))
        done = table.last(app_id(layout, generation, "rows", kind))
        # a writer begins no batch before the one before it is done: only its newest can be one that is not
        if newest is not None and (done is None or done < newest):
            yield generation, kind, newest


def _is_known(layout: FlowLayout, generation: int, kind: str, batch: int) -> bool:
    """Whether anything but the target says that the batch was done, or the target can't tell."""
    if ledger_table.has(layout, generation, kind, batch):
        return True
    finished = Checkpoint(layout.checkpoint(generation)).last_commit
    if kind == _REPEATED and finished is not None and finished >= batch:
        return True
    knows = log_of(layout, layout.table).last(app_id(layout, generation, "rows")) is not None
    return not knows and (finished is not None or ledger_table.last_batch(layout, generation, _REPEATED) is not None)
