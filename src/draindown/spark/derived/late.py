"""Tell late rows from those that count, by their own time and arrival, and keep the late ones
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.config.derived import DerivedFlow
from draindown.config.window import Window
from draindown.lake.home import FlowHome
from draindown.sources.tables.late import CAME, WENT
from draindown.spark.contract.json_rows import TIMES
from draindown.spark.derived.images import SIGN
from draindown.spark.derived.kind import Kind, Relation
from draindown.spark.sql import ARRIVED_AT, ORIGIN, quoted
from draindown.spark.targets.delta_target import TableWriter, write_batch

LATE = "_late"
"""Column: whether a row is left out: it came late, and nobody applied it."""
_APPLIED = "_applied"
_PLACE = ("_unit", "_position", "_arrived")
"""Columns of a decision: which row it is about."""


@dataclass(frozen=True)
class Sieve:
    """What of one source table counts in a flow's batch. A flow without `allowed_lateness` lets everything
    through.

    `table`: its name. `read`: draindown's own columns that the query reads of it. `decided`:
    numbers of decisions: those up to the first counted in earlier batches, those up to the second
    count now.
    """

    spark: SparkSession
    layout: FlowHome
    flow: DerivedFlow
    table: str
    decided: tuple[int, int] = (0, 0)
    read: Sequence[str] = ()

    @property
    def own(self) -> Sequence[str]:
        """Draindown's own columns of the source: those that decide what is late, and those that the
        query reads.
        """
        return (
            self.read
            if self.flow.allowed_lateness is None
            else tuple(dict.fromkeys((ARRIVED_AT, ORIGIN, *self.read)))
        )

    @property
    def _unread(self) -> Sequence[str]:
        return [name for name in self.own if name not in self.read]

    def counting(self, rows: DataFrame) -> DataFrame:
        """Return the rows that count now, of draindown's own columns with those that the query
        reads.
        """
        return self._in_time(rows, self.decided[1])

    def images(self, changed: DataFrame, rows: DataFrame) -> DataFrame:
        """Return the images that count, with SIGN: those that counted in earlier batches, and rows
        that count from now.

        `rows`: the source now. A late row that came and was applied since is one that counts from
        now.
        """
        found = self._in_time(changed, self.decided[0])
        if self.decided[0] == self.decided[1]:
            return found
        fresh = self._applied(*self.decided)
        known = (
            rows.where(self._is_late()).join(fresh, _same(fresh), "left_semi").drop(*self._unread)
        )
        return found.unionByName(known.withColumn(SIGN, F.lit(1)))

    def late(self, changed: DataFrame, *, fill: bool) -> DataFrame | None:
        """Return the images of late rows, with LATE and the columns `own`; None if the flow accepts
        all.

        Those that a person applied are among them: whether the source still has them is known by
        this alone. `fill`: whether the images are of all rows.
        """
        if self.flow.allowed_lateness is None:
            return None
        marked = self._marked(changed, self.decided[1 if fill else 0])
        return marked.where(F.col(LATE) | F.col(_APPLIED)).drop(_APPLIED)

    def _in_time(self, rows: DataFrame, decided: int) -> DataFrame:
        if self.flow.allowed_lateness is None:
            return rows
        return self._marked(rows, decided).where(~F.col(LATE)).drop(LATE, _APPLIED, *self._unread)

    def _marked(self, rows: DataFrame, decided: int) -> DataFrame:
        """Return the rows with LATE and _APPLIED, by the decisions up to number `decided`."""
        if not decided:
            return rows.withColumns({LATE: self._is_late(), _APPLIED: F.lit(False)})
        applied = self._applied(0, decided)
        unit = F.col("_unit")
        joined = rows.join(applied, _same(applied), "left")
        marks = {LATE: self._is_late() & unit.isNull(), _APPLIED: unit.isNotNull()}
        return joined.withColumns(marks).drop(*applied.columns)

    def _is_late(self) -> Column:
        """Return whether a row came later than accepted. One without a time or an arrival did
        not.
        """
        assert self.flow.allowed_lateness is not None
        arrived = F.unix_micros(ARRIVED_AT)
        return F.coalesce(
            F.unix_micros(self.time) < arrived - F.lit(self.flow.allowed_lateness * 1_000_000),
            F.lit(False),
        )

    @property
    def time(self) -> Column:
        """The time of a row, which says how late it came."""
        name = self.flow.derivation.timed_by(self.table)
        assert name is not None  # the flow has `allowed_lateness`
        return F.col(quoted(name)).cast("timestamp")

    def _applied(self, after: int, until: int) -> DataFrame:
        """Return the rows that decisions after number `after` up to `until` were the first to
        apply, by their place.
        """
        decisions = self.spark.read.format("delta").load(self.layout.tables.late_decisions.path)
        own = decisions.where(
            (F.col("action") == "released") & (F.col("source_table") == self.table)
        )
        names = zip(("input", "position", "arrived_at"), _PLACE, strict=True)
        found = own.groupBy(*(F.col(one).alias(name) for one, name in names)).agg(
            F.min("number").alias("_number")
        )
        return found.where((F.col("_number") > after) & (F.col("_number") <= until)).drop("_number")


def sieves(
    spark: SparkSession,
    layout: FlowHome,
    flow: DerivedFlow,
    decided: tuple[int, int],
    relations: Sequence[Relation],
) -> list[Sieve]:
    """Return what counts of each source table, in their order."""
    tables = zip(flow.source.read, relations, strict=True)
    return [Sieve(spark, layout, flow, table.table, decided, one.own) for table, one in tables]


def _same(applied: DataFrame) -> Column:
    of_row = (F.col(f"{ORIGIN}.input"), F.col(f"{ORIGIN}.position"), F.col(ARRIVED_AT))
    same = [one == applied[name] for one, name in zip(of_row, _PLACE, strict=True)]
    return reduce(Column.__and__, same)


@dataclass(frozen=True)
class Late:
    """Images of late rows of one source table: what `Sieve.late` returned, for a batch's share of
    the keys.
    """

    sieve: Sieve
    relation: Relation
    images: DataFrame

    def told(self, kind: Kind) -> DataFrame:
        """Return the images in the columns of the table of late rows, with SIGN."""
        sieve, time, arrived = self.sieve, self.sieve.time, F.col(ARRIVED_AT)
        # a topic that was created again has rows of the same unit and position, which arrived later
        own = (F.col(f"{ORIGIN}.position"), F.unix_micros(ARRIVED_AT))
        place = F.concat_ws(
            "\u0001", F.lit(sieve.table), f"{ORIGIN}.input", *(one.cast("string") for one in own)
        )
        content = [name for name in self.images.columns if not name.startswith("_")]
        missed = dict(zip(kind.scope_keys, self.relation.home(), strict=True))
        start = missed.pop(Window.START, F.lit(None).cast("timestamp"))
        groups = [value.alias(name) for name, value in missed.items()]
        return self.images.select(
            F.sha2(place, 256).alias("late_id"),
            F.lit(sieve.table).alias("source_table"),
            F.col(ORIGIN).alias("origin"),
            time.alias("event_time"),
            arrived.alias("arrived_at"),
            (F.unix_seconds(arrived) - F.unix_seconds(time)).alias("lateness"),
            start.alias(Window.START),
            (F.to_json(F.struct(*groups), dict(TIMES)) if groups else F.lit("{}")).alias("groups"),
            F.to_json(F.struct(*map(quoted, content)), dict(TIMES)).alias("record"),
            SIGN,
        )


def keep(writer: TableWriter, late: Sequence[Late], kind: Kind, number: int, run_id: str) -> None:
    """Write the late rows that came and went with a batch. Idempotent: a retry replaces those of an
    earlier attempt.

    `number`: of the slice.
    """
    told = reduce(DataFrame.unionByName, (one.told(kind) for one in late))
    names = [name for name in told.columns if name not in (SIGN, "late_id")]
    net = told.groupBy("late_id").agg(
        F.sum(SIGN).alias(SIGN), *(F.max(name).alias(name) for name in names)
    )
    rows = net.where(F.col(SIGN) != 0).select(
        "late_id",
        *names,
        F.when(F.col(SIGN) > 0, CAME).otherwise(WENT).alias("change"),
        F.lit(number).cast("bigint").alias("slice"),
        F.lit(writer.generation).alias("generation"),
        F.lit(writer.batch).cast("bigint").alias("batch"),
        F.lit(writer.kind).alias("kind"),
        F.lit(run_id).alias("run_id"),
    )
    write_batch(writer, rows, writer.layout.tables.late.path, "late")


def keep_none(writer: TableWriter, spark: SparkSession) -> None:
    """Remove the late rows that an earlier attempt of the batch wrote. Idempotent."""
    held = spark.read.format("delta").load(writer.layout.tables.late.path)
    write_batch(writer, held.where(F.lit(False)), writer.layout.tables.late.path, "late")
