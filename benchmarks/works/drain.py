"""A backlog drained from nothing: the demo's year of flights, and a hundred files of change events
(W1).
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.contenders import DELTA_RS, KOHEESIO, ON_SPARK, Contender
from benchmarks.measure import apart
from benchmarks.place import FLIGHTS as FLIGHTS_SHAPE
from benchmarks.place import Place
from benchmarks.samples import Sample
from benchmarks.work import FILE_ROWS, Asked, Bench, Work, say
from examples.flights import events

FILES = 100
MORE_FILES = 10


def _flights(bench: Bench) -> list[Sample]:
    landing = bench.scratch / f"landing-{bench.asked.fraction:g}"
    made = apart(events.generate, landing, bench.asked.fraction)
    say(f"{made.events:,} events in {len(made.files)} files")
    samples = []
    for turn in range(bench.asked.repeat):
        for contender in bench.contenders:
            place = bench.place(f"drain-{turn}-{contender.name}", FLIGHTS_SHAPE, landing)
            samples.append(_drained(bench, contender, place, "drain", turn))
    return samples


def _changes(bench: Bench) -> list[Sample]:
    files = bench.feed([bench.rows()] * (FILES + MORE_FILES))
    samples = []
    for turn in range(bench.asked.repeat):
        for contender in bench.contenders:
            place = bench.place(f"changes-{turn}-{contender.name}")
            samples += [
                _more(bench, contender, place, files[:FILES], "drain", turn),
                _more(bench, contender, place, files[FILES:], "10 files more", turn),
            ]
    return samples


def _more(
    bench: Bench, contender: Contender, place: Place, files: list[Path], kind: str, turn: int
) -> Sample:
    place.deliver(files)
    return _drained(bench, contender, place, kind, turn)


def _drained(bench: Bench, contender: Contender, place: Place, kind: str, turn: int) -> Sample:
    return bench.judged(contender, place, bench.run(contender, place, kind, turn + 1))


FLIGHTS = Work(
    "drain", "the demo's year of flights into an empty table", _flights, ON_SPARK, Asked(repeat=3)
)
CHANGES = Work(
    "changes",
    f"{FILES} files of {FILE_ROWS:,} change events into an empty table, then {MORE_FILES} more",
    _changes,
    (*ON_SPARK, KOHEESIO, DELTA_RS),
    Asked(repeat=3),
)
