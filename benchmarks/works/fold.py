"""A sessionizer as a class (`processor`), against the same sessions by SQL (`session`): of many
users, and of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb

from benchmarks import kinds
from benchmarks.contenders import Contender, by, draindown, submit
from benchmarks.kinds import DAILY
from benchmarks.measure import Cost, apart, measured
from benchmarks.oracle import Verdict
from benchmarks.place import ROOT, Failed, Place, Shape
from benchmarks.samples import Row, Sample, median, of
from benchmarks.samples import kinds as kinds_of_run
from benchmarks.work import Asked, Bench, Finding, Work, say
from draindown.lake.table import Table
from draindown.launch import settings as spark_settings

_FEED = 50_000
_MANY, _ONE = "many users", "one user"
_FILL, _MORE = "first fill", "more rows"


def _unjudged(place: Place, keeps: bool) -> Verdict:
    del place, keeps
    return Verdict(text="not asked")


def _drained(table: str) -> Callable[[Place], Cost]:
    return by(lambda at: draindown(at, "--no-check", "--no-compact", flow=table))


SHAPE = Shape(
    "fold", ROOT / "benchmarks", str(ROOT / "benchmarks" / "pipelines" / "fold.yaml"), _unjudged
)
SESSION = Contender(
    "session",
    "draindown run fold/sessions --no-check --no-compact: the kind `session`",
    _drained("sessions"),
)
_FLOWS = {"session": "sessions", "processor": "folded"}
PROCESSOR = Contender(
    "processor",
    "draindown run fold/folded --no-check --no-compact: the class of benchmarks/jobs/processors",
    _drained("folded"),
)


def _measure(bench: Bench) -> list[Sample]:
    return [
        one
        for size in bench.asked.sizes
        for users in (_MANY, _ONE)
        for one in _of(bench, bench.rows(size), users)
    ]


def _of(bench: Bench, rows: int, users: str) -> list[Sample]:
    """The first fill of so many visits, then feeds of more, which follow them in time."""
    place, more, samples = (
        bench.place(f"fold-{rows}-{users}", SHAPE),
        bench.rows(_FEED),
        list[Sample](),
    )
    kinds.land_first(place.landing)
    _publish(bench, place)
    for turn in range(bench.asked.repeat + 1):
        begin, number = (0, rows) if not turn else (rows + (turn - 1) * more, more)
        _append(bench, place, begin, number, users)
        what = f"{users}, {_MORE if turn else _FILL}, {rows / 1e6:.2g} M rows"
        for one in bench.contenders:
            sample = bench.must(one, place, what, turn or 1)
            samples.append(replace(sample, facts={**sample.facts, "batch": _seconds(place, one)}))
    if len(bench.contenders) > 1:
        wrong = apart(differing, place.lake / "tables")
        say(f"    the two tables differ in {wrong:,} sessions")
        samples[-1] = replace(
            samples[-1],
            wrong_rows=wrong,
            verdict=f"{wrong:,} sessions differ" if wrong else "exact",
        )
    return samples


def _publish(bench: Bench, place: Place) -> None:
    landing = by(lambda at: draindown(at, "--no-compact", flow="visits"))
    bench.must(Contender("draindown, landing", "", landing), place, "published visits")


def _append(bench: Bench, place: Place, start: int, rows: int, users: str) -> None:
    """Append visits in one commit that is published. Raises Failed."""
    columns = kinds.visits(start or rows)  # of those after the first fill some are late
    if users == _ONE:
        columns = (
            f"{columns.partition(', concat(')[0]}, 'one' as user{columns.partition(' as user')[2]}"
        )
    flags = [
        "--parts",
        str(max(1, rows // DAILY)),
        "--table",
        str(place.lake / "tables" / "visits"),
    ]
    flags += ["--rows", str(rows), "--start", str(start), "--columns", columns]
    say(f"  appending {rows:,} visits of {users}")
    command = submit("seed.py", spark_settings.settings("local[*]"), *flags)
    if measured(command, place.environment(), place.home).exit_code:
        raise Failed(f"appending failed: {place.home / 'err.txt'}")
    _publish(bench, place)


def _seconds(place: Place, contender: Contender) -> float:
    """Return the seconds of a contender's newest batch, as its ledger has them."""
    ledger = Table(str(place.lake / "ledger" / _FLOWS[contender.name]))
    return float(ledger.rows("select seconds from t order by batch desc limit 1")[0]["seconds"])


def differing(tables: Path) -> int:
    """Return how many sessions of one table the other lacks, or has otherwise."""
    from deltalake import DeltaTable, QueryBuilder

    with duckdb.connect() as con:
        for name, start in (("sessions", "session_start"), ("folded", "session_start")):
            rows = QueryBuilder().register("t", DeltaTable(str(tables / name)))
            con.register(
                "arriving",
                rows.execute(f"select user, {start} as start, session_end, visits, amount from t"),
            )
            con.execute(f"create table {name} as select * from arriving")
        both = "(from sessions except all from folded) union all (from folded except all from sessions)"
        return int(con.execute(f"select count(*) from ({both})").fetchall()[0][0])


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    rows: list[Row] = []
    for kind in kinds_of_run(samples):
        own = of(samples, kind, PROCESSOR.name)
        if own and _FILL in kind:
            number = float(kind.rpartition(", ")[2].split()[0]) * 1e6
            whole, batch = (number / (median(own, what) or 1) for what in ("wall_s", "batch"))
            rows.append(
                {
                    "run": kind,
                    "in its batch": f"{batch:,.0f}",
                    "with the JVM's start": f"{whole:,.0f}",
                }
            )
    return [Finding("The processor's rows a second", rows)]


WORK = Work(
    "fold",
    "a sessionizer as a class against the kind `session`, over a million visits of 50,000 users, and of one",
    _measure,
    (SESSION, PROCESSOR),
    Asked(repeat=2, sizes=(1_000_000,)),
    findings=_findings,
)
