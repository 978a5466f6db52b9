"""Flows that read a table once, and are gone from the project: `compact --drop-reader`."""

from __future__ import annotations

from draindown.cli.context import Setting, Target, refuse_without, request_of
from draindown.cli.output import Output


def drop_reader(here: Setting, target: Target, reader: str, yes: bool, out: Output) -> None:
    """Keep nothing more of a table for a flow that read it, and is gone from the project. `reader`:
    FLOW, or PIPELINE/FLOW.
    """
    from draindown.sources.tables import readers, registered

    request = request_of(here, target)
    of, _, name = reader.rpartition("/")
    of = of or request.spec.pipeline
    readers.refuse_declared(request, of, name)
    out.note(
        f"keep no more of table {request.layout.table_name} for {of}/{name}; if it reads again, it begins anew"
    )
    refuse_without(yes)
    registered.forget(request.layout, of, name)
    out.result(
        {"dropped": f"{of}/{name}"},
        f"{of}/{name} is dropped; the next compaction removes what was kept for it",
    )
