"""Sessions, a join within half an hour, and newest rows (W12): the first fill, then more rows, some
of them late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import kinds
from benchmarks.contenders import BASELINE, Contender, by, draindown, submit
from benchmarks.kinds import DAILY, SOURCES
from benchmarks.measure import Cost, apart, measured
from benchmarks.oracle import Verdict
from benchmarks.place import ROOT, Failed, Place, Shape
from benchmarks.samples import Row, Sample, median, of, ratio
from benchmarks.samples import kinds as kinds_of_run
from benchmarks.work import Asked, Bench, Finding, Work, say
from draindown.launch import settings as spark_settings

_FEED = 50_000
_PATIENCE = 2_000_000
"""Visits up to which the streams by hand take part."""
_TABLES = ("sessions", "pairs", "newest")
_FILL, _MORE = "first fill", "more rows"


def _unjudged(place: Place, keeps: bool) -> Verdict:
    del place, keeps
    return Verdict(text="not asked")


SHAPE = Shape(
    "kinds", ROOT / "benchmarks", str(ROOT / "benchmarks" / "pipelines" / "kinds.yaml"), _unjudged
)


def _no_table(place: Place) -> Cost:
    raise Failed(f"no table was named at {place.home}")


STREAM = Contender(
    BASELINE,
    "benchmarks/programs/kinds_by_hand.py: AvailableNow, RocksDB, watermark of two days; session_window in append "
    "mode, an inner join of two streams, row_number and MERGE in foreachBatch; draindown's own settings and flags",
    _no_table,
)
DERIVE = Contender(
    "draindown, drain",
    "draindown run kinds/TABLE --no-check --no-compact: plan and drain of the derived flow",
    _no_table,
)


def _of(contender: Contender, table: str) -> Contender:
    """Return the contender's way to one of the tables."""
    if contender.name == DERIVE.name:
        return replace(
            contender,
            run=by(lambda at: draindown(at, "--no-check", "--no-compact", flow=table)),
        )

    def command(place: Place) -> list[str]:
        short = (place.lake / "tables" / _own(contender, table)).exists()
        conf = spark_settings.settings("local[*]", size="small" if short else "medium")
        flags = ("--lake", str(place.lake), "--table", _own(contender, table))
        return submit("kinds_by_hand.py", conf, table, *flags)

    return replace(contender, run=by(command))


def _own(contender: Contender, table: str) -> str:
    return table if contender.name == DERIVE.name else f"{table}_by_hand"


def _measure(bench: Bench) -> list[Sample]:
    return [
        sample
        for size in bench.asked.sizes
        for sample in _tables(bench, bench.rows(size) // DAILY or 1)
    ]


def _tables(bench: Bench, days: int) -> list[Sample]:
    """The first fill of so many days, then feeds of more."""
    place, size, more = bench.place(f"kinds-{days}", SHAPE), days * DAILY, bench.rows(_FEED)
    kinds.land_first(place.landing)
    _land(bench, place)
    _append(bench, place, 0, size, late_from=size)
    taking = [one for one in bench.contenders if one.name == DERIVE.name or size <= _PATIENCE]
    samples, told = list[Sample](), f"{size / 1e6:.2g} M rows"
    for turn in range(bench.asked.repeat + 1):
        if turn:
            _append(bench, place, size + (turn - 1) * more, more, late_from=size)
        for table in _TABLES:
            what = f"{table}, {_MORE if turn else _FILL}, {told}"
            samples += [bench.must(_of(one, table), place, what, turn or 1) for one in taking]
    for table in _TABLES:
        for one in taking:
            _judge(place, one, table, samples)
    return samples


def _land(bench: Bench, place: Place) -> None:
    """Have the landing flows drain and publish what there is. Raises Failed."""
    for flow in SOURCES:
        landing = by(lambda at, flow=flow: draindown(at, "--no-compact", flow=flow))
        bench.must(Contender("draindown, landing", "", landing), place, f"published {flow}")


def _append(bench: Bench, place: Place, start: int, rows: int, late_from: int) -> None:
    """Append visits and their orders to the source tables, each in one commit that is published.
    Raises Failed.
    """
    flags = ["--parts", str(max(1, rows // DAILY))]
    for table, (columns, each) in SOURCES.items():
        first, last = -(-start // each), -(-(start + rows) // each)
        flags += [
            "--table",
            str(place.lake / "tables" / table),
            "--rows",
            str(last - first),
            "--start",
            str(first),
        ]
        flags += ["--columns", columns(late_from)]
    say(f"  appending {rows:,} visits and their orders")
    command = submit("seed.py", spark_settings.settings("local[*]"), *flags)
    if measured(command, place.environment(), place.home).exit_code:
        raise Failed(f"appending failed: {place.home / 'err.txt'}")
    _land(bench, place)


def _judge(place: Place, contender: Contender, table: str, samples: list[Sample]) -> None:
    """Put what the oracle says of a table into the contender's samples of it, what it lacks into
    the newest one.
    """
    tables = place.lake / "tables"
    found = apart(kinds.judge, table, tables / _own(contender, table), tables)
    say(f"    oracle, {contender.name}, {table}: {found.verdict.text}")
    own = [
        at
        for at, one in enumerate(samples)
        if one.contender == contender.name and one.kind.startswith(table)
    ]
    told, facts = found.verdict, {"lost": found.lost, "waiting": found.waiting}
    for at in own:
        samples[at] = replace(samples[at], wrong_rows=told.wrong_rows, verdict=told.text)
    samples[own[-1]] = replace(samples[own[-1]], facts={**samples[own[-1]].facts, **facts})


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    return [
        Finding("draindown over the job by hand", _over(samples)),
        Finding("The same feed, over the smallest tables", _growth(samples)),
        Finding("Visits and pairs that the tables lack", _lost(samples)),
    ]


def _over(samples: Sequence[Sample]) -> list[Row]:
    return [
        {"run": kind}
        | {
            name: ratio(*(median(of(samples, kind, one.name), what) for one in (DERIVE, STREAM)))
            for what, name in (("wall_s", "wall"), ("cpu_s", "CPU"))
        }
        for kind in kinds_of_run(samples)
        if of(samples, kind, BASELINE)
    ]


def _growth(samples: Sequence[Sample]) -> list[Row]:
    rows: list[Row] = []
    for table in _TABLES:
        smallest, *bigger = [
            one for one in kinds_of_run(samples) if one.startswith(f"{table}, {_MORE}")
        ] or [""]
        rows += [
            {"run": kind}
            | {
                name: ratio(
                    *(median(of(samples, one, DERIVE.name), what) for one in (kind, smallest))
                )
                for what, name in (("wall_s", "wall"), ("cpu_s", "CPU"))
            }
            for kind in bigger
        ]
    return rows


def _lost(samples: Sequence[Sample]) -> list[Row]:
    return [
        {"after": one.kind, "contender": one.contender}
        | {"lost": f"{one.facts['lost']:,.0f}", "not there yet": f"{one.facts['waiting']:,.0f}"}
        for one in samples
        if "lost" in one.facts
    ]


WORK = Work(
    "kinds",
    f"sessions, a join and newest rows over tables of 1 and 30 million: the first fill, then {_FEED:,} rows more a run",
    _measure,
    (STREAM, DERIVE),
    Asked(repeat=3, sizes=(1_000_000, 30_000_000)),
    findings=_findings,
)
