"""Rows of a history at a time: by the sequence of its events, or as the table stood then. No
JVM.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Any, TypeVar

from deltalake.exceptions import DeltaError

from draindown.base.clock import EPOCH
from draindown.base.errors import TerminalError
from draindown.config.history import History
from draindown.config.names import is_own
from draindown.config.units import parse_time
from draindown.gate import published
from draindown.lake.commits import Commit
from draindown.lake.home import FlowHome
from draindown.lake.lost_files import lost_files
from draindown.lake.table import Table, identifier, literal, moment

_T = TypeVar("_T")
_WHOLE = ("byte", "short", "integer", "long")


@dataclass(frozen=True)
class Asked:
    """A question about a history.

    Attributes:
        time: the time, as text: of the type of the first sequence column, or for `as_stood` ISO
            8601.
        keys: values of key columns, as text; empty for all keys.
        limit: at most so many rows are returned.
    """

    layout: FlowHome
    part: History
    time: str
    keys: Mapping[str, str]
    limit: int


@dataclass(frozen=True)
class Answer:
    """Rows of a history, one for each key that has one then.

    `number`: of all rows that were found, of which `rows` has the first. `version`: that of the
    table that was read.
    """

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    number: int
    version: int


def by_sequence(asked: Asked) -> Answer:
    """Return the rows of the published version that are valid at a time: from their start on,
    before their end.

    Raises ValueError if the time or a key can't be read as its column's type, and TerminalError
    `nothing-published`.
    """
    log = _published(asked.layout)
    (kind, at), part = _sequence(log), asked.part
    start, end = (f"{identifier(name)}{at}" for name in part.made)
    value = _value(kind, asked.time)
    valid = f"{start} <= {value} and ({identifier(part.END)} is null or {end} > {value})"
    return _answer(asked, log, valid)


def as_stood(asked: Asked) -> Answer:
    """Return the rows without an end in the version that the table had at a time, whatever came
    later.

    Raises ValueError as `by_sequence`, and TerminalError `history-gone` if that version can't be
    read any more or the table is younger. It names the oldest moment that can be answered.
    """
    log, at = asked.layout.tables.target, parse_time(asked.time)
    if not log.exists:
        raise _nothing(asked.layout)
    commits = sorted(log.commits(), key=lambda one: one.version)
    millis = (at - EPOCH).total_seconds() * 1000
    older = [one for one in commits if one.timestamp <= millis]
    if not older or not _is_whole(log, older[-1]):
        raise _gone(asked, at, log, commits[len(older[:-1]) :])
    return _answer(asked, log.at(older[-1].version), f"{identifier(asked.part.END)} is null")


def _answer(asked: Asked, log: Table, valid: str) -> Answer:
    kinds = log.column_types
    same = [
        f"{identifier(name)} = {_value(str(kinds[name]), text, exact=True)}"
        for name, text in asked.keys.items()
    ]
    where = " and ".join([valid, *same])
    columns = [name for name in kinds if not is_own(name)]
    order = ", ".join(map(identifier, asked.part.scope_keys))
    listed = ", ".join(map(identifier, columns))
    rows = log.rows(f"select {listed} from t where {where} order by {order} limit {asked.limit}")
    number = (
        log.rows(f"select count(*) as n from t where {where}")[0]["n"]
        if len(rows) == asked.limit
        else len(rows)
    )
    return Answer(columns, rows, int(number), log.version)


def _published(layout: FlowHome) -> Table:
    pointer, found, log = (
        published.published(layout),
        published.unpublished(layout),
        layout.tables.target,
    )
    if pointer is None or found is None or found.published is None:
        raise _nothing(layout, pointer if found else None)
    return log.at(found.published.version)


def _sequence(log: Table) -> tuple[str, str]:
    """Return the type of the first sequence column, and how it is reached within start and end."""
    kind = log.column_types[History.START]
    kind = json.loads(kind) if isinstance(kind, str) and kind.startswith("{") else kind
    if isinstance(kind, str):
        return kind, ""
    first = kind["fields"][0]
    return str(first["type"]), f"[{literal(first['name'])}]"


def _value(kind: str, text: str, *, exact: bool = False) -> str:
    """Return text as a literal of one of Delta's types: of a decimal the greatest that is not above
    it.

    NULL, with which nothing compares, if there is none, or with `exact` if it is no value of the
    type. Raises ValueError if the text can't be read.
    """
    match kind:
        case "timestamp":
            return moment(parse_time(text))
        case "timestamp_ntz":
            return moment(parse_time(text).replace(tzinfo=None))
        case "date":
            return f"cast({literal(_read(date.fromisoformat, text, 'date such as 2026-01-31').isoformat())} as date)"
        case "string":
            return literal(text)
        case _ if kind in _WHOLE:
            return str(_read(int, text, "whole number"))
        case _ if kind.startswith("decimal"):
            return _decimal(kind, _read(_number, text, "number"), exact=exact)
    raise ValueError(f"values of type {kind} can't be given as text; ask the table with SQL")


def _read(read: Callable[[str], _T], text: str, what: str) -> _T:
    try:
        return read(text)
    except (ValueError, InvalidOperation):
        raise ValueError(f"{text!r} is no {what}") from None


def _number(text: str) -> Decimal:
    found = Decimal(text)
    if not found.is_finite():
        raise ValueError(text)
    return found


def _decimal(kind: str, number: Decimal, *, exact: bool) -> str:
    precision, scale = (int(part) for part in kind[len("decimal(") : -1].split(","))
    greatest = Decimal((0, (9,) * precision, -scale))
    if not -greatest <= number <= greatest:
        found = None if exact or number < 0 else greatest
    else:
        digits = Context(prec=2 * precision + 2)  # the default's 28 are fewer than a decimal's 38
        found = number.quantize(greatest, ROUND_FLOOR, digits)
        found = None if exact and found != number else found
    return "null" if found is None else f"cast({literal(format(found, 'f'))} as {kind})"


def _is_whole(log: Table, commit: Commit) -> bool:
    """Return whether a version can be read: its log and all its files are there."""
    try:
        return not lost_files(log.at(commit.version))
    except DeltaError:
        return False


def _nothing(layout: FlowHome, pointer: published.Published | None = None) -> TerminalError:
    """Return the error for a table without a published version. `pointer`: the published one that
    it does not have.
    """
    lost = (
        pointer
        and f"version {pointer.version} passed a check, which the table as it is does not have"
    )
    return TerminalError(
        "nothing-published",
        tried=f"read the history {layout.tables.target.path}",
        found=lost or "no version of it has passed a check yet",
        changed="nothing",
        next=f"draindown run {layout.pipeline}/{layout.flow}",
    )


def _gone(asked: Asked, at: datetime, log: Table, later: Sequence[Commit]) -> TerminalError:
    """Return the error for a moment whose version is not there. `later`: the commits from that
    moment on, in order.
    """
    layout = asked.layout
    first = bisect_left(later, True, key=lambda one: _is_whole(log, one))
    oldest = datetime.fromtimestamp(later[min(first, len(later) - 1)].timestamp / 1000, UTC)
    return TerminalError(
        "history-gone",
        tried=f"read the table {layout.tables.target.path} as it stood at {at.isoformat()}",
        found="it was not there yet, or old files of it are removed by now (maintenance: retain). "
        f"The oldest moment that can be answered is {oldest.isoformat()}",
        changed="nothing",
        next=f"draindown as-of {layout.pipeline}/{layout.tables.target.path.rpartition('/')[2]} TIME   "
        "# what all events that came until now say of a time",
    )
