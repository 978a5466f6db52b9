"""Lookups: the rows of one table, each with columns of the row of another one that has its keys,
now or at its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from draindown.config.lookup import Lookup
from draindown.config.names import END_AT
from draindown.config.table_source import SourceTable
from draindown.ledger.rows import BatchRow
from draindown.spark.derived import valid_at
from draindown.spark.derived.keyed_table import KeyedTable
from draindown.spark.derived.kind import Direct, WholeScopes, key_names
from draindown.spark.derived.pairs import origin_text, owned, paired
from draindown.spark.derived.scope import HIGH, LOW, Bucket, KeyRange, Scope, pruning_of
from draindown.spark.sql import quoted
from draindown.spark.targets.pruning import Pruning

_HIT, _TIME = "_hit", "_time"


@dataclass(frozen=True)
class _Kept(KeyedTable):
    """The table whose rows are kept. Without keys a row is named by its origin: `columns` is empty
    then.
    """

    def home(self) -> Sequence[Column]:
        """Return the key columns, or the origin."""
        return super().home() if self.columns else [origin_text()]

    def source_pruning(self, keys: Pruning) -> Pruning:
        """Return the same predicates on the table's own key columns; none on an origin."""
        return super().source_pruning(keys) if self.columns else Pruning()


@dataclass(frozen=True)
class _LookedUp(Direct):
    """The table that is looked up. Its rows have no keys of the result: those have left rows with
    its values of `on`.

    Attributes:
        scope_keys: the keys of the result.
        by, columns: the columns of `on`: the left table's, which the result has too, and this
            table's own.
    """

    scope_keys: Sequence[str]
    by: Sequence[str]
    columns: Sequence[str]
    keys_of: KeyedTable

    def keyed(self, rows: DataFrame) -> DataFrame:
        """Return the rows with values of `on`, in columns of their own."""
        return with_on(rows.where(self.belongs()), self.columns)

    def home(self) -> Sequence[Column]:
        """Return NULL for each key: the rows are counted in one bucket."""
        return [F.lit(None)] * len(self.scope_keys)

    def places(self, bucket: Bucket) -> Column:  # noqa: ARG002
        """Return 0: no column of the result counts these rows."""
        return F.lit(0)

    def near(self, own: KeyRange) -> Column:  # noqa: ARG002
        """Return true: any row may be one of a key."""
        return F.lit(True)

    def belongs(self) -> Column:
        """Return whether a row has all values of `on`."""
        return reduce(Column.__and__, [F.col(quoted(name)).isNotNull() for name in self.columns])

    def source_pruning(self, keys: Pruning) -> Pruning:
        """Return the predicates on those columns of `on` that are keys of the result."""
        own = dict(zip(self.by, self.columns, strict=True))
        return Pruning(
            {own[name]: values for name, values in keys.values.items() if name in own},
            {own[name]: ranges for name, ranges in keys.ranges.items() if name in own},
        )

    def touched(self, changed: DataFrame, sources: Sequence[DataFrame]) -> DataFrame:
        """Return the keys of the left rows, as they are now, that have the values of `on` of
        changed rows.
        """
        return self.keys_of.keyed(self._left_rows(changed, sources))

    def within(self, rows: DataFrame, scope: Scope) -> DataFrame:  # noqa: ARG002
        """Return all rows: which of them are needed, the left rows of the scope say."""
        return self.keyed(rows)

    def hottest(self, changed: DataFrame, sources: Sequence[DataFrame]) -> tuple[str, int] | None:
        """Return the changed row with the most left rows, by its values of `on`, and their
        number.
        """
        names = [f"_on{at}" for at in range(len(self.by))]
        by_value = with_on(self._left_rows(changed, sources), self.by).groupBy(*names).count()
        row = by_value.orderBy(F.desc("count"), *names).first()
        if row is None:
            return None
        return ", ".join(f"{name} {row[at]}" for at, name in enumerate(self.by)), int(row["count"])

    def _left_rows(self, changed: DataFrame, sources: Sequence[DataFrame]) -> DataFrame:
        """Return the left rows with values of `on` of changed rows, read by literal predicates on
        these.
        """
        named = [
            F.col(quoted(own)).alias(name) for own, name in zip(self.columns, self.by, strict=True)
        ]
        values = changed.where(self.belongs()).select(*named).distinct()
        return self._among(sources[0], values).join(values, list(self.by), "left_semi")

    def _among(self, left: DataFrame, values: DataFrame) -> DataFrame:
        """Return the left rows for which literal predicates on the values of `on` hold."""
        _, pruning = pruning_of(values, self.by)
        return reduce(DataFrame.where, pruning.conditions(left.schema), left)


@dataclass(frozen=True)
class _History(_LookedUp):
    """A history that is looked up at the `time` of a left row: a change touches left rows at times
    of which it is.
    """

    time: str

    def since(self, rows: DataFrame, earliest: str) -> Mapping[str, str]:
        """Return that a row ends at the earliest time or later, or not at all. Of a struct Delta
        skips no file.
        """
        return {} if isinstance(rows.schema[END_AT].dataType, StructType) else {END_AT: earliest}

    def _left_rows(self, changed: DataFrame, sources: Sequence[DataFrame]) -> DataFrame:
        """Return the left rows with values of `on` of changed rows at whose time another row is
        valid, or none.
        """
        rows = changed.where(self.belongs())
        moved = valid_at.stretches(rows, self.columns, valid_at.values_of(changed, self.columns))
        named = [
            F.col(quoted(own)).alias(name) for own, name in zip(self.columns, self.by, strict=True)
        ]
        left, time = self._among(sources[0], moved.select(*named)), F.col(quoted(self.time))
        left = reduce(DataFrame.where, valid_at.narrowing(moved, time), left)
        moved = with_on(moved, self.columns).drop(*self.columns)
        same = [F.col(quoted(name)) == F.col(f"_on{at}") for at, name in enumerate(self.by)]
        meets = (F.col(LOW) <= time) & (F.col(HIGH).isNull() | (time < F.col(HIGH)))
        return left.join(moved, reduce(Column.__and__, [*same, meets]), "left_semi")


@dataclass(frozen=True)
class LookedUp(WholeScopes):
    """The kind `lookup`. The scope is a left row, whatever it looks up; changes there touch left
    rows.
    """

    spec: Lookup
    tables: Sequence[SourceTable]

    @property
    def relations(self) -> Sequence[KeyedTable | _LookedUp]:
        """The two tables, in the order of the file."""
        spec, left = self.spec, self.spec.sides[0]
        kept = _Kept(left.table, spec.scope_keys, left.row_keys, left.row_keys, own=owned(spec, 0))
        told = (spec.scope_keys, spec.own(0), spec.own(1), kept)
        looked_up = _History(*told, spec.time) if spec.time else _LookedUp(*told)
        return [kept, looked_up]

    @property
    def asked(self) -> str | None:
        """The time of a left row."""
        return self.spec.time

    @property
    def found(self) -> str | None:
        """The column that the spec makes for it."""
        return self.spec.found

    def wrong(self, row: BatchRow) -> list[str]:
        """A left row that changes touch is there now, or was, and so is in the table."""
        return [f"{row.empty} touched rows are not in the table"] if row.empty else []

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Give each left row the columns of the row that has its values of `on`, and whether there
        is one.
        """
        spec = self.spec
        left, right = keyed
        left, hits = (
            with_on(left.drop(*key_names(self)), spec.own(0)),
            right.withColumn(_HIT, F.lit(True)),
        )
        made, condition, beside = {spec.found: F.col(_HIT).isNotNull()}, None, [_HIT]
        if spec.time:
            left, hits = left.withColumn(_TIME, F.col(quoted(spec.time))), valid_at.bounded(hits)
            condition, beside = (
                valid_at.is_valid(F.col(_TIME)),
                [_HIT, _TIME, valid_at.FROM, valid_at.UNTIL],
            )
        return paired(
            spec, left, hits, [f"_on{at}" for at in range(len(spec.on))], condition, made, beside
        )


def with_on(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the rows with the columns `_on0`, `_on1` ..., which have the values of `columns`."""
    return rows.select(
        "*", *(F.col(quoted(name)).alias(f"_on{at}") for at, name in enumerate(columns))
    )
