"""The sinks of a flow, as the batches of one opening send to them.

A batch is sent after its tombstones and before the target's commit, which carries what each sink got. A crash in
between leaves sinks ahead of the table by that one batch: nothing else of the flow runs before it is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.clock import now
from draindown.flow import sink_state
from draindown.flow.sink_columns import columns_of, place_of, print_of
from draindown.flow.sink_delivery import deliver
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import log_of
from draindown.ledger.rows import BatchRow
from draindown.runs.request import Request
from draindown.sinks import registry
from draindown.sinks.port import FATE, Sink, SinkBatch, SinkColumn
from draindown.spark.sql import ORIGIN
from draindown.spark.targets import delta_target, shares
from draindown.spark.targets.batch import BaseBatch, NoOutlets, Outlets
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.targets.shares import Judged, Share, Wanted
from draindown.spark.targets.strategy import Change
from draindown.spec.sinks import ORIGIN_KEY, QUARANTINED, FlowSink

UNSENDABLE = "unsendable"


def outlets_of(request: Request, check: Callable[[], None] = lambda: None) -> Outlets:
    """Return the sinks of the request's flow. A staged rebuild has none.

    `check`: raises once the lease is lost.
    """
    sinks = request.declared.also_to
    return FlowOutlets(request, sinks, check) if sinks and not request.staged else NoOutlets()


def wanted(name: str, sink: FlowSink, columns: Mapping[str, SinkColumn], target: Sink) -> Wanted:
    """Return how a batch has to serve a sink, by what the sink can hold."""
    every = list(columns.values())
    of_keys = target.unsendable([column for column in every if column.key])
    return Wanted(name, sink, columns, target.unsendable(every), of_keys)


def keyed_by_origin(rows: DataFrame) -> DataFrame:
    """Return the rows of an append table with their origin as text: `unit:position`."""
    return rows.withColumn(ORIGIN, F.concat_ws(":", f"{ORIGIN}.unit", F.col(f"{ORIGIN}.position").cast("string")))


@dataclass
class FlowOutlets:
    """The `Outlets` of a flow that has sinks."""

    request: Request
    sinks: Mapping[str, FlowSink]
    check: Callable[[], None]
    _targets: dict[str, Sink] = field(default_factory=dict)

    @cached_property
    def epoch(self) -> int:
        """The epoch of this opening, claimed when its first batch begins."""
        return sink_state.next_epoch(self.request.layout, self.check)

    @contextmanager
    def opened(self, writer: TableWriter) -> Iterator[None]:
        """Connect to every sink and fence older drivers. Connections last for one batch.

        Raises TransientError `sink-batch-in-flight`, and the errors of the sinks.
        """
        sink_state.refuse_in_flight(writer.layout, writer=writer.app("rows"))
        with ExitStack() as kept:
            for name, sink in self.sinks.items():
                target = registry.sink_of(sink.part, place_of(self.request, name))
                self._targets[name] = kept.enter_context(closing(target))
                target.fence(self.epoch)
            yield
        self._targets.clear()

    def send(self, spark: SparkSession, batch: BaseBatch, change: Change) -> BatchRow:
        """Send what the batch applied, and what it refused for the first time."""
        counts, row = dict[str, dict[str, int]](), change.row
        applied = {name: sink for name, sink in self.sinks.items() if not sink.is_of_refused}
        refused = {name: sink for name, sink in self.sinks.items() if sink.is_of_refused}
        with ExitStack() as kept:
            if applied and not row.applied:
                counts |= {name: dict.fromkeys(("sent", "deleted", "passed", "unsendable"), 0) for name in applied}
            elif applied:
                rows = change.changes(shares.was_of(applied, spark))
                types = delta_target.held_columns(spark, batch.writer)
                counts |= self._sent(batch, applied, self._whole(rows, types), types, kept)
            if refused:
                rows = _refused(spark, batch.writer)
                found = self._sent(batch, refused, rows, QUARANTINED, kept)
                counts |= {name: {**own, "quarantined": sum(own.values())} for name, own in found.items()}
        return replace(row, sinks={name: counts[name] for name in self.sinks})

    def _whole(self, rows: DataFrame, types: dict[str, str]) -> DataFrame:
        """Return the rows with all columns of the table, and their origin as a key. Changes `types` alike."""
        absent: dict[str, Column] = {n: F.lit(None).cast(kind) for n, kind in types.items() if n not in rows.columns}
        rows = rows.withColumns(absent) if absent else rows
        if self.request.declared.target.keys:
            return rows
        types[ORIGIN_KEY] = "string"
        return keyed_by_origin(rows)

    def _sent(
        self,
        batch: BaseBatch,
        sinks: Mapping[str, FlowSink],
        rows: DataFrame,
        types: Mapping[str, str],
        kept: ExitStack,
    ) -> dict[str, dict[str, int]]:
        """Send the rows to each of the sinks. Return what became of them."""
        asked = []
        for name, sink in sinks.items():
            columns = columns_of(self.request, sink, types)
            self._targets[name].check(list(columns.values()))
            asked.append(wanted(name, sink, columns, self._targets[name]))
        judged = Judged(rows, asked, kept)
        found = judged.shares()
        self._keep_misfits(batch, judged, found)
        for share, one in zip(found, asked, strict=True):
            made, rows_of = self._batch(batch, one.name, share), partial(judged.rows, share)
            known = print_of(self.request, one.spec)
            deliver(batch.writer.layout, self._targets[one.name], made, share.columns, rows_of, known)
            batch.reached(f"sent-{one.name}")
        return {one.name: dict(share.counts) for share, one in zip(found, asked, strict=True)}

    def _batch(self, batch: BaseBatch, name: str, share: Share) -> SinkBatch:
        writer = batch.writer
        return SinkBatch(
            place=place_of(self.request, name),
            writer=writer.app("rows"),
            number=writer.batch,
            generation=writer.generation,
            kind=writer.kind,
            batch=writer.batch,
            epoch=self.epoch,
            rows=share.rows,
            digest=share.digest,
        )

    def _keep_misfits(self, batch: BaseBatch, judged: Judged, found: list[Share]) -> None:
        path = batch.writer.layout.unsendable
        if shares.any_misfit(found) or batch.writer.holds(path, UNSENDABLE):
            keep_misfits(batch.writer, shares.all_misfits(judged, found), batch.run_id)


def keep_misfits(writer: TableWriter, rows: DataFrame, run_id: str) -> None:
    """Keep rows that sinks can't hold. Idempotent: a retry replaces what an earlier attempt of the batch kept."""
    stamped = rows.withColumns(
        {
            "generation": F.lit(writer.generation),
            "batch": F.lit(writer.batch).cast("long"),
            "kind": F.lit(writer.kind),
            "run_id": F.lit(run_id),
            "at": F.lit(now()),
        }
    )
    delta_target.write_batch(writer, stamped, writer.layout.unsendable, UNSENDABLE)


def refused_rows(rows: DataFrame) -> DataFrame:
    """Return rows of the quarantine with the columns that a sink gets."""
    return rows.select(
        "quarantine_id",
        F.col("origin.unit").alias("unit"),
        F.col("origin.position").alias("position"),
        *("arrived_at", "raw", "reason", "field", "detail"),
        F.lit("upsert").alias(FATE),
    )


def _refused(spark: SparkSession, writer: TableWriter) -> DataFrame:
    """Return the rows that this batch put into the quarantine: those that it refused for the first time."""
    layout: FlowLayout = writer.layout
    if not log_of(layout, layout.quarantine).exists:
        types = ", ".join(f"{name} {kind}" for name, kind in QUARANTINED.items())
        return spark.createDataFrame([], f"{types}, {FATE} string")
    rows = spark.read.format("delta").load(layout.quarantine)
    mine = (
        (F.col("generation") == writer.generation) & (F.col("batch") == writer.batch) & (F.col("kind") == writer.kind)
    )
    return refused_rows(rows.where(mine))
