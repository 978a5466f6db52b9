"""Records that `draindown why` reads again: of every format of files, and of Kafka as far as the
lake keeps them.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as parquet
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from draindown.config.kafka import KafkaCluster
from draindown.config.models import PipelineSpec
from draindown.flow.generations import Card, make_live
from draindown.lake.table import Table
from draindown.provenance.readers import reader_of
from draindown.provenance.why import Question, why
from draindown.runs.request import Request
from draindown.sources import intake, raw
from draindown.sources.intake import record_id
from draindown.sources.kafka import positions
from draindown.sources.kafka.offsets import Span
from draindown.sources.slices import Unit
from tests.flowfiles import AT, about, take_in
from tests.landed_lake import LandedLake
from tests.tables.test_audit_records import SLICES, World, at, stamp_of

_COLUMNS = {
    "id": "string not null",
    "n": "int",
    "at": "timestamp",
    "d": "date",
    "x": "decimal(10,2)",
    "f": "boolean",
}
_WHEN = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
_ROWS: list[dict[str, Any]] = [
    {"id": f"k{n}", "n": n, "at": _WHEN, "d": _WHEN.date(), "x": Decimal(n) / 4, "f": n % 2 == 0}
    for n in range(5)
]
_ROWS[3] |= {"n": None, "x": None}


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    known = {
        name: value.isoformat() if hasattr(value, "isoformat") else value
        for name, value in row.items()
    }
    return {
        name: str(value) if isinstance(value, Decimal) else value for name, value in known.items()
    }


def _json(path: Path) -> None:
    path.write_text("\n".join(json.dumps(_texts(row)) for row in _ROWS) + "\n\n")


def _document(path: Path) -> None:
    path.write_text(json.dumps([_texts(row) for row in _ROWS], indent=1))


def _csv(path: Path) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["x", "id", "n", "at", "d", "f"])
    for row in map(_texts, _ROWS):
        cells = [row[name] for name in ("x", "id", "n", "at", "d")]
        writer.writerow(["" if cell is None else cell for cell in cells] + [str(row["f"]).lower()])
    path.write_bytes(gzip.compress(out.getvalue().encode()))


def _columnar(write: Any) -> Any:
    types = [
        pa.string(),
        pa.int32(),
        pa.timestamp("us", "UTC"),
        pa.date32(),
        pa.decimal128(10, 2),
        pa.bool_(),
    ]
    schema = pa.schema(list(zip(_COLUMNS, types, strict=True)))
    return lambda path: write(pa.Table.from_pylist(_ROWS, schema=schema), str(path))


_FORMATS: dict[str, tuple[dict[str, Any], Any, list[int]]] = {
    "json": ({"format": "json"}, _json, [1, 2, 3, 4, 5]),
    "document": ({"format": "json", "multiline": True}, _document, [1, 2, 3, 4, 5]),
    "csv": ({"format": "csv"}, _csv, [2, 3, 4, 5, 6]),
    "parquet": ({"format": "parquet"}, _columnar(parquet.write_table), [1, 2, 3, 4, 5]),
    "orc": ({"format": "orc"}, _columnar(orc.write_table), [1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize("name", _FORMATS)
def test_values_and_positions_are_those_of_the_file(tmp_path: Path, name: str) -> None:
    source, write, positions = _FORMATS[name]
    asked = about(tmp_path, {"source": {"files": "in/*"} | source, "columns": _COLUMNS})
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / f"1.{name}{'.gz' if name == 'csv' else ''}")
    (unit,) = _taken(asked)
    reader = reader_of(asked.flow_spec, asked.layout)
    assert reader.gone(unit) == ""
    found = list(reader.records(unit))
    assert [record.position for record in found] == positions
    names = tuple(_COLUMNS)
    assert [record.read(names) for record in found] == [
        tuple(row[name] for name in names) for row in _ROWS
    ]
    assert [record.read(("id",)) for record in reader.records(unit, [b"k3"])][-1:] == [
        ("k3",)
    ] or source["format"] in (
        "parquet",
        "orc",
    )
    assert b"k3" in found[3].raw


def test_of_a_time_that_pyarrow_cannot_read_the_other_columns_are_read(tmp_path: Path) -> None:
    asked = about(tmp_path, {"source": {"files": "in/*", "format": "orc"}, "columns": _COLUMNS})
    (tmp_path / "in").mkdir()
    far = pa.array([datetime(9999, 12, 31)] * 2, pa.timestamp("us"))
    orc.write_table(pa.table({"id": ["k0", "k1"], "at": far}), tmp_path / "in/1.orc")
    (unit,) = _taken(asked)
    found = list(reader_of(asked.flow_spec, asked.layout).records(unit))
    assert [(one.position, one.read(("id",)), one.read(("id", "at"))) for one in found] == [
        (1, ("k0",), None),
        (2, ("k1",), None),
    ]


GENERATIONS = [[1, 2], *(pytest.param(some, marks=pytest.mark.long) for some in ([1, 1], [2, 3]))]
"""Those of the slices of a flow."""


def _taken(asked: Request) -> list[Unit]:
    take_in(asked, heap_bytes=1024**3, now=AT)
    return [unit for one in intake.slices(asked.layout, 1) for unit in one.units]


def _why(
    spec: PipelineSpec, root: Path, *, every: bool = False, **key: str | None
) -> dict[str, Any]:
    asked = Question(spec, "f", root, key, 20, every, lambda _: spec, lambda _: None)
    (found,) = why(asked)
    return json.loads(json.dumps(found.as_dict()))


_UTC = pa.timestamp("us", "UTC")
_TABLE = pa.schema([("id", pa.string()), ("at", _UTC), ("n", pa.int32()), ("_changed_at", _UTC)])
_DEAD = pa.schema(
    [
        ("id", pa.string()),
        ("at", _UTC),
        ("_generation", pa.int32()),
        ("_batch", pa.int64()),
        ("_kind", pa.string()),
    ]
)


def _fates(found: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(one["input"], one["position"], one["fate"]) for one in found["records"]]


def _world(root: Path, **more: Any) -> tuple[World, PipelineSpec]:
    """A Kafka flow that drained two slices, with the times of its records and the stamps of its
    rows.
    """
    world = World(root, keyed=True, **more)
    spec = world.write().spec
    rows = [
        {"id": key, "at": at(position), "n": n, "_changed_at": stamp_of(batch)}
        for key, position, n, batch in (("a", 3, 3, 0), ("b", 4, 0, 1), ("d", 5, 7, 1))
    ]
    dead = {
        "id": "c",
        "at": at(8),
        "_generation": world.generations[0],
        "_batch": 0,
        "_kind": "drain",
    }
    for path, some, schema in (
        (world.layout.tables.target.path, rows, _TABLE),
        (world.layout.tables.tombstones.path, [dead], _DEAD),
    ):
        of_batch = Table(path).commits(1)[0].user_metadata
        kept = CommitProperties(custom_metadata={"userMetadata": of_batch})
        table = pa.Table.from_pylist(some, schema=schema)
        write_deltalake(
            path, table, mode="overwrite", schema_mode="overwrite", commit_properties=kept
        )
    return world, spec


@pytest.mark.parametrize(
    ("key", "state", "fates"),
    [
        ("a", "landed", [("t/0", 3, "applied"), ("t/0", 0, "superseded")]),
        ("b", "landed", [("t/0", 4, "applied")]),
        ("x", "quarantined", [("t/0", 1, "quarantined")]),
        ("c", "deleted", [("t/1", 8, "deleted"), ("t/1", 7, "superseded")]),
        ("nobody", "never-seen", []),
    ],
)
@pytest.mark.parametrize("generations", GENERATIONS)
def test_offsets_of_kept_records_are_named(
    tmp_path: Path, key: str, state: str, fates: list[Any], generations: list[int]
) -> None:
    _, spec = _world(tmp_path, generations=generations)
    found = _why(spec, tmp_path, id=key)
    assert (found["state"], _fates(found)) == (state, fates)
    assert (
        all(one["raw"] for one in found["records"] if one["fate"] == "applied")
        and found["gone"] == []
    )
    if state == "never-seen":
        assert found["said"].endswith("what waits at the brokers was not looked at")


def test_offsets_that_the_lake_does_not_keep_are_named(tmp_path: Path) -> None:
    gone = [span for some in SLICES for span in some if not span.partition and not span.start]
    world, spec = _world(
        tmp_path, kept=[span for some in SLICES for span in some if span not in gone]
    )
    found = _why(spec, tmp_path, id="a")
    assert found["state"] == "landed" and found["records"] == [] and found["batch"]["number"] == 0
    assert found["gone"][0].startswith("offsets t/0:0-4 are not in the lake")
    assert _why(spec, tmp_path, id="nobody")["state"] == "unknown"
    DeltaTable(world.layout.tables.raw.path).delete("position < 100")
    dropped = _why(spec, tmp_path, id="a")["gone"][0]
    assert "were last dropped at 20" in dropped
    shutil.rmtree(world.layout.tables.raw.path)
    for told in (dropped, _why(spec, tmp_path, id="a")["gone"][0]):
        (key,) = re.findall("`kafka[.]([^`]+)`", told)
        assert key in KafkaCluster.model_fields


def test_what_waits_is_what_the_live_generation_has_not_read(tmp_path: Path) -> None:
    records = World(tmp_path).records | {("t/0", 6): ("e", b'{"n": 1}')}
    kept = [*(span for some in SLICES for span in some), Span("t", 0, "x", 6, 7)]
    world, spec = _world(tmp_path, kept=kept)
    make_live(world.layout, Card(2, 1, AT.isoformat(), "me", ()))
    assert _why(spec, tmp_path, id="c")["state"] == "deleted", "nothing is pinned again yet"
    write_deltalake(world.layout.tables.raw.path, _raw("t/0", 6, *records["t/0", 6]), mode="append")
    spans = [Span("t", 0, "x", 0, 7), Span("t", 1, "x", 7, 9)]
    pinned = positions.rows(spans, record_bytes=1.0, oldest={}, now=AT, compacted=())
    intake.append(world.layout, 2, positions.OWN, pinned, AT, 1)
    found = _why(spec, tmp_path, id="e")
    assert (found["state"], _fates(found)) == ("waiting", [("t/0", 6, "waiting")])


def _raw(unit: str, position: int, key: str, value: bytes | None) -> pa.Table:
    row = {
        "part": raw.RECORDS,
        "input": unit,
        "log": "x",
        "position": position,
        "day": AT.date(),
        "value": value,
    }
    return pa.Table.from_pylist(
        [row | {"key": key.encode(), "timestamp": at(position)}], raw.SCHEMA
    )


@pytest.mark.parametrize("generations", GENERATIONS)
def test_rows_of_a_table_without_keys_are_named_by_their_origin(
    tmp_path: Path, generations: list[int]
) -> None:
    world = World(tmp_path, generations=generations)
    spec = world.write().spec
    for position in (3, 5):
        assert _fates(_why(spec, tmp_path, _origin=f"t/0:{position}")) == [
            ("t/0", position, "applied")
        ]
    refused = _why(spec, tmp_path, _origin="t/0:1")
    assert (
        refused["state"] == "quarantined"
        and "malformed" in refused["said"]
        and "quarantine list p/f --id " in refused["next"][0]
    )
    assert _why(spec, tmp_path, _origin="t/0:99")["state"] == "never-seen"


def _lines(*rows: dict[str, Any]) -> list[str]:
    return [json.dumps(row) for row in rows]


@pytest.mark.parametrize("expectation", ["sane", "paid before shipped; id or none"])
def test_a_withdrawn_row_is_named_with_its_expectation(tmp_path: Path, expectation: str) -> None:
    lake = LandedLake(tmp_path)
    lake.drain(_lines({"id": "a", "n": 3}, {"id": "b", "n": 1}))
    lake.withdraw("a", expectation)
    found = _why(lake.spec, tmp_path, id="a")
    assert (
        found["state"] == "withdrawn"
        and f"gate:{expectation}" in found["said"]
        and "it is open" in found["said"]
    )
    assert [one["fate"] for one in found["records"]] == ["superseded"]
    assert found["next"][0].startswith("draindown quarantine list p/f --id withdrawn")
    lake.drain(_lines({"id": "a", "n": 4}))
    assert _why(lake.spec, tmp_path, id="a")["state"] == "landed"


def test_newer_changes_that_were_refused_are_beside_the_row(tmp_path: Path) -> None:
    lake = LandedLake(tmp_path)
    lake.drain(
        _lines(
            {"id": "aaaa", "n": 3},
            {"id": "aaaa", "n": "x"},
            {"id": "aaaa", "n": 3},
            {"id": "aaaa", "n": 1},
        )
    )
    found = _why(lake.spec, tmp_path, id="aaaa")
    assert sorted(one["fate"] for one in found["records"]) == [
        "applied",
        "duplicate",
        "quarantined",
        "superseded",
    ]
    (refused,) = [one for one in found["records"] if one["fate"] == "quarantined"]
    assert refused["position"] == 2 and refused["why"].startswith("type:n")


def test_released_rows_lead_to_what_was_refused_or_withdrawn(tmp_path: Path) -> None:
    lake = LandedLake(tmp_path)
    lake.drain(_lines({"id": "a", "n": 3, "v": 1}, {"id": "b", "n": "x"}))
    unit = str(tmp_path / "in" / "001.json")
    lake.release(record_id(unit, 2), {"id": "b", "n": 7})
    found = _why(lake.spec, tmp_path, id="b")
    assert (
        found["state"] == "landed"
        and found["batch"]["kind"] == "release"
        and found["batch"]["run_id"] == "release 1"
    )
    lake.withdraw("a")
    lake.release("withdrawn a", {"id": "a", "n": 3, "v": 1})
    found = _why(lake.spec, tmp_path, id="a")
    assert [one["fate"] for one in found["records"]] == ["applied"]
    assert json.loads(found["records"][0]["raw"]) == {"id": "a", "n": 3, "v": 1}
    assert [one["fate"] for one in _why(lake.spec, tmp_path, id="a", every=True)["records"]][
        -1
    ] == "applied"


def test_a_file_that_is_gone_hides_the_record_that_was_released(tmp_path: Path) -> None:
    lake = LandedLake(tmp_path)
    lake.drain(_lines({"id": "b", "n": "x"}))
    (tmp_path / "in" / "001.json").unlink()
    lake.release(record_id(str(tmp_path / "in" / "001.json"), 1), {"id": "b", "n": 7})
    found = _why(lake.spec, tmp_path, id="b")
    assert found["state"] == "landed" and found["records"] == [] and "001.json" in found["gone"][0]
