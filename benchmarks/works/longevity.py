"""Many runs on one table (W6): run time by run number, the table's queries against a fresh table, and refreshes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.contenders import ALL, TUNED, Contender, submit
from benchmarks.measure import measured
from benchmarks.pictures import Chart, Line, lines
from benchmarks.place import Failed, Place
from benchmarks.samples import Row, Sample, around, contenders, last_over_mean, of, ratio
from benchmarks.work import FILE_ROWS, Asked, Bench, Finding, Work, result, tell
from benchmarks.works.growth import grown, seeds
from draindown import sparkconf

_FILES_BEFORE = 10
_ROWS = 1_000
_EARLY = 5  # the run that the last one is held against
_REFRESHES = 10
_REFRESHED = 0.03  # of the table's rows, each time
_FRESH = "fresh"


def _measure(bench: Bench) -> list[Sample]:
    files = bench.feed([bench.rows()] * _FILES_BEFORE + [bench.rows(_ROWS)] * bench.asked.repeat)
    places = {c.name: bench.place(f"longevity-{c.name}") for c in bench.contenders}
    samples = []
    for number, delivered in enumerate([files[:_FILES_BEFORE], *([file] for file in files[_FILES_BEFORE:])]):
        for contender in bench.contenders:
            places[contender.name].deliver(delivered)
            kind = "run" if number else "first run"
            samples.append(bench.run(contender, places[contender.name], kind, number))
    for contender in bench.contenders:
        bench.judged_last(contender, places[contender.name], samples)
        samples.append(_asked(bench, contender, places[contender.name], files))
    return samples + [sample for contender in bench.contenders for sample in _refreshed(bench, contender)]


def _asked(bench: Bench, contender: Contender, grown_old: Place, files: Sequence[Path]) -> Sample:
    """The same questions to the table of many runs, and to one with the same rows that one run made."""
    fresh = bench.place(f"longevity-{contender.name}-fresh")
    fresh.deliver(files)
    found = bench.judged(contender, fresh, bench.must(contender, fresh, "fresh table"))
    if contender.ours and found.verdict != "exact":
        raise Failed(f"the fresh table is wrong: {found.verdict}")
    named = [f"{_FRESH}={fresh.table}", f"old={grown_old.table}"]
    command = submit("queries.py", sparkconf.settings("local[*]"), *named)
    cost = measured(command, fresh.environment(), fresh.home)
    if cost.exit_code:
        raise Failed(f"the questions failed: {fresh.home / 'err.txt'}")
    facts = {f"{question}/{name}": ms for question, by in result(fresh).items() for name, ms in by.items()}
    sample = Sample(contender.name, "end", cost, facts=facts)
    tell(sample)
    return sample


def _refreshed(bench: Bench, contender: Contender) -> list[Sample]:
    """Ten times, 3 % of a seeded table's rows change, anywhere in it: the refreshes of LHBench."""
    seeded = seeds(bench)[0]
    place = grown(bench, contender, f"refresh-{contender.name}", seeded)
    samples = []
    for number in range(1, _REFRESHES + 1):
        bench.batch(place, number, round(seeded.rows * _REFRESHED), 0.0)
        samples.append(bench.run(contender, place, "refresh", number))
    return [*samples[:-1], bench.judged(contender, place, samples[-1])]


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    return [
        Finding("Run time by run number, medians of five neighbours; refreshes of 3 % of a table", _times(samples)),
        Finding("Questions to the table of many runs and to a fresh one with the same rows", _questions(samples)),
    ]


def _times(samples: Sequence[Sample]) -> list[Row]:
    rows: list[Row] = []
    for name in contenders(samples):
        runs = of(samples, "run", name)
        last = max((s.number for s in runs), default=0) - 2  # the middle of the last five
        late, early = around(runs, last), around(runs, _EARLY)
        rows.append(
            {
                "contender": name,
                f"run {_EARLY}, s": early,
                f"run {last}, s": late,
                "late / early": ratio(late, early),
                "refresh 10 / mean of 1 to 9": last_over_mean(of(samples, "refresh", name)),
            }
        )
    return rows


def _questions(samples: Sequence[Sample]) -> list[Row]:
    rows: list[Row] = []
    for sample in of(samples, "end"):
        for question in dict.fromkeys(fact.split("/")[0] for fact in sample.facts):
            old, fresh = sample.facts[f"{question}/old"], sample.facts[f"{question}/{_FRESH}"]
            row: Row = {"contender": sample.contender, "question": question, "old, ms": old, "fresh, ms": fresh}
            rows.append(row | {"old / fresh": ratio(old, fresh)})
    return rows


def _pictures(samples: Sequence[Sample]) -> Mapping[str, str]:
    drawn = [Line(name, [(s.number, s.cost.wall_s) for s in of(samples, "run", name)]) for name in contenders(samples)]
    return {
        "bench-longevity": lines(Chart("Runs of one small file into one table", "run", "wall time, seconds"), drawn)
    }


WORK = Work(
    "longevity",
    f"{_FILES_BEFORE} files of {FILE_ROWS:,} changes, 50 runs of {_ROWS:,}, queries on the table then, and refreshes",
    _measure,
    (TUNED, ALL),
    Asked(repeat=50, sizes=(1_000_000,)),
    chosen=("draindown, all",),
    findings=_findings,
    pictures=_pictures,
)
