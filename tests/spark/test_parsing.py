"""The contract without a drain: order of reasons, casts, times where clocks change, one parse per
line.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.audit.files import repeats
from draindown.config.landing import FlowSpec
from draindown.sources.files.line_counter import LineCounter
from draindown.spark.contract.casting import typed
from draindown.spark.contract.parsing import WHY, parse
from draindown.spark.contract.records import records_of
from draindown.spark.session import configured
from draindown.spark.sources.place import ARRIVED, ENVELOPE, ENVELOPE_FIELDS, FIRST_SEEN
from draindown.spark.sources.port import Read
from tests.csvlines import SOURCES, random_lines, strict
from tests.spark.mutants import found_in, mutant

SEEN = datetime(2026, 1, 1, tzinfo=UTC)


def parsed(
    spark: SparkSession, flow: Mapping[str, Any], *lines: str, header: str | None = None
) -> DataFrame:
    spec = FlowSpec.model_validate({**flow, "source": {"files": "x", **flow["source"]}})
    rows = [(line, "file:/x", 0, at) for at, line in enumerate(lines)]
    frame = spark.createDataFrame(rows, "value string, _unit string, _block long, _id long")
    return parse(spark, spec, records_of([Read(frame, header)], spec), SEEN)


def reasons(frame: DataFrame) -> list[tuple[str | None, str | None]]:
    rows = frame.orderBy("_id").select(F.col(f"{WHY}.reason"), F.col(f"{WHY}.field")).collect()
    return [(row[0], row[1]) for row in rows]


def test_the_first_reason_in_contract_order_counts(spark: SparkSession) -> None:
    flow = {
        "source": {"format": "json", "max_record_bytes": "60b"},
        "columns": {"a": "int not null", "b": "int", "c": "string not null"},
        "rules": {"first": "b > 0", "second": "b > 1", "early": "arrived_at > '2025-12-31'"},
    }
    lines = {
        '{"a":"x","b":"x","n":"' + "x" * 60 + '"}': ("too_large", None),
        '{"a":"x","b":"x"} x': ("malformed", None),
        '{"a":"x","b":"x"}': ("type", "a"),
        '{"b":"x"}': ("not_null", "a"),
        '{"a":1,"b":"x"}': ("type", "b"),
        '{"a":1,"b":0}': ("not_null", "c"),
        '{"a":1,"b":0,"c":""}': ("rule:first", None),
        '{"a":1,"b":1,"c":""}': ("rule:second", None),
        '{"a":1,"b":2,"c":""}': (None, None),
    }
    frame = parsed(spark, flow, *lines)
    assert reasons(frame) == list(lines.values())
    held = frame.orderBy("_id").select("a", "b", "c", "_raw").collect()
    assert tuple(held[-1]) == (1, 2, "", None)
    assert {tuple(row)[:3] for row in held[:-1]} == {(None, None, None)}
    assert [row["_raw"] for row in held[:-1]] == list(lines)[:-1]


def test_json_is_parsed_once_per_line(spark: SparkSession) -> None:
    columns = {f"c{i}": kind for i, kind in enumerate(["string", "int", "timestamp", "double"] * 5)}
    frame = parsed(spark, {"source": {"format": "json"}, "columns": columns}, "{}")
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    # text like an object's is looked at again, on demand
    assert plan.count("from_json(ArrayType(MapType(") == 1


def test_names_may_hold_quotes_and_dollars(spark: SparkSession) -> None:
    columns = {"it's": "int not null", "$": "string", "ü": "decimal(5,1)", "a\\b": "array<int>"}
    row = json.dumps({"it's": 1, "$": "x", "ü": 1.5, "a\\b": [1], "o'ther": "\\"})
    held = parsed(spark, {"source": {"format": "json"}, "columns": columns}, row).collect()[0]
    assert (held["it's"], held["$"], str(held["ü"]), held["a\\b"]) == (1, "x", "1.5", [1])
    assert json.loads(held["_rescued_data"]) == {"o'ther": "\\"}


def test_fields_are_told_apart_by_case_and_by_points(spark: SparkSession) -> None:
    written = {"decimal_separator": ",", "thousands_separator": "."}
    twins = {"d": "decimal(10,2)", "j": "json", "a": "array<int>"}
    columns: dict[str, Any] = dict(twins)
    columns |= {
        f"upper_{name}": {"type": kind, "from": name.upper()} for name, kind in twins.items()
    }
    columns |= {
        name: {"type": "decimal(10,2)", "from": name[-1], **written}
        for name in ("lower_n", "upper_N")
    }
    columns |= {"r": "struct<x: int>", "r_s": {"type": "struct<x: int>", "from": "r.s"}}
    values = {"d": 1.1, "D": 2.2, "j": 1.0, "J": [2], "a": [1], "A": [2], "n": "1.000,5", "N": 2.5}
    within = [
        ({"r": {"x": 1}, "r.s": {"x": 2}}, None),
        ({"r": {"x": 1}, "r.s": {"x": 2, "y": 3}}, {"r.s": '{"x":2,"y":3}'}),
        ({"r": {"x": 1, "y": 3}, "r.s": {"x": 2}}, {"r": '{"x":1,"y":3}'}),
    ]
    lines = [json.dumps(values | structs, separators=(",", ":")) for structs, _ in within]
    frame = parsed(spark, {"source": {"format": "json"}, "columns": columns}, *lines)
    assert reasons(frame) == [(None, None)] * len(within)
    for row, (_, rescued) in zip(frame.orderBy("_id").collect(), within, strict=True):
        assert (str(row["d"]), str(row["upper_d"])) == ("1.10", "2.20")
        assert (row["j"], row["upper_j"], row["a"], row["upper_a"]) == ("1.0", "[2]", [1], [2])
        assert (str(row["lower_n"]), str(row["upper_N"])) == ("1000.50", "2.50")
        assert (row["r"]["x"], row["r_s"]["x"]) == (1, 2)
        assert (row["_rescued_data"] and json.loads(row["_rescued_data"])) == rescued


def test_a_csv_row_that_was_refused_is_judged_under_its_header(spark: SparkSession) -> None:
    flow = {"source": {"format": "csv"}, "columns": {"a": "int not null", "b": "string"}}
    assert reasons(parsed(spark, flow, "x,1", "x,y", header="b,a")) == [(None, None), ("type", "a")]


@pytest.mark.parametrize(
    ("name", "seed", "number"), [("rfc", 37, 4000), *[(name, 5, 800) for name in SOURCES]]
)
def test_csv_lines_are_what_pythons_strict_reader_reads_or_refused(
    spark: SparkSession, name: str, seed: int, number: int
) -> None:
    source, columns = SOURCES[name], {"a": "string", "b": "string", "c": "string"}
    marks = source.dialect.marks
    lines = [
        line for line in random_lines(seed, number, source.dialect, "\r\n", "\n") if line.strip()
    ]
    # a line end is within a record only if quotes hold it
    lines = [
        line
        for line in lines
        if any(mark in line for mark in marks) or not {"\r", "\n"} & set(line)
    ]
    said = {key: value for key, value in source.model_dump().items() if value is not None} | {
        "header": False
    }
    rows = parsed(spark, {"source": said, "columns": columns}, *lines).orderBy("_id").collect()
    landed = 0
    for line, row in zip(lines, rows, strict=True):
        cells, wanted = source.dialect.cells(line), strict(line, source.dialect)
        whole = cells is not None and wanted is not None and len(cells) >= 3 and not any(cells[3:])
        assert (row[WHY] is None) == whole, line
        if whole and cells:
            landed += 1
            assert [row["a"], row["b"], row["c"]] == cells[:3], line
    assert landed > number // 40


def _csv_examples() -> list[tuple[str, str, list[str | None] | None]]:
    """Options, line and cells (None: refused) of each example in the reference."""
    text = (Path(__file__).parents[2] / "docs" / "pipeline-files.md").read_text()
    rows = (
        text.split("<!-- csv: begin -->")[1].split("<!-- csv: end -->")[0].strip().splitlines()[2:]
    )
    found = []
    for row in rows:
        options, line, *cells = (
            cell.removesuffix(" ") for cell in row.removesuffix("|").removeprefix("| ").split("| ")
        )
        shown = [{"NULL": None, "an empty text": ""}.get(cell, cell[1:-1]) for cell in cells]
        found.append((options[1:-1], line[1:-1], None if cells[0] == "refused" else shown))
    return found


def test_csv_examples_are_true(spark: SparkSession) -> None:
    examples = _csv_examples()
    assert len(examples) > 15
    for options in dict.fromkeys(options for options, _, _ in examples):
        lines = {line: cells for said, line, cells in examples if said == options}
        source = {"format": "csv", "header": False, **(yaml.safe_load(options) or {})}
        rows = (
            parsed(spark, {"source": source, "columns": dict.fromkeys("abc", "string")}, *lines)
            .orderBy("_id")
            .collect()
        )
        found = {
            line: None if row[WHY] else [row[c] for c in "abc"]
            for line, row in zip(lines, rows, strict=True)
        }
        assert found == lines


def test_a_csv_line_is_split_once(spark: SparkSession) -> None:
    flow = {"source": {"format": "csv"}, "columns": {f"c{i}": "int" for i in range(20)}}
    header = ",".join(["x", *flow["columns"]])
    plan = parsed(spark, flow, "1", header=header)._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("split(value") == plan.count("regexp_extract_all(concat(,, value#") == 1


@pytest.mark.parametrize("name", ["rfc", "single", pytest.param("mysql", marks=pytest.mark.full)])
def test_a_header_that_comes_again_is_known_by_its_cells_in_drain_and_audit(
    spark: SparkSession, name: str
) -> None:
    source = SOURCES[name]
    mark, quote = source.dialect.delimiter, source.dialect.quote or ""
    said = {key: value for key, value in source.model_dump().items() if value is not None}
    given = {"source": said, "columns": dict.fromkeys(("sku", "size"), "string")}
    flow = FlowSpec.model_validate(given)
    header = mark.join(["sku ", f"{quote}size{quote}"])
    forms = (
        "sku",
        " sku",
        "sku\u00a0",
        f"{quote}sku{quote}",
        f"{quote} sku{quote}",
        f"{quote}{quote}sku",
        "Sku",
    )
    ends = ("size", f"{quote}size{quote}", f"size{mark}", f"size{mark}x", "sizes", f"size{quote}")
    lines = [f"{bom}{form}{mark}{end}" for bom in ("", "\ufeff") for form in forms for end in ends]
    lines += [
        f"{mark}sku{mark}size",
        f"sku{mark}{quote}si\nze{quote}",
        f"a{mark}sku{mark}size",
        f"x{mark}sku",
    ]
    kept = {
        row["_id"]
        for row in parsed(spark, given, *lines, header=header).where("not _blank").collect()
    }
    is_repeated = repeats(header.encode(), flow)
    for at, line in enumerate(lines):
        cells = source.dialect.cells(line.removeprefix("\ufeff"))
        same = cells is not None and [(cell or "").strip() for cell in cells] in (
            ["sku", "size"],
            ["sku", "size", ""],
        )
        assert (at not in kept, is_repeated(line.encode())) == (same, same), line


_ESCAPES = (
    "\\ud83d",
    "\\ude00",
    "\\uD83D",
    "\\uDE00",
    "\\udbff",
    "\\\\",
    "\\\\ud83d",
    "\\u0041",
    "ud83d",
    '\\"',
    "x",
    "😀",
)


def test_half_of_a_surrogate_pair_is_no_text(spark: SparkSession) -> None:
    chance = random.Random(37)
    texts = ["".join(chance.choices(_ESCAPES, k=chance.randrange(1, 6))) for _ in range(1500)]
    places = (
        '{"a":1,"b":"%s"}',
        '{"a":1,"c":["x",{"%s":2}]}',
        '{"a":1,"other":"%s"}',
        '{"a":1,"%s":1}',
    )
    lines = [chance.choice(places) % text for text in texts]
    flow = {"source": {"format": "json"}, "columns": {"a": "int", "b": "string", "c": "json"}}
    rows = parsed(spark, flow, *lines).orderBy("_id").collect()
    assert 300 < sum(map(_is_text, lines)) < 1200
    for line, row in zip(lines, rows, strict=True):
        why = row[WHY]
        assert (why is None) == _is_text(line), line
        assert why is None or why["detail"] == "half of a surrogate pair, which is no Unicode text"
        if why is None:
            assert row["b"] == json.loads(line).get("b"), line


def _is_text(line: str) -> bool:
    """Whether all texts of a JSON line are Unicode: plain Python."""
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def test_a_columnar_row_that_lost_bytes_on_its_way_to_quarantine_stays_there(
    spark: SparkSession,
) -> None:
    flow = {"source": {"format": "parquet"}, "columns": {"a": "int", "s": "string"}}
    assert reasons(parsed(spark, flow, '{"a":1,"s":"caf\ufffd"}', '{"a":1,"s":"é"}')) == [
        ("malformed", None),
        (None, None),
    ]


def test_rows_of_columnar_units_come_back_from_quarantine(spark: SparkSession) -> None:
    flow = {
        "source": {"format": "parquet"},
        "columns": {"a": "int not null", "raw": "binary", "at": "timestamp"},
    }
    line = '{"a":1,"raw":"/wA=","at":"2024-07-01T12:00:00.123456Z"}'
    held = parsed(spark, flow, line).collect()[0]
    assert (held["a"], bytes(held["raw"]), held["at"].microsecond) == (1, b"\xff\x00", 123456)


def test_a_local_time_is_one_moment_or_none(spark: SparkSession) -> None:
    flow = {
        "source": {"format": "json", "timezone": "America/New_York"},
        "columns": {"at": "timestamp", "plain": "timestamp_ntz"},
    }
    times = {
        "2024-03-10T01:59:59": "06:59:59",
        "2024-03-10T02:00:00": None,
        "2024-03-10 02:59:59.999": None,
        "2024-03-10T03:00:00": "07:00:00",
        "2024-03-10T02:30:00-05:00": "07:30:00",
        "2024-03-10": "05:00:00",
        "2024-11-03T00:59:59": "04:59:59",
        "2024-11-03T01:00:00": None,
        " 2024-11-03 01:59:59 ": None,
        "2024-11-03T02:00:00": "07:00:00",
        "2024-11-03T01:30:00Z": "01:30:00",
        "2024-11-03T01:30:00 America/New_York": None,
        "2024-11-03T02:30:00 America/New_York": "07:30:00",
    }
    with configured(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        frame = parsed(spark, flow, *[json.dumps({"at": text}) for text in times])
        seconds = [row[0] for row in frame.orderBy("_id").select(F.unix_seconds("at")).collect()]
        detail = frame.where("_why is not null").orderBy("_id").select("_why.detail").first()[0]
    found = [
        None if s is None else datetime.fromtimestamp(s, UTC).strftime("%H:%M:%S") for s in seconds
    ]
    assert dict(zip(times, found, strict=True)) == times
    assert detail == "2024-03-10T02:00:00 is no timestamp that clocks in America/New_York show once"
    with configured(spark, {"spark.sql.session.timeZone": "+02:00"}):
        assert reasons(parsed(spark, flow, '{"at":"2024-03-10T02:30:00"}')) == [(None, None)]


_NUMBERS = (
    *(
        "1.005",
        "1.00",
        "1.0050",
        "-1.01",
        "1e-2",
        "1E-3",
        "1.234e1",
        "1.2345e1",
        "0.00",
        "-0.001",
        "12345678.9",
    ),
    *(
        "12345678.91",
        "123456789.9",
        "9999999999",
        "0." + "0" * 36 + "1",
        "1." + "0" * 17 + "5",
        "1e400",
        "1.5",
        "7",
    ),
    *("99999999.994", "99999999.99", "0.1234567890123456789", "12345678901234567890.5"),
)


def _fitting(text: str, precision: int, scale: int, *, is_read_whole: bool) -> Decimal | None:
    """The number, if it has no more digits than that before and after its point: plain Python.

    Of a number that isn't read whole, digits past the 38th don't count: those that the type has
    before its point are.
    """
    plenty, number = Context(prec=500), Decimal(text)
    if not is_read_whole and number.adjusted() < 38:
        number = number.quantize(Decimal(1).scaleb(precision - scale - 38), ROUND_HALF_UP, plenty)
    fits = number == 0 or number.adjusted() < precision - scale
    return (
        number
        if fits and number == number.quantize(Decimal(1).scaleb(-scale), context=plenty)
        else None
    )


def _expected(text: str, precision: int, scale: int, form: str) -> Decimal | None:
    if form != "number" and "e" not in text.lower():
        return _fitting(text, precision, scale, is_read_whole=True)
    # a number of JSON has a text too, which passed through a double; Java writes it without an
    # exponent in this range
    if form == "number" and 1e-3 <= abs(float(text)) < 1e7:
        spelled = repr(float(text))
        if _fitting(spelled, precision, scale, is_read_whole=True) is None:
            return None
    return _fitting(text, precision, scale, is_read_whole=False)


_DECIMALS = ((10, 2), (30, 20), (38, 2)), ((5, 0), (18, 18), (37, 2))
_FORMS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    # the column's type, what stands for the value, and where it is then
    "number": ("{}", "{}", lambda value: value),
    "text": ("{}", '"{}"', lambda value: value),
    "list": ("array<{}>", "[0,{}]", lambda value: value[1]),
    "map": (
        "map<string,struct<`a-b`: {}>>",
        '{{"k":{{"a-b":{}}}}}',
        lambda value: value["k"]["a-b"],
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("source", ["json", "csv"])
@pytest.mark.parametrize(
    "kinds", [_DECIMALS[0], pytest.param(_DECIMALS[1], marks=pytest.mark.long)], ids=str
)
def test_a_decimal_is_never_rounded(
    spark: SparkSession, source: str, kinds: Sequence[tuple[int, int]]
) -> None:
    """A column of each type and form; each record holds one number in one of them."""
    forms = _FORMS if source == "json" else {"csv": ("{}", "{}", lambda value: value)}
    cells = [(form, *kind) for form in forms for kind in kinds]
    columns = {
        f"c{at}": forms[form][0].format(f"decimal({p},{s})")
        for at, (form, p, s) in enumerate(cells)
    }
    asked = [(at, text) for at in range(len(cells)) for text in _NUMBERS]
    lines = [
        f'{{"c{at}":{forms[cells[at][0]][1].format(text)}}}'
        if source == "json"
        else ",".join(text if at == column else "" for column in range(len(cells)))
        for at, text in asked
    ]
    written = {"format": "json"} if source == "json" else {"format": "csv", "header": False}
    frame = parsed(spark, {"source": written, "columns": columns}, *lines)
    held = frame.orderBy("_id").select(*columns, f"{WHY}.reason", f"{WHY}.field").collect()
    found, expected = {}, {}
    for (at, text), row in zip(asked, held, strict=True):
        value, own = row[f"c{at}"], _expected(text, *cells[at][1:], cells[at][0])
        within = forms[cells[at][0]][2]
        found[cells[at], text] = (
            None if value is None else within(value),
            row["reason"],
            row["field"],
        )
        expected[cells[at], text] = (
            (own, None, None) if own is not None else (None, "type", f"c{at}")
        )
    assert found == expected


def test_a_value_of_another_type_is_no_rounded_decimal(spark: SparkSession) -> None:
    rows = [
        (1.005, Decimal("1.005"), 7, Decimal("999.995")),
        (1.25, Decimal("1.250"), 12_345, Decimal("999.990")),
        (0.1, Decimal("-0.100"), -1, Decimal("-999.999")),
    ]
    frame = spark.createDataFrame(rows, "a double, b decimal(10,3), c bigint, d decimal(6,3)")
    found = frame.select(*[typed(frame, name, "decimal(6,2)") for name in "abcd"]).collect()
    assert [tuple(row) for row in found] == [
        (None, None, Decimal("7.00"), None),
        (Decimal("1.25"), Decimal("1.25"), None, Decimal("999.99")),
        (Decimal("0.10"), Decimal("-0.10"), Decimal("-1.00"), None),
    ]


@pytest.mark.full
def test_a_date_is_a_whole_day_and_nothing_else(spark: SparkSession) -> None:
    texts = {
        "2024-07-01": True,
        " 2024-7-1 ": True,
        "2024-12-1": True,
        "2024-07": False,
        "2024-07   ": False,
        "  2024-07  ": False,
        "2024-07\t\t\t": False,
        "2024": False,
        "2024-7-1 x": False,
        "2024-7-1T": False,
        "2024-07-01 12:30:00": False,
        "19782-01-01": False,
    }
    columns = {"d": "date", "t": "timestamp", "n": "timestamp_ntz"}
    flow = {"source": {"format": "json"}, "columns": columns}
    frame = parsed(spark, flow, *[json.dumps({"d": text}) for text in texts])
    held = [row["d"] for row in frame.orderBy("_id").collect()]
    assert {text: d is not None for text, d in zip(texts, held, strict=True)} == texts
    assert {d for d in held if d is not None} == {date(2024, 7, 1), date(2024, 12, 1)}
    for name in ("t", "n"):
        months = [text for text, is_day in texts.items() if not is_day and len(text.split("-")) < 3]
        frame = parsed(spark, flow, *[json.dumps({name: text}) for text in months])
        assert reasons(frame) == [("type", name)] * len(months)


@pytest.mark.parametrize("own", [FIRST_SEEN, ARRIVED])
def test_rows_are_judged_by_when_their_own_unit_arrived(spark: SparkSession, own: str) -> None:
    flow = {
        "source": {"format": "json"},
        "columns": {"at": "timestamp"},
        "rules": {"past": "at <= arrived_at"},
    }
    spec = FlowSpec.model_validate({**flow, "source": {"files": "x", "format": "json"}})
    line = '{"at":"2026-06-01T00:00:00Z"}'
    micros = [int(datetime(2026, month, 1, tzinfo=UTC).timestamp()) * 10**6 for month in (5, 7)]
    rows = [(line, "file:/x", 0, at, arrived) for at, arrived in enumerate(micros)]
    frame = spark.createDataFrame(
        rows, f"value string, _unit string, _block long, _id long, {own} long"
    )
    with configured(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        found = parse(spark, spec, records_of([Read(frame)], spec), SEEN)
        assert reasons(found) == [("rule:past", None), (None, None)]
        assert (own in found.columns) == (own == ARRIVED), "a table needs it"


def test_moments_within_nested_values_keep_their_microseconds(spark: SparkSession) -> None:
    at = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)
    frame = spark.createDataFrame([([at],)], "at array<timestamp>")
    found = frame.select(
        typed(frame, "at", "array<string>").alias("t"),
        typed(frame, "at", "struct<x:int>").alias("n"),
    )
    assert "12:30:00.123456" in found.collect()[0]["t"][0] and found.collect()[0]["n"] is None


def test_a_header_that_a_record_lacks_is_null(spark: SparkSession) -> None:
    columns = {"n": "int", "trace": {"type": "string", "from": "header:trace"}}
    source = {"kafka": {"topics": ["t"], "bootstrap_servers": "broker:9092"}, "format": "json"}
    spec = FlowSpec.model_validate({"source": source, "columns": columns})
    headers = {
        "null": None,
        "array()": None,
        "array(('other', x'78'))": None,
        "array(('trace', null))": None,
        "array(('trace', x'61'), ('other', x'78'), ('trace', x'62'))": "b",
    }
    rows = [
        f"(null, {some}, timestamp'2026-01-01', 't', 0, {at}L)" for at, some in enumerate(headers)
    ]
    texts = [
        f"""select '{{"n":1}}' as value, cast({row} as {ENVELOPE_FIELDS}) as {ENVELOPE}"""
        for row in rows
    ]
    place = f"'t/0' as _unit, 0L as _block, {ENVELOPE}.offset as _id, 0L as {ARRIVED}"
    frame = spark.sql(f"select *, {place} from ({' union all '.join(texts)})")
    found = parse(spark, spec, records_of([Read(frame)], spec), SEEN).orderBy("_id").collect()
    assert [(row["trace"], row[WHY]) for row in found] == [
        (value, None) for value in headers.values()
    ]


def test_lines_are_counted_alike(tmp_path: Path) -> None:
    for seed in range(200):
        name, content = mutant("json", seed)
        path = tmp_path / name
        path.write_bytes(content)
        found = found_in("json", path)
        if found.lines is not None and not name.endswith(".gz"):
            counter = LineCounter(limit=10**6)
            counter.feed(content)
            counter.finish()
            assert (counter.lines, counter.blank) == (found.lines, found.blank), name
