"""The part of a drain's report that is derived from the ledger: committed batches and the share of
refused records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from draindown.base.findings import Finding
from draindown.flow import refused_share
from draindown.ledger import rows as ledger_rows
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.runs.report import DrainPart
from draindown.runs.request import Request
from draindown.sources.registry import source_of


def part(
    request: Request, generation: int, rows: Iterable[BatchRow], **more: Any
) -> tuple[DrainPart, list[Finding]]:
    """Return the report part about batches that this start committed or found committed, and
    refused-row findings.

    `rows`: ledger rows of these batches. Batches that an earlier start committed before it died are
    `settled`. `more`: the other fields of the part.
    """
    rows = list(rows)
    own = [row for row in rows if row.start == request.start]
    of_run = ledger_table.of_run(request.layout, request.run_id)
    state, findings = refused_share.told(request.declared, request.layout, of_run)
    found = DrainPart(
        generation=generation,
        unit=source_of(request).unit,
        batches=[row.as_dict() for row in own],
        settled=[row.as_dict() for row in rows if row.start != request.start],
        totals=ledger_rows.total(own),
        refused_share=ledger_rows.refused_share(own),
        refused=state,
        sinks=ledger_rows.sink_totals(own),
        **more,
    )
    return found, findings
