"""Growth of the backlog (W5): more files of one size, and very many tiny ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from benchmarks.contenders import DELTA_RS, ON_SPARK
from benchmarks.pictures import Bar, Chart, bars
from benchmarks.samples import Row, Sample, contenders, kinds, median, of, ratio
from benchmarks.work import FILE_ROWS, Asked, Bench, Finding, Work

_TINY_FILES = 10_000
_TINY_EVENTS = 1_000_000


def _backlog(bench: Bench) -> list[Sample]:
    samples = []
    for turn in range(bench.asked.repeat):
        for size in bench.asked.sizes:
            samples += _drained(bench, f"{size:,} files", [bench.rows()] * size, turn + 1)
    return samples


def _tiny(bench: Bench) -> list[Sample]:
    files = bench.asked.sizes[0]
    sizes = [max(1, bench.rows(_TINY_EVENTS) // files)] * files
    turns = range(bench.asked.repeat)
    return [sample for turn in turns for sample in _drained(bench, f"{files:,} files", sizes, turn + 1)]


def _drained(bench: Bench, kind: str, sizes: Sequence[int], number: int) -> list[Sample]:
    files = bench.feed(sizes)
    samples = []
    for contender in bench.contenders:
        place = bench.place(f"backlog-{kind}-{contender.name}", landing=files[0].parent.parent)
        sample = bench.judged(contender, place, bench.run(contender, place, kind, number))
        cost = sample.cost
        facts = {"us_per_row": cost.wall_s / sum(sizes) * 1e6, "cpu_us_per_row": cost.cpu_s / sum(sizes) * 1e6}
        samples.append(replace(sample, facts=facts))
    return samples


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    """Per contender and size: cost of a row and memory, and both over those of the next smaller size."""
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


def _over(group: Sequence[Sample], before: Sequence[Sample], what: str) -> float | None:
    return ratio(median(group, what), median(before, what)) if before else None


def _pictures(samples: Sequence[Sample]) -> Mapping[str, str]:
    drawn = [
        Bar(kind, name, median(of(samples, kind, name), "us_per_row") or 0)
        for kind, name in product(kinds(samples), contenders(samples))
    ]
    return {
        "bench-backlog": bars(Chart("Cost of a row by size of the backlog", "backlog", "wall time, µs per row"), drawn)
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
    f"{_TINY_EVENTS:,} changes in {_TINY_FILES:,} files, into an empty table",
    _tiny,
    (*ON_SPARK, DELTA_RS),
    Asked(sizes=(_TINY_FILES,)),
    chosen=("hand-written", "draindown, drain", "delta-rs"),
)
