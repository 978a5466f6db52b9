"""The queries of `join` and `lookup` in DuckDB's SQL: pairs of rows of the tables `source` and
`source_1`.

Values pass through, so that only keys and times are compared, which mean the same to both engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draindown.config.join import Join
from draindown.config.lookup import Lookup
from draindown.config.names import END_AT, START_AT, is_own
from draindown.config.pairing import ORIGIN_KEY, Pairing
from draindown.lake.table import identifier
from draindown.proof.source_rows import SourceRows

SOURCES = ("source", "source_1")
"""The tables of a flow by their place in its file."""


def query(part: Pairing, types: Sequence[Mapping[str, str]]) -> str:
    """Return the whole query. `types`: Delta's types by column of each table. Buckets are
    microseconds since 1970.
    """
    known = [[name for name in own if not is_own(name)] for own in types]
    columns = {name: f"l.{identifier(own)}" for name, own in part.of_left(known[0]).items()}
    columns |= {name: f"r.{identifier(own)}" for name, own in part.of_right(known[1]).items()}
    for side, alias in enumerate("lr"):
        if ORIGIN_KEY[side] in part.made():
            columns[ORIGIN_KEY[side]] = f"{alias}._origin.input || ':' || {alias}._origin.position"
    on = [
        f"l.{identifier(one)} = r.{identifier(other)}"
        for one, other in zip(part.own(0), part.own(1), strict=True)
    ]
    if isinstance(part, Join) and part.times:
        left, right = (
            f"epoch_us({alias}.{identifier(one)})"
            for alias, one in zip("lr", part.times, strict=True)
        )
        low, high, length = (one * 1_000_000 for one in (*part.bound, part.bucket))
        on.append(f"{right} - {left} between {low} and {high}")
        columns[Join.BUCKET] = f"{left} - (({left} % {length}) + {length}) % {length}"
    if isinstance(part, Lookup) and part.time:
        on.append(_valid(f"l.{identifier(part.time)}", "r", types[1]))
    if isinstance(part, Lookup):
        columns[part.found] = f"r.{identifier(part.own(1)[0])} is not null"
    listed = ", ".join(f"{text} as {identifier(name)}" for name, text in columns.items())
    kind = "left join" if part.is_outer else "join"
    left, right = SOURCES
    return f"select {listed} from {left} l {kind} {right} r on {' and '.join(on)}"


def _valid(time: str, row: str, types: Mapping[str, Any]) -> str:
    """Return the condition that a history's row is valid at a time. `row`: its alias; `types`:
    those of the history.

    Of a sequence of several columns the first one is compared, as `draindown as-of` does.
    """
    kind = types[START_AT]
    first = "" if isinstance(kind, str) else f".{identifier(kind['fields'][0]['name'])}"
    start, end = (f"{row}.{identifier(name)}{first}" for name in (START_AT, END_AT))
    return f"coalesce({start} <= {time} and ({end} is null or {time} < {end}), false)"


def behind(part: Pairing, types: Sequence[Mapping[str, str]]) -> list[SourceRows]:
    """Return, by table in the order of the flow, its row in a pair: none of the right table where
    nothing matches.
    """
    return [_side(part, side, types) for side in (0, 1)]


def _side(part: Pairing, side: int, types: Sequence[Mapping[str, str]]) -> SourceRows:
    known = [name for name in types[side] if not is_own(name)]
    own = (part.of_right if side else part.of_left)(known) | dict(
        zip(part.on, part.own(side), strict=True)
    )
    named = [
        name for name in part.named_by(side) if name in own
    ]  # not an origin, nor the start of a history's row
    conditions = []
    if part.has_origin(side):
        conditions.append(f"_s._origin.input || ':' || _s._origin.position = _r.{ORIGIN_KEY[side]}")
    counts = "true"
    if side and isinstance(part, Join) and part.times:
        left, right = (
            f"epoch_us({row}.{identifier(one)})"
            for row, one in zip(("_r", "_s"), part.times, strict=True)
        )
        low, high = (one * 1_000_000 for one in part.bound)
        counts = f"coalesce({right} - {left} between {low} and {high}, false)"
    if side and isinstance(part, Lookup) and part.time:
        conditions.append(_valid(f"_r.{identifier(part.time)}", "_s", types[1]))
    # a left row may have NULL in `on`, which nothing matches
    equal = {name: own[name] for name in dict.fromkeys([*part.on, *named])}
    return SourceRows(
        equal,
        null_is_value=not side,
        condition=" and ".join(conditions) or "true",
        counts=counts,
        otherwise="its time is outside of the bound",
    )
