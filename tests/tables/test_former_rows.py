"""Source rows that were behind a row of each kind of derivation, and are not any more, are those of
plain loops.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.lake.table import Table
from draindown.lake.written_files import written_files
from draindown.proof.former import former_rows
from tests.tables.test_source_rows import EVENTS, KEYED, SOURCE

START = datetime(2026, 3, 1, tzinfo=UTC)
_UTC = pa.timestamp("us", "UTC")
Row = dict[str, Any]
Behind = Callable[[Row, Row], bool]


def _hour(row: Row, key: Row) -> bool:
    start = key["window_start"]
    return (
        row["at"] is not None
        and start <= row["at"] < start + timedelta(hours=1)
        and row["k"] == key["k"]
    )


def _group(row: Row, key: Row) -> bool:
    return bool(row["k"] == key["k"])


KINDS: dict[str, tuple[dict[str, Any], Behind]] = {
    "window": (
        {
            "window": {
                "time": "at",
                "size": "1 hour",
                "group_by": ["k"],
                "measures": {"c": "count(*)"},
            }
        },
        _hour,
    ),
    "session": (
        {
            "session": {
                "time": "at",
                "gap": "10 minutes",
                "group_by": ["k"],
                "measures": {"c": "count(*)"},
            }
        },
        lambda row, key: row["at"] == key["session_start"] and row["k"] == key["k"],
    ),
    "deduplicate": ({"deduplicate": {"keys": ["k"], "sequence_by": ["n"]}}, _group),
    "top": ({"top": {"group_by": ["k"], "order_by": ["n"], "rows": 3}}, _group),
    "query": ({"query": {"keys": ["k"], "sql": "select k, count(*) c from s0 group by k"}}, _group),
    "history": (
        {
            "target": {
                "keys": ["k"],
                "sequence_by": ["n"],
                "stored_as_scd_type": 2,
                "track_history": ["at"],
            }
        },
        lambda row, key: (
            row["k"] == key["k"] and row["n"] is not None and row["n"] >= key["__START_AT"]
        ),
    ),
    "processor": (
        {
            "processor": {
                "class": "shop.Basket",
                "group_by": ["k"],
                "order_by": ["at"],
                "gap": "1 day",
                "columns": {"c": "bigint"},
                "state": {"c": "bigint"},
            }
        },
        lambda row, key: row["k"] == key["k"] and row["at"] >= key["session_start"],
    ),
}


class Changing:
    """A keyed table that a derived flow reads, changed row by row, with every image of each row."""

    def __init__(
        self, home: Path, part: dict[str, Any], partitions: list[str] | None = None
    ) -> None:
        landing = EVENTS if "target" in part else KEYED  # a history is of an append table
        flows = {"s0": landing, "d": {"source": {"table": "s0"}, **part}}
        self.spec = PipelineSpec.model_validate(
            {"pipeline": "p", "lake": str(home / "lake"), "flows": flows}
        )
        self.path, self.rows, self.images = (
            self.spec.layout("s0").tables.target.path,
            dict[int, Row](),
            list[Row](),
        )
        self._partitions, self._moment = partitions, 0

    def put(self, *rows: Row) -> None:
        for row in rows:
            if row["id"] in self.rows:
                DeltaTable(self.path).delete(f"id = {row['id']}")
            self.rows[row["id"]] = row
        self.images += rows
        table = pa.Table.from_pylist(list(rows), schema=SOURCE)
        write_deltalake(self.path, table, mode="append", partition_by=self._partitions)

    def remove(self, id: int) -> None:
        del self.rows[id]
        DeltaTable(self.path).delete(f"id = {id}")

    def change(self, draw: Random) -> None:
        self._moment += 1
        if self.rows and draw.random() < 0.35:
            self.remove(draw.choice(sorted(self.rows)))
            return
        row = {
            "id": draw.randrange(6),
            "k": draw.choice((None, "a", "b'")),
            "at": START + timedelta(minutes=15 * draw.randrange(8)),
            "n": draw.choice((1, 2, 3)),
            "_origin": {"input": "/in/1", "position": self._moment},
            "_arrived_at": START,
            "_changed_at": START + timedelta(minutes=self._moment),
        }
        self.put(row)

    def former(self, key: Row, limit: int = 100, version: int | None = None) -> Any:
        flow = self.spec.declared("d")
        assert isinstance(flow, DerivedFlow)
        names = ("window_start", "window_end", "session_start", "session_end", "session_start")
        schema = {
            "k": pa.string(),
            "position": pa.int32(),
            "__START_AT": pa.int32(),
            "__END_AT": pa.int32(),
        }
        schema |= dict.fromkeys(names, _UTC)
        result = pa.Table.from_pylist([key], schema=pa.schema(schema))
        log = Table(self.path, version)
        (found,) = former_rows(self.spec.layout("d"), flow, [log], [["id"]], result, 0, limit)
        return found


@pytest.mark.parametrize(
    ("kind", "partitions"),
    [
        *((kind, None) for kind in ("session", "history", "processor")),
        ("window", ["k"]),
        *(
            pytest.param(kind, None, marks=pytest.mark.full)
            for kind in ("window", "deduplicate", "top", "query")
        ),
        *(pytest.param(kind, ["k"], marks=pytest.mark.full) for kind in KINDS if kind != "window"),
    ],
)
def test_former_rows_are_those_of_all_images(
    tmp_path: Path, kind: str, partitions: list[str] | None
) -> None:
    part, is_behind = KINDS[kind]
    draw = Random(f"{kind} {partitions}")
    table, seen = Changing(tmp_path, part, partitions), 0
    for _ in range(12):
        table.change(draw)
    for k in (None, "a", "b'", "nobody"):
        for step in range(4):
            at = START + timedelta(minutes=15 * draw.randrange(8))
            key = {
                "k": k,
                "position": 1 + step,
                "__START_AT": draw.choice((1, 2, 3)),
                "window_start": at,
            }
            key["session_start"] = key["session_start"] = at
            there = {row["id"] for row in table.rows.values() if is_behind(row, key)}
            expected: dict[int, Row] = {}
            for image in table.images:
                if is_behind(image, key) and image["id"] not in there:
                    expected[image["id"]] = image
            found = table.former(key)
            assert {row["id"]: row["_changed_at"] for row in found.rows} == {
                id: image["_changed_at"] for id, image in expected.items()
            }
            assert found.number == len(expected) and not found.gone
            seen += len(expected)
    assert seen, "there are former rows"


def test_rows_of_later_versions_are_none(tmp_path: Path) -> None:
    table = Changing(tmp_path, KINDS["deduplicate"][0])
    row = {"id": 1, "k": "a", "at": START, "n": 1, "_changed_at": START}
    table.put(row | {"k": "b"})
    table.put(row)
    table.remove(1)
    assert table.former({"k": "a"}).number == 1
    assert table.former({"k": "a"}, version=0).number == 0
    assert len(written_files(Table(table.path, 0)).files) == 1


def test_what_vacuum_or_the_clean_up_of_the_log_took_is_named(tmp_path: Path) -> None:
    table = Changing(tmp_path, KINDS["deduplicate"][0])
    row = {"id": 1, "k": "a", "at": START, "n": 1, "_changed_at": START}
    table.put(row)
    table.put(row | {"id": 2})
    table.remove(1)
    DeltaTable(table.path).create_checkpoint()
    for version in (0, 1):
        (Path(table.path) / "_delta_log" / f"{version:020}.json").unlink()
    assert table.former({"k": "nobody"}).gone == (
        "commits of table s0 before version 2: the log has no more",
    )
    log = Table(table.path)
    for file in log.table.file_uris():
        Path(file.removeprefix("file://")).unlink()
    assert "1 file that table s0 had earlier: removed by VACUUM" in written_files(log).gone


@pytest.mark.parametrize("kind", ["join", "lookup"])
def test_of_a_pair_the_side_that_went_is_named(tmp_path: Path, kind: str) -> None:
    part: dict[str, Any] = {"table": "s1", "on": ["k"], "columns": {"id": "other", "n": "m"}}
    if kind == "lookup":
        part |= {"on": ["n"], "columns": {"at": "seen"}}
    number = KEYED | {"target": {"keys": ["n"], "sequence_by": ["id"]}}
    flows = {
        "s0": EVENTS if kind == "lookup" else KEYED,
        "s1": number if kind == "lookup" else KEYED,
    }
    flows["d"] = {"source": {"table": "s0"}, kind: part}
    spec = PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(tmp_path / "lake"), "flows": flows}
    )
    row = {
        "id": 1,
        "k": "a",
        "at": START,
        "n": 1,
        "_changed_at": START,
        "_origin": {"input": "/in/1", "position": 1},
    }
    logs = []
    for name in ("s0", "s1"):
        path = spec.layout(name).tables.target.path
        other = row | {"id": 2, "k": "b", "n": 2, "_origin": {"input": "/in/1", "position": 2}}
        write_deltalake(path, pa.Table.from_pylist([row, other], schema=SOURCE))
        logs.append(path)
    gone = logs[1] if kind == "join" else logs[0]
    DeltaTable(gone).delete("id = 1")
    flow = spec.declared("d")
    assert isinstance(flow, DerivedFlow)
    key: Row = {"k": "a", "id": 1, "other": 1} if kind == "join" else {"left_origin": "/in/1:1"}
    kinds = {"k": pa.string(), "id": pa.int64(), "other": pa.int64(), "left_origin": pa.string()}
    kinds |= {"n": pa.int32(), "m": pa.int32()}
    result = pa.Table.from_pylist([key], schema=pa.schema(kinds))
    names = [["id"], ["id"]] if kind == "join" else [["_origin"], ["n"]]
    found = former_rows(
        spec.layout("d"), flow, [Table(path) for path in logs], names, result, 0, 5, key
    )
    there = [[row["id"] for row in one.rows] for one in found]
    assert there == ([[], [1]] if kind == "join" else [[1], []])
