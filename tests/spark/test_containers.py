"""JSON objects and arrays where the contract says `string`, and columns of type `json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.config.landing import FlowSpec
from draindown.spark.contract.casting import typed
from draindown.spark.contract.parsing import WHY, parse
from draindown.spark.contract.records import records_of
from draindown.spark.session import configured
from draindown.spark.sources.port import Read
from tests.spark.conftest import Landing

_CONTAINERS = [
    '{"x":1}',
    "{}",
    "[]",
    '["a"]',
    "[[1]]",
    '{"x":{"y":[]}}',
    '{"x":1,"x":2}',
    "[ 1.50 ]",
    '{"}":"]"}',
]
_STRINGS = [
    "{}",
    "[]",
    '{"x":1}',
    '["a"]',
    "{not json}",
    "[info]",
    "[info",
    "{",
    "",
    " {} ",
    "a",
    "}{",
    "[}",
]
_SCALARS = ["1", "-1.5", "true", "false"]


def parsed(
    spark: SparkSession, columns: Mapping[str, str], lines: list[str], form: str = "json"
) -> DataFrame:
    spec = FlowSpec.model_validate({"source": {"files": "x", "format": form}, "columns": columns})
    rows = [(line, "file:/x", 0, at) for at, line in enumerate(lines)]
    frame = spark.createDataFrame(rows, "value string, _unit string, _block long, _id long")
    return parse(spark, spec, records_of([Read(frame)], spec), datetime(2026, 1, 1, tzinfo=UTC))


def judged(frame: DataFrame, name: str) -> list[tuple[Any, str | None, str | None]]:
    chosen: list[Column] = [F.col(name), F.col(f"{WHY}.reason"), F.col(f"{WHY}.field")]
    return [tuple(row) for row in frame.orderBy("_id").select(*chosen).collect()]


_NESTED = {
    "string": "{}",
    "array<string>": '["b",{},null]',
    "map<string,string>": '{{"k":{},"z":null}}',
    "struct<a:string,b:int>": '{{"b":1,"a":{}}}',
    "array<struct<n:int,s:string>>": '[{{"n":1,"s":"b"}},null,{{"n":2,"s":{}}}]',
    "struct<a:struct<b:map<string,array<string>>>>": '{{"a":{{"b":{{"k":null,"l":["b",{}]}}}}}}',
    "array<array<string>>": "[[],null,[{}]]",
    "struct<`it's`:string>": '{{"it\'s":{}}}',
    "struct<d:decimal(5,1),s:string>": '{{"d":1.5,"s":{}}}',
}


_SHORT = {
    ("string", False),
    ("map<string,string>", False),
    ("array<struct<n:int,s:string>>", True),
    ("struct<a:struct<b:map<string,array<string>>>>", False),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "compiled"),
    [
        pytest.param(kind, compiled, marks=() if (kind, compiled) in _SHORT else pytest.mark.long)
        for kind in _NESTED
        for compiled in (False, True)
    ],
)
def test_an_object_or_array_is_no_string(spark: SparkSession, kind: str, compiled: bool) -> None:
    values = [*_CONTAINERS, *map(json.dumps, _STRINGS), *_SCALARS]
    lines = [f'{{"k":1,"v":{_NESTED[kind].format(value)}}}' for value in values]
    columns = {"k": "int", "v": f"{kind} not null", "w": "string"}
    factory = "CODEGEN_ONLY" if compiled else "NO_CODEGEN"
    with configured(
        spark,
        {"spark.sql.codegen.factoryMode": factory, "spark.sql.codegen.wholeStage": str(compiled)},
    ):
        found = judged(parsed(spark, columns, lines), "v")
    refused = dict(zip(values, [row[1:] for row in found], strict=True))
    # within a nested value a key that stands twice was refused before, as a whole
    assert {value: why for value, why in refused.items() if why != (None, None)} == dict.fromkeys(
        _CONTAINERS, ("type", "v")
    )
    if kind == "string":
        assert [row[0] for row in found] == [None] * len(_CONTAINERS) + _STRINGS + _SCALARS


def test_the_reason_shows_what_came(spark: SparkSession) -> None:
    held = (
        parsed(spark, {"id": "string not null"}, ['{"id": {"x": "y"}}'])
        .select(F.col(WHY), "_raw")
        .collect()[0]
    )
    assert (held[WHY]["detail"], held["_raw"]) == ('{"x":"y"} is no string', '{"id": {"x": "y"}}')


@pytest.mark.full
def test_whatever_the_column_is_called(spark: SparkSession) -> None:
    for name in ("it's", "ü$\\", 'a"b'):
        lines = [json.dumps({name: value}) for value in ({"x": 1}, "{}", "[x]", [])]
        found = judged(parsed(spark, {name: "string"}, lines), f"`{name}`")
        assert found == [
            (None, "type", name),
            ("{}", None, None),
            ("[x]", None, None),
            (None, "type", name),
        ]
        held = judged(parsed(spark, {name: "json"}, lines), f"`{name}`")
        assert [text for text, *_ in held] == ['{"x":1}', '"{}"', '"[x]"', "[]"]


def test_an_object_is_no_binary(spark: SparkSession) -> None:
    found = judged(
        parsed(spark, {"b": "binary"}, ['{"b":{"x":1}}', '{"b":[1]}', '{"b":"{}"}']), "b"
    )
    assert found == [(None, "type", "b"), (None, "type", "b"), (bytearray(b"{}"), None, None)]


def test_a_nested_value_of_a_columnar_unit_is_no_string(spark: SparkSession) -> None:
    frame = spark.sql(
        "select named_struct('x', 1) as o, array('a') as l, array(named_struct('s', array('a'))) as n"
    )
    kinds = [
        ("o", "string"),
        ("l", "binary"),
        ("n", "array<struct<s:string>>"),
        ("l", "array<string>"),
    ]
    found = frame.select(
        *[typed(frame, name, kind).alias(f"{i}") for i, (name, kind) in enumerate(kinds)]
    )
    assert tuple(found.collect()[0]) == (None, None, None, ["a"])


@pytest.mark.full
def test_rows_with_objects_for_keys_are_refused_once_and_leave_no_phantom(
    spark: SparkSession, landing: Any
) -> None:
    flow = {
        "source": {"format": "json"},
        "columns": {"id": "string not null", "n": "int not null"},
        "target": {"keys": ["id"], "sequence_by": ["n"]},
    }
    project: Landing = landing(flow)
    project.land(
        "a.json", b'{"id":"404583","n":1}\n{"id":{"id":"404583"},"n":2}\n{"id":["404583"],"n":3}\n'
    )
    project.attempt_batches()
    assert [(row["id"], row["n"]) for row in project.rows()] == [("404583", 1)]
    assert {at: (row["reason"], row["field"]) for (_, at), row in project.refused().items()} == {
        2: ("type", "id"),
        3: ("type", "id"),
    }


_TEXT_OF = {
    '{"b": 1.10, "a" : [ ] }': '{"b":1.10,"a":[]}',
    '{"b":12345678901234567890.123456789,"c":1e400,"d":-0,"e":0.1E+2}': None,
    '{"x":1,"x":2}': None,
    '[1, 2.50 ,null, true,\t"a b"]': '[1,2.50,null,true,"a b"]',
    "[]": None,
    "{}": None,
    '"text"': None,
    '""': None,
    '"1.0"': None,
    '"{}"': None,
    '"a\\"b\\\\"': None,
    '"\\\\\\" 1, 2.0 \\""': None,
    '"\\u00e9\\/\\n\\u0000"': '"é/\\n\\u0000"',
    '{"a\\"1.0":"[1, 2.0]","1.0":"-5e3"}': None,
    "1.10": None,
    "-0": None,
    "1E5": None,
    "123456789012345678901234567890.5": None,
    "true": None,
    "false": None,
    "null": "",
}


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_json_column_holds_the_text_of_any_value(spark: SparkSession, compiled: bool) -> None:
    lines = [f'{{"payload": {value} ,"n":"1.0"}}' for value in _TEXT_OF]
    factory = "CODEGEN_ONLY" if compiled else "NO_CODEGEN"
    with configured(
        spark,
        {"spark.sql.codegen.factoryMode": factory, "spark.sql.codegen.wholeStage": str(compiled)},
    ):
        found = judged(parsed(spark, {"n": "string", "payload": "json"}, lines), "payload")
    assert {row[1:] for row in found} == {(None, None)}
    expected = [None if text == "" else text or value for value, text in _TEXT_OF.items()]
    assert [row[0] for row in found] == expected
    for value, (text, *_) in zip(_TEXT_OF, found, strict=True):
        exact = [json.loads(one, parse_float=Decimal) for one in (value, text or "null")]
        assert exact[0] == exact[1]


def test_a_json_column_may_be_required_and_takes_no_null(spark: SparkSession) -> None:
    columns = {"p": "json not null", "it's": "json"}
    lines = [
        '{"p":null}',
        '{"it\'s":{}}',
        '{"p":"x","it\'s":{"a":1}}',
        '{"p":1} 2',
        '{"p":1,"p":2}',
        '{"p":"',
    ]
    frame = parsed(spark, columns, lines)
    assert judged(frame, "it's") == [
        (None, "not_null", "p"),
        (None, "not_null", "p"),
        ('{"a":1}', None, None),
        *[(None, "malformed", None)] * 3,
    ]


def test_long_texts_and_many_escapes_pass(spark: SparkSession) -> None:
    text = json.dumps({"t": '"\\' * 200_000, "n": [1.0] * 1000}, separators=(",", ":"))
    found = judged(parsed(spark, {"p": "json"}, [f'{{"p":{text}}}']), "p")
    assert found == [(text, None, None)]
