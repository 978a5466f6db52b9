"""Histories that records land in (SCD type 2): the first fill, more events, and what grows beside
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import statuses
from benchmarks.contenders import BASELINE, Contender, by, draindown, submit
from benchmarks.measure import apart, measured
from benchmarks.oracle import Verdict
from benchmarks.place import ROOT, Failed, Place, Shape
from benchmarks.samples import Row, Sample, median, of, ratio
from benchmarks.samples import kinds as kinds_of_run
from benchmarks.work import Asked, Bench, Finding, Work, say
from draindown.lake.table import Table
from draindown.launch import settings as spark_settings

_EVENTS, _FEED = 1_000_000, 50_000
_DAYS = 100
"""Daily repeats of all things that change nothing."""
_FILL, _MORE, _BESIDE, _DAILY = (
    "first fill",
    "more events",
    "more events beside",
    "one more day after",
)
_BY_HAND, _ENDS = "by_hand", ("__START_AT", "__END_AT")


def _judge(place: Place, keeps: bool) -> Verdict:
    del keeps
    return statuses.judge(place.table, place.files)


SHAPE = Shape(
    "statuses",
    ROOT / "benchmarks",
    str(ROOT / "benchmarks" / "pipelines" / "statuses.yaml"),
    _judge,
)


def _by_hand(place: Place) -> list[str]:
    conf = spark_settings.settings(
        "local[*]", size="small" if (place.lake / "tables" / _BY_HAND).exists() else "medium"
    )
    return submit(
        "scd2_by_hand.py",
        conf,
        "--landing",
        str(place.files),
        "--lake",
        str(place.lake),
        "--table",
        _BY_HAND,
    )


HAND = Contender(
    BASELINE,
    "benchmarks/programs/scd2_by_hand.py: the MERGE of Delta's documentation in foreachBatch, newest event per key; "
    "draindown's own settings and flags, 10 files per trigger",
    by(_by_hand),
)
DRAIN = Contender(
    "draindown, drain",
    "draindown run statuses --no-check --no-compact: plan and drain of the landing flow",
    by(lambda place: draindown(place, "--no-check", "--no-compact")),
)


def _measure(bench: Bench) -> list[Sample]:
    samples = _filled(bench)
    if bench.asked.sizes:
        for size in bench.asked.sizes:
            samples += _beside(bench, bench.rows(size))
        samples += _daily(bench)
    return samples


def _filled(bench: Bench) -> list[Sample]:
    """The first fill, then feeds of more, some of them late."""
    place, first, more = bench.place("scd2", SHAPE), bench.rows(_EVENTS), bench.rows(_FEED)
    samples = list[Sample]()
    for turn in range(bench.asked.repeat + 1):
        start, rows = (first + (turn - 1) * more, more) if turn else (0, first)
        apart(statuses.write, place.files, start, rows, bench.rows(statuses.THINGS), first)
        samples += [
            bench.must(one, place, _MORE if turn else _FILL, turn or 1) for one in bench.contenders
        ]
    for one in bench.contenders:
        by_hand = one.name == HAND.name
        table, names = (
            (place.lake / "tables" / _BY_HAND, ("start_at", "end_at"))
            if by_hand
            else (place.table, _ENDS)
        )
        found = apart(statuses.judge, table, place.files, names)
        say(f"    oracle, {one.name}: {found.text}")
        at = max(i for i, sample in enumerate(samples) if sample.contender == one.name)
        samples[at] = replace(samples[at], wrong_rows=found.wrong_rows, verdict=found.text)
    return samples


def _beside(bench: Bench, closed: int) -> list[Sample]:
    """More events of things with so many closed rows."""
    place, more, things = (
        bench.place(f"scd2-{closed}", SHAPE),
        bench.rows(_FEED),
        bench.rows(statuses.THINGS),
    )
    apart(statuses.write, place.files, 1, things, things)
    bench.must(DRAIN, place, "made the table")
    say(f"  seeding {closed:,} closed rows")
    flags = (
        "--table",
        str(place.table),
        "--rows",
        str(closed),
        "--columns",
        statuses.closed(things),
        "--parts",
        "8",
    )
    if measured(
        submit("seed.py", spark_settings.settings("local[*]"), *flags),
        place.environment(),
        place.home,
    ).exit_code:
        raise Failed(f"seeding failed: {place.home / 'err.txt'}")
    samples = list[Sample]()
    for turn in range(bench.asked.repeat):
        apart(statuses.write, place.files, things + 1 + turn * more, more, things, things)
        samples.append(bench.must(DRAIN, place, f"{_BESIDE} {closed:,} closed rows", turn + 1))
    return [*samples[:-1], bench.judged(DRAIN, place, samples[-1])]


def _daily(bench: Bench) -> list[Sample]:
    """A day of things of which nothing changed, after few such days and after many."""
    place, things, samples = (
        bench.place("scd2-daily", SHAPE),
        bench.rows(statuses.THINGS),
        list[Sample](),
    )
    days = 0
    for until in (2, _DAYS):
        for day in range(days, until):
            apart(statuses.repeat, place.files, day, things)
        bench.must(DRAIN, place, f"days up to {until}")
        for turn in range(bench.asked.repeat):
            apart(statuses.repeat, place.files, until + turn, things)
            sample = bench.must(DRAIN, place, f"{_DAILY} {until} days", turn + 1)
            hidden = Table(str(place.lake / "hidden_events" / "statuses"))
            samples.append(
                replace(sample, facts={**sample.facts, "hidden": float(hidden.row_count)})
            )
        days = until + bench.asked.repeat
    return [*samples[:-1], bench.judged(DRAIN, place, samples[-1])]


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    return [
        Finding("draindown over the MERGE by hand", _over(samples)),
        Finding("The same run, over the smallest history", _growth(samples)),
    ]


def _over(samples: Sequence[Sample]) -> list[Row]:
    return [
        {"run": kind, **_ratios(of(samples, kind, DRAIN.name), of(samples, kind, BASELINE))}
        for kind in (_FILL, _MORE)
        if of(samples, kind, BASELINE)
    ]


def _growth(samples: Sequence[Sample]) -> list[Row]:
    rows: list[Row] = []
    for prefix in (_BESIDE, _DAILY):
        smallest, *bigger = [kind for kind in kinds_of_run(samples) if kind.startswith(prefix)] or [
            ""
        ]
        rows += [
            {"run": kind, **_ratios(of(samples, kind), of(samples, smallest))} for kind in bigger
        ]
    return rows


def _ratios(over: Sequence[Sample], under: Sequence[Sample]) -> Row:
    return {
        name: ratio(median(over, what), median(under, what))
        for what, name in (("wall_s", "wall"), ("cpu_s", "CPU"))
    }


WORK = Work(
    "scd2",
    f"{_EVENTS:,} events into histories of 100,000 things, then {_FEED:,} more a run; closed rows and days that grow",
    _measure,
    (HAND, DRAIN),
    Asked(repeat=3, sizes=(1_000_000, 30_000_000)),
    findings=_findings,
)
