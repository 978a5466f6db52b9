"""examples/flights/beside.yaml over the demo's flights: their weather and airline, aircraft's days,
worst delays.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from draindown.config import loader
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.proof.compare import prove
from draindown.proof.pinned import proving
from draindown.runs.request import Request
from draindown.spark.checks.check import check
from draindown.spark.runs.drain import drain
from examples.flights import beside, derived, events, oracle

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_tables_beside_the_flights_are_right(spark: SparkSession, tmp_path: Path) -> None:
    pipelines, landing = tmp_path / "dags" / "pipelines", tmp_path / "landing"
    pipelines.mkdir(parents=True)
    for file in (
        ROOT / "dags" / "pipelines" / "flights.yaml",
        ROOT / "examples" / "flights" / "beside.yaml",
    ):
        shutil.copy(file, pipelines)
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    events.generate(landing, 0.01)
    written = beside.write(landing)
    assert written["airlines"] == 16 and written["weather"] > 25_000
    where = {"DRAINDOWN_LAKE": str(tmp_path / "lake"), "DRAINDOWN_LANDING": str(landing)}
    found = {
        one.pipeline: one
        for one in loader.load_all(pipelines, where)
        if isinstance(one, PipelineSpec)
    }
    own, inputs = found["flights_beside"], ("weather", "airlines", "flight_statuses")
    pairs = ("flights_weather", "flights_airlines", "status_at_departure")
    flows = (*inputs, *pairs, *derived.BESIDE)
    assert set(flows) == set(own.flows)
    assert own.declared("flights_weather").target.row_keys == [
        "origin",
        "time_bucket",
        "flight_id",
        "observed_at",
    ]
    for _ in range(2):  # feeds are on from the end of the first drains
        for spec, flow in [(found["flights"], "flights"), *((own, flow) for flow in flows)]:
            for step, run in (("drain", drain), ("check", check)):
                run(Request(spec=spec, flow=flow, step=step, run_id="r", root=str(tmp_path)), spark)  # type: ignore[operator]
    for flow in (*pairs, *derived.BESIDE):
        declared = own.declared(flow)
        assert isinstance(declared, DerivedFlow)
        with proving(own.layout(flow), declared.source) as pinned:
            assert prove(own.layout(flow), declared, pinned.sources, pinned.table).holds
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        for name in ("flights", *inputs, *pairs):
            rows = QueryBuilder().register(
                "t", DeltaTable(str(tmp_path / "lake" / "tables" / name))
            )
            db.register(name, rows.execute("select * from t").read_all())
        flights = db.sql("select count(*) from flights").fetchall()[0][0]
        before = "date_diff('minute', observed_at, sched_dep)"
        (both,) = db.sql(
            f"select count(*), count(temp), count(distinct flight_id), max({before}), min({before}) "
            "from flights_weather"
        ).fetchall()
        assert (
            flights == both[2] > 500
            and flights <= both[0] <= 2 * flights
            and 0.95 * flights < both[1] < both[0]
        )
        assert (both[3], both[4]) == (60, 0)
        named = "select f.carrier, l.airline, l.airlines_found from flights f join flights_airlines l using (flight_id)"
        wrong = f"select * from ({named}) n left join airlines using (carrier) where name is distinct from airline"
        assert db.sql(f"select count(*) from ({wrong})").fetchall() == [(0,)]
        assert db.sql(f"select count(*) from ({named}) where airlines_found").fetchall() == [
            (flights,)
        ]
        (statuses,) = db.sql(
            "select count(*), count(*) filter (said is distinct from status_then), count(distinct status_then), "
            "count(*) filter (status_then <> status) from (select d.*, "
            'if(h."__END_AT" is null or d.sched_dep < h."__END_AT", h.status, null) as said from status_at_departure d '
            'asof left join flight_statuses h on d.flight_id = h.flight_id and d.sched_dep >= h."__START_AT")'
        ).fetchall()
        assert statuses[:2] == (flights, 0) and statuses[2] > 1 and statuses[3] > 0.5 * flights
    assert own.layout("flights_airlines").tables.target.exists
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        oracle.expect(db, landing)
        compared = [
            derived.compare_derived(db, tmp_path / "lake", table) for table in derived.BESIDE
        ]
        assert [(one.table, one.ok, one.expected > 20) for one in compared] == [
            (name, True, True) for name in derived.BESIDE
        ], compared
    days = own.layout("aircraft_days").tables.target.rows("select max(flights) as most from t")
    assert days[0]["most"] > 1, "an aircraft that left twice on a day"
