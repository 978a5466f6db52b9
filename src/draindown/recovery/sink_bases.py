"""What makes sinks stale beside the batches: a rebuild takes the table's place, a table is put
aside, batches go by.

After a rebuild a sink has rows of the version from before it, its base. A document among those of
the table's readers keeps the oldest base, with the log that leads to it, until every sink was
compared with its own.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from draindown.base.errors import TerminalError
from draindown.flow import sink_state
from draindown.flow.sink_state import SinkState
from draindown.lake.home import FlowHome
from draindown.lake.lost_files import lost_files
from draindown.sources.tables import registered
from draindown.sources.tables.registered import Reader


def swapped(layout: FlowHome, before: int) -> None:
    """Have every sink be compared with version `before` of the table, the last one before a
    rebuild. Idempotent.

    Call it under the lease, once the rebuilt table is there. A batch that only a sink has is
    forgotten: it was of the earlier table.
    """
    for name in sink_state.names(layout):
        state, lost = SinkState.read(layout, name), sink_state.in_flight(layout).get(name)
        why = state.stale or (sink_state.GIVEN_UP if lost else sink_state.SWAPPED)
        left = tuple(one for one in state.sendings if one != lost)
        bases = tuple(sorted({*state.bases, before}))
        replace(state, stale=why, sendings=left, fill=None, bases=bases).write(layout, name)
    keep(layout)


def put_aside(layout: FlowHome) -> None:
    """Have every sink be filled from another table, and forget what was sent from the one that is
    put aside.
    """
    for name in sink_state.names(layout):
        state = SinkState.read(layout, name)
        replace(state, stale=sink_state.ASIDE, sendings=(), fill=None, bases=()).write(layout, name)
    registered.forget(layout, layout.pipeline, layout.flow)


def leave_out(layout: FlowHome, declared: Container[str]) -> None:
    """Mark each sink that is not declared as stale, because it does not get the next batch.
    Idempotent.

    Nothing is kept for such a sink: once it is back, every row is sent.
    """
    undeclared = [name for name in sink_state.names(layout) if name not in declared]
    states = {name: SinkState.read(layout, name) for name in undeclared}
    unmarked = {name: state for name, state in states.items() if state.bases or not state.stale}
    for name, state in unmarked.items():
        replace(state, stale=sink_state.LEFT_OUT, bases=()).write(layout, name)
    if any(state.bases for state in unmarked.values()):
        keep(layout)


def keep(layout: FlowHome) -> None:
    """Have the table keep the oldest base of a sink, or none if no sink has one. Call it under the
    lease.
    """
    bases = [
        base for name in sink_state.names(layout) for base in SinkState.read(layout, name).bases
    ]
    if not bases:
        registered.forget(layout, layout.pipeline, layout.flow)
        return
    table = layout.tables.target.id
    reader = Reader(layout.pipeline, layout.flow, table, min(bases), snapshot=True, sinks=True)
    registered.register(layout, reader)
    registered.advance(layout, reader)


def readable(
    layout: FlowHome, bases: tuple[int, ...], *, accept_missing: bool, fill: str
) -> list[int]:
    """Return the bases that the table still has. `fill`: the command that fills the sink.

    Raises TerminalError `history-gone` if one of them is gone, unless `accept_missing`.
    """
    found = {base: _lacking(layout, base) for base in bases}
    for base, lacking in found.items():
        if lacking and not accept_missing:
            raise TerminalError(
                "history-gone",
                tried=f"compare {layout.tables.target.path} with its version {base}, "
                "which a rebuild replaced and the sink has",
                found=f"{lacking}: VACUUM removed it, or a person did",
                changed="nothing",
                next=f"{fill} --accept-missing   # sends every row; a topic keeps rows that only that version had",
            )
    return [base for base, lacking in found.items() if not lacking]


def _lacking(layout: FlowHome, version: int) -> str:
    """Return in words what of a version is gone, "" if it is there."""
    log = layout.tables.target.at(version)
    if log.damage:
        return f"its log is not whole, {log.damage}"
    missing = lost_files(log)
    return f"{len(missing)} of its files are not there, such as {missing[0]}" if missing else ""
