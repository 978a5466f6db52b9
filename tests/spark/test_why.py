"""`draindown why` of a drained lake: the places that it prints, read raw by this test, make the row
or its absence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.provenance.model import Trace
from draindown.provenance.why import Question, why
from tests.faults.derived import PAIRS
from tests.spark.test_derived_flow import CARRIERS, DAILY, FLIGHTS, HOURLY, START, Chain

_SOURCE = {"files": "landing/*", "format": "json", "max_files_per_trigger": 2}
_FLOWS: Mapping[str, Any] = {
    "flights": FLIGHTS | {"source": _SOURCE},
    "log": {"source": _SOURCE, "columns": FLIGHTS["columns"]},
    "hourly": HOURLY,
    "daily": DAILY,
    "carriers": CARRIERS,
    "runs": {
        "source": {"table": "flights"},
        "session": {
            "time": "at",
            "gap": "3 hours",
            "group_by": ["carrier"],
            "measures": {"c": "count(*)", "d": "sum(delay)"},
        },
    },
    "firsts": {
        "source": {"table": "log"},
        "deduplicate": {"keys": ["id"], "sequence_by": ["seq"], "keep": "first"},
    },
    "worst": {
        "source": {"table": "flights"},
        "top": {"group_by": ["carrier"], "order_by": ["delay desc"], "rows": 3},
    },
    "statuses": {
        "source": {"table": "log"},
        "target": {
            "keys": ["id"],
            "sequence_by": ["seq"],
            "stored_as_scd_type": 2,
            "track_history": ["carrier", "delay"],
        },
    },
    "paired": PAIRS["paired"],
    "named": PAIRS["named"],
}


class Lake:
    """A chain that drained random changes in three batches, with all kinds of derivations behind
    them.
    """

    def __init__(self, home: Path, spark: SparkSession) -> None:
        self.it, self.draw = Chain(home, spark, **_FLOWS), Random(45)
        for _ in range(6):
            self.it.deliver(*(self._row() for _ in range(45)))
        for _ in range(3):  # each flow switches on its feed for the next one
            self.it.run()
        self.rows = {
            name: self.it.layout(name).tables.target.rows("select * from t")
            for name in self.it.spec.flows
        }

    def _row(self) -> dict[str, Any]:
        draw = self.draw
        row = self.it.row(
            draw.randrange(90),
            draw.choice((None, *range(0, 3000, 7))),
            draw.choice(("A", "B", "C", None)),
        )
        row |= {"delay": draw.choice((None, 1, 5, 9)), "op": "d" if draw.random() < 0.12 else "u"}
        if draw.random() < 0.06:
            row["seq"] = "late"
        if draw.random() < 0.06:
            row["seq"] = draw.randrange(1, 200)
        return row

    def why(self, flow: str, limit: int = 1000, **key: Any) -> list[Trace]:
        texts = {name: value if value is None else _text(value) for name, value in key.items()}
        asked = Question(
            self.it.spec,
            flow,
            self.it.home,
            texts,
            limit,
            False,
            lambda _: self.it.spec,
            lambda _: None,
        )
        return why(asked)

    def one(self, flow: str, row: Mapping[str, Any]) -> Trace:
        keys = self.it.spec.declared(flow).target.row_keys
        (found,) = self.why(flow, **{name: row[name] for name in keys})
        assert found.row is not None and {name: found.row[name] for name in keys} == {
            name: row[name] for name in keys
        }
        assert not found.gone, found.gone
        return found


def _text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _raw(unit: str, position: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(unit).read_text().splitlines()[position - 1])
    return found


def _records(trace: Trace) -> Iterator[dict[str, Any]]:
    """The raw records behind all source rows that count, read here."""
    if trace.state == "landed":
        (won,) = [one for one in trace.records if one.fate == "applied"]
        assert json.loads(won.raw) == _raw(won.input, won.position)
        yield _raw(won.input, won.position)
    for one in trace.sources:
        if one.counts:
            yield from _records(one)


def _sum(records: list[dict[str, Any]]) -> int | None:
    known = [one["delay"] for one in records if one["delay"] is not None]
    return sum(known) if known else None


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_hundred_keys_lead_to_the_records_that_made_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "project", spark)
    draw, asked = Random(1), 0
    for row in draw.sample(lake.rows["flights"], min(50, len(lake.rows["flights"]))):
        (record,) = _records(lake.one("flights", row))
        assert {name: record[name] for name in ("id", "seq", "carrier", "delay")} == {
            name: row[name] for name in ("id", "seq", "carrier", "delay")
        }
        asked += 1
    for row in draw.sample(lake.rows["log"], 20):
        (found,) = lake.why(
            "log", _origin=f"{row['_origin']['input']}:{row['_origin']['position']}"
        )
        (record,) = _records(found)
        assert (record["id"], record["seq"]) == (row["id"], row["seq"])
        asked += 1
    asked += _absent(lake)
    for row in draw.sample(lake.rows["hourly"], 50):
        records = list(_records(found := lake.one("hourly", row)))
        assert (
            (len(records), _sum(records))
            == (row["flights"], row["late"])
            == (found.number["flights"], row["late"])
        )
        asked += 1
    for row in lake.rows["carriers"]:
        records = list(_records(lake.one("carriers", row)))
        assert len(records) == row["c"] and {record["carrier"] for record in records} == {
            row["carrier"]
        }
        asked += 1
    for row in lake.rows["runs"][:15]:
        records = list(_records(lake.one("runs", row)))
        assert (len(records), _sum(records)) == (row["c"], row["d"])
        asked += 1
    for name in ("firsts", "worst"):
        for row in draw.sample(lake.rows[name], 8):
            (record,) = _records(lake.one(name, row))
            assert (record["id"], record["seq"], record["delay"]) == (
                row["id"],
                row["seq"],
                row["delay"],
            )
            asked += 1
    for row in draw.sample(lake.rows["statuses"], 10):
        records = list(_records(lake.one("statuses", row)))
        newest = max(records, key=lambda record: record["seq"])
        assert min(record["seq"] for record in records) == row["__START_AT"]
        assert (newest["seq"], newest["carrier"], newest["delay"]) == (
            row["seq"],
            row["carrier"],
            row["delay"],
        )
        asked += 1
    for row in draw.sample(lake.rows["named"], 10):
        found = lake.one("named", row)
        first, *others = found.sources
        assert (first.table, first.key) == ("flights", {"id": row["id"]})
        assert [one.table for one in others] == (["carriers"] if row["carriers_found"] else [])
        asked += 1
    for row in draw.sample(lake.rows["paired"], 10):
        found = lake.one("paired", row)
        starts = [
            one.row["window_start"]
            for one in found.sources
            if one.table == "hourly" and one.counts and one.row
        ]
        assert starts == ([row["window_start"]] if row["window_start"] else [])
        asked += 1
    for row in lake.rows["daily"]:
        found = lake.one("daily", row)
        hours = [one.row for one in found.sources if one.row]
        assert (
            len(hours) == row["hours"] and sum(hour["flights"] for hour in hours) == row["flights"]
        )
        assert all(
            one.sources and all(source.records for source in one.sources) for one in found.sources
        )
        asked += 1
    assert asked >= 200


def _absent(lake: Lake) -> int:
    """Hold what is said of keys that no row has against all raw files. Return how many were asked
    for.
    """
    records = [
        (str(file), at, json.loads(line))
        for file in sorted((lake.it.home / "landing").iterdir())
        for at, line in enumerate(file.read_text().splitlines(), 1)
    ]
    there = {row["id"] for row in lake.rows["flights"]}
    missing = [number for number in range(96) if number not in there]
    states = set()
    for number in missing:
        (found,) = lake.why("flights", id=number)
        own = [(file, at, record) for file, at, record in records if record["id"] == number]
        accepted = [record for _, _, record in own if isinstance(record["seq"], int)]
        states.add(found.state)
        if not own:
            assert found.state == "never-seen" and not found.records
        elif not accepted:
            assert found.state == "quarantined"
        else:
            assert found.state == "deleted"
            last = max(accepted, key=lambda record: (record["seq"], record["op"] == "d"))
            (deleted,) = [one for one in found.records if one.fate == "deleted"][-1:]
            assert last["op"] == "d" and _raw(deleted.input, deleted.position) == last
        told = {(one.input, one.position) for one in found.records}
        assert told == {(file, at) for file, at, _ in own}
    assert {"never-seen", "deleted"} <= states
    nowhere = START + timedelta(days=900)
    (found,) = lake.why("hourly", window_start=nowhere, carrier="A")
    assert found.state == "never-seen" and found.row is None
    return len(missing) + 1
