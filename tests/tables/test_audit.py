"""The audit finds each number and row that was made wrong, by name, and nothing where all is
right.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.audit import columnar
from draindown.audit.cells import unlike
from draindown.audit.keys import KeyRecount, made_by
from draindown.audit.model import Audit
from draindown.audit.raw import lines
from draindown.audit.recount import audit
from draindown.base.errors import TerminalError, TransientError
from draindown.config.landing import FlowSpec
from draindown.config.lease import LeaseSpec
from draindown.config.models import PipelineSpec
from draindown.flow import integrity
from draindown.flow.quarantine import RESOLUTIONS
from draindown.ledger import inputs as ledger_inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow
from draindown.recovery import reset as recovery_reset
from draindown.recovery.opening import lease_of
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.files import catalog
from tests import spark_orc
from tests.flowfiles import ORIGIN, REFUSED, clean_log, commit, drained, restore, stamp

AT = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = (
    b'{"id": "a", "n": 1}\n{"id": "b", "n": 1}\r\n\n{"id": "c", "n\n{"id": "a", "n": 1}\n',
    b'{"id": "a", "n": 2}\n{"id": "b", "n": 3}\n{"id": "d", "n": 1}\r{"id": "d", "n": 0}\n{"id": "e", "n": 5}',
)


@dataclass
class World:
    """A flow that drained two files in two batches, every part of which a test may falsify before
    it is written.
    """

    root: Path
    keyed: bool = True
    contents: list[bytes] = field(default_factory=lambda: list(FIRST))
    target: list[tuple[str, int]] = field(default_factory=lambda: [("a", 2), ("d", 1)])
    tombstones: list[tuple[str, int]] = field(default_factory=lambda: [("b", 3), ("e", 5)])
    committed: list[BatchRow] = field(default_factory=list)
    projected: list[BatchRow] | None = None
    refused: list[dict[str, Any]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    intake: list[dict[str, Any]] = field(default_factory=list)
    columns: dict[str, str] = field(
        default_factory=lambda: {"id": "string not null", "n": "int not null"}
    )
    source: dict[str, Any] = field(default_factory=lambda: {"files": "in/*", "format": "json"})
    transform: str | None = None
    keys: list[str] = field(default_factory=lambda: ["id"])
    partition_by: list[str] = field(default_factory=list)
    origins: list[tuple[str, int]] = field(default_factory=list)
    added: set[str] = field(default_factory=set)
    misread: Callable[[list[dict[str, Any]]], object] = lambda inputs: None

    def __post_init__(self) -> None:
        for at, content in enumerate(self.contents):
            (self.root / f"{at}.json").write_bytes(content)
        self.intake = [self.taken(at, content) for at, content in enumerate(self.contents)]
        first = BatchRow(
            "p", "f", 1, 0, "r", slice=1, inputs=1, bytes=len(self.contents[0]), records=4
        )
        second = BatchRow(
            "p", "f", 1, 1, "r", slice=2, inputs=1, bytes=len(self.contents[1]), records=5
        )
        self.committed = [
            replace(first, quarantined=1, reasons={"malformed": 1}, duplicate=1, inserted=2),
            replace(second, superseded=1, inserted=1, updated=1, deleted=1, tombstoned=1),
        ]
        if not self.keyed:
            self.target = [
                ("a", 1),
                ("b", 1),
                ("a", 1),
                ("a", 2),
                ("b", 3),
                ("d", 1),
                ("d", 0),
                ("e", 5),
            ]
            self.committed = [
                replace(first, quarantined=1, reasons={"malformed": 1}, inserted=3),
                replace(second, inserted=5),
            ]
            self.origins = [(self.path(0), n) for n in (1, 2, 5)] + [
                (self.path(1), n) for n in range(1, 6)
            ]
        self.refused = [self.row(0, 4, '{"id": "c", "n')]

    @property
    def spec(self) -> PipelineSpec:
        target = {"keys": self.keys, "sequence_by": ["n"]} if self.keyed else {}
        target |= {"partition_by": self.partition_by}
        flow: dict[str, Any] = {"source": self.source, "columns": self.columns, "target": target}
        if self.transform:
            flow["transform"] = self.transform
        return PipelineSpec.model_validate(
            {"pipeline": "p", "lake": str(self.root / "lake"), "flows": {"f": flow}}
        )

    def path(self, at: int) -> str:
        return str(self.root / f"{at}.json")

    def taken(self, at: int, content: bytes) -> dict[str, Any]:
        raw = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        text = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").splitlines()
        facts = {
            "lines": len(text),
            "blank": sum(not line.strip() for line in text),
            "slice": at + 1,
        }
        row = {
            "input": self.path(at),
            "start": 0,
            "until": len(text),
            "bytes": len(content),
            "first_seen": AT,
            "unpacked": len(raw),
            "multiline": False,
        }
        return (
            row
            | facts
            | {"sha256": hashlib.sha256(content).hexdigest(), "mtime_ns": 1, "bom": False}
        )

    def row(self, at: int, position: int, raw: str, **more: Any) -> dict[str, Any]:
        place = {
            "quarantine_id": f"q{at}-{position}",
            "origin": {"input": self.path(at), "position": position},
        }
        what = {
            "raw": raw,
            "raw_bytes": None,
            "raw_length": len(raw),
            "reason": "malformed",
            "field": None,
        }
        run = {
            "generation": 1,
            "batch": at,
            "kind": "drain",
            "run_id": "r",
            "quarantined_at": AT,
            "first_seen": AT,
        }
        return place | what | run | {"detail": None} | more

    def inputs(self) -> list[dict[str, Any]]:
        """What each batch read: the file of its cut."""
        found = []
        for row in (row for row in self.committed if row.kind == "drain" and row.inputs):
            for file in {
                file["input"]: file for file in self.intake if file["slice"] == row.slice
            }.values():
                one = Input(file["input"], 0, file["until"], file["bytes"], row.records)
                found.append(ledger_inputs._flat(row.place, one))
        self.misread(found)
        return found

    def audit(self) -> Audit:
        """Write everything and audit it."""
        layout = self.spec.layout("f")
        self._write_target(layout.tables.target.path)
        if self.tombstones and self.keyed:
            write_deltalake(layout.tables.tombstones.path, _rows(self.tombstones))
        decided = [
            {"quarantine_id": i, "action": "released", "at": AT, "by": "me", "run_id": "r2"}
            for i in self.released
        ]
        rows = self.projected
        if rows is None:
            rows = [replace(row, table_version=at + 1) for at, row in enumerate(self.committed)]
        flat = [ledger_table._flat(row) for row in rows]
        for path, schema, content in (
            (
                layout.tables.intake(1).path,
                pa.schema([*intake.COLUMNS, *catalog.COLUMNS]),
                self.intake,
            ),
            (layout.tables.quarantine.path, REFUSED, self.refused),
            (layout.tables.resolutions.path, RESOLUTIONS, decided),
            (layout.tables.ledger.path, ledger_table.SCHEMA, flat),
            (layout.tables.inputs.path, ledger_inputs.SCHEMA, self.inputs()),
        ):
            if content:
                write_deltalake(path, pa.Table.from_pylist(content, schema))
        return audit(self.spec, "f", root=self.root)

    def _write_target(self, path: str) -> None:
        target = _rows(self.target)
        if not self.keyed:
            origins = [{"input": unit, "position": position} for unit, position in self.origins]
            target = target.append_column("_origin", pa.array(origins, ORIGIN))
        for name in self.columns.keys() - {*target.column_names, *self.added}:
            target = target.append_column(name, pa.nulls(len(target), pa.string()))
        write_deltalake(path, target.slice(0, 0))
        for at, row in enumerate(self.committed):
            last = at == len(self.committed) - 1
            write_deltalake(path, target.slice(0, None if last else 0), mode="overwrite")
            stamp(Path(path), at + 1, row, "MERGE" if self.keyed else "WRITE")

    def kinds(self) -> set[str]:
        return {residue.kind for residue in self.audit().residues}


def _rows(rows: list[tuple[str, Any]]) -> pa.Table:
    timed = bool(rows) and isinstance(rows[0][1], datetime)
    kind = pa.timestamp("us", "UTC") if timed else pa.int32()
    return pa.table(
        {
            "id": pa.array([r[0] for r in rows], pa.string()),
            "n": pa.array([r[1] for r in rows], kind),
        }
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_right_keyed_flow_is_clean(world: World) -> None:
    found = world.audit()
    assert found.residues == [] and found.unlooked == []
    assert found.clean and found.asdict()["clean"]
    assert found.seen["raw records"] == 9
    assert "clean" in str(found)


def test_a_right_append_flow_is_clean(tmp_path: Path) -> None:
    found = World(tmp_path, keyed=False).audit()
    assert found.residues == [] and found.unlooked == []


def test_a_flow_that_never_ran_cannot_be_audited(world: World) -> None:
    with pytest.raises(TerminalError) as caught:
        audit(world.spec, "f", root=world.root)
    assert caught.value.code == "nothing-to-audit"


def _ledger(at: int, **changes: Any) -> Callable[[World], None]:
    """Falsify a batch the same in commit and ledger: only a recount can tell."""

    def change(world: World) -> None:
        world.committed[at] = replace(world.committed[at], **changes)

    return change


def _misread(how: Callable[[list[dict[str, Any]]], object]) -> Callable[[World], None]:
    return lambda world: setattr(world, "misread", how)


def _input(at: int, **changes: Any) -> Callable[[World], None]:
    return _misread(lambda found: found[at].update(changes))


def _set(name: str, at: int, **changes: Any) -> Callable[[World], None]:
    def change(world: World) -> None:
        rows = getattr(world, name)
        rows[at] = rows[at] | changes

    return change


def _place(file: int | str, position: int) -> Callable[[World], None]:
    """Give the quarantined row another origin."""

    def change(world: World) -> None:
        unit = world.path(file) if isinstance(file, int) else file
        world.refused[0]["origin"] = {"input": unit, "position": position}

    return change


def _rows_are(name: str, *rows: tuple[str, int]) -> Callable[[World], None]:
    return lambda world: setattr(world, name, list(rows))


def _write(at: int, content: bytes) -> Callable[[World], None]:
    return lambda world: Path(world.path(at)).write_bytes(content) and None


FALSE: dict[str, tuple[Callable[[World], None], set[str]]] = {
    "records": (_ledger(0, records=5), {"ledger-fates", "recount-records"}),
    "records and a fate": (_ledger(0, records=5, duplicate=2), {"recount-records"}),
    "records of an input": (_input(0, records=3), {"ledger-records", "recount-records"}),
    "inputs": (_ledger(0, inputs=2), {"ledger-inputs"}),
    "start of an input": (_input(0, **{"from": 1}), {"inputs-unit"}),
    "end of an input": (_input(0, until=6), {"inputs-unit"}),
    "bytes of an input": (_input(1, bytes=1), {"inputs-unit", "ledger-bytes"}),
    "unit of an input": (_input(0, input="/no/such"), {"inputs-unit"}),
    "batch of an input": (
        _input(0, batch=1),
        {"inputs-unit", "ledger-inputs", "ledger-bytes", "ledger-records"},
    ),
    "no input": (
        _misread(lambda found: found.pop()),
        {"inputs-unit", "ledger-inputs", "ledger-bytes"},
    ),
    "input twice": (
        _misread(lambda found: found.append(found[0])),
        {"ledger-bytes", "ledger-records"},
    ),
    "bytes": (_ledger(1, bytes=1), {"ledger-bytes"}),
    "superseded": (_ledger(1, superseded=2), {"ledger-fates"}),
    "duplicate": (_ledger(0, duplicate=0), {"ledger-fates"}),
    "inserted": (_ledger(1, inserted=2, superseded=0), {"row-count"}),
    "deleted": (_ledger(1, deleted=0, tombstoned=2), {"row-count"}),
    "quarantined": (_ledger(0, quarantined=2, duplicate=0), {"ledger-reasons", "quarantine-count"}),
    "reasons": (_ledger(0, reasons={"type:n": 1}), {"quarantine-reasons"}),
    "intake lines": (_set("intake", 0, lines=4), {"intake-lines"}),
    "intake blank": (_set("intake", 0, blank=0), {"intake-blank"}),
    "intake range": (_set("intake", 0, until=6), {"intake-range"}),
    "intake size": (_set("intake", 0, bytes=1), {"ledger-bytes"}),
    "bytes changed": (_write(1, FIRST[1].replace(b"3", b"4")), {"file-changed"}),
    "lost key": (_rows_are("target", ("a", 2)), {"lost-key", "row-count"}),
    "stale row": (_rows_are("target", ("a", 1), ("d", 1)), {"old-sequence"}),
    "newer than any input": (_rows_are("target", ("a", 9), ("d", 1)), {"sequence-from-nowhere"}),
    "key from nowhere": (
        _rows_are("target", ("a", 2), ("d", 1), ("z", 1)),
        {"key-from-nowhere", "row-count"},
    ),
    "quarantined row in the table": (
        _rows_are("target", ("a", 2), ("c", 1)),
        {"lost-key", "key-from-nowhere"},
    ),
    "double key": (_rows_are("target", ("a", 2), ("d", 1), ("d", 1)), {"double-key", "row-count"}),
    "resurrected": (_rows_are("target", ("a", 2), ("b", 3), ("d", 1)), {"undead-key", "row-count"}),
    "forgotten delete": (_rows_are("tombstones", ("b", 3)), {"lost-key"}),
    "forgotten newest delete": (_rows_are("tombstones", ("b", 2), ("e", 5)), {"old-sequence"}),
    "raw altered": (_set("refused", 0, raw='{"id": "c", "m'), {"quarantine-raw"}),
    "raw length": (_set("refused", 0, raw_length=3), {"quarantine-length"}),
    "wrong line": (_place(0, 3), {"quarantine-of-blank", "accepted-unreadable"}),
    "line behind the end": (_place(0, 99), {"quarantine-beyond-file", "accepted-unreadable"}),
    "unknown file": (_place("/no/such", 4), {"quarantine-without-file", "accepted-unreadable"}),
    "unknown batch": (
        _set("refused", 0, batch=7),
        {"quarantine-count", "quarantine-without-batch"},
    ),
    "row missing from quarantine": (
        lambda w: w.refused.clear(),
        {"quarantine-count", "accepted-unreadable"},
    ),
    "row twice": (
        lambda w: w.refused.append(w.refused[0]),
        {"quarantine-double", "quarantine-double-id", "quarantine-count"},
    ),
    "file twice": (lambda w: w.intake.append(w.intake[1]), {"intake-double-file"}),
    "file missing from intake": (
        lambda w: w.intake.pop() and None,
        {"ledger-inputs", "ledger-bytes", "key-from-nowhere"},
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_each_falsehood_is_found_by_name(world: World, name: str) -> None:
    falsify, expected = FALSE[name]
    falsify(world)
    assert expected <= world.kinds()


def test_only_what_is_wrong_is_named(world: World) -> None:
    world.target = [("a", 1), ("d", 1)]
    (residue,) = world.audit().residues
    assert (residue.kind, residue.where, residue.expected) == ("old-sequence", "id=a", "sequence 2")
    assert residue.found == "target 1, tombstone none"


@pytest.mark.parametrize("value", ['{"id":"404583"}', '["404583"]', "{}"])
def test_a_row_whose_key_is_an_object_or_array_should_have_been_refused(
    tmp_path: Path, value: str
) -> None:
    world = World(tmp_path, contents=[FIRST[0], FIRST[1] + f'\n{{"id": {value}, "n": 7}}'.encode()])
    world.target.append((value, 7))
    world.committed[1] = replace(world.committed[1], records=6, inserted=2)
    found = [(residue.kind, residue.where) for residue in world.audit().residues]
    assert ("accepted-unreadable", f"{world.path(1)}:6") in found


UNREADABLE = {
    "half a pair in a key": ("json", rb'{"id": "a\ud83d", "n": 1}', "a?"),
    "half a pair elsewhere": ("json", rb'{"id": "x", "n": 1, "other": ["\uDE00"]}', "x"),
    "surplus cells": ("csv", b"x,1,more", "x"),
    "too few cells": ("csv", b"x", "x"),
    "escaped by a backslash": ("csv", rb'"a\"b",1', 'a\\"b"'),
    "text behind a quote": ("csv", b'"x"y,1', '"x"y'),
    "a blank before a quote": ("csv", b'x, "1"', "x"),
    "a quote in the middle": ("csv", b'5" disk,1', '5" disk'),
}


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_record_that_is_none_is_found_in_the_table(
    tmp_path: Path, name: str, keyed: bool
) -> None:
    form, line, key = UNREADABLE[name]
    lines = [b"id,n", b"g,1", line] if form == "csv" else [b'{"id": "g", "n": 1}', line]
    world = World(
        tmp_path, keyed, [b"\n".join(lines), b""], source={"files": "in/*", "format": form}
    )
    world.intake, world.refused, world.tombstones = world.intake[:1], [], []
    row = BatchRow(
        "p", "f", 1, 0, "r", slice=1, inputs=1, bytes=len(b"\n".join(lines)), records=2, inserted=2
    )
    world.committed, world.target = [row], [("g", 1), (key, 1)]
    world.origins = [(world.path(0), at + len(lines) - 1) for at in (0, 1)]
    found = {residue.kind: residue.where for residue in world.audit().residues}
    assert found["accepted-unreadable"] == f"{world.path(0)}:{len(lines)}"
    assert keyed or set(found) == {"accepted-unreadable"}


@pytest.mark.parametrize(("key", "kinds"), [("", set()), ("b ", {"lost-key", "key-from-nowhere"})])
def test_an_empty_text_is_a_key(tmp_path: Path, key: str, kinds: set[str]) -> None:
    content = b'id,n\n"",1\n"b",2\n'
    world = World(tmp_path, contents=[content, b""], source={"files": "in/*", "format": "csv"})
    world.intake, world.refused, world.tombstones = world.intake[:1], [], []
    world.committed = [
        BatchRow("p", "f", 1, 0, "r", slice=1, inputs=1, bytes=len(content), records=2, inserted=2)
    ]
    world.target = [(key, 1), ("b", 2)]
    assert world.kinds() == kinds


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__", "x"])
def test_a_partition_that_became_null_is_found(tmp_path: Path, text: str, keyed: bool) -> None:
    content = f'{{"id": "{text}", "n": 1}}\n{{"id": "b", "n": 1}}\n'.encode()
    world = World(tmp_path, keyed, contents=[content, b""], partition_by=["id"])
    world.intake, world.refused, world.tombstones = world.intake[:1], [], []
    world.committed = [
        BatchRow("p", "f", 1, 0, "r", slice=1, inputs=1, bytes=len(content), records=2, inserted=2)
    ]
    world.target, world.origins = [(text, 1), ("b", 1)], [(world.path(0), 1), (world.path(0), 2)]
    assert world.kinds() == (set() if text == "x" else {"accepted-unstorable"})


@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_text_that_is_no_utf8_is_found_in_the_table(tmp_path: Path, form: str) -> None:
    texts = pa.array([b"x", b"caf\xe9", b"y"])
    texts = pa.StringArray.from_buffers(3, *texts.buffers()[1:])
    path = tmp_path / f"0.{form}"
    table = pa.table({"id": ["a", "b", "c"], "n": pa.array([1, 1, 1], pa.int64()), "s": texts})
    (pq.write_table if form == "parquet" else orc.write_table)(table, path)
    world = World(tmp_path, contents=[b"", b""], source={"files": "in/*", "format": form})
    facts = {
        "input": str(path),
        "bytes": path.stat().st_size,
        "until": 3,
        "lines": None,
        "blank": None,
        "records": 3,
    }
    world.intake = [
        world.intake[0] | facts | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    ]
    size, world.refused, world.tombstones = path.stat().st_size, [], []
    world.committed = [
        BatchRow("p", "f", 1, 0, "r", slice=1, inputs=1, bytes=size, records=3, inserted=3)
    ]
    world.target = [("a", 1), ("b", 1), ("c", 1)]
    (residue,) = world.audit().residues
    assert (residue.kind, residue.where) == ("accepted-unreadable", f"{path}:2")


_NO_VALUES = {
    "boolean": ('"yes"', "1", '"t"'),
    "int": ("4.7", '"7\\t"', '"0x7"'),
    "double": ("9007199254740993", "1e400", '"0x1p3"', '"\\u00011"'),
    "decimal(5,2)": ("1.005", '"1,5"'),
    "string": ("1e400", "{}"),
    "date": ("19782", '"2026-07"'),
    "timestamp": (
        '"2026-07-01 12:00:00 BST"',
        '"2026-11-01T01:30:00 America/New_York"',
        "1782907200",
        '"12:30"',
    ),
    "timestamp_ntz": ('"2026-07-01T12:00:00+02:00"', '"2026-07-01T12:00:00 UTC"'),
    "struct<x: double, at: array<timestamp>>": (
        '{"x":1e400}',
        '{"at":["2026-07"]}',
        '{"at":[1782907200]}',
        "[]",
    ),
    "map<int,double>": ('{"x":1}', '{"1":"NaN"}', '{"1":1,"01":2}'),
}


@pytest.mark.parametrize("kind", _NO_VALUES)
def test_a_cell_that_is_no_value_of_its_type_should_have_been_refused(
    tmp_path: Path, kind: str
) -> None:
    bad = "".join(f'\n{{"id": "x", "n": 1, "v": {value}}}' for value in _NO_VALUES[kind])
    columns = {"id": "string not null", "n": "int not null", "v": kind}
    world = World(
        tmp_path, keyed=False, contents=[FIRST[0], FIRST[1] + bad.encode()], columns=columns
    )
    found = {
        residue.where for residue in world.audit().residues if residue.kind == "accepted-of-no-type"
    }
    assert found == {f"{world.path(1)}:{6 + at}" for at in range(len(_NO_VALUES[kind]))}


def test_a_column_that_was_added_later_had_no_type_before(tmp_path: Path) -> None:
    columns = {"id": "string not null", "n": "int not null", "v": "int"}
    contents = [FIRST[0], FIRST[1] + b'\n{"id": "x", "n": 1, "v": "old"}']
    world = World(tmp_path, keyed=False, contents=contents, columns=columns, added={"v"})
    assert "accepted-of-no-type" not in world.kinds()


def test_what_no_number_and_no_time_of_a_columnar_file_is(tmp_path: Path) -> None:
    table = pa.table(
        {
            "xs": [[1.0, float("nan")], [2.0]],
            "box": [{"x": float("inf"), "other": 1.0}, {"x": 1.0, "other": float("nan")}],
            "at": pa.array([2**62, 0], pa.timestamp("us", "UTC")),
            "fine": [1.5, None],
        }
    )
    kinds = {"xs": "array<double>", "box": "struct<x:double>", "at": "timestamp", "fine": "double"}
    odd = {name: list(unlike(kind, table[name])) for name, kind in kinds.items()}
    assert {name: len(some) for name, some in odd.items()} == {
        "xs": 1,
        "box": 1,
        "at": 1,
        "fine": 0,
    }


def test_many_small_files_cost_no_insert_each(tmp_path: Path) -> None:
    recount = KeyRecount(World(tmp_path).spec.flow("f"), tmp_path)
    before = time.process_time()
    for at in range(3000):
        # as files of several shapes have it
        number = pa.array([str(at)]) if at % 1000 < 500 else pa.array([at])
        recount.add("raw", [pa.array([f"k{at}"]), number])
        recount.add("target", [pa.array([f"k{at}"]), pa.array([at], pa.int32())])
    assert (recount.uncast(), list(recount.doubled()), list(recount.compare(all_files=True))) == (
        0,
        [],
        [],
    )
    assert time.process_time() - before < 3  # seconds; an INSERT for each takes 10


@pytest.mark.parametrize(
    "name", ["superseded", "duplicate", "inserted", "inputs", "bytes", "run_id", "reasons"]
)
def test_the_ledger_must_say_what_the_commit_says(world: World, name: str) -> None:
    rows = [replace(row, table_version=at + 1) for at, row in enumerate(world.committed)]
    changed = {"run_id": "other", "reasons": {"type": 1}}.get(name, 777)
    world.projected = [replace(rows[0], **{name: changed}), rows[1]]
    assert "ledger-not-as-committed" in world.kinds()


def test_a_batch_the_ledger_lacks(world: World) -> None:
    world.projected = [replace(world.committed[0], table_version=1)]
    assert "ledger-missing-batch" in world.kinds()


def test_a_batch_that_was_never_committed(world: World) -> None:
    rows = [replace(row, table_version=at + 1) for at, row in enumerate(world.committed)]
    world.projected = [*rows, replace(rows[1], batch=2, slice=3, inputs=0, table_version=9)]
    assert "ledger-without-commit" in world.kinds()


def test_a_commit_by_other_hands(world: World) -> None:
    world.audit()
    table = DeltaTable(world.spec.layout("f").tables.target.path)
    table.update({"n": "2"}, predicate="id = 'a'")
    found = audit(world.spec, "f", root=world.root).residues
    assert [(residue.kind, residue.where, residue.found) for residue in found] == [
        ("foreign-commit", "version 3", "UPDATE")
    ]


def test_a_batch_twice_in_the_ledger(world: World) -> None:
    rows = [replace(row, table_version=at + 1) for at, row in enumerate(world.committed)]
    world.projected = [*rows, rows[1]]
    assert {"ledger-double-batch", "ledger-double-slice"} <= world.kinds()


def _planned(world: World, batch: int) -> None:
    """The checkpoint of a drain that was killed in `batch`."""
    home = Path(world.spec.layout("f").checkpoint(1))
    for name in (
        [f"offsets/{i}" for i in range(batch + 1)]
        + [f"commits/{i}" for i in range(batch)]
        + ["metadata"]
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("v1\n{}\n{}")


def test_a_batch_killed_before_its_ledger_row_is_judged_by_its_commit(world: World) -> None:
    world.projected = [replace(world.committed[0], table_version=1)]
    _planned(world, 1)
    found = world.audit()
    assert found.residues == []
    assert any("the next run adds it" in reason for reason in found.unlooked)


def test_a_batch_killed_before_its_commit_counts_for_nothing_yet(world: World) -> None:
    world.refused.append(world.row(1, 1, '{"id": "a", "n": 2}'))
    world.committed.pop()
    world.target, world.tombstones = [("a", 1), ("b", 1)], []
    _planned(world, 1)
    found = world.audit()
    assert found.residues == []
    assert any("the next run repeats it" in reason for reason in found.unlooked)


def test_a_replay_killed_before_its_commit_counts_for_nothing_yet(world: World) -> None:
    """It refused what the table holds since the first read: the rules are others now."""
    world.refused += [world.row(1, n, "x", kind="replay:abc", batch=7) for n in (1, 2)]
    found = world.audit()
    assert found.residues == []
    (told,) = found.unlooked
    assert told.startswith(
        "2 quarantined rows of replay abc, batch 7: it was cut short before its commit"
    )


@pytest.mark.parametrize(("done", "of"), [(6, 1), (7, 1), (7, 2)])
def test_rows_of_a_replay_that_the_table_is_done_with_are_not_set_apart(
    world: World, done: int, of: int
) -> None:
    world.refused.append(world.row(1, 1, "x", kind="replay:abc", batch=7))
    world.audit()
    layout = world.spec.layout("f")
    once = CommitProperties(
        app_transactions=[Transaction(layout.app_id(of, "rows", "replay:abc"), done)]
    )
    write_deltalake(
        layout.tables.target.path,
        _rows(world.target).slice(0, 0),
        mode="append",
        commit_properties=once,
    )
    found = audit(world.spec, "f", root=world.root)
    told = [one.where for one in found.residues if one.kind == "quarantine-without-batch"]
    assert told == ["generation 1, replay batch 7"] * (done == 7 and of == 1)


def test_no_audit_beside_a_drain(world: World) -> None:
    with (
        lease_of(world.spec.layout("f"), LeaseSpec(), owner="me", run_id="r"),
        pytest.raises(TransientError) as caught,
    ):
        world.audit()
    assert caught.value.code == "drain-at-work" and "me" in caught.value.found


@pytest.mark.parametrize("rows", [[("a", 1)] * 7, [("a", 1)] * 9])
def test_an_append_table_with_another_number_of_rows(
    tmp_path: Path, rows: list[tuple[str, int]]
) -> None:
    world = World(tmp_path, keyed=False)
    world.target, world.origins = rows, [(world.path(1), n) for n in range(len(rows))]
    assert {"row-count", "appended-rows", "appended-records"} <= world.kinds()


APPENDED: dict[str, tuple[Callable[[World], object], list[tuple[str, str]]]] = {
    "one twice, one lost": (
        lambda w: w.origins.__setitem__(1, w.origins[0]),
        [("double-origin", "0.json:1")],
    ),
    "a refused one": (
        lambda w: w.origins.__setitem__(2, (w.path(0), 4)),
        [("appended-positions", "0.json")],
    ),
    "a blank one": (
        lambda w: w.origins.__setitem__(2, (w.path(0), 3)),
        [("appended-positions", "0.json")],
    ),
    "two others with the same sum": (
        lambda w: w.origins.__setitem__(slice(1, 3), [(w.path(0), p) for p in (3, 4)]),
        [("appended-positions", "0.json")],
    ),
    "one of another file": (
        lambda w: w.origins.__setitem__(2, (w.path(1), 6)),
        [("appended-records", "0.json"), ("appended-records", "1.json")],
    ),
    "one from nowhere": (
        lambda w: w.origins.__setitem__(2, ("/no/such", 1)),
        [("appended-records", "0.json"), ("origin-from-nowhere", "such")],
    ),
}


@pytest.mark.parametrize("name", APPENDED)
def test_an_append_table_with_as_many_rows_of_other_records(tmp_path: Path, name: str) -> None:
    world, (falsify, found) = World(tmp_path, keyed=False), APPENDED[name]
    falsify(world)
    residues = {(one.kind, one.where.rpartition("/")[2]) for one in world.audit().residues}
    assert residues - {("appended-positions", "0.json")} == set(found) - {
        ("appended-positions", "0.json")
    }
    assert set(found) <= residues


@pytest.mark.parametrize("doubled", [False, True])
def test_rows_of_files_that_are_gone_are_not_from_nowhere(tmp_path: Path, doubled: bool) -> None:
    world = World(tmp_path, keyed=False)
    Path(world.path(0)).unlink()
    if doubled:
        world.origins[0] = world.origins[1]
    assert [one.kind for one in world.audit().residues] == ["double-origin"] * doubled


def test_a_released_row_is_in_an_append_table_by_its_origin(tmp_path: Path) -> None:
    raw = FIRST[0].replace(b'"n\n', b'"n": 4}\n')
    world = World(tmp_path, False, [raw, FIRST[1]])
    world.refused, world.released = [world.row(0, 4, '{"id": "c", "n": 4}')], ["q0-4"]
    world.committed.append(BatchRow("p", "f", 1, 0, "r2", kind="release", records=1, inserted=1))
    world.target.append(("c", 4))
    world.origins.append((world.path(0), 4))
    assert world.audit().residues == []


def test_files_that_are_gone_are_said_and_what_is_left_still_counts(world: World) -> None:
    Path(world.path(0)).unlink()
    world.target = [("a", 1), ("d", 1)]
    found = world.audit()
    assert [residue.kind for residue in found.residues] == ["old-sequence"]
    assert any("1 raw file no longer there" in reason for reason in found.unlooked)


def test_a_file_that_was_overwritten_is_there_and_said_to_be_changed(world: World) -> None:
    Path(world.path(1)).write_bytes(FIRST[1].replace(b"3", b"4"))
    found = world.audit()
    assert f"1 raw file there, with other bytes than were read: {world.path(1)}" in found.unlooked
    assert not any("no longer there" in reason for reason in found.unlooked)


def test_a_released_row_counts_as_input(world: World) -> None:
    raw = b'{"id": "a", "n": 1}\n{"id": "b", "n": 1}\n\n{"id": "c", "n": 4}\n{"id": "a", "n": 1}\n'
    world = World(world.root, contents=[raw, FIRST[1]])
    world.refused, world.released = [world.row(0, 4, '{"id": "c", "n": 4}')], ["q0-4"]
    again = BatchRow("p", "f", 1, 0, "r2", kind="release", records=1, inserted=1)
    world.committed.append(again)
    world.target = [("a", 2), ("c", 4), ("d", 1)]
    assert world.audit().residues == []


def test_a_released_row_that_is_not_in_the_table_is_lost(tmp_path: Path) -> None:
    raw = b'{"id": "a", "n": 1}\n{"id": "b", "n": 1}\n\n{"id": "c", "n": 4}\n{"id": "a", "n": 1}\n'
    world = World(tmp_path, contents=[raw, FIRST[1]])
    world.refused, world.released = [world.row(0, 4, '{"id": "c", "n": 4}')], ["q0-4"]
    world.committed.append(BatchRow("p", "f", 1, 0, "r2", kind="release", records=1, inserted=1))
    assert "lost-key" in world.kinds()


def test_a_row_that_a_replay_refused_again_stays_open(world: World) -> None:
    refused = BatchRow("p", "f", 1, 0, "r2", kind="release", records=1, quarantined=1)
    world.committed.append(replace(refused, reasons={"malformed": 1}))
    assert world.audit().residues == []


def test_a_replay_that_released_another_number_of_rows(world: World) -> None:
    world.released = ["q0-4"]
    found = {residue.kind: residue for residue in world.audit().residues}
    assert (found["released-count"].expected, found["released-count"].found) == ("0", "1")


@pytest.mark.parametrize("keyed", [True, False])
def test_a_file_that_was_given_up_unread_is_not_missed(tmp_path: Path, keyed: bool) -> None:
    world = World(tmp_path, keyed=keyed)
    world.committed[1] = BatchRow("p", "f", 1, 1, "r", slice=2)
    world.target, world.tombstones = (
        ([("a", 1), ("b", 1)], []) if keyed else ([("a", 1), ("b", 1), ("a", 1)], [])
    )
    world.origins = world.origins[:3]
    Path(world.path(1)).unlink()
    without = {
        "generation": 1,
        "previous": None,
        "at": "then",
        "by": "me",
        "without": [world.path(1)],
    }
    world.spec.layout("f").generation.write({"generation": 1, "cards": {"1": without}})
    audit = world.audit()
    assert audit.residues == []
    assert any("1 raw file no longer there" in text for text in audit.unlooked)


def test_a_replay_killed_after_its_commit_did_release(tmp_path: Path) -> None:
    raw = b'{"id": "a", "n": 1}\n{"id": "b", "n": 1}\n\n{"id": "c", "n": 4}\n{"id": "a", "n": 1}\n'
    world = World(tmp_path, contents=[raw, FIRST[1]])
    world.refused = [world.row(0, 4, '{"id": "c", "n": 4}')]
    world.committed.append(BatchRow("p", "f", 1, 0, "r2", kind="release", records=1, inserted=1))
    world.projected = [
        replace(row, table_version=at + 1) for at, row in enumerate(world.committed[:2])
    ]
    world.target = [("a", 2), ("c", 4), ("d", 1)]
    pending = {"app": "x", "batch": 0, "run_id": "r2", "ids": ["q0-4"]}
    world.spec.layout("f").replaying.write(pending)
    assert world.audit().residues == []


def test_csv_headers_are_no_lines_and_quoted_newlines_are_counted_as_the_ledger_does(
    tmp_path: Path,
) -> None:
    content = b'id,n\na,1\n"b\nb",1\n\n"id", n\nc,x\n'
    world = World(tmp_path, contents=[content, b""], source={"files": "in/*", "format": "csv"})
    world.intake = [world.intake[0] | {"multiline": True, "lines": 7, "blank": 1}]
    world.committed = [
        BatchRow("p", "f", 1, 0, "r", slice=1, inputs=1, bytes=len(content), records=3, inserted=2)
    ]
    world.committed[0] = replace(world.committed[0], quarantined=1, reasons={"type:n": 1})
    world.refused = [world.row(0, 6, "c,x", reason="type", field="n")]
    world.target, world.tombstones = [("a", 1), ("b\nb", 1)], []
    assert world.audit().residues == []


def test_gzip_is_known_by_its_bytes(tmp_path: Path) -> None:
    world = World(tmp_path, contents=[gzip.compress(part) for part in FIRST])
    assert world.audit().residues == []


def test_keys_that_a_transform_makes_are_not_recounted_and_it_is_said(world: World) -> None:
    (world.root / "jobs" / "transforms").mkdir(parents=True)
    (world.root / "jobs" / "transforms" / "t.py").write_text(
        "def f(df):\n    return df.withColumn('id', 1)\n"
    )
    world.transform = "t.f"
    world.target = [("A", 2), ("D", 1)]
    found = world.audit()
    assert found.residues == []
    assert found.unlooked == ["keys and sequences: the transform sets id"]


def test_a_transform_that_leaves_keys_alone_is_no_excuse(world: World) -> None:
    (world.root / "jobs" / "transforms").mkdir(parents=True)
    (world.root / "jobs" / "transforms" / "t.py").write_text(
        "def f(df):\n    return df.withColumn('month', 'id')\n"
    )
    world.transform = "t.f"
    world.target = [("A", 2), ("D", 1)]
    assert {"lost-key", "key-from-nowhere"} <= world.kinds()


def test_names_a_transform_sets_are_read_from_its_source(tmp_path: Path) -> None:
    home = tmp_path / "jobs" / "transforms"
    home.mkdir(parents=True)
    text = "def f(d):\n    d = d.withColumn('a', 1).withColumnRenamed('x', 'b')\n"
    text += "    return d.withColumns({'c': 1}).select(e.alias('g'))\n"
    (home / "t.py").write_text(text)
    assert made_by("t.f", tmp_path) == {"a", "b", "c", "g"}
    assert made_by("missing.f", tmp_path) is None


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a",
        b"a\n",
        b"a\r\nb\rc\n\n",
        b"\xef\xbb\xbfa\r",
        b"\r\r\n\n",
        b"a\x0bb\x0cc\x1cd\x85e\n",
    ],
)
def test_lines_do_not_depend_on_chunks(content: bytes, chunk: int) -> None:
    import io

    expected = (
        content.removeprefix(b"\xef\xbb\xbf")
        .replace(b"\r\n", b"\n")
        .replace(b"\r", b"\n")
        .split(b"\n")
    )
    if not expected[-1]:
        expected.pop()
    assert list(lines(io.BytesIO(content), chunk)) == expected


def _read_again(world: World) -> None:
    """Generation 2 reads both files again; what it refuses is all that the quarantine holds."""
    first, second = world.committed
    nothing = {"generation": 2, "inserted": 0, "updated": 0, "deleted": 0, "tombstoned": 0}
    world.committed += [
        replace(first, **nothing, duplicate=1, superseded=2),
        replace(second, **nothing, duplicate=3, superseded=2),
    ]
    world.refused = [world.row(0, 4, '{"id": "c", "n', generation=2)]
    world.spec.layout("f").generation.write({"generation": 2, "cards": {}})


def test_a_quarantine_that_a_reset_put_aside_took_older_refusals_with_it(world: World) -> None:
    _read_again(world)
    layout = world.spec.layout("f")
    Path(layout.aside(2), "quarantine", "f").mkdir(parents=True)
    found = world.audit()
    assert found.residues == []
    assert any("what 1 batch before generation 2 refused" in words for words in found.unlooked)


def test_a_quarantine_that_lost_rows_in_silence_is_found(world: World) -> None:
    _read_again(world)
    assert world.kinds() >= {"quarantine-count"}


def test_a_row_that_only_the_new_generation_refuses_was_let_through_before(world: World) -> None:
    _read_again(world)
    Path(world.spec.layout("f").aside(2), "quarantine", "f").mkdir(parents=True)
    world.committed[3] = replace(
        world.committed[3], quarantined=1, duplicate=2, reasons={"rule:x": 1}
    )
    world.refused.append(
        world.row(1, 3, '{"id": "d", "n": 1}', generation=2, batch=1, reason="rule:x")
    )
    assert world.kinds() == set()


def _reset(asked: Request, *, table_aside: bool = False) -> None:
    plan = recovery_reset.plan(asked, table_aside=table_aside)
    recovery_reset.begin(asked, plan, by="me", accept_missing=False)


def _found(asked: Request) -> tuple[set[str], str]:
    """The kinds of residues, and all that was not looked at."""
    found = audit(asked.spec, "f", root=Path(asked.root))
    return {residue.kind for residue in found.residues}, "; ".join(found.unlooked)


@pytest.mark.parametrize("aside", [True, False])
def test_rows_of_a_table_that_was_replaced_do_not_count_once_the_log_is_cleaned(
    tmp_path: Path, aside: bool
) -> None:
    asked = drained(tmp_path)
    if not aside:
        shutil.rmtree(asked.layout.tables.target.path)
    _reset(asked, table_aside=aside)
    assert integrity.replaced_last(asked.layout, asked.layout.tables.target) == (2 if aside else 0)
    write_deltalake(
        asked.layout.tables.target.path,
        pa.table({"id": ["0"], "n": pa.array([1], pa.int32()), "_changed_at": [AT]})[:0],
    )
    for number in range(3 * aside):  # its versions may be beyond those of the table before it
        DeltaTable(asked.layout.tables.target.path).alter.set_table_properties(
            {"a": str(number)}, raise_if_not_exists=False
        )
    for batch in (0, 1):
        commit(asked, batch, generation=2)
    assert _found(asked)[0] == set()
    clean_log(asked)
    kinds, unlooked = _found(asked)
    assert kinds == set()
    assert "2 batches of older generations" in unlooked and "row-count" not in unlooked
    DeltaTable(asked.layout.tables.target.path).delete("id = '0'")
    assert _found(asked)[0] >= {"row-count", "lost-key"}


def test_rows_of_a_table_that_was_put_back_count_once_the_log_is_cleaned(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    _reset(asked, table_aside=True)
    shutil.copytree(Path(asked.layout.aside(2), "tables", "f"), asked.layout.tables.target.path)
    for batch in (0, 1):
        commit(asked, batch, generation=2, inserted=0, duplicate=1)
    clean_log(asked)
    kinds, unlooked = _found(asked)
    assert kinds == set() and "of older generations" not in unlooked


def test_a_restore_that_the_log_no_longer_has_leaves_the_number_of_rows_open(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    restore(asked, 1)
    _reset(asked)
    commit(asked, 0, generation=2, inserted=0, duplicate=1)
    commit(asked, 1, generation=2)
    assert _found(asked)[0] == set()
    clean_log(asked)
    kinds, unlooked = _found(asked)
    assert kinds == set() and "row-count: 3 inserted - deleted" in unlooked
    DeltaTable(asked.layout.tables.target.path).delete("id = '0'")
    assert "lost-key" in _found(asked)[0], "the keys are still compared"


def test_a_wrong_number_of_rows_is_found_where_no_restore_can_have_been(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    _reset(asked)
    for batch in (0, 1):
        commit(asked, batch, generation=2, inserted=0, duplicate=1)
    clean_log(asked)
    assert _found(asked)[0] == set()
    DeltaTable(asked.layout.tables.target.path).delete("id = '0'")
    kinds, unlooked = _found(asked)
    assert "row-count" in kinds and "row-count" not in unlooked


@pytest.mark.parametrize("form", ["parquet", "orc"])
@pytest.mark.parametrize("keyed", [True, False])
def test_columnar_rows_are_counted_by_their_ordinals(
    tmp_path: Path, form: str, keyed: bool
) -> None:
    path = tmp_path / f"0.{form}"
    table = pa.table(
        {
            "id": ["a", None, "b", "a"],
            "n": pa.array([1, 2, 3, 4], pa.int64()),
            "other": [1, 2, 3, 4],
        }
    )
    (pq.write_table if form == "parquet" else orc.write_table)(table, path)
    world = World(tmp_path, keyed, contents=[b"", b""], source={"files": "in/*", "format": form})
    facts = {
        "input": str(path),
        "bytes": path.stat().st_size,
        "until": 4,
        "lines": None,
        "blank": None,
        "records": 4,
    }
    world.intake = [
        world.intake[0] | facts | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    ]
    row = BatchRow(
        "p", "f", 1, 0, "r", slice=1, inputs=1, bytes=path.stat().st_size, records=4, quarantined=1
    )
    fates = {"inserted": 2, "superseded": 1} if keyed else {"inserted": 3}
    world.committed = [replace(row, reasons={"not_null:id": 1}, **fates)]
    origin = {"input": str(path), "position": 2}
    world.refused = [world.row(0, 2, "{}", origin=origin, reason="not_null", field="id")]
    world.origins = [(str(path), n) for n in (1, 3, 4)]
    world.tombstones, world.target = (
        [],
        [("a", 4), ("b", 3)] if keyed else [("a", 1), ("b", 3), ("a", 4)],
    )
    assert world.audit().residues == []


def test_text_rows_are_appended_each_once(tmp_path: Path) -> None:
    content = b"one\r\n \ntwo\rlast"
    world = World(tmp_path, False, [content, b""], source={"files": "in/*", "format": "text"})
    world.columns = {"value": "string"}
    world.intake = world.intake[:1]
    row = BatchRow(
        "p", "f", 1, 0, "r", slice=1, inputs=1, bytes=len(content), records=3, inserted=3
    )
    world.committed, world.refused = [row], []
    world.target, world.origins = (
        [("one", 1), ("two", 1), ("last", 1)],
        [(world.path(0), n) for n in (1, 3, 4)],
    )
    assert world.audit().residues == []


@pytest.mark.parametrize("form", ["json", "csv", "parquet", "orc"])
@pytest.mark.parametrize("target", [["a1", "a2"], ["a1", "a3"]])
def test_a_column_may_be_key_and_sequence(tmp_path: Path, form: str, target: list[str]) -> None:
    """Readings by sensor and time: no reading replaces an earlier one, and none may be missing."""
    columns = {"id": ["a", "a", "a"], "n": pa.array([1, 2, 1], pa.int32())}
    path = tmp_path / f"in.{form}"
    if form in ("json", "csv"):
        header, row = ("id,n\n", "{},{}\n") if form == "csv" else ("", '{{"id": "{}", "n": {}}}\n')
        path.write_text(header + "".join(row.format("a", n) for n in (1, 2, 1)))
    else:
        (pq.write_table if form == "parquet" else orc.write_table)(pa.table(columns), path)
    world = World(
        tmp_path,
        contents=[path.read_bytes(), b""],
        source={"files": "in/*", "format": form},
        keys=["id", "n"],
    )
    path.rename(world.path(0))
    facts = (
        {"until": 3, "lines": None, "blank": None, "records": 3}
        if form in ("parquet", "orc")
        else {}
    )
    world.intake = [world.intake[0] | facts]
    size = world.intake[0]["bytes"]
    row = BatchRow(
        "p", "f", 1, 0, "r", slice=1, inputs=1, bytes=size, records=3, inserted=2, duplicate=1
    )
    world.committed, world.refused, world.tombstones = [row], [], []
    world.target = [(text[0], int(text[1])) for text in target]
    wanted = set() if target == ["a1", "a2"] else {"lost-key", "key-from-nowhere"}
    assert world.kinds() == wanted


def test_sequences_are_compared_as_their_type_in_their_zone(tmp_path: Path) -> None:
    """10:00 in New York is after 14:59 UTC, though its text sorts before."""
    content = b'{"id": "a", "n": "2020-01-01 10:00:00"}\n{"id": "a", "n": "2020-01-01T14:59:59Z"}\n'
    source = {"files": "in/*", "format": "json", "timezone": "America/New_York"}
    found = _timed(tmp_path, content, source, datetime(2020, 1, 1, 15, tzinfo=UTC))
    assert found.residues == []


def test_a_sequence_in_the_wrong_zone_is_found(tmp_path: Path) -> None:
    content = b'{"id": "a", "n": "2020-01-01 10:00:00"}\n'
    source = {"files": "in/*", "format": "json", "timezone": "America/New_York"}
    found = _timed(tmp_path, content, source, datetime(2020, 1, 1, 10, tzinfo=UTC))
    assert [residue.kind for residue in found.residues] == ["old-sequence"]


def _timed(root: Path, content: bytes, source: dict[str, Any], held: datetime) -> Audit:
    world = World(root, contents=[content, b""], source=source)
    world.columns = {"id": "string not null", "n": "timestamp not null"}
    world.intake = world.intake[:1]
    records = content.count(b"\n")
    row = BatchRow(
        "p", "f", 1, 0, "r", slice=1, inputs=1, bytes=len(content), records=records, inserted=1
    )
    world.committed, world.refused, world.tombstones = (
        [replace(row, superseded=records - 1)],
        [],
        [],
    )
    world.target = [("a", held)]  # type: ignore[list-item]
    return world.audit()


def test_a_time_of_orc_that_pyarrow_cannot_read_is_not_judged_and_said_so(tmp_path: Path) -> None:
    far, here = datetime(9999, 12, 31, tzinfo=UTC), tmp_path / "x.orc"
    times = pa.array([far.replace(tzinfo=None)] * 2, pa.timestamp("us"))
    orc.write_table(pa.table({"id": ["a", "b"], "n": times, "more": times}), here)
    world = World(
        tmp_path, contents=[here.read_bytes(), b""], source={"files": "in/*", "format": "orc"}
    )
    world.columns = {"id": "string not null", "n": "timestamp not null"}
    world.intake = [world.intake[0] | {"until": 2, "lines": None, "blank": None, "records": 2}]
    row = BatchRow(
        "p",
        "f",
        1,
        0,
        "r",
        slice=1,
        inputs=1,
        bytes=world.intake[0]["bytes"],
        records=2,
        inserted=2,
    )
    world.committed, world.refused, world.tombstones = [row], [], []
    world.target = [("a", far), ("b", far)]  # type: ignore[list-item]
    found = world.audit()
    assert found.residues == []
    assert [text for text in found.unlooked if text.startswith("the keys of 2 records")]


_OF_TIMES = {"n": "int not null", "at": "timestamp not null"}
_BY_TIME = {"keys": ["n"], "sequence_by": ["at"]}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_times_of_96_bits_are_instants_of_any_year(tmp_path: Path, zone: str) -> None:
    """As Spark has them. pyarrow's nanoseconds without a zone wrap round outside of 1677 to
    2262.
    """
    times = [
        datetime(year, 6, 1, 12, 30, 0, 250_000, tzinfo=UTC)
        for year in (1600, 1969, 2024, 2300, 9999)
    ]
    path = str(tmp_path / "x.parquet")
    of = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "n": range(5)})
    pq.write_table(of, path, use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(path).schema.column(0).physical_type == "INT96"
    read, types = columnar.blocks(path, "parquet")
    (block,) = read(["at"])
    assert block.column("at").to_pylist() == times and types["at"] == pa.timestamp("us", "UTC")
    source = {"files": "x/*", "format": "parquet", "timezone": zone}
    flows = {"f": {"source": source, "columns": _OF_TIMES, "target": _BY_TIME}}
    declared = PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(tmp_path), "flows": flows}
    ).declared("f")
    assert isinstance(declared, FlowSpec)
    keys = KeyRecount(declared, tmp_path)
    for name in ("raw", "target"):
        keys.add(name, [pa.array(range(5), pa.int32()), block.column("at")])
    assert not [*keys.doubled(), *keys.compare(all_files=True)] and not keys.uncast()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Europe/Berlin"])
@pytest.mark.parametrize("spark", [True, False])
def test_times_of_orc_are_of_the_flow_s_clocks_and_instants_where_spark_wrote_them(
    tmp_path: Path, spark: bool, zone: str
) -> None:
    noons, path = [datetime(2026, 7, 1, hour) for hour in (12, 13)], tmp_path / "x.orc"
    if spark:
        path.write_bytes(spark_orc.NOON)
    else:
        orc.write_table(
            pa.table(
                {"id": pa.array([0, 1], pa.int32()), "at": pa.array(noons, pa.timestamp("us"))}
            ),
            path,
        )
    clocks = ZoneInfo("America/New_York" if spark else zone)
    expected = [noon.replace(tzinfo=clocks).astimezone(UTC) for noon in noons]
    read, types = columnar.blocks(str(path), "orc")
    (block,) = read(["id", "at"])
    assert types["at"].tz == block.column("at").type.tz == ("UTC" if spark else None)
    flows = {
        "f": {"source": {"files": "x/*", "format": "orc", "timezone": zone}, "columns": _OF_TIMES}
    }
    flows["f"]["target"] = _BY_TIME
    declared = PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(tmp_path), "flows": flows}
    ).declared("f")
    assert isinstance(declared, FlowSpec)
    keys = KeyRecount(declared, tmp_path)
    keys.add("raw", [block.column("id"), block.column("at")])
    keys.add("target", [block.column("id"), pa.array(expected, pa.timestamp("us", "UTC"))])
    assert not [*keys.doubled(), *keys.compare(all_files=True)] and not keys.uncast()
