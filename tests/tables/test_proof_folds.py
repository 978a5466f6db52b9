"""The proof of a processor: plain Python folds, every planted falsehood is found, and what can't be
folded is named.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from draindown.base.errors import TerminalError
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.lake.table import Table
from draindown.proof.behind import source_rows
from draindown.proof.certificate import Certificate
from draindown.proof.compare import is_provable, prove

_START = datetime(2026, 3, 1, tzinfo=UTC)
_SOURCE = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int32())])
_TABLE = pa.schema(
    [
        *(
            ("k", pa.string()),
            ("session_start", pa.timestamp("us", "UTC")),
            ("position", pa.int32()),
        ),
        *(
            ("n", pa.int64()),
            ("last", pa.timestamp("us", "UTC")),
            ("_changed_at", pa.timestamp("us", "UTC")),
        ),
    ]
)
_CLASS = """\
class Basket:
    def process(self, state, rows):
        n = state["n"] if state else 0
        if any(row["n"] == 666 for row in rows):
            raise ValueError("no such number")
        return [{"n": n + at, "last": row["at"]} for at, row in enumerate(rows, 1)], {"n": n + len(rows)}

    def running(self, state):
        return [{"n": -state["n"]}]
"""
_FLOWS: dict[str, Any] = {
    "t": {
        "source": {"files": "x/*", "format": "json"},
        "columns": {"k": "string", "at": "timestamp", "n": "int"},
    },
    "d": {
        "source": {"table": "t"},
        "processor": {
            "class": "shop.Basket",
            "group_by": ["k"],
            "order_by": ["at"],
            "gap": "30 minutes",
            "columns": {"n": "bigint", "last": "timestamp"},
            "state": {"n": "bigint"},
        },
    },
}
Row = dict[str, Any]


class _Lake:
    def __init__(self, home: Path) -> None:
        (home / "jobs" / "processors").mkdir(parents=True)
        (home / "jobs" / "processors" / "shop.py").write_text(_CLASS)
        document = {"pipeline": "p", "lake": str(home / "lake"), "flows": _FLOWS}
        spec = PipelineSpec.model_validate(document).placed(home)
        self.layout, self.source, flow = spec.layout("d"), str(home / "source"), spec.declared("d")
        assert isinstance(flow, DerivedFlow)
        self.flow, draw = flow, Random(1)
        minutes = [draw.choice((None, 0, 30, 31, draw.randrange(300))) for _ in range(60)]
        self.rows = [
            {
                "k": draw.choice((None, "a", "b")),
                "at": None if at is None else _START + timedelta(minutes=at),
                "n": draw.choice((None, 1, 2)),
            }
            for at in minutes
        ]
        self.land(*self.rows)

    def land(self, *rows: Row) -> None:
        write_deltalake(
            self.source, pa.Table.from_pylist(list(rows), schema=_SOURCE), mode="append"
        )

    def proven(self, results: list[Row]) -> Certificate:
        write_deltalake(
            self.layout.tables.target.path,
            pa.Table.from_pylist(results, schema=_TABLE),
            mode="overwrite",
        )
        assert is_provable(self.flow, [Table(self.source)])
        return prove(self.layout, self.flow, [Table(self.source)], self.layout.tables.target)

    def results(self) -> list[Row]:
        """A row for each row, and one for the end of each run."""
        found: list[Row] = []
        for k in (None, "a", "b"):
            times = sorted(
                row["at"] for row in self.rows if row["k"] == k and row["at"] is not None
            )
            runs: list[list[datetime]] = []
            for at in times:
                if not runs or at - runs[-1][-1] > timedelta(minutes=30):
                    runs.append([])
                runs[-1].append(at)
            for run in runs:
                made = [(number, at) for number, at in enumerate(run, 1)] + [(-len(run), None)]
                found += [
                    {"k": k, "session_start": run[0], "position": at, "n": n, "last": last}
                    for at, (n, last) in enumerate(made, 1)
                ]
        return found


def test_an_untouched_table_proves_by_plain_python(tmp_path: Path) -> None:
    lake = _Lake(tmp_path)
    found = lake.proven(lake.results())
    assert found.holds and found.expected == found.found == len(lake.results()) > 40, (
        found.falsehoods
    )
    assert found.engine.startswith("python ") and "folds row by row" in found.engine


def _wrong(results: list[Row]) -> None:
    results[3]["n"] += 5


def _missing(results: list[Row]) -> None:
    results.pop(5)


def _unexpected(results: list[Row]) -> None:
    results.append({**results[2], "position": 99})


def _doubled(results: list[Row]) -> None:
    results.append(results[2])


@pytest.mark.parametrize("plant", [_wrong, _missing, _unexpected, _doubled])
def test_a_planted_falsehood_is_found(tmp_path: Path, plant: Callable[[list[Row]], None]) -> None:
    lake = _Lake(tmp_path)
    results = lake.results()
    plant(results)
    found = lake.proven(results)
    assert not found.holds and found.differing == 1
    assert [one.what for one in found.falsehoods] == [plant.__name__.removeprefix("_")]


def test_rows_that_the_class_cant_take_are_named(tmp_path: Path) -> None:
    lake = _Lake(tmp_path)
    lake.land({"k": "z", "at": _START, "n": 666})
    with pytest.raises(TerminalError) as error:
        lake.proven(lake.results())
    assert error.value.code == "group-not-computed"
    assert error.value.found == "key ('z'): process: ValueError: no such number (shop.py:5)"


@pytest.mark.parametrize("column", ["other", "us", "gap"])
def test_behind_a_row_are_the_rows_of_its_segment(tmp_path: Path, column: str) -> None:
    lake = _Lake(tmp_path)
    DeltaTable(lake.source).alter.add_columns(Field(column, PrimitiveType("long")))
    results = [row for row in lake.results() if row["n"] < 0]
    table = pa.Table.from_pylist(results, schema=_TABLE)
    ((found, number),) = source_rows(lake.layout, lake.flow, [Table(lake.source)], table, 0, 100)
    assert [number[at] for at in range(len(results))] == [-row["n"] for row in results] and len(
        results
    ) > 5
    for at, row in enumerate(results):
        own = [one for one in found if one["_row"] == at]
        assert len(own) == -row["n"] and min(one["at"] for one in own) == row["session_start"]
        assert {one["k"] for one in own} == {row["k"]}
