"""The fence: an empty commit in a flow's own name, so that what an earlier driver has in flight can't be committed.

Delta lets only one of two concurrent writers of a transaction id commit. The fence writes each id of the flow once more
at the version the table has of it, never a later one: the next batch would count as done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from draindown.flow import checkpoint
from draindown.lake import delta
from draindown.lake.commits import FENCE
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog
from draindown.lake.transactions import app_id
from draindown.ledger.rows import GATE
from draindown.recovery import rebuild, replay


def write(layout: FlowLayout, epoch: int, *, check: Callable[[], None]) -> list[str]:
    """Fence every table that a driver of the flow writes under a transaction id. Call it as the holder of the lease.

    `check` is asked before each table, and raises where the lease is lost. A table that is damaged is left out: nobody
    can commit to it. Returns the paths of those that deltalake can't write, which stay without a fence.
    """
    note = json.dumps({FENCE: {"pipeline": layout.pipeline, "flow": layout.flow, "epoch": epoch}})
    writers, unfenced = list(_writers(layout)), []
    for place in _places(layout):
        written = {"rows": place.table, "tombstones": place.tombstones, "quarantine": place.quarantine}
        for purpose, path in written.items():
            check()
            if TableLog(path).is_whole:
                apps = [app_id(layout, number, purpose, kind) for number, kind in writers]
                if not delta.fence(path, apps, note):
                    unfenced.append(path)
    return unfenced


def _generations(layout: FlowLayout) -> range:
    """All that left anything behind, by their directories: the file that names the live one may be damaged."""
    return range(1, max(1, checkpoint.newest_directory(layout)) + 1)


def _places(layout: FlowLayout) -> Iterator[FlowLayout]:
    yield layout.live
    begun = rebuild.unfinished(layout)
    if begun:
        yield layout.beside(begun.generation)


def _writers(layout: FlowLayout) -> Iterator[tuple[int, str]]:
    """Generations and kinds of batches. A replay is of one generation, unless its file does not say of which."""
    begun = replay.begun(layout)
    for number in _generations(layout):
        replayed = [kind for kind, generation in begun if generation in (number, None)]
        for kind in ("source", "quarantine", GATE, *replayed):
            yield number, kind
