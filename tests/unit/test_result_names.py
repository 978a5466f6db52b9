"""Names of columns: which two are one, and which no table can hold."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from draindown.base.errors import TerminalError
from draindown.config.base import repeated
from draindown.config.column_types import UNSTORED
from draindown.config.landing import FlowSpec
from draindown.config.names import caseless
from draindown.spark.contract.transforms import _hold_to_names
from draindown.spark.sql import unstored

NAMES = st.text("aAsSßẞ\u017fiI\u0131\u0130kK\u212aµ\u03bc\u039c", min_size=1, max_size=3)
INT = IntegerType()


def of(*names: str, kind: DataType = INT) -> StructType:
    return StructType([StructField(name, kind) for name in names])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("straße", "strasse", False),
        ("straße", "STRASSE", False),
        ("straße", "STRAẞE", True),
        ("ﬁrst", "first", False),
        ("kelvin", "\u212aelvin", True),
        ("id", "\u0131d", True),
        ("id", "\u0130d", True),
        ("\u017fum", "sum", True),
        ("µ", "\u039c", True),
    ],
)
def test_two_names_are_one_where_java_says_so(one: str, other: str, same: bool) -> None:
    assert (caseless(one) == caseless(other)) is same


def accepts(names: Sequence[str]) -> bool:
    content = {"source": {"files": "x", "format": "json"}, "columns": dict.fromkeys(names, "int")}
    try:
        return bool(FlowSpec.model_validate(content))
    except ValidationError:
        return False


@given(st.lists(NAMES, min_size=1, max_size=4, unique=True))
def test_a_contract_may_name_what_a_transform_may_return(names: list[str]) -> None:
    distinct = not repeated(names)
    assert accepts(names) is distinct
    if distinct:
        _hold_to_names(of(*names), "m.f")
        return
    with pytest.raises(TerminalError) as error:
        _hold_to_names(of(*names), "m.f")
    assert error.value.code == "transform-bad-names"


@pytest.mark.parametrize("character", sorted(UNSTORED))
def test_a_name_that_no_table_can_hold_is_found_at_any_depth(character: str) -> None:
    bad = f"net{character}total"
    assert list(unstored(of("a.b", "c-d", "é"))) == []
    assert list(unstored(of("a", bad))) == [bad]
    nested = of("s", kind=ArrayType(MapType(of("k", bad), of("v", "w", kind=of(bad)))))
    assert list(unstored(nested)) == [f"s.{bad}", f"s.v.{bad}", f"s.w.{bad}"]
    with pytest.raises(TerminalError) as error:
        _hold_to_names(
            StructType([StructField("s", of(bad)), StructField("t", StringType())]), "m.f"
        )
    assert error.value.code == "transform-bad-names" and f"column s.{bad}: " in error.value.found
