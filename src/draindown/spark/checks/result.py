"""What a verdict says, whoever reached it: its detail, its sample, and why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from draindown.gate.published import UNJUDGED
from draindown.runs.report import Expectation

Scope = Literal["changed", "table"]
SAMPLE = 20
"""Rows kept per expectation that fails; no more than these are collected from the executors."""
NOT_THE_SUITES = ("result_format", "catch_exceptions", "batch_id")
"""What a suite could set to make GX collect without bound, let an exception pass, or look at another batch."""
_VALUE_LENGTH = 200
_DETAIL_LENGTH = 600
_LONG_NUMBER = 10_000  # a year is no such number
_NAMED_ELSEWHERE = {*NOT_THE_SUITES, "column", "column_A", "column_B", "column_list"}


def unjudged(name: str, scope: Scope, why: str) -> Expectation:
    """The verdict on what Great Expectations, the last resort, can't judge: it failed."""
    return Expectation(name=name, success=False, scope=scope, detail=f"{UNJUDGED}{why}", judged_by="Great Expectations")


def detail(config: Mapping[str, Any], observed: object = None) -> str:
    """What an expectation wants, as its author spelled it, and what was observed."""
    wanted = {k: v for k, v in (config.get("kwargs") or {}).items() if k not in _NAMED_ELSEWHERE}
    parts = [f"wants {', '.join(f'{k}={_spelled(v)}' for k, v in wanted.items())}"] if wanted else []
    if observed is not None:
        parts.append(f"observed {_spelled(observed, quote='')}")
    return brief("; ".join(parts))


def sample(listed: Iterable[Any]) -> list[Any]:
    """The first of these rows or values, each as plain JSON and cut short."""
    return [_plain(value) for value in list(listed)[:SAMPLE]]


def brief(text: str) -> str:
    """One line of bounded length."""
    return _cut(" ".join(text.split()), _DETAIL_LENGTH)


def _spelled(value: object, quote: str = "'") -> str:
    """As its author would write it: a regular expression with single backslashes, a big number with separators."""
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_spelled, value))}]"
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) >= _LONG_NUMBER:
        return f"{value:,}"
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value[:SAMPLE]]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _cut(str(value), _VALUE_LENGTH)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
