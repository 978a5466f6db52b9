"""The interface between a batch and its target: how each kind of target applies accepted rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pyspark.sql import Column, DataFrame

from draindown.ledger.rows import BatchRow
from draindown.spark.sources.place import BlockOrigin
from draindown.spark.targets.delta_target import Held, Writer
from draindown.spark.targets.pruning import Pruning
from draindown.spark.tuning import Tuning


@dataclass(frozen=True)
class Accepted:
    """The rows of a batch that passed the contract, before they are compared with the target.

    Attributes:
        writer: identifies the batch's writes.
        rows: the columns after the transform, `_rescued_data`, `_delete` (the row deletes its key), and
            either PLACE or, of rows that are restored, `_arrived_at`. Persisted by the caller.
        blocks: where rows with PLACE come from.
        number: row count of `rows`.
        lines: lines and records that the intake counted; 0 for a replay of quarantined rows.
        pruning: predicates for file skipping in the target.
        changed_at: value of `_changed_at` for every row that the batch changes.
        tuning: settings of the batch's query plans.
        added: target columns that come from fields outside the contract.
        releases: quarantine ids of withdrawn rows that this batch may restore.
        compared: called with the candidate rows of the target (None if it is empty) and `pruning`.
    """

    writer: Writer
    rows: DataFrame
    blocks: Sequence[BlockOrigin]
    number: int
    lines: int
    pruning: Pruning
    changed_at: datetime
    tuning: Tuning
    added: Sequence[str] = ()
    releases: Sequence[str] = ()
    compared: Callable[[Held | None, Pruning], None] = lambda *_: None


class Change(Protocol):
    """A resolved batch of any kind: its outcome is computed and not written yet."""

    @property
    def row(self) -> BatchRow:
        """The ledger row with this target's row counts. They must equal the metrics of the target's
        commit.
        """

    def remember(self) -> None:
        """Write the side tables, such as tombstones. Call before `write`. Idempotent."""

    def changes(self, was: Mapping[str, Column]) -> DataFrame:
        """Return one row per applied row: the row after the batch, with FATE, and for each
        condition of `was` a column.

        FATE (`upsert`, `delete`) is what happens to the row of the table, NULL if nothing does, as
        where a key is deleted that it doesn't hold. Of a delete only the keys count. A condition is
        judged on the table's row as it was before the batch; its column is NULL if there was none.
        Without conditions that row isn't read. Gives the same rows until `write`.
        """

    def write(self, row: BatchRow) -> None:
        """Commit to the target, once, with `row`, the ledger row, as `userMetadata`. Idempotent."""


class Withdrawal(Change, Protocol):
    """What takes rows out of the target because they fail an expectation, computed and not written
    yet.
    """

    @property
    def kept(self) -> DataFrame:
        """What the quarantine gets: one row per change of the source, with the columns that restore
        it.
        """


class TargetStrategy(Protocol):
    """How one kind of target applies accepted rows. `registry` maps each kind to its strategy."""

    def stored(self, accepted: Accepted) -> DataFrame:
        """Return the accepted rows with the target's columns. Their schema is that of a new
        table.
        """

    def resolve(self, accepted: Accepted, row: BatchRow) -> AbstractContextManager[Change]:
        """Compute the outcome of each row. Writes nothing. Frames stay persisted until the context
        exits.
        """

    def withdrawal(
        self, writer: Writer, rows: DataFrame, row: BatchRow, pruning: Pruning
    ) -> AbstractContextManager[Withdrawal]:
        """Compute what takes these rows of the target out of it. Writes nothing. Only of a kind
        that is addressable.

        `row`: the ledger row so far, with the number of rows as `records` and `deleted`.
        """
