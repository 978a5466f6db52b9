"""The contract without a drain: order of reasons, casts, times where clocks change, one parse per line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.lines import LineCounter
from draindown.spark.parsing import WHY, parse
from draindown.spark.records import from_lines
from draindown.spark.session import configured
from draindown.spec import FlowSpec
from tests.spark.mutants import found_in, mutant

SEEN = datetime(2026, 1, 1, tzinfo=UTC)


def parsed(spark: SparkSession, flow: Mapping[str, Any], *lines: str, header: str | None = None) -> DataFrame:
    spec = FlowSpec.model_validate({**flow, "source": {"files": "x", **flow["source"]}})
    rows = [(line, "file:/x", 0, at) for at, line in enumerate(lines)]
    frame = spark.createDataFrame(rows, "value string, _file string, _block long, _id long")
    return parse(spark, spec, [from_lines(frame, spec, header)], SEEN)


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
        '{"b":"x"}': ("missing", "a"),
        '{"a":1,"b":"x"}': ("type", "b"),
        '{"a":1,"b":0}': ("missing", "c"),
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
    assert plan.count("from_json") == 1


def test_names_may_hold_quotes_and_dollars(spark: SparkSession) -> None:
    columns = {"it's": "int not null", "$": "string", "ü": "decimal(5,1)", "a\\b": "array<int>"}
    row = json.dumps({"it's": 1, "$": "x", "ü": 1.5, "a\\b": [1], "o'ther": "\\"})
    held = parsed(spark, {"source": {"format": "json"}, "columns": columns}, row).collect()[0]
    assert (held["it's"], held["$"], str(held["ü"]), held["a\\b"]) == (1, "x", "1.5", [1])
    assert json.loads(held["_rescued"]) == {"o'ther": "\\"}


def test_a_csv_row_that_was_refused_is_judged_under_its_header(spark: SparkSession) -> None:
    flow = {"source": {"format": "csv"}, "columns": {"a": "int not null", "b": "string"}}
    assert reasons(parsed(spark, flow, "x,1", "x,y", header="b,a")) == [(None, None), ("type", "a")]


def test_rows_of_columnar_files_come_back_from_quarantine(spark: SparkSession) -> None:
    flow = {"source": {"format": "parquet"}, "columns": {"a": "int not null", "raw": "binary", "at": "timestamp"}}
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
        "2024-11-03T01:30:00 America/New_York": "05:30:00",
    }
    with configured(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        frame = parsed(spark, flow, *[json.dumps({"at": text, "plain": text}) for text in times])
        seconds = [row[0] for row in frame.orderBy("_id").select(F.unix_seconds("at")).collect()]
        detail = frame.where("_why is not null").orderBy("_id").select("_why.detail").first()[0]
    found = [None if s is None else datetime.fromtimestamp(s, UTC).strftime("%H:%M:%S") for s in seconds]
    assert dict(zip(times, found, strict=True)) == times
    assert detail == "2024-03-10T02:00:00 is no timestamp that clocks in America/New_York show once"
    with configured(spark, {"spark.sql.session.timeZone": "+02:00"}):
        assert reasons(parsed(spark, flow, '{"at":"2024-03-10T02:30:00"}')) == [(None, None)]


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
