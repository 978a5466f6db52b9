"""Replay of refused rows: a batch of its own in the ledger, beside the stream, under the same lease.

What is refused again stays open in the quarantine. The rows to be released are written down before the MERGE, so that
a crash after it can't leave rows open that are applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

from draindown import checkpoint, known, ledger, ledger_table, quarantine, report, tables
from draindown.errors import TerminalError
from draindown.lease import Lease
from draindown.replays import settle
from draindown.report import DrainPart, StepReport, now, write_json
from draindown.request import Request
from draindown.spark import transforms
from draindown.spark.batch import Batch, process, stamp_after
from draindown.spark.target import Writer

MOST = 100_000
"""Rows of one replay: they pass through the driver."""


def replay(request: Request, spark: SparkSession) -> StepReport:
    """Run `request.quarantine_ids` through today's contract and apply what it lets through. Idempotent.

    Raises TransientError `lease-held`; TerminalError `rows-not-whole` and whatever a drain raises.
    """
    started, layout = now(), request.layout
    with Lease(layout, owner=request.owner, run_id=request.run_id) as lease:
        lease.hand_to_jvm(spark._jvm)
        settle(layout, by=request.owner)
        generation = checkpoint.generation(layout)
        rows = _chosen(request)
        done = []
        if rows:
            batch = _batch(request, spark, generation, rows, started)
            done = [process(spark, batch)]
            settle(layout, by=request.owner)
    part = DrainPart(
        generation=generation,
        bound="quarantined rows, as chosen",
        batches=[row.as_dict() for row in done],
        totals=ledger.total(done),
    )
    return report.of(request, started, "done" if rows else "idle", drain=part)


def _chosen(request: Request) -> list[dict[str, Any]]:
    wanted = request.quarantine_ids or ()
    if len(wanted) > MOST:
        raise TerminalError(
            "too-many-rows",
            tried=f"replay {len(wanted):,} refused rows",
            found=f"at most {MOST:,} go into one replay",
            next=f"draindown quarantine replay {request.spec.pipeline} --reason REASON",
        )
    if not wanted:
        return []
    rows = quarantine.whole(request.layout, wanted)
    cut = [row for row in rows if row["value"] is None]
    if cut:
        raise TerminalError(
            "rows-not-whole",
            tried=f"replay {len(rows)} refused rows of flow {request.flow}",
            found=f"{len(cut)} of them are longer than quarantine keeps, "
            f"the first at {cut[0]['file']}:{cut[0]['position']}",
            next="deliver these records again in a new file, and leave their ids out of the replay",
        )
    return rows


def _batch(
    request: Request, spark: SparkSession, generation: int, rows: Sequence[Mapping[str, Any]], started: datetime
) -> Batch:
    writer = Writer(request.layout, request.flow_spec, generation, 0, origin="quarantine")
    last = tables.transaction_version(request.layout.table, writer.app("rows"))
    writer = Writer(
        request.layout, request.flow_spec, generation, 1 + (-1 if last is None else last), origin="quarantine"
    )
    newest = ledger_table.recent(request.layout, 1)
    dotted = request.flow_spec.transform
    ids = [row["quarantine_id"] for row in rows]

    def keep_open(refused: Sequence[int]) -> None:
        still = set(refused)
        released = [known_id for at, known_id in enumerate(ids) if at not in still]
        content = {"app": writer.app("rows"), "batch": writer.batch, "run_id": request.run_id, "ids": released}
        write_json(request.layout.replaying, content)

    return Batch(
        writer=writer,
        run_id=request.run_id,
        first_seen=max(row["first_seen"] for row in rows),
        changed_at=stamp_after(newest[-1].changed_at if newest else None, started),
        started_at=started,
        lines=_lines(spark, request, rows),
        transform=transforms.load(request.root, dotted) if dotted else None,
        keep_open=keep_open,
    )


def _lines(
    spark: SparkSession, request: Request, rows: Sequence[Mapping[str, Any]]
) -> list[tuple[DataFrame, str | None]]:
    """The rows as lines, one frame per CSV header they came under. `_id` is the row's place among the chosen."""
    headers = known.headers(request.layout) if request.flow_spec.source.format == "csv" else {}
    numbered = sorted(enumerate(rows), key=lambda row: headers.get(row[1]["file"]) or "")
    frames = []
    for header, group in groupby(numbered, key=lambda row: headers.get(row[1]["file"])):
        data = [(row["value"], "file:" + quote(row["file"]), 0, at) for at, row in group]
        frame = spark.createDataFrame(data, "value binary, _file string, _block long, _id long")
        frames.append((frame.selectExpr("cast(value as string) as value", "_file", "_block", "_id"), header))
    return frames
