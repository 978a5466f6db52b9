"""Check a derived flow against the columns of its source, as far as the pipeline file alone shows
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from draindown.config import expression_names
from draindown.config.base import Problem
from draindown.config.derived import FLOATS, DerivedFlow
from draindown.config.history import History
from draindown.config.join import Join
from draindown.config.lookup import Lookup
from draindown.config.names import caseless, unlike
from draindown.config.pairing import Pairing
from draindown.config.processor import Processor
from draindown.config.query import Query
from draindown.config.ranking import Deduplicate, Top
from draindown.config.session import Session
from draindown.config.target_kinds import TargetKind
from draindown.config.window import Window

_TIMES = ("timestamp", "timestamp_ntz")
Types = Mapping[str, str]
"""Column types by name, as stored."""


def problems(
    flow: DerivedFlow,
    at: int,
    source: Types | None,
    kind: TargetKind | None,
    *,
    grows: bool = False,
) -> Iterator[Problem]:
    """Yield problems of a derived flow's derivation with table number `at` of its source, by their
    path in the flow.

    `kind`: that of the source table; None if it is not known. `grows`: whether input adds columns
    to it.
    """
    if isinstance(flow.derivation, History):
        yield from _of_events(flow, at, kind, grows=grows)
    if flow.allowed_lateness is not None and kind is not None and kind.idempotent:
        updated = f"table {flow.source.read[at]} has keys: of a row that came late the one before it would be gone"
        yield ("allowed_lateness",), f"needs a table that rows are only appended to; {updated}"
    if source is None:
        return
    match flow.derivation:
        case Window() as one:
            yield from _timed("window", "group_by", one, one.group_by, source)
        case Session() as one:
            yield from _timed("session", "group_by", one, one.group_by, source)
        case Query() as one:
            yield from _keyed(flow, "keys", one.keys, at, source)
        case Join() | Lookup() as one:
            yield from _keyed(flow, "on", list(one.on), at, source)
            yield from _paired(flow, one, at, source)
        case Deduplicate() as one:
            yield from _ranked("deduplicate", "keys", one, "sequence_by", source)
        case Top() as one:
            yield from _ranked("top", "group_by", one, "order_by", source)
            yield from (
                (("top",), f"adds column {name!r}, which the source has{_spelled(name, same)}")
                for name in one.made
                for same in source
                if caseless(same) == caseless(name)
            )
        case Processor() as one:
            yield from _folded(one, source)
        case History() as one:
            yield from ((("target", *place), text) for place, text in _history(one, source))


def _spelled(name: str, same: str) -> str:
    return "" if name == same else f" as {same!r}: case doesn't tell columns apart"


def _of_events(
    flow: DerivedFlow, at: int, kind: TargetKind | None, *, grows: bool
) -> Iterator[Problem]:
    """Yield why a table does not hold all events of a history, or has columns of which only a run
    knows.
    """
    table, place = flow.source.read[at], flow.place_of_table(at)
    if kind is not None and kind.idempotent:
        why = f"table {table} keeps one row per key, and its earlier rows are gone"
        yield (
            place,
            f"a history needs a table that all events are appended to: {why}. Land them without keys as well",
        )
    if grows and not isinstance(flow.target.track_history, list):
        why = f"fields that arrive add columns to table {table} (drift)"
        yield (
            ("target", "track_history"),
            f"must list the columns that begin another row where they change: {why}",
        )


def _history(part: History, source: Types) -> Iterator[Problem]:
    """Yield columns that the source lacks, keys and sequences that can't be compared, and what the
    condition names.
    """
    for place, name in part.named:
        if name not in source:
            yield place, f"{name!r} is no column of the source{unlike(name, source)}"
        elif place[0] != "track_history" and (why := not_a_key(source[name])) is not None:
            yield place, f"{name!r} {why}"
    for place, text in part.expressions.items():
        yield from ((place, problem) for problem in expression_names.problems(text, source))


def _keyed(
    flow: DerivedFlow, field: str, keys: Sequence[str], at: int, source: Types
) -> Iterator[Problem]:
    """Yield key columns that table number `at` lacks, where they are named: in the table's `keys`,
    or the flow's.

    `field`: that of the derivation with the keys.
    """
    table = flow.source.read[at]
    of = f"table {table}" if len(flow.source.read) > 1 else "the source"
    for number, key in enumerate(keys):
        name, part = table.column(key), flow.derivation
        place: tuple[str, ...] = (flow.kind, field, str(number))
        if isinstance(part, Pairing):
            place = (flow.kind, *part.place(number))
        elif key in table.keys:
            place = (*flow.place_of_table(at, "keys"), key)
        if name not in source:
            yield place, f"{name!r} is no column of {of}{unlike(name, source)}"
        elif (why := not_a_key(source[name])) is not None:
            yield place, f"{name!r} {why}"


def _paired(flow: DerivedFlow, part: Pairing, side: int, source: Types) -> Iterator[Problem]:
    """Yield the time and the chosen columns that a table of a `join` or a `lookup` lacks.

    `side`: 0 for the flow's table, 1 for the one that the part names.
    """
    table = flow.source.read[side]
    if isinstance(part, Join) and part.times:
        at_time = (flow.kind, "interval", ("left", "right")[side])
        yield from _time(at_time, part.times[side], f"table {table}", source)
    if side == 0 and isinstance(part, Lookup) and part.time and part.time not in source:
        way = "; without `as_of` the state that a row has now is taken"
        hint = way if part.time == "latest" else unlike(part.time, source)
        yield (flow.kind, "as_of"), f"{part.time!r} is no column of table {table}{hint}"
    if side == 1 and part.chosen is not None:
        for at, name in enumerate(part.chosen):
            if name not in source:
                place = name if isinstance(part.chosen, dict) else str(at)
                yield (
                    (flow.kind, "columns", place),
                    f"{name!r} is no column of table {table}{unlike(name, source)}",
                )


def _time(place: tuple[str, ...], name: str, of: str, source: Types) -> Iterator[Problem]:
    known = source.get(name)
    if known is None:
        yield place, f"{name!r} is no column of {of}{unlike(name, source)}"
    elif known not in _TIMES:
        yield place, f"{name!r} is {known}: a {place[0]} needs a timestamp"


def _timed(
    kind: str, keys: str, part: Window | Session, names: list[str], source: Types
) -> Iterator[Problem]:
    """Yield problems of a part with a time, keys and measures. `keys`, `names`: its field with the
    keys, and these.
    """
    yield from _time((kind, "time"), part.time, "the source", source)
    yield from (((kind, *place), text) for place, text in _keys(keys, names, source))
    for place, text in part.expressions.items():
        for problem in expression_names.problems(text, source):
            yield (kind, *place), problem


def _ranked(
    kind: str, keys: str, part: Deduplicate | Top, order: str, source: Types
) -> Iterator[Problem]:
    """Yield keys and columns of the order that the source lacks, or that can't be compared."""
    yield from (((kind, *place), text) for place, text in _keys(keys, part.scope_keys, source))
    for at, (name, _) in enumerate(part.order):
        if name not in source:
            yield (
                (kind, order, str(at)),
                f"{name!r} is no column of the source{unlike(name, source)}",
            )


def _folded(part: Processor, source: Types) -> Iterator[Problem]:
    """Yield the time, keys and order that the source lacks, and columns by which rows can't be
    ordered.
    """
    yield from _time(("processor", "order_by", "0"), part.time, "the source", source)
    yield from (
        (("processor", *place), text) for place, text in _keys("group_by", part.group_by, source)
    )
    for at, name in enumerate(part.order_by[1:], 1):
        if name not in source:
            yield (
                ("processor", "order_by", str(at)),
                f"{name!r} is no column of the source{unlike(name, source)}",
            )
    for name, kind in source.items():
        if "map<" in kind:
            yield (
                ("processor",),
                f"the source's column {name!r} is {kind}: equal rows are ordered by their content",
            )


def _keys(part: str, names: list[str], source: Types) -> Iterator[Problem]:
    for at, name in enumerate(names):
        kind = source.get(name)
        if kind is None:
            yield (part, str(at)), f"{name!r} is no column of the source{unlike(name, source)}"
        elif (why := not_a_key(kind)) is not None:
            yield (part, str(at)), f"{name!r} {why}"


def not_a_key(kind: str) -> str | None:
    """Return why a column of that Spark SQL type can't be a key of a result; None if it can."""
    if kind in FLOATS:
        return f"is {kind}: a key needs a type that compares exactly; cast it in the source's transform"
    if "<" in kind or kind in ("variant", "json"):
        return f"is {kind}: a key needs a plain type"
    return None
