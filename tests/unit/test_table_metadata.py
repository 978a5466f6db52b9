"""Alterations of a table's columns: random sequences against an oracle that tracks each column by
itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from draindown.lake.metadata import Alteration, Shape, alterations, beside

MAPPED = {"delta.columnMapping.mode": "name"}


def column(
    name: str, kind: Any = "string", *, physical: str = "", nullable: bool = True, **metadata: Any
) -> Any:
    mapping = (
        {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": 1}
        if physical
        else {}
    )
    return {"name": name, "type": kind, "nullable": nullable, "metadata": mapping | metadata}


def struct(*fields: Any) -> Any:
    return {"type": "struct", "fields": list(fields)}


def shape(
    *fields: Any, mapped: bool = False, partitions: tuple[str, ...] = (), **properties: str
) -> Shape:
    return Shape(list(fields), "id", partitions, properties | (MAPPED if mapped else {}))


def harmful(before: Shape, now: Shape) -> list[Alteration]:
    return [one for one in alterations(before, now) if not one.harmless]


V, N = column("v"), column("n", "integer")
HARMFUL = {
    "renamed": (shape(column("w", physical="v"), N, mapped=True), "RENAME COLUMN `w` TO `v`"),
    "swapped": (
        shape(column("n", physical="v"), column("v", "integer", physical="n"), mapped=True),
        "",
    ),
    "dropped": (shape(N), ""),
    "dropped and added": (shape(column("v", physical="col-1"), N, mapped=True), ""),
    "of another type": (shape(V, column("n", "long")), ""),
    "not null": (
        shape(V, column("n", "integer", nullable=False)),
        "ALTER COLUMN `n` DROP NOT NULL",
    ),
    "in other case": (shape(column("V", physical="v"), N, mapped=True), "RENAME COLUMN `V` TO `v`"),
    "generated": (shape(V, column("n", "integer", **{"delta.generationExpression": "1"})), ""),
    "identity": (shape(V, column("n", "integer", **{"delta.identity.start": 1})), ""),
    "of fixed length": (shape(column("v", __CHAR_VARCHAR_TYPE_STRING="char(2)"), N), ""),
    "collated": (shape(column("v", __COLLATIONS={"v": "spark.UTF8_LCASE"}), N), ""),
    "partitioned": (shape(V, N, partitions=("v",)), ""),
    "replaced": (Shape([V, N], "another id"), ""),
    "added, not null": (shape(V, N, column("x", nullable=False)), "DROP COLUMN `x`"),
}


@pytest.mark.parametrize("form", HARMFUL)
def test_what_a_column_means_holds_or_is_called_is_harmful(form: str) -> None:
    now, undo = HARMFUL[form]
    found = harmful(shape(V, N), now)
    assert found and all(one.found for one in found)
    assert not undo or undo in [one.undo for one in found]
    assert bool(undo) == all(one.undo for one in found)
    assert harmful(now, now) == []


HARMLESS = {
    "a comment": shape(column("v", comment="said"), N),
    "a default": shape(column("v", CURRENT_DEFAULT="'x'"), N),
    "a column": shape(V, N, column("x")),
    "an order": shape(N, V),
    "a property": shape(V, N, **{"delta.targetFileSize": "1mb"}),
    "a constraint": shape(V, N, **{"delta.constraints.pos": "n > 0"}),
    "append-only": shape(V, N, **{"delta.appendOnly": "true"}),
    "a mapping": shape(
        column("v", physical="v"), column("n", "integer", physical="n"), mapped=True
    ),
}


@pytest.mark.parametrize("form", HARMLESS)
def test_what_changes_no_value_is_harmless(form: str) -> None:
    assert harmful(shape(V, N), HARMLESS[form]) == []
    reported = [one.found for one in alterations(shape(V, N), HARMLESS[form])]
    assert bool(reported) == (form not in ("an order", "a mapping"))


def test_columns_that_keep_their_names_when_the_mapping_is_dropped_are_the_same() -> None:
    mapped = shape(column("w", physical="v"), N, mapped=True)
    assert harmful(mapped, shape(column("w"), N)) == []
    assert [one.column for one in harmful(mapped, shape(V, N))] == ["w"]


def test_fields_within_columns_are_compared_too() -> None:
    def nested(*fields: Any) -> Shape:
        kinds = {
            "type": "map",
            "keyType": "string",
            "valueType": struct(*fields),
            "valueContainsNull": True,
        }
        array = {"type": "array", "elementType": kinds, "containsNull": True}
        return shape(column("s", array, physical="s"), mapped=True)

    a = column("a", "integer", physical="a")
    renamed = harmful(nested(a), nested(column("b", "integer", physical="a")))
    assert [(one.column, one.undo) for one in renamed] == [
        ("s.element.value.a", "RENAME COLUMN `s`.`element`.`value`.`b` TO `a`")
    ]
    assert [one.column for one in harmful(nested(a), nested(column("a", "long", physical="a")))]
    assert [one.column for one in harmful(nested(a), nested(a, column("b", physical="b")))] == [
        "s.element.value.b"
    ]
    assert [one.column for one in harmful(nested(a), nested())] == ["s.element.value.a"]


class Columns:
    """A mapped table whose columns are told apart by a number of their own: the oracle."""

    def __init__(self, names: list[str]) -> None:
        self.made = len(names)
        self.columns = {at: (name, "integer") for at, name in enumerate(names)}
        self.first = dict(self.columns)

    def shape(self) -> Shape:
        fields = (
            column(name, kind, physical=f"p{at}") for at, (name, kind) in self.columns.items()
        )
        return shape(*fields, mapped=True)

    def step(self, draw: random.Random) -> None:
        free = sorted({*"abcdef"} - {name for name, _ in self.columns.values()})
        at = draw.choice(sorted(self.columns))
        name, kind = self.columns[at]
        match draw.choice(("rename", "drop", "add", "widen")):
            case "rename" if free:
                self.columns[at] = (draw.choice(free), kind)
            case "drop" if len(self.columns) > 1:
                del self.columns[at]
            case "add" if free:
                self.columns[self.made] = (draw.choice(free), "integer")
                self.made += 1
            case "widen":
                self.columns[at] = (name, "long")

    @property
    def lost(self) -> set[str]:
        """Names of the first columns that are not as they were."""
        return {
            name for at, (name, kind) in self.first.items() if self.columns.get(at) != (name, kind)
        }


@pytest.mark.parametrize("seed", range(200))
def test_random_alterations_are_harmful_exactly_where_a_first_column_differs(seed: int) -> None:
    draw = random.Random(seed)
    table = Columns(list("abcd"[: draw.randint(1, 4)]))
    before = table.shape()
    for _ in range(draw.randint(0, 6)):
        table.step(draw)
        assert {one.column for one in harmful(before, table.shape())} == table.lost


BESIDE: dict[str, Callable[[], Shape]] = {
    "renamed": lambda: shape(column("w", physical="v"), mapped=True),
    "added again": lambda: shape(column("v", physical="col-1"), mapped=True),
    "dropped": lambda: shape(V, mapped=True, **{"delta.columnMapping.maxColumnId": "2"}),
    "constrained": lambda: shape(V, **{"delta.constraints.c": "v > 'a'"}),
    "append-only": lambda: shape(V, **{"delta.appendOnly": "true"}),
    "generated": lambda: shape(column("v", **{"delta.generationExpression": "1"})),
}


@pytest.mark.parametrize("form", BESIDE)
def test_a_table_beside_the_target_tells_alone_that_it_was_altered(form: str) -> None:
    found = beside(BESIDE[form]())
    assert bool(found[0].undo) == (form in ("renamed", "constrained", "append-only"))
    assert beside(shape(V, N, comment="x")) == []
    fine = {"delta.columnMapping.maxColumnId": "1"}
    assert beside(shape(column("v", physical="v"), mapped=True, **fine)) == []
