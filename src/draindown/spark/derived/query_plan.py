"""What the plan of a `query` query may contain: steps that work within the keys, so that keys can be
computed apart.

Each node of Spark's analysed plan is judged with the attributes that carry a key: a projection
passes them on, an aggregate groups by all of them, a join is equal on all of them. Every node that
is not named here is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from draindown.config.expressions import BY_ORDER
from draindown.config.generators import OF_ARRAYS
from draindown.spark.derived import plans, row_keys
from draindown.spark.derived.plans import Node, Refused, children, identity, items, kind

_MADE = re.compile(r"_we?\d+")
"""Spark's names for what it works out beneath a window function, of columns that are its input,
too.
"""
Carried = Mapping[str, str]
"""Key columns by the id of an attribute that has their value."""
_TIES_DECIDE = frozenset(
    {"RowNumber", "NTile", "Lag", "Lead", "NthValue", "First", "Last", "AnyValue"}
)
_COMMANDS = frozenset(
    {
        "UnresolvedRelation",
        "UnresolvedTableValuedFunction",
        "UnresolvedInlineTable",
        "OneRowRelation",
    }
)
_PARSED = frozenset(
    {
        *(
            "Project",
            "Filter",
            "UnresolvedHaving",
            "Aggregate",
            "Join",
            "Union",
            "Distinct",
            "SubqueryAlias",
        ),
        *("WithWindowDefinition", "UnresolvedRelation", "UnresolvedSubqueryColumnAliases"),
    }
)
"""Nodes of a parsed plan that this module judges once they are analysed. Others are refused before
the analysis.
"""


def refuse_others(parsed: Node, tables: Sequence[str]) -> None:
    """Refuse commands, other relations and files before Spark analyses the query. Raises Refused.

    Refuse a query that does not read each of `tables`, too: it would be computed again for nothing.
    """
    lowered, read = [[table.lower()] for table in tables], list[list[str]]()
    for node in plans.nodes(parsed):
        name = kind(node)
        if name == "UnresolvedRelation":
            parts = [str(part) for part in items(node.multipartIdentifier())]
            read.append([part.lower() for part in parts])
            if read[-1] not in lowered:
                what = "the source is" if len(tables) == 1 else "the sources are"
                raise Refused(f"reads {'.'.join(parts)}: {what} {', '.join(tables)}")
        elif name not in _PARSED:
            raise Refused(_unknown(node))
        _refuse_subqueries(node)
    unread = [table for table, name in zip(tables, lowered, strict=True) if name not in read]
    if unread:
        raise Refused(f"does not read {', '.join(unread)}: leave it out of the source")


@dataclass(frozen=True)
class Relation:
    """A source: the keys by its own columns, and the columns by which no two of its rows are the
    same, if any.
    """

    keys: Mapping[str, str]
    row_keys: Sequence[str] = ()


def refuse(query: DataFrame, keys: Sequence[str], tables: Mapping[str, Relation]) -> None:
    """Refuse a query with a step that does not work within the keys. Raises Refused.

    `tables`: by the lower-case name of each source.
    """
    plan = plans.analyzed(query)
    carried = _Judge(tuple(keys), tables).carried(plan)
    named = [(str(one.name()), carried.get(identity(one))) for one in items(plan.output())]
    missing = [key for key in keys if (key, key) not in named]
    if missing:
        raise Refused(f"does not return key {', '.join(missing)} of the source under its name")
    hidden = [name for name, _ in named if name.startswith("_")]
    if hidden:
        raise Refused(f"returns {hidden[0]}: names that begin with '_' are reserved for draindown")
    lowered = [name.lower() for name, _ in named]
    twice = [name for name in lowered if lowered.count(name) > 1]
    if twice:
        raise Refused(f"returns {twice[0]} twice")


class _Judge:
    """Judges the nodes of one plan, from the leaves up."""

    def __init__(self, keys: tuple[str, ...], tables: Mapping[str, Relation]) -> None:
        self._keys, self._tables = keys, tables
        self._nodes: Mapping[str, Callable[[Node], Carried]] = {
            "View": self._source,
            "SubqueryAlias": self._passing,
            "Filter": self._passing,
            "Project": self._project,
            "Aggregate": self._aggregate,
            "Join": self._join,
            "Union": self._union,
            "Distinct": self._distinct,
            "Window": self._window,
        }

    def carried(self, node: Node) -> Carried:
        """Return the attributes of a node's output that carry a key. Raises Refused."""
        judge = self._nodes.get(kind(node))
        if judge is None:
            raise Refused(_unknown(node))
        if kind(node) != "View":
            _refuse_subqueries(node)
            _refuse_chance(node)
        return judge(node)

    def _source(self, node: Node) -> Carried:
        own = _relation(node, self._tables).keys
        return {one: own[name] for one, name in plans.output(node).items() if name in own}

    def _passing(self, node: Node) -> Carried:
        return self.carried(children(node)[0])

    def _project(self, node: Node) -> Carried:
        return _through(items(node.projectList()), self.carried(children(node)[0]))

    def _aggregate(self, node: Node) -> Carried:
        below = self.carried(children(node)[0])
        grouped = {
            below.get(identity(one))
            for one in items(node.groupingExpressions())
            if _is_attribute(one)
        }
        self._refuse_without(grouped, "an aggregate must group by all keys")
        return _through(items(node.aggregateExpressions()), below)

    def _join(self, node: Node) -> Carried:
        how = str(node.joinType())
        if how not in ("Inner", "LeftOuter"):
            raise Refused(
                f"has a join of type {how}: only INNER and LEFT joins that are equal on all keys work"
            )
        left, right = (self.carried(child) for child in children(node))
        equal = set()
        for one, other in _equalities(node):
            for a, b in ((one, other), (other, one)):
                if left.get(a) is not None and left.get(a) == right.get(b):
                    equal.add(left[a])
        self._refuse_without(equal, "a join must be equal on all keys")
        return {**left, **(right if how == "Inner" else {})}

    def _union(self, node: Node) -> Carried:
        columns = zip(*(self._columns(child) for child in children(node)), strict=True)
        found = {}
        for one, keys in zip(items(node.output()), columns, strict=True):
            if keys[0] is not None and len(set(keys)) == 1:
                found[identity(one)] = keys[0]
        return found

    def _columns(self, node: Node) -> list[str | None]:
        below = self.carried(node)
        return [below.get(identity(one)) for one in items(node.output())]

    def _distinct(self, node: Node) -> Carried:
        below = self.carried(children(node)[0])
        kept = {below.get(identity(one)) for one in items(node.output())}
        self._refuse_without(kept, "DISTINCT must keep all keys")
        return below

    def _window(self, node: Node) -> Carried:
        child = children(node)[0]
        below = self.carried(child)
        by = {below.get(identity(one)) for one in items(node.partitionSpec()) if _is_attribute(one)}
        self._refuse_without(by, "a window function must be partitioned by all keys")
        ordered = {
            identity(one.child()) for one in items(node.orderSpec()) if _is_attribute(one.child())
        }
        parted = {identity(one) for one in items(node.partitionSpec()) if _is_attribute(one)}
        named = ordered | parted
        loose = [
            name
            for one, name in plans.output(child).items()
            if one not in named and not _MADE.fullmatch(name)
        ]
        telling = row_keys.of(child, lambda view: _relation(view, self._tables).row_keys)
        if loose and not (telling is not None and telling <= named):
            _refuse_ties(node, loose)
        return below

    def _refuse_without(self, found: Collection[str | None], rule: str) -> None:
        missing = [key for key in self._keys if key not in found]
        if missing:
            raise Refused(f"{rule}: {', '.join(missing)} is missing")


def _relation(view: Node, tables: Mapping[str, Relation]) -> Relation:
    return tables[str(view.desc().identifier().table()).lower()]


def _through(named: Sequence[Node], below: Carried) -> Carried:
    """Return the key attributes among named expressions: those that pass on or rename one of
    `below`.
    """
    found = {}
    for one in named:
        inner = one.child() if kind(one) == "Alias" else one
        if _is_attribute(inner) and (key := below.get(identity(inner))) is not None:
            found[identity(one)] = key
    return found


def _is_attribute(expression: Node) -> bool:
    return kind(expression) == "AttributeReference"


def _equalities(join: Node) -> Iterator[tuple[str, str]]:
    """Yield the ids of the attributes that a join's condition says are equal."""
    condition = join.condition()
    waiting = [condition.get()] if condition.isDefined() else []
    while waiting:
        one = waiting.pop()
        if kind(one) == "And":
            waiting += children(one)
        elif kind(one) in ("EqualTo", "EqualNullSafe"):
            sides = children(one)
            if all(_is_attribute(side) for side in sides):
                yield identity(sides[0]), identity(sides[1])


def _refuse_subqueries(node: Node) -> None:
    for one in plans.expressions(node):
        if plans.is_subquery(one):
            raise Refused(
                f"has a subquery within an expression ({kind(one)}), which looks beyond the keys"
            )


def _refuse_chance(node: Node) -> None:
    for one in items(node.expressions()):
        if not one.deterministic():
            inner = [each for each in plans.within(one) if not each.deterministic()][-1]
            raise Refused(
                f"{inner.prettyName()}() is not determined by the rows, or depends on their order"
            )
    for one in plans.expressions(node):
        if kind(one) == "AggregateExpression" and (name := _function(one)) in BY_ORDER:
            raise Refused(f"{name}() depends on the order of rows")


def _refuse_ties(node: Node, loose: Sequence[str]) -> None:
    """Refuse window functions whose result depends on the order of rows that ORDER BY leaves
    equal.
    """
    for one in plans.expressions(node):
        if kind(one) == "WindowExpression" and _ties_decide(one):
            raise Refused(
                f"{_function(one.windowFunction())}() depends on the order of ties: ORDER BY must name the keys of the "
                f"source's rows, or every column of its input, {', '.join(loose)} too; rank() and aggregates over "
                "RANGE frames do not depend on it"
            )


def _function(expression: Node) -> str:
    is_aggregate = kind(expression) == "AggregateExpression"
    return str((expression.aggregateFunction() if is_aggregate else expression).prettyName())


def _ties_decide(expression: Node) -> bool:
    if any(kind(one) in _TIES_DECIDE for one in plans.within(expression.windowFunction())):
        return True
    if kind(expression.windowFunction()) != "AggregateExpression":
        return False
    frame = expression.windowSpec().frameSpecification()
    if kind(frame) != "SpecifiedWindowFrame" or kind(frame.frameType()) != "RowFrame":
        return False
    return (kind(frame.lower()), kind(frame.upper())) != (
        "UnboundedPreceding",
        "UnboundedFollowing",
    )


def _unknown(node: Node) -> str:
    instead = f": {OF_ARRAYS}" if kind(node) == "Generate" else ""
    return f"has a step {kind(node).removeprefix('Unresolved')}, which does not work within the keys{instead}"
