"""The audit of input that is no files: what each batch pinned, against the ledger and what was pinned before.

The records themselves are at their source, which is not asked: it may not have them any more.
"""

from __future__ import annotations

from draindown.audit.context import AuditContext, of_source, where_of
from draindown.base.formatting import count
from draindown.lake.table_log import TableLog
from draindown.ledger.rows import BatchRow


def pinned_against_ledger(context: AuditContext) -> None:
    """Add a residue for every batch with more records than it pinned, and for every gap or overlap between slices."""
    batches = of_source(context)
    for generation in sorted({batch.generation for batch in batches}):
        rows = TableLog(context.layout.intake_of(generation)).rows(
            "select slice, unit, start, until, topic_id from t order by slice"
        )
        _against_ledger(context, [batch for batch in batches if batch.generation == generation], rows)
        _in_order(context, generation, rows)
    records = sum(batch.records for batch in batches)
    context.unlooked.append(f"the raw text of {count(records, 'record')}: it is at the source, which is not asked")


def _against_ledger(context: AuditContext, batches: list[BatchRow], rows: list[dict[str, object]]) -> None:
    sizes: dict[object, int] = {}
    for row in rows:
        sizes[row["slice"]] = sizes.get(row["slice"], 0) + int(str(row["until"])) - int(str(row["start"]))
    for batch in batches:
        if batch.cut not in sizes:
            context.expect("ledger-files", where_of(batch), f"slice {batch.cut} in the intake", "none")
        elif batch.records > sizes[batch.cut]:
            found = f"{batch.records} records"
            context.expect(
                "recount-records", where_of(batch), f"at most {sizes[batch.cut]} records", found, "pinned offsets"
            )


def _in_order(context: AuditContext, generation: int, rows: list[dict[str, object]]) -> None:
    """Each range begins where the one before it ended, unless the topic is another one or a loss was accepted."""
    ends: dict[object, int] = {}
    for row in rows:
        log, start = (row["unit"], row["topic_id"]), int(str(row["start"]))
        if start < ends.get(log, start):
            where = f"generation {generation}, slice {row['slice']}, {row['unit']}"
            context.expect("intake-double-file", where, f"from {ends[log]} on", f"from {start} on", "pinned twice")
        ends[log] = int(str(row["until"]))
