"""The user's fold over the rows of each key in order: the kind `processor`.

A key's rows stream through `mapInArrow`, sorted. What is folded again of a key begins with the
newest state that was kept before the earliest change, if there is one: it comes as the key's first
row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StructField, StructType

from draindown.config.processor import Processor
from draindown.config.ranking import total_order
from draindown.ledger.rows import BatchRow
from draindown.processors import fold, loading, stream, values
from draindown.processors.stream import (
    AT,
    IS_STATE,
    MICROS,
    NUMBER,
    POSITION,
    RESUMED,
    ROW,
    SNAPSHOT,
    START,
    STAYS,
)
from draindown.spark.derived.keyed_table import TimedTable
from draindown.spark.derived.kind import WholeScopes, key_names
from draindown.spark.derived.scope import Scope, Span, micros
from draindown.spark.derived.snapshots import Resumed, Snapshots
from draindown.spark.frames import persisted
from draindown.spark.sql import quoted
from draindown.spark.tuning import TUNING, Tuning


@dataclass(frozen=True)
class _Folded(TimedTable):
    """The source, of which a fold that goes on gets the state before the rows of a key."""

    def within(self, rows: DataFrame, scope: Scope) -> DataFrame:
        """Return the rows with their keys that are in the scope, and states as rows that have
        nothing else.
        """
        found = scope.within(self.keyed(rows), key_names(self))
        if not isinstance(scope, Resumed):
            return found
        return found.unionByName(scope.states(key_names(self), RESUMED), allowMissingColumns=True)


@dataclass(frozen=True)
class Processed(WholeScopes):
    """The kind `processor`. The scope is a key, of which the rows are folded again that a change
    may concern.
    """

    spec: Processor
    table: str
    tuning: Tuning = TUNING

    @property
    def relations(self) -> Sequence[_Folded]:
        """The one source, of which only rows with a time belong to a scope."""
        spec = self.spec
        return [
            _Folded(
                self.table,
                spec.group_by,
                spec.group_by,
                needed=[spec.time],
                time=spec.time,
                start=spec.START,
            )
        ]

    @property
    def span(self) -> Span:
        """The segments of a key that changed rows lie in or near. Where these end is what the
        memory knows.
        """
        return Span(self.spec.time, self.spec.gap, self.spec.START, "")

    @property
    def memory(self) -> Snapshots:
        """The states of the fold."""
        return Snapshots(self.spec, self.span, self.recomputed)

    def wrong(self, row: BatchRow) -> list[str]:
        """Return whether keys were counted that no image touched. A fold may give no row for any
        key.
        """
        return (
            ["keys were recomputed that no image touched"]
            if row.recomputed and not row.used
            else []
        )

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Return the rows that the fold gives. Columns: the key, segment and position, then those
        declared.
        """
        return self._rows(self._folded(*keyed))

    def recomputed(
        self, keyed: Sequence[DataFrame], kept: ExitStack
    ) -> tuple[DataFrame, DataFrame]:
        """Return the same rows, and the states to keep. The fold runs once; it is persisted until
        `kept` closes.
        """
        folded = self._folded(*keyed)
        kept.enter_context(persisted(folded))
        kind = keyed[0].schema[self.spec.time].dataType
        times = [_moment(START, kind).alias(self.spec.START), _moment(AT, kind).alias(AT)]
        states = folded.where(IS_STATE).select(
            *self._by(), *times, NUMBER, POSITION, STAYS, SNAPSHOT
        )
        return self._rows(folded), states

    def _rows(self, folded: DataFrame) -> DataFrame:
        spec, kind = self.spec, folded.schema[_KIND].dataType
        start = _moment(START, kind).alias(spec.START)
        columns = [F.col(f"{ROW}.{quoted(name)}") for name in spec.columns]
        return folded.where(~F.col(IS_STATE)).select(
            *self._by(), start, F.col(POSITION).alias(spec.POSITION), *columns
        )

    def _by(self) -> list[Column]:
        return [
            F.col(own).alias(name)
            for own, name in zip(key_names(self), self.spec.group_by, strict=True)
        ]

    def _folded(self, rows: DataFrame) -> DataFrame:
        """Return what `stream` gives: rows and states, with the key, and a column with the type of
        the time.
        """
        spec, keys = self.spec, key_names(self)
        names = [name for name in rows.columns if name not in (*keys, RESUMED)]
        state, width = _state(spec), len(keys)
        resumed = F.col(RESUMED) if RESUMED in rows.columns else F.lit(None)
        given = rows.select(
            *keys,
            resumed.cast(state).alias(RESUMED),
            micros(spec.time).alias(MICROS),
            *map(quoted, names),
        )
        order = [F.col(quoted(one.column)).asc_nulls_last() for one in total_order(spec, names)]
        placed = [
            F.col(key).desc() if self.tuning.keys_descending else F.col(key).asc() for key in keys
        ]
        first = [*placed, F.col(RESUMED).isNull().asc(), F.col(MICROS).asc(), *order]
        schema = StructType(
            [*(StructField(key, rows.schema[key].dataType) for key in keys), *_made(spec)]
        )
        shape = spec.shape(_loaded(spec.root, spec.of, spec.code))
        shape = replace(shape, every=self.tuning.kept_every or shape.every)
        fold = stream.folding(shape, width, to_arrow_schema(schema))
        sorted_ = given.repartition(*keys).sortWithinPartitions(*first)
        typed = F.lit(None).cast(rows.schema[spec.time].dataType).alias(_KIND)
        return sorted_.mapInArrow(fold, schema).select("*", typed)


_KIND = "_kind"
"""Column without values that has the type of the source's time."""


def _moment(name: str, kind: DataType) -> Column:
    return F.timestamp_micros(F.col(name)).cast(kind)


def _state(spec: Processor) -> StructType:
    """Return the type of a state that a fold goes on from."""
    return StructType(_made(spec)[1:-1])


def _made(spec: Processor) -> list[StructField]:
    """Return the columns of a fold's output after the key, in the order of `stream`."""
    types: dict[str, DataType] = {
        IS_STATE: BooleanType(),
        START: LongType(),
        AT: LongType(),
        NUMBER: LongType(),
        POSITION: IntegerType(),
        STAYS: BooleanType(),
        SNAPSHOT: _struct(spec.state),
        ROW: _struct(spec.columns),
    }
    return [StructField(name, kind) for name, kind in types.items()]


def _struct(columns: Any) -> StructType:
    return StructType(
        [StructField(name, DataType.fromDDL(one.type)) for name, one in columns.items()]
    )


@lru_cache(maxsize=8)
def _loaded(root: str, dotted: str, code: str) -> type:
    """Return the class of a processor. `code`: the digest of its file, so that another one is
    loaded again.

    Raises as `loading.load`.
    """
    found, module = loading.load(root, dotted, code)
    for one in (module, values, fold, stream):
        # the Python workers of an executor import none of them
        cloudpickle.register_pickle_by_value(one)  # type: ignore[no-untyped-call]
    return found
