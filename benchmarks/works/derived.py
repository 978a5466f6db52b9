"""A table of windows kept equal to a table of events (W11): the first fill, then more events, some
of them late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import windows
from benchmarks.contenders import BASELINE, Contender, by, draindown, submit
from benchmarks.measure import Cost, apart, measured
from benchmarks.oracle import Verdict
from benchmarks.place import ROOT, Failed, Place, Shape
from benchmarks.samples import Row, Sample, kinds, median, of, ratio
from benchmarks.windows import DAILY
from benchmarks.work import Asked, Bench, Finding, Work, say
from draindown.launch import settings as spark_settings

_FEED = 50_000
_PATIENCE = 2_000_000
"""Events up to which the hand-written stream takes part: its fill of more is of no interest."""
_FILL, _MORE = "first fill", "more events"


def _unjudged(place: Place, keeps: bool) -> Verdict:
    del place, keeps
    return Verdict(text="not asked")


SHAPE = Shape(
    "windows",
    ROOT / "benchmarks",
    str(ROOT / "benchmarks" / "pipelines" / "windows.yaml"),
    _unjudged,
)


def _by_hand(table: str, *flags: str) -> Callable[[Place], Cost]:
    """A program with draindown's own settings, those of a short run once the table is filled."""

    def command(place: Place) -> list[str]:
        short = (place.lake / "tables" / table).exists() and "--whole" not in flags
        conf = spark_settings.settings("local[*]", size="small" if short else "medium")
        return submit(
            "windows_by_hand.py", conf, "--lake", str(place.lake), "--table", table, *flags
        )

    return by(command)


STATE = Contender(
    BASELINE,
    "benchmarks/programs/windows_by_hand.py: AvailableNow, watermark of two days, RocksDB, update mode, MERGE pruned "
    "by days; distinct users are estimates, which are not compared; draindown's own Spark settings and JVM flags",
    _by_hand("windows_by_state"),
)
WHOLE = Contender(
    "whole table",
    "the same program with --whole: all windows of all events, and an overwrite",
    _by_hand("windows_whole", "--whole"),
)
DERIVE = Contender(
    "draindown, drain",
    "draindown run windows/windows --no-check --no-compact: plan and drain of the derived flow; users are exact",
    by(lambda place: draindown(place, "--no-check", "--no-compact", flow="windows")),
)
_TABLES = {STATE.name: "windows_by_state", WHOLE.name: "windows_whole", DERIVE.name: "windows"}


def _measure(bench: Bench) -> list[Sample]:
    return [
        sample
        for size in bench.asked.sizes
        for sample in _table(bench, bench.rows(size) // DAILY or 1)
    ]


def _table(bench: Bench, days: int) -> list[Sample]:
    """The first fill of so many days of events, then feeds of more."""
    place, size = bench.place(f"derived-{days}", SHAPE), days * DAILY
    windows.land_first(place.landing / "events")
    _land(bench, place)
    _append(bench, place, 0, size, late_from=size)
    taking = [one for one in bench.contenders if one is not STATE or size <= _PATIENCE]
    table = f"{size / 1e6:.2g} M events"
    samples = [bench.must(one, place, f"{_FILL}, {table}") for one in taking]
    more = bench.rows(_FEED)
    for turn in range(bench.asked.repeat):
        _append(bench, place, size + turn * more, more, late_from=size)
        samples += [bench.must(one, place, f"{_MORE}, {table}", turn + 1) for one in taking]
    for one in taking:
        _judge(place, one, samples)
    return samples


def _land(bench: Bench, place: Place) -> None:
    """Have the landing flow drain and publish what there is. Raises Failed."""
    bench.must(
        Contender(
            "draindown, landing",
            "",
            by(lambda at: draindown(at, "--no-compact", flow="events")),
        ),
        place,
        "published",
    )


def _append(bench: Bench, place: Place, start: int, rows: int, late_from: int) -> None:
    """Append events to the source table, in one commit that the gate publishes. Raises Failed."""
    flags = [
        "--table",
        str(place.lake / "tables" / "events"),
        "--rows",
        str(rows),
        "--start",
        str(start),
    ]
    flags += ["--columns", windows.columns(late_from), "--parts", str(max(1, rows // DAILY))]
    command = submit("seed.py", spark_settings.settings("local[*]"), *flags)
    say(f"  appending {rows:,} events")
    if measured(command, place.environment(), place.home).exit_code:
        raise Failed(f"appending failed: {place.home / 'err.txt'}")
    _land(bench, place)


def _judge(place: Place, contender: Contender, samples: list[Sample]) -> None:
    """Put what the oracle says of the table into the contender's newest sample."""
    tables = place.lake / "tables"
    own: Path = tables / _TABLES[contender.name]
    found = apart(windows.judge, own, tables / "events", exact=contender is not STATE)
    say(f"    oracle, {contender.name}: {found.verdict.text}, {found.lost:,} events in no window")
    at = max(i for i, sample in enumerate(samples) if sample.contender == contender.name)
    told = found.verdict
    facts = {**samples[at].facts, "lost": found.lost}
    samples[at] = replace(samples[at], wrong_rows=told.wrong_rows, verdict=told.text, facts=facts)


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    return [
        Finding("draindown over the others", _over(samples)),
        Finding("The same feed, over the smallest table", _growth(samples)),
        Finding("Events that no window counts", _lost(samples)),
    ]


def _over(samples: Sequence[Sample]) -> list[Row]:
    rows: list[Row] = []
    for kind in kinds(samples):
        row: Row = {"run": kind}
        for other, title in ((STATE, "hand-written"), (WHOLE, "whole table")):
            for what, name in (("wall_s", "wall"), ("cpu_s", "CPU")):
                ours, theirs = (
                    median(of(samples, kind, one.name), what) for one in (DERIVE, other)
                )
                row[f"over {title}, {name}"] = ratio(ours, theirs)
        rows.append(row)
    return rows


def _growth(samples: Sequence[Sample]) -> list[Row]:
    smallest, *bigger = [kind for kind in kinds(samples) if kind.startswith(_MORE)] or [""]
    return [
        {
            "run": kind,
            "contender": name,
            "wall": ratio(
                median(of(samples, kind, name), "wall_s"),
                median(of(samples, smallest, name), "wall_s"),
            ),
            "CPU": ratio(
                median(of(samples, kind, name), "cpu_s"),
                median(of(samples, smallest, name), "cpu_s"),
            ),
        }
        for kind in bigger
        for name in (DERIVE.name, WHOLE.name)
    ]


def _lost(samples: Sequence[Sample]) -> list[Row]:
    return [
        {
            "after": sample.kind,
            "contender": sample.contender,
            "lost": f"{sample.facts['lost']:,.0f}",
        }
        for sample in samples
        if "lost" in sample.facts
    ]


WORK = Work(
    "derived",
    f"five-minute windows over tables of 1, 2 and 30 million events: the first fill, then {_FEED:,} events more a run",
    _measure,
    (STATE, WHOLE, DERIVE),
    Asked(repeat=5, sizes=(1_000_000, 2_000_000, 30_000_000)),
    findings=_findings,
)
