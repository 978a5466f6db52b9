"""A small run at a source where very many files were seen before."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.contenders import DRAIN, Contender, by, program
from benchmarks.measure import apart
from benchmarks.place import Place
from benchmarks.samples import Row, Sample, contenders, kinds, median, of, ratio
from benchmarks.work import Asked, Bench, Finding, Work, say
from draindown.config import loader
from draindown.lake.home import FlowHome
from draindown.sources.files import catalog
from draindown.sources.files.inspection import Verified

_PER_CUT = 1_000
_PLAN = Contender(
    "draindown, plan",
    "draindown plan: what a run would do, without a JVM",
    by(
        lambda place: [
            program("draindown"),
            "--root",
            str(place.shape.root),
            "plan",
            place.shape.pipeline,
            "--json",
        ]
    ),
)


def _measure(bench: Bench) -> list[Sample]:
    runs, samples = bench.asked.repeat, list[Sample]()
    files = bench.feed([bench.rows()] + [bench.rows(1_000)] * runs)
    for size in bench.asked.sizes:
        place = bench.place(f"seen-{size}")
        place.deliver(files[:1])
        bench.must(DRAIN, place, "first")
        say(f"  {size:,} files more are said to have been read")
        apart(_pretend, place, size)
        for number, file in enumerate(files[1:], 1):
            place.deliver([file])
            samples += [
                bench.run(one, place, f"{size:,} files seen", number) for one in bench.contenders
            ]
        if DRAIN in bench.contenders:
            bench.judged_last(DRAIN, place, samples)
    return samples


def _pretend(place: Place, files: int) -> None:
    """Have the intake say that so many files more were taken in, and the checkpoint that they were
    drained.

    They never were: what is measured is what it costs to know of them. They are not in the landing
    directory, as if they had been moved away once they were read.
    """
    os.environ.update(place.environment())
    layout = loader.load(Path(place.shape.pipeline), os.environ).layout(place.shape.name)
    now, cut = datetime.now(UTC), catalog.last_slice(layout)
    for start in range(0, files, _PER_CUT):
        cut += 1
        some = range(start, min(start + _PER_CUT, files))
        catalog.append_slice(layout, [_file(place, number) for number in some], now, cut)
    catalog.remember(layout)
    _drained(layout, cut)


def _file(place: Place, number: int) -> Verified:
    path = place.files / f"{number // 100_000}" / f"seen-{number:08}.json.gz"
    return Verified(
        str(path), 100_000, number, f"{number:064x}", lines=1_000, blank=0, raw_bytes=1_000_000
    )


def _drained(layout: FlowHome, cut: int) -> None:
    offsets = Path(layout.checkpoint(1), "offsets")
    newest = max(
        (path for path in offsets.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )
    *head, last = newest.read_text().splitlines()
    newest.write_text(
        "\n".join([*head, json.dumps(json.loads(last) | {"reservoirVersion": cut + 1})])
    )
    (offsets / f".{newest.name}.crc").unlink(missing_ok=True)


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    rows: list[Row] = []
    for name in contenders(samples):
        few, many = (of(samples, kind, name) for kind in (kinds(samples)[0], kinds(samples)[-1]))
        walls, cpus = ((median(many, what), median(few, what)) for what in ("wall_s", "cpu_s"))
        rows.append(
            {"step": name, "wall, many over few": ratio(*walls), "CPU, many over few": ratio(*cpus)}
        )
    return [Finding("A run where many files were seen, over one where few were", rows)]


WORK = Work(
    "seen",
    "runs of one file of 1,000 changes where 1,000 and where 1,000,000 files were seen before",
    _measure,
    (_PLAN, DRAIN),
    Asked(repeat=5, sizes=(1_000, 1_000_000)),
    findings=_findings,
)
