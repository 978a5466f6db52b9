"""Compaction over real tables: what is rewritten, what is left alone, what is removed."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.gate import published
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.lease.lease import Lease
from draindown.planning import compaction
from draindown.planning.compaction import Partition
from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.spark.runs import compaction as compaction_step
from draindown.spark.runs.compaction import compact, predicate, vacuum
from tests.ageing import age

ODD = "it's \\ a % day"
WEEK = 7 * 86400


def request(lake: str, maintenance: dict[str, Any] | None = None, **more: Any) -> Request:
    spec = PipelineSpec.model_validate(
        {
            "pipeline": "flights",
            "lake": lake,
            "flows": {
                "flights": {
                    "source": {"files": "landing/*.json", "format": "json"},
                    "columns": {"id": "int not null", "day": "string"},
                    "target": {"partition_by": ["day"]},
                    "maintenance": maintenance or {},
                }
            },
        }
    )
    return Request(spec=spec, flow="flights", step="compact", run_id="r1", root="/", **more)


def write(
    spark: SparkSession,
    path: str,
    day: str | None,
    *,
    files: int,
    rows: int = 100,
    by: str | None = "day",
) -> None:
    frame = spark.range(0, rows, 1, files).selectExpr(
        "cast(id AS int) AS id", "timestamp'2026-01-01' AS _changed_at"
    )
    literal = (
        "cast(null AS string)"
        if day is None
        else f"'{day.replace(chr(92), chr(92) * 2).replace(chr(39), chr(92) + chr(39))}'"
    )
    writer = frame.selectExpr("*", f"{literal} AS day").write.format("delta").mode("append")
    writer = writer.option("delta.enableDeletionVectors", "true")
    (writer.partitionBy(by) if by else writer).save(path)


def contents(path: str) -> list[dict[str, Any]]:
    found = Table(path).query(
        "SELECT id, day, to_unixtime(_changed_at) AS at FROM t ORDER BY day, id, at"
    )
    return list(found.to_pylist())


def commit(path: str, version: int) -> list[dict[str, Any]]:
    lines = (Path(path) / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


def publish(layout: FlowHome) -> None:
    state = published.unpublished(layout)
    assert state is not None
    published.publish(
        layout,
        published.Published(
            version=state.version,
            table_id=state.table_id,
            changed_at=None,
            at=now(),
            run_id="r",
            rows=1,
        ),
    )


def compacted(request: Request, spark: SparkSession) -> StepReport:
    report = compact(request, spark)
    assert report.compact is not None
    return report


def test_only_partitions_with_evidence_are_rewritten_and_no_row_changes(
    spark: SparkSession, lake: str
) -> None:
    asked = request(lake)
    path = asked.layout.tables.target.path
    write(spark, path, ODD, files=8)
    write(spark, path, "calm", files=3)
    write(spark, path, None, files=9)
    publish(asked.layout)
    before, version = contents(path), Table(path).version
    report = compacted(asked, spark)
    part = report.compact
    assert part is not None
    assert report.outcome == "done"
    assert (part.files_before, part.files_after) == (17, 2)
    assert part.bytes_rewritten > 0
    assert sorted(part.partitions) == [f"table day={ODD}", "table day=null"]
    actions = commit(path, version + 1)
    touched = {a["remove"]["partitionValues"].get("day") for a in actions if "remove" in a}
    assert touched == {ODD, None}
    assert not any(
        a[kind]["dataChange"] for a in actions for kind in ("add", "remove") if kind in a
    )
    assert contents(path) == before
    pointer = published.published(asked.layout)
    assert pointer is not None
    assert pointer.version == Table(path).version


def test_second_time_there_is_nothing_to_do(spark: SparkSession, lake: str) -> None:
    asked = request(lake)
    write(spark, asked.layout.tables.target.path, "a", files=8)
    assert compacted(asked, spark).outcome == "done"
    version = asked.layout.tables.target.version
    report = compacted(asked, spark)
    assert report.outcome == "idle"
    assert report.compact is not None
    assert report.compact.evidence == "nothing to do"
    assert asked.layout.tables.target.version == version


def test_table_without_partitions_and_side_tables_are_compacted(
    spark: SparkSession, lake: str
) -> None:
    asked = request(lake)
    write(spark, asked.layout.tables.target.path, "a", files=8, by=None)
    write(spark, asked.layout.tables.quarantine.path, "a", files=8, by=None)
    write(spark, asked.layout.tables.intake(1).path, "a", files=8, by=None)
    before = asked.layout.tables.intake(1).version
    report = compacted(asked, spark)
    assert report.compact is not None
    assert report.compact.partitions == ["table all", "quarantine all"]
    assert report.compact.files_after == 2
    assert asked.layout.tables.intake(1).version == before


def test_deleted_rows_are_purged_from_a_partition_of_one_file(
    spark: SparkSession, lake: str
) -> None:
    asked = request(lake)
    path = asked.layout.tables.target.path
    write(spark, path, "many", files=1)
    write(spark, path, "few", files=1)
    spark.sql(
        f"DELETE FROM delta.`{path}` WHERE (day = 'many' AND id < 30) OR (day = 'few' AND id < 10)"
    )
    before = contents(path)
    [table] = compaction.work(asked.layout, asked.flow_spec.maintenance).tables
    assert [(p.name, p.deleted) for p in table.purge] == [("day=many", 30)]
    report = compacted(asked, spark)
    assert report.compact is not None
    assert report.compact.partitions == ["table day=many"]
    assert contents(path) == before
    [still] = compaction.assess("table", Table(path), 1 << 20, force=True).purge
    assert still.name == "day=few"


def test_settings_are_put_back(spark: SparkSession, lake: str) -> None:
    asked = request(lake)
    write(spark, asked.layout.tables.target.path, "a", files=8)
    names = [f"spark.databricks.delta.optimize.{name}FileSize" for name in ("min", "max")]
    before = [spark.conf.get(name, None) for name in names]
    compacted(asked, spark)
    assert [spark.conf.get(name, None) for name in names] == before


@pytest.mark.parametrize(
    ("retain", "table_keeps"), [(WEEK - 1, "interval 7 days"), (WEEK, "interval 1 hours")]
)
def test_vacuum_refuses_less_than_a_week(
    spark: SparkSession, lake: str, retain: int, table_keeps: str
) -> None:
    path = request(lake).layout.tables.target.path
    write(spark, path, "a", files=1)
    spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = '{table_keeps}')"
    )
    version = Table(path).version
    with pytest.raises(TerminalError) as caught:
        vacuum(spark, path, retain, lambda: None)
    assert caught.value.code == "vacuum-below-floor"
    assert Table(path).version == version


def test_longer_retention_is_written_into_the_table(spark: SparkSession, lake: str) -> None:
    path = request(lake).layout.tables.target.path
    write(spark, path, "a", files=1)
    assert vacuum(spark, path, 40 * 86400, lambda: None) == 0
    kept = spark.sql(f"SHOW TBLPROPERTIES delta.`{path}`").collect()
    properties = {row["key"]: row["value"] for row in kept}
    assert properties["delta.deletedFileRetentionDuration"] == f"interval {40 * 86400} seconds"
    assert properties["delta.logRetentionDuration"] == f"interval {40 * 86400} seconds"


def old_files(spark: SparkSession, asked: Request) -> set[Path]:
    """Files that left the table eight days ago."""
    path = asked.layout.tables.target.path
    write(spark, path, "a", files=3, by=None)
    old = set(Path(path).glob("*.parquet"))
    spark.sql(f"OPTIMIZE delta.`{path}`")
    age(path, days=8)
    spark.sql("CLEAR CACHE")
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    return old


def test_vacuum_removes_old_files_once_a_day_and_remembers(spark: SparkSession, lake: str) -> None:
    asked = request(lake)
    old = old_files(spark, asked)
    before = contents(asked.layout.tables.target.path)
    assert compaction.work(asked.layout, asked.flow_spec.maintenance).vacuum == (
        ("table", asked.layout.tables.target.path),
    )
    report = compacted(asked, spark)
    assert report.compact is not None
    assert (report.outcome, report.compact.vacuumed_files) == ("done", 3)
    assert not any(file.exists() for file in old)
    assert contents(asked.layout.tables.target.path) == before
    assert asked.layout.vacuumed.read()["tables"]["table"]["files"] == 3
    assert compacted(asked, spark).outcome == "idle"


@pytest.mark.full
@pytest.mark.long
def test_each_write_of_a_compaction_comes_right_after_the_lease_was_looked_at(
    spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks at the lease is one write at most, so none begins after the look that finds
    it lost.
    """
    asked = request(lake, {"retain": "8 days"})
    path = asked.layout.tables.target.path
    for day, files in (("old", 1), ("a", 1), ("b", 8), ("c", 8)):
        write(spark, path, day, files=files, rows=16)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE day = 'old' OR (day = 'a' AND id < 8)")
    age(path, days=9)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    publish(asked.layout)
    monkeypatch.setattr(compaction_step, "PARTITIONS_AT_ONCE", 1)
    right, seen = Lease.check, list[list[str]]()

    def written() -> list[str]:
        pointer = published.published(asked.layout)
        assert pointer is not None
        commits = [str(commit.operation) for commit in reversed(Table(path).commits(99))]
        return [*commits, f"published:{pointer.version}", *compaction.vacuumed(asked.layout)]

    def look(lease: Lease) -> None:
        right(lease)
        seen.append(written())

    monkeypatch.setattr(Lease, "check", look)
    compacted(asked, spark)
    seen.append(written())
    every = [
        list((Counter(after) - Counter(before)).elements()) for before, after in pairwise(seen)
    ]
    assert all(len(set(writes) - {"VACUUM END"}) <= 1 for writes in every), every
    found = Counter(write.partition(":")[0] for writes in every for write in writes)
    assert found == {
        "REORG": 1,
        "OPTIMIZE": 2,
        "published": 2,
        "SET TBLPROPERTIES": 1,
        "VACUUM START": 1,
        "VACUUM END": 1,
        "table": 1,
    }


def test_vacuum_keeps_what_the_published_version_reads(spark: SparkSession, lake: str) -> None:
    asked = request(lake)
    write(spark, asked.layout.tables.target.path, "a", files=1, by=None)
    publish(asked.layout)
    spark.sql(f"DELETE FROM delta.`{asked.layout.tables.target.path}`")
    age(asked.layout.tables.target.path, days=8)
    old = set(Path(asked.layout.tables.target.path).glob("*.parquet"))
    report = compacted(asked, spark)
    assert report.outcome == "idle"
    assert report.compact is not None
    assert report.compact.evidence.startswith("old files stay: published version 0")
    assert old
    assert all(file.exists() for file in old)


def test_partition_predicates_are_typed_literals() -> None:
    values = (
        ("a`b", "x'y\\z"),
        ("d", datetime(2026, 1, 1, tzinfo=UTC).date()),
        ("t", datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=UTC)),
        ("n", None),
        ("i", 3),
        ("b", True),
    )
    assert predicate([Partition(values, 1, 1, 1, 1, 0)]) == (
        "(`a``b` = 'x\\'y\\\\z' AND `d` = DATE'2026-01-01' AND `t` = TIMESTAMP'2026-01-01 01:02:03.000004+00:00'"
        " AND `n` IS NULL AND `i` = 3 AND `b` = TRUE)"
    )
    assert predicate([Partition((), 1, 1, 1, 1, 0)]) == ""
    assert predicate([Partition((("f", b"x"),), 1, 1, 1, 1, 0)]) == ""
