"""What a shuffle compares and pins: differences are named by key and slice, and every file is in
one slice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.config.neighbours import Neighbours, Writer
from draindown.drill import rounds, shuffle
from draindown.drill.orders import differences
from draindown.drill.sandbox import Project, write_project
from draindown.drill.shuffle import Order, Shuffle, Shuffled
from draindown.sources import intake
from tests.flowfiles import AT, take_in
from tests.landed_lake import FLOW, LandedLake


def _lines(*values: tuple[str, int, int]) -> list[str]:
    return [json.dumps({"id": id, "n": n, "v": v}) for id, n, v in values]


def _lakes(home: Path) -> tuple[LandedLake, LandedLake]:
    """Two lakes of the same files in another order: both read the same project's files."""
    one, other = LandedLake(home / "one"), LandedLake(home / "other")
    first, second = (
        _lines(("a", 1, 1), ("b", 1, 1)),
        [*_lines(("a", 2, 2)), '{"id": "c", "n": "x"}'],
    )
    for lake, files in ((one, (first, second)), (other, (second, first))):
        for lines in files:
            lake.drain(lines)
    return one, other


def test_lakes_of_another_order_differ_in_nothing_but_what_was_refused_elsewhere(
    tmp_path: Path,
) -> None:
    one, other = _lakes(tmp_path)
    assert list(differences(one.spec, one.spec, ["f"])) == []
    found = list(differences(one.spec, other.spec, ["f"]))
    assert {(one.flow, one.what) for one in found} == {("f", "quarantine")}, (
        "the files of two projects have other paths"
    )


def test_a_key_that_differs_is_named_with_the_slices_that_wrote_it(tmp_path: Path) -> None:
    one, other = _lakes(tmp_path)
    path = other.layout.tables.target.path
    rows = DeltaTable(path).to_pyarrow_table()
    changed = [
        row | {"v": 9} if row["id"] == "a" else row | {"id": "d"} if row["id"] == "b" else row
        for row in rows.to_pylist()
    ]
    write_deltalake(path, pa.Table.from_pylist(changed, schema=rows.schema), mode="overwrite")
    found = {
        one.key: one for one in differences(one.spec, other.spec, ["f"]) if one.what == "table"
    }
    assert set(found) == {"id a", "id b", "id d"}
    assert found["id a"].detail == "v is 2 in the control, 9 after the shuffle"
    assert found["id a"].control == f"slice 2 ({one.home}/in/002.json)"
    assert found["id a"].shuffled == f"slice 1 ({other.home}/in/001.json)"
    assert "only the control" in found["id b"].detail and found["id b"].shuffled == ""
    assert "the control lacks it" in found["id d"].detail
    text = str(
        Shuffled(
            "p",
            "x",
            [Order(1, {"f": [[1], [0]]}, {"f": "its driver was killed"}, list(found.values()))],
        )
    )
    assert "seed 1  DIFFERS  f: 2 slices" in text and "0 of 1 order made no difference" in text


def test_rows_of_tables_without_keys_are_compared_by_how_often_they_are_there(
    tmp_path: Path,
) -> None:
    flow = {name: FLOW[name] for name in ("source", "columns")}
    specs = []
    for name, rows in (("one", [1, 1, 2]), ("other", [1, 2, 3])):
        document = {"pipeline": "p", "lake": str(tmp_path / name), "flows": {"f": flow}}
        specs.append(PipelineSpec.model_validate(document))
        table = pa.table({"v": rows, "_changed_at": pa.array([AT] * 3, pa.timestamp("us", "UTC"))})
        write_deltalake(specs[-1].layout("f").tables.target.path, table)
    found = {one.key: one.detail for one in differences(*specs, ["f"])}
    assert found == {"v 1": "1 time more in the control", "v 3": "1 time more in the shuffled copy"}


@pytest.mark.parametrize("seed", range(5))
def test_every_file_is_pinned_once_whatever_the_order(tmp_path: Path, seed: int) -> None:
    one, other = LandedLake(tmp_path / "one"), LandedLake(tmp_path / "other")
    for number in range(12):
        one.deliver(_lines((str(number), 1, 1)))
    take_in(one.request, heap_bytes=1024**3, now=AT)
    made = shuffle._pin(one.layout, other.layout, Random(seed))
    assert sorted(at for some in made for at in some) == list(range(12)) and made != [
        [at] for at in range(12)
    ]
    mine, theirs = (
        [unit for part in intake.slices(lake.layout, 1) for unit in part.units]
        for lake in (one, other)
    )
    assert {_pinned(unit) for unit in mine} == {_pinned(unit) for unit in theirs} and len(
        theirs
    ) == 12
    assert [len(part.units) for part in intake.slices(other.layout, 1)] == [
        len(some) for some in made
    ]


@pytest.mark.parametrize("seed", range(30))
def test_another_order_is_pinned_though_there_are_few_files(tmp_path: Path, seed: int) -> None:
    one, other = LandedLake(tmp_path / "one"), LandedLake(tmp_path / "other")
    for value in (1, 1, 2):
        one.deliver(_lines(("a", value, 1)))
    take_in(one.request, heap_bytes=1024**3, now=AT)
    whole = [len(part.units) for part in intake.slices(one.layout, 1)]
    made = shuffle._pin(one.layout, other.layout, Random(seed))
    contents = [[at == 2 for at in some] for some in made]  # the first two are the same
    assert whole == [3] and contents != [[False, False, True]]


@pytest.mark.parametrize("files", range(1, 31))
def test_there_is_a_slice_for_each_round(files: int) -> None:
    for seed in range(30):
        made = list(shuffle._cut(range(files), Random(seed)))
        assert len(made) >= min(files, 3) and [at for some in made for at in some] == list(
            range(files)
        )


@pytest.mark.parametrize("slices", [[9], [3, 30], [4, 4, 5], [2, 9], [1, 3], [2], [1], [0, 4], [0]])
def test_rounds_divide_the_slices_so_that_derived_flows_go_on_at_last(slices: list[int]) -> None:
    numbers = set()
    for seed in range(50):
        found = rounds.divided({str(at): of for at, of in enumerate(slices)}, Random(seed))
        (number,) = {len(parts) for parts in found.values()}
        numbers.add(number)
        for of, parts in zip(slices, found.values(), strict=True):
            assert sum(parts) == of and sum(part > 0 for part in parts) == min(of, number)
            assert (parts[0] > 0) == (of > 0) and (parts[-1] > 0 or of < 2)
    assert numbers == ({3, 4} if max(slices) > 3 else {max(1, *slices)})


def test_a_round_drains_what_is_left_of_its_slices_then_derived_flows_run(tmp_path: Path) -> None:
    lake = LandedLake(tmp_path, d={"source": {"table": "f"}, **_PARTS[0]})
    lake.drain(_lines(("a", 1, 1)))  # by the driver that was killed in the second batch
    copy = Project(lake.home, lake.spec, "d")

    def planned(at: int, *parts: int) -> list[tuple[str, str, int | None]]:
        plan = [request for request, _ in rounds._round(copy, ["f", "d"], {"f": parts}, at)]
        assert {request.run_id for request in plan} == {f"round-{at + 1}"}
        return [(request.flow, request.step, request.max_batches) for request in plan]

    derived = [("d", "drain", None), ("d", "check", None)]
    assert planned(0, 3, 1) == [("f", "drain", 2), ("f", "check", None), *derived]
    assert planned(0, 1, 1) == [("f", "check", None), *derived]
    assert planned(1, 3, 0) == [("f", "check", None), *derived]
    assert planned(1, 3, 1) == [("f", "drain", 1), ("f", "check", None), *derived]


def _pinned(unit: Any) -> tuple[Any, ...]:
    return (
        unit.name,
        unit.until,
        unit.bytes,
        unit.arrived_at,
        unit.row["sha256"],
        unit.row["mtime_ns"],
    )


_PARTS: Sequence[dict[str, Any]] = (
    {"window": {"time": "at", "size": "1 month", "measures": {"c": "count(*)"}}},
    {
        "window": {
            "time": "at",
            "size": "2 hours",
            "slide": "1 hour",
            "week_starts": None,
            "measures": {"c": "count(*)"},
        }
    },
    {
        "session": {
            "time": "at",
            "gap": "30 minutes",
            "group_by": ["g"],
            "measures": {"c": "count(*)"},
        }
    },
    {"query": {"keys": ["g"], "sql": "select g, count(*) as c from f group by g"}},
    {"deduplicate": {"keys": ["g"], "sequence_by": ["at"]}},
    {"top": {"group_by": ["g"], "order_by": ["v desc"], "rows": 3, "with_ties": True}},
)


@pytest.mark.parametrize("part", _PARTS, ids=lambda part: next(iter(part)))
def test_a_copy_declares_what_its_pipeline_does(tmp_path: Path, part: dict[str, Any]) -> None:
    lake = LandedLake(tmp_path / "own", d={"source": {"table": "f"}, **part})
    lake.deliver(_lines(("a", 1, 1)))
    asked = Shuffle(lake.spec, ["d"], lake.home, tmp_path / "scratch", 10, 10**6, [1])
    spec, _ = shuffle._copied(asked, ["f", "d"], ["f"], lambda _: None)
    copy = write_project(tmp_path / "scratch" / "control", spec, lake.home)
    assert copy.declared("d").derivation == lake.spec.declared("d").derivation  # type: ignore[union-attr]
    assert copy.flow("f").columns == lake.spec.flow("f").columns
    assert copy.lake == str(tmp_path / "scratch" / "control" / "lake")


_ELSEWHERE = Neighbours(writers={"x": Writer(pipeline="other", flow="x")})


def test_what_has_one_order_is_not_shuffled(tmp_path: Path) -> None:
    lake = LandedLake(tmp_path / "own", d={"source": {"table": "x"}, **_PARTS[0]})
    spec = lake.spec.beside(_ELSEWHERE)
    asked = Shuffle(spec, ["d"], lake.home, tmp_path / "scratch", 10, 10**6, [1])
    with pytest.raises(TerminalError) as caught:
        shuffle.play(asked, lambda _: None)
    assert caught.value.code == "nothing-to-drill" and "other/x" in caught.value.found
    assert not (tmp_path / "scratch").exists()


def test_flows_go_with_all_that_they_read_and_all_behind_them(tmp_path: Path) -> None:
    per = {"query": {"keys": ["g"], "sql": "select g, count(*) as c from f group by g"}}
    over = {"window": {"time": "window_start", "size": "1 day", "measures": {"c": "sum(c)"}}}
    flows = {
        "month": {"source": {"table": "f"}, **_PARTS[0]},
        "day": {"source": {"table": "month"}, **over},
        "other": {"source": {"table": "x"}, **_PARTS[0]},
        "query": {"source": {"table": "f"}, **per},
        "log": FLOW
        | {
            "source": {
                "kafka": {"topics": ["t"], "bootstrap_servers": "127.0.0.1:1"},
                "format": "json",
            }
        },
        "of_log": {"source": {"table": "log"}, **_PARTS[0]},
    }
    spec = LandedLake(tmp_path, **flows).spec.beside(_ELSEWHERE)
    assert shuffle._chosen(spec, ["f"]) == (["f", "month", "day", "query"], [])
    assert shuffle._chosen(spec, ["day"]) == (["f", "month", "day", "query"], [])
    chosen, unlooked = shuffle._chosen(spec, spec.graph.order)
    assert chosen == ["f", "month", "day", "query"] and [one.split(":")[0] for one in unlooked] == [
        *("flow other", "flow log", "flow of_log"),
    ]
    with pytest.raises(TerminalError):
        shuffle._chosen(spec, ["of_log"])
