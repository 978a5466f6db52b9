"""Small and often (W2), and nothing to do (W3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.contenders import ALL, DAG, DELTA_RS, KOHEESIO, ON_SPARK, Contender
from benchmarks.pictures import Chart, Line, lines
from benchmarks.place import Place
from benchmarks.samples import Row, Sample, contenders, kinds, median, of, ratio
from benchmarks.standing import idle
from benchmarks.work import FILE_ROWS, Asked, Bench, Finding, Work, say

FILES_BEFORE = 10
ROWS = 1_000
_IDLE_RUNS = 3
_MINUTE = 60.0
_COSTS = {"wall": "wall_s", "CPU": "cpu_s", "largest process": "rss_mb"}
STANDING = "servers, a minute idle"


def measure(bench: Bench) -> list[Sample]:
    """Who needs servers is alone with them, as what they burn would be in everybody's runs;
    commands take turns.
    """
    files = bench.feed([bench.rows()] * FILES_BEFORE + [bench.rows(ROWS)] * bench.asked.repeat)
    commands = [c for c in bench.contenders if not c.standing]
    # first: servers that don't start are no loss of an hour then
    served = [[c] for c in bench.contenders if c.standing]
    samples = [sample for group in (*served, commands) for sample in _series(bench, group, files)]
    order = [c.name for c in bench.contenders]
    return sorted(samples, key=lambda sample: order.index(sample.contender))


def _series(bench: Bench, group: Sequence[Contender], files: Sequence[Path]) -> list[Sample]:
    places = {c.name: bench.place(f"small-{c.name}") for c in group}
    with ExitStack() as servers:
        for contender in group:
            if contender.standing:
                say(f"  starting the servers of {contender.name}")
                servers.enter_context(contender.standing(places[contender.name]))
        samples = _runs(bench, group, places, files)
        samples += [Sample(c.name, STANDING, idle(_MINUTE)) for c in group if c.standing]
        # a last run that is for the oracle: its cost counts nowhere
        ends = [(c, places[c.name], bench.run(c, places[c.name], "end")) for c in group]
    return samples + [bench.judged(*end) for end in ends]


def _runs(
    bench: Bench, group: Sequence[Contender], places: Mapping[str, Place], files: Sequence[Path]
) -> list[Sample]:
    for contender in group:
        places[contender.name].deliver(files[:FILES_BEFORE])
        bench.must(contender, places[contender.name], "first")
    small = [("small", number, [file]) for number, file in enumerate(files[FILES_BEFORE:], 1)]
    idle_runs = [("idle", number, list[Path]()) for number in range(1, _IDLE_RUNS + 1)]
    samples = []
    for kind, number, delivered in [*small, *idle_runs]:
        for contender in group:
            places[contender.name].deliver(delivered)
            samples.append(bench.run(contender, places[contender.name], kind, number))
    return samples


def findings(samples: Sequence[Sample]) -> list[Finding]:
    """What the DAG costs over the command that does the same steps, per kind of run."""
    rows: list[Row] = []
    for kind in kinds(samples):
        through, command = (of(samples, kind, c.name) for c in (DAG, ALL))
        if through and command:
            over = {
                title: ratio(median(through, what), median(command, what))
                for title, what in _COSTS.items()
            }
            rows.append({"run": kind, **over})
    return [Finding(f"{DAG.name} over {ALL.name}", rows)]


def _pictures(samples: Sequence[Sample]) -> Mapping[str, str]:
    drawn = [
        Line(name, [(s.number, s.cost.wall_s) for s in of(samples, "small", name)])
        for name in contenders(samples)
    ]
    return {
        "bench-small": lines(Chart("Runs of one small file", "run", "wall time, seconds"), drawn)
    }


WORK = Work(
    "small",
    f"{FILES_BEFORE} files of {FILE_ROWS:,} changes, then runs of one file of {ROWS:,}, then runs with nothing new",
    measure,
    (*ON_SPARK, KOHEESIO, DAG, DELTA_RS),
    Asked(repeat=20),
    findings=findings,
    pictures=_pictures,
)
