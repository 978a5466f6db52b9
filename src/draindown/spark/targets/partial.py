"""Partial updates: the target holds per key the newest value of each column; deleted keys become
tombstones.

records beside the rows and tombstones of their keys → merged column by column → write tombstones →
MERGE
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from draindown.base.errors import TerminalError
from draindown.config.names import is_own
from draindown.config.partial import IGNORE, SEQUENCES
from draindown.ledger.rows import BatchRow
from draindown.ledger.target_log import verify_written
from draindown.sinks.port import FATE as SENT
from draindown.spark.contract.origin import arrived
from draindown.spark.frames import persisted
from draindown.spark.session import configured
from draindown.spark.sql import ARRIVED_AT, CHANGED_AT, quoted
from draindown.spark.targets import delta_target, memory, merging, resolution, withheld
from draindown.spark.targets.definition import differing, last_definition, ways_on
from draindown.spark.targets.delta_target import Clauses, Writer
from draindown.spark.targets.merging import BURIES, COUNTS, Shape
from draindown.spark.targets.neighbourhood import candidates, joining, neighbourhood, settings
from draindown.spark.targets.pruning import Pruning
from draindown.spark.targets.resolution import ACTS, FATE
from draindown.spark.targets.strategy import Accepted, Withdrawal


class Merging:
    """The strategy of a target with keys whose rows are merged column by column."""

    def stored(self, accepted: Accepted) -> DataFrame:
        """Return the accepted rows with `_arrived_at`, SEQUENCES (nothing in it) and
        `_changed_at`.
        """
        rows = arrived(accepted.rows, accepted.blocks).drop("_delete", SEQUENCES)
        order = accepted.writer.flow.target.sequence_by
        at = F.col(quoted(order[0])) if len(order) == 1 else F.struct(*map(quoted, order))
        none = F.map_filter(F.create_map(F.lit(""), at), lambda _name, _at: F.lit(False))
        return rows.withColumns({SEQUENCES: none, CHANGED_AT: F.lit(accepted.changed_at)})

    @contextmanager
    def resolve(self, accepted: Accepted, row: BatchRow) -> Iterator[Merged]:
        """Merge the records with the rows and tombstones of their keys, and count what became of
        each.
        """
        spark, writer = accepted.rows.sparkSession, accepted.writer
        table = spark.read.format("delta").load(writer.layout.tables.target.path).schema
        shape = _shape(accepted, table)
        row = replace(row, form="partial", history=_definition(shape))
        near = neighbourhood(accepted, row)
        with configured(spark, settings(accepted, row, near)):
            is_apart = near.held is not None and near.held.is_apart
            held = None if is_apart else candidates(accepted, near, near.held)
            dead = None if near.memory is None else near.memory.rows
            known = [*shape.keys, *shape.sequence_by, *shape.content]
            out = withheld.rows(
                spark, writer, StructType([table[name] for name in known]), accepted.releases
            )
            records = arrived(accepted.rows, accepted.blocks)
            records = records.select(
                *[quoted(n) for n in (*known, ARRIVED_AT, "_delete") if n in records.columns]
            )
            found = merging.merged(records, held, dead, shape, table, out).withColumn(
                CHANGED_AT, F.lit(accepted.changed_at)
            )
            with persisted(found):
                yield Merged(accepted, found, replace(row, **_counted(found)), near.is_large, held)

    def withdrawal(
        self, writer: Writer, rows: DataFrame, row: BatchRow, pruning: Pruning
    ) -> AbstractContextManager[Withdrawal]:
        """Not used: what records gave to a row is not kept apart."""
        raise NotImplementedError


def _shape(accepted: Accepted, table: StructType) -> Shape:
    """Return the columns of the table by the spec. Raises TerminalError `column-missing`,
    `table-mismatch`.
    """
    writer = accepted.writer
    goal, part = writer.flow.target, writer.flow.target.partial
    assert part is not None, "the kind of the target is partial"
    added = accepted.added or delta_target.added_columns(accepted.rows.sparkSession, writer)
    order = [
        name
        for name in resolution.order(table.names, added)
        if name not in (*goal.essential, SEQUENCES)
    ]
    missing = [name for _, name in part.named if name not in table.names]
    if missing:
        raise _lacking(writer, missing, [name for name in order if not is_own(name)])
    was = last_definition(writer, "partial")
    merged = set(part.columns([name for name in order if name in table.names]))
    # left `columns`: as it was before
    gone = set(order).difference(accepted.rows.columns, added) if was else set()
    merged = (merged - gone) | gone.intersection(was["partial"] if was else ())
    partial = [name for name in order if name in merged]
    whole = [name for name in order if name in table.names and name not in merged]
    shape = Shape(goal.keys, goal.sequence_by, partial, whole)
    _refuse_changed(writer, shape, was)
    return shape


def _lacking(writer: Writer, missing: Sequence[str], columns: Sequence[str]) -> TerminalError:
    return TerminalError(
        "column-missing",
        tried=f"find the columns of {IGNORE} in what {writer.flow.transform or 'the contract'} gives",
        found=f"no {', '.join(missing)} among {', '.join(columns)}",
        next=f"draindown run {writer.layout.pipeline}   # once it gives them",
    )


def _definition(shape: Shape) -> str:
    """Return what the merge depends on, as JSON."""
    said = {
        "keys": shape.keys,
        "sequence_by": shape.sequence_by,
        "partial": shape.partial,
        "whole": shape.whole,
    }
    return json.dumps(said, separators=(",", ":"))


def _refuse_changed(writer: Writer, shape: Shape, was: Mapping[str, Sequence[str]] | None) -> None:
    """Refuse to merge records otherwise than those before were. A new column may be of either kind.

    `was`: what the newest batch merged by; None if there is none.

    Raises TerminalError `table-mismatch`.
    """
    if was is None:
        return
    held = {*was["partial"], *was["whole"]}
    now = {"keys": shape.keys, "sequence_by": shape.sequence_by}
    now[IGNORE] = [name for name in shape.partial if name in held]
    if changed := differing({**was, IGNORE: was["partial"]}, now):
        raise TerminalError(
            "table-mismatch",
            tried=f"merge records into {writer.layout.tables.target.path}",
            found=changed,
            changed="nothing of this batch is in the table",
            next=ways_on(writer, "merges all input anew"),
        )


def _counted(found: DataFrame) -> dict[str, Any]:
    """Return the account of records and that of rows. A row's tombstone counts as `deleted`, others
    as `tombstoned`.
    """
    fate, buries = F.col(FATE), F.col(BURIES).isNotNull()
    acts = [F.count_if(fate == act).alias(act) for act in ACTS]
    beside = F.count_if(buries & ~fate.eqNullSafe(F.lit("delete"))).alias("remember")
    (row,) = found.agg(*[F.sum(name).alias(name) for name in COUNTS], *acts, beside).collect()
    names = {
        "_applied": "applied",
        "_superseded": "superseded",
        "_duplicate": "duplicate",
        "remember": "tombstoned",
    }
    names |= dict(zip(ACTS, ("inserted", "updated", "deleted"), strict=True))
    return {to: int(row[name] or 0) for name, to in names.items()}


@dataclass(frozen=True)
class Merged:
    """The change of a batch: one row per key with FATE and BURIES, persisted.

    `is_large`: the target is much larger than the batch. `held`: the rows that it was merged with.
    """

    accepted: Accepted
    merged: DataFrame
    row: BatchRow
    is_large: bool
    held: DataFrame | None = None

    def remember(self) -> None:
        """Append the newest delete of each key to the tombstones. Idempotent."""
        writer, deletes = self.accepted.writer, self.row.deleted + self.row.tombstoned
        if deletes or writer.holds(writer.layout.tables.tombstones.path, "tombstones"):
            goal = writer.flow.target
            at = [F.col(BURIES).getField(name).alias(name) for name in goal.sequence_by]
            buried = self.merged.where(F.col(BURIES).isNotNull())
            keys = [quoted(name) for name in goal.keys if name not in goal.sequence_by]
            memory.append(writer, buried.select(*keys, *at), self.accepted.changed_at, deletes)
            verify_written(self.row, writer.layout.tables.tombstones.path, deletes, "deletes")

    def changes(self, was: Mapping[str, Column]) -> DataFrame:
        """Return the rows that differ from the table's, with all of their columns."""
        act = F.when(F.col(FATE) == "delete", "delete").otherwise("upsert")
        rows = (
            self._acts()
            .withColumn("_act", act)
            .drop(FATE, BURIES, *COUNTS)
            .withColumnRenamed("_act", SENT)
        )
        if not was or self.held is None:
            return rows.withColumns({name: F.lit(None).cast("boolean") for name in was})
        keys = self.accepted.writer.flow.target.keys
        before = self.held.select(
            *map(quoted, keys), *[judged.alias(name) for name, judged in was.items()]
        )
        return rows.join(before, list(keys), "left")

    def _acts(self) -> DataFrame:
        return self.merged.where(F.col(FATE).isNotNull())

    def write(self, row: BatchRow) -> None:
        """MERGE the rows that differ. If there are none, commit the ledger row with an empty
        append.
        """
        writer, spark = self.accepted.writer, self.merged.sparkSession
        with configured(spark, joining(self.accepted, spark) if self.is_large else {}):
            if row.inserted or row.updated or row.deleted:
                on = " AND ".join(
                    f"t.{quoted(key)} = s.{quoted(key)}" for key in writer.flow.target.keys
                )
                clauses = Clauses(
                    *(f"s.{FATE} = '{act}'" for act in ("delete", "update", "insert"))
                )
                delta_target.merge(
                    writer, self._acts(), on, clauses, self.accepted.pruning, row.as_metadata()
                )
            else:
                nothing = self.merged.where(F.lit(False)).drop(FATE, BURIES, *COUNTS)
                delta_target.append(writer, nothing, row.as_metadata())
