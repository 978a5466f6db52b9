"""What a person should know of a lookup's batch: rows that found nothing, and changed rows that
touch very many.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.ledger.rows import BatchRow
from draindown.spark.derived.batch import DeriveBatch
from draindown.spark.derived.difference import DELETE, Counts
from draindown.spark.derived.images import NET
from draindown.spark.derived.kind import Kind

MANY, TIMES = 10_000, 100
"""A batch that touches at least so many keys, and so many for each changed row, tells which row it
is.
"""


def missed(batch: DeriveBatch, counts: Counts) -> None:
    """Tell how many of the recomputed rows found no row in the table that they look up."""
    lookup = batch.flow.lookup
    if lookup is None or not counts.missed:
        return
    rows = sum(number for fate, number in counts.keys.items() if fate != DELETE)
    when = f" at its {lookup.time}" if lookup.time else ""
    found = f"of {count(rows, 'row')} recomputed"
    found += f", which have no row in table {lookup.table}{when}: {lookup.found} is false"
    layout = batch.writer.layout
    where = f"draindown report {layout.pipeline}/{layout.flow}"
    batch.note(
        Finding(kind="lookup-missed", subject=count(counts.missed, "row"), detail=found, next=where)
    )


def amplified(
    batch: DeriveBatch,
    kind: Kind,
    row: BatchRow,
    netted: Sequence[DataFrame],
    sources: Sequence[DataFrame],
) -> None:
    """Tell which changed row touches the most keys, where a batch touches very many for each
    changed row.
    """
    touched = row.recomputed
    if touched < MANY or touched < TIMES * max(1, row.used):
        return
    for relation, rows, table in zip(kind.relations, netted, batch.flow.source.read, strict=True):
        hottest = relation.hottest(rows.where(F.col(NET) != 0), sources)
        if hottest is not None:
            who, number = hottest
            told = f"touch {count(touched, 'row')}, all of them recomputed; {who} of table {table} alone {number:,}"
            subject = count(row.used, "changed row")
            batch.note(Finding(kind="lookup-amplified", subject=subject, detail=told, next=""))
