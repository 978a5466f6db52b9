"""The query of a `window` in DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Mapping

from draindown.lake.table_log import identifier
from draindown.proof.measures import measure
from draindown.spec.derived import Window


def query(window: Window, types: Mapping[str, str]) -> str | None:
    """Return the whole query over the table `source`; None if a measure has no form of certain meaning.

    `types`: Delta's types by column of the source. Starts and ends of windows are microseconds since 1970.
    """
    measures = {name: measure(text, types) for name, text in window.measures.items()}
    if None in measures.values():
        return None
    size, step = window.size * 1_000_000, window.step * 1_000_000
    groups = [identifier(name) for name in window.group_by]
    named = [f"{text} as {identifier(name)}" for name, text in measures.items()]
    newest = f"us - ((us % {step}) + {step}) % {step}"
    starts = f"unnest(range({newest}, us - {size}, -{step}))"
    columns = [f"_start as {window.START}", *groups, f"_start + {size} as {window.END}", *named]
    time = identifier(window.time)
    return (
        f"select {', '.join(columns)} from (select *, {starts} as _start from "
        f"(select *, epoch_us({time}) as us from source where {time} is not null)) "
        f"group by {', '.join(['_start', *groups])}"
    )
