"""The fence: an empty commit in a flow's own name, so that what an earlier driver has in flight can't be committed.

Delta lets only one of two concurrent writers of a transaction id commit. The fence writes each id of the flow once more
at the version the table has of it, never a later one: the next batch would count as done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from draindown import checkpoint, rebuilds, replays, tables, withdrawn
from draindown.layout import FlowLayout
from draindown.ledger import FENCE
from draindown.transactions import app_id


def write(layout: FlowLayout, epoch: int) -> None:
    """Fence every table that a driver of the flow writes under a transaction id. Call it as the holder of the lease.

    A table that is damaged is left out: nobody can commit to it.
    """
    note = json.dumps({FENCE: {"pipeline": layout.pipeline, "flow": layout.flow, "epoch": epoch}})
    for place in _places(layout):
        written = {"rows": place.table, "tombstones": place.tombstones, "quarantine": place.quarantine}
        for purpose, path in written.items():
            if tables.damage(path) is None and tables.exists(path):
                apps = [app_id(layout, number, purpose, origin) for number, origin in _writers(layout)]
                tables.fence(path, apps, note)


def _generations(layout: FlowLayout) -> range:
    """All that left anything behind, by their directories: the file that names the live one may be damaged."""
    return range(1, max(1, checkpoint.newest_directory(layout)) + 1)


def _places(layout: FlowLayout) -> Iterator[FlowLayout]:
    yield layout.live
    begun = rebuilds.unfinished(layout)
    if begun:
        yield layout.beside(begun.generation)


def _writers(layout: FlowLayout) -> Iterator[tuple[int, str]]:
    """Generations and origins of batches."""
    for number in _generations(layout):
        for origin in ("source", "quarantine", withdrawn.ORIGIN, *replays.origins(layout)):
            yield number, origin
