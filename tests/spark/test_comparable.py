"""Values that Spark can't compare, made comparable: maps by their entries, whatever the order of
these.
"""

from __future__ import annotations

from itertools import permutations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.spark.targets.resolution import comparable

ONE, OTHER, MORE = "map({0}, {1}, {2}, {3})", "map({2}, {3}, {0}, {1})", "map({0}, {1}, {2}, {1})"
KEYS = {
    "string": ("'a'", "'b'"),
    "int": ("2", "10"),
    "binary": ("X'00ff'", "X'0100'"),
    "timestamp": ("timestamp'2026-01-01 00:00:00'", "timestamp'2026-01-01 00:00:01'"),
    "struct<a: int, b: binary>": ("struct(1, X'00')", "struct(1, X'01')"),
    "array<binary>": ("array(X'00')", "array(X'01')"),
}
AROUND = {
    "a map": ("{0}", "{1}"),
    "a struct": ("named_struct('x y', {0}, 'n', 1)", "struct<`x y`: {1}, n: int>"),
    "an array": ("array({0}, null)", "array<{1}>"),
    "a map in a map": ("map('k', {0})", "map<string, {1}>"),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("key", KEYS)
def test_maps_compare_by_their_entries(spark: SparkSession, key: str, around: str) -> None:
    wrap, kind = AROUND[around]
    type_ = kind.format("", f"map<{key}, int>")
    made = [
        wrap.format(one.format(KEYS[key][0], "1", KEYS[key][1], "2")) for one in (ONE, OTHER, MORE)
    ]
    rows = " union all ".join(
        f"select {n} as n, cast({one} as {type_}) as m" for n, one in enumerate([*made, "null"])
    )
    frame = spark.sql(rows).repartition(4)  # each map is an object of its own
    found = frame.select(
        "n", comparable(frame.schema["m"].dataType, F.col("m")).alias("c")
    ).collect()
    value = {row["n"]: row["c"] for row in found}
    assert value[0] == value[1] and value[3] is None
    assert all(value[one] != value[other] for one, other in permutations((1, 2), 2))


def test_what_holds_no_map_is_compared_as_it_is(spark: SparkSession) -> None:
    frame = spark.sql("select array(1) as m")
    (row,) = frame.select(comparable(frame.schema["m"].dataType, F.col("m")).alias("c")).collect()
    assert row["c"] == [1]


def test_a_map_whose_entries_are_in_order_is_compared_as_before(spark: SparkSession) -> None:
    """The winner of a tie in an existing table does not change."""
    frame = spark.sql("select map('a', 1, 'b', 2) as m")
    (row,) = frame.select(comparable(frame.schema["m"].dataType, F.col("m")).alias("c")).collect()
    assert row["c"] == '{"a":1,"b":2}'
