"""The query of a `window` in DuckDB's SQL, with those measures whose meaning is certain to be
Spark's.

tests/tables/test_proof.py and tests/spark/test_derive.py pin each measure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from draindown.config.window import Window
from draindown.lake.table import identifier
from draindown.proof.source_rows import SourceRows

_CALL = re.compile(
    r"\s*(count|sum|avg|mean|min|max)\s*\(\s*(distinct\s+)?(\*|[^\W\d]\w*|`[^`]+`)\s*\)\s*",
    re.IGNORECASE,
)
_FLOATS = ("float", "double")
_WHOLE = ("byte", "short", "integer", "long")
_ORDERED = (*_WHOLE, "string", "date", "timestamp", "timestamp_ntz", "boolean", "float", "double")
_EXACT = (*_WHOLE, "string", "date", "timestamp", "timestamp_ntz", "boolean")


def query(window: Window, types: Mapping[str, str]) -> str | None:
    """Return the whole query over the table `source`; None if a measure has no form of certain
    meaning.

    `types`: Delta's types by column of the source. Starts and ends of windows are microseconds
    since 1970. The columns of `scales` are in it too.
    """
    measures = {name: measure(text, types) for name, text in window.measures.items()}
    if None in measures.values():
        return None
    groups = [identifier(name) for name in window.group_by]
    named = [
        f"{text} as {identifier(name)}"
        for name, text in (measures | scales(window.measures, types)).items()
    ]
    starts, end = _months(window.months) if window.months else _fixed(window)
    columns = [f"_start as {window.START}", *groups, f"{end} as {window.END}", *named]
    time = identifier(window.time)
    return (
        f"select {', '.join(columns)} from (select *, {starts} as _start from "
        f"(select *, epoch_us({time}) as _us from source where {time} is not null)) "
        f"group by {', '.join(['_start', *groups])}"
    )


def behind(window: Window) -> SourceRows:
    """Return the rows that a window has, of its group. Only the start of the window is taken from
    the result.
    """
    time, start = f"epoch_us(_s.{identifier(window.time)})", f"epoch_us(_r.{window.START})"
    end = f"{start} + {window.seconds * 1_000_000}"
    if window.months:
        end = f"epoch_us(make_timestamp({start}) + to_months({window.months}))"
    return SourceRows(
        {name: name for name in window.group_by},
        span=(window.time, window.START, window.END),
        condition=f"{time} >= {start} and {time} < {end}",
    )


def _fixed(window: Window) -> tuple[str, str]:
    """Return the starts of the windows that `_us` lies in, one a row, and the end of the window
    from `_start`.
    """
    size, step, origin = (
        seconds * 1_000_000 for seconds in (window.seconds, window.step, window.origin)
    )
    newest = f"_us - (((_us - {origin}) % {step}) + {step}) % {step}"
    return f"unnest(range({newest}, _us - {size}, -{step}))", f"_start + {size}"


def _months(number: int) -> tuple[str, str]:
    """As `_fixed`, of calendar months."""
    at = "make_timestamp(_us)"
    since = f"((((year({at}) - 1970) * 12 + month({at}) - 1) % {number}) + {number}) % {number}"
    start = f"epoch_us(date_trunc('month', {at}) - to_months(cast({since} as integer)))"
    return start, f"epoch_us(make_timestamp(_start) + to_months({number}))"


def measure(text: str, types: Mapping[str, str]) -> str | None:
    """Return a measure in DuckDB's SQL; None if it has no form of certain meaning.

    `types`: Delta's types by column of the source.
    """
    found = _CALL.fullmatch(text)
    if found is None:
        return None
    function, distinct, argument = found[1].lower(), bool(found[2]), found[3]
    if argument == "*":
        return "count(*)" if function == "count" and not distinct else None
    column = _column(argument.strip("`"), types)
    if column is None or not _is_certain(function, distinct, str(types[column])):
        return None
    name = "avg" if function == "mean" else function
    return f"{name}({'distinct ' if distinct else ''}{identifier(column)})"


def scales(measures: Mapping[str, str], types: Mapping[str, str]) -> dict[str, str]:
    """Return, by a column of its own (`scale_of`), the size of what each sum or average of doubles
    adds up.

    Engines add in different orders, so that such a result is off by a share of its summands,
    however small it is.
    """
    found = {}
    for name, text in measures.items():
        call = _CALL.fullmatch(text)
        column = call and _column(call[3].strip("`"), types)
        is_float = column and (
            types[column] in _FLOATS or (call and call[1].lower() in ("avg", "mean"))
        )
        if call and is_float and call[1].lower() in ("sum", "avg", "mean"):
            found[scale_of(name)] = (
                f"{'sum' if call[1].lower() == 'sum' else 'avg'}(abs({identifier(str(column))}))"
            )
    return found


def scale_of(name: str) -> str:
    """Return the column with the scale of a measure. No column of a table has such a name."""
    return f"_scale of {name}"


def is_scale(column: str) -> bool:
    """Return whether a column of a query is one of `scales`."""
    return column.startswith(scale_of(""))


def columns(
    names: Sequence[str], measures: Mapping[str, str], types: Mapping[str, str]
) -> list[str]:
    """Return the columns of the source that `names` and the measures name, in whatever case they
    do.
    """
    named = [call[3].strip("`") for text in measures.values() if (call := _CALL.fullmatch(text))]
    return list(
        dict.fromkeys(found for name in (*names, *named) if (found := _column(name, types)))
    )


def _column(name: str, types: Mapping[str, str]) -> str | None:
    """Return the column that Spark finds for a name, in whatever case it is written."""
    return next((column for column in types if column.lower() == name.lower()), None)


def _is_certain(function: str, distinct: bool, kind: str) -> bool:
    decimal = kind.startswith("decimal")
    match function:
        case "count":
            # distinct doubles: NaN and zeros have signs
            return not distinct or decimal or kind in _EXACT
        case "sum":
            return (
                decimal or kind in _WHOLE
                if distinct
                else decimal or kind in (*_WHOLE, "float", "double")
            )
        case "avg" | "mean":
            return not distinct and kind in (*_WHOLE, "float", "double")  # of decimals Spark rounds
        case _:
            return decimal or kind in _ORDERED
