"""A landing flow of JSON files as drains leave it, without Spark: table, tombstones, quarantine,
inputs, ledger.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.config.models import PipelineSpec
from draindown.flow import quarantine
from draindown.lake.home import FlowHome
from draindown.ledger import inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.intake import record_id
from tests.flowfiles import AT, REFUSED, checkpoint, count_as_spark, take_in
from tests.model import Change, fate, newest

COLUMNS = {
    "id": "string not null",
    "n": "int not null",
    "op": "string",
    "g": "string",
    "at": "timestamp",
    "v": "int",
}
FLOW = {
    "source": {"files": "in/*.json", "format": "json"},
    "columns": COLUMNS,
    "target": {"keys": ["id"], "sequence_by": ["n"], "apply_as_deletes": "op = 'd'"},
}
_UTC = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema(
    [
        *(
            ("id", pa.string()),
            ("n", pa.int32()),
            ("op", pa.string()),
            ("g", pa.string()),
            ("at", _UTC),
        ),
        *(("v", pa.int32()), ("_arrived_at", _UTC), ("_changed_at", _UTC)),
    ]
)
_TOMBSTONES = pa.schema(
    [
        *(
            ("id", pa.string()),
            ("n", pa.int32()),
            ("_generation", pa.int32()),
            ("_batch", pa.int64()),
        ),
        *(("_kind", pa.string()), ("_changed_at", _UTC)),
    ]
)


@dataclass(frozen=True)
class Told:
    """A record as the lake's maker knows it: its file and line, its change; None for one that is
    refused.
    """

    file: Path
    line: int
    record: Mapping[str, Any] | None
    change: Change | None
    batch: int


class LandedLake:
    """Flow `f` of pipeline `p`, with derived flows beside it, in a project of its own."""

    def __init__(self, home: Path, **derived: Any) -> None:
        self.home = home
        self.document = {
            "pipeline": "p",
            "lake": str(home / "lake"),
            "flows": {"f": FLOW, **derived},
        }
        self.spec = PipelineSpec.model_validate(self.document)
        self.told: list[Told] = []
        self.rows: dict[str, dict[str, Any]] = {}
        self._batch = self._files = self._replays = 0
        (home / "in").mkdir(parents=True)
        path = home / "dags" / "pipelines" / "p.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(self.document))

    @property
    def layout(self) -> FlowHome:
        return self.spec.layout("f")

    @property
    def request(self) -> Request:
        return Request(spec=self.spec, flow="f", step="drain", run_id="r", root=str(self.home))

    def deliver(self, lines: Sequence[str]) -> Path:
        """Put a file into the landing directory."""
        self._files += 1
        path = self.home / "in" / f"{self._files:03}.json"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def drain(self, *files: Sequence[str]) -> None:
        """Deliver files and write what one batch over them leaves."""
        paths = [self.deliver(lines) for lines in files]
        take_in(self.request, heap_bytes=1024**3, now=AT)
        pinned = intake.newest(self.layout, 1)
        assert pinned == self._batch + 1, "the files make one slice"
        mine = [told for path in paths for told in self._read(path)]
        before = {
            key: [one.change for one in self.told if one.change and one.change.key == key]
            for key in _keys(mine)
        }
        stamp, fates = AT + timedelta(minutes=self._batch), Counter[str]()
        dead: list[Change] = []
        for key, earlier in before.items():
            own = [one for one in mine if one.change and one.change.key == key]
            best = newest(one.change for one in own if one.change)
            assert best is not None
            what = fate(best, [one for one in earlier if one])
            fates[what] += 1
            equal = sum(one.change == best for one in own) - 1
            fates["duplicate"] += equal
            fates["superseded"] += len(own) - 1 - equal
            if what in ("insert", "update"):
                self.rows[str(key[0])] = {
                    **best.content,
                    "id": key[0],
                    "n": best.sequence,
                    "_changed_at": stamp,
                }
            if best.delete and what in ("delete", "remember"):
                self.rows.pop(str(key[0]), None)
                dead.append(best)
        self.told += mine
        refused = [one for one in mine if one.change is None]
        self._write(paths, mine, refused, dead, fates, stamp)
        self._batch += 1
        checkpoint(self.request, 1, offsets=self._batch, commits=self._batch)

    def withdraw(self, key: str, expectation: str = "sane") -> None:
        """Take the row of a key out, as the gate does on somebody's word."""
        layout, stamp = self.layout, AT + timedelta(minutes=self._batch, seconds=30)
        row = self.rows.pop(key)
        kept = {
            name: row[name]
            for name in ("id", "n", "op", "g", "at", "v")
            if row.get(name) is not None
        }
        refused = {"quarantine_id": f"withdrawn {key}", "raw": json.dumps(kept), "kind": "withdraw"}
        refused |= {"reason": f"gate:{expectation}"}
        refused |= {
            "origin": {"input": layout.tables.target.path, "position": 1},
            "generation": 1,
            "batch": 0,
            "quarantined_at": stamp,
        }
        by = CommitProperties(
            app_transactions=[Transaction(layout.app_id(1, "quarantine", "withdraw"), 0)]
        )
        table = pa.Table.from_pylist([refused], schema=REFUSED)
        write_deltalake(layout.tables.quarantine.path, table, mode="append", commit_properties=by)
        told = BatchRow(
            *("p", "f", 1, 0),
            run_id="gate",
            kind="withdraw",
            records=1,
            deleted=1,
            changed_at=stamp,
        )
        self._overwrite(told)

    def release(self, id: str, row: dict[str, Any]) -> None:
        """Put a refused or withdrawn row into the table, as a replay of the quarantine does."""
        self._replays += 1
        stamp = AT + timedelta(minutes=self._batch, seconds=45, microseconds=self._replays)
        self.rows[row["id"]] = {**row, "_changed_at": stamp}
        run = f"release {self._replays}"
        told = BatchRow(
            *("p", "f", 1, self._replays), run_id=run, kind="release", records=1, inserted=1
        )
        self._overwrite(replace(told, changed_at=stamp, started_at=stamp, finished_at=stamp))
        quarantine.release(self.layout, [id], by="me", run_id=run)

    def _overwrite(self, row: BatchRow) -> None:
        """Commit a batch to the target, with all rows that it leaves, and record it."""
        layout = self.layout
        known = CommitProperties(
            custom_metadata={"userMetadata": row.as_metadata()},
            app_transactions=[
                Transaction(layout.app_id(row.generation, "rows", row.kind), row.batch)
            ],
        )
        rows = [_timed({**one, "_arrived_at": AT}) for one in self.rows.values()]
        table = pa.Table.from_pylist(rows, schema=_SCHEMA)
        write_deltalake(layout.tables.target.path, table, mode="overwrite", commit_properties=known)
        count_as_spark(layout.tables.target.path)
        ledger_table.record(layout, [replace(row, table_version=layout.tables.target.version)])

    def _read(self, path: Path) -> list[Told]:
        found = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                change = None
                if isinstance(record.get("n"), int):
                    content = {name: record.get(name) for name in ("op", "g", "at", "v")}
                    change = Change((record["id"],), record["n"], record.get("op") == "d", content)
            except ValueError:
                record = change = None
            found.append(Told(path, number, record, change, self._batch))
        return found

    def _write(
        self,
        paths: list[Path],
        mine: list[Told],
        refused: list[Told],
        dead: list[Change],
        fates: Counter[str],
        stamp: Any,
    ) -> None:
        layout = self.layout
        row = BatchRow(
            *("p", "f", 1, self._batch),
            run_id=f"run {self._batch}",
            slice=self._batch + 1,
            inputs=len(paths),
            bytes=sum(path.stat().st_size for path in paths),
            records=len(mine),
            quarantined=len(refused),
            superseded=fates["superseded"],
            duplicate=fates["duplicate"],
            inserted=fates["insert"],
            updated=fates["update"],
            deleted=fates["delete"],
            tombstoned=fates["remember"],
            reasons={"type": len(refused)} if refused else {},
            changed_at=stamp,
            started_at=stamp,
            finished_at=stamp,
        )
        inputs.record(layout, row, [self._input(path, mine) for path in paths])
        if refused:
            self._quarantine(refused, stamp)
        if dead:
            held = [
                {"id": one.key[0], "n": one.sequence, "_generation": 1, "_batch": self._batch}
                for one in dead
            ]
            told = [one | {"_kind": "drain", "_changed_at": stamp} for one in held]
            write_deltalake(
                layout.tables.tombstones.path,
                pa.Table.from_pylist(told, schema=_TOMBSTONES),
                mode="append",
            )
        self._overwrite(row)

    @staticmethod
    def _input(path: Path, mine: list[Told]) -> Input:
        lines = len(path.read_text().splitlines())
        return Input(
            str(path), 0, lines, path.stat().st_size, sum(one.file == path for one in mine)
        )

    def _quarantine(self, refused: list[Told], stamp: Any) -> None:
        rows = []
        for one in refused:
            raw = one.file.read_text().splitlines()[one.line - 1]
            rows.append(
                {
                    "quarantine_id": record_id(str(one.file), one.line),
                    "origin": {"input": str(one.file), "position": one.line},
                    "raw": raw,
                    "raw_length": len(raw.encode()),
                    "reason": "malformed" if one.record is None else "type",
                    "field": None if one.record is None else "n",
                    "generation": 1,
                    "batch": one.batch,
                    "kind": "drain",
                    "run_id": f"run {one.batch}",
                    "quarantined_at": stamp,
                }
            )
        write_deltalake(
            self.layout.tables.quarantine.path,
            pa.Table.from_pylist(rows, schema=REFUSED),
            mode="append",
        )


def _keys(mine: Sequence[Told]) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(one.change.key for one in mine if one.change))


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    at = row.get("at")
    return {**row, "at": datetime.fromisoformat(at) if isinstance(at, str) else at}
