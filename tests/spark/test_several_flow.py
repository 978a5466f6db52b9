"""A flow over two tables as it runs, through real streams; replays of earlier slices, and a rebuild
beside.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.config import loader
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.doctor.examination import examine
from draindown.flow import generations
from draindown.flow.state import FlowState
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.planning.explanation import explain
from draindown.planning.plan import plan, planned
from draindown.recovery import rebuild as rebuild_plan
from draindown.recovery import replay as replay_plan
from draindown.runs.request import Again, Request, Step
from draindown.sources import intake
from draindown.sources.tables import registered
from draindown.sources.tables import source as tables
from draindown.sources.tables.upstream import FEED
from draindown.spark.checks.check import check
from draindown.spark.derived.whole import prove
from draindown.spark.runs.drain import drain
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_input import replay
from tests.landing import Injected
from tests.spark.test_derived_flow import DAILY, HOURLY, Chain

OWNERS = {
    "source": {"files": "landing_owners/*", "format": "json"},
    "columns": {
        "code": "string not null",
        "seq": "int not null",
        "op": "string",
        "owner": "string",
    },
    "target": {"keys": ["code"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"},
}
SQL = (
    "select f.carrier, f.n, o.owner from (select carrier, count(*) as n from flights group by carrier) f "
    "left join owners o on f.carrier = o.code"
)
OWNED = {
    "source": {"tables": ["flights", {"table": "owners", "keys": {"carrier": "code"}}]},
    "query": {"keys": ["carrier"], "sql": SQL},
}


class Two(Chain):
    """Landing flows `flights` and `owners`, and `owned` over both."""

    def __init__(self, home: Path, spark: SparkSession, **flows: Any) -> None:
        super().__init__(home, spark)
        (home / "landing_owners").mkdir()
        document = json.loads(self.spec.model_dump_json(include={"pipeline", "lake"}))
        own = {
            "flights": json.loads(self.spec.flows["flights"].model_dump_json(exclude_none=True)),
            "owners": OWNERS,
        }
        self.spec = PipelineSpec.model_validate(document | {"flows": {**own, **flows}})

    def owners(self, *rows: dict[str, Any]) -> None:
        self.files += 1
        path = self.home / "landing_owners" / f"{self.files:03}.json"
        path.write_text("".join(json.dumps({"seq": self.files} | row) + "\n" for row in rows))

    def right(self) -> bool:
        """Whether the table is what DuckDB computes from both tables, and what Spark proves it to
        be.
        """
        found = self.layout("owned").tables.target.rows("select carrier, n, owner from t")
        with duckdb.connect() as db:
            for name in ("flights", "owners"):
                db.register(name, self.layout(name).tables.target.query("select * from t"))
            expected = db.execute(SQL).fetchall()
        return sorted((tuple(row.values()) for row in found), key=str) == sorted(expected, key=str)


@pytest.fixture
def it(spark: SparkSession, tmp_path: Path) -> Two:
    """All flows are current."""
    it = Two(tmp_path / "project", spark, owned=OWNED)
    it.deliver(
        *(it.row(number, number, "ABC"[number % 3]) for number in range(9)), it.row(9, 0, None)
    )
    it.owners({"code": "A", "owner": "ann"}, {"code": "B", "owner": "bob"})
    for _ in range(2):
        it.run()
    assert it.right() and not it.waits("owned")
    return it


@pytest.mark.full
def test_a_change_of_one_table_moves_the_flow(it: Two) -> None:
    it.owners({"code": "A", "op": "d"}, {"code": "C", "owner": "carl"})
    it.run("flights", "owners")
    assert it.waits("owned")
    declared = it.spec.declared("owned")
    assert isinstance(declared, DerivedFlow)
    ahead = explain(FlowState.of(it.layout("owned")), declared, now())
    it.run("owned")
    (row,) = [one for one in ledger_table.recent(it.layout("owned"), 9) if one.slice == 2]
    assert (
        it.right()
        and (row.recomputed, row.updated, row.inputs) == (2, 2, 2)
        and not it.waits("owned")
    )
    assert [one.changed for one in ahead.sources] == [0, 2] and ahead.result is not None
    assert 0 < row.reread <= sum(one.rows for one in ahead.sources)
    after = explain(FlowState.of(it.layout("owned")), declared, now())
    assert after.sources == () and (after.images, after.reread) >= (row.records, row.reread)


@pytest.mark.long
def test_either_table_moves_the_flow_and_neither_leaves_it_idle(it: Two) -> None:
    it.owners({"code": "A", "op": "d"}, {"code": "C", "owner": "carl"})
    it.run("flights", "owners")
    assert it.waits("owned")
    left = ["merged"]

    def dying(name: str) -> None:
        if left and name == left[0]:
            left.clear()
            raise Injected(name)

    with pytest.raises(Injected):
        it.drain("owned", reached=dying)
    it.run("owned")
    (row,) = [one for one in ledger_table.recent(it.layout("owned"), 9) if one.slice == 2]
    assert it.right() and (row.recomputed, row.updated, row.inputs) == (2, 2, 2)
    it.deliver(
        it.row(0, 0, op="d"),
        it.row(3, 0, op="d"),
        it.row(6, 0, op="d"),
        it.row(1, 1, "C", noise="moved"),
    )
    it.owners({"code": "B", "owner": "bea"})
    it.run()
    assert it.right() and not it.waits("owned")
    it.deliver(it.row(2, 2, "C", noise="not read"))
    it.run("flights")
    before = it.layout("owned").tables.target.version
    it.run("owned")
    assert it.layout("owned").tables.target.version == before + 1 and not it.waits("owned"), (
        "an empty commit"
    )
    declared, pinned = it.spec.declared("owned"), [unit.until for unit in _newest(it).units]
    assert isinstance(declared, DerivedFlow)
    sources = [
        Table(it.layout(name).tables.target.path, at)
        for name, at in zip(("flights", "owners"), pinned, strict=True)
    ]
    assert prove(
        it.spark, it.layout("owned"), declared, sources, it.layout("owned").tables.target
    ).holds


def _newest(it: Two) -> Any:
    layout = it.layout("owned")
    return next(intake.slices(layout, 1, intake.newest(layout, 1)))


@pytest.mark.long
def test_a_replay_computes_again_what_a_range_touched_as_the_sources_are_now(it: Two) -> None:
    layout, times = it.layout("owned"), [datetime.now(UTC)]
    it.owners({"code": "C", "owner": "carl"})
    it.run()
    times.append(datetime.now(UTC))
    it.owners({"code": "C", "owner": "cora"}, {"code": "A", "owner": "abe"})
    it.deliver(it.row(1, 1, op="d"), it.row(4, 1, op="d"), it.row(7, 1, op="d"))  # no B any more
    it.run()
    it.spark.sql(f"update delta.`{layout.tables.target.path}` set owner = 'wrong'")
    request = it.request("owned").model_copy(
        update={"replay": Again(since=times[0], until=times[1])}
    )
    part = planned(request).plan
    assert part and part.drain and part.batches == 1
    left = ["read"]

    def dying(name: str) -> None:
        if left and name == left[0]:
            left.clear()
            raise Injected(name)

    with pytest.raises(Injected):
        replay(request, it.spark, reached=dying)
    report = replay(request, it.spark, progress=lambda line: None)
    assert report.outcome == "done"
    rows = {
        row["carrier"]: row["owner"]
        for row in layout.tables.target.rows("select carrier, owner from t")
    }
    assert rows == {None: "wrong", "A": "wrong", "C": "cora"}, "C as it is now, and no other key"
    (row,) = [one for one in ledger_table.recent(layout, 9) if one.kind == "replay"]
    assert (row.recomputed, row.updated, row.form) == (1, 1, "derive")
    assert replay(request, it.spark, progress=lambda line: None).outcome == "idle"
    assert not it.waits("owned")

    everything = it.request("owned").model_copy(
        update={"replay": Again(since=datetime(2020, 1, 1, tzinfo=UTC), until=now())}
    )
    assert replay(everything, it.spark, progress=lambda line: None).outcome == "done"
    assert it.right(), "the fill compares all"
    asked = everything.replay.model_copy(update={"again": True})  # type: ignore[union-attr]
    once_more = everything.model_copy(update={"replay": asked, "run_id": "once more"})
    before = layout.tables.target.version
    assert replay_plan.find(once_more).left
    replay(once_more, it.spark, progress=lambda line: None)
    changed = [one.rows_changed for one in layout.tables.target.commits_since(before)]
    assert it.right() and set(changed) == {(0, 0, 0)}, "harmless"
    it.run("owned")
    assert it.check("owned").outcome in ("done", "idle")


@pytest.mark.long
def test_windows_that_went_since_are_no_error_of_a_replay(
    spark: SparkSession, tmp_path: Path
) -> None:
    it = Chain(tmp_path / "project", spark, hourly=HOURLY)
    it.deliver(it.row(1, 0), it.row(2, 90))
    for _ in range(2):
        it.run()
    since = now()
    it.deliver(it.row(3, 300))
    it.run()
    until = now()
    it.deliver(it.row(3, 300, op="d"))
    it.run()
    request = it.request("hourly").model_copy(update={"replay": Again(since=since, until=until)})
    assert replay(request, it.spark, progress=lambda line: None).outcome == "done"
    (row,) = [one for one in ledger_table.recent(it.layout("hourly"), 9) if one.kind == "replay"]
    assert (row.recomputed, row.empty) == (1, 1) and it.proven("hourly")


@pytest.mark.long
def test_a_changed_query_is_computed_beside_and_swapped_in(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Chain(tmp_path / "project", spark, hourly=HOURLY, daily=DAILY)
    it.deliver(*(it.row(number, 50 * number, delay=number) for number in range(8)))
    for _ in range(3):
        it.run()
    layout, before = it.layout("hourly"), it.layout("hourly").tables.target.version
    (reader,) = registered.readers(it.layout("flights"))
    window = HOURLY["window"] | {"measures": {"flights": "count(*)", "latest": "max(delay)"}}
    document = json.loads(it.spec.model_dump_json(exclude_none=True))
    document["flows"]["hourly"]["window"] = window
    it.spec = PipelineSpec.model_validate(document)
    with pytest.raises(TerminalError) as error:
        it.drain("hourly")
    assert error.value.code == "derivation-changed" and any(
        "draindown rebuild" in one for one in error.value.next
    )
    it.deliver(it.row(8, 400, delay=3), it.row(0, 0, op="d"))
    it.run("flights")
    monkeypatch.setattr(tables, "ROWS", 4)
    found = rebuild_plan.plan(it.request("hourly"))
    assert (found.state, found.units, found.slices, found.missing, found.forgotten) == (
        "new",
        1,
        2,
        (),
        0,
    )

    def dying(name: str) -> None:
        if name == "staged":
            raise Injected(name)

    with pytest.raises(Injected):
        rebuild(it.request("hourly"), spark, progress=lambda line: None, reached=dying)
    assert layout.tables.target.version == before, "nothing live changed"
    newest = it.layout("flights").tables.target.version
    beside = dataclasses.replace(reader, version=newest, staged=2)
    assert newest > reader.version and registered.readers(it.layout("flights")) == [
        reader,
        beside,
    ], "kept for both"
    assert rebuild_plan.plan(it.request("hourly")).state == "begun"
    report = rebuild(it.request("hourly"), spark, progress=lambda line: None)
    assert report.outcome == "done" and generations.generation(layout) == 2
    columns = {"window_start", "window_end", "carrier", "flights", "latest", "_changed_at"}
    assert set(layout.tables.target.column_types) == columns
    assert it.check("hourly").outcome == "done" and it.proven("hourly")
    assert it.waits("daily")
    it.run("daily")
    assert it.proven("daily") and not it.waits("daily")
    it.deliver(it.row(9, 401, delay=9))
    it.run()
    assert it.proven("hourly") and it.proven("daily"), "the rebuilt generation goes on"
    assert not registered.readers(it.layout("flights"))[0].snapshot


@pytest.mark.long
def test_a_table_of_another_pipeline_is_followed_once_its_own_flow_has_switched_the_feed_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    def declare(name: str, **flows: Any) -> None:
        said = {"pipeline": name, "lake": str(tmp_path / "lake"), "flows": flows}
        (tmp_path / loader.DIRECTORY / f"{name}.yaml").write_text(yaml.safe_dump(said))

    def request(pipeline: str, flow: str, step: Step = "drain") -> Request:
        found = loader.load_alone(tmp_path / loader.DIRECTORY / f"{pipeline}.yaml", tmp_path, {})
        made = Request(
            spec=found, flow=flow, step=step, run_id=f"run {now().isoformat()}", root=str(tmp_path)
        )
        return Request.decode(made.encode())

    def run(pipeline: str, flow: str) -> None:
        drain(request(pipeline, flow), spark, progress=lambda line: None)
        check(request(pipeline, flow, "check"), spark)

    def deliver(number: int, **row: Any) -> None:
        (tmp_path / "landing_owners" / f"{number}.json").write_text(
            json.dumps({"seq": number, **row})
        )

    for made in (loader.DIRECTORY, Path("landing_owners")):
        (tmp_path / made).mkdir(parents=True)
    declare("crm", owners=OWNERS)
    deliver(1, code="A", owner="ann")
    run("crm", "owners")
    owners, owned = request("crm", "owners").layout, {"table": "owners"}
    assert owners.tables.target.properties.get(FEED) != "true"
    per = {"keys": ["code"], "sql": "select code, upper(owner) as owner from owners"}
    declare("shop", owned={"source": owned, "query": per})
    (waiting,) = plan(request("shop", "owned", "plan"), now())[1]
    assert waiting.next == "draindown run crm/owners" and "of pipeline crm" in waiting.detail
    assert "for shop/owned" in plan(request("crm", "owners", "plan"), now())[0].reasons["drain"]
    run("crm", "owners")
    assert owners.tables.target.properties[FEED] == "true"
    run("shop", "owned")
    deliver(2, code="B", owner="bob")
    deliver(3, code="A", op="d")
    run("crm", "owners")
    assert plan(request("shop", "owned", "plan"), now())[0].drain
    run("shop", "owned")
    found = request("shop", "owned").layout.tables.target.rows("select code, owner from t")
    assert (
        found == [{"code": "B", "owner": "BOB"}]
        and not plan(request("shop", "owned", "plan"), now())[0].drain
    )
    assert [str(one) for one in registered.readers(owners)] == ["shop/owned"]
    assert examine(request("crm", "owners")).looked["readers"].startswith("shop/owned from version")


def now() -> datetime:
    return datetime.now(UTC)
