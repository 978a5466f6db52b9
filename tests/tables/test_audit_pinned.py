"""The audit of a flow without raw files: inputs against what was pinned, with and without accepted
losses.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.audit.recount import audit
from draindown.ledger import inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.kafka import accepted, positions
from draindown.sources.kafka.offsets import Loss, Span
from tests.flowfiles import AT, ORIGIN, about, count_as_spark

SOURCE = {"kafka": {"topics": ["t"], "bootstrap_servers": "h:1"}, "format": "json"}
SLICES = [[Span("t", 0, "x", 0, 4), Span("t", 1, "x", 7, 9)], [Span("t", 0, "x", 4, 6)]]
READ = [[Input("t/0", 0, 4, 400, 4), Input("t/1", 7, 9, 200, 2)], [Input("t/0", 4, 6, 200, 2)]]
LOST = Span("t", 0, "x", 0, 2)


def flow(root: Path, read: list[list[Input]], *, held: list[int] | None = None) -> Request:
    """A flow that appended its two slices. `held`: offsets of the last row of each batch, if not as
    read.
    """
    asked = about(root, {"source": SOURCE, "columns": {"n": "int"}, "target": {}})
    intake.create(asked.layout, 1, positions.OWN)
    for number, spans in enumerate(SLICES, 1):
        rows = positions.rows(spans, record_bytes=100.0, oldest={}, now=AT, compacted=())
        intake.append(asked.layout, 1, positions.OWN, rows, AT, number)
    for batch, some in enumerate(read):
        _batch(asked, batch, some, None if held is None else held[batch])
    return asked


def _batch(asked: Request, batch: int, read: list[Input], last: int | None) -> None:
    places = [(one.unit, at) for one in read for at in range(one.until - one.records, one.until)]
    places[-1:] = [(places[-1][0], places[-1][1] if last is None else last)]
    origins = [{"input": unit, "position": at} for unit, at in places]
    sums = {
        "bytes": sum(one.bytes for one in read),
        "records": len(places),
        "inserted": len(places),
    }
    row = BatchRow("p", "f", 1, batch, "r", slice=batch + 1, inputs=len(read), **sums)
    at = AT + timedelta(seconds=batch)
    row = replace(row, changed_at=at, started_at=at, finished_at=at)
    inputs.record(asked.layout, row, read)
    known = CommitProperties(
        custom_metadata={"userMetadata": row.as_metadata()},
        app_transactions=[Transaction(asked.layout.app_id(1, "rows"), batch)],
    )
    stamps = pa.array([at] * len(places), pa.timestamp("us", "UTC"))
    n = pa.array([1] * len(places), pa.int32())
    rows = pa.table({"n": n, "_origin": pa.array(origins, ORIGIN), "_changed_at": stamps})
    write_deltalake(asked.layout.tables.target.path, rows, mode="append", commit_properties=known)
    count_as_spark(asked.layout.tables.target.path)
    ledger_table.record(
        asked.layout, [replace(row, table_version=asked.layout.tables.target.version)]
    )


def kinds(asked: Request) -> list[str]:
    return sorted(one.kind for one in audit(asked.spec, "f", root=Path(asked.root)).residues)


def test_inputs_are_what_was_pinned(tmp_path: Path) -> None:
    assert kinds(flow(tmp_path, READ)) == []


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (Input("t/0", 1, 4, 400, 3), ["inputs-unit"]),
        (Input("t/0", 0, 5, 400, 4), ["double-origin", "inputs-unit"]),
        (Input("t/2", 0, 4, 400, 4), ["inputs-unit", "inputs-unit", *["origin-from-nowhere"] * 4]),
    ],
    ids=["less", "more", "another"],
)
def test_an_input_that_is_not_what_was_pinned_is_named(
    tmp_path: Path, wrong: Input, found: list[str]
) -> None:
    assert kinds(flow(tmp_path, [[wrong, READ[0][1]], READ[1]])) == found


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (Input("t/0", 2, 4, 400, 2), []),
        (READ[0][0], []),
        (Input("t/0", 3, 4, 400, 1), ["inputs-unit"]),
    ],
    ids=["before the batch", "after it", "and more is missing"],
)
def test_what_was_given_up_as_lost_need_not_be_read(
    tmp_path: Path, read: Input, found: list[str]
) -> None:
    asked = flow(tmp_path, [[read, READ[0][1]], READ[1]])
    accepted.accept(asked.layout, [Loss("offsets-lost", LOST, "")], by="me", note="aged out", at=AT)
    assert kinds(asked) == found


def test_a_slice_that_is_given_up_whole_leaves_no_input(tmp_path: Path) -> None:
    asked = flow(tmp_path, [[READ[0][1]], READ[1]])
    assert kinds(asked) == ["inputs-unit"]
    accepted.accept(
        asked.layout, [Loss("offsets-lost", SLICES[0][0], "")], by="me", note="aged out", at=AT
    )
    assert kinds(asked) == []


def test_an_offset_that_is_there_twice_is_named(tmp_path: Path) -> None:
    assert kinds(flow(tmp_path, READ, held=[8, 4])) == ["double-origin"]
