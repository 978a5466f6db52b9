"""A source that only tests know goes through everything that a source of files does, with no line
for it under src.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.base.progress import StepHook, ignore_step
from draindown.flow import generations
from draindown.lake.table import Table
from draindown.ledger import inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow
from draindown.planning.plan import plan
from draindown.recovery import reset as reset_plan
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.report import StepReport
from draindown.runs.request import Again, Request
from draindown.sources import intake
from draindown.spark.runs import replay_input, replay_rows
from draindown.spark.runs.drain import drain
from draindown.spark.runs.rebuild import rebuild
from tests import numbered_source
from tests.flowfiles import about
from tests.landing import Injected


class Lists:
    """A flow of lists, what it should hold, and its drains."""

    def __init__(self, root: Path, spark: SparkSession, kind: str, **more: Any) -> None:
        self.root, self.spark, self.runs = root, spark, 0
        self.asked = about(root, numbered_source.flow(kind, **more))
        self.wanted: dict[str, int] = {}
        self.refused: set[tuple[str, int]] = set()

    def deliver(self, name: str, *records: tuple[str, int] | str) -> None:
        """Append records to a list; a text is no record."""
        held = self.lists()
        texts = held.setdefault(name, [])
        for record in records:
            if isinstance(record, str):
                self.refused.add((name, len(texts)))
                texts.append(record)
            else:
                self.wanted[record[0]] = max(record[1], self.wanted.get(record[0], record[1]))
                texts.append(json.dumps(dict(zip(("id", "n"), record, strict=True))))
        self.write(held)

    def lists(self) -> dict[str, list[str]]:
        return numbered_source.lists(str(self.root / "lists.json"))

    def write(self, held: dict[str, list[str]]) -> None:
        (self.root / "lists.json").write_text(json.dumps(held))

    def request(self, **more: Any) -> Request:
        self.runs += 1
        return self.asked.model_copy(
            update={"run_id": f"r{self.runs}", "start": f"s{self.runs}", **more}
        )

    def drain(self, reached: StepHook = ignore_step, **more: Any) -> StepReport:
        return drain(self.request(**more), self.spark, progress=lambda _: None, reached=reached)

    def rows(self, path: str, columns: str) -> list[dict[str, Any]]:
        return Table(path).rows(f"select {columns} from t")

    def agrees(self) -> None:
        """The table holds the newest row of each key, quarantine each quarantined record once, the
        ledger each batch.
        """
        layout = self.asked.layout
        assert {
            row["id"]: row["n"] for row in self.rows(layout.tables.target.path, "id, n")
        } == self.wanted
        assert len(self.rows(layout.tables.target.path, "id")) == len(self.wanted)
        kept = self.rows(layout.tables.quarantine.path, "origin, arrived_at")
        assert sorted(_place(row["origin"]) for row in kept) == sorted(self.refused)
        self.arrived_as_pinned(kept)
        live = generations.generation(layout)
        batches = [row for row in ledger_table.source_after(layout, -1) if row.generation == live]
        assert [row.batch for row in batches] == list(range(intake.newest(layout, live)))
        assert sum(row.records for row in batches) == sum(map(len, self.lists().values()))
        self.inputs_are_slices(batches)
        part, _ = plan(self.request(), now())
        assert (part.backlog.units, part.backlog.unit, part.drain) == (0, "list", False)

    def inputs_are_slices(self, batches: list[BatchRow]) -> None:
        """What each batch read of each list is the range that its slice pins."""
        read = inputs.by_batch(self.asked.layout)
        pinned = {
            one.number: one.units for one in intake.slices(self.asked.layout, batches[0].generation)
        }
        for row in batches:
            wanted = [
                Input(one.name, one.start, one.until, one.bytes, one.until - one.start)
                for one in pinned[row.slice]
            ]
            assert sorted(read[row.place], key=lambda one: one.unit) == sorted(
                wanted, key=lambda one: one.unit
            )

    def arrived_as_pinned(self, refused: list[dict[str, Any]]) -> None:
        """Every quarantined record arrived when the slice that holds it says, in some generation."""
        layout = self.asked.layout
        live = generations.generation(layout)
        units = [
            unit
            for number in range(1, live + 1)
            for one in intake.slices(layout, number)
            for unit in one.units
        ]
        for row in refused:
            name, position = _place(row["origin"])
            held = [
                unit for unit in units if unit.name == name and unit.start <= position < unit.until
            ]
            assert row["arrived_at"] in {unit.arrived_at for unit in held}


def _place(origin: dict[str, Any]) -> tuple[str, int]:
    return origin["input"], origin["position"]


@pytest.fixture(params=["numbers", pytest.param("own_numbers", marks=pytest.mark.long)])
def flow(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lists]:
    numbered_source.register(monkeypatch)
    yield Lists(tmp_path, spark, request.param)


def dying_at(step: str) -> StepHook:
    def reached(found: str) -> None:
        if found == step:
            raise Injected(step)

    return reached


@pytest.mark.long
@pytest.mark.parametrize("flow", ["numbers"], indirect=True)
@pytest.mark.parametrize(
    "step", ["begun", "read", "quarantined", "remembered", "merged", "recorded"]
)
def test_a_kill_in_any_gap_is_resumed(flow: Lists, step: str) -> None:
    flow.deliver("a", ("x", 1), ("y", 1), "no record")
    flow.deliver("b", ("x", 2), ("z", 1))
    with pytest.raises(Injected):
        flow.drain(dying_at(step))
    flow.drain()
    flow.agrees()


@pytest.mark.long
def test_input_is_replayed_and_refused_rows_too(flow: Lists) -> None:
    flow.deliver("a", ("x", 1), ("y", 1), "no record")
    flow.deliver("b", ("z", 1))
    flow.drain()
    report = replay_input.replay(
        flow.request(replay=Again(units=("a",))), flow.spark, progress=lambda _: None
    )
    assert report.drain is not None
    assert (report.outcome, report.drain.totals["records"], report.drain.totals["applied"]) == (
        "done",
        3,
        0,
    )
    once_more = replay_input.replay(
        flow.request(replay=Again(units=("a",))), flow.spark, progress=lambda _: None
    )
    assert once_more.outcome == "idle"
    (row,) = flow.rows(flow.asked.layout.tables.quarantine.path, "quarantine_id, origin")
    assert _place(row["origin"]) == ("a", 2)
    again = replay_rows.replay(flow.request(quarantine_ids=(row["quarantine_id"],)), flow.spark)
    assert again.drain is not None and again.drain.totals["quarantined"] == 1
    flow.agrees()


@pytest.mark.full
@pytest.mark.parametrize(
    "flow", [pytest.param("numbers", marks=pytest.mark.long), "own_numbers"], indirect=True
)
def test_a_reset_reads_everything_again_and_a_lost_range_is_left_out(flow: Lists) -> None:
    flow.deliver("a", ("x", 1), "no record", ("y", 1))
    flow.drain()
    _reset(flow)
    flow.drain()
    assert generations.generation(flow.asked.layout) == 2
    flow.agrees()
    held = flow.lists()
    flow.write({"a": ["spoilt", *held["a"][1:]]})
    found = reset_plan.plan(flow.request())
    assert found.missing == ("a:0-2",)
    with pytest.raises(TerminalError) as caught:
        reset_plan.begin(flow.request(), found, by="me", accept_missing=False)
    assert caught.value.code == "reset-input-gone"


@pytest.mark.full
@pytest.mark.parametrize(
    "deaths", [("merged",), pytest.param(("merged", "swapped"), marks=pytest.mark.long)]
)
def test_a_rebuild_reads_everything_into_a_fresh_table(flow: Lists, deaths: Sequence[str]) -> None:
    flow.deliver("a", ("x", 2), "no record", ("y", 1))
    flow.drain()
    if len(deaths) > 1:
        flow.deliver("a", ("x", 1), ("z", 1))
        flow.drain()
    for step in deaths:
        with pytest.raises(Injected):
            rebuild(flow.request(), flow.spark, progress=lambda _: None, reached=dying_at(step))
    report = rebuild(flow.request(), flow.spark, progress=lambda _: None)
    assert report.outcome == "done"
    assert generations.generation(flow.asked.layout) == 2
    flow.agrees()
    if len(deaths) > 1:
        flow.deliver("b", ("w", 1))
        flow.drain()
        flow.agrees()


@pytest.mark.full
@pytest.mark.parametrize(
    "deaths", [(), pytest.param(("quarantined", "merged"), marks=pytest.mark.long)]
)
def test_appended_records_keep_origin_and_arrival(
    tmp_path: Path, spark: SparkSession, flow: Lists, deaths: Sequence[str]
) -> None:
    """A record is there once, by list and position, also when a replay lets it in that came with
    another slice.
    """
    appending = Lists(
        tmp_path, spark, flow.asked.flow_spec.source.kind, target={}, rules={"few": "n < 5"}
    )
    for number in range(2):
        # slices of two records, which arrived one drain after the other
        appending.deliver("a", (f"a{number}", 1), (f"x{number}", 5 + number))
        appending.deliver("b", (f"b{number}", 1))
        for step in deaths[number : number + 1]:
            with pytest.raises(Injected):
                appending.drain(dying_at(step))
        appending.drain()
    layout = appending.asked.layout
    refused = appending.rows(layout.tables.quarantine.path, "quarantine_id, origin, arrived_at")
    assert sorted(_place(row["origin"]) for row in refused) == [("a", 1), ("a", 3)]
    assert len({row["arrived_at"] for row in refused}) == 2
    appending.arrived_as_pinned(refused)
    asked = appending.request(quarantine_ids=tuple(row["quarantine_id"] for row in refused))
    accepting = about(tmp_path, numbered_source.flow(flow.asked.flow_spec.source.kind, target={}))
    replay_rows.replay(asked.model_copy(update={"spec": accepting.spec}), spark)
    found = appending.rows(
        layout.tables.target.path, "_origin as origin, _arrived_at as arrived_at, id"
    )
    assert sorted(_place(row["origin"]) for row in found) == sorted(
        (name, at) for name, texts in appending.lists().items() for at in range(len(texts))
    )
    appending.arrived_as_pinned(found)


def _reset(flow: Lists) -> None:
    asked = flow.request()
    with open_flow(asked.spec, asked.flow, Needs.FINISHED, owner="me", run_id=asked.run_id):
        reset_plan.begin(asked, reset_plan.plan(asked), by="me", accept_missing=False)
