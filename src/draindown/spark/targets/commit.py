"""Close a batch: compare the target's commit with the batch's counts and record the ledger row."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from draindown.base.progress import StepHook
from draindown.ledger import rows as ledger_rows
from draindown.ledger import table as ledger_table
from draindown.ledger import target_log
from draindown.ledger.rows import BatchRow
from draindown.spark.targets.delta_target import TableWriter


def close(writer: TableWriter, row: BatchRow, reached: StepHook) -> BatchRow:
    """Compare the batch's counts with the metrics of its commit, then record and return its ledger
    row.

    `reached` is called with `merged` before and `recorded` after.

    Raises TerminalError `ledger-does-not-add-up` if the counts differ or no such commit is this
    batch's.
    """
    reached("merged")
    commit = target_log.commit_of(writer.target.renew(), row)
    found = ledger_rows.closed(commit)
    if found is None or found.place != row.place:
        row = replace(row, table_version=commit.version)
        raise ledger_rows.not_adding_up(
            row, [f"version {commit.version} of the table is not this batch's commit"]
        )
    ledger_table.record(writer.layout, [found])
    reached("recorded")
    return found


def stamp_after(last: datetime | None, now: datetime) -> datetime:
    """Return `_changed_at` for the next batch: `now`, or 1 µs after `last` if the clock has not
    passed it.
    """
    return now if last is None or now > last else last + timedelta(microseconds=1)
