"""The port between a batch and the table it writes: what a kind of target has to do with accepted rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pyspark.sql import DataFrame

from draindown.ledger.rows import BatchRow
from draindown.spark.targets.delta_target import Held, Writer
from draindown.spark.targets.pruning import Pruning
from draindown.spark.tuning import Tuning


@dataclass(frozen=True)
class Accepted:
    """The rows of a batch that the contract accepted, before anything is known of the target.

    `rows`: the columns after the transform, `_rescued`, and `_delete` (whether the row deletes its key); persisted by
    the caller. `number`: how many there are. `lines`: lines and records that the intake counted, 0 for rows that are
    read from the quarantine. `pruning`: which rows of the target the batch can concern. `added`: columns of the target
    that come from fields outside the contract. `releases`: ids of withheld rows that this batch may bring back.
    `changed_at`: the stamp of every row that the batch changes. `compared`: called with the rows of the target among
    which the batch looks for its keys, None if there are none, and with `pruning`.
    """

    writer: Writer
    rows: DataFrame
    number: int
    lines: int
    pruning: Pruning
    changed_at: datetime
    tuning: Tuning
    added: Sequence[str] = ()
    releases: Sequence[str] = ()
    compared: Callable[[Held | None, Pruning], None] = lambda *_: None


class Change(Protocol):
    """A batch whose effect on the target is known and not yet written."""

    @property
    def row(self) -> BatchRow:
        """The ledger row with the counts of this kind of target. Each must equal what the target's commit did."""

    def remember(self) -> None:
        """Write what stands beside the table, such as tombstones. Idempotent; before `write`."""

    def write(self) -> None:
        """Make the one commit of the target, which carries the ledger row. Idempotent."""


class TargetStrategy(Protocol):
    """How one kind of target takes accepted rows. Kinds are listed in `registry`; new ones are added there."""

    def stored(self, accepted: Accepted) -> DataFrame:
        """The accepted rows with the columns of the table: its schema, where it is to be created."""

    def resolve(self, accepted: Accepted, row: BatchRow) -> AbstractContextManager[Change]:
        """Decide what becomes of each row. Writes nothing. Persisted frames last until the context ends."""
