"""Lines of JSON that are read by one typed parse: as those that are read by a map of their
fields.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.config.landing import FlowSpec
from draindown.flow.schema_drift import Known
from draindown.spark.contract.json_records import json_records
from draindown.spark.contract.parsing import WHY, parse
from draindown.spark.contract.plain_json import PlainLines
from draindown.spark.contract.records import records_of
from draindown.spark.frames import relation
from draindown.spark.session import configured
from draindown.spark.sources.port import Read

SEEN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {
    "id": "bigint not null",
    "at": "timestamp not null",
    "small": "smallint",
    "tiny": "tinyint",
    "n": "int",
    "x": "double",
    "f": "float",
    "price": "decimal(12,2)",
    "wide": "decimal(38,10)",
    "ok": "boolean",
    "day": "date",
    "local": "timestamp_ntz",
    "bytes": "binary",
    "note": "string",
}
WHOLE = [
    "0",
    "-1",
    "7",
    "12",
    "-0",
    "127",
    "200",
    "-129",
    "32767",
    "32768",
    "2147483648",
    "9223372036854775807",
]
WHOLE += [
    "9223372036854775808",
    "9007199254740993",
    "5.0",
    "1e2",
    '"5"',
    '" 5"',
    '"five"',
    "true",
    "[1]",
    '"\uff11"',
]
BROKEN = [
    "1.5",
    "-2.25",
    "0.1",
    "1e-7",
    "1E+3",
    "1e400",
    "-1e400",
    "1e-400",
    "123456789012345678.12",
    "1.005",
    "0.10",
]
BROKEN += [
    "0.1000000000000000055",
    "1e-99999",
    "1e99999",
    "1e-999999999",
    "12345678901234567890.5",
    "-0.0",
    "1.50e0",
]
BROKEN += [
    '"5.00"',
    '"1e2"',
    '" 5.0"',
    '"5.005"',
    "16777217",
    "16777216.5",
    '"NaN"',
    '"Infinity"',
    '"-INF"',
    '"1,5"',
    '"0x1p3"',
    '"1.5 "',
    "NaN",
    "1.",
    ".5",
    "007",
    "+1",
    "1" * 1100,
]
TIMES = [
    "2026-07-01T12:00:00Z",
    "2026-07-01 12:00:00",
    "2026-03-29 02:30:00",
    "2026-10-25 02:30:00+01:00",
    "2026-07-01",
]
TIMES += [
    "2026-07-01T12:00:00.123456Z",
    "2026-07-01T12:00:00.1234567Z",
    "2026-07-01T12:00:00.1234560Z",
    "12:30",
    "",
]
TIMES += [
    "0001-01-01",
    "9999-12-31",
    "0000-01-01",
    "10000-01-01",
    "2026-02-30",
    "2026-7-1",
    "2026-07-01x",
    "2026",
]
TIMES += [
    "0001-01-01T00:00:00+01:00",
    "9999-12-31T23:59:59.999999Z",
    "2026-07-01 12:00 Europe/Paris",
    " 2026-07-01 ",
]
WORDS = [
    "",
    "a",
    "plain words",
    " begins with a blank",
    ":",
    "a,",
    ", ",
    '{"a":1}',
    "[1]",
    "[draft] x",
    "}",
    "null",
]
WORDS += [
    "Infinity",
    "-Infinity",
    '"Infinity"',
    "tab\tin",
    "back\\slash",
    "new\nline",
    "é",
    "\U0001f600",
    "a:null,b",
    "\0",
]
ESCAPES = [
    r'"\ud83d"',
    r'"\ud83d\ude00"',
    r'"\uD800\\udc00"',
    r'"\u00e9"',
    r'"a \"quoted\" word"',
    r'"a\/b\\"',
    r'"\x"',
    r'"\u12"',
]
SCALARS = [
    "null",
    "1",
    "1.5",
    "1e400",
    "true",
    "[]",
    "{}",
    '[["a"]]',
    '{"b":{"c":1}}',
    '[{"id":1}]',
    '"a"',
    '["a", 1]',
]


def usual(kind: str, quoted: bool, number: int = 7) -> str:
    """The JSON of a value as most feeds write it. `quoted`: numbers are."""
    texts = {
        "date": "2026-07-01",
        "timestamp": "2026-07-01T12:00:00Z",
        "timestamp_ntz": "2026-07-01 12:00:00",
    }
    texts |= {"string": "some words", "binary": "bytes"}
    if kind in texts:
        return json.dumps(texts[kind])
    if kind == "boolean":
        return "true" if number % 2 else "false"
    return f'"{number}"' if quoted else str(number)


def value(dice: random.Random, kind: str, quoted: bool) -> str:
    """The JSON of a value: mostly one of its type."""
    kind = kind.removesuffix(" not null")
    if dice.random() < 0.93:
        return usual(kind, quoted, dice.randrange(100))
    choice = dice.random()
    if choice < 0.2:
        return "null"
    if choice < 0.3:
        return dice.choice(SCALARS)
    if kind in ("string", "binary"):
        if choice < 0.4:
            return dice.choice(ESCAPES)
        return json.dumps(dice.choice(WORDS), ensure_ascii=dice.random() < 0.3)
    if kind.startswith(("date", "timestamp")):
        return json.dumps(dice.choice(TIMES))
    return dice.choice(BROKEN if kind.startswith(("d", "f")) and dice.random() < 0.7 else WHOLE)


def line(dice: random.Random, quoted: bool) -> bytes:
    fields = [
        (name, value(dice, kind, quoted)) for name, kind in COLUMNS.items() if dice.random() > 0.01
    ]
    if dice.random() < 0.1:
        dice.shuffle(fields)
    if dice.random() < 0.03:
        fields.append(
            (
                dice.choice(("other", "ID", ":", "a b", "", "id ", "null")),
                value(dice, "string", quoted),
            )
        )
    if dice.random() < 0.03:
        name = dice.choice(list(COLUMNS))
        fields.insert(
            dice.randrange(len(fields) + 1),
            (name, dice.choice(("null", value(dice, COLUMNS[name], quoted)))),
        )
    colon, comma = dice.choice(((":", ","), (": ", ", "), (":", ",")))
    if dice.random() < 0.03:
        colon, comma = dice.choice(
            ((" :", ","), (":\t", ","), ("\t:", ","), (":  ", " , "), (": ", ",\t"))
        )
    text = dice.choice(
        ("{%s}",) * 60
        + ("{%s} ", " {%s}", "{%s}{}", "{%s,}", "{%s", "[{%s}]", "{%s}]", "{ %s }", "{{%s}}")
    )
    text = text % comma.join(
        f'"{name}"{dice.choice((colon,) * 60 + (" :",))}{held}' for name, held in fields
    )
    found = text.encode()
    if dice.random() < 0.03:
        at = dice.randrange(len(found))
        found = (
            found[:at]
            + dice.choice((b"", b'"', b"\\", b"\xff", b",", b":", b"}", b"\x01"))
            + found[at + 1 :]
        )
    return found


def rows(spark: SparkSession, lines: Sequence[bytes]) -> DataFrame:
    columns = {"value": pa.binary(), "_unit": pa.string(), "_block": pa.int64(), "_id": pa.int64()}
    frame = relation(spark, columns, [(one, "file:/x", 0, at) for at, one in enumerate(lines)])
    return frame.withColumn("value", F.col("value").cast("string"))


def flow(zone: str, **more: Any) -> FlowSpec:
    source = {"files": "x", "format": "json", "timezone": zone}
    target = {"keys": ["id"], "sequence_by": ["at"]}
    more = {"rules": {"few": "n is null or n < 90"}, "target": target, **more}
    return FlowSpec.model_validate({"source": source, "columns": COLUMNS, **more})


CASES = {
    "UTC": (flow("UTC"), Known(), False),
    "a zone with changes of clocks": (flow("Europe/Berlin"), Known(), False),
    "columns that lack are told of": (
        flow("UTC", drift={"new_columns": "add"}),
        Known(all_records=True),
        False,
    ),
    "numbers in quotes": (flow("UTC"), Known(), True),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 22))]
)
def test_a_plain_line_is_read_as_by_a_map_of_its_fields(
    spark: SparkSession, case: str, seed: int
) -> None:
    spec, known, quoted = CASES[case]
    dice = random.Random(f"{case} {seed}")
    lines = [line(dice, quoted) for _ in range(2_000 if seed == 1 else 50_000)]
    frame = rows(spark, lines)
    usually = {
        name: usual(kind.removesuffix(" not null"), quoted) for name, kind in COLUMNS.items()
    }
    sample = "{" + ",".join(f'"{name}":{held}' for name, held in usually.items()) + "}"
    plain = PlainLines.like([sample], spec, known, spec.source.timezone)
    assert plain is not None
    with configured(spark, {"spark.sql.session.timeZone": spec.source.timezone}):
        ours = _judged(spark, spec, frame, known, plain)
        expected = _judged(spark, spec, frame, known, None)
    assert [*zip(ours, expected, strict=True)] == [(one, one) for one in expected]
    refused = sum('"_refused":true' in one for one in expected) / len(expected)
    alike = sum(
        bool(re.fullmatch(plain.pattern, one.decode(errors="replace"))) for one in lines
    ) / len(lines)
    assert 0.15 < alike < 0.85 and 0.1 < refused < 0.8, "all kinds of lines are there"


def _judged(
    spark: SparkSession, spec: FlowSpec, frame: DataFrame, known: Known, plain: PlainLines | None
) -> list[str]:
    """All that is known of each line, as text: Python has no dates before the year 1, and -0.0
    equals 0.0.
    """
    records = [json_records(frame, spec, known, plain=plain)]
    found = parse(spark, spec, records, SEEN, all_raw=True).withColumn(
        "_refused", F.col(WHY).isNotNull()
    )
    return [
        row["held"]
        for row in found.orderBy("_id").select(F.to_json(F.struct("*")).alias("held")).collect()
    ]


SPEC = flow("UTC")
SAMPLES = {
    "compact": (
        ['{"id":1,"n":5}', '{"id":2,"x":1.5}'],
        ['{"id":3,"n":5,"x":1.5}'],
        ['{"n":5,"id":3}', '{"id": 3}'],
    ),
    "escapes": (
        ['{"id":1}'],
        [r'{"id":1,"note":"a \"b\" \\"}'],
        [r'{"note":"\ud800"}', r'{"note":"a\"}'],
    ),
    "with blanks": (['{"id": 1, "n": null}'], ['{"id": 3, "n": 5}'], ['{"id":3,"n":5}']),
    "another order": (['{"n":5,"id":3}'], ['{"n":5,"id":3,"x":1}'], ['{"id":3,"n":5}']),
    "quoted": (
        ['{"id":"1","n":5}'],
        ['{"id":"3","n":5}'],
        ['{"id":3,"n":5}', '{"id":"3","n":"5"}'],
    ),
    "an odd one among ten": (
        ['{"id":1}'] * 9 + ['{"id":1,"other":5}'],
        ['{"id":3}'],
        ['{"id":3,"other":5}'],
    ),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_decides_which_lines_are_plain(sample: str) -> None:
    lines, plain, odd = SAMPLES[sample]
    found = PlainLines.like(lines, SPEC, Known(), "UTC")
    assert found is not None
    assert all(re.fullmatch(found.pattern, one) for one in plain)
    assert not any(re.fullmatch(found.pattern, one) for one in odd)


@pytest.mark.parametrize("lines", [[], ["no JSON"], ['{"id":1}'] * 8 + ['{"id":1,"other":5}']])
def test_a_sample_without_plain_lines_leaves_all_to_the_map(lines: list[str]) -> None:
    assert PlainLines.like(lines, SPEC, Known(), "UTC") is None


@pytest.mark.parametrize("column", ["json", "array<int>", {"type": "date", "format": "dd.MM.yyyy"}])
def test_columns_without_a_plain_form_are_read_by_a_map(
    spark: SparkSession, column: str | dict[str, str]
) -> None:
    spec = FlowSpec.model_validate(
        {
            "source": {"files": "x", "format": "json"},
            "columns": {"id": "int", "c": column},
            "target": {},
        }
    )
    assert PlainLines.of(rows(spark, [b'{"id":1}']), spec, Known()) is None


def test_a_renamed_field_is_read_into_its_column(spark: SparkSession) -> None:
    columns = {"id": {"type": "int", "from": "ID"}, "word": {"type": "string", "from": "text"}}
    spec = FlowSpec.model_validate(
        {"source": {"files": "x", "format": "json"}, "columns": columns, "target": {}}
    )
    read = Read(rows(spark, [b'{"ID":7,"text":"a"}', b'{"ID":8,"text":"\\u00e9"}']), many=True)
    found = parse(spark, spec, records_of([read], spec), SEEN).orderBy("_id")
    assert [tuple(row) for row in found.select("id", "word").collect()] == [(7, "a"), (8, "é")]


@pytest.mark.parametrize("many", [False, True])
def test_floats_in_the_middle_of_two_and_a_field_of_spark_s_own_name(
    spark: SparkSession, many: bool
) -> None:
    """The double of the first number lies between two floats, and its text beyond."""
    columns = {"c": "float", "d": {"type": "decimal(5,2)", "from": "_corrupt_record"}}
    spec = FlowSpec.model_validate(
        {"source": {"files": "x", "format": "json"}, "columns": columns, "target": {}}
    )
    lines = [
        b'{"c":1.0000000596046448,"_corrupt_record":1}',
        b'{"c":0.00579521083272993564605712890625}',
    ]
    found = parse(
        spark, spec, records_of([Read(rows(spark, lines), many=many)], spec), SEEN
    ).orderBy("_id")
    texts = [F.col("c").cast("string"), F.col("d").cast("string")]
    assert [tuple(row) for row in found.select(*texts).collect()] == [
        ("1.0000001", "1.00"),
        ("0.005795211", None),
    ]
