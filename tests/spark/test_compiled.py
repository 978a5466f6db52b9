"""Compiled expectations say what Great Expectations itself says, over whatever rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from draindown.gate import suite as gate_suite
from draindown.runs.report import Expectation
from draindown.spark.checks import aggregate, gx, judge
from draindown.spark.session import INTERPRETED, configured

SCHEMA = (
    "id string, t string, u string, i int, j int, l bigint, f float, d double, m decimal(12,2), day date, "
    "at timestamp, b boolean, `odd name` string, part struct<x: int>"
)
# The same examples every time: a failure in CI is one that anybody can have.
_STABLE = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
_FEW, _MANY = settings(_STABLE, max_examples=1), settings(_STABLE, max_examples=40)

_TEXTS = ["", "a", "b", "ab", "A", "a\nb", "ä", "𝄞", "2026-01-02", "12", " ", "x" * 300]
_INTS = [0, 1, -1, 7, 2**31 - 1, -(2**31)]
_LONGS = [*_INTS, 2**53, 2**53 + 1, -(2**63), 2**63 - 1]
_FLOATS = [0.0, -0.0, 1.0, 1.5, -7.25, math.nan, math.inf, -math.inf]
_MONEY = [Decimal("0.00"), Decimal("1.50"), Decimal("-7.25"), Decimal("9999999999.99")]
_DAYS = [date(2025, 12, 31), date(2026, 1, 1), date(2026, 1, 2), date(1, 1, 1), date(9999, 12, 31)]
_TIMES = [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 23, 59, 59, 999999, tzinfo=UTC)]
_ROW = st.tuples(
    *(
        st.sampled_from([None, *values])
        for values in (
            *([*_TEXTS] for _ in range(2)),
            *([*_INTS] for _ in range(2)),
            *(
                _LONGS,
                [0.0, 1.5, -7.25, math.nan, math.inf],
                _FLOATS,
                _MONEY,
                _DAYS,
                _TIMES,
                [True, False],
            ),
            *(_TEXTS, [(1,), (None,)]),
        )
    )
)


def _rows(low: int, high: int) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Rows with keys; where there may be many, not all the same."""
    listed = st.lists(_ROW, min_size=low, max_size=high).filter(
        lambda rows: len(set(map(repr, rows))) >= low
    )
    return listed.map(lambda rows: [(f"k{n}", *row) for n, row in enumerate(rows)])


_NUMBERS = ["i", "j", "l", "f", "d", "m"]
_COLUMNS = ["t", "u", *_NUMBERS, "day", "at", "b"]
_MOSTLY = st.sampled_from(
    [{}, {}, {"mostly": 1}, {"mostly": 0.5}, {"mostly": 0.75}, {"mostly": 0}, {"mostly": 1 / 3}]
)
_STRICT = st.fixed_dictionaries(
    {}, optional={"strict_min": st.booleans(), "strict_max": st.booleans()}
)
_PATTERNS = st.sampled_from(
    [r"^a", r"b$", r"^\d+$", ".", r"^$", "(?i)A", r"\p{L}", "a|b", r"^\w\s\w$"]
)


def _expects(kind: str, *parts: Any) -> st.SearchStrategy[dict[str, Any]]:
    """An expectation whose arguments are those of all parts together."""
    fixed = (st.just(part) if isinstance(part, dict) else part for part in parts)
    return st.tuples(*fixed).map(
        lambda found: {"type": kind, "kwargs": {k: v for part in found for k, v in part.items()}}
    )


def _one(
    name: str, values: Sequence[Any] | st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    source = values if isinstance(values, st.SearchStrategy) else st.sampled_from(list(values))
    return source.map(lambda value: {name: value})


def _bounds(values: Sequence[Any]) -> st.SearchStrategy[dict[str, Any]]:
    ends = st.tuples(*(st.sampled_from([None, *values]) for _ in range(2)))
    given = ends.map(
        lambda pair: {
            k: v for k, v in zip(("min_value", "max_value"), pair, strict=True) if v is not None
        }
    )
    return st.tuples(given, _STRICT).map(lambda found: found[0] | found[1])


def _set(values: Sequence[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _one("value_set", st.lists(st.sampled_from(list(values)), max_size=4))


_BOUNDS = [0, 1, -7.25, 1.5, 7, 2**53 + 1, -1]
_DATES = [
    "2026-01-01",
    "2025-12-31",
    "0001-01-01",
    "9999-12-31",
    "2026-01-01T12:00:00",
    "2026-01-01 12:00:00.5Z",
]
_DATES += ["2025-12-31T23:30-02:00", "2026-01-01T24:00", "2026", "soon"]
_LENGTHS = [0, 1, 2, 300]
_OVER_ANY = [
    _expects(
        f"expect_column_values_to_{what}", _one("column", [*_COLUMNS, "part", "odd name"]), _MOSTLY
    )
    for what in ("be_null", "not_be_null", "be_unique")
]
_SETS = [
    _expects(f"expect_column_values_to_{what}", _one("column", columns), _set(values), _MOSTLY)
    for what in ("be_in_set", "not_be_in_set")
    for columns, values in (
        ("tu", _TEXTS),
        ("ijl", [*_INTS, 2**40]),
        ("fd", [0.0, 1.5, -7.25]),
        (["t", "i", "b", "m", "day"], ["1", 1, None, True, "2026-01-01"]),
    )
]
_RANGES = [
    _expects(
        "expect_column_values_to_be_between", _one("column", columns), _bounds(values), _MOSTLY
    )
    for columns, values in (
        (_NUMBERS, _BOUNDS),
        (["day", "at"], _DATES),
        (["t", "b", "day"], [*_BOUNDS, *_DATES]),
    )
]
_TEXTUAL = [
    _expects(
        "expect_column_values_to_match_regex",
        _one("column", "tui"),
        _one("regex", _PATTERNS),
        _MOSTLY,
    ),
    _expects(
        "expect_column_values_to_not_match_regex",
        _one("column", "tu"),
        _one("regex", _PATTERNS),
        _MOSTLY,
    ),
    _expects(
        "expect_column_values_to_match_regex_list",
        _one("column", "tu"),
        _one("regex_list", st.lists(_PATTERNS, max_size=3)),
        st.sampled_from([{}, {"match_on": "any"}, {"match_on": "all"}]),
        _MOSTLY,
    ),
    _expects(
        "expect_column_values_to_not_match_regex_list",
        _one("column", "tu"),
        _one("regex_list", st.lists(_PATTERNS, max_size=3)),
        _MOSTLY,
    ),
    _expects(
        "expect_column_value_lengths_to_be_between",
        _one("column", "tui"),
        _bounds(_LENGTHS),
        _MOSTLY,
    ),
    _expects(
        "expect_column_value_lengths_to_equal",
        _one("column", "tu"),
        _one("value", _LENGTHS),
        _MOSTLY,
    ),
]
_IGNORED = ["both_values_are_missing", "either_value_is_missing", "neither"]
_PAIR = st.sampled_from(["tu", "ij", "id", "ld", "mf", "ti", ("at", "day"), ("day", "day")]).map(
    lambda pair: {"column_A": pair[0], "column_B": pair[1]}
)
_PAIRS = [
    _expects(
        kind,
        _PAIR,
        st.sampled_from([{}, *({"ignore_row_if": ignored} for ignored in _IGNORED)]),
        more,
        _MOSTLY,
    )
    for kind, more in (
        ("expect_column_pair_values_to_be_equal", {}),
        (
            "expect_column_pair_values_a_to_be_greater_than_b",
            st.sampled_from([{}, {"or_equal": True}]),
        ),
    )
]
_TOGETHER = [
    _expects(
        "expect_compound_columns_to_be_unique",
        _one("column_list", [["t", "u"], ["i", "d"], ["b", "day", "t"], ["d", "f"], ["t"]]),
        st.sampled_from(
            [
                {},
                *(
                    {"ignore_row_if": n}
                    for n in ("all_values_are_missing", "any_value_is_missing", "never")
                ),
            ]
        ),
        _MOSTLY,
    ),
    _expects(
        "expect_column_min_to_be_between", _one("column", [*_NUMBERS, "day"]), _bounds(_BOUNDS)
    ),
    _expects(
        "expect_column_max_to_be_between", _one("column", [*_NUMBERS, "at"]), _bounds(_BOUNDS)
    ),
    _expects("expect_table_row_count_to_be_between", _bounds([0, 3, 10])),
    _expects("expect_table_row_count_to_equal", _one("value", [0, 3, 10])),
]
_SCHEMAS = [
    _expects("expect_column_to_exist", _one("column", ["t", "nope", "odd name"])),
    _expects(
        "expect_column_values_to_be_of_type",
        _one("column", _COLUMNS),
        _one("type_", ["StringType", "IntegerType", "DoubleType", "DataType", "NoType"]),
    ),
    _expects(
        "expect_column_values_to_be_in_type_list",
        _one("column", _COLUMNS),
        _one("type_list", [["LongType", "StringType"], ["DateType"], []]),
    ),
]
_STRANGE = st.sampled_from(
    [
        {"row_condition": "i > 0", "condition_parser": "spark"},
        {"row_condition": None},
        {"unheard_of": 1},
        {"mostly": 2},
        {"mostly": "0.5"},
        {"column": "nope"},
        {"column": "T"},
        {"column": "part.x"},
        {"result_format": "COMPLETE"},
    ]
)
_KNOWN = [*_OVER_ANY, *_SETS, *_RANGES, *_TEXTUAL, *_PAIRS, *_TOGETHER, *_SCHEMAS]
_ANY = st.one_of(_KNOWN)
_ODD = st.tuples(_ANY, _STRANGE).map(
    lambda found: found[0] | {"kwargs": found[0]["kwargs"] | found[1]}
)
_SCOPED = st.tuples(_ANY, st.sampled_from(["changed", "table"])).map(
    lambda found: found[0] | {"meta": {"draindown": {"scope": found[1]}}}
)


def _suites(times: int, odd: int) -> st.SearchStrategy[dict[str, Any]]:
    """Suites that have every known kind `times`, and some with odd arguments or another scope."""
    known = [st.tuples(*[kind] * times) for kind in _KNOWN]
    more = st.lists(st.one_of(_ODD, _SCOPED), min_size=odd, max_size=odd)
    listed = st.tuples(st.tuples(*known), more).map(
        lambda found: [e for kind in found[0] for e in kind] + found[1]
    )
    return listed.map(lambda expectations: {"expectations": expectations})


def _said(verdict: Expectation) -> dict[str, Any]:
    return verdict.model_dump(exclude={"sample", "judged_by"})


def _sampled(verdict: Expectation) -> Counter[str]:
    return Counter(map(repr, verdict.sample))


def _hold_against_gx(
    spark: SparkSession, rows: list[tuple[Any, ...]], suite: dict[str, Any], keys: list[str]
) -> float:
    """Compare the verdicts that were compiled with those of GX; returns their share of all."""
    with configured(spark, INTERPRETED):
        table = spark.createDataFrame(rows, SCHEMA)
        changed = table.where("coalesce(i, 0) <> 7")
        ours = aggregate.judge(suite, changed, table, keys)
        theirs = gx.judge(suite, changed, table, keys, list(ours))
    for name, config in zip(
        gate_suite.names(suite), gate_suite.expectations_of(suite), strict=True
    ):
        if name in ours and not _is_beyond_gx(config):
            assert _said(ours[name]) == _said(theirs[name]), (config, rows)
            assert _sampled(ours[name]) == _sampled(theirs[name]), (config, rows)
    return len(ours) / len(gate_suite.names(suite))


def _is_beyond_gx(config: Mapping[str, Any]) -> bool:
    """Whether a bound is of year 1, which py4j miswrites, or both are times of two types, which
    Python cannot order.
    """
    bounds = (config["kwargs"].get(name) for name in ("min_value", "max_value"))
    texts = [text for text in bounds if isinstance(text, str)]
    forms = {
        (":" in text, text.endswith("Z") or (text[-6:-5] in {"+", "-"} and ":" in text))
        for text in texts
    }
    return any(text.startswith("0001") for text in texts) or len(forms) > 1


@_FEW
@given(_rows(9, 14), _suites(1, 6), st.just(["id"]))
@pytest.mark.long
def test_compiled_verdicts_are_those_of_gx(
    spark: SparkSession, rows: list[tuple[Any, ...]], suite: dict[str, Any], keys: list[str]
) -> None:
    assert _hold_against_gx(spark, rows, suite, keys) > 0.4


_FAILING = [
    *(
        {"type": "expect_column_values_to_be_null", "kwargs": {"column": column}}
        for column in [*_COLUMNS, "part"]
    ),
    *(
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": column}}
        for column in _COLUMNS
    ),
    *(
        {
            "type": f"expect_column_{end}_to_be_between",
            "kwargs": {"column": column, "max_value": -8},
        }
        for column in _NUMBERS
        for end in ("min", "max")
    ),
    {
        "type": "expect_compound_columns_to_be_unique",
        "kwargs": {"column_list": ["b", "day"], "ignore_row_if": "never"},
    },
    {"type": "expect_column_pair_values_to_be_equal", "kwargs": {"column_A": "i", "column_B": "l"}},
]


@pytest.mark.campaign
@pytest.mark.parametrize("keys", [["id"], []])
def test_samples_of_every_type_are_those_of_gx(spark: SparkSession, keys: list[str]) -> None:
    row = (
        None,
        "ä",
        "ä",
        1,
        1,
        2**53 + 1,
        1.5,
        math.nan,
        Decimal("1.50"),
        _DAYS[0],
        _TIMES[1],
        True,
        None,
        (1,),
    )
    rows = [("k1", *row[1:]), ("k2", *row[1:]), ("k3", *[None] * 13)]
    assert _hold_against_gx(spark, rows, {"expectations": _FAILING}, keys) == 1


@pytest.mark.campaign
def test_new_rows_are_held_against_all_others(spark: SparkSession) -> None:
    """Where the other rows are known to have no copies, looking up the changed ones says what GX
    says.
    """
    columns = [["t"], ["m"], ["at"], ["d"], ["u", "day"]]
    suite = {
        "expectations": [
            {"type": "expect_column_values_to_be_unique", "kwargs": {"column": names[0]}}
            if len(names) == 1
            else {"type": "expect_compound_columns_to_be_unique", "kwargs": {"column_list": names}}
            for names in columns
        ]
    }
    day, at = date(2026, 1, 1), datetime(2026, 3, 29, tzinfo=UTC)

    def row(n: int) -> tuple[Any, ...]:
        when = (day + timedelta(days=n), at + timedelta(minutes=n))
        return (
            f"k{n}",
            f"t{n}",
            "u",
            n,
            n,
            n,
            float(n),
            float(n),
            Decimal(n),
            *when,
            True,
            None,
            None,
        )

    old = spark.createDataFrame([row(n) for n in range(20)] + [("none", *[None] * 13)], SCHEMA)
    with configured(spark, INTERPRETED):
        proven = aggregate.proofs(
            suite, old.schema, aggregate.judge(suite, old, old, ["id"]).values()
        )
        assert len(proven) == len(columns)
        of_open = [
            replace(one, scope="open") for one in aggregate.judge(suite, old, old, ["id"]).values()
        ]
        assert aggregate.proofs(suite, old.schema, of_open) == [], (
            "closed rows may hold what open rows don't"
        )
        for new, holds in (([row(20), row(21)], True), ([row(5)], False)):
            changed = spark.createDataFrame(new, SCHEMA)
            table = old.union(changed)
            ours = aggregate.judge(suite, changed, table, ["id"], proven)
            theirs = gx.judge(suite, changed, table, ["id"], list(ours))
            assert {n: _said(e) for n, e in ours.items()} == {
                n: _said(e) for n, e in theirs.items()
            }
            assert {e.success for e in ours.values()} == {holds}


def test_what_python_has_no_value_for_is_left_to_gx(spark: SparkSession) -> None:
    kind = "expect_column_values_to_be_between"
    suite = {
        "expectations": [
            {"type": kind, "kwargs": {"column": "day", "max_value": "2026-01-01"}},
            {"type": kind, "kwargs": {"column": "n", "max_value": 10**400}},
        ]
    }
    with configured(spark, INTERPRETED):
        rows = spark.sql("select 'k' as id, date_add(date'9999-12-31', 1) as day, 1 as n")
        verdicts = judge.judge(suite, rows, rows, ["id"])
    assert [verdict.success for verdict in verdicts] == [False, False]
    assert [verdict.judged_by for verdict in verdicts] == ["one aggregation", "Great Expectations"]
    assert "+10000-01-01" in str(verdicts[0].sample) and verdicts[1].detail.startswith(
        "could not be judged"
    )


def test_bounds_and_samples_hold_at_both_ends_of_the_years(spark: SparkSession) -> None:
    between, unique = "expect_column_values_to_be_between", "expect_column_values_to_be_unique"
    ends = [
        ("0001-01-01", "9999-12-31"),
        ("0999-12-31", None),
        (None, "0001-01-01"),
        ("9999-12-31", None),
    ]
    asked = [
        {"column": column}
        | {k: v for k, v in zip(("min_value", "max_value"), pair, strict=True) if v is not None}
        for column in ("day", "at")
        for pair in ends
    ]
    first, last = "0001-01-01T00:00", "9999-12-31T23:59:59.999999"
    asked += [
        {"column": "at", "min_value": first, "max_value": last},
        {"column": "at", "min_value": "0001-01-01", "max_value": last},
        {"column": "at", "min_value": first, "max_value": "9999-12-31", "strict_max": True},
        {"column": "at", "min_value": "0001-01-01 00:00:00.000001"},
        {"column": "day", "min_value": first, "max_value": last},
    ]
    suite = {"expectations": [{"type": between, "kwargs": kwargs} for kwargs in asked]}
    suite["expectations"] += [
        {"type": unique, "kwargs": {"column": column}} for column in ("day", "at")
    ]
    with configured(spark, INTERPRETED | {"spark.sql.session.timeZone": "America/New_York"}):
        days = "values ('a', '0001-01-01'), ('b', '9999-12-31'), ('c', '0001-01-01') as t(id, text)"
        rows = spark.sql(
            f"select id, cast(text as date) as day, cast(text as timestamp) as at from {days}"
        )
        proven = aggregate.proofs(
            suite,
            rows.schema,
            aggregate.judge(suite, rows.limit(0), rows.limit(0), ["id"]).values(),
        )
        verdicts = aggregate.judge(suite, rows, rows, ["id"], proven)
    assert [verdict.success for verdict in verdicts.values()] == [
        *([True, False, False, False] * 2),
        *(True, True, False, False, True),
        *(False, False),
    ]
    assert all("0001-01-01" in str(verdict.sample[0]) for verdict in list(verdicts.values())[-2:])


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@_MANY
@given(_rows(0, 14), _suites(2, 12), st.sampled_from([["id"], []]))
def test_compiled_verdicts_are_those_of_gx_whatever_is_asked(
    spark: SparkSession, rows: list[tuple[Any, ...]], suite: dict[str, Any], keys: list[str]
) -> None:
    assert _hold_against_gx(spark, rows, suite, keys) > 0
