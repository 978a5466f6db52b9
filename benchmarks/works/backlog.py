"""Growth of the backlog (W5): more files of one size, and very many tiny ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from benchmarks.contenders import DELTA_RS, HAND_WRITTEN, ON_SPARK, TUNED
from benchmarks.pictures import Bar, Chart, bars
from benchmarks.samples import Row, Sample, contenders, kinds, median, of, ratio
from benchmarks.work import FILE_ROWS, Asked, Bench, Finding, Work

_TINY_ROWS = 100
_PATIENCE = 1000
"""Tiny files that jobs by hand are given: they merge for each ten or fifty, and ten times the files
take them hours.
"""


def _backlog(bench: Bench) -> list[Sample]:
    samples = []
    for turn in range(bench.asked.repeat):
        for size in bench.asked.sizes:
            samples += _drained(bench, f"{size:,} files", [bench.rows()] * size, turn + 1)
    return samples


def _tiny(bench: Bench) -> list[Sample]:
    samples = []
    for turn in range(bench.asked.repeat):
        for files in bench.asked.sizes:
            patient = [
                c for c in bench.contenders if files <= _PATIENCE or c not in (HAND_WRITTEN, TUNED)
            ]
            sizes = [bench.rows(_TINY_ROWS)] * files
            samples += _drained(
                replace(bench, contenders=patient), f"{files:,} files", sizes, turn + 1
            )
    return samples


def _drained(bench: Bench, kind: str, sizes: Sequence[int], number: int) -> list[Sample]:
    files = bench.feed(sizes)
    samples = []
    for contender in bench.contenders:
        place = bench.place(f"backlog-{kind}-{contender.name}", landing=files[0].parent.parent)
        sample = bench.judged(contender, place, bench.run(contender, place, kind, number))
        cost = sample.cost
        facts = {
            "us_per_row": cost.wall_s / sum(sizes) * 1e6,
            "cpu_us_per_row": cost.cpu_s / sum(sizes) * 1e6,
        }
        samples.append(replace(sample, facts=facts))
    return samples


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    """Per contender and size: cost of a row and memory, and both over those of the next smaller
    size.
    """
    rows: list[Row] = []
    for name in contenders(samples):
        before: list[Sample] = []
        for kind in kinds(samples):
            group = of(samples, kind, name)
            rows.append(
                {
                    "backlog": kind,
                    "contender": name,
                    "µs per row": median(group, "us_per_row"),
                    "over the smaller": _over(group, before, "us_per_row"),
                    "CPU µs per row": median(group, "cpu_us_per_row"),
                    "over the smaller ": _over(group, before, "cpu_us_per_row"),
                    "memory over the smaller": _over(group, before, "rss_mb"),
                }
            )
            before = group
    return [Finding("Cost of a row by size of the backlog", rows)]


def _tiny_findings(samples: Sequence[Sample]) -> list[Finding]:
    """What took all files, over what the job by hand took for the fewest: it can take no less for
    more.
    """
    least = of(samples, kinds(samples)[0], HAND_WRITTEN.name)
    rows: list[Row] = [
        {
            "files": kind,
            "contender": name,
            "wall": ratio(median(of(samples, kind, name), "wall_s"), median(least, "wall_s"), 3),
            "CPU": ratio(median(of(samples, kind, name), "cpu_s"), median(least, "cpu_s"), 3),
        }
        for kind in kinds(samples)[1:]
        for name in contenders(samples)
        if least and of(samples, kind, name)
    ]
    return [Finding(f"Over the hand-written job's {kinds(samples)[0]}", rows)]


def _over(group: Sequence[Sample], before: Sequence[Sample], what: str) -> float | None:
    return ratio(median(group, what), median(before, what)) if before else None


def _pictures(samples: Sequence[Sample]) -> Mapping[str, str]:
    drawn = [
        Bar(kind, name, median(of(samples, kind, name), "us_per_row") or 0)
        for kind, name in product(kinds(samples), contenders(samples))
    ]
    return {
        "bench-backlog": bars(
            Chart("Cost of a row by size of the backlog", "backlog", "wall time, µs per row"), drawn
        )
    }


WORK = Work(
    "backlog",
    f"backlogs of 10, 100 and 1,000 files of {FILE_ROWS:,} changes, each into an empty table",
    _backlog,
    (*ON_SPARK, DELTA_RS),
    Asked(sizes=(10, 100, 1000)),
    chosen=("draindown, drain",),
    findings=_findings,
    pictures=_pictures,
)
TINY = Work(
    "tiny",
    f"files of {_TINY_ROWS} changes, 1,000 and 10,000 of them, into an empty table",
    _tiny,
    (*ON_SPARK, DELTA_RS),
    Asked(sizes=(_PATIENCE, 10_000)),
    chosen=("hand-written", "draindown, drain", "delta-rs"),
    findings=_tiny_findings,
)
