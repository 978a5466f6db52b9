"""Whose a table is. Within a project the files show it; two projects with one lake see it in the
lake alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from draindown.base.errors import TerminalError
from draindown.flow import generations
from draindown.flow.checkpoint import Checkpoint
from draindown.lake import directories
from draindown.lake.home import FlowHome
from draindown.lake.revisions import Revisions
from draindown.lake.table import literal
from draindown.lake.torn import UNREAD
from draindown.lease.holder import holder
from draindown.ledger.rows import from_commit

_Named = tuple[str, str]
"""Pipeline and flow."""


def refuse_other(layout: FlowHome) -> bool:
    """Refuse a flow that has written nothing yet if its table or its ledger is that of another
    flow, by pipeline.

    Return whether the flow has written nothing yet. A flow whose home is gone from the lake owns
    nothing. Raises TerminalError `table-of-another-flow`.
    """
    layout = layout.live.view()
    if _has_written(layout):
        return False
    for path, (pipeline, flow) in _writers(layout):
        other = replace(layout, pipeline=pipeline, flow=flow)
        if (pipeline, flow) != (layout.pipeline, layout.flow) and other.exists:
            held = "its batches are in the table"
            raise _of_another(layout, path, f"{pipeline}/{flow}", other.home, held)
    return True


def claim(layout: FlowHome) -> None:
    """Claim table and ledger for a flow that has written nothing yet. To be called by the holder of
    its lease.

    Each opening adds a claim. The newest one counts while the lease of its flow is held; so of
    flows that open at once one goes on, and a flow that ended without a batch has no claim. Raises
    TerminalError `table-of-another-flow`.
    """
    directories.make(layout.claims)
    own = (layout.pipeline, layout.flow)
    for path, place in (
        (layout.tables.target.path, layout.table_claims),
        (layout.tables.ledger.path, layout.ledger_claims),
    ):
        claims = _claims(place)
        claimed = False
        while not claimed:
            number, other = claims.newest()
            if (
                other
                and other != own
                and holder(home := replace(layout, pipeline=other[0], flow=other[1]))
            ):
                raise _of_another(
                    layout, path, "/".join(other), home.home, "it is at work on its first batch"
                )
            claimed = claims.put(number, dict(zip(("pipeline", "flow"), own, strict=True)))
    refuse_other(layout)  # another flow may have committed and ended since it was looked


def _claims(place: str) -> Revisions[_Named]:
    return Revisions(place, _named, "two flows may write one table")


def _named(content: dict[str, str]) -> _Named:
    return content["pipeline"], content["flow"]


def _has_written(layout: FlowHome) -> bool:
    generation = generations.generation_if_told(layout)
    if generation != 1:  # a damaged document is reported by others
        return True
    _ = layout.tables.ledger.is_whole  # opened before the target, as `integrity.damaged` opens them
    table = layout.tables.target
    if table.damage is not None:
        return Checkpoint(layout.checkpoint(generation)).started
    return table.last(layout.app_id(generation, "rows")) is not None


def _writers(layout: FlowHome) -> Iterator[tuple[str, _Named]]:
    """Yield a table and its writer, from the target's newest batch and the ledger. If its log is
    damaged, its claim.
    """
    table = layout.tables.target
    if table.damage is None:
        rows = (from_commit(commit) for commit in table.commits())  # none if it is absent
        newest = next((row for row in rows if row), None)
        writer = (newest.pipeline, newest.flow) if newest else None
    else:
        writer = _claims(layout.table_claims).newest()[1]
    if writer:
        yield layout.tables.target.path, writer
    ledger = layout.tables.ledger
    others = f"select distinct pipeline, flow from t where pipeline <> {literal(layout.pipeline)}"
    with suppress(*UNREAD):  # said by others
        for row in ledger.rows(others) if ledger.is_whole else ():
            yield layout.tables.ledger.path, (row["pipeline"], row["flow"])


def _of_another(layout: FlowHome, path: str, other: str, home: str, why: str) -> TerminalError:
    again = f"draindown run {layout.pipeline}/{layout.flow}"
    return TerminalError(
        "table-of-another-flow",
        tried=f"write table {path} for flow {layout.flow} of pipeline {layout.pipeline}",
        found=f"flow {other} writes it: {why}, its home is {home}. No file of this project has "
        "that flow, so another project has, or it was renamed",
        changed="nothing",
        next=[
            f"give this flow another name, another `target.table` or another `lake`, then: {again}",
            f"if {other} was renamed to this one, give it back its name: a new home reads all input again",
            f"if {other} is gone for good: {_retire(layout, other, home)}, then: {again}",
        ],
    )


def _retire(layout: FlowHome, other: str, home: str) -> str:
    """Return the command that retires the other flow.

    Tables that are named by the flow go too: their transaction ids are without the pipeline, so
    that the first batches of this flow would pass for written.
    """
    shared = (
        [layout.tables.ledger.path, *_sides(layout)]
        if other.rpartition("/")[2] == layout.flow
        else []
    )
    tables = [path for path in shared if directories.exists(path)]
    moves = [
        f"mv {home} SOMEWHERE-ELSE",
        *(f"mv {path} SOMEWHERE-ELSE.{path.split('/')[-2]}" for path in tables),
    ]
    return " && ".join(moves)


def _sides(layout: FlowHome) -> tuple[str, ...]:
    return (
        layout.tables.inputs.path,
        layout.tables.quarantine.path,
        layout.tables.late.path,
        layout.tables.raw.path,
        layout.tables.unsendable.path,
        layout.tables.snapshots.path,
    )
