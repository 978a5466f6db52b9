"""Which attributes of a plan's node tell its rows apart, so that an order by them has no ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from draindown.spark.derived import plans
from draindown.spark.derived.plans import Node, children, identity, items, kind

Keys = frozenset[str] | None
"""Ids of attributes of which no two rows have the same values, NULL being one; None if none are
known.
"""


def of(node: Node, row_keys: Callable[[Node], Sequence[str]]) -> Keys:
    """Return the attributes that tell the rows of a node apart. `row_keys`: the names of those of a
    view.
    """
    match kind(node):
        case "View":
            return _named(node, row_keys(node))
        case "SubqueryAlias" | "Filter" | "Window":
            return of(children(node)[0], row_keys)
        case "Project":
            return _renamed(of(children(node)[0], row_keys), items(node.projectList()))
        case "Aggregate":
            grouped = items(node.groupingExpressions())
            known = all(kind(one) == "AttributeReference" for one in grouped)
            return _renamed(
                frozenset(map(identity, grouped)) if known else None,
                items(node.aggregateExpressions()),
            )
        case "Distinct":
            return frozenset(plans.output(node))
        case "Join":
            return reduce(_both, (of(child, row_keys) for child in children(node)))
        case _:
            return None


def _named(view: Node, names: Sequence[str]) -> Keys:
    found = [one for one, name in plans.output(view).items() if name in names]
    return frozenset(found) if names and len(found) == len(names) else None


def _renamed(below: Keys, named: Sequence[Node]) -> Keys:
    """Return the attributes above a projection that pass on or rename those `below`; None if one is
    not passed on.
    """
    to: dict[str, str] = {}
    for one in named:
        inner = one.child() if kind(one) == "Alias" else one
        if kind(inner) == "AttributeReference":
            to[identity(inner)] = identity(one)
    return None if below is None or not below <= to.keys() else frozenset(to[one] for one in below)


def _both(left: Keys, right: Keys) -> Keys:
    return None if left is None or right is None else left | right
