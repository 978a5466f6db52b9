"""What the batches before resolved their rows by, for strategies whose next batch must do it the same way."""

from __future__ import annotations

import json

from draindown.lake.table_log import TableLog
from draindown.lake.transactions import app_id
from draindown.ledger import table as ledger_table
from draindown.spark.targets.delta_target import Writer


def last_definition(writer: Writer, form: str) -> dict[str, list[str]] | None:
    """Return what the newest batch wrote down, if it is of this form and the table is the one that it wrote to.

    None otherwise: after a reset that put the table aside, nothing is in the new one yet.
    """
    layout = writer.layout
    last = next(iter(ledger_table.recent(layout, 1)), None)
    if last is None or last.form != form or not last.history:
        return None
    if TableLog(layout.table).last(app_id(layout, last.generation, "rows")) is None:
        return None
    found: dict[str, list[str]] = json.loads(last.history)
    return found
