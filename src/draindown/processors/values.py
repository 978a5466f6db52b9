"""The values that a fold may give: exactly those that come back from a table, so that a stored
state goes on as one that was not stored.

Executors get this module by value: it imports the standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

Exact = Callable[[Any], Any]
"""Returns a value as it comes back from a table. Raises ValueError for one that would come back as
another.
"""
Record = Callable[[Any], dict[str, Any]]
_BITS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


def record(kinds: Mapping[str, str], what: str) -> Record:
    """Return a function that gives a dict with a value for each column, NULL for one that the given
    dict lacks.

    It raises ValueError, which names the column, for values of other types and for unknown columns.
    `kinds`: Spark SQL types by column. `what`: the dict in words, for errors.
    """
    checks = [(name, exact(kind)) for name, kind in kinds.items()]

    def checked(given: Any) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise ValueError(f"{what} must be a dict, not {_shown(given)}")
        if not given.keys() <= kinds.keys():
            unknown = ", ".join(sorted(map(str, given.keys() - kinds.keys())))
            raise ValueError(f"{what} has {unknown}, which the pipeline file does not declare")
        found = {}
        for name, check in checks:
            value = given.get(name)
            try:
                found[name] = None if value is None else check(value)
            except ValueError as error:
                raise ValueError(f"{name} of {what} {error}") from None
        return found

    return checked


def exact(kind: str) -> Exact:
    """Return the check of a Spark SQL type, in the spelling of `spec.column_types`."""
    if kind.startswith("array<"):
        return _array(kind, exact(kind[6:-1]))
    if kind.startswith("struct<"):
        return record(dict(_fields(kind[7:-1])), "a struct")
    if kind.startswith("decimal("):
        precision, _, scale = kind[8:-1].partition(",")
        return _decimal(kind, int(precision), int(scale))
    if kind in _BITS:
        return _whole(kind, 2 ** _BITS[kind])
    return _PLAIN[kind]


def _array(kind: str, element: Exact) -> Exact:
    def checked(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"is {_shown(value)}: no list, for {kind}")
        return [None if one is None else element(one) for one in value]

    return checked


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and type of the fields of a struct."""
    depth, begin, quoted = 0, 0, False
    for at, sign in enumerate(f"{text},"):
        if sign == "`":
            quoted = not quoted
        elif quoted:
            continue
        elif sign in "<(":
            depth += 1
        elif sign in ">)":
            depth -= 1
        elif sign == "," and depth == 0:
            yield _field(text[begin:at])
            begin = at + 1


def _field(text: str) -> tuple[str, str]:
    if not text.startswith("`"):
        name, _, kind = text.partition(":")
        return name, kind
    end = text.index("`:", 1)
    return text[1:end].replace("``", "`"), text[end + 2 :]


def _whole(kind: str, bound: int) -> Exact:
    def checked(value: Any) -> int:
        if type(value) is not int:
            raise ValueError(f"is {_shown(value)}: no {kind}")
        if not -bound <= value < bound:
            raise ValueError(f"is {value}, beyond {kind}")
        return value

    return checked


def _decimal(kind: str, precision: int, scale: int) -> Exact:
    unit = Decimal(1).scaleb(-scale)

    def checked(value: Any) -> Decimal:
        if type(value) is not Decimal and type(value) is not int:
            raise ValueError(f"is {_shown(value)}: no {kind}")
        given = Decimal(value)
        try:
            with localcontext() as context:
                context.prec = precision
                found = given.quantize(unit)
        except InvalidOperation:
            raise ValueError(f"is {value}, beyond {kind}") from None
        if found != given:
            raise ValueError(f"is {value}, with more digits than {kind} has: round it")
        return found

    return checked


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) <= 2**53:
        return float(value)
    raise ValueError(f"is {_shown(value)}: no double")


def _string(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"is {_shown(value)}: no string")
    if not value.isascii():
        value.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
    return value


def _timestamp(value: Any) -> datetime:
    if type(value) is not datetime or value.tzinfo is None:
        raise ValueError(f"is {_shown(value)}: no timestamp, a datetime with a time zone")
    return value if value.tzinfo is UTC else value.astimezone(UTC)


def _timestamp_ntz(value: Any) -> datetime:
    if type(value) is not datetime or value.tzinfo is not None:
        raise ValueError(f"is {_shown(value)}: no timestamp_ntz, a datetime without a time zone")
    return value


def _of(kind: type, name: str) -> Exact:
    def checked(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"is {_shown(value)}: no {name}")
        return value

    return checked


_PLAIN: Mapping[str, Exact] = {
    "boolean": _of(bool, "boolean"),
    "double": _double,
    "string": _string,
    "binary": _of(bytes, "binary"),
    "date": _of(date, "date"),
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}


def unheld(kind: str) -> str | None:
    """Return why a column of a type can't be given by a fold; None if it can."""
    if "map<" in kind or kind == "json":
        return f"is {kind}: Spark can't compare it; give its parts as columns"
    if "float" in kind:
        return f"is {kind}: a float comes back as another number; declare double"
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else f'{text[:57]}...'} ({type(value).__name__})"
