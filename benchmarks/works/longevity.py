"""Many runs on one table (W6): run time by run number, the table's queries against a fresh table,
and refreshes.

A machine changes its pace within the half hour that many runs take. So the last runs take turns
with those of a table that is as young as the first one was: both meet the same pace, and only the
table's age is left between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.contenders import ALL, TUNED, Contender, submit
from benchmarks.measure import measured
from benchmarks.pictures import Chart, Line, lines
from benchmarks.place import Failed, Place
from benchmarks.samples import Row, Sample, contenders, last_over_mean, median, of, ratio
from benchmarks.work import FILE_ROWS, Asked, Bench, Finding, Work, result, tell
from benchmarks.works.growth import grown, seeds
from draindown.launch import settings as spark_settings

_FILES_BEFORE = 10
_ROWS = 1_000
_EARLY = 5  # the run that the last one is held against
_NEAR = 2  # runs before and after it, and as many of the last ones
_YOUNG = "run of a young table"
_REFRESHES = 10
_REFRESHED = 0.03  # of the table's rows, each time
_FRESH = "fresh"


def _measure(bench: Bench) -> list[Sample]:
    files = bench.feed([bench.rows()] * _FILES_BEFORE + [bench.rows(_ROWS)] * bench.asked.repeat)
    deliveries = [files[:_FILES_BEFORE], *([file] for file in files[_FILES_BEFORE:])]
    places = {c.name: bench.place(f"longevity-{c.name}") for c in bench.contenders}
    young = {c.name: bench.place(f"longevity-{c.name}-young") for c in bench.contenders}
    first, last = (min(run, bench.asked.repeat) for run in (_EARLY - _NEAR, _EARLY + _NEAR))
    for contender in bench.contenders:
        for number in range(first):
            _run(bench, contender, young[contender.name], deliveries[number], _YOUNG, number)
    samples = []
    for number, delivered in enumerate(deliveries):
        early = number - bench.asked.repeat + last
        for contender in bench.contenders:
            if early >= first:
                samples.append(
                    _run(bench, contender, young[contender.name], deliveries[early], _YOUNG, early)
                )
            samples.append(_run(bench, contender, places[contender.name], delivered, "run", number))
    for contender in bench.contenders:
        bench.judged_last(contender, places[contender.name], samples)
        samples.append(_asked(bench, contender, places[contender.name], files))
    return samples + [
        sample for contender in bench.contenders for sample in _refreshed(bench, contender)
    ]


def _run(
    bench: Bench,
    contender: Contender,
    place: Place,
    delivered: Sequence[Path],
    kind: str,
    number: int,
) -> Sample:
    place.deliver(delivered)
    return bench.run(contender, place, kind if number else "first run", number)


def _asked(bench: Bench, contender: Contender, grown_old: Place, files: Sequence[Path]) -> Sample:
    """The same questions to the table of many runs, and to one with the same rows that one run
    made.
    """
    fresh = bench.place(f"longevity-{contender.name}-fresh")
    fresh.deliver(files)
    found = bench.judged(contender, fresh, bench.must(contender, fresh, "fresh table"))
    if contender.ours and found.verdict != "exact":
        raise Failed(f"the fresh table is wrong: {found.verdict}")
    named = [f"{_FRESH}={fresh.table}", f"old={grown_old.table}"]
    command = submit("queries.py", spark_settings.settings("local[*]"), *named)
    cost = measured(command, fresh.environment(), fresh.home)
    if cost.exit_code:
        raise Failed(f"the questions failed: {fresh.home / 'err.txt'}")
    facts = {
        f"{question}/{name}": ms
        for question, by in result(fresh).items()
        for name, ms in by.items()
    }
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
        Finding(
            "The last five runs, in turn with runs 3 to 7 of a young table; refreshes of 3 % of a table",
            _times(samples),
        ),
        Finding(
            "Questions to the table of many runs and to a fresh one with the same rows",
            _questions(samples),
        ),
    ]


def _times(samples: Sequence[Sample]) -> list[Row]:
    rows: list[Row] = []
    for name in contenders(samples):
        young = of(samples, _YOUNG, name)
        late = of(samples, "run", name)[-len(young) :] if young else []
        rows.append(
            {
                "contender": name,
                "young, s": median(young, "wall_s"),
                "old, s": median(late, "wall_s"),
                "old / young": ratio(median(late, "wall_s"), median(young, "wall_s")),
                "old / young, CPU": ratio(median(late, "cpu_s"), median(young, "cpu_s")),
                "refresh 10 / mean of 1 to 9": last_over_mean(of(samples, "refresh", name)),
            }
        )
    return rows


def _questions(samples: Sequence[Sample]) -> list[Row]:
    rows: list[Row] = []
    for sample in of(samples, "end"):
        for question in dict.fromkeys(fact.split("/")[0] for fact in sample.facts):
            old, fresh = sample.facts[f"{question}/old"], sample.facts[f"{question}/{_FRESH}"]
            row: Row = {
                "contender": sample.contender,
                "question": question,
                "old, ms": old,
                "fresh, ms": fresh,
            }
            rows.append(row | {"old / fresh": ratio(old, fresh)})
    return rows


def _pictures(samples: Sequence[Sample]) -> Mapping[str, str]:
    kinds = {"": "run", ", young table": _YOUNG}
    drawn = [
        Line(f"{name}{which}", [(s.number, s.cost.wall_s) for s in of(samples, kind, name)])
        for name in contenders(samples)
        for which, kind in kinds.items()
    ]
    return {
        "bench-longevity": lines(
            Chart("Runs of one small file into one table", "run", "wall time, seconds"), drawn
        )
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
