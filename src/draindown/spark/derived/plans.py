"""Read Spark's logical plans through Py4J: nodes, expressions, attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

Node = Any
"""A Java object: a logical plan, or an expression of one."""
_SUBQUERIES = frozenset(
    {
        "ScalarSubquery",
        "ListQuery",
        "Exists",
        "LateralSubquery",
        "InSubquery",
        "DynamicPruningSubquery",
    }
)


class Refused(Exception):
    """A derivation does something that can't be kept exact. The text says what."""


def analyzed(frame: DataFrame) -> Node:
    """Return the analysed plan of a frame."""
    return frame._jdf.queryExecution().analyzed()


def kind(node: Node) -> str:
    """Return the class name of a node or expression, without its package."""
    return str(node.getClass().getSimpleName()).rstrip("$")


def items(found: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [found.apply(at) for at in range(found.size())]


def children(node: Node) -> list[Node]:
    """Return the children of a node or expression."""
    return items(node.children())


def nodes(plan: Node) -> Iterator[Node]:
    """Yield a plan's nodes, each before its children. The plan of a view is not entered."""
    yield plan
    if kind(plan) != "View":
        for child in children(plan):
            yield from nodes(child)


def expressions(node: Node) -> Iterator[Node]:
    """Yield all expressions of one node, each before its children."""
    for one in items(node.expressions()):
        yield from within(one)


def within(expression: Node) -> Iterator[Node]:
    """Yield an expression and all expressions in it, each before its children."""
    yield expression
    for child in children(expression):
        yield from within(child)


def is_subquery(expression: Node) -> bool:
    """Return whether an expression runs a query of its own."""
    return kind(expression) in _SUBQUERIES


def identity(attribute: Node) -> str:
    """Return the id of an attribute or alias, which is unique within a plan."""
    return str(attribute.exprId())


def span(expression: Node) -> tuple[int, int] | None:
    """Return where an expression stands in the text of its query: its start and its end; None if
    that is not known.
    """
    origin = expression.origin()
    start, stop = origin.startIndex(), origin.stopIndex()
    return None if start.isEmpty() or stop.isEmpty() else (int(start.get()), int(stop.get()) + 1)


def output(node: Node) -> dict[str, str]:
    """Return the names of a node's output columns by attribute id."""
    return {identity(one): str(one.name()) for one in items(node.output())}


def optimized(frame: DataFrame) -> Node:
    """Return the optimised plan of a frame, in which columns that nothing depends on are pruned."""
    return frame._jdf.queryExecution().optimizedPlan()


def read(plan: Node) -> set[str]:
    """Return the names of the columns of the plan's leaves that the nodes above them refer to.

    A leaf that occurs twice, as in a join with itself, has other attribute ids the second time.
    """
    names: dict[str, str] = {}
    referred = {identity(one) for one in items(plan.output())}
    for node in nodes(plan):
        if children(node):
            referred |= {
                identity(one) for one in expressions(node) if kind(one) == "AttributeReference"
            }
        else:
            names |= output(node)
    return {name for one, name in names.items() if one in referred}
