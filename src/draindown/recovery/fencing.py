"""Fencing: an empty commit under a flow's own transaction ids makes in-flight commits of an earlier
driver fail, and a revision of a document what it is about to write.

If two writers of one transaction id commit concurrently, Delta lets only one of them succeed. The
fence repeats the version that the table has for each id. A later version would mark the next batch
as committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from draindown.flow import checkpoint
from draindown.lake import delta
from draindown.lake.commits import FENCE
from draindown.lake.flow_tables import flow_tables
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.ledger.rows import WITHDRAW
from draindown.recovery import rebuild, replay


def write(layout: FlowHome, epoch: int, *, check: Callable[[], None]) -> list[str]:
    """Fence the documents that only the holder of the lease writes, and every table that a driver
    of the flow writes under a transaction id. Call it as the holder of the lease.

    Calls `check` before each table; `check` raises if the lease is lost. Skips damaged tables,
    since nobody can commit to them. Returns the paths of tables that deltalake can't write; these
    stay without a fence.
    """
    note = json.dumps({FENCE: {"pipeline": layout.pipeline, "flow": layout.flow, "epoch": epoch}})
    layout = layout.held(epoch)
    for document in (layout.live.generation, layout.rebuild):
        check()
        document.fence()
    places = list(_places(layout))
    for staged in places[1:]:  # that of a rebuild, if one was begun
        check()
        staged.generation.fence()
    writers, unfenced = list(_writers(layout)), []
    for place in places:
        for table in reversed(flow_tables(place, 1)):
            if table.writes is None:
                continue
            check()
            if Table(table.path).is_whole:
                apps = [layout.app_id(number, table.writes, kind) for number, kind in writers]
                if not delta.fence(table.table, apps, note):
                    unfenced.append(table.path)
    return unfenced


def _generations(layout: FlowHome) -> range:
    """Return all generations that have a directory. The document that names the live one is not read,
    since it may be damaged.
    """
    return range(1, max(1, checkpoint.newest_directory(layout)) + 1)


def _places(layout: FlowHome) -> Iterator[FlowHome]:
    yield layout.live
    begun = rebuild.unfinished(layout)
    if begun:
        yield layout.beside(begun.generation)


def _writers(layout: FlowHome) -> Iterator[tuple[int, str]]:
    """Yield generation and kind of all batches to fence.

    A replay belongs to one generation. If its file is unreadable, it is fenced in every generation.
    """
    begun = replay.begun(layout)
    for number in _generations(layout):
        replayed = [kind for kind, generation in begun if generation in (number, None)]
        for kind in ("drain", "release", WITHDRAW, *replayed):
            yield number, kind
