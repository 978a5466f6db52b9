"""Events of an app in a table of days, the five-minute windows over them, and the oracle of these.

Events are numbered in order of time, as many on every day. Of those that come after the first fill,
three in a hundred are late by up to five days, evenly: by a watermark of two days a stream drops
some of them.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from benchmarks.oracle import Verdict

DAILY = 33_333
"""Events of one day: a million in thirty days."""
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_TYPES, _USERS, _AMOUNTS = 20, 50_000, 1_000
_LATE_DAYS, _LATE_PERCENT = 5, 3
_DAY = 86_400
_MEMORY = "4GB"
_KEYS = "window_start, day, type"


@dataclass(frozen=True)
class Found:
    """What the oracle says of a table of windows. `lost`: events that no window counts."""

    verdict: Verdict
    lost: int = 0


def columns(late_from: int) -> str:
    """The event of every `id` as a select list of Spark; those from `late_from` on may be late."""
    drawn = "pmod(xxhash64(id), 1000000007)"
    late = f"if(id >= {late_from} and {drawn} % 100 < {_LATE_PERCENT}, {drawn} div 100 % {_LATE_DAYS * _DAY}, 0)"
    time = f"timestamp_seconds({int(_FIRST.timestamp())} + id * {_DAY} div {DAILY} - {late})"
    return (
        f"id as event_id, {time} as event_time, to_date({time}) as day, "
        f"concat('type-', {drawn} div 7 % {_TYPES}) as type, concat('u-', {drawn} div 11 % {_USERS}) as user, "
        f"cast({drawn} div 13 % {_AMOUNTS} as int) as amount"
    )


def land_first(landing: Path, rows: int = 10) -> None:
    """Write one file of events of the day before the first: what the landing flow drains makes its
    table.
    """
    landing.mkdir(parents=True, exist_ok=True)
    lines = []
    for at in range(rows):
        when = _FIRST - timedelta(minutes=at + 1)
        event = {
            "event_id": -1 - at,
            "event_time": when.isoformat(),
            "day": str(when.date()),
            "type": "type-0",
        }
        lines.append(json.dumps(event | {"user": f"u-{at}", "amount": at}) + "\n")
    (landing / "first.json.gz").write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def judge(table: Path, events: Path, *, exact: bool) -> Found:
    """Hold a table of windows against the events. `exact`: the numbers of users are counts, not
    estimates.
    """
    from deltalake import DeltaTable, QueryBuilder

    compared = ["events", "amount", *(["users"] if exact else [])]
    with TemporaryDirectory() as scratch, duckdb.connect(f"{scratch}/oracle.db") as con:
        con.execute(
            f"set timezone = 'UTC'; set memory_limit = '{_MEMORY}'; set enable_progress_bar = false"
        )
        for name, path, wanted in (
            ("event", events, "event_time, day, type, user, amount"),
            ("found", table, f"{_KEYS}, window_end, {', '.join(compared)}"),
        ):
            sql = f"select {wanted} from t".replace("user,", '"user",')
            con.register(
                "arriving", QueryBuilder().register("t", DeltaTable(str(path))).execute(sql)
            )
            con.execute(f"create table {name} as select * from arriving")
            con.unregister("arriving")
        distinct = ', count(distinct "user") as users' if exact else ""
        con.execute(
            "create table expected as select time_bucket(interval 5 minutes, event_time) as window_start, day, type, "
            f"count(*) as events, sum(amount) as amount{distinct} from event group by all"
        )
        differs = " or ".join(f"e.{name} is distinct from f.{name}" for name in compared)
        wrong = con.execute(
            f"select count_if(f.window_end is null), count_if(e.events is null), count_if({differs}), count(*), "
            "coalesce(sum(e.events), 0) - coalesce(sum(f.events), 0) "
            f"from expected e full join found f using ({_KEYS})"
        ).fetchall()[0]
    missing, extra, different, _, lost = map(int, wrong)
    text = (
        "exact"
        if not different
        else f"{missing:,} missing, {extra:,} extra, {different:,} wrong windows"
    )
    return Found(Verdict(different, 0, text), lost)
