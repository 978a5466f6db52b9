"""The skeleton of a batch: the order of its steps, which is the same for every kind of batch.

already in the target? → read and count → side writes → resolve → remember → sinks → the target's
commit, with the ledger row as `userMetadata` → ledger table

A crash between any two steps is safe: what was written before the target's commit is written again
in place by the next attempt, and what follows the commit is repeated from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from pyspark.sql import SparkSession

from draindown.base.progress import StepHook, ignore_step
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchForm, BatchKind, BatchRow
from draindown.spark.session import configured
from draindown.spark.targets.commit import close
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.targets.strategy import Change
from draindown.spark.tuning import TUNING, Tuning


class Outlets(Protocol):
    """Where a batch goes beside its target. `targets.outlets` has those of flows with sinks."""

    def opened(self, batch: BaseBatch) -> AbstractContextManager[None]:
        """Connect, and exclude older drivers, before anything is read. No-op for a flow without
        sinks.

        Calls `batch.reached` with `connecting` before it writes.
        """

    def send(self, spark: SparkSession, batch: BaseBatch, change: Change) -> BatchRow:
        """Send what the change applies, and return its ledger row with what each sink got.
        Idempotent.

        Calls `batch.reached` with `counted-NAME`, `noted-NAME`, `portion-NAME`, `taken-NAME` and
        `sent-NAME` for each sink (see `flow.sink_delivery`): the lease is checked before each of
        these steps.
        """


class NoOutlets:
    """The outlets of a flow without sinks."""

    def opened(self, batch: BaseBatch) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing."""
        return nullcontext()

    def send(self, spark: SparkSession, batch: BaseBatch, change: Change) -> BatchRow:  # noqa: ARG002
        """Return the row of the change."""
        return change.row


@dataclass(frozen=True, kw_only=True)
class BaseBatch:
    """The identity and hooks of a batch.

    Attributes:
        writer: identifies the batch's writes.
        run_id: the run that processes the batch.
        changed_at: value of `_changed_at` for every row that the batch changes.
        started_at: when the batch started.
        start: the start of the step within the run; empty if it has none.
        reached: progress hook, called with each step's name when the step completes. An exception
            it raises aborts the batch before the next step.
        tuning: settings of the batch's query plans.
        outlets: the sinks of the flow.
    """

    writer: TableWriter
    run_id: str
    changed_at: datetime
    started_at: datetime
    start: str = ""
    reached: StepHook = ignore_step
    tuning: Tuning = TUNING
    outlets: Outlets = field(default_factory=NoOutlets)

    @property
    def kind(self) -> BatchKind:
        """The ledger's kind of this batch."""
        return self.writer.ledger_kind

    def ledger_row(self, form: BatchForm, **account: Any) -> BatchRow:
        """Return the batch's ledger row with the counts of its input. The outcome is added by the
        target's strategy.
        """
        return BatchRow(
            pipeline=self.writer.layout.pipeline,
            flow=self.writer.layout.flow,
            generation=self.writer.generation,
            batch=self.writer.batch,
            kind=self.kind,
            run_id=self.run_id,
            attempt=self.start,
            changed_at=self.changed_at,
            started_at=self.started_at,
            form=form,
            **account,
        )


@dataclass(frozen=True)
class SideWrite:
    """What a batch writes beside its target, before it, under its own transaction id.

    `step`: the name of the step that is complete once it is written. `write`: idempotent; replaces
    what an earlier attempt of the batch wrote.
    """

    step: str
    write: Callable[[], None]


class ReadBatch(Protocol):
    """A batch whose input is read and counted, and of which nothing is written."""

    @property
    def side_writes(self) -> Sequence[SideWrite]:
        """What is written before the outcome of the rows is known, in order."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Session settings for the side writes."""

    def resolve(self) -> AbstractContextManager[Change]:
        """Compute the outcome of each row. Creates the target if it is absent, and writes nothing
        else.
        """


def apply(
    spark: SparkSession, batch: BaseBatch, read: Callable[[ExitStack], ReadBatch]
) -> BatchRow:
    """Apply one batch and return its ledger row. Idempotent: no-op if the target already contains
    the batch.

    `read` reads and counts the input; its frames stay persisted until the given stack closes. Calls
    `batch.reached` with `read`, the step of each side write, `remembered`, those of `Outlets.send`,
    `merged` and `recorded`.

    Raises TerminalError `ledger-does-not-add-up`, and the errors of reading, resolving and writing.
    """
    if batch.writer.is_done():
        return _done_before(batch.writer)
    with batch.outlets.opened(batch), ExitStack() as kept:
        found = read(kept)
        batch.reached("read")
        with configured(spark, found.settings):
            for side in found.side_writes:
                side.write()
                batch.reached(side.step)
        with found.resolve() as change:
            change.remember()
            batch.reached("remembered")
            row = batch.outlets.send(spark, batch, change)
            change.write(row)
            return close(batch.writer, row, batch.reached)


def _done_before(writer: TableWriter) -> BatchRow:
    ledger_table.heal(writer.layout, writer.generation)
    return ledger_table.row_of(writer.layout, writer.generation, writer.batch, writer.ledger_kind)
