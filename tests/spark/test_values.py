"""What is a value of a type, and what is none: each scalar on its own, in JSON and CSV, and at any
depth of a value.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.audit.values import check_of
from draindown.config.column_types import Column as ColumnSpec
from draindown.config.landing import FlowSpec
from draindown.spark.contract.casting import typed
from draindown.spark.contract.parsing import WHY, parse
from draindown.spark.contract.records import records_of
from draindown.spark.runs import replay_rows
from draindown.spark.session import configured
from draindown.spark.sources.nanoseconds import cut, cut_names, in_micros, moments
from draindown.spark.sources.port import Read
from tests.landing import Landing

SEEN = datetime(2026, 1, 1, tzinfo=UTC)
ZONE = "Europe/Berlin"
NO = object()
"""Text that is no value of its type."""


def parsed(
    spark: SparkSession, columns: Mapping[str, str], lines: Sequence[str], **more: Any
) -> DataFrame:
    source = {"files": "x", "format": "json", "timezone": ZONE, **more.pop("source", {})}
    spec = FlowSpec.model_validate({"source": source, "columns": columns, **more})
    rows = [(line, "file:/x", 0, at) for at, line in enumerate(lines)]
    frame = spark.createDataFrame(
        rows, "value string, _unit string, _block long, _id long"
    ).coalesce(1)
    return parse(spark, spec, records_of([Read(frame)], spec), SEEN)


def columnar(columns: Mapping[str, Any], **more: Any) -> FlowSpec:
    source = {"files": "x", "format": "parquet", "timezone": ZONE}
    return FlowSpec.model_validate({"source": source, "columns": columns, **more})


def typed_rows(rows: DataFrame, *more: str) -> DataFrame:
    """Rows `_row` as a reader of files gives them, in the order of `id`."""
    place = [
        F.lit("file:/x").alias("_unit"),
        F.lit(0).cast("long").alias("_block"),
        F.col("id").alias("_id"),
    ]
    return rows.select("_row", F.lit(0).cast("long").alias("_size"), *more, *place)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


TEXTS: Mapping[str, Mapping[str, Any]] = {
    "boolean": {"true": True, "false": False, "TRUE": True, " False ": False}
    | dict.fromkeys(
        ("yes", "no", "t", "f", "y", "n", "1", "0", "on", "off", "\ttrue", "true\n", "", " "), NO
    ),
    "int": {"7": 7, "-7": -7, "+7": 7, " 7 ": 7, "007": 7}
    | dict.fromkeys(
        (
            "7\n",
            "\t7",
            "\x007",
            "7\x7f",
            "4.7",
            "7.",
            "1e3",
            "0x7",
            "\u0667",
            "1_000",
            "2147483648",
            "",
            "-",
        ),
        NO,
    ),
    "double": {
        "9007199254740992": 2.0**53,
        "-9007199254740992": -(2.0**53),
        "9007199254740994": 2.0**53 + 2,
        "1152921504606846976": 2.0**60,
        "9007199254740993.0": 2.0**53,
        "1e300": 1e300,
        "0.1": 0.1,
        "-0.0": 0.0,
        " 1.5 ": 1.5,
        ".5": 0.5,
        "5.": 5.0,
    }
    | dict.fromkeys(
        (
            "9007199254740993",
            "-9007199254740995",
            "9223372036854775807",
            "100000000000000000000",
            "0x1p3",
            "0X1.8P1",
        ),
        NO,
    )
    | dict.fromkeys(
        ("1e400", "-1e400", "NaN", "Infinity", "1.5d", "1f", "1,5", "1.5\r", "\x0b1.5", "1d", ""),
        NO,
    ),
    "float": {"16777216": 16777216.0, "16777218": 16777218.0, "0.5": 0.5}
    | dict.fromkeys(("16777217", "1e39", "3.5e38", "0x1p3"), NO),
    "decimal(6,2)": {
        "1.50": Decimal("1.50"),
        " 1.5 ": Decimal("1.50"),
        "1e2": Decimal("100.00"),
        "1E+0002 ": Decimal("100.00"),
        "15e-0001": Decimal("1.50"),
        "1e-999": Decimal("0.00"),
        "0" * 999 + "1": Decimal("1.00"),
    }
    | dict.fromkeys(("1.005", "12345", "1.5\n", "\u0661\u0662", "1,5", "0x1", "NaN"), NO)
    | dict.fromkeys(
        ("1e-999999999", "1e999999999", "1e-1000", "0e1000", "1e", "1e2e3", "0" * 1000 + "1"), NO
    ),
    "date": {
        "2026-07-01": date(2026, 7, 1),
        " 2026-7-1 ": date(2026, 7, 1),
        "0001-01-01": date(1, 1, 1),
    }
    | dict.fromkeys(
        ("2026-07", "19782", "2026-07-01T00:00:00", "2026-02-30", "0000-01-01", "2026-7-1\n"), NO
    ),
    "timestamp": {
        "2026-07-01T12:00:00Z": utc(2026, 7, 1, 12),
        "2026-07-01 12:00:00 UTC": utc(2026, 7, 1, 12),
        "2026-07-01 12:00:00GMT": utc(2026, 7, 1, 12),
        "2026-07-01T12:00:00+01:00": utc(2026, 7, 1, 11),
        "2026-07-01T12:00:00 UTC+01:00": utc(2026, 7, 1, 11),
        "2026-07-01T12:00:00": utc(2026, 7, 1, 10),
        "2026-07-01T12:00:00 America/New_York": utc(2026, 7, 1, 16),
        "2026-07-01T12:00:00Asia/Kolkata": utc(2026, 7, 1, 6, 30),
        "2026-11-01T00:30:00 America/New_York": utc(2026, 11, 1, 4, 30),
        "2026-11-01T02:00:00 America/New_York": utc(2026, 11, 1, 7),
        "9999-12-31T23:59:59.999999Z": utc(9999, 12, 31, 23, 59, 59, 999999),
        "0001-01-01T00:00:00Z": utc(1, 1, 1),
    }
    | {
        f"2026-07-01 12:00:00 {zone}": NO
        for zone in ("BST", "IST", "PST", "CET", "EST", "NZ", "PST8PDT", "Japan")
    }
    | dict.fromkeys(
        (
            *("2026-11-01T01:30:00 America/New_York", "2026-03-08T02:30:00 America/New_York"),
            *(
                "2026-03-29T02:30:00",
                "2026-10-25T02:30:00",
                "2026-04-05T01:45:00 Australia/Lord_Howe",
            ),
            *(
                "2026-03-29T02:15:00Antarctica/Troll",
                "2026-10-25T01:30:00 Antarctica/Troll",
                "1969-09-30T12:00:00 Pacific/Kwajalein",
            ),
            *(
                "12:30",
                "2026-07",
                "1782907200",
                "0001-01-01T00:00:00+14:00",
                "9999-12-31T23:59:59-01:00",
            ),
            *("2026-07-01T12:00:00Z\n", "2026-07-01T12:00:00 Nowhere/Land"),
        ),
        NO,
    ),
    "timestamp_ntz": {
        "2026-07-01T12:00:00": datetime(2026, 7, 1, 12),
        "2026-07-01": datetime(2026, 7, 1),
    }
    | {
        f"2026-07-01T12:00:00{zone}": NO
        for zone in (
            "Z",
            "+02:00",
            "-02:00",
            " UTC",
            " America/New_York",
            "GMT",
            "GMT0",
            " EST",
            "UTC-1",
            "\n",
        )
    },
}
_AT: Mapping[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "column": ("{}", lambda value: value, lambda held: held),
    "array": ("array<{}>", lambda value: [None, value], lambda held: held[1]),
    "map": ("map<string,{}>", lambda value: {"k": value}, lambda held: held["k"]),
    "struct": (
        "struct<`a-b`: {}, n: int>",
        lambda value: {"a-b": value, "n": "1"},
        lambda held: held["a-b"],
    ),
    "deep": (
        "struct<l: array<struct<m: map<string,{}>>>>",
        lambda value: {"l": [{"m": {"x": value}}, None]},
        lambda held: held["l"][0]["m"]["x"],
    ),
}


def spelled(value: Any) -> Any:
    """A value of Spark with its moments in UTC: Python shows them in a zone of its own."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


@pytest.mark.full
@pytest.mark.parametrize("kind", TEXTS)
def test_text_is_a_value_or_refused_at_any_depth(spark: SparkSession, kind: str) -> None:
    columns = {at: form.format(kind) for at, (form, *_) in _AT.items()}
    lines = [
        json.dumps({at: wrap(text)}) for at, (_, wrap, _) in _AT.items() for text in TEXTS[kind]
    ]
    with configured(spark, {"spark.sql.session.timeZone": ZONE}):
        frame = parsed(spark, columns, lines).orderBy("_id")
        shown = [_shown(kind, at) for at in _AT]
        rows = frame.select(*shown, f"{WHY}.reason", f"{WHY}.field").collect()
    found = iter(rows)
    for at in _AT:
        wanted = {
            text: (None, ("type", at)) if v is NO else (_as_text(kind, v), (None, None))
            for text, v in TEXTS[kind].items()
        }
        held = {
            text: (lambda row: (row[at], (row["reason"], row["field"])))(next(found))
            for text in TEXTS[kind]
        }
        assert held == wanted, at


def _shown(kind: str, at: str) -> Any:
    """The value that lies within a nested one: times as microseconds, since Python's have another
    zone.
    """
    path = {
        "column": at,
        "array": f"{at}[1]",
        "map": f"{at}['k']",
        "struct": f"{at}.`a-b`",
        "deep": f"{at}.l[0].m['x']",
    }
    inner = path[at]
    return F.expr(f"unix_micros({inner})" if kind == "timestamp" else inner).alias(at)


def _as_text(kind: str, value: Any) -> Any:
    if kind == "timestamp":
        since = value - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
    return value


_SEED = 3707
_FORMS: Mapping[str, Callable[[random.Random], str]] = {
    "boolean": lambda r: r.choice(
        ["true", "false", "True", "yes", "t", "1", "0", "n", " true", "off"]
    ),
    "int": lambda r: str(r.randint(-(2**32), 2**32)),
    "bigint": lambda r: str(r.randint(-(2**64), 2**64)),
    "double": lambda r: r.choice(
        [str(r.randint(-(2**55), 2**55)), str(r.randint(0, 2**63)), repr(r.uniform(-1e9, 1e9))]
    ),
    "float": lambda r: r.choice(
        [
            str(r.randint(-(2**26), 2**26)),
            f"{r.uniform(-100, 100):.6g}",
            f"{r.uniform(0, 4):.3f}e38",
        ]
    ),
    "decimal(12,3)": lambda r: f"{r.uniform(-1e9, 1e9):.{r.randint(0, 5)}f}",
    "date": lambda r: f"{r.randint(0, 10500):04d}-{r.randint(0, 13):02d}-{r.randint(1, 32)}",
    "timestamp": lambda r: _time_of(r),
    "timestamp_ntz": lambda r: _time_of(r),
}


def _time_of(r: random.Random) -> str:
    zones = [
        "",
        "",
        "",
        "Z",
        " UTC",
        "+02:00",
        "-05:30",
        " GMT+3",
        "UT",
        " BST",
        " PST",
        "IST",
        " Japan",
    ]
    zones += [
        " America/New_York",
        " Europe/London",
        "Australia/Lord_Howe",
        " Antarctica/Troll",
        " Asia/Kolkata",
    ]
    day = r.choice(
        [
            "2024-03-10",
            "2024-11-03",
            "2024-03-31",
            "2024-10-27",
            "2024-04-07",
            "2024-10-06",
            "2024-7-1",
        ]
    )
    clock = f"{r.randint(0, 4)}:{r.randint(0, 59):02d}" + r.choice(
        ["", ":05", ":59.5", ":00.123456"]
    )
    return f"{day}{r.choice('T ')}{clock}{r.choice(zones)}"


def _mutated(r: random.Random, text: str) -> str:
    """Mostly the text, else one with a character more, less, or other."""
    if r.random() < 0.8:
        return text
    at, odd = (
        r.randint(0, len(text)),
        r.choice(["\t", "\n", "\x00", "\x1f", "\x7f", "x", "e", ".", "-", "+", "d", " ", "Z", "0"]),
    )
    return text[:at] + odd + text[at + r.randint(0, 1) :]


def test_random_text_is_what_plain_python_makes_of_it(spark: SparkSession) -> None:
    r = random.Random(_SEED)
    asked = [(kind, _mutated(r, form(r))) for kind, form in _FORMS.items() for _ in range(1500)]
    frame = spark.createDataFrame(list(enumerate(text for _, text in asked)), "at int, t string")
    with configured(spark, {"spark.sql.session.timeZone": ZONE}):
        values = {kind: typed(frame, "t", kind) for kind in _FORMS}
        shown = [
            _spelled(kind, value).alias(f"c{at}") for at, (kind, value) in enumerate(values.items())
        ]
        rows = frame.select("at", *shown).orderBy("at").collect()
    found = [
        _read(kind, row[1 + list(_FORMS).index(kind)])
        for row, (kind, _) in zip(rows, asked, strict=True)
    ]
    wrong = [
        (kind, text, held, expected)
        for (kind, text), held in zip(asked, found, strict=True)
        if held != (expected := _expected(kind, text))
    ]
    assert not wrong, wrong[:20]
    taken = sum(held is not None for held in found)
    assert len(found) // 5 < taken < len(found) * 4 // 5, "both are tried"


def test_random_text_is_the_same_within_nested_values(spark: SparkSession) -> None:
    r = random.Random(_SEED + 1)
    kinds = ("double", "timestamp", "boolean", "decimal(12,3)")
    columns = {f"c{at}": f"array<{kind}>" for at, kind in enumerate(kinds)}
    asked = [
        (at, _mutated(r, _FORMS[kind](r))) for at, kind in enumerate(kinds) for _ in range(150)
    ]
    lines = [json.dumps({f"c{at}": [text]}) for at, text in asked]
    with configured(spark, {"spark.sql.session.timeZone": ZONE}):
        frame = parsed(spark, columns, lines).orderBy("_id")
        rows = frame.select(
            *(_spelled(kind, F.expr(f"c{at}[0]")).alias(f"c{at}") for at, kind in enumerate(kinds))
        )
        found = [
            _read(kinds[at], row[f"c{at}"])
            for row, (at, _) in zip(rows.collect(), asked, strict=True)
        ]
    expected = [_expected(kinds[at], text) for at, text in asked]
    assert [*zip(asked, found, strict=True)] == [*zip(asked, expected, strict=True)]


def _spelled(kind: str, value: Column) -> Column:
    return (F.unix_micros(value) if kind == "timestamp" else value).cast("string")


def _expected(kind: str, text: str) -> Any:
    try:
        value = check_of(ColumnSpec.model_validate(kind), ZONE)(text)
    except (ValueError, OverflowError, ArithmeticError):
        return None
    if kind == "float":
        return struct.unpack("f", struct.pack("f", value))[0]
    return _as_text(kind, value)


def _read(kind: str, text: str | None) -> Any:
    if text is None:
        return None
    readers: Mapping[str, Callable[[str], Any]] = {
        "boolean": lambda one: one == "true",
        "double": float,
        "float": lambda one: struct.unpack("f", struct.pack("f", float(one)))[0],
        "decimal(12,3)": Decimal,
        "date": date.fromisoformat,
        "timestamp_ntz": datetime.fromisoformat,
    }
    return readers.get(kind, int)(text)


def test_fields_that_a_struct_does_not_name_are_kept_and_told(spark: SparkSession) -> None:
    columns = {
        "id": "int",
        "box": "struct<a: int>",
        "list": "array<struct<a: int, in: struct<b: int>>>",
    }
    lines = [
        '{"id":1,"box":{"a":1}}',
        '{"id":2,"box":{"a":2,"b":"new"}}',
        '{"id":3,"box":{"A":3}}',
        '{"id":4,"list":[{"a":4,"z":{"deep":true}},{"in":{"b":1,"c":2}}],"more":1}',
    ]
    rows = (
        parsed(spark, columns, lines)
        .orderBy("_id")
        .select("box.a", "_rescued_data", "_drift", f"{WHY}.reason")
        .collect()
    )
    assert [row["reason"] for row in rows] == [None] * 4
    assert [row["a"] for row in rows] == [1, 2, None, None]
    kept = [row["_rescued_data"] and json.loads(row["_rescued_data"]) for row in rows]
    assert kept[:3] == [None, {"box": '{"a":2,"b":"new"}'}, {"box": '{"A":3}'}]
    assert set(kept[3]) == {"list", "more"} and json.loads(kept[3]["list"])[0]["z"] == {
        "deep": True
    }
    marks = [{mark for mark in row["_drift"] or () if mark.startswith("+")} for row in rows]
    assert marks == [set(), {"+box.b"}, {"+box.A"}, {"+list.z", "+list.in.c", "+more"}]


def test_values_of_columnar_files_are_cast_leaf_by_leaf(spark: SparkSession) -> None:
    frame = spark.sql(
        "select array(double('NaN')) as nan, array(1.5d, -0.0d) as good, map('k', double('Infinity')) as inf, "
        "named_struct('a', 1, 'b', 'x') as box, array(timestamp_micros(9223372036854775807)) as late, "
        "9007199254740993L as whole, array(9007199254740994L) as even, map(1, 'x') as numbered, 1 as one"
    )
    kinds = {
        "nan": "array<double>",
        "good": "array<double>",
        "inf": "map<string,double>",
        "box": "struct<a: int>",
        "late": "array<timestamp>",
        "whole": "double",
        "even": "array<double>",
        "numbered": "map<int,string>",
        "one": "boolean",
    }
    row = (
        frame.select(*[typed(frame, name, kind).alias(name) for name, kind in kinds.items()])
        .collect()[0]
        .asDict(True)
    )
    assert str(row["good"]) == "[1.5, 0.0]"
    assert row | {"good": None} == {
        **dict.fromkeys(kinds),
        "box": {"a": 1},
        "even": [9007199254740994.0],
        "numbered": {1: "x"},
    }


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_times_at_the_ends_of_their_types_are_refused(spark: SparkSession, zone: str) -> None:
    ends = ("9223372036854775807L", "-9223372036854775808L")
    held = {
        "date": "date_from_unix_date(2147483647), date_from_unix_date(-2147483648)",
        "moment": ", ".join(f"timestamp_micros({end})" for end in ends),
        "wall": "timestamp_ntz'294247-01-10 04:00:54.775807', timestamp_ntz'-290308-12-21 19:59:05.224192'",
        "inner": "timestamp_ntz'294247-01-09 00:00:00', timestamp_ntz'-290308-12-23 00:00:00'",
        "within": ", ".join(f"timestamp_micros({end} div 1000)" for end in ends),
    }
    kinds = ("date", "timestamp", "timestamp_ntz")
    with configured(spark, {"spark.sql.session.timeZone": zone}):
        for name, values in held.items():
            frame = spark.sql(f"select explode(array({values})) as v")
            found = frame.select(
                *[typed(frame, "v", kind).cast("string").alias(kind) for kind in kinds]
            ).collect()
            times = [row["timestamp"] for row in found]
            assert times == [None, None] if name != "within" else all(times), name
            assert {row["date"] for row in found} == {None}
            assert name == "within" or {row["timestamp_ntz"] for row in found} == {None}, name


def test_keys_of_maps_are_values_too(spark: SparkSession) -> None:
    lines = ['{"m":{"7":"x"}}', '{"m":{"x":"x"}}', '{"m":{"7":"x","07":"y"}}', '{"m":{}}']
    rows = (
        parsed(spark, {"m": "map<int,string>"}, lines)
        .orderBy("_id")
        .select("m", f"{WHY}.reason")
        .collect()
    )
    assert [tuple(row) for row in rows] == [
        ({7: "x"}, None),
        (None, "type"),
        (None, "type"),
        ({}, None),
    ]


def test_a_number_beyond_a_double_is_no_text(spark: SparkSession) -> None:
    lines = ['{"s":1e400}', '{"s":-1e400}', '{"s":"Infinity"}', '{"s":"-Infinity"}', '{"s":1e300}']
    rows = (
        parsed(spark, {"s": "string"}, lines).orderBy("_id").select("s", f"{WHY}.reason").collect()
    )
    assert [tuple(row) for row in rows][:4] == [
        (None, "type"),
        (None, "type"),
        ("Infinity", None),
        ("-Infinity", None),
    ]
    assert rows[4]["reason"] is None


def test_text_with_a_long_exponent_is_no_decimal(spark: SparkSession) -> None:
    texts = [
        "1e-999999999",
        " 1E-999999999",
        "1e999999999",
        "1e-2000000",
        "1e-1000",
        "1e-999",
        "1.5e-0001",
    ]
    frame = spark.createDataFrame([(text,) for text in texts], "t string")
    found = [row[0] for row in frame.select(typed(frame, "t", "decimal(6,2)")).collect()]
    assert found == [*[None] * 5, Decimal("0.00"), Decimal("0.15")]


def test_a_number_that_java_would_take_minutes_for_is_refused_alone(spark: SparkSession) -> None:
    columns = {"e": "decimal(38,23)", "d": "decimal(6,2)", "x": "double", "s": "string"}
    fine, exact = "1.10000000000000000000001", Decimal("1.10000000000000000000001")
    bad, twice, good = (None, None, ("type", "d")), (None, None, ("malformed", None)), (None, None)
    lines = {
        f'{{"e":{fine},"d":1e-99999999}}': bad,
        f'{{"e":{fine},"d":1e99999999 ,"s":"x"}}': bad,
        f'{{"e":"{fine}","d":-0.5E-099999999}}': bad,
        '{"d":0e-99999999}': bad,
        '{"d":"1e-99999999"}': bad,
        '{"d":" 1e-999999999"}': bad,
        '{"d":"1\\u0065-99999999"}': bad,
        '{"d":"1e-99,99,99,99"}': bad,
        '{"d":"1e-\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669"}': bad,
        f'{{"d":"{"1" * 2_000_000}"}}': bad,
        '{"d":1,"d":1e-99999999}': twice,
        '{"d":1} {"d":1e-99999999}': twice,
        f'{{"e":{fine},"d":0.0,"s":"1e12345, x"}}': (exact, Decimal("0.00"), good),
        f'{{"e":"{fine}","d":0.0,"x":1e-99999999}}': (exact, Decimal("0.00"), good),
        f'{{"e":{fine},"d":" 0.50","x":-1e-99999999,"s":"x"}}': (exact, Decimal("0.50"), good),
        f'{{"e":{fine},"d":1e-400}}': (exact, Decimal("0.00"), good),
    }
    frame = (
        parsed(spark, columns, list(lines))
        .orderBy("_id")
        .select("e", "d", f"{WHY}.reason", f"{WHY}.field")
    )
    found = [(row["e"], row["d"], (row["reason"], row["field"])) for row in frame.collect()]
    assert dict(zip(lines, found, strict=True)) == lines


def test_a_sequence_is_not_cut(spark: SparkSession) -> None:
    target = {"target": {"keys": ["id"], "sequence_by": ["at"]}}
    times = {
        "2026-07-01T12:00:00.123456Z": None,
        "2026-07-01T12:00:00.123456000Z": None,
        "2026-07-01T12:00:00.123+05:30": None,
        "2026-07-01T12:00:00.1234561Z": "type",
        "2026-07-01T12:00:00.000000001+05:30": "type",
    }
    columns = {"id": "int not null", "at": "timestamp not null", "other": "timestamp"}
    lines = [
        json.dumps({"id": 1, "at": text, "other": "2026-07-01T12:00:00.123456789Z"})
        for text in times
    ]
    rows = (
        parsed(spark, columns, lines, **target)
        .orderBy("_id")
        .select(f"{WHY}.reason", f"{WHY}.detail")
        .collect()
    )
    assert [row["reason"] for row in rows] == list(times.values())
    assert "more than microseconds" in rows[-1]["detail"]


@pytest.mark.parametrize(
    ("form", "fine", "cut"),
    [
        (
            "yyyy-MM-dd HH:mm:ss,SSSSSSSSS",
            "2026-07-01 12:00:00,123456000",
            "2026-07-01 12:00:00,123456789",
        ),
        ("yyyyMMddHHmmssSSSSSSSSS", "20260701120000123456000", "20260701120000123456789"),
        (
            "d.M.yyyy HH:mm:ss.SSSSSSSSS",
            "1.7.2026 12:00:00.123456000",
            "1.7.2026 12:00:00.123456789",
        ),
        ("yyyyMMdd.HHmmssSSS", "20260701.120000123", None),
    ],
)
def test_a_sequence_of_another_form_is_not_cut(
    spark: SparkSession, form: str, fine: str, cut: str | None
) -> None:
    columns: dict[str, Any] = {
        "id": "int not null",
        "at": {"type": "timestamp not null", "format": form},
    }
    lines = [json.dumps({"id": 1, "at": text}) for text in (fine, cut) if text]
    rows = parsed(spark, columns, lines, target={"keys": ["id"], "sequence_by": ["at"]}).orderBy(
        "_id"
    )
    found = rows.select(f"{WHY}.reason", f"{WHY}.detail").collect()
    assert [row["reason"] for row in found] == [None, "type"][: len(lines)]
    assert all("more than microseconds" in row["detail"] for row in found[1:])


def test_a_sequence_that_is_taken_from_another_field_is_not_cut(spark: SparkSession) -> None:
    """What was cut is known by the names of fields, and a text in a file with nanoseconds is looked
    at as any other.
    """
    seen = "timestamp'2026-07-01 12:00:00.123456'"
    rows = spark.sql(
        f"select id, named_struct('id', 1, 'event_time', {seen}, 'at', {seen}, 'said', concat('2026-07-01 12:00:00.', "
        "if(id = 2, '1234567', '123456'))) as _row, split(elt(id + 1, 'event_time', 'at', 'at'), ',') as _cut "
        "from range(0, 3, 1, 1)"
    )
    frame = typed_rows(rows, "_cut")
    found = {}
    for field in ("event_time", "said"):
        columns: dict[str, Any] = {
            "id": "int not null",
            "at": {"type": "timestamp not null", "from": field},
        }
        columns |= {"other": {"type": "timestamp", "from": "at"}}
        spec = columnar(columns, target={"keys": ["id"], "sequence_by": ["at"]})
        parts = parse(spark, spec, records_of([Read(frame)], spec), SEEN).orderBy("_id")
        found[field] = [row["reason"] for row in parts.select(f"{WHY}.reason").collect()]
    assert found == {"event_time": ["type", None, None], "said": [None, None, "type"]}


_EXAMPLES = re.compile(r"<!-- values: begin -->(.*?)<!-- values: end -->", re.DOTALL)


def test_the_page_says_what_is_taken_and_what_is_refused(spark: SparkSession) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipeline-files.md").read_text()
    found = _EXAMPLES.search(page)
    assert found is not None
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in found[1].strip().splitlines()[2:]
    ]
    examples = {
        kind.strip("`"): [re.findall(r"`([^`]+)`", cell) for cell in both] for kind, *both in rows
    }
    columns = {f"c{at}": kind for at, kind in enumerate(examples)}
    asked = [
        (kind, value, taken)
        for kind, both in examples.items()
        for taken, values in zip((True, False), both, strict=True)
        for value in values
    ]
    names = {kind: name for name, kind in columns.items()}
    with configured(spark, {"spark.sql.session.timeZone": ZONE}):
        frame = parsed(spark, columns, [f'{{"{names[kind]}":{value}}}' for kind, value, _ in asked])
        told = [row["reason"] for row in frame.orderBy("_id").select(f"{WHY}.reason").collect()]
    assert len(asked) > 70 and len(examples) == 13
    wrong = [
        one for one, why in zip(asked, told, strict=True) if (None if one[2] else "type") != why
    ]
    assert not wrong


def test_nanoseconds_are_times_at_any_depth(spark: SparkSession) -> None:
    moment, wall = pa.timestamp("ns", "UTC"), pa.timestamp("ns")
    written = pa.struct(
        [("xs", pa.list_(moment)), ("m", pa.map_(pa.string(), wall)), ("n", pa.int64())]
    )
    least = "-9223372036854775808L"
    moments_of_xs = (
        f"array(1704067200123456789L, 0L, -1L, -1000L, -1001L, 9223372036854775807L, {least})"
    )
    walls_of_m = f"map('k', 1704067200123456789L, 'first', {least})"
    frame = spark.sql(
        f"select named_struct('xs', {moments_of_xs}, 'm', {walls_of_m}, 'n', 7L) as v"
    )
    found = moments("v", written, frame.schema["v"].dataType)
    assert found is not None
    walls = "cast(v.m['k'] as string) as wall, cast(v.m['first'] as string) as first"
    shown = f"transform(v.xs, x -> unix_micros(x)) as xs, {walls}, v.n"
    row = frame.select(F.expr(found).alias("v")).selectExpr(f"struct({shown}) as r").first()
    assert row is not None
    assert row["r"].asDict() == {
        "xs": [1704067200123456, 0, -1, -1, -2, 9223372036854775, -9223372036854776],
        "wall": "2024-01-01 00:00:00.123456",
        "first": "1677-09-21 00:12:43.145224",
        "n": 7,
    }
    assert (
        moments("v", pa.struct([("n", pa.int64())]), frame.select("v.n").schema["n"].dataType)
        is None
    )


def test_arrow_cuts_nanoseconds_as_spark_does() -> None:
    nanos = pa.array([-1, -1000, -1001, 1999, None], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    micros = pa.array([-1, -1, -2, 1, None], pa.timestamp("us", "UTC"))
    ends, none = pa.array([0, 2, 2, 5], pa.int32()), pa.array([False, True, False])

    def nested(leaves: pa.Array) -> dict[str, pa.Array]:
        xs = pa.ListArray.from_arrays(ends, leaves, mask=none)
        m = pa.MapArray.from_arrays(ends, pa.array(list("abcde")), leaves, mask=none)
        st = pa.StructArray.from_arrays(
            [xs, m, pa.array([1, 2, 3])], names=["xs", "m", "n"], mask=none
        )
        return {"leaf": leaves, "list": xs, "map": m, "struct": st, "plain": pa.array([1])}

    wanted = nested(micros)
    for name, values in nested(nanos).items():
        for start in (0, 1, 2):
            found = cut(values[start:])
            found.validate(full=True)
            assert (found.type, found.equals(wanted[name][start:])) == (
                in_micros(values.type),
                True,
            ), name
    rows = pa.record_batch({"a": nanos, "b": nanos[::-1], "c": pa.array([1] * 5)})
    assert cut_names(rows, ["a", "b", "c"]) == [["a"], ["b"], ["a", "b"], ["a"], ["b"]]


def test_a_refused_row_of_a_columnar_file_comes_back_as_it_was(spark: SparkSession) -> None:
    columns = {
        "raw": "struct<b: binary, at: timestamp>",
        "m": "map<int,string>",
        "xs": "array<double>",
    }
    line = '{"raw":{"b":"/wA=","at":"2024-07-01T12:00:00.123456Z","c":1},"m":{"7":"x"},"xs":[0.5]}'
    bad = '{"raw":null,"m":null,"xs":["NaN"]}'
    frame = parsed(spark, columns, [line, bad], source={"format": "parquet"}).orderBy("_id")
    good, refused = frame.select("raw.b", "m", "xs", "_rescued_data", f"{WHY}.field").collect()
    assert (bytes(good["b"]), good["m"], good["xs"], good["field"]) == (
        b"\xff\x00",
        {7: "x"},
        [0.5],
        None,
    )
    assert json.loads(json.loads(good["_rescued_data"])["raw"])["c"] == 1
    assert refused["field"] == "xs"


_COMMA = {"decimal_separator": ",", "thousands_separator": "."}
IN_FILE: Mapping[str, Sequence[Any]] = {
    "cast('hello' as binary)": ("string", "binary", "int"),
    "cast('12' as binary)": ("int", "string"),
    "'abcd'": ("binary", "string"),
    "'7'": ("int", "decimal(10,2)", "binary"),
    "cast(0.1 as float)": ("double", "float", "string", "decimal(10,2)"),
    "1.50BD": ("string", "double", "decimal(10,2)", "float", "decimal(10,1)"),
    "cast(5 as decimal(10,2))": ("int", "string", "bigint"),
    "12345678901234567890.123456789012345678BD": ("string", "decimal(38,18)"),
    "timestamp'2026-07-01 12:00:00'": ("string", "timestamp", "date", "timestamp_ntz"),
    "timestamp'2026-07-01 00:00:00'": ("date", "string"),
    "timestamp'1850-01-01 00:00:00.000001'": ("timestamp", "string"),
    "timestamp_ntz'2026-07-01 00:00:00'": ("string", "date", "timestamp", "timestamp_ntz"),
    "timestamp_ntz'2026-07-01 12:00:00'": ("date",),
    "date'2026-07-01'": ("string", "date", "timestamp", "timestamp_ntz"),
    "5.0D": ("int", "bigint", "string", "decimal(10,2)", {"type": "double", **_COMMA}),
    "4.7D": ("int", "string", "decimal(10,0)"),
    "1.234D": ({"type": "double", **_COMMA}, {"type": "decimal(10,3)", **_COMMA}),
    "'1.234'": ({"type": "double", **_COMMA},),
    "20260131": ({"type": "date", "format": "yyyyMMdd"}, "string", "timestamp"),
    "9007199254740993L": ("double", "decimal(20,0)", "string"),
    "true": ("string", "boolean", "int"),
    "double('Infinity')": ("double", "string"),
    "array(cast('hello' as binary), null)": ("array<string>", "array<binary>"),
    "array('abcd')": ("array<binary>", "array<string>"),
    "array(cast(0.1 as float), 1.50BD)": ("array<double>", "array<string>"),
    "array(1.50BD)": ("array<string>", "array<double>", "array<decimal(5,1)>"),
    "array(5.0D, double('NaN'))": ("array<double>",),
    "named_struct('at', timestamp'2026-07-01 00:00:00', 'n', 5.0D)": (
        *("struct<at: date, n: int>", "struct<at: string, n: string>", "struct<at: timestamp>"),
    ),
    "map(7, cast('x' as binary))": ("map<int,string>", "map<string,binary>", "map<double,string>"),
    "map(date'2026-07-01', array(map(1.50BD, true)))": ("map<date,array<map<string,string>>>",),
    "map(timestamp'2026-07-01 12:00:00', 1)": ("map<timestamp,int>", "map<date,int>"),
}
"""Values of files, and the types in which the contract may have them."""


def test_a_refused_row_of_a_columnar_file_is_replayed_as_it_was_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each value alone in its row: what is good when read is the same when replayed, and so is what
    is refused.
    """
    pairs = [(value, kind) for value, kinds in IN_FILE.items() for kind in kinds]
    fields = ", ".join(
        f"'p{at}', if(id = {at}, {value}, null)" for at, (value, _) in enumerate(pairs)
    )
    columns = {f"p{at}": kind for at, (_, kind) in enumerate(pairs)}
    here = Landing(
        tmp_path, source={"format": "parquet", "timezone": ZONE}, columns=columns, target={}
    )
    spec = here.request().flow_spec
    with configured(spark, {"spark.sql.session.timeZone": ZONE}):
        rows = spark.sql(
            f"select id, named_struct({fields}) as _row from range(0, {len(pairs)}, 1, 1)"
        )
        reads = [Read(typed_rows(rows))]
        read = (
            parse(spark, spec, records_of(reads, spec), SEEN, all_raw=True).orderBy("_id").collect()
        )
        kept = [_kept(row["_id"], row["_raw"], row["_shape"]) for row in read]
        reads = replay_rows._reads(spark, here.request(), kept)
        replayed = (
            parse(spark, spec, records_of(reads, spec), SEEN, all_raw=True).orderBy("_id").collect()
        )
    result, expected = (
        [(row[f"p{at}"], row[WHY]) for at, row in enumerate(rows)] for rows in (replayed, read)
    )
    assert [*zip(pairs, result, strict=True)] == [*zip(pairs, expected, strict=True)]
    known = dict(
        zip(
            ((value, str(kind)) for value, kind in pairs),
            (value for value, _ in expected),
            strict=True,
        )
    )
    assert (
        known["cast('hello' as binary)", "string"] == "hello"
        and known["1.50BD", "string"] == "1.50"
    )
    assert (
        known["timestamp'2026-07-01 00:00:00'", "date"] == date(2026, 7, 1)
        and known["5.0D", "int"] == 5
    )
    days = {at: known[f"timestamp_ntz'2026-07-01 {at}'", "date"] for at in ("00:00:00", "12:00:00")}
    assert days == {"00:00:00": date(2026, 7, 1), "12:00:00": None}
    assert 10 < sum(why is not None for _, why in expected) < len(pairs) // 2, "both are tried"
    assert [row["_rescued_data"] for row in replayed] == [row["_rescued_data"] for row in read]


def _kept(position: int, raw: str, shape: str | None) -> dict[str, Any]:
    """A row of the quarantine, as a replay takes it."""
    origin = {"input": "file:/x", "position": position}
    return {
        "value": raw.encode(),
        "origin": origin,
        "arrived_at": SEEN,
        "first_seen": SEEN,
        "envelope": shape,
    }


def test_a_row_that_does_not_come_back_from_json_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = {"s": "string", "day": "date"}
    here = Landing(tmp_path, source={"format": "parquet"}, columns=columns, target={})
    spec = here.request().flow_spec
    row = "named_struct('s', 'x', 'day', date'2026-07-01' + if(id = 0, 0, 9999999))"
    rows = spark.sql(f"select id, {row} as _row from range(0, 2, 1, 1)")
    read = (
        parse(spark, spec, records_of([Read(typed_rows(rows))], spec), SEEN, all_raw=True)
        .orderBy("_id")
        .collect()
    )
    kept = [_kept(row["_id"], row["_raw"], row["_shape"]) for row in read]
    kept.append(_kept(2, read[0]["_raw"].replace("x", "\ufffd"), read[0]["_shape"]))
    kept.append(_kept(3, read[0]["_raw"].replace("2026-07-01", "a day"), read[0]["_shape"]))
    records = records_of(replay_rows._reads(spark, here.request(), kept), spec)
    again = (
        parse(spark, spec, records, SEEN).orderBy("_id").select("day", f"{WHY}.reason").collect()
    )
    assert [row[WHY] and row[WHY]["reason"] for row in read] == [None, "type"]
    reasons = [(None, "type"), (None, "malformed"), (None, "malformed")]
    assert [tuple(row) for row in again] == [(date(2026, 7, 1), None), *reasons]
