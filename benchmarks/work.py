"""What a work is, and the bench it is done on."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import changes
from benchmarks.changes import NOTHING, Seeded
from benchmarks.contenders import Contender, submit
from benchmarks.measure import apart, measured
from benchmarks.place import CHANGES, Failed, Place, Shape
from benchmarks.samples import Row, Sample
from draindown.launch import settings as spark_settings

FILE_ROWS = 10_000


@dataclass(frozen=True)
class Finding:
    """A table that a work draws from its samples."""

    title: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Asked:
    """Size of the work. `fraction` scales rows; `sizes` are rows or files, as the work says."""

    fraction: float = 1.0
    repeat: int = 1
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Work:
    """One thing to measure."""

    name: str
    about: str
    measure: Callable[[Bench], list[Sample]]
    contenders: tuple[Contender, ...]
    defaults: Asked = Asked()
    chosen: tuple[str, ...] = ("",)
    """Which contenders run unless others are asked for: how their names begin."""
    findings: Callable[[Sequence[Sample]], list[Finding]] = lambda _: []
    pictures: Callable[[Sequence[Sample]], Mapping[str, str]] = field(default=lambda _: {})
    """SVG by file name without its ending."""


@dataclass(frozen=True)
class Bench:
    """Where a work is done: who takes part, how much, and a scratch directory."""

    scratch: Path
    asked: Asked
    contenders: Sequence[Contender]

    def rows(self, of: int = FILE_ROWS) -> int:
        """A number of rows, scaled by the fraction."""
        return max(10, round(of * self.asked.fraction))

    def place(
        self,
        name: str,
        shape: Shape = CHANGES,
        landing: Path | None = None,
        seeded: Seeded = NOTHING,
    ) -> Place:
        """An empty place; `landing` where its input is there already."""
        home = self.scratch / "runs" / re.sub(r"[^\w]+", "-", name)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        return Place(shape, landing or home / "landing", home / "lake", home, seeded)

    def feed(self, sizes: Sequence[int]) -> list[Path]:
        """Files of change events with so many lines each, made once; in order of arrival."""
        landing = self.scratch / f"feed-{len(sizes)}-{sum(sizes)}-{sizes[0]}-{sizes[-1]}"
        if not landing.exists():
            say(f"writing {sum(sizes):,} events in {len(sizes):,} files")
            part = landing.with_name(f"{landing.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            apart(changes.feed, part / "changes", sizes)
            part.rename(landing)
        return sorted((landing / "changes").iterdir())

    def run(self, contender: Contender, place: Place, kind: str, number: int = 1) -> Sample:
        """One run, measured."""
        sample = Sample(contender.name, kind, contender.run(place), number)
        if sample.cost.exit_code:
            shutil.copy(place.home / "err.txt", place.home / f"failed-{number}.txt")
        tell(sample)
        return sample

    def must(self, contender: Contender, place: Place, kind: str, number: int = 1) -> Sample:
        """A run that others build on. Raises Failed."""
        sample = self.run(contender, place, kind, number)
        if sample.cost.exit_code:
            raise Failed(f"{kind} of {contender.name} failed: {place.home / 'err.txt'}")
        return sample

    def judged(self, contender: Contender, place: Place, sample: Sample) -> Sample:
        """The sample with what the oracle says of the table."""
        found = apart(place.shape.judge, place, contender.keeps_refused)
        say(f"    oracle: {found.text}, {found.quarantined:,} refused rows kept")
        return replace(
            sample, wrong_rows=found.wrong_rows, quarantined=found.quarantined, verdict=found.text
        )

    def judged_last(self, contender: Contender, place: Place, samples: list[Sample]) -> None:
        """Put what the oracle says of the table into the contender's newest sample."""
        at = max(i for i, sample in enumerate(samples) if sample.contender == contender.name)
        samples[at] = self.judged(contender, place, samples[at])

    def seed(self, place: Place) -> None:
        """Append the place's seeded rows to its table, which is made if it is not there. Raises
        Failed.
        """
        flags = ["--table", str(place.table), "--rows", str(place.seeded.rows)]
        columns = changes.seed_columns(place.seeded, "div")
        command = submit(
            "seed.py", spark_settings.settings("local[*]"), *flags, "--columns", columns
        )
        say(f"  seeding {place.seeded.rows:,} rows")
        if measured(command, place.environment(), place.home).exit_code:
            raise Failed(f"seeding failed: {place.home / 'err.txt'}")

    def batch(
        self, place: Place, number: int, rows: int, recent: float, *, new: int = 0, bad: int = 0
    ) -> None:
        """Deliver one batch of changes to a seeded table."""
        lines = changes.batch(place.seeded, rows, number, recent, new=new, bad=bad)
        changes.write(place.files, number, lines)


def result(place: Place) -> dict[str, Any]:
    """The JSON object that ends what the newest run printed. Raises Failed.

    spark-submit puts what a program writes to stderr, progress bars for one, before it.
    """
    text = "\n" + (place.home / "out.txt").read_text()
    try:
        found: dict[str, Any] = json.loads(text[text.rfind("\n{") + 1 :])
    except ValueError:
        raise Failed(f"no result in {place.home}: {text[-200:]}") from None
    return found


def tell(sample: Sample) -> None:
    """A line of progress."""
    cost = sample.cost
    exit_code = f", EXIT {cost.exit_code}" if cost.exit_code else ""
    say(
        f"  {sample.kind} {sample.number}, {sample.contender}: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU s, "
        f"{cost.rss_mb} MB{exit_code}"
    )


def say(text: str) -> None:
    """Tell whoever waits."""
    print(text, file=sys.stderr, flush=True)
