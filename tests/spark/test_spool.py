"""Files that Spark can't read as they are: copies of them lie where every host sees them, and only
during a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from draindown.base.exits import Exit
from draindown.spark.batch import evaluation
from draindown.spark.contract import parsing
from draindown.spark.sources import readers
from draindown.spark.sources.place import CUT
from tests.landing import Landing

_AT = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC"))


def _multiline_csv(path: Path) -> None:
    path.write_bytes(b'id,note\na,"two\nlines"\nb,one\n')


def _zoned_orc(path: Path) -> None:
    orc.write_table(pa.table({"id": ["a", "b"], "at": _AT}), str(path))


def _wide_parquet(path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b"], **{f"c{i}": [i, i] for i in range(600)}}), path)


_FORMS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "multi-line csv": ("csv", _multiline_csv),
    "zoned orc": ("orc", _zoned_orc),
    "wide parquet": ("parquet", _wide_parquet),
}


@pytest.mark.full
@pytest.mark.parametrize(
    "form", ["multi-line csv", "zoned orc", pytest.param("wide parquet", marks=pytest.mark.long)]
)
def test_copies_lie_in_the_lake_and_last_as_long_as_the_batch(
    spark: SparkSession, landing: Any, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, write = _FORMS[form]
    flow: Mapping[str, Any] = {
        "source": {"format": kind},
        "columns": {"id": "string not null"},
        "target": {"keys": ["id"], "sequence_by": ["id"]},
    }
    here: Landing = landing(flow)
    write(here.landing / f"1.{kind}")
    spool = Path(here.layout.spool)
    left = spool / "records-of-a-killed-driver" / "records.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"torn")
    read: list[Path] = []
    parse = parsing.parse

    def watched(spark: SparkSession, spec: Any, parts: Any, at: datetime, **more: Any) -> DataFrame:
        read.extend(
            Path(unquote(urlparse(uri).path)) for part in parts for uri in part.frame.inputFiles()
        )
        assert all(path.exists() for path in read) and not left.exists()
        return parse(spark, spec, parts, at, **more)

    monkeypatch.setattr(evaluation, "parse", watched)
    _, code = here.attempt_batches()
    assert code == Exit.DONE and sorted(row["id"] for row in here.rows()) == ["a", "b"]
    assert read and all(spool in path.parents for path in read)
    assert not spool.exists()


def test_a_sequence_that_a_copy_cuts_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    seconds = 1_782_864_000_000_000_000
    times = {
        "at": pa.array(
            [seconds + 123_456_000, seconds + 1, None, seconds + 999], pa.timestamp("ns", "UTC")
        )
    }
    table = pa.table(
        {"d": [0.5] * 4, **times, "other": pa.array([seconds + 1] * 4, pa.timestamp("ns"))}
    )
    path = tmp_path / "split"
    pq.write_table(table, path, use_dictionary=False, column_encoding={"d": "BYTE_STREAM_SPLIT"})
    files = [readers.InputFile(str(path), 4)]
    (frame,) = readers.columnar_groups(spark, files, "parquet", ["at"], str(tmp_path / "spool"))
    rows = frame.orderBy("_id").selectExpr("unix_micros(_row.at) as at", CUT).collect()
    found = [(row["at"], sorted(row[CUT])) for row in rows]
    micros = seconds // 1000
    assert found == [(micros + 123_456, []), (micros, ["at"]), (None, []), (micros, ["at"])], (
        "of the contract's columns"
    )


def test_a_batch_that_fails_leaves_no_copies(spark: SparkSession, landing: Any) -> None:
    here: Landing = landing({"source": {"format": "csv"}, "columns": {"id": "string"}})
    _multiline_csv(here.landing / "1.csv")

    def fail(step: str) -> None:
        if step == "read":
            assert list(Path(here.layout.spool).iterdir())
            raise RuntimeError("full disk")

    _, code = here.attempt_batches(reached=fail)
    assert code != Exit.DONE and not Path(here.layout.spool).exists()
    assert here.attempt_batches()[1] == Exit.DONE and len(here.rows()) == 2
