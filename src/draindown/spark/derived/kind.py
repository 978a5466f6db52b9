"""The interface between a derive batch and its derivation: the keys of a row, and the query over
the rows of keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Protocol

from pyspark.sql import Column, DataFrame, SparkSession

from draindown.ledger.rows import BatchRow
from draindown.spark.derived.scope import Bucket, KeyRange, Scope, Span, Touched
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.targets.pruning import Pruning


class Relation(Protocol):
    """How the rows of one source table belong to the keys of a result."""

    @property
    def scope_keys(self) -> Sequence[str]:
        """The result's columns whose values are recomputed together."""

    @property
    def own(self) -> Sequence[str]:
        """Draindown's own columns of the table that the result depends on."""

    def keyed(self, rows: DataFrame) -> DataFrame:
        """Return source rows with the columns `key_names`: one row for each key that a row belongs
        to.

        A row that belongs to no key vanishes.
        """

    def touched(self, changed: DataFrame, sources: Sequence[DataFrame]) -> DataFrame:
        """Return the keys that changed rows of the table touch, in the columns `key_names`, and
        possibly others.

        `sources`: all rows of each source table, as they are now.
        """

    def within(self, rows: DataFrame, scope: Scope) -> DataFrame:
        """Return what the query needs of the rows, for the keys of the scope: those that `keyed`
        returns, at least.
        """

    def hottest(self, changed: DataFrame, sources: Sequence[DataFrame]) -> tuple[str, int] | None:
        """Return what a changed row is called that touches the most keys, and their number.

        None where a row touches as many keys as it has. Arguments as in `touched`.
        """

    def home(self) -> Sequence[Column]:
        """Return the columns, over source rows, of one key of each row, by which the row is counted
        in one bucket.

        NULL for rows that belong to no key.
        """

    def places(self, bucket: Bucket) -> Column:
        """Return the number, over source rows, of keys of the bucket that a row belongs to.

        It is worked out otherwise than in `keyed`, so that either is held against the other.
        """

    def near(self, own: KeyRange) -> Column:
        """Return a condition, over source rows, that holds for each row that has a key or its
        `home` in a range.

        It is worked out otherwise than `source_pruning`, so that either is held against the other.
        """

    def belongs(self) -> Column:
        """Return the condition, over source rows, that a row belongs to a key."""

    def source_pruning(self, keys: Pruning) -> Pruning:
        """Return predicates that every source row of some keys satisfies. `keys`: predicates on the
        result's keys.
        """

    def since(self, rows: DataFrame, earliest: str) -> Mapping[str, str]:
        """Return what bounds the rows that keys need whose least time is `earliest`, as
        `Pruning.since` has it.
        """


class Direct:
    """A relation each of whose rows shows its keys itself."""

    @property
    def own(self) -> Sequence[str]:
        """No columns of draindown's own."""
        return ()

    def touched(self: Relation, changed: DataFrame, sources: Sequence[DataFrame]) -> DataFrame:  # noqa: ARG002
        """Return the changed rows with their keys."""
        return self.keyed(changed)

    def within(self: Relation, rows: DataFrame, scope: Scope) -> DataFrame:
        """Return the rows with their keys that are in the scope."""
        return scope.within(self.keyed(rows), key_names(self))

    def since(self, rows: DataFrame, earliest: str) -> Mapping[str, str]:  # noqa: ARG002
        """Return nothing: rows of any time may be needed."""
        return {}

    def hottest(self, changed: DataFrame, sources: Sequence[DataFrame]) -> tuple[str, int] | None:  # noqa: ARG002
        """Return None: a row touches as many keys as it has."""
        return None


class Kind(Protocol):
    """One derivation over its sources. `registry` maps each kind of the spec to its class.

    The law that makes recomputing touched scopes exact: for disjoint sets of scopes K1 and K2 that
    cover all scopes, the query over the rows of K1 and the query over the rows of K2 give together
    the query over all rows.
    """

    @property
    def scope_keys(self) -> Sequence[str]:
        """The result's columns whose values are recomputed together: a scope has all rows with
        these values.
        """

    @property
    def row_keys(self) -> Sequence[str]:
        """The result's columns that name one of its rows. `scope_keys` are among them."""

    @property
    def relations(self) -> Sequence[Relation]:
        """The source tables, in the order of the file."""

    @property
    def span(self) -> Span | None:
        """What of a scope has to be read again, by time; None if all of it has."""

    @property
    def absorbs(self) -> bool:
        """Whether the query over the table's rows of a scope and rows that came is that over all of
        its rows.

        The table's rows then are rows of the one source, with all of its columns.
        """

    @property
    def asked(self) -> str | None:
        """The source's column with the time at which a row asks a history; None if none is
        asked.
        """

    @property
    def counted(self) -> str | None:
        """The result's column that is the number of source rows of a key; None without one."""

    @property
    def computed(self) -> Collection[str] | None:
        """The result's columns that follow from several rows: their doubles depend on the order of
        these. None: all.
        """

    @property
    def found(self) -> str | None:
        """The result's column that says whether a row found the one that it looks up; None without
        one.
        """

    @property
    def memory(self) -> Memory | None:
        """What the kind keeps beside the table, so that less of a scope has to be read again; None:
        nothing.
        """

    def wrong(self, row: BatchRow) -> list[str]:
        """Return what can't be right in the account of a batch, by the kind's invariant."""

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Return the query's rows from the rows that `keyed` of each relation returned. Keys come
        first.

        `keyed`: all rows of each scope, in the order of `relations`.
        """


class Memory(Protocol):
    """What a kind keeps beside its table. It is a function of the source's rows, and only spares
    work.
    """

    def narrowed(
        self, spark: SparkSession, writer: TableWriter, touched: Touched, kept: ExitStack
    ) -> Scope:
        """Return what of touched scopes has to be read again. Frames stay persisted until `kept`
        closes.
        """

    def recomputed(
        self, keyed: Sequence[DataFrame], kept: ExitStack
    ) -> tuple[DataFrame, DataFrame]:
        """Return the rows of `Kind.result`, and what is to be kept of the scopes, both from one
        evaluation.
        """

    def keep(
        self,
        spark: SparkSession,
        writer: TableWriter,
        scope: Scope,
        fresh: DataFrame | None,
        changed_at: datetime,
    ) -> None:
        """Replace what is kept of the scopes by `fresh`, or leave it as it is if that is None.
        Idempotent.

        It is committed under the batch's transaction id even if nothing differs.
        """


class Keyed(Protocol):
    """What a spec says of the keys of its result."""

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together."""

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result."""


class WholeScopes:
    """A kind that reads the rows of a touched scope as a whole, and whose spec names its keys."""

    spec: Keyed

    @property
    def scope_keys(self) -> Sequence[str]:
        """The columns that the spec says are recomputed together."""
        return self.spec.scope_keys

    @property
    def row_keys(self) -> Sequence[str]:
        """The columns by which the spec says that a row is named."""
        return self.spec.keys

    @property
    def span(self) -> Span | None:
        """None: the result may depend on any row of a scope."""
        return None

    @property
    def absorbs(self) -> bool:
        """No: what a row of the table was computed from is not in it."""
        return False

    @property
    def asked(self) -> str | None:
        """None: no history is asked."""
        return None

    @property
    def counted(self) -> str | None:
        """None: no column counts the source rows of a key."""
        return None

    @property
    def computed(self) -> Collection[str] | None:
        """None of the columns: values pass through as they are in a row of the source."""
        return ()

    @property
    def found(self) -> str | None:
        """None: nothing is looked up."""
        return None

    @property
    def memory(self) -> Memory | None:
        """None: the source has all that is needed."""
        return None


class HasScopes(Protocol):
    """What has the scopes of a result: a kind, or one of its relations."""

    @property
    def scope_keys(self) -> Sequence[str]:
        """The result's columns whose values are recomputed together."""


def key_names(kind: HasScopes) -> list[str]:
    """Return the names that the scope's columns have beside those of the source."""
    return [f"_key{at}" for at in range(len(kind.scope_keys))]
