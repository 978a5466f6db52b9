"""Whether a record deletes its key, where that is certain outside Spark."""

from __future__ import annotations

from collections.abc import Callable

from draindown.config.certain import deciding
from draindown.config.landing import FlowSpec
from draindown.provenance.scan import Found

Deletes = Callable[[Found], bool | None]


def deletes_of(flow: FlowSpec) -> Deletes:
    """Return what says of a record of the flow whether it deletes its key; None: it can't be
    told.
    """
    said = flow.target.apply_as_deletes
    if flow.transform is not None or flow.deletes_by_null:
        return lambda _: None
    if said is None:
        return lambda _: False
    found = deciding(said, {name: column.stored for name, column in flow.columns.items()})
    if found is None:
        return lambda _: None
    column, values = found

    def deletes(one: Found) -> bool | None:
        read = one.record.read((column,))
        return None if read is None else read[0] in values

    return deletes
