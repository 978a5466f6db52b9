"""Joins and lookups as they run, through real streams: either side moves, crashes between, append
sides.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.gate import published
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.recovery import reset
from draindown.recovery.opening import Needs, open_flow
from draindown.sources.tables import source as tables
from draindown.spark.derived import notes
from draindown.spark.derived.registry import kind_of
from tests.landing import Injected
from tests.spark.test_derived_flow import FLIGHTS, START, Chain

WEATHER = {
    "source": {"files": "weather/*", "format": "json"},
    "columns": {
        "station": "bigint not null",
        "seq": "int not null",
        "op": "string",
        "airport": "string",
        "at": "timestamp",
        "temp": "int",
    },
    "target": {"keys": ["station"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"},
}
PART: dict[str, Any] = {
    "table": "weather",
    "on": {"carrier": "airport"},
    "interval": {"left": "at", "right": "at", "between": ["-10 minutes", "30 minutes"]},
    "how": "left_outer",
    "columns": {"station": "station", "at": "measured_at", "temp": "temp"},
}
JOINED = {"source": {"table": "flights"}, "join": PART}


class Paired(Chain):
    """A chain with a second landing flow, `weather`."""

    def __init__(self, home: Path, spark: SparkSession, **flows: Any) -> None:
        super().__init__(home, spark, **{"weather": WEATHER, "joined": JOINED, **flows})
        (home / "weather").mkdir()

    def measure(self, *rows: dict[str, Any]) -> None:
        self.files += 1
        path = self.home / "weather" / f"{self.files:03}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def station(
        self, number: int, minutes: int | None, airport: str | None = "AA", **more: Any
    ) -> dict[str, Any]:
        self.seq += 1
        at = None if minutes is None else (START + timedelta(minutes=minutes)).isoformat()
        return {
            "station": number,
            "seq": self.seq,
            "airport": airport,
            "at": at,
            "temp": 20,
            **more,
        }

    def pairs(self, name: str = "joined") -> list[tuple[Any, ...]]:
        """Flight and station of each row."""
        found = self.layout(name).tables.target.rows("select id, station from t")
        return sorted(((row["id"], row["station"]) for row in found), key=str)


@pytest.fixture
def paired(spark: SparkSession, tmp_path: Path) -> Callable[..., Paired]:
    return lambda **flows: Paired(tmp_path / "project", spark, **flows)


@pytest.mark.long
def test_a_join_follows_both_sides_in_either_order(paired: Callable[..., Paired]) -> None:
    it = paired()
    it.deliver(it.row(1, 0), it.row(2, 100), it.row(3, None), it.row(4, 5, None))
    it.measure(it.station(7, 20), it.station(8, 30), it.station(9, 31), it.station(6, 20, None))
    it.run()
    it.run()  # the feeds are on from the end of the first drains
    assert it.pairs() == [(1, 7), (1, 8), (2, None), (3, None), (4, None)] and it.proven("joined")
    it.measure(it.station(9, 90))  # a match comes: the row without one is corrected
    it.run()
    assert it.pairs() == [(1, 7), (1, 8), (2, 9), (3, None), (4, None)] and it.proven("joined")
    (row,) = ledger_table.recent(it.layout("joined"), 1)
    assert (row.inserted, row.deleted, row.used, row.records) == (1, 1, 2, 2)
    # both sides move, in one batch: to another time and to another key
    it.deliver(it.row(1, 95), it.row(2, 100, "B6"))
    it.measure(it.station(7, 101, "B6"))
    it.run("flights", "weather", "joined")
    assert it.pairs() == [(1, 9), (2, 7), (3, None), (4, None)] and it.proven("joined")
    # they move back, the right side in a batch before the left one's
    it.measure(it.station(7, 20))
    it.run("weather", "joined")
    assert it.pairs() == [(1, 9), (2, None), (3, None), (4, None)] and it.proven("joined")
    it.deliver(it.row(1, 0), it.row(2, 100))
    it.run("flights", "joined")
    assert it.pairs() == [(1, 7), (1, 8), (2, 9), (3, None), (4, None)] and it.proven("joined")
    it.deliver(it.row(2, 0, op="d"), it.row(3, 2))
    it.measure(it.station(8, 0, op="d"), it.station(7, 20, temp=21))
    it.run()
    assert it.pairs() == [(1, 7), (3, 7), (4, None)] and it.proven("joined")
    assert not any(it.waits(flow) for flow in it.spec.flows)


@pytest.mark.long
@pytest.mark.parametrize("step", ["begun", "read", "inputs", "merged", "recorded"])
def test_a_drain_that_died_between_two_scopes_of_a_row_goes_on(
    paired: Callable[..., Paired], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = paired()
    it.deliver(*(it.row(number, 60 * number) for number in range(12)))
    it.measure(*(it.station(number, 60 * number + 5) for number in range(12)))
    it.run()
    it.run()
    assert it.pairs() == [(number, number) for number in sorted(range(12), key=str)] and it.proven(
        "joined"
    )
    before = published.published(it.layout("joined"))
    monkeypatch.setattr(tables, "ROWS", 6)  # changes of many rows are several batches
    it.deliver(*(it.row(number, 60 * number + 600_000) for number in range(12)))
    it.measure(*(it.station(number, 60 * number + 600_005) for number in range(12)))
    it.run("flights", "weather")
    left = [2]

    def dying(name: str) -> None:
        left[0] -= name == step
        if left == [0]:
            raise Injected(name)

    with pytest.raises(Injected):
        it.drain("joined", reached=dying)
    found = it.pairs()
    # each row has two scopes, which are in batches of their own
    assert set(Counter(found).values()) != {1} or len(found) != 12, found
    assert (
        it.check("joined").outcome == "idle" and published.published(it.layout("joined")) == before
    )
    it.run("joined")
    assert it.pairs() == [(number, number) for number in sorted(range(12), key=str)] and it.proven(
        "joined"
    )
    rows = ledger_table.recent(it.layout("joined"), 99)
    numbers = sorted(row.batch for row in rows)
    assert all(other == one + 1 for one, other in pairwise(numbers)) and len(numbers) > 3
    assert (
        sum(row.inserted - row.deleted for row in rows) == 12
        and published.published(it.layout("joined")) != before
    )


def test_only_keys_that_no_row_shares_with_another_bucket_are_held_against_images() -> None:
    keys_alone = {name: PART[name] for name in ("table", "on", "columns")}
    for part, wrong in ((PART, 0), (keys_alone, 1)):
        flows = {"flights": FLIGHTS, "weather": WEATHER, "joined": JOINED | {"join": part}}
        flow = PipelineSpec.model_validate(
            {"pipeline": "p", "lake": "lake", "flows": flows}
        ).declared("joined")
        assert isinstance(flow, DerivedFlow)
        assert (
            len(kind_of(flow).wrong(BatchRow("p", "joined", 1, 2, "r", recomputed=1, used=0)))
            == wrong
        )


@pytest.mark.long
def test_a_right_row_is_counted_in_one_bucket_and_touches_keys_in_others(
    paired: Callable[..., Paired], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = paired()
    it.deliver(*(it.row(number, 60 * number) for number in range(8)))
    it.measure(*(it.station(number, 60 * number + 5) for number in range(8)))
    it.run()
    it.run()
    monkeypatch.setattr(tables, "ROWS", 3)
    # all change in `seq`, which the join does not read, and one in what it reads
    it.measure(
        *(it.station(number, 60 * number + 5, temp=20 + (number == 3)) for number in range(8))
    )
    it.run("weather", "joined")
    rows = [one for one in ledger_table.recent(it.layout("joined"), 9) if one.batch]
    assert len(rows) > 1 and sum(one.updated for one in rows) == 1 and it.proven("joined")
    apart = [(one.recomputed, one.used) for one in rows if one.recomputed]
    assert sorted(apart) == [(1, 0), (1, 2)], "the row's two keys are in two buckets"


@pytest.mark.long
def test_a_reset_in_several_batches_repairs_a_join(
    paired: Callable[..., Paired], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = paired()
    it.deliver(*(it.row(number, 60 * number, "ABCD"[number % 4]) for number in range(16)))
    it.measure(*(it.station(number, 60 * number + 5, "ABCD"[number % 4]) for number in range(12)))
    it.run()
    table = it.layout("joined").tables.target.path
    assert it.proven("joined") and len(it.rows("joined")) == 16
    it.spark.sql(f"delete from delta.`{table}` where id in (1, 15)")
    it.spark.sql(f"update delta.`{table}` set temp = 77 where id = 2")
    it.spark.sql(
        f"update delta.`{table}` set time_bucket = time_bucket - interval 40 minutes where id = 3"
    )
    assert not it.proven("joined")
    monkeypatch.setattr(tables, "ROWS", 7)
    found = reset.plan(it.request("joined"))
    with open_flow(it.spec, "joined", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(it.request("joined"), found, by="me", accept_missing=False)
    it.run("joined")
    rows = [one for one in ledger_table.recent(it.layout("joined"), 99) if one.generation == 2]
    assert it.proven("joined") and len(rows) == 4 and sum(row.records for row in rows) == 28
    assert [
        sum(getattr(row, name) for row in rows) for name in ("inserted", "updated", "deleted")
    ] == [3, 1, 1]


def test_rows_of_append_tables_are_joined_by_keys_alone(paired: Callable[..., Paired]) -> None:
    appended = {"target": {}}
    part = {name: PART[name] for name in ("table", "on")} | {
        "columns": ["temp"],
        "how": "left_outer",
    }
    flows = {
        "flights": FLIGHTS | appended,
        "weather": WEATHER | appended,
        "joined": JOINED | {"join": part},
    }
    it = paired(**flows)
    assert it.spec.declared("joined").target.row_keys == ["carrier", "left_origin", "right_origin"]
    it.deliver(it.row(1, 0), it.row(1, 0), it.row(2, 0, "B6"), it.row(3, 0, None))
    it.measure(it.station(7, 0), it.station(7, 0, temp=21))
    it.run()
    it.run()
    assert it.proven("joined") and len(it.rows("joined")) == 4 + 2
    it.measure(it.station(8, 0, "B6", temp=22), it.station(9, 0, None))
    it.deliver(it.row(1, 0))
    it.run()
    assert it.proven("joined") and len(it.rows("joined")) == 6 + 2
    (named,) = it.layout("joined").tables.target.rows(
        "select left_origin, right_origin from t where temp = 22"
    )
    unit = sorted((it.home / "landing").iterdir())[0].name
    assert named["left_origin"].endswith(f"{unit}:3") and named["right_origin"].endswith(":1")


AIRLINES = {
    "source": {"files": "weather/*", "format": "json"},
    "columns": {"code": "string not null", "seq": "int not null", "op": "string", "name": "string"},
    "target": {"keys": ["code"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"},
}
NAMED = {
    "source": {"table": "flights"},
    "lookup": {"table": "weather", "on": {"carrier": "code"}, "columns": ["name"]},
}


@pytest.mark.long
def test_a_lookup_follows_both_tables_and_tells_what_it_missed(
    paired: Callable[..., Paired], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = paired(weather=AIRLINES, joined=NAMED)
    assert it.spec.declared("joined").target.row_keys == ["id"]

    def airline(code: str, name: str | None, **more: Any) -> dict[str, Any]:
        it.seq += 1
        return {"code": code, "seq": it.seq, "name": name, **more}

    def names() -> list[tuple[Any, ...]]:
        found = it.layout("joined").tables.target.rows(
            "select id, name, weather_found from t order by id"
        )
        return [(row["id"], row["name"], row["weather_found"]) for row in found]

    it.deliver(it.row(1, 0), it.row(2, 0), it.row(3, 0, "B6"), it.row(4, 0, None))
    it.measure(airline("AA", "American"), airline("UA", None))
    it.run()
    it.run()
    assert names() == [
        (1, "American", True),
        (2, "American", True),
        (3, None, False),
        (4, None, False),
    ]
    assert it.proven("joined")
    # a change of one looked-up row touches its left rows; one misses no more, another moves to a
    # row without a name
    monkeypatch.setattr(notes, "MANY", 2)
    monkeypatch.setattr(notes, "TIMES", 1)
    it.measure(airline("AA", "American Airlines"), airline("B6", "JetBlue"))
    it.deliver(it.row(2, 0, "UA"))
    it.run("flights", "weather")
    report = it.drain("joined")
    it.check("joined")
    assert names() == [
        (1, "American Airlines", True),
        (2, None, True),
        (3, "JetBlue", True),
        (4, None, False),
    ]
    assert it.proven("joined")
    assert [one.kind for one in report.findings] == [], "fewer than one row for each changed one"
    (row,) = ledger_table.recent(it.layout("joined"), 1)
    assert (row.used, row.recomputed, row.updated) == (5, 3, 3)
    it.deliver(it.row(5, 0), it.row(6, 0), it.row(7, 0), it.row(2, 0), it.row(8, 0, "UA"))
    it.run("flights", "joined")
    it.measure(airline("AA", None, op="d"))
    it.run("weather")
    report = it.drain("joined")
    it.check("joined")
    assert it.proven("joined") and sum(not found for _, _, found in names()) == 6
    told = {one.kind: f"{one.subject} {one.detail}" for one in report.findings}
    assert told["lookup-missed"].startswith(
        "5 rows of 5 rows recomputed, which have no row in table weather"
    )
    assert "carrier AA of table weather alone 5" in told["lookup-amplified"]
    assert not any(it.waits(flow) for flow in it.spec.flows)


PAST = {
    "source": {"files": "weather/*", "format": "json"},
    "columns": {
        "code": "string not null",
        "since": "timestamp not null",
        "op": "string",
        "name": "string",
    },
    "target": {
        "keys": ["code"],
        "sequence_by": ["since"],
        "stored_as_scd_type": 2,
        "apply_as_deletes": "op = 'd'",
    },
}
ASKED = {
    "source": {"table": "flights"},
    "lookup": {
        "table": "weather",
        "on": {"carrier": "code"},
        "columns": ["name"],
        "as_of": "at",
    },
}


@pytest.mark.full
@pytest.mark.parametrize("moves", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_lookup_at_a_time_follows_events_of_the_history_that_come_late(
    paired: Callable[..., Paired], moves: bool
) -> None:
    it = paired(weather=PAST, joined=ASKED)

    def airline(code: str, minutes: int, name: str | None, **more: Any) -> dict[str, Any]:
        return {
            "code": code,
            "since": (START + timedelta(minutes=minutes)).isoformat(),
            "name": name,
            **more,
        }

    def names() -> list[tuple[Any, ...]]:
        found = it.layout("joined").tables.target.rows(
            "select id, name, weather_found from t order by id"
        )
        return [(row["id"], row["name"] if row["weather_found"] else "-") for row in found]

    it.deliver(
        it.row(1, 0),
        it.row(2, 50),
        it.row(3, 99),
        it.row(4, 100),
        it.row(5, None),
        it.row(6, 60, "B6"),
    )
    it.measure(airline("AA", 50, "American"), airline("AA", 100, None, op="d"))
    it.run("flights", "weather")
    it.run()  # the feeds are on from the end of the first drains
    assert names() == [(1, "-"), (2, "American"), (3, "American"), (4, "-"), (5, "-"), (6, "-")]
    # a late event splits the run, and one before it begins another: rows outside of the times
    # between stay as they are
    it.measure(
        airline("AA", 70, "American Airlines"), airline("AA", 10, None), airline("UA", 0, "United")
    )
    it.run("weather", "joined")
    assert names() == [
        (1, "-"),
        (2, "American"),
        (3, "American Airlines"),
        (4, "-"),
        (5, "-"),
        (6, "-"),
    ]
    (row,) = ledger_table.recent(it.layout("joined"), 1)
    assert (row.recomputed, row.updated, row.unchanged) == (1, 1, 0) and it.proven("joined")
    if not moves:
        return
    # a row of either side moves, in one batch: to another time, to another key, and what a run is
    # ended by
    it.deliver(it.row(1, 20), it.row(6, 60, "UA"))
    it.measure(airline("UA", 60, None, op="d"))
    it.run("weather", "flights")
    report = it.drain("joined")
    it.check("joined")
    assert names() == [
        (1, None),
        (2, "American"),
        (3, "American Airlines"),
        (4, "-"),
        (5, "-"),
        (6, "-"),
    ]
    (missed,) = [one for one in report.findings if one.kind == "lookup-missed"]
    assert missed.subject == "1 row" and "at its at" in missed.detail
    assert it.proven("joined") and not any(it.waits(flow) for flow in it.spec.flows)
