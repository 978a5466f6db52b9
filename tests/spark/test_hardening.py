"""What a real drain leaves open: directories, sockets, pickles, and a Delta log that somebody
planted.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from draindown.spark.runs.compaction import vacuum
from tests.landing import Landing

WEEK = 7 * 86400


HOSTILE = (
    *(
        "'; drop table x; --",
        "a\\' or 1=1 --",
        "`",
        "${env:HOME}",
        "{{ ds }}",
        "../../etc",
        "%2F..%2F",
        "delta.`/etc`",
    ),
    *('" or true', "x\ny", "\u202e", "é/=", "\\N"),
)


@pytest.mark.full
def test_s4_s7_s14_hostile_values_stay_values_and_what_is_left_is_private(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = {"id": "string not null", "part": "string not null", "seq": "int not null"}
    target = {"keys": ["id", "part"], "sequence_by": ["seq"], "partition_by": ["part"]}
    landing = Landing(tmp_path, columns=columns, target=target)
    before = os.umask(0)
    try:
        for seq in (1, 2):
            rows = [json.dumps({"id": text, "part": text, "seq": seq}) for text in HOSTILE]
            landing.deliver(*rows, "no json", name=f"it's {seq} `x` ;--.json")
            landing.drain(spark)
    finally:
        os.umask(before)
    found = sorted((row["id"], row["part"], row["seq"]) for row in landing.rows())
    assert found == sorted((text, text, 2) for text in HOSTILE)
    assert len(landing.quarantine()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "landing"]
    for place in (landing.layout.home, landing.layout.tables.quarantine.path):
        assert stat.S_IMODE(Path(place).stat().st_mode) == 0o700, place
    files = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [
        path
        for path in files
        if path.read_bytes()[:1] == b"\x80" or path.suffix in (".pkl", ".pickle")
    ]


@pytest.mark.full
def test_s4_names_and_values_that_look_like_variables_stay_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Fields come with their names: in SQL text Spark would put what its environment holds in their
    place.
    """
    odd, columns = "${env:HOME}", {"id": "string not null", "seq": "int not null"}
    target = {"keys": ["id"], "sequence_by": ["seq"]}
    text = Landing(tmp_path / "text", columns=columns, target=target)
    rows = Landing(tmp_path / "rows", columns=columns, target=target, source={"format": "parquet"})
    text.deliver(json.dumps({"id": odd, "seq": 1, odd: "x"}))
    pq.write_table(
        pa.table({"id": [odd], "seq": pa.array([1], pa.int32()), odd: ["x"]}), rows.landing / "1"
    )
    for landing in (text, rows):
        report = landing.apply(spark)
        assert [finding.subject for finding in report.findings if finding.kind == "new-field"] == [
            odd
        ]
        assert [(row["id"], row["seq"]) for row in landing.rows()] == [(odd, 1)]
        assert [json.loads(row["_rescued_data"]) for row in landing.rows()] == [{odd: "x"}]


def test_s13_nothing_listens_beyond_this_machine(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10
    me = psutil.Process()
    found = [
        connection.laddr
        for process in (me, *me.children(recursive=True))
        for connection in _connections(process)
        if connection.status == psutil.CONN_LISTEN
    ]
    assert found, "the driver listens for its own executors"
    assert {address.ip.removeprefix("::ffff:") for address in found} <= {"127.0.0.1", "::1"}
    assert spark.sparkContext.uiWebUrl is None


def _connections(process: psutil.Process) -> Sequence[Any]:
    """Those of a process; none if it has ended meanwhile, as one that Spark started for a
    moment.
    """
    try:
        return process.net_connections("inet")
    except psutil.NoSuchProcess:
        return ()


def _plant(table: Path, *actions: dict[str, Any]) -> None:
    version = DeltaTable(str(table)).version() + 1
    lines = [{"commitInfo": {"timestamp": 0, "operation": "WRITE"}}, *actions]
    (table / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.full
@pytest.mark.parametrize(
    "form",
    [
        "file://{}",
        "../outside.txt",
        *(pytest.param(form, marks=pytest.mark.long) for form in ("{}", "file:{}")),
    ],
)
def test_s12_vacuum_deletes_nothing_outside_the_table(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    table, outside = tmp_path / "lake" / "table", tmp_path / "lake" / "outside.txt"
    write_deltalake(str(table), pa.table({"a": [1]}))
    inside = next(table.glob("*.parquet"))
    outside.write_text("not draindown's")
    long_ago = int((time.time() - 3 * WEEK) * 1000)
    for path in (outside, inside):
        os.utime(path, (long_ago / 1000, long_ago / 1000))
    removed = {"deletionTimestamp": long_ago, "dataChange": True, "extendedFileMetadata": False}
    _plant(
        table,
        *[{"remove": {"path": path, **removed}} for path in (form.format(outside), inside.name)],
    )
    try:
        vacuum(spark, str(table), WEEK, lambda: None)
    finally:
        assert outside.exists()
