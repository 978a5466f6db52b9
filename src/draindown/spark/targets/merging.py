"""Records merged column by column: the newest value of each column counts, and a delete clears
older ones. Pure frames.

records of a batch + the row of their key + its newest tombstone → the values that count → what
became of each record → one row per key

Columns are in groups that are written together. Each column that NULL leaves as it is has a group
of its own, and its sequence in SEQUENCES. All others are one group with the sequence of the row:
every record that is no delete writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from draindown.config.partial import SEQUENCES
from draindown.spark.sql import ARRIVED_AT, quoted
from draindown.spark.targets import resolution
from draindown.spark.targets.resolution import FATE, comparable

COUNTS = ("_applied", "_superseded", "_duplicate")
"""Columns with the number of records of a key by what became of them."""
BURIES = "_buries"
"""Column of a key: the sequence of the delete that it must remember, a struct of the sequence
columns, or NULL.
"""
_HELD, _DEAD, _OUT = "_held", "_dead", "_out"
_KILLED, _CUT, _LIVE, _IS_FIRST, _IS_LAST = "_killed", "_cut", "_live", "_is_first", "_is_last"
_TOP, _GAINS, _STAYS, _AT = "_top", "_gains", "_stays", "_at"


@dataclass(frozen=True)
class Shape:
    """The columns of a table that is merged column by column.

    Attributes:
        keys: what names a row. Never NULL.
        sequence_by: what orders the records of a key. Never NULL.
        partial: columns of which NULL leaves what the row has.
        whole: all other columns of a record, in the order in which they are compared at one
            sequence.
    """

    keys: Sequence[str]
    sequence_by: Sequence[str]
    partial: Sequence[str]
    whole: Sequence[str]

    @property
    def content(self) -> list[str]:
        """The columns of a record besides keys and sequence."""
        return [*self.whole, *self.partial]

    @property
    def at(self) -> Column:
        """The sequence of a row or record, as a struct."""
        return F.struct(*map(quoted, self.sequence_by))

    def stored(self, at: Column) -> Column:
        """Return a sequence as SEQUENCES has it: the value of the column, or of several their
        struct.
        """
        return at.getField(self.sequence_by[0]) if len(self.sequence_by) == 1 else at

    def read(self, stored: Column) -> Column:
        """Return a sequence of SEQUENCES as a struct."""
        if len(self.sequence_by) > 1:
            return stored
        return F.when(stored.isNotNull(), F.struct(stored.alias(self.sequence_by[0])))


def merged(
    records: DataFrame,
    held: DataFrame | None,
    tombstones: DataFrame | None,
    shape: Shape,
    table: StructType,
    withheld: DataFrame | None = None,
) -> DataFrame:
    """Return one row per key of `records`: the table's columns after the batch, FATE, BURIES and
    COUNTS.

    FATE is what happens to the row of the table: insert, update, delete, or NULL for nothing.
    COUNTS: a record is applied if the row has a value of it now that it did not have before, or if
    it is the newest delete of its key; a duplicate if the row had all of it and keeps it, or if it
    is in the batch once more; all others are superseded.

    Args:
        records: rows of the contract with `_delete` and `_arrived_at`. Columns that they lack are
            NULL.
        held: candidate rows of the table; None if there are none.
        tombstones: keys and sequence of deletes; None if there are none.
        shape: the columns.
        table: the schema of the table.
        withheld: records that count for nothing, with keys, sequence and content; None if there are
            none.
    """
    it = _Merge(shape, table)
    frame = it.ranked(it.beside(records, held, tombstones, withheld))
    frame = frame.withColumns(it.tops()).withColumns(it.outcome())
    by = Window.partitionBy(*map(quoted, shape.keys))
    fates = frame.withColumn("_fate_of", it.fate())
    counts = {name: F.count_if(F.col("_fate_of") == name[1:]).over(by) for name in COUNTS}
    return it.rows(fates.withColumns(counts).where(_IS_LAST))


@dataclass(frozen=True)
class _Merge:
    """The expressions of a merge. Group 0 is that of the row, group i the i-th of the partial
    columns.
    """

    shape: Shape
    table: StructType

    def beside(
        self,
        records: DataFrame,
        held: DataFrame | None,
        tombstones: DataFrame | None,
        withheld: DataFrame | None,
    ) -> DataFrame:
        """Return the records beside the row of their key and its tombstone. A delete has no
        content.
        """
        shape, own = self.shape, set(records.columns)
        kinds = {name: self.table[name].dataType for name in shape.content}
        content = {
            name: F.when(~F.col("_delete"), F.col(quoted(name)))
            if name in own
            else F.lit(None).cast(kind)
            for name, kind in kinds.items()
        }
        frame = records.withColumns(content).withColumn(_OUT, F.lit(False))
        if withheld is not None:
            frame = self._marked(frame.drop(_OUT), withheld)
        deleted = resolution.latest(tombstones, shape.keys, shape.sequence_by)
        frame = resolution.beside(frame, deleted, shape.keys, shape.sequence_by, _DEAD)
        if held is None:
            return frame.withColumn(_HELD, F.lit(None).cast(self.table))
        whole = F.struct(*[F.col(quoted(field.name)) for field in self.table]).alias(_HELD)
        return frame.join(held.select(*map(quoted, shape.keys), whole), list(shape.keys), "left")

    def _marked(self, frame: DataFrame, withheld: DataFrame) -> DataFrame:
        """Return the records with whether each is withheld: the same sequence and content."""

        def content() -> Column:
            names = [*self.shape.keys, *self.shape.sequence_by, *self.shape.content]
            return F.struct(
                *[
                    self._comparable(name, F.col(quoted(name))).alias(f"c{i}")
                    for i, name in enumerate(names)
                ]
            )

        out = withheld.select(content().alias("_print")).distinct().withColumn(_OUT, F.lit(True))
        known = frame.withColumn("_own", content())
        marked = known.join(F.broadcast(out), known["_own"].eqNullSafe(out["_print"]), "left").drop(
            "_own", "_print"
        )
        return marked.withColumn(_OUT, F.coalesce(_OUT, F.lit(False)) & ~F.col("_delete"))

    def ranked(self, frame: DataFrame) -> DataFrame:
        """Return the records with their place among those of the key, and which of them no delete
        reaches.
        """
        shape = self.shape
        by = Window.partitionBy(*map(quoted, shape.keys))
        content = [self._comparable(name, F.col(quoted(name))) for name in shape.content]
        ascending = by.orderBy(*map(quoted, shape.sequence_by), "_delete", *content)
        equal = ascending.rangeBetween(Window.currentRow, Window.currentRow)
        placed = frame.withColumns(
            {
                _IS_FIRST: F.row_number().over(ascending) == F.rank().over(ascending),
                _IS_LAST: F.lead(F.lit(True)).over(ascending).isNull(),
                ARRIVED_AT: F.min(ARRIVED_AT).over(equal),
                _KILLED: F.max(F.when(F.col("_delete"), shape.at)).over(by),
            }
        )
        cut = F.greatest(_KILLED, _DEAD)
        alive = ~F.col("_delete") & ~F.col(_OUT) & (cut.isNull() | (shape.at > cut))
        return placed.withColumns({_CUT: cut, _LIVE: alive})

    def tops(self) -> dict[str, Column]:
        """Return what the newest record of each group has there, as a struct: sequence, value, and
        of the row arrival.

        At one sequence the greatest content counts.
        """
        by, at = Window.partitionBy(*map(quoted, self.shape.keys)), self.shape.at.alias(_AT)
        first = (-F.unix_micros(ARRIVED_AT)).alias("_first")
        found = {}
        for i in range(len(self.shape.partial) + 1):
            given = F.struct(at, *self._values(i), *([F.col(ARRIVED_AT)] if i == 0 else []))
            order = F.struct(at, *self._ordered(i, ""), *([first] if i == 0 else []))
            found[f"{_TOP}{i}"] = F.max_by(
                F.when(self._gives(i), given), F.when(self._gives(i), order)
            ).over(by)
        return found

    def outcome(self) -> dict[str, Column]:
        """Return per group whether the row's own value stays, and whether a record gives it another
        one.
        """
        found, cut = {}, F.col(_CUT)
        for i in range(len(self.shape.partial) + 1):
            at, top = self._held_at(i), F.col(f"{_TOP}{i}")
            stays = at.isNotNull() & (cut.isNull() | (at > cut))
            newer = self._state(f"{_TOP}{i}", top.getField(_AT), i) > self._state(_HELD, at, i)
            found[f"{_STAYS}{i}"] = F.coalesce(stays, F.lit(False))
            found[f"{_GAINS}{i}"] = F.coalesce(top.isNotNull() & (~stays | newer), F.lit(False))
        return found

    def fate(self) -> Column:
        """Return what became of a record."""
        groups, at, killed = range(len(self.shape.partial) + 1), self.shape.at, F.col(_KILLED)
        gave = [
            self._gives(i) & F.col(f"{_GAINS}{i}") & self._is_at(i, f"{_TOP}{i}") for i in groups
        ]
        # the sequence of the row alone is no content: it tells records apart that give nothing else
        some = reduce(
            Column.__or__, [F.col(quoted(name)).isNotNull() for name in self.shape.partial]
        )
        there = [
            ~self._gives(i)
            | (F.col(f"{_STAYS}{i}") & ~F.col(f"{_GAINS}{i}") & self._is_at(i, _HELD))
            for i in groups
        ]
        if not self.shape.whole:
            there[0] = there[0] | some
        buried = (at == killed) & (F.col(_DEAD).isNull() | (at > F.col(_DEAD)))
        return (
            F.when(~F.col(_IS_FIRST), "duplicate")
            .when(F.col("_delete") & buried, "applied")
            .when(F.col("_delete") & at.eqNullSafe(F.col(_DEAD)), "duplicate")
            .when(~F.col(_LIVE), "superseded")
            .when(reduce(Column.__or__, gave), "applied")
            .when(reduce(Column.__and__, there), "duplicate")
            .otherwise("superseded")
        )

    def rows(self, last: DataFrame) -> DataFrame:
        """Return the outcome per key, of frames with one record each."""
        shape, held = self.shape, F.col(_HELD)
        groups = range(len(shape.partial) + 1)
        values = {
            name: self._result(0, name, _AT) for name in shape.sequence_by if name not in shape.keys
        }
        values |= {name: self._result(0, name) for name in shape.whole}
        values |= {name: self._result(i, name) for i, name in enumerate(shape.partial, 1)}
        gains = reduce(Column.__or__, [F.col(f"{_GAINS}{i}") for i in groups])
        cleared = reduce(
            Column.__or__, [self._held_at(i).isNotNull() & ~F.col(f"{_STAYS}{i}") for i in groups]
        )
        exists = F.col(f"{_STAYS}0") | F.col(f"{_TOP}0").isNotNull()
        fate = (
            F.when(held.isNull(), F.when(exists, "insert"))
            .when(~exists, "delete")
            .when(gains | cleared, "update")
        )
        buries = F.when(F.col(_DEAD).isNull() | (F.col(_KILLED) > F.col(_DEAD)), F.col(_KILLED))
        return last.select(
            *map(quoted, shape.keys),
            *[value.alias(name) for name, value in values.items()],
            self._result(0, ARRIVED_AT).alias(ARRIVED_AT),
            self._sequences().alias(SEQUENCES),
            fate.alias(FATE),
            buries.alias(BURIES),
            *COUNTS,
        )

    def _result(self, group: int, name: str, inside: str = "") -> Column:
        top = F.col(f"{_TOP}{group}")
        given = (top.getField(inside) if inside else top).getField(name)
        return F.when(F.col(f"{_GAINS}{group}"), given).when(
            F.col(f"{_STAYS}{group}"), F.col(_HELD).getField(name)
        )

    def _sequences(self) -> Column:
        pairs = []
        for i, name in enumerate(self.shape.partial, 1):
            given = self.shape.stored(F.col(f"{_TOP}{i}").getField(_AT))
            at = F.when(F.col(f"{_GAINS}{i}"), given).when(
                F.col(f"{_STAYS}{i}"), self.shape.stored(self._held_at(i))
            )
            pairs += [F.lit(name), at]
        return F.map_filter(F.create_map(*pairs), lambda _name, at: at.isNotNull())

    def _held_at(self, group: int) -> Column:
        """Return the sequence of a group in the row, as a struct; NULL if the row has no value of
        it.
        """
        held = F.col(_HELD)
        if group == 0:
            own = F.struct(*[held.getField(name).alias(name) for name in self.shape.sequence_by])
            return F.when(held.isNotNull(), own)
        stored = F.try_element_at(held.getField(SEQUENCES), F.lit(self.shape.partial[group - 1]))
        return self.shape.read(stored)

    def _gives(self, group: int) -> Column:
        """Return whether a record writes a group."""
        alive = F.col(_LIVE)
        return (
            alive
            if group == 0
            else alive & F.col(quoted(self.shape.partial[group - 1])).isNotNull()
        )

    def _names(self, group: int) -> Sequence[str]:
        return self.shape.whole if group == 0 else [self.shape.partial[group - 1]]

    def _values(self, group: int) -> list[Column]:
        return [F.col(quoted(name)).alias(name) for name in self._names(group)]

    def _ordered(self, group: int, inside: str) -> list[Column]:
        """Return what a group is compared by. `inside`: the struct that has its columns; empty for
        a record.
        """
        prefix = f"{inside}." if inside else ""
        return [
            self._comparable(name, F.col(f"{prefix}{quoted(name)}")).alias(f"c{i}")
            for i, name in enumerate(self._names(group))
        ]

    def _state(self, inside: str, at: Column, group: int) -> Column:
        return F.struct(at.alias(_AT), *self._ordered(group, inside))

    def _is_at(self, group: int, inside: str) -> Column:
        """Return whether the group of a record is that of a row or of the newest record: sequence
        and content.
        """
        at = self._held_at(group) if inside == _HELD else F.col(inside).getField(_AT)
        return self._state("", self.shape.at, group).eqNullSafe(self._state(inside, at, group))

    def _comparable(self, name: str, column: Column) -> Column:
        return comparable(self.table[name].dataType, column)
