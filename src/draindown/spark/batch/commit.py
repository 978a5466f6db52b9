"""The end of a batch: its commit is compared with its counts, and the ledger row is recorded."""

from __future__ import annotations

from datetime import datetime, timedelta

from draindown.base.progress import Reached
from draindown.lake.layout import FlowLayout
from draindown.ledger import rows as ledger_rows
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow


def close(layout: FlowLayout, row: BatchRow, reached: Reached) -> BatchRow:
    """Make the ledger row of the commit just made, after holding every fate against what the commit did.

    Raises TerminalError `ledger-does-not-add-up`.
    """
    reached("merged")
    commit = ledger_table.last_commit(layout.table)
    found = ledger_rows.closed(commit)
    if found is None or found.place != row.place:
        raise ledger_rows.not_adding_up(row, [f"version {commit.version} of the table is not this batch's commit"])
    ledger_table.record(layout, [found])
    reached("recorded")
    return found


def stamp_after(last: datetime | None, now: datetime) -> datetime:
    """A stamp for the next batch's rows: now, but always later than every earlier stamp, whatever the clock does."""
    return now if last is None or now > last else last + timedelta(microseconds=1)
