"""How the live table of a flow differs from what its spec says now, for the plan of a rebuild."""

from __future__ import annotations

from draindown.config.names import START_AT
from draindown.config.partial import SEQUENCES
from draindown.config.target_kinds import PARTIAL
from draindown.runs.request import Request

_DELTA_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


def changes(request: Request) -> list[str]:
    """Return the differences between a flow's live table and what its spec says now, in words."""
    table, flow = request.layout.tables.target, request.declared
    if not table.exists:
        return ["the table is gone: it is made anew"]
    partitions, held = table.partition_columns, table.column_types
    found = []
    if partitions != flow.target.partition_by:
        found.append(f"partition_by: {partitions} -> {flow.target.partition_by}")
    if (START_AT in held) != (flow.target.history is not None):
        found.append(
            f"rows: {'the history of each key' if flow.target.history else 'no history any more'}"
        )
    if (SEQUENCES in held) != (flow.target.kind is PARTIAL):
        found.append(
            f"rows: {'merged column by column' if flow.target.kind is PARTIAL else 'of whole records'}"
        )
    if flow.transform:
        return [*found, f"columns: those that {flow.transform} gives"]
    if flow.known_columns is None:
        return [*found, "columns: those that the query gives"]
    wanted = {
        name: _DELTA_NAMES.get(column.stored, column.stored)
        for name, column in flow.columns.items()
    }
    for name, kind in wanted.items():
        if name not in held:
            found.append(f"column {name}: new, {kind}")
        elif isinstance(held[name], str) and held[name] != kind:
            found.append(f"column {name}: {held[name]} -> {kind}")
    return found + [
        f"column {name}: gone" for name in held if name not in wanted and not name.startswith("_")
    ]
