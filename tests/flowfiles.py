"""A small flow as a drain leaves it, made without Spark: two files, two cuts, two batches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.config.models import PipelineSpec
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.ledger import inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow
from draindown.runs.request import Request
from draindown.sources.batch_size import bound_for
from draindown.sources.port import Progress, Source, Taken
from draindown.sources.registry import source_of

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORIGIN = pa.struct([("input", pa.string()), ("position", pa.int64())])
REFUSED = pa.schema(
    [
        (name, pa.string())
        for name in ("quarantine_id", "raw", "reason", "field", "detail", "kind", "run_id")
    ]
    + [(name, pa.int64()) for name in ("raw_length", "batch")]
    + [
        ("origin", ORIGIN),
        ("generation", pa.int32()),
        ("raw_bytes", pa.binary()),
        ("envelope", pa.string()),
    ]
    + [(name, pa.timestamp("us", "UTC")) for name in ("arrived_at", "first_seen", "quarantined_at")]
)
"""Of the quarantine."""


def places(*positions: int, unit: str = "x") -> pa.Array:
    """The column `origin` of quarantined rows."""
    return pa.array([{"input": unit, "position": position} for position in positions], ORIGIN)


def about(root: Path, flow: Mapping[str, Any], **more: Any) -> Request:
    """A request about flow `f` of pipeline `p` under `root`, as written there."""
    spec = PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(root / "lake"), "flows": {"f": flow}}
    )
    return Request(
        **{"spec": spec, "flow": "f", "step": "drain", "run_id": "r", "root": str(root)} | more
    )


def waiting(root: Path, **source: Any) -> Request:
    """A request about a flow of JSON files in `in`, which is there and empty."""
    (root / "in").mkdir(exist_ok=True)
    return about(
        root,
        {"source": {"files": "in/*.json*", "format": "json"} | source, "columns": {"a": "int"}},
    )


def request(root: Path, *, keyed: bool = True, **more: Any) -> Request:
    """A request about a flow of files that are drained one by one."""
    target = {"keys": ["id"], "sequence_by": ["n"]} if keyed else {}
    source = {"files": "in/*", "format": "json", "max_files_per_trigger": 1}
    flow = {
        "source": source,
        "columns": {"id": "string not null", "n": "int not null"},
        "target": target,
    }
    return about(root, flow, **more)


def table_of(layout: FlowHome, name: str) -> str:
    """The path of one of a flow's tables in its first generation."""
    if name == "intake":
        return layout.tables.intake(1).path
    return str(getattr(layout.tables, "target" if name == "table" else name).path)


def rows_read(patch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each query over a Delta table gives from now on, in a list that grows."""
    read: list[int] = []
    query = Table.query

    def counted(log: Table, sql: str, *beside: Any) -> pa.Table:
        found = query(log, sql, *beside)
        read.append(found.num_rows)
        return found

    patch.setattr(Table, "query", counted)
    return read


def take_in(
    asked: Request,
    *,
    heap_bytes: int,
    now: datetime,
    source: Source | None = None,
    progress: Progress | None = None,
) -> Taken:
    """Pin all that is new, as a drain does where that is little."""
    with closing((source or source_of(asked)).pin(1, now, progress)) as pinning:
        pinning.take(bound_for(asked.flow_spec.source, heap_bytes))
        return pinning.taken


def drained(root: Path, *, keyed: bool = True) -> Request:
    """The request of a flow that drained two files."""
    asked = request(root, keyed=keyed)
    (root / "in").mkdir()
    for number in (0, 1):
        (root / "in" / f"{number}.json").write_text(json.dumps({"id": str(number), "n": 1}) + "\n")
    take_in(asked, heap_bytes=1024**3, now=AT)
    write_deltalake(asked.layout.tables.target.path, _rows().slice(0, 0))
    for number in (0, 1):
        commit(asked, number)
    checkpoint(asked, 1, offsets=2, commits=2)
    return asked


def commit(
    asked: Request, batch: int, *, generation: int = 1, recorded: bool = True, **more: Any
) -> None:
    """One batch in the target and, if `recorded`, in the ledger."""
    layout = asked.layout
    file = Path(asked.root, "in", f"{batch}.json")
    size = file.stat().st_size if file.exists() else 0
    counts: dict[str, Any] = {
        "run_id": "r",
        "inputs": 1,
        "bytes": size,
        "records": 1,
        "inserted": 1,
    }
    row = BatchRow("p", "f", generation, batch, slice=batch + 1, **(counts | more))
    row = replace(row, changed_at=AT, started_at=AT, finished_at=AT)
    if row.kind == "drain" and row.inputs:
        inputs.record(
            layout, row, [Input(str(file), 0, max(row.records, 1), row.bytes, row.records)]
        )
    known = CommitProperties(
        custom_metadata={"userMetadata": row.as_metadata()},
        app_transactions=[Transaction(layout.app_id(generation, "rows"), batch)],
    )
    rows = _rows(batch).slice(0, None if row.inserted else 0)
    write_deltalake(layout.tables.target.path, rows, mode="append", commit_properties=known)
    count_as_spark(layout.tables.target.path)
    if recorded:
        ledger_table.record(layout, [replace(row, table_version=layout.tables.target.version)])


def count_as_spark(path: str) -> None:
    """Name the rows of a table's newest commit as Spark names them; deltalake names them
    otherwise.
    """
    log = Path(path, "_delta_log", f"{Table(path).version:020}.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        metrics = action.get("commitInfo", {}).get("operationMetrics", {})
        if "num_added_rows" in metrics:
            metrics["numOutputRows"] = str(metrics["num_added_rows"])
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


def checkpoint(asked: Request, generation: int, *, offsets: int, commits: int) -> Path:
    """A checkpoint as Spark leaves it."""
    home = Path(asked.layout.checkpoint(generation))
    for kind in ("offsets", "commits"):
        (home / kind).mkdir(parents=True, exist_ok=True)
    (home / "metadata").write_text('{"id":"x"}')
    for batch in range(offsets):
        end = {
            "reservoirId": asked.layout.tables.intake(1).id,
            "reservoirVersion": batch + 2,
            "index": -1,
        }
        (home / f"offsets/{batch}").write_text(f"v1\n{{}}\n{json.dumps(end)}")
    for batch in range(commits):
        (home / f"commits/{batch}").write_text("v1\n{}")
    return home


def alter(
    path: str, operation: str, *actions: Mapping[str, Any], note: str = "", **parameters: Any
) -> None:
    """Commit actions of metadata or protocol to a table, as another engine does."""
    newest = max(int(commit.stem) for commit in Path(path, "_delta_log").glob("*.json"))
    log = Path(path, "_delta_log", f"{newest + 1:020}.json")
    told = {
        "timestamp": int(AT.timestamp() * 1000),
        "operation": operation,
        "operationParameters": parameters,
    }
    told |= {"userMetadata": note} if note else {}
    lines = [{"commitInfo": told | {"engineInfo": "Another-Engine/1.0"}}, *actions]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


def require(path: str, feature: str, *, of_readers: bool) -> None:
    """Add a feature to a table's protocol."""
    known = DeltaTable(path).protocol()
    readers = sorted({*(known.reader_features or ()), *([feature] if of_readers else [])})
    writers = sorted({*(known.writer_features or ()), *readers, feature})
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": readers,
        "writerFeatures": writers,
    }
    alter(path, "SET TBLPROPERTIES", {"protocol": protocol})


def restore(asked: Request, version: int) -> None:
    """What RESTORE TABLE does."""
    DeltaTable(asked.layout.tables.target.path).restore(version)


def clean_log(asked: Request, since: int | None = None) -> None:
    """Do what Delta does once commits are old: only those from a version on stay; by default one
    that wrote nothing.
    """
    table = DeltaTable(asked.layout.tables.target.path)
    table.alter.set_table_properties({"x.y": "z"}, raise_if_not_exists=False)
    table.create_checkpoint()
    oldest = table.version() if since is None else since
    if since is not None:
        DeltaTable(asked.layout.tables.target.path, version=since).create_checkpoint()
    for log in Path(asked.layout.tables.target.path, "_delta_log").glob("*.json"):
        if int(log.stem) < oldest:
            log.unlink()


def foreign(asked: Request) -> None:
    """Somebody's own write to the target."""
    write_deltalake(asked.layout.tables.target.path, _rows(9), mode="append")


def _rows(number: int = 0) -> pa.Table:
    return pa.table({"id": [str(number)], "n": pa.array([1], pa.int32()), "_changed_at": [AT]})


def stamp(table: Path, version: int, row: BatchRow, operation: str) -> None:
    """Make a commit look as Spark's: operation, metrics, and the batch in `userMetadata`."""
    log = table / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    names = {
        "numTargetRowsInserted": row.inserted,
        "numTargetRowsUpdated": row.updated,
        "numTargetRowsDeleted": row.deleted,
    }
    metrics = {k: str(v) for k, v in (names | {"numOutputRows": row.inserted}).items()}
    for action in actions:
        if "commitInfo" in action:
            done = {
                "operation": operation,
                "operationMetrics": metrics,
                "userMetadata": row.as_metadata(),
            }
            action["commitInfo"] |= done
    log.write_text("\n".join(json.dumps(action) for action in actions))
