"""The compact step: rewrite fragmented partitions, by OPTIMIZE and purge or apart, then VACUUM.
Changes no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.config.targets import RETAIN_FLOOR
from draindown.gate import published
from draindown.lake.intervals import interval_seconds
from draindown.lake.table import Table
from draindown.planning import compaction
from draindown.planning.compaction import Partition, TableWork
from draindown.recovery.opening import Needs
from draindown.runs import report
from draindown.runs.report import CompactPart, StepReport
from draindown.runs.request import Request
from draindown.spark.runs.open_and_closed import OpenAndClosed
from draindown.spark.runs.opening import open_flow
from draindown.spark.session import configured
from draindown.spark.sql import quoted

Check = Callable[[], None]
"""Raises TransientError `lease-lost` unless the lease is certainly held. Called right before each
write.
"""
PARTITIONS_AT_ONCE = 200
"""Maximum partitions of one OPTIMIZE: the driver plans its predicate, and its commit should stay
small.
"""
_LOG_RETENTION = "delta.logRetentionDuration"
_DEFAULT_LOG_RETENTION = 30 * 86400


@dataclass(frozen=True)
class Rewritten:
    """The result of rewriting files. `bytes`: size of the files written."""

    files_before: int = 0
    files_after: int = 0
    bytes: int = 0

    def __add__(self, other: Rewritten) -> Rewritten:
        return Rewritten(
            self.files_before + other.files_before,
            self.files_after + other.files_after,
            self.bytes + other.bytes,
        )


def compact(request: Request, spark: SparkSession) -> StepReport:
    """Run the maintenance that is due, under the flow's lease. The outcome is `idle` if none is.

    Raises TransientError `lease-held`, `lease-lost`; TerminalError `vacuum-below-floor` if a
    table's retention of removed files is below seven days.
    """
    with open_flow(request, spark, Needs.LEASE) as flow:
        return _compact(request, spark, flow.check)


def _compact(request: Request, spark: SparkSession, check: Check) -> StepReport:
    started = now()
    layout, maintenance = request.layout, request.declared.maintenance
    published.carry(layout)
    found = compaction.work(layout, maintenance, force=request.force)
    done = Rewritten()
    for table in found.tables:
        done += rewrite(spark, table, maintenance.target_file_size, check, force=request.force)
    # move the published version to the rewritten one before VACUUM removes the old files
    check()
    published.carry(layout)
    vacuumed = sum(_vacuum(spark, request, label, path, check) for label, path in found.vacuum)
    check()
    published.carry(layout)
    part = CompactPart(
        evidence=str(found),
        partitions=[f"{table.label} {p.name}" for table in found.tables for p in _each(table)],
        files_before=done.files_before,
        files_after=done.files_after,
        bytes_rewritten=done.bytes,
        vacuumed_files=vacuumed,
    )
    return report.of(request, started, "done" if found else "idle", compact=part)


def _each(table: TableWork) -> list[Partition]:
    return list(dict.fromkeys((*table.merge, *table.purge)))


def rewrite(
    spark: SparkSession,
    table: TableWork,
    target_file_size: int,
    check: Check,
    *,
    force: bool = False,
) -> Rewritten:
    """Compact small files and purge deleted rows in the partitions that `table` lists. `check`:
    before each commit.
    """
    if table.apart:
        files = OpenAndClosed(
            spark, table.path, target_file_size, 0 if force else compaction.DELETED_RATIO
        )
        return sum(
            (Rewritten(*files.rewrite(predicate(some))) for some in _chunks(_each(table), check)),
            Rewritten(),
        )
    sizes = {
        # skip files of at least half the target size: rewriting them costs much and gains little
        "spark.databricks.delta.optimize.minFileSize": str(target_file_size // 2),
        "spark.databricks.delta.optimize.maxFileSize": str(target_file_size),
    }
    done = Rewritten()
    with configured(spark, sizes):
        # Purge first: OPTIMIZE skips a partition's only file, however many of its rows are deleted.
        for some in _chunks(table.purge, check):
            done += _purge(spark, table.path, some)
        for some in _chunks(table.merge, check):
            done += _optimize(spark, table.path, some)
    return done


def _chunks(partitions: Sequence[Partition], check: Check) -> Iterable[Sequence[Partition]]:
    """Yield partitions to rewrite in one commit, each time after `check`."""
    for start in range(0, len(partitions), PARTITIONS_AT_ONCE):
        check()
        yield partitions[start : start + PARTITIONS_AT_ONCE]


def _optimize(spark: SparkSession, path: str, partitions: Sequence[Partition]) -> Rewritten:
    builder = DeltaTable.forPath(spark, path).optimize()
    condition = predicate(partitions)
    return _metrics(
        (builder.where(condition) if condition else builder).executeCompaction().first()
    )


def _purge(spark: SparkSession, path: str, partitions: Sequence[Partition]) -> Rewritten:
    condition = predicate(partitions)
    where = f" WHERE {condition}" if condition else ""
    return _metrics(spark.sql(f"REORG TABLE {_table(path)}{where} APPLY (PURGE)").first())


def _metrics(row: Any) -> Rewritten:
    metrics = row["metrics"]
    return Rewritten(
        metrics["numFilesRemoved"],
        metrics["numFilesAdded"],
        metrics["filesAdded"]["totalSize"] or 0,
    )


def predicate(partitions: Sequence[Partition]) -> str:
    """Return SQL that matches exactly these partitions.

    Empty if the table has no partitions or a partition value has a type without a literal; it then
    covers the table.
    """
    try:
        return " OR ".join(f"({_all_of(p)})" for p in partitions if p.values)
    except TypeError:
        return ""  # the whole table: rewriting more than necessary is slower but correct


def _all_of(partition: Partition) -> str:
    return " AND ".join(_equal(column, value) for column, value in partition.values)


def _equal(column: str, value: object) -> str:
    return f"{quoted(column)} IS NULL" if value is None else f"{quoted(column)} = {_literal(value)}"


def _literal(value: object) -> str:
    match value:
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case Decimal():
            return f"{value:f}BD"
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case datetime():
            return f"{'TIMESTAMP' if value.tzinfo else 'TIMESTAMP_NTZ'}'{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE'{value.isoformat()}'"
        case _:
            raise TypeError(type(value).__name__)


def vacuum(spark: SparkSession, path: str, retain: int, check: Check) -> int:
    """VACUUM files that were removed from the table more than `retain` seconds ago. Return the
    number of files deleted.

    Delta reads the retention from the table's properties and ignores a `RETAIN` clause. If `retain`
    is longer than the table's retention, the property is raised to it. `check`: before each of
    both.

    Raises TerminalError `vacuum-below-floor` if `retain` or the table's retention is below seven
    days.
    """
    _refuse_below_floor(path, retain)
    raised = compaction.retention_of(Table(path)) < retain
    if raised:
        check()
        _retain(spark, path, retain)
    check()
    try:
        spark.sql(f"VACUUM {_table(path)} LITE")
    except PySparkException as error:
        # VACUUM LITE needs the log back to the last VACUUM. A full VACUUM keeps only the removed
        # files that the log still lists, and right after the retention was raised the log lists too
        # few.
        if error.getCondition() != "DELTA_CANNOT_VACUUM_LITE" or raised:
            raise
        spark.sql(f"VACUUM {_table(path)}")
    return Table(path).commits(1)[0].metric("numDeletedFiles")


def _vacuum(spark: SparkSession, request: Request, label: str, path: str, check: Check) -> int:
    removed = vacuum(spark, path, request.declared.maintenance.retain, check)
    check()
    compaction.remember_vacuumed(request.layout, label, files=removed, run_id=request.run_id)
    return removed


def _refuse_below_floor(path: str, retain: int) -> None:
    set_to = compaction.retention_of(Table(path))
    if min(retain, set_to) >= RETAIN_FLOOR:
        return
    raise TerminalError(
        "vacuum-below-floor",
        tried=f"remove old files of {path}",
        found=f"they would be kept for {min(retain, set_to)} s; readers and running jobs need {RETAIN_FLOOR} s",
        next=(
            f"ALTER TABLE {_table(path)} SET TBLPROPERTIES ('{compaction.RETENTION}' = 'interval 7 days')"
            if set_to < RETAIN_FLOOR
            else "set maintenance.retain to 7 days or more"
        ),
    )


def _retain(spark: SparkSession, path: str, retain: int) -> None:
    # Delta requires a log retention of at least the retention of removed files
    log = max(
        interval_seconds(Table(path).properties.get(_LOG_RETENTION), _DEFAULT_LOG_RETENTION),
        retain,
    )
    spark.sql(
        f"ALTER TABLE {_table(path)} SET TBLPROPERTIES "
        f"('{compaction.RETENTION}' = 'interval {retain} seconds', '{_LOG_RETENTION}' = 'interval {log} seconds')"
    )


def _table(path: str) -> str:
    return f"delta.{quoted(path)}"
