"""The states of a fold that are kept beside its table: what they spare a batch, and how a batch
replaces them.

They are a function of the source's rows, as the table is, and only spare work: a key without any is
folded whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from draindown.config.processor import Processor
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.processors.stream import AT, NUMBER, POSITION, SNAPSHOT, START, STAYS
from draindown.recovery import replay
from draindown.spark.derived import difference
from draindown.spark.derived.difference import BEFORE, DELETE, FATE, INSERT, UPDATE
from draindown.spark.derived.scope import HIGH, LOW, Scope, Span, Touched, micros
from draindown.spark.frames import persisted
from draindown.spark.session import configured
from draindown.spark.sql import CHANGED_AT, quoted
from draindown.spark.targets import delta_target, restricted
from draindown.spark.targets.delta_target import Clauses, Held, TableWriter
from draindown.spark.targets.pruning import Pruning, Range
from draindown.spark.tuning import TUNING

GENERATION = "_generation"
_PURPOSE = "snapshots"
_STATE = "_state"


@dataclass(frozen=True)
class Resumed:
    """The touched keys, and of each only what follows the state that its fold goes on from, up to
    an end of a segment.

    `touched`: the key, LOW and HIGH in microseconds, NULL for no bound, and the state, NULL for
    none: a row is in after LOW and up to HIGH. Persisted by the caller.
    """

    touched: Touched
    span: Span
    pruning: Pruning

    def within(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return the rows of the source in the keys' spans, or of the table those that these rows
        gave.
        """
        keys, same = self.touched.matching(names)
        if names[0].startswith("_"):  # as in `Spanned`
            at = micros(self.span.time)
            after = at > F.col(LOW)
        else:
            at, state = micros(self.span.start), F.col(_STATE)
            later = F.col(Processor.POSITION) > state[POSITION]
            after = (at > state[START]) | ((at == state[START]) & later)
        return rows.join(
            keys, same & _or_none(after, LOW) & _or_none(at <= F.col(HIGH), HIGH), "left_semi"
        )

    def kept(self, states: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return the states of the table that the fold gives again or no more, with that which it
        goes on from.
        """
        keys, same = self.touched.matching(names)
        at = micros(AT)
        return states.join(
            keys,
            same & _or_none(at >= F.col(LOW), LOW) & _or_none(at <= F.col(HIGH), HIGH),
            "left_semi",
        )

    def states(self, names: Sequence[str], name: str) -> DataFrame:
        """Return the states to go on from, in column `name`, with their keys in the columns
        `names`.
        """
        keys = self.touched.keys
        own = [F.col(have).alias(wanted) for have, wanted in zip(keys.columns, names, strict=False)]
        return keys.where(F.col(_STATE).isNotNull()).select(*own, F.col(_STATE).alias(name))


def _types(schema: StructType) -> list[tuple[str, str]]:
    return [(one.name, one.dataType.simpleString()) for one in schema]


def _or_none(condition: Column, bound: str) -> Column:
    return F.col(bound).isNull() | condition


@dataclass(frozen=True)
class Snapshots:
    """The table of the states of a processor. `recomputed`: the fold, as rows and states."""

    spec: Processor
    span: Span
    recomputed: Callable[[Sequence[DataFrame], ExitStack], tuple[DataFrame, DataFrame]]

    def narrowed(
        self, spark: SparkSession, writer: TableWriter, touched: Touched, kept: ExitStack
    ) -> Scope:
        """Return what of the touched keys has to be folded again. It is persisted until `kept`
        closes.

        `touched` has LOW and HIGH, the times of the earliest and the latest changed row of a key.
        What is read begins after the newest state before the earliest change, and ends with the
        last of the segments within a gap of a changed row. It is the same by the states before the
        change and by those after it, which an attempt that died may have left: an unchanged row is
        connected to a changed one by rows of both, each at most a gap from the next.
        """
        held = self._held(spark, writer, touched.pruning)
        if held is None or lack_newest(writer):
            return touched
        by, gap = self.spec.group_by, self.spec.gap * 1_000_000
        keys, same = touched.matching(by)
        states = held.rows.where(F.col(GENERATION) == writer.generation)
        state = F.struct(
            micros(self.span.start).alias(START),
            micros(AT).alias(AT),
            NUMBER,
            POSITION,
            STAYS,
            SNAPSHOT,
        )
        found = states.select(*map(quoted, by), state.alias(_STATE))
        start, at = F.col(_STATE)[START], F.col(_STATE)[AT]
        near, before = (start <= F.col(HIGH) + gap) & (at + gap >= F.col(LOW)), at < F.col(LOW)
        spans = (
            keys.join(found, same, "left")
            .groupBy(*keys.columns[: len(by)])
            .agg(
                F.max(F.when(before, at)).alias(LOW),
                # a key without states is folded whole: nobody knows where its segments end
                F.when(F.count(at) > 0, F.greatest(F.max(HIGH), F.max(F.when(near, at)))).alias(
                    HIGH
                ),
                F.max_by(F.when(before, F.col(_STATE)), F.when(before, at)).alias(_STATE),
            )
        )
        kept.enter_context(persisted(spans))
        with configured(spark, TUNING.estimating(held.size)):
            pruning = self._pruning(spans, touched.pruning)
        return Resumed(Touched(spans, touched.number, touched.pruning), self.span, pruning)

    def _pruning(self, spans: DataFrame, pruning: Pruning) -> Pruning:
        """Return the predicates on keys, and on times where all spans have both ends."""
        ends = spans.agg(
            *(F.timestamp_micros(one).cast("string") for one in (F.min(LOW), F.max(HIGH))),
            F.count_if(F.col(LOW).isNull() | F.col(HIGH).isNull()),
        ).first()
        assert ends is not None  # an aggregate without groups has one row
        known = not ends[2] and all(text and text[0].isdigit() for text in ends[:2])
        times: dict[str, Sequence[Range]] = {self.span.start: [(ends[0], ends[1])]} if known else {}
        return Pruning(pruning.values, {**pruning.ranges, **times})

    def keep(
        self,
        spark: SparkSession,
        writer: TableWriter,
        scope: Scope,
        fresh: DataFrame | None,
        changed_at: datetime,
    ) -> None:
        """Replace the states of the keys of `scope` by `fresh`, in one commit. Idempotent: equal
        ones stay.

        A batch that changes none commits its transaction alone, by which later ones see that no
        state is missing: if one is, that stays to be seen.
        """
        if not (
            lack_newest(writer)
            if fresh is None
            else self._replaced(spark, writer, scope, fresh, changed_at)
        ):
            _leave(spark, writer)

    def _replaced(
        self,
        spark: SparkSession,
        writer: TableWriter,
        scope: Scope,
        fresh: DataFrame,
        changed_at: datetime,
    ) -> bool:
        """Replace the states of the keys, and return whether any differed."""
        by, fresh = self.spec.group_by, fresh.withColumn(GENERATION, F.lit(writer.generation))
        path, stamped = (
            writer.layout.tables.snapshots.path,
            fresh.withColumn(CHANGED_AT, F.lit(changed_at)),
        )
        delta_target.make_beside(spark, path, stamped.schema)
        is_other = _types(spark.read.format("delta").load(path).schema) != _types(stamped.schema)
        if is_other or lack_newest(writer):
            # of an earlier form of the class they spare nothing, and can't be compared; of a table
            # that lacks a batch nobody knows which are of before it, those of keys outside the
            # scope included
            nothing = stamped.where(F.lit(False)).write.format("delta").mode("overwrite")
            nothing.option("overwriteSchema", "true").save(path)
        held, mine = self._held(spark, writer, scope.pruning.only(by)), None
        if held is not None:
            mine = (
                scope.kept(held.rows, by)
                if isinstance(scope, Resumed)
                else scope.within(held.rows, by)
            )
        keys = [*by, self.span.start, AT]
        fated = (
            difference.compare(fresh, mine, keys)
            .drop(BEFORE)
            .where(F.col(FATE).isin(*difference.ACTS))
        )
        with (
            configured(spark, TUNING.estimating(None if held is None else held.size)),
            persisted(fated),
        ):
            acted = {row[FATE] for row in fated.select(FATE).distinct().collect()}
            if not acted:
                return False
            acts = fated.withColumn(CHANGED_AT, F.lit(changed_at))
            on = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
            clauses = Clauses(
                *(
                    f"s.{FATE} = '{one}'" if one in acted else None
                    for one in (DELETE, UPDATE, INSERT)
                )
            )
            pruning = Pruning() if held is None else held.pruning
            delta_target.merge(writer, acts, on, clauses, pruning, None, (path, _PURPOSE))
        return True

    def _held(self, spark: SparkSession, writer: TableWriter, pruning: Pruning) -> Held | None:
        return delta_target.held_rows(
            spark, writer.layout.tables.snapshots, pruning, narrow=True, beside=True
        )


def lack_newest(writer: TableWriter) -> bool:
    """Return whether the states lack the target's newest batch: commits were lost, or an older copy
    was put in place.

    Each batch commits to them before the target, so that those with the newest batch have all that
    came before it.
    """
    layout, newest = writer.layout, next(iter(ledger_table.recent(writer.layout, 1)), None)
    if newest is None or newest.generation != writer.generation:
        return False
    kinds = [newest.kind] if newest.kind != "replay" else [kind for kind, _ in replay.begun(layout)]
    table, states = layout.tables.target, layout.tables.snapshots

    def last(log: Table, purpose: str, kind: str) -> int:
        found = log.last(layout.app_id(writer.generation, purpose, kind))
        return -1 if found is None else found

    # a row of the ledger does not say which replay a batch is of: that whose newest batch has its
    # number
    return all(
        last(states, _PURPOSE, one) < newest.batch
        for one in kinds
        if last(table, "rows", one) == newest.batch
    )


def _leave(spark: SparkSession, writer: TableWriter) -> None:
    """Commit the batch's transaction without states. No-op if it is there, or if there is no
    table.
    """
    path = writer.layout.tables.snapshots.path
    if Table(path).exists and not writer.holds(path, _PURPOSE):
        nothing = spark.read.format("delta").load(path).where(F.lit(False))
        with configured(spark, writer.settings(_PURPOSE)), restricted.named(writer.layout, path):
            nothing.write.format("delta").mode("append").save(path)
