"""The sinks of a flow, as the batches of one opening send to them.

A batch is sent after its tombstones and before the target's commit, which carries what each sink
got. A crash in between leaves sinks ahead of the table by that one batch: nothing else of the flow
runs before it is finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.clock import now
from draindown.base.errors import TerminalError, first_line
from draindown.config.sinks import ORIGIN_KEY, QUARANTINED, FlowSink
from draindown.flow import sink_identity, sink_state
from draindown.flow.sink_columns import columns_of, holds_of, note_restored, place_of
from draindown.flow.sink_delivery import deliver
from draindown.flow.sink_state import SinkState, Skip
from draindown.lake import directories
from draindown.lake.home import FlowHome
from draindown.ledger.rows import SINK_FATES, BatchRow
from draindown.recovery import sink_bases
from draindown.runs.request import Request
from draindown.sinks import registry
from draindown.sinks.port import FATE, Sink, SinkBatch, SinkColumn
from draindown.spark.session import configured
from draindown.spark.sql import ORIGIN, try_eval
from draindown.spark.targets import delta_target, shares
from draindown.spark.targets.batch import BaseBatch, NoOutlets, Outlets
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.targets.shares import Judged, Share, Wanted
from draindown.spark.targets.strategy import Change

UNSENDABLE = "unsendable"


def outlets_of(request: Request) -> Outlets:
    """Return the sinks of the request's flow. A staged rebuild has none.

    A flow that had sinks once is one with sinks: its batches may not overtake one on its way, and
    go by these sinks.
    """
    sinks = request.declared.sinks
    has_any = sinks or sink_state.names(request.layout)
    return FlowOutlets(request, sinks) if has_any and not request.staged else NoOutlets()


def zoned(request: Request) -> dict[str, str]:
    """Return the settings with which conditions of sinks are evaluated, wherever rows are sent
    from.
    """
    return {"spark.sql.session.timeZone": request.declared.zone}


def refuse_unresolved(request: Request, sinks: Mapping[str, FlowSink], rows: DataFrame) -> None:
    """Refuse conditions of sinks that Spark can't resolve against `rows`. Runs no job.

    Raises TerminalError `sink-condition`.
    """
    for name, sink in sinks.items():
        if sink.where is None:
            continue
        try:
            rows.where(F.coalesce(try_eval(rows.sparkSession, sink.where), F.lit(False)))
        except (PySparkException, Py4JJavaError) as error:
            where = f"{request.spec.pipeline}/{request.flow}"
            raise TerminalError(
                "sink-condition",
                tried=f"resolve `where` of sink {name}: {sink.where}",
                found=" ".join(
                    filter(None, (request.places.get(f"sinks.{name}.where"), first_line(error)))
                ),
                changed="nothing of this batch is in a sink or in the table",
                next=f"draindown run {where}   # once the file is corrected",
            ) from error


def wanted(
    name: str,
    sink: FlowSink,
    columns: Mapping[str, SinkColumn],
    target: Sink,
    skips: Sequence[Skip],
) -> Wanted:
    """Return how a batch has to serve a sink, by what the sink can hold and what of the batch was
    given up.
    """
    every = list(columns.values())
    of_keys = target.unsendable([column for column in every if column.key])
    return Wanted(name, sink, columns, target.unsendable(every), of_keys, skips)


def keyed_by_origin(rows: DataFrame) -> DataFrame:
    """Return the rows of an append table with their origin as text: `unit:position`."""
    return rows.withColumn(
        ORIGIN, F.concat_ws(":", f"{ORIGIN}.input", F.col(f"{ORIGIN}.position").cast("string"))
    )


@dataclass(frozen=True)
class _Group:
    """The sinks that get the same rows, and their shares."""

    asked: Sequence[Wanted]
    judged: Judged
    shares: Sequence[Share]


@dataclass
class FlowOutlets:
    """The `Outlets` of a flow that has sinks."""

    request: Request
    sinks: Mapping[str, FlowSink]
    _epoch: int | None = None
    _targets: dict[str, Sink] = field(default_factory=dict)

    @contextmanager
    def opened(self, batch: BaseBatch) -> Iterator[None]:
        """Connect to every sink and fence older drivers. Connections last for one batch.

        The first batch of this opening claims its epoch, and marks sinks that lack what was sent to
        them as stale. Raises TransientError `sink-batch-in-flight`, `lease-lost`, and the errors of
        the sinks.
        """
        layout, connecting = batch.writer.layout, partial(batch.reached, "connecting")
        sink_state.refuse_in_flight(layout, writer=batch.writer.app("rows"))
        is_first = self._epoch is None
        if self._epoch is None:
            self._epoch = sink_identity.next_epoch(layout, connecting)
        connecting()
        sink_bases.leave_out(layout, self.sinks)
        with ExitStack() as kept:
            for name, sink in self.sinks.items():
                target = registry.sink_of(sink, place_of(self.request, name))
                self._targets[name] = kept.enter_context(closing(target))
                target.fence(self._epoch)
                if is_first:
                    note_restored(self.request, layout, name, target)
            yield
        self._targets.clear()

    def send(self, spark: SparkSession, batch: BaseBatch, change: Change) -> BatchRow:
        """Send what the batch applied, and what it refused for the first time."""
        row, applied = (
            change.row,
            {name: sink for name, sink in self.sinks.items() if not sink.is_of_refused},
        )
        refused = {name: sink for name, sink in self.sinks.items() if sink.is_of_refused}
        with configured(spark, zoned(self.request)), ExitStack() as kept:
            groups = []
            if applied and (row.applied or self._left(batch)):
                held = spark.read.format("delta").load(batch.writer.layout.tables.target.path)
                refuse_unresolved(self.request, applied, held)
                types = delta_target.held_columns(spark, batch.writer)
                rows = self._whole(change.changes(shares.was_of(applied, spark)), types)
                groups.append(self._judged(batch, applied, rows, types, kept))
            if refused:
                rows = _refused(spark, batch.writer)
                refuse_unresolved(self.request, refused, rows)
                groups.append(self._judged(batch, refused, rows, QUARANTINED, kept))
            if groups:
                self._keep_misfits(batch, groups)
            counts = {
                name: own for group in groups for name, own in self._sent(batch, group).items()
            }
        nothing = dict.fromkeys(SINK_FATES, 0)
        return replace(row, sinks={name: counts.get(name, nothing) for name in self.sinks})

    def _left(self, batch: BaseBatch) -> bool:
        """Return whether an earlier attempt of the batch sent something, or kept rows that a sink
        can't hold.
        """
        writer = batch.writer
        known = (SinkState.read(writer.layout, name).of(writer.app("rows")) for name in self.sinks)
        begun = any(one is not None and one.number >= writer.batch for one in known)
        return begun or writer.holds(writer.layout.tables.unsendable.path, UNSENDABLE)

    def _whole(self, rows: DataFrame, types: dict[str, str]) -> DataFrame:
        """Return the rows with all columns of the table, and their origin as a key. Changes `types`
        alike.
        """
        absent: dict[str, Column] = {
            n: F.lit(None).cast(kind) for n, kind in types.items() if n not in rows.columns
        }
        rows = rows.withColumns(absent) if absent else rows
        if self.request.declared.target.row_keys:
            return rows
        types[ORIGIN_KEY] = "string"
        return keyed_by_origin(rows)

    def _judged(
        self,
        batch: BaseBatch,
        sinks: Mapping[str, FlowSink],
        rows: DataFrame,
        types: Mapping[str, str],
        kept: ExitStack,
    ) -> _Group:
        """Judge the rows for each of the sinks, once these say that they could take them."""
        asked, writer = [], batch.writer
        for name, sink in sinks.items():
            columns = columns_of(self.request, sink, types)
            self._targets[name].check(list(columns.values()))
            skips = SinkState.read(writer.layout, name).skipped(writer.app("rows"), writer.batch)
            asked.append(wanted(name, sink, columns, self._targets[name], skips))
        judged = Judged(rows, asked, kept)
        return _Group(asked, judged, judged.shares())

    def _sent(self, batch: BaseBatch, group: _Group) -> dict[str, dict[str, int]]:
        """Send each sink its share. Return what became of the rows there."""
        counts = dict[str, dict[str, int]]()
        for share, one in zip(group.shares, group.asked, strict=True):
            made, rows_of = self._batch(batch, one.name, share), partial(group.judged.rows, share)
            holds = holds_of(self.request, one.spec)
            target = self._targets[one.name]
            deliver(batch.writer.layout, target, made, share.columns, rows_of, holds, batch.reached)
            kept = {"quarantined": _refused_rows(batch.writer)} if one.spec.is_of_refused else {}
            counts[one.name] = {**share.counts, **kept}
        return counts

    def _batch(self, batch: BaseBatch, name: str, share: Share) -> SinkBatch:
        writer = batch.writer
        return SinkBatch(
            place=place_of(self.request, name),
            writer=writer.app("rows"),
            number=writer.batch,
            generation=writer.generation,
            kind=writer.kind,
            batch=writer.batch,
            epoch=self._epoch or 0,
            rows=share.rows,
            digest=share.digest,
            portions=share.portions,
        )

    def _keep_misfits(self, batch: BaseBatch, groups: Sequence[_Group]) -> None:
        """Keep the rows that sinks can't hold, of all sinks in one write: it replaces that of an
        earlier attempt.
        """
        found = any(shares.any_misfit(group.shares) for group in groups)
        if found or batch.writer.holds(batch.writer.layout.tables.unsendable.path, UNSENDABLE):
            rows = [shares.all_misfits(group.judged, group.shares) for group in groups]
            keep_misfits(batch.writer, reduce(DataFrame.unionByName, rows), batch.run_id)


def keep_misfits(writer: TableWriter, rows: DataFrame, run_id: str) -> None:
    """Keep rows that sinks can't hold. Idempotent: a retry replaces what an earlier attempt of the
    batch kept.
    """
    stamped = rows.withColumns(
        {
            "generation": F.lit(writer.generation),
            "batch": F.lit(writer.batch).cast("long"),
            "kind": F.lit(writer.kind),
            "run_id": F.lit(run_id),
            "at": F.lit(now()),
        }
    )
    directories.make(writer.layout.tables.unsendable.path, private=True)
    delta_target.write_batch(writer, stamped, writer.layout.tables.unsendable.path, UNSENDABLE)


def refused_rows(rows: DataFrame) -> DataFrame:
    """Return rows of the quarantine with the columns that a sink gets."""
    return rows.select(
        "quarantine_id",
        F.col("origin.input").alias("input"),
        F.col("origin.position").alias("position"),
        *("arrived_at", "raw", "reason", "field", "detail"),
        F.lit("upsert").alias(FATE),
    )


def _refused_rows(writer: TableWriter) -> int:
    """Return how many rows this batch put into the quarantine, as another reader than Spark counts
    them.
    """
    layout: FlowHome = writer.layout
    log = layout.tables.quarantine
    if not log.exists:
        return 0
    mine = f"generation = {writer.generation} and batch = {writer.batch} and kind = '{writer.kind}'"
    return int(log.rows(f"select count(*) as n from t where {mine}")[0]["n"])


def _refused(spark: SparkSession, writer: TableWriter) -> DataFrame:
    """Return the rows that this batch put into the quarantine: those that it refused for the first
    time.
    """
    layout: FlowHome = writer.layout
    if not layout.tables.quarantine.exists:
        types = {**QUARANTINED, FATE: "string"}
        return spark.range(0).select(
            *[F.lit(None).cast(kind).alias(name) for name, kind in types.items()]
        )
    rows = spark.read.format("delta").load(layout.tables.quarantine.path)
    mine = (
        (F.col("generation") == writer.generation)
        & (F.col("batch") == writer.batch)
        & (F.col("kind") == writer.kind)
    )
    return refused_rows(rows.where(mine))
