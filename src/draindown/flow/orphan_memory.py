"""Find tombstones and hidden events of batches that never reached the target, by table, ledger and
checkpoints.

A batch writes them before its MERGE. If it dies in between and is never retried, they keep out or
change rows of those keys forever, because of records that no ledger row counts. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from draindown.flow import generations, resume
from draindown.flow.checkpoint import Checkpoint
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.lake.table import literal
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import WITHDRAW

_MEMORIES = ("tombstones", "hidden")
_REPEATED = "drain"
"""Kind whose batches the live generation retries automatically."""


def forget(layout: FlowHome, replays: Sequence[str]) -> int:
    """Remove what batches remembered that never committed to the target. Return their number. Needs
    the lease.

    `replays`: the kinds of all replays of input that were ever begun. A replay that continues
    writes it again.

    Nothing is removed if the target lacks batches that the checkpoint has committed. The target may
    be restored from a copy that holds those batches.
    """
    return sum(_forget(layout, memory, replays) for memory in _MEMORIES)


def _forget(layout: FlowHome, memory: str, replays: Sequence[str]) -> int:
    if not layout.tables.memory(memory).exists or not layout.tables.target.exists:
        return 0
    live = generations.generation(layout)
    found = [one for one in _unmade(layout, memory, live, replays) if not _is_known(layout, *one)]
    if not found or resume.behind(layout, Checkpoint(layout.checkpoint(live)), live):
        return 0
    for generation, kind, batch in found:
        mine = f"_generation = {generation} and _kind = {literal(kind)} and _batch = {batch}"
        delta.delete_any(layout.tables.memory(memory), mine)
    return len(found)


def _unmade(
    layout: FlowHome, memory: str, live: int, replays: Iterable[str]
) -> Iterator[tuple[int, str, int]]:
    """Yield generation, kind and number of each batch that wrote to the memory and has no
    transaction in the target.
    """
    kinds = (_REPEATED, "release", WITHDRAW, *replays)
    every = [
        (n, kind) for n in range(1, live + 1) for kind in kinds if (n, kind) != (live, _REPEATED)
    ]
    written, table = layout.tables.memory(memory), layout.tables.target
    for generation, kind in every:
        newest = written.last(layout.app_id(generation, memory, kind))
        done = table.last(layout.app_id(generation, "rows", kind))
        # A writer begins a batch after committing the previous one, so only its newest batch can be
        # uncommitted.
        if newest is not None and (done is None or done < newest):
            yield generation, kind, newest


def _is_known(layout: FlowHome, generation: int, kind: str, batch: int) -> bool:
    """Return whether ledger or checkpoint record the batch as done, or the target can't prove that
    it is not.
    """
    if ledger_table.has(layout, generation, kind, batch):
        return True
    finished = Checkpoint(layout.checkpoint(generation)).last_commit
    if kind == _REPEATED and finished is not None and finished >= batch:
        return True
    knows = layout.tables.target.last(layout.app_id(generation, "rows")) is not None
    return not knows and (
        finished is not None or ledger_table.last_batch(layout, generation, _REPEATED) is not None
    )
