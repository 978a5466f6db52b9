"""Small and often (W2), and nothing to do (W3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.contenders import DELTA_RS, ON_SPARK
from benchmarks.pictures import Chart, Line, lines
from benchmarks.samples import Sample, contenders, of
from benchmarks.work import FILE_ROWS, Asked, Bench, Work

_FILES_BEFORE = 10
_ROWS = 1_000
_IDLE_RUNS = 3


def _measure(bench: Bench) -> list[Sample]:
    runs = bench.asked.repeat
    files = bench.feed([bench.rows()] * _FILES_BEFORE + [bench.rows(_ROWS)] * runs)
    places = {c.name: bench.place(f"small-{c.name}") for c in bench.contenders}
    for contender in bench.contenders:
        places[contender.name].deliver(files[:_FILES_BEFORE])
        bench.must(contender, places[contender.name], "first")
    samples = []
    for turn, file in enumerate([[one] for one in files[_FILES_BEFORE:]] + [[]] * _IDLE_RUNS):
        for contender in bench.contenders:
            places[contender.name].deliver(file)
            kind, number = ("small", turn + 1) if file else ("idle", turn + 1 - runs)
            samples.append(bench.run(contender, places[contender.name], kind, number))
    # a last run that is for the oracle: its cost counts nowhere
    ends = [(c, places[c.name], bench.run(c, places[c.name], "end")) for c in bench.contenders]
    return samples + [bench.judged(*end) for end in ends]


def _pictures(samples: Sequence[Sample]) -> Mapping[str, str]:
    drawn = [
        Line(name, [(s.number, s.cost.wall_s) for s in of(samples, "small", name)]) for name in contenders(samples)
    ]
    return {"bench-small": lines(Chart("Runs of one small file", "run", "wall time, seconds"), drawn)}


WORK = Work(
    "small",
    f"{_FILES_BEFORE} files of {FILE_ROWS:,} changes, then runs of one file of {_ROWS:,}, then runs with nothing new",
    _measure,
    (*ON_SPARK, DELTA_RS),
    Asked(repeat=20),
    pictures=_pictures,
)
