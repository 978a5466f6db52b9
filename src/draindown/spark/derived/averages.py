"""Averages of `bigint`: Spark adds them as doubles, and loses digits where large numbers cancel
out.

They are written as an exact sum over a count. Where that can't be done by the text alone, the query
is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyspark.sql import DataFrame

from draindown.spark.derived import plans
from draindown.spark.derived.plans import Node, Refused

_NAMED = re.compile(r"\b(?:try_)?(?:avg|mean)\b", re.IGNORECASE)
_CALL = re.compile(r"\s*(?:avg|mean)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_DISTINCT = re.compile(r"\s*(?:distinct|all)\b", re.IGNORECASE)
_EXACT = "(cast(sum(cast({0} as decimal(20,0))) as double) / nullif(count({0}), 0))"


def exact_measure(text: str, rows: DataFrame) -> str:
    """Return an aggregate over rows in which the average of a `bigint` is exact. Raises Refused if
    it can't be.
    """
    if not _NAMED.search(text):
        return text
    return _exact(text) if any(_averages(plans.analyzed(rows.selectExpr(text)))) else text


def exact_query(sql: str, analyzed: Node) -> str:
    """Return a query in which averages of `bigint` are exact. `analyzed`: its plan. Raises Refused
    if they can't be.
    """
    found = {_place(one) for one in _averages(analyzed)}
    for start, stop in sorted(found, reverse=True):
        sql = sql[:start] + _exact(sql[start:stop]) + sql[stop:]
    return sql


def _averages(plan: Node) -> Iterator[Node]:
    for node in plans.nodes(plan):
        for one in plans.expressions(node):
            if (
                plans.kind(one) == "Average"
                and str(one.child().dataType().simpleString()) == "bigint"
            ):
                yield one


def _place(average: Node) -> tuple[int, int]:
    found = plans.span(average)
    if found is None:
        raise Refused(_told("avg(v)"))
    return found


def _exact(call: str) -> str:
    found = _CALL.fullmatch(call)
    if found is None or not is_argument(found[1]):
        raise Refused(_told(call.strip()))
    return _EXACT.format(found[1].strip())


def is_argument(text: str) -> bool:
    """Return whether a text within parentheses is certain to be the one argument of an aggregate,
    without a clause.
    """
    return _is_balanced(text) and not _DISTINCT.match(text)


def _is_balanced(text: str) -> bool:
    """Return whether no parenthesis closes that the text did not open."""
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return not depth and "'" not in text and "--" not in text


def _told(call: str) -> str:
    return (
        f"{call} is the average of a bigint, which Spark adds as doubles: digits are lost. "
        f"Write {_EXACT.format('v')} with your column for v"
    )
