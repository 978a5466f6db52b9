"""The demo's data is what its manifest says; the oracle, the generator and a plain fold agree on
what comes of it.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pandas as pd
import pytest
from deltalake import write_deltalake

from draindown.base.errors import TerminalError
from examples.flights import events, life, oracle

FRACTION = 0.02
STATUSES = {"scheduled", "departed", "arrived", "diverted", "cancelled"}
CONTRACT = [
    "flight_id",
    "status",
    "origin",
    "dest",
    "carrier",
    "tailnum",
    "sched_dep",
    "dep_delay",
    "arr_delay",
    "updated_at",
]
INTS, TIMES = {"dep_delay", "arr_delay"}, {"sched_dep", "updated_at"}


@dataclass(frozen=True)
class FirstYear:
    """The files as the first call left them; `lost` was removed before the second."""

    lost: Path
    lost_bytes: bytes
    written: dict[Path, int]


@pytest.fixture(scope="module")
def first_year(tmp_path_factory: pytest.TempPathFactory) -> FirstYear:
    target = tmp_path_factory.mktemp("demo") / "landing"
    events.generate(target, FRACTION)
    lost, *others = sorted((target / "flights").iterdir())
    first = FirstYear(lost, lost.read_bytes(), {path: path.stat().st_mtime_ns for path in others})
    lost.unlink()
    events.more(target)
    return first


@pytest.fixture(scope="module")
def landing(first_year: FirstYear) -> Path:
    """A fiftieth of the flights and one day more."""
    return first_year.lost.parent.parent


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def raw_lines(landing: Path) -> Iterator[tuple[str, int, bytes]]:
    for path in sorted((landing / "flights").glob("*.json.gz")):
        for position, line in enumerate(gzip.decompress(path.read_bytes()).splitlines(), start=1):
            yield path.name, position, line


def judge(row: Any) -> tuple[str, dict[str, Any]]:
    """Reason to refuse a row, or '' and its typed columns."""
    if not isinstance(row, dict):
        return "malformed", {}
    typed: dict[str, Any] = {}
    for name in CONTRACT:
        value = row.get(name)
        if value is None and name in {"flight_id", "status", "updated_at"}:
            return f"not_null/{name}", {}
        try:
            typed[name] = (
                value
                if value is None
                else int(value)
                if name in INTS
                else moment(value)
                if name in TIMES
                else value
            )
        except ValueError:
            return f"type/{name}", {}
    if typed["status"] == "withdrawn":
        return "", typed
    if typed["status"] not in STATUSES:
        return "rule:known_status", {}
    return ("" if 2000 <= typed["updated_at"].year < 2100 else "rule:plausible_time"), typed


def fold(landing: Path) -> tuple[dict[str, dict[str, Any]], Counter[tuple[str, int, str]]]:
    """The table and the quarantined rows, in plain Python."""
    best: dict[str, tuple[Any, dict[str, Any]]] = {}
    refused: Counter[tuple[str, int, str]] = Counter()
    for file, position, line in raw_lines(landing):
        if not line:
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        reason, typed = judge(row)
        if reason:
            refused[file, position, reason] += 1
            continue
        content = [(typed[c] is not None, typed[c]) for c in CONTRACT]
        rank = (typed["updated_at"], typed["status"] == "withdrawn", content)
        rescued = {"gate": row["gate"]} if "gate" in row else None
        typed |= {
            "flight_month": typed["flight_id"][:7],
            "_rescued_data": rescued and json.dumps(rescued),
        }
        key = typed["flight_id"]
        if key not in best or rank > best[key][0]:
            best[key] = (rank, typed)
    return {key: row for key, (_, row) in best.items() if row["status"] != "withdrawn"}, refused


def write_lake(lake: Path, rows: list[dict[str, Any]], refused: list[tuple[str, int, str]]) -> None:
    """A lake as the engine would leave it, written by another hand."""
    frame = pd.DataFrame(rows).astype({"dep_delay": "Int32", "arr_delay": "Int32"})
    write_deltalake(str(lake / "tables/flights"), frame)
    kept = [
        ({"input": f"/some/where/{file}", "position": position}, *f"{reason}/".split("/")[:2])
        for file, position, reason in refused
    ]
    write_deltalake(
        str(lake / "quarantine/flights"), pd.DataFrame(kept, columns=["origin", "reason", "field"])
    )


@pytest.fixture(scope="module")
def truth(landing: Path) -> tuple[list[dict[str, Any]], list[tuple[str, int, str]]]:
    table, refused = fold(landing)
    return list(table.values()), list(refused.elements())


def test_a_second_call_does_nothing(landing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "live", pytest.fail)
    assert events.generate(landing, FRACTION) == events.read_manifest(landing)


def test_the_same_bytes_come_again_and_files_that_are_right_are_left_alone(
    first_year: FirstYear,
) -> None:
    assert first_year.lost.read_bytes() == first_year.lost_bytes
    assert {path: path.stat().st_mtime_ns for path in first_year.written} == first_year.written


def test_other_demo_data_is_not_overwritten(landing: Path) -> None:
    with pytest.raises(TerminalError) as caught:
        events.generate(landing, 0.5)
    assert caught.value.code == "demo-landing-differs"


@pytest.fixture(scope="module")
def tenth() -> Iterator[duckdb.DuckDBPyConnection]:
    with life.live(0.1, 2013) as con:
        yield con


def test_every_kind_of_mess_is_there_at_a_tenth(tenth: duckdb.DuckDBPyConnection) -> None:
    kinds = {
        kind
        for (kind,) in tenth.execute(
            "select distinct unnest([status, origin_of, fault]) from event"
        ).fetchall()
    }
    wanted = {
        "blank",
        "redelivered_row",
        "withdrawn",
        "put_back",
        "tie",
        "stale_after_withdrawn",
        "tie_with_withdrawn",
    }
    assert (wanted | set(life.REASONS)) - kinds == set()


def test_departures_are_told_in_utc_whatever_the_season(tenth: duckdb.DuckDBPyConnection) -> None:
    found = tenth.execute(
        """select f.sched, s.month, s.day, s.hour, s.minute from flight f join source s
        on f.flight_id = format('2013-{:02d}-{:02d}-{}-{}-{}', month, day, s.carrier, flight, s.origin)
        order by flight_id"""
    ).fetchall()
    for seconds, *local in found[::97]:
        there = datetime.fromtimestamp(seconds, ZoneInfo("America/New_York"))
        assert [there.month, there.day, there.hour, there.minute] == local


def test_generator_oracle_and_plain_fold_agree(
    landing: Path, tmp_path: Path, truth: tuple[list[Any], list[Any]]
) -> None:
    write_lake(tmp_path, *truth)
    found, manifest = oracle.compare(tmp_path, landing), events.read_manifest(landing)
    assert manifest is not None
    assert found.ok, found.as_text()
    assert found.table_sha256 == manifest.table_sha256
    assert found.reasons == {reason: n for reason, n in manifest.quarantined.items() if n}
    assert (found.rows_found, found.blank) == (manifest.keys, manifest.lines - manifest.events)


def test_the_oracle_sees_every_kind_of_wrong_row(
    landing: Path, tmp_path: Path, truth: tuple[list[Any], list[Any]]
) -> None:
    rows, refused = truth
    changed = [
        rows[1] | {"arr_delay": 12345},
        rows[2] | {"_rescued_data": '{"other":1}'},
        rows[3] | {"updated_at": moment("2014-05-05T00:00:00Z")},
    ]
    invented = [
        rows[4] | {"flight_id": "2013-02-30-ZZ-1-EWR"},
        rows[5],
    ]  # a key nobody sent; a second row of a key
    write_lake(
        tmp_path,
        [*changed, *rows[4:], *invented],
        [*refused[1:], refused[1], ("events-0001.json.gz", 1, "malformed")],
    )
    found = oracle.compare(tmp_path, landing)
    assert (found.missing, found.extra, found.different) == (1, 2, 3)
    assert (found.quarantine_missing, found.quarantine_extra) == (1, 2)
    assert not found.ok
    assert found.wrong_rows == 6
    assert len(found.examples) == 9


def derived(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The tables departures_hourly and carrier_month of these flights, in plain Python."""
    hours: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    months: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        months.setdefault((row["flight_month"], row["carrier"]), []).append(row)
        if row["sched_dep"] is not None:
            start = row["sched_dep"].replace(minute=0, second=0, microsecond=0)
            hours.setdefault((start, row["origin"]), []).append(row)
    hourly = [
        {
            "window_start": start,
            "origin": origin,
            "window_end": start + timedelta(hours=1),
            "flights": len(them),
            "airlines": len({row["carrier"] for row in them} - {None}),
            "delay": sum(delays) if (delays := values(them, "dep_delay")) else None,
            "worst": max(values(them, "dep_delay"), default=None),
        }
        for (start, origin), them in hours.items()
    ]
    monthly = [
        {
            "flight_month": month,
            "carrier": carrier,
            "flights": len(them),
            "cancelled": sum(row["status"] == "cancelled" for row in them),
            "mean_delay": sum(late) / len(late) if (late := values(them, "arr_delay")) else None,
            "worst": max(
                them,
                key=lambda r: (r["dep_delay"] is not None, r["dep_delay"] or 0, r["flight_id"]),
            )["flight_id"],
        }
        for (month, carrier), them in months.items()
    ]
    return hourly, monthly


def values(rows: list[dict[str, Any]], name: str) -> list[int]:
    return [row[name] for row in rows if row[name] is not None]


def write_derived(lake: Path, hourly: list[dict[str, Any]], monthly: list[dict[str, Any]]) -> None:
    frame = pd.DataFrame(hourly).astype({"delay": "Int64", "worst": "Int32"})
    write_deltalake(str(lake / "tables/departures_hourly"), frame, mode="overwrite")
    write_deltalake(str(lake / "tables/carrier_month"), pd.DataFrame(monthly), mode="overwrite")


def test_the_oracle_computes_derived_tables_as_plain_python_does_and_sees_what_is_wrong(
    landing: Path, tmp_path: Path, truth: tuple[list[Any], list[Any]]
) -> None:
    write_lake(tmp_path, *truth)
    hourly, monthly = derived(truth[0])
    write_derived(tmp_path, hourly, monthly)
    found = oracle.compare(tmp_path, landing, derived=True)
    assert found.ok, found.as_text()
    assert [one.found for one in found.derived] == [len(hourly), len(monthly)] and min(
        len(hourly), len(monthly)
    ) > 100

    later = hourly[2] | {"window_start": hourly[2]["window_start"] + timedelta(days=999)}
    wrong = [hourly[1] | {"delay": 12_345}, later, *hourly[3:], hourly[3]]
    write_derived(tmp_path, wrong, [monthly[0] | {"worst": "2013-01-01-ZZ-1-EWR"}, *monthly[1:]])
    found = oracle.compare(tmp_path, landing, derived=True)
    one, other = found.derived
    assert (one.missing, one.extra, one.different) == (2, 2, 1)
    assert (other.missing, other.extra, other.different) == (0, 0, 1)
    assert not found.ok and found.wrong_rows == 0
