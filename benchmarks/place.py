"""Where one series of runs reads and writes, and what shape its data has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import oracle
from benchmarks.changes import NOTHING, Seeded
from benchmarks.oracle import Verdict
from draindown.launch.settings import spark_python
from examples.flights import oracle as flights_oracle

ROOT = Path(__file__).resolve().parent.parent


class Failed(RuntimeError):
    """Something that others build on failed."""


@dataclass(frozen=True)
class Shape:
    """One kind of data: the pipeline that drains it, and who says what must come of it."""

    name: str
    """Of the table, and of the directory of its files."""
    root: Path
    pipeline: str
    judge: Callable[[Place, bool], Verdict]
    """Takes the place and whether the contender keeps refused rows."""


@dataclass(frozen=True)
class Place:
    """Where runs read and write."""

    shape: Shape
    landing: Path
    lake: Path
    home: Path
    """Scratch: working directory and output of the newest run."""
    seeded: Seeded = NOTHING
    """What the table had before the first file."""

    @property
    def files(self) -> Path:
        """Directory of the input."""
        return self.landing / self.shape.name

    @property
    def table(self) -> Path:
        """The Delta table."""
        return self.lake / "tables" / self.shape.name

    def deliver(self, files: Iterable[Path]) -> None:
        """Put files into the input, with their times."""
        self.files.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy2(file, self.files)

    def environment(self) -> dict[str, str]:
        """What a process finds in its environment: that of an ordinary machine, where Python keeps
        its byte code.
        """
        ours = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        return {
            **ours,
            **spark_python(),
            "DRAINDOWN_LAKE": str(self.lake),
            "DRAINDOWN_LANDING": str(self.landing),
        }


def _flights(place: Place, keeps: bool) -> Verdict:
    found = flights_oracle.compare(place.lake, place.landing, quarantine=keeps, rescued=keeps)
    text = found.problem or ("exact" if found.ok else found.as_text().splitlines()[0])
    return Verdict(found.wrong_rows, found.quarantined_found, text)


def _changes(place: Place, keeps: bool) -> Verdict:
    quarantine = place.lake / "quarantine" / place.shape.name if keeps else None
    return oracle.compare(place.table, place.files, quarantine=quarantine, seeded=place.seeded)


FLIGHTS = Shape("flights", ROOT, "flights", _flights)
CHANGES, BY_DAY = (
    Shape(
        "changes",
        ROOT / "benchmarks",
        str(ROOT / "benchmarks" / "pipelines" / f"{pipeline}.yaml"),
        _changes,
    )
    for pipeline in ("changes", "days")
)
"""The change events into a table without partitions, and into one with a partition per day."""
