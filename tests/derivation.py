"""A derived flow over a source table that a test changes with SQL: derive slice after slice, and
compare.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from draindown.base.findings import Finding
from draindown.base.progress import StepHook, ignore_step
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.ledger.rows import BatchRow
from draindown.runs.request import Request
from draindown.spark.derived import images
from draindown.spark.derived.batch import DeriveBatch, TableSlice, Versions
from draindown.spark.derived.derive import derive
from draindown.spark.derived.registry import kind_of
from draindown.spark.derived.resolve import query
from draindown.spark.derived.scope import Bucket
from draindown.spark.session import configured
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.targets.outlets import outlets_of
from draindown.spark.tuning import TUNING

COLUMNS = {
    "id": "bigint not null",
    "seq": "int not null",
    "k": "string",
    "at": "timestamp",
    "n": "int",
    "x": "double",
    "noise": "string",
}
_TYPES = ", ".join(f"{name} {kind.removesuffix(' not null')}" for name, kind in COLUMNS.items())
Rows = Sequence[tuple[Any, ...]]


class Derivation:
    """Flow `d` over table `source`, and what was derived so far. `parts`: those of the flow, its
    source if it has more.

    `appended`: the source has no keys. `beside`: landing flows of other tables. `notes` are
    findings of its batches.
    """

    def __init__(
        self,
        home: Path,
        spark: SparkSession,
        *,
        partition_by: str | None = None,
        appended: bool = False,
        beside: Mapping[str, Any] = MappingProxyType({}),
        **parts: Any,
    ) -> None:
        self.spark, self.notes, self.tuning = spark, list[Finding](), TUNING
        landing = {
            "source": {"files": "landing/*", "format": "json"},
            "columns": COLUMNS,
            "target": {} if appended else {"keys": ["id"], "sequence_by": ["seq"]},
        }
        self.flows = {"source": landing, **beside, "d": {"source": {"table": "source"}, **parts}}
        self._settle(home)
        self.batch, self.consumed = 0, None
        self.consumed: int | None
        partitioned = f"partitioned by ({partition_by})" if partition_by else ""
        spark.sql(
            f"create table if not exists delta.`{self.path}` ({_TYPES}, _changed_at timestamp) "
            f"using delta {partitioned} "
            "tblproperties ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
        )

    def _settle(self, home: Path) -> None:
        self.home, lake = home, str(home / "lake")
        self.spec = PipelineSpec.model_validate(
            {"pipeline": "p", "lake": lake, "flows": self.flows}
        )
        declared = self.spec.declared("d")
        assert isinstance(declared, DerivedFlow)
        self.flow, self.path = declared, self.spec.layout("source").tables.target.path

    def copied(self, home: Path) -> Derivation:
        """Return the same flow in another directory, with its tables as they are now."""
        other = copy.copy(self)
        shutil.copytree(self.home / "lake", home / "lake")
        other.notes = []
        other._settle(home)
        return other

    @property
    def layout(self) -> FlowHome:
        return self.spec.layout("d")

    @property
    def version(self) -> int:
        """The newest version of the source."""
        return Table(self.path).version

    def insert(self, *rows: tuple[Any, ...]) -> None:
        """Append rows (id, seq, k, at, n, x, noise)."""
        with configured(self.spark, {"spark.sql.session.timeZone": "UTC"}):
            self._frame(rows).write.format("delta").mode("append").save(self.path)

    def sql(self, statement: str) -> None:
        """Run a statement on the source, `{t}`."""
        with configured(self.spark, {"spark.sql.session.timeZone": "UTC"}):
            self.spark.sql(statement.format(t=f"delta.`{self.path}`"))

    def upsert(self, *rows: tuple[Any, ...]) -> None:
        """MERGE rows by id."""
        self._frame(rows).createOrReplaceTempView("changes")
        self.sql(
            "merge into {t} t using changes s on t.id = s.id "
            "when matched then update set * when not matched then insert *"
        )

    def _frame(self, rows: Rows) -> DataFrame:
        stamped = [(*row, datetime.now(UTC)) for row in rows]
        return self.spark.createDataFrame(stamped, f"{_TYPES}, _changed_at timestamp")

    def derive(
        self,
        *,
        buckets: int | Sequence[Bucket] = 1,
        fill: bool = False,
        reached: StepHook = ignore_step,
    ) -> list[BatchRow]:
        """Derive what changed since the last call, in so many batches, or in these. The first call
        fills.
        """
        until, start = self.version, None if fill else self.consumed
        some = (
            [Bucket(at, buckets) for at in range(buckets)] if isinstance(buckets, int) else buckets
        )
        rows = [
            self._batch(
                TableSlice(self.batch + 1, [Versions(self.path, start, until)], bucket), reached
            )
            for bucket in some
        ]
        self.consumed = until
        return rows

    def _batch(self, piece: TableSlice, reached: StepHook) -> BatchRow:
        row = self.attempt(piece, self.batch, reached)
        self.batch += 1
        return row

    def attempt(self, piece: TableSlice, batch: int, reached: StepHook = ignore_step) -> BatchRow:
        """Derive one slice as batch `batch`."""
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=batch)
        writer = TableWriter(self.layout, self.flow, 1, batch)
        batch = DeriveBatch(
            writer=writer,
            flow=self.flow,
            slice=piece,
            run_id="r",
            changed_at=at,
            started_at=at,
            reached=reached,
            tuning=self.tuning,
            note=self.notes.append,
            outlets=outlets_of(
                Request(spec=self.spec, flow="d", step="drain", run_id="r", root=self.spec.lake)
            ),
        )
        return derive(self.spark, batch)

    def whole(self) -> list[tuple[Any, ...]]:
        """The whole query over the newest version of the source."""
        source, kind = images.at(self.spark, self.path, self.version), kind_of(self.flow)
        return _rows(self.spark, query(kind, [source]))

    def table(self) -> list[tuple[Any, ...]]:
        """The rows of the table, without draindown's own columns."""
        return _rows(
            self.spark,
            self.spark.read.format("delta")
            .load(self.layout.tables.target.path)
            .drop("_changed_at"),
        )


def _rows(spark: SparkSession, frame: DataFrame) -> list[tuple[Any, ...]]:
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        rows = (
            tuple(round(one, 9) if isinstance(one, float) else one for one in row)
            for row in frame.collect()
        )
        return sorted(rows, key=str)  # the sum of doubles depends on the order of rows
