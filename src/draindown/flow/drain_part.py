"""The part of a drain's report that is derived from the ledger: committed batches and the share of
quarantined records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from draindown.base.findings import Finding
from draindown.flow import quarantined_share
from draindown.ledger import rows as ledger_rows
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.runs.report import DrainPart
from draindown.runs.request import Request
from draindown.sources.registry import source_of


def part(
    request: Request, generation: int, rows: Iterable[BatchRow], **others: Any
) -> tuple[DrainPart, list[Finding]]:
    """Return the drain's part of the report, and findings about quarantined rows.

    `rows`: ledger rows of the batches that this start committed, and of those that an earlier start
    committed before it died, which are `settled`. `others`: the other fields of the part.
    """
    rows = list(rows)
    own = [row for row in rows if row.attempt == request.start]
    settled = [row for row in rows if row.attempt != request.start]
    of_run = ledger_table.of_run(request.layout, request.run_id)
    verdict, findings = quarantined_share.told(request.declared, request.layout, of_run)
    drain = DrainPart(
        generation=generation,
        unit=source_of(request).unit,
        batches=[row.as_dict() for row in own],
        settled=[row.as_dict() for row in settled],
        totals=ledger_rows.total(own),
        quarantined_share=ledger_rows.quarantined_share(own),
        over_limit=verdict,
        sinks=ledger_rows.sink_totals(own),
        **others,
    )
    return drain, findings
