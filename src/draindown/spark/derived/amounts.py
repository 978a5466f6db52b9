"""The size of what a sum or an average of doubles adds up: a share of it is lost by the order in
which Spark adds.

It is told of an aggregate that is one such call, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame

from draindown.proof.windows import scale_of
from draindown.spark.derived import plans
from draindown.spark.derived.averages import is_argument
from draindown.spark.derived.plans import Node, items, kind

VALUE, SCALE = "value", "scale"
_CALL = re.compile(r"\s*(?:try_)?(sum|avg|mean)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_FLOATS = ("float", "double")


def of_measures(measures: Mapping[str, str], rows: DataFrame) -> dict[str, str]:
    """Return the aggregate with the scale of each measure that has one, by `scale_of` its name."""
    return {
        scale_of(name): scale
        for name, text in measures.items()
        if (scale := _scale(text)) and any(_floats(plans.analyzed(rows.selectExpr(text))))
    }


def in_query(sql: str, analyzed: Node) -> tuple[str, list[str]]:
    """Return a query in which columns that have a scale are structs of VALUE and SCALE, and the
    names of these.

    `analyzed`: the query's plan.
    """
    found = {str(one.name()): plans.span(function) for one, function in _floats(analyzed)}
    told = list[str]()
    for name, place in sorted(
        ((name, place) for name, place in found.items() if place), key=lambda one: -one[1][0]
    ):
        start, stop = place
        if scale := _scale(sql[start:stop]):
            sql = (
                f"{sql[:start]}struct({sql[start:stop]} as {VALUE}, {scale} as {SCALE}){sql[stop:]}"
            )
            told.append(name)
    return sql, told


def _floats(plan: Node) -> Iterator[tuple[Node, Node]]:
    """Yield the columns of an aggregate that are one sum or average of doubles, each with that
    function.
    """
    for one in items(plan.aggregateExpressions()) if kind(plan) == "Aggregate" else ():
        inner = one.child() if kind(one) == "Alias" else one
        if (
            kind(inner) == "AggregateExpression"
            and not inner.isDistinct()
            and inner.filter().isEmpty()
        ):
            function = inner.aggregateFunction()
            if (
                kind(function) in ("Sum", "Average")
                and str(function.child().dataType().simpleString()) in _FLOATS
            ):
                yield one, function


def _scale(call: str) -> str | None:
    """Return the aggregate with the scale of one that is a call and nothing else; None for
    others.
    """
    found = _CALL.fullmatch(call)
    return f"{found[1]}(abs({found[2].strip()}))" if found and is_argument(found[2]) else None
