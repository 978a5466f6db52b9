"""Ways to drain the demo's events into the flights table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from draindown import sparkconf

ROOT = Path(__file__).resolve().parent.parent
HAND_WRITTEN = ROOT / "benchmarks" / "hand_written.py"
BASELINE = "hand-written"


@dataclass(frozen=True)
class Place:
    """Where one run reads and writes."""

    landing: Path
    lake: Path
    home: Path
    """Scratch of this run: working directory and output."""


@dataclass(frozen=True)
class Contender:
    """One way to fill the table."""

    name: str
    note: str
    command: Callable[[Place], list[str]]
    keeps_refused: bool = False
    """Whether it has a quarantine and `_rescued`, so that the oracle asks for them."""
    cwd: Path | None = None


def environment(place: Place) -> dict[str, str]:
    """What a contender's process finds in its environment."""
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**os.environ, **python, "DRAINDOWN_LAKE": str(place.lake), "DRAINDOWN_LANDING": str(place.landing)}


def _bin(name: str) -> str:
    program = Path(sys.prefix) / "bin" / name
    if not program.exists():
        sys.exit(f"{program} is not there; run `make setup`, then this again")
    return str(program)


def _submit(place: Place, conf: Mapping[str, str], *flags: str) -> list[str]:
    confs = {"spark.driver.extraClassPath": sparkconf.class_path(), **conf}
    options = [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    where = ["--landing", str(place.landing), "--lake", str(place.lake)]
    return [_bin("spark-submit"), *options, str(HAND_WRITTEN), *where, *flags]


CONTENDERS = (
    Contender(BASELINE, "benchmarks/hand_written.py, default settings, 10 files per trigger", lambda p: _submit(p, {})),
    Contender(
        "hand-written, tuned",
        "the same, 2 shuffle partitions, no UI, serial collector, 2 GB heap, 50 files per trigger",
        lambda p: _submit(
            p,
            {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC", "spark.driver.memory": sparkconf.DEFAULT_HEAP},
            "--tuned",
            "--files=50",
        ),
    ),
    Contender(
        "draindown, drain",
        "draindown run --no-check --no-compact: plan, and the drain with quarantine, tombstones and ledger",
        lambda p: [_bin("draindown"), "run", "flights", "--no-check", "--no-compact", "--json"],
        keeps_refused=True,
        cwd=ROOT,
    ),
    Contender(
        "draindown, all",
        "draindown run: the same, then check and compact",
        lambda p: [_bin("draindown"), "run", "flights", "--json"],
        keeps_refused=True,
        cwd=ROOT,
    ),
)
