"""The port of what reads raw records again: those of a unit of input, with values of their columns.
No JVM.

The readers are those of the audit, which shares nothing with the drain. A kind of source that has
none is said so.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from draindown.audit.values import check_of
from draindown.config.landing import FlowSpec
from draindown.sources.slices import Unit

Values = tuple[Any, ...]
Names = tuple[str, ...]
UNREADABLE = (ValueError, OverflowError, ArithmeticError)
_LITERAL = re.compile(r"[A-Za-z0-9 ._:/-]+")


@dataclass(frozen=True)
class Record:
    """A record of a unit. `read` returns values of columns; None if they can't be read, as of
    quarantined records.
    """

    position: int
    raw: bytes
    read: Callable[[Names], Values | None]


class RecordReader(Protocol):
    """Reads the records of units of one kind of source.

    `of_waiting`: in words, what is known of input that waits at the source, where `waiting` yields
    none with a record.
    """

    of_waiting: str

    def gone(self, unit: Unit) -> str:
        """Return why a unit can't be read as it was, and since when; empty if it can."""

    def records(self, unit: Unit, needles: Collection[bytes] = ()) -> Iterator[Record]:
        """Yield the records of a unit in order. `needles`: leave out those that surely hold none of
        these.
        """

    def waiting(self, root: Path) -> Iterator[Unit]:
        """Yield units at the source that no slice has yet, as far as they can be read here."""


class Typed:
    """Turns texts of a record's columns into values, as the audit reads them: `names` are columns
    of plain types.
    """

    def __init__(self, flow: FlowSpec, names: Sequence[str]) -> None:
        self._checks = [_check(flow, name) for name in names]

    def __call__(self, texts: Sequence[Any]) -> Values:
        """Return the values. Raises one of UNREADABLE."""
        return tuple(
            None if text is None else check(text)
            for check, text in zip(self._checks, texts, strict=True)
        )


def _check(flow: FlowSpec, name: str) -> Callable[[Any], Any]:
    column = flow.columns[name]
    check = check_of(column, flow.source.timezone)
    if column.type == "float":
        return lambda text: struct.unpack("f", struct.pack("f", check(text)))[0]
    return check


def json_values(flow: FlowSpec, raw: str, names: Names) -> Values | None:
    """Return columns of a row that the gate withdrew, which is kept as JSON; None if they can't be
    read.
    """
    try:
        held = json.loads(raw, parse_float=str, parse_int=str)
        texts = [None if held.get(name) is None else _as_written(held[name]) for name in names]
        return Typed(flow, names)(texts)
    except (*UNREADABLE, AttributeError):
        return None


def _as_written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def plain(flow: FlowSpec) -> list[str]:
    """Return the columns of the contract whose values can be compared: those of plain types."""
    return [
        name
        for name, column in flow.columns.items()
        if not column.is_nested and column.type not in ("json", "binary")
    ]


def needles_of(flow: FlowSpec, names: Sequence[str], keys: Collection[Values]) -> list[bytes]:
    """Return texts of which a record with one of these keys holds one, unless it has an escape;
    empty if nothing does.

    Only texts say so: a number, a date or a time may be written in several ways.
    """
    for at, name in enumerate(names):
        texts = {key[at] for key in keys}
        is_text = flow.columns[name].type == "string" and flow.written(name) is None
        if (
            is_text
            and len(texts) <= _FEW
            and all(isinstance(one, str) and _LITERAL.fullmatch(one) for one in texts)
        ):
            return [one.encode() for one in texts]
    return []


_FEW = 8  # more searches in a record take longer than to read it


def holds(raw: bytes, needles: Collection[bytes]) -> bool:
    """Return whether a record may hold one of these texts."""
    return not needles or b"\\" in raw or any(needle in raw for needle in needles)
