"""A batch looks only into files of the target that can hold its keys: others may as well not be there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from tests.landing import Landing

NUMBERED = {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"}
COLUMNS = {"id": "long not null", "seq": "int not null", "op": "string", "a": "int"}


def _line(key: int, seq: int, a: int, op: str = "u") -> str:
    return json.dumps({"id": key, "seq": seq, "op": op, "a": a})


def _files(landing: Landing) -> set[Path]:
    return set(Path(landing.layout.table).rglob("*.parquet"))


def _rows(landing: Landing) -> dict[int, int]:
    found = QueryBuilder().register("t", DeltaTable(landing.layout.table)).execute("select id, a from t")
    return {row["id"]: row["a"] for row in pa.RecordBatchReader.from_stream(found).read_all().to_pylist()}


def test_files_between_the_ranges_of_a_batch_are_not_read(tmp_path: Path, spark: SparkSession) -> None:
    landing = Landing(tmp_path, columns=COLUMNS, target=NUMBERED)
    made: list[set[Path]] = []
    for start in (0, 1_000, 2_000):
        before = _files(landing)
        landing.deliver(*[_line(start + i, 1, 0) for i in range(20)])
        landing.drain(spark)
        made.append(_files(landing) - before)
    hidden = [(path, path.with_suffix(".hidden")) for path in made[1]]
    assert hidden, "the batch in the middle wrote files of its own"
    for path, aside in hidden:
        path.rename(aside)

    landing.deliver(_line(3, 2, 7), _line(5, 2, 0, "d"))
    landing.deliver(_line(2_004, 2, 8), _line(2_005, 0, 9))
    report = landing.drain(spark)

    for path, aside in hidden:
        aside.rename(path)
    assert report.drain is not None and report.drain.totals["superseded"] == 1
    expected = {start + i: 0 for start in (0, 1_000, 2_000) for i in range(20)} | {3: 7, 2_004: 8}
    del expected[5]
    assert _rows(landing) == expected


def test_a_file_within_a_range_is_read(tmp_path: Path, spark: SparkSession) -> None:
    landing = Landing(tmp_path, columns=COLUMNS, target=NUMBERED)
    for start in (0, 1_000):
        landing.deliver(*[_line(start + i, 1, 0) for i in range(5)])
        landing.drain(spark)
    for path in _files(landing):
        path.rename(path.with_suffix(".hidden"))
    landing.deliver(_line(2, 2, 7), _line(1_004, 2, 8))  # one file: one range over both

    with pytest.raises(Exception, match=r"does not exist|FILE_NOT_EXIST|FileNotFound"):
        landing.drain(spark)
