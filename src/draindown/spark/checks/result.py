"""The parts of a verdict that all judges share: its detail, its sample, and the verdict on what
can't be judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Literal

from pyspark.sql import DataFrame

from draindown.base.formatting import value_text
from draindown.gate.published import UNJUDGED
from draindown.runs.report import Expectation

Scope = Literal["changed", "table", "open"]
"""The rows that an expectation is about: not yet published, all, or of a history all that are valid
now.
"""
SCOPES: tuple[Scope, ...] = ("changed", "table", "open")


def scope_in(default: Scope, open_rows: DataFrame | None) -> Scope:
    """Return the scope where the suite says none: what is about the whole table is about a
    history's open rows.
    """
    return "open" if default == "table" and open_rows is not None else default


def frames(
    changed: DataFrame, table: DataFrame, open_rows: DataFrame | None
) -> list[tuple[Scope, DataFrame]]:
    """Return the rows of each scope. `open_rows`: None if the table is no history."""
    of_table: list[tuple[Scope, DataFrame]] = [("changed", changed), ("table", table)]
    return of_table if open_rows is None else [*of_table, ("open", open_rows)]


SAMPLE = 20
"""Rows that are collected from the executors and kept for each expectation that fails."""
NOT_THE_SUITES = ("result_format", "catch_exceptions", "batch_id")
"""Arguments that a suite must not set: they make GX collect without bound, pass exceptions, or read
another batch.
"""
_VALUE_LENGTH = 200
_DETAIL_LENGTH = 600
_LONG_NUMBER = 10_000  # from here on with separators; a year has none
_NAMED_ELSEWHERE = {*NOT_THE_SUITES, "column", "column_A", "column_B", "column_list"}


def unjudged(name: str, scope: Scope, why: str) -> Expectation:
    """Return the verdict on an expectation that Great Expectations can't judge: it failed."""
    return Expectation(
        name=name,
        success=False,
        scope=scope,
        detail=f"{UNJUDGED}{why}",
        judged_by="Great Expectations",
    )


def detail(config: Mapping[str, Any], observed: object = None) -> str:
    """Return the expectation's arguments, as its author wrote them, and the observed value."""
    wanted = {k: v for k, v in (config.get("kwargs") or {}).items() if k not in _NAMED_ELSEWHERE}
    parts = (
        [f"wants {', '.join(f'{k}={_spelled(v)}' for k, v in wanted.items())}"] if wanted else []
    )
    if observed is not None:
        parts.append(f"observed {_spelled(observed, quote='')}")
    return brief("; ".join(parts))


def sample(listed: Iterable[Any]) -> list[Any]:
    """Return the first SAMPLE rows or values as JSON-ready values of bounded length.

    One with decimals becomes its text: a number of JSON would lose digits, and a text in quotes is
    another value.
    """
    plain = (_plain(value) for value in list(listed)[:SAMPLE])
    return [value_text(value) if _is_exact(value) else value for value in plain]


def brief(text: str) -> str:
    """Return text as one line of bounded length."""
    return _cut(" ".join(text.split()), _DETAIL_LENGTH)


def _spelled(value: object, quote: str = "'") -> str:
    """Return a value as an author writes it: no doubled backslashes in a pattern, separators in a
    large number.
    """
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_spelled, value))}]"
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) >= _LONG_NUMBER
    ):
        return f"{value:,}"
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value[:SAMPLE]]
    if value is None or isinstance(value, (bool, int, float, Decimal)):
        return value
    return _cut(str(value), _VALUE_LENGTH)


def _is_exact(value: Any) -> bool:
    within = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    )
    return isinstance(value, Decimal) or any(map(_is_exact, within))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
