"""Derived flows as they run: landing, gate, derive, gate, through real streams; crashes, resets and
idle runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.flow import generations
from draindown.flow.state import FlowState
from draindown.gate import published
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.ledger import inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.inputs import Input
from draindown.planning.explanation import Explanation, explain
from draindown.planning.plan import plan
from draindown.proof.certificate import Certificate
from draindown.proof.compare import prove
from draindown.recovery import reset
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.card import card
from draindown.runs.report import StepReport
from draindown.runs.request import Request, Step
from draindown.sources import intake
from draindown.sources.tables import source as tables
from draindown.sources.tables.division import Division
from draindown.spark.checks.check import check
from draindown.spark.runs.drain import drain
from draindown.spark.runs.rebuild import rebuild
from tests.landing import Injected

START = datetime(2026, 3, 1, tzinfo=UTC)
FLIGHTS = {
    "source": {"files": "landing/*", "format": "json"},
    "columns": {
        "id": "bigint not null",
        "seq": "int not null",
        "op": "string",
        "carrier": "string",
        "at": "timestamp",
        "delay": "int",
        "noise": "string",
    },
    "target": {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"},
}
HOURLY = {
    "source": {"table": "flights"},
    "window": {
        "time": "at",
        "size": "1 hour",
        "group_by": ["carrier"],
        "measures": {"flights": "count(*)", "late": "sum(delay)", "worst": "max(delay)"},
    },
}
DAILY = {
    "source": {"table": "hourly"},
    "window": {
        "time": "window_start",
        "size": "1 day",
        "measures": {"flights": "sum(flights)", "hours": "count(*)"},
    },
}
CARRIERS = {
    "source": {"table": "flights"},
    "query": {
        "keys": ["carrier"],
        "sql": "select carrier, count(*) c, avg(delay) d from flights group by carrier",
    },
}


class Chain:
    """A pipeline of a landing flow and derived flows, in a directory of its own."""

    def __init__(self, home: Path, spark: SparkSession, **flows: Any) -> None:
        self.home, self.spark, self.files, self.runs, self.seq = home, spark, 0, 0, 0
        (home / "landing").mkdir(parents=True)
        self.document = {
            "pipeline": "p",
            "lake": str(home / "lake"),
            "flows": {"flights": FLIGHTS, **flows},
        }
        self.spec = PipelineSpec.model_validate(self.document)

    def layout(self, flow: str) -> FlowHome:
        return self.spec.layout(flow)

    def request(self, flow: str, step: Step = "drain") -> Request:
        return Request(
            spec=self.spec, flow=flow, step=step, run_id=f"run {self.runs}", root=str(self.home)
        )

    def deliver(self, *rows: dict[str, Any]) -> None:
        self.files += 1
        path = self.home / "landing" / f"{self.files:03}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write_pipeline(self) -> None:
        """Write the file for commands that are typed."""
        path = self.home / "dags" / "pipelines" / "p.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.document))

    def row(
        self, number: int, minutes: int | None, carrier: str | None = "AA", **more: Any
    ) -> dict[str, Any]:
        self.seq += 1
        at = None if minutes is None else (START + timedelta(minutes=minutes)).isoformat()
        return {"id": number, "seq": self.seq, "carrier": carrier, "at": at, "delay": 1, **more}

    def drain(self, flow: str, **hooks: Any) -> StepReport:
        return drain(self.request(flow), self.spark, progress=lambda line: None, **hooks)

    def check(self, flow: str) -> StepReport:
        return check(self.request(flow, "check"), self.spark)

    def run(self, *flows: str) -> None:
        """Drain and check each flow, in the order they run."""
        self.runs += 1
        for flow in flows or self.spec.graph.order:
            self.drain(flow)
            self.check(flow)

    def waits(self, flow: str) -> bool:
        """Whether a plan of the flow finds work for a drain."""
        return plan(self.request(flow, "plan"), now())[0].drain

    def proven(self, flow: str) -> bool:
        return self.proof(flow).holds

    def proof(self, flow: str) -> Certificate:
        declared = self.spec.declared(flow)
        assert isinstance(declared, DerivedFlow)
        return prove(
            self.layout(flow), declared, self.sources(flow), self.layout(flow).tables.target
        )

    def sources(self, flow: str) -> list[Table]:
        """The tables that a flow reads, as they are published."""
        found = []
        for one in self.spec.declared(flow).source.read:  # type: ignore[union-attr]
            source = self.layout(one.written_by)
            pointer = published.published(source)
            assert pointer is not None
            found.append(Table(source.tables.target.path, pointer.version))
        return found

    def rows(self, flow: str) -> list[tuple[Any, ...]]:
        table = (
            self.spark.read.format("delta")
            .load(self.layout(flow).tables.target.path)
            .drop("_changed_at")
        )
        return sorted((tuple(row) for row in table.collect()), key=str)


@pytest.fixture
def chain(spark: SparkSession, tmp_path: Path) -> Callable[..., Chain]:
    return lambda **flows: Chain(tmp_path / "project", spark, **flows)


@pytest.mark.full
@pytest.mark.parametrize("steps", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_chain_of_three_equals_its_queries_at_each_step(
    chain: Callable[..., Chain], steps: int
) -> None:
    draw, it = Random(5), chain(hourly=HOURLY, daily=DAILY)
    for step in range(steps):
        rows = [
            it.row(
                draw.randrange(25),
                draw.randint(0, 2000),
                draw.choice(("AA", "B6", None)),
                delay=draw.randint(0, 9),
            )
            for _ in range(12)
        ]
        if step:
            rows += [it.row(draw.randrange(25), 0, op="d") for _ in range(3)]
        it.deliver(*rows)
        it.run()
        # the feed is on from the end of the first drain, so that what reads the table begins there
        if step == 0:
            it.run()
            it.run()
        assert it.proven("hourly") and it.proven("daily"), step
    assert not any(it.waits(flow) for flow in it.spec.flows)


@pytest.mark.long
def test_first_rows_and_sessions_follow_every_change(chain: Callable[..., Chain]) -> None:
    once = {
        "source": {"table": "flights"},
        "deduplicate": {"keys": ["carrier"], "sequence_by": ["at"]},
    }
    worst = {
        "source": {"table": "flights"},
        "top": {"group_by": ["carrier"], "order_by": ["delay desc"], "rows": 2},
    }
    part = {
        "time": "at",
        "gap": "2 minutes",
        "group_by": ["carrier"],
        "measures": {"n": "count(*)"},
    }
    it = chain(once=once, worst=worst, visits={"source": {"table": "flights"}, "session": part})
    it.deliver(
        *(it.row(number, 10 - number, "AB"[number % 2], delay=number) for number in range(6))
    )
    it.run()
    it.run()  # the feed is on from the end of the first drain
    assert it.proven("once") and it.proven("worst") and it.proven("visits")
    assert _visits(it) == [("A", 6, 12, 3), ("B", 5, 11, 3)]
    # the first of A goes, one of B enters in front of both, and one of A moves to B
    it.deliver(it.row(4, 6, "A", op="d"), it.row(9, 1, "B", delay=7), it.row(2, 8, "B", delay=6))
    it.run("flights")
    ahead = {flow: _explained(it, flow) for flow in ("once", "worst", "visits")}
    it.run(*ahead)
    for flow, told in ahead.items():
        (row,) = ledger_table.recent(it.layout(flow), 1)
        assert 0 < row.reread <= sum(one.rows for one in told.sources), flow
        assert [one.changed for one in told.sources] == [3] and told.result is not None
        after = _explained(it, flow)
        assert after.sources == () and (after.images, after.reread) >= (row.records, row.reread)
    placed = [(row["carrier"], row["position"], row["id"]) for row in _dicts(it, "worst")]
    assert sorted(placed) == [("A", 1, 0), ("B", 1, 9), ("B", 2, 2)]
    assert sorted((row["carrier"], row["id"]) for row in _dicts(it, "once")) == [("A", 0), ("B", 9)]
    # of A's session the ends are left, 4 minutes apart; B has one earlier, and one in between
    assert _visits(it) == [("A", 10, 12, 1), ("B", 1, 3, 1), ("B", 5, 11, 4)]
    assert it.proven("once") and it.proven("worst") and it.proven("visits")
    (row,) = ledger_table.recent(it.layout("worst"), 1)
    assert (row.inserted, row.updated, row.deleted, row.unchanged, row.empty) == (0, 3, 1, 0, 0)
    it.deliver(it.row(0, 0, "A", op="d"))  # the last row of a group
    it.run()
    assert (
        it.proven("once")
        and it.proven("worst")
        and it.proven("visits")
        and {row["carrier"] for row in _dicts(it, "worst")} == {"B"}
    )


def _explained(it: Chain, flow: str) -> Explanation:
    declared = it.spec.declared(flow)
    assert isinstance(declared, DerivedFlow)
    return explain(FlowState.of(it.layout(flow)), declared, now())


def _visits(it: Chain) -> list[tuple[Any, ...]]:
    """Carrier, first and last minute plus the gap, rows of each session."""
    minutes = [
        (
            row["carrier"],
            *(int((row[name].astimezone(UTC) - START).total_seconds()) // 60 for name in _SPAN),
            row["n"],
        )
        for row in _dicts(it, "visits")
    ]
    return sorted(minutes)


_SPAN = ("session_start", "session_end")


def _dicts(it: Chain, flow: str) -> list[dict[str, Any]]:
    return [
        row.asDict()
        for row in it.spark.read.format("delta").load(it.layout(flow).tables.target.path).collect()
    ]


@pytest.mark.long
def test_a_change_without_effect_ends_at_the_first_flow(chain: Callable[..., Chain]) -> None:
    it = chain(hourly=HOURLY, daily=DAILY)
    it.deliver(it.row(1, 0), it.row(2, 90))
    for _ in range(3):
        it.run()
    assert it.rows("daily") and it.proven("daily")
    before = {flow: it.layout(flow).tables.target.version for flow in ("hourly", "daily")}
    it.deliver(it.row(1, 0, noise="other"))
    it.run("flights")
    assert it.waits("hourly")
    it.run("hourly")
    assert it.layout("hourly").tables.target.version == before["hourly"] + 1, (
        "an empty commit, the batch's record"
    )
    assert not it.waits("daily") and it.layout("daily").tables.target.version == before["daily"]
    assert not it.waits("hourly")


@pytest.mark.full
@pytest.mark.parametrize(
    "step",
    [
        "merged",
        *(pytest.param(step, marks=pytest.mark.long) for step in ("begun", "read", "recorded")),
    ],
)
def test_a_drain_that_died_goes_on(
    chain: Callable[..., Chain], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS", 3)
    it = chain(carriers=CARRIERS)
    it.deliver(*(it.row(number, number, "ABC"[number % 3]) for number in range(8)))
    it.run("flights")
    left = [step]

    def dying(name: str) -> None:
        if left and name == left[0]:
            left.clear()
            raise Injected(name)

    with pytest.raises(Injected):
        it.drain("carriers", reached=dying)
    report = it.check("carriers")
    assert report.outcome == "idle", "nothing is published between two versions of the source"
    it.run("carriers")
    rows = ledger_table.recent(it.layout("carriers"), 9)
    assert [(row.batch, row.slice) for row in rows] == [(0, 1), (1, 2), (2, 3)] and not it.waits(
        "carriers"
    )
    assert sum(row.inserted for row in rows) == 3 and len(it.rows("carriers")) == 3
    pinned = [unit for one in intake.slices(it.layout("carriers"), 1) for unit in one.units]
    read = inputs.by_batch(it.layout("carriers"))
    assert [read[row.place] for row in rows] == [
        [Input("tables/flights", -1, unit.until, unit.bytes, row.records)]
        for unit, row in zip(pinned, rows, strict=True)
    ]
    assert sum(row.records for row in rows) == 8 and all(row.bytes for row in rows)
    assert published.published(it.layout("carriers")) is not None


_KINDS = {
    "session": {
        "time": "at",
        "gap": "2 minutes",
        "group_by": ["carrier"],
        "measures": {"n": "count(*)"},
    },
    "deduplicate": {"keys": ["carrier"], "sequence_by": ["at"]},
    "top": {"group_by": ["carrier"], "order_by": ["delay desc"], "rows": 2},
}
_STEPS = ("begun", "read", "inputs", "merged", "recorded")


@pytest.mark.long
@pytest.mark.parametrize("step", _STEPS)
def test_changes_whose_drain_died_are_in_each_kind_of_table_once(
    chain: Callable[..., Chain], step: str
) -> None:
    """Of each kind, a drain of changes that move, split and delete rows dies at a step; the next
    one is right.
    """
    it = chain(
        **{kind: {"source": {"table": "flights"}, kind: part} for kind, part in _KINDS.items()}
    )
    it.deliver(*(it.row(number, number, "AB"[number % 2], delay=number) for number in range(8)))
    it.run()
    it.run()  # the feed is on from the end of the first drain
    it.deliver(
        it.row(3, 4, "A", delay=9),
        it.row(4, 0, "A", op="d"),
        it.row(9, 20, "B"),
        it.row(0, 11, "B"),
    )
    it.run("flights")
    for kind in _KINDS:
        died = list[str]()

        def dying(name: str, died: list[str] = died) -> None:
            if name == step and not died:
                died.append(name)
                raise Injected(name)

        with pytest.raises(Injected):
            it.drain(kind, reached=dying)
        assert died
        it.run(kind)
        assert it.proven(kind) and not it.waits(kind), kind
        rows = [row for row in ledger_table.recent(it.layout(kind), 9) if row.batch]
        assert [(row.batch, row.records) for row in rows] == [(1, 7)], kind


@pytest.mark.long
def test_a_fill_is_divided_by_the_partitions_of_its_source(
    chain: Callable[..., Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS", 5)
    apart = FLIGHTS | {"target": {"partition_by": ["carrier"]}}
    it = chain(
        flights=apart, hourly=HOURLY | {"target": {"partition_by": ["carrier"]}}, carriers=CARRIERS
    )
    it.deliver(
        *(
            it.row(number, 31 * number, "ABCD"[number % 4] if number % 5 else None)
            for number in range(20)
        )
    )
    it.run("flights")
    left = [2]

    def dying(name: str) -> None:
        left[0] -= name == "read"
        if left == [0]:
            raise Injected(name)

    with pytest.raises(Injected):
        it.drain("hourly", reached=dying)
    it.run("hourly", "carriers")
    for flow in ("hourly", "carriers"):
        rows = ledger_table.recent(it.layout(flow), 9)
        assert [row.records for row in rows] == [8, 4, 4, 4], "NULL is in the first range"
        (division,) = {
            unit.row["division"] for one in intake.slices(it.layout(flow), 1) for unit in one.units
        }
        assert Division.of(division).by == "carrier"
    assert it.proven("hourly")
    found = {
        row["carrier"]: row["c"]
        for row in it.layout("carriers").tables.target.rows("select carrier, c from t")
    }
    assert found == {None: 4, **dict.fromkeys("ABCD", 4)}

    hourly = it.layout("hourly").tables.target.path
    it.spark.sql(
        f"delete from delta.`{hourly}` where carrier = 'B' or window_start < timestamp'2026-03-01 01:30:00Z'"
    )
    for carrier in (
        "null",
        "'0'",
        "'Bb'",
        "'Z'",
    ):  # where no source row is: NULL, below, between and beyond the ranges
        at = "timestamp'2031-03-01 00:00:00Z'"
        it.spark.sql(
            f"insert into delta.`{hourly}` (window_start, carrier, flights) values ({at}, {carrier}, 1)"
        )
    assert not it.proven("hourly")
    again_from = reset.plan(it.request("hourly"))
    with open_flow(it.spec, "hourly", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(it.request("hourly"), again_from, by="me", accept_missing=False)
    it.run("hourly")
    again = [row for row in ledger_table.recent(it.layout("hourly"), 9) if row.generation == 2]
    assert len(again) == 4 and sum(row.deleted for row in again) == 4 and it.proven("hourly")


@pytest.mark.long
def test_a_reset_compares_the_whole_table(chain: Callable[..., Chain]) -> None:
    it = chain(hourly=HOURLY)
    it.deliver(it.row(1, 0), it.row(2, 90), it.row(3, 200))
    it.run()
    table = it.layout("hourly").tables.target.path
    it.spark.sql(
        f"delete from delta.`{table}` where flights = 1 and window_start < timestamp'2026-03-01 00:30:00Z'"
    )
    it.spark.sql(
        f"update delta.`{table}` set late = 77 where window_start > timestamp'2026-03-01 02:30:00Z'"
    )
    assert not it.proven("hourly") and not it.waits("hourly")
    found = reset.plan(it.request("hourly"))
    with open_flow(it.spec, "hourly", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(it.request("hourly"), found, by="me", accept_missing=False)
    it.run("hourly")
    assert it.proven("hourly") and generations.generation(it.layout("hourly")) == 2
    (row,) = [one for one in ledger_table.recent(it.layout("hourly"), 9) if one.generation == 2]
    assert (row.inserted, row.updated, row.unchanged) == (1, 1, 1)


@pytest.mark.long
def test_a_table_made_anew_is_red_until_a_reset(chain: Callable[..., Chain]) -> None:
    it = chain(hourly=HOURLY)
    it.deliver(it.row(1, 0))
    it.run()
    path = Path(it.layout("flights").tables.target.path)
    path.rename(path.with_name("aside"))
    with pytest.raises(TerminalError) as error:
        it.drain("hourly")
    assert error.value.code == "source-replaced"


@pytest.mark.long
def test_changes_that_were_pinned_before_a_rebuild_left_out_a_column_are_red_until_a_reset(
    chain: Callable[..., Chain],
) -> None:
    it = chain(hourly=HOURLY)
    it.deliver(it.row(1, 0), it.row(2, 90))
    it.run()
    it.run()  # the feed is on from the end of the first drain
    it.deliver(it.row(1, 0, delay=5), it.row(3, 10, "B6"))
    it.run("flights")

    def dying(name: str) -> None:
        raise Injected(name)

    with pytest.raises(Injected):
        it.drain("hourly", reached=dying)
    columns = {name: kind for name, kind in FLIGHTS["columns"].items() if name != "noise"}
    flows = it.document["flows"] | {"flights": FLIGHTS | {"columns": columns}}
    it.spec = PipelineSpec.model_validate(it.document | {"flows": flows})
    assert rebuild(it.request("flights"), it.spark, progress=lambda line: None).outcome == "done"
    it.check("flights")
    for _ in range(2):
        with pytest.raises(TerminalError) as error:
            it.drain("hourly")
        assert error.value.code == "source-replaced" and "lacks noise now" in error.value.found
        assert "draindown reset p/hourly" in error.value.next[0]
    found = reset.plan(it.request("hourly"))
    with open_flow(it.spec, "hourly", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(it.request("hourly"), found, by="me", accept_missing=False)
    it.run("hourly")
    assert it.proven("hourly") and not it.waits("hourly") and len(it.rows("hourly")) == 3


@pytest.mark.long
def test_windows_that_rows_in_time_may_still_change_are_told(chain: Callable[..., Chain]) -> None:
    it = chain(hourly=HOURLY, carriers=CARRIERS)
    it.deliver(it.row(1, 0), it.row(2, 90))
    for _ in range(2):
        it.run("flights")
        it.drain("hourly")
    report = it.check("hourly")
    assert report.check and report.check.open_windows == ""
    ahead = int((now() - START).total_seconds() // 60)
    it.deliver(it.row(3, ahead + 1), it.row(4, ahead + 70), it.row(5, ahead + 71, "B6"))
    it.run("flights")
    for flow in ("hourly", "carriers"):
        it.drain(flow)
    report = it.check("hourly")
    assert report.check and report.check.open_windows.startswith("3 windows from ")
    assert "open      3 windows from" in card([report])
    report = it.check("carriers")
    assert report.check and report.check.open_windows == "", "a query per key has no windows"


@pytest.mark.long
def test_a_copy_of_a_lake_goes_on_by_itself(chain: Callable[..., Chain], tmp_path: Path) -> None:
    it = chain(hourly=HOURLY, daily=DAILY)
    it.deliver(*(it.row(number, 50 * number) for number in range(6)))
    it.run()
    shutil.copytree(it.home / "lake", tmp_path / "copy")
    before = {path: path.stat().st_mtime_ns for path in (it.home / "lake").rglob("*")}
    (it.home / "lake").rename(tmp_path / "away")
    document = it.document | {"lake": str(tmp_path / "copy")}
    it.spec = PipelineSpec.model_validate(document)
    assert not it.waits("hourly")
    it.deliver(*(it.row(number, 50 * number + 7, "BB") for number in range(4)))
    it.run()
    assert it.proven("hourly") and it.proven("daily") and not it.waits("daily")
    (read,) = {
        row["input"] for row in it.layout("hourly").tables.inputs.rows("select input from t")
    }
    assert read == "tables/flights" and not (it.home / "lake").exists()
    (tmp_path / "away").rename(it.home / "lake")
    assert {path: path.stat().st_mtime_ns for path in before} == before, (
        "nothing of the original was written"
    )


@pytest.mark.long
def test_a_query_that_spark_refused_runs_once_it_is_corrected(chain: Callable[..., Chain]) -> None:
    wrong = CARRIERS | {
        "query": CARRIERS["query"]
        | {"sql": "select carrier, sum(carrier, 1) c from flights group by carrier"}
    }
    it = chain(carriers=wrong)
    it.deliver(*(it.row(number, 50 * number) for number in range(6)))
    it.run("flights")
    with pytest.raises(TerminalError) as error:
        it.drain("carriers")
    assert error.value.code == "invalid-derivation" and list(error.value.next) == [
        "draindown run p/carriers   # once the file is corrected",
        "draindown reset p/carriers   # once the source is corrected",
    ]
    it.spec = PipelineSpec.model_validate(
        it.document | {"flows": it.document["flows"] | {"carriers": CARRIERS}}
    )
    assert it.waits("carriers")
    it.run()
    assert it.rows("carriers") == [("AA", 6, 1.0)] and not it.waits("carriers")

    # back to the wrong one, whose batches are not in the table
    it.spec = PipelineSpec.model_validate(it.document)
    with pytest.raises(TerminalError) as error:
        it.drain("carriers")
    assert error.value.code == "derivation-changed", "rows are in the table"
