"""The contract without a drain: order of reasons, casts in every zone, one parse per line, and a seeded fuzzer."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.exits import Exit
from draindown.lines import LineCounter
from draindown.spark.parsing import WHY, parse
from draindown.spark.records import from_lines
from draindown.spec import FlowSpec

Make = Callable[[Mapping[str, Any]], Any]
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


def mutated(seed: int) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files of one seed: good files of three kinds of line ends, with a few bytes changed."""
    chance = random.Random(seed)
    end = chance.choice([b"\n", b"\r\n", b"\r"])
    records = [{"k": str(n), "n": n, "s": chance.choice(["", "é", '"', "\\", "[{"])} for n in range(20)]
    content = bytearray(end.join(json.dumps(r, ensure_ascii=chance.random() < 0.5).encode() for r in records) + end)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(content))
        match chance.randrange(4):
            case 0:
                content[at] = chance.randrange(256)
            case 1:
                del content[at : at + chance.randint(1, 30)]
            case 2:
                content[at:at] = chance.choice([b"\n", b"\r", b"\0", b"\xff", b'"', b"}", b"]", b"{}", b" "])
            case 3:
                content[at:at] = content[at : at + chance.randint(1, 60)]
    yield f"{seed:04d}.json", bytes(content)
    packed = bytearray(gzip.compress(bytes(content), mtime=0))
    if chance.random() < 0.5:
        packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
    yield f"{seed:04d}.json.gz", bytes(packed)


def counted(name: str, content: bytes) -> tuple[int, int, set[int]] | None:
    """Lines, blank lines and the positions that hold one JSON object, by Python alone; None if it can't be unpacked."""
    if name.endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except Exception:  # noqa: BLE001 - whatever zlib says, it is unreadable
            return None
    lines = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    lines = lines[:-1] if lines[-1] == b"" else lines
    return len(lines), sum(not line.strip() for line in lines), {n for n, line in enumerate(lines, 1) if _whole(line)}


def _whole(line: bytes) -> bool:
    """Whether a line is one object that the contract below accepts."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def constant(name: str) -> Any:
        raise ValueError(name)

    try:
        found = json.loads(line.decode("utf-8"), object_pairs_hook=once, parse_constant=constant)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("k") is not None


FUZZED = {
    "source": {"format": "json"},
    "columns": {"k": "string not null", "s": "string"},
}


def fuzz(landing: Make, seeds: range) -> None:
    """Land the files of all seeds at once; every line must be where plain Python says."""
    here = landing(FUZZED)
    files = {name: content for seed in seeds for name, content in mutated(seed)}
    expected = {name: counted(name, content) for name, content in files.items()}
    for name, content in files.items():
        here.land(name, content)
    report, code = here.drain()
    assert code == Exit.DONE, report.error
    assert set(here.parked()) == {name for name, found in expected.items() if found is None}
    sums = here.sums()
    readable = {name: found for name, found in expected.items() if found}
    assert sums["lines"] == sum(found[0] for found in readable.values())
    assert sums["blank"] == sum(found[1] for found in readable.values())
    refused: dict[str, set[int]] = {name: set() for name in readable}
    for name, at in here.refused():
        refused[name].add(at)
    for name, (lines, blank, whole) in readable.items():
        assert not refused[name] & whole, name
        assert lines - blank - len(refused[name]) == len(whole), name
    assert here.drain()[0].outcome == "idle"


def test_lines_are_counted_alike() -> None:
    for name, content in mutated(7):
        if not name.endswith(".gz"):
            counter = LineCounter(limit=10**6)
            counter.feed(content)
            counter.finish()
            found = counted(name, content)
            assert found is not None
            assert (counter.lines, counter.blank) == found[:2]


def test_forty_mutated_files(landing: Make) -> None:
    fuzz(landing, range(20))


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("start", range(1_000, 2_000, 250))
def test_a_thousand_mutated_files(landing: Make, start: int) -> None:
    fuzz(landing, range(start, start + 250))
