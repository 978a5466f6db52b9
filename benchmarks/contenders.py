"""Ways to drain files of changes into a table."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import standing
from benchmarks.measure import Cost, measured
from benchmarks.place import ROOT, Failed, Place
from draindown.lake.presence import Lake
from draindown.launch import settings as spark_settings

PROGRAMS = Path(__file__).resolve().parent / "programs"
BASELINE = "hand-written"
_KOHEESIO = ROOT / "benchmarks" / "koheesio.lock"
_TUNED = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.driver.memory": spark_settings.DEFAULT_HEAP,
}


@dataclass(frozen=True)
class Contender:
    """One way to fill the table."""

    name: str
    note: str
    run: Callable[[Place], Cost]
    """Drain what waits at the place, once."""
    keeps_refused: bool = False
    """Whether it has a quarantine (and `_rescued_data`), so that the oracle asks for it."""
    standing: Callable[[Place], AbstractContextManager[None]] | None = None
    """Servers that must stand at the place while it runs; their start and end are in nobody's
    cost.
    """

    @property
    def ours(self) -> bool:
        """Whether a wrong result is a failure of the benchmark, not a finding."""
        return self.name.startswith("draindown")


def by(command: Callable[[Place], list[str]]) -> Callable[[Place], Cost]:
    """A run that is a command of its own, from its start to its exit."""
    return lambda place: measured(command(place), place.environment(), place.home)


def program(name: str) -> str:
    """A program of this environment."""
    path = Path(sys.prefix) / "bin" / name
    if not path.exists():
        sys.exit(f"{path} is not there; run `make setup`, then this again")
    return str(path)


def submit(script: str, conf: Mapping[str, str], *flags: str) -> list[str]:
    """spark-submit of one of the programs, with Delta on its class path."""
    confs = {"spark.driver.extraClassPath": spark_settings.class_path(), **conf}
    options = [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    return [program("spark-submit"), *options, str(PROGRAMS / script), *flags]


def draindown(place: Place, *flags: str, flow: str | None = None) -> list[str]:
    """`draindown run` of the place's pipeline, or of one flow of it. The lake is begun on purpose:
    each place has its own.
    """
    lake = Lake.look(str(place.lake), place.shape.root, place.shape.name)
    if lake.answer in ("absent", "elsewhere"):
        lake.accept("benchmark")
    return [
        program("draindown"),
        "--root",
        str(place.shape.root),
        "run",
        "/".join(filter(None, (place.shape.pipeline, flow))),
        "--json",
        *flags,
    ]


def _where(place: Place) -> list[str]:
    return ["--shape", place.shape.name, "--landing", str(place.landing), "--lake", str(place.lake)]


def _koheesio(place: Place) -> Cost:
    """Its packages, by hash, are fetched once, before the first run is timed."""
    digest = hashlib.sha256(_KOHEESIO.read_bytes()).hexdigest()[:16]
    packages = ROOT / ".work" / f"koheesio-{digest}"
    if not packages.is_dir():
        part = packages.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        how = [
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--target",
            str(part),
            "-r",
            str(_KOHEESIO),
        ]
        if subprocess.run([sys.executable, "-m", "pip", "install", *how], check=False).returncode:
            raise Failed("koheesio can't be fetched; --only leaves it out")
        part.rename(packages)
    found = {**place.environment(), "PYTHONPATH": str(packages)}
    return measured(submit("koheesio_job.py", {}, *_where(place)), found, place.home)


def tuned(place: Place, *flags: str) -> list[str]:
    """The hand-written job as a good engineer would tune it."""
    return submit("hand_written.py", _TUNED, *_where(place), "--tuned", "--files=50", *flags)


HAND_WRITTEN = Contender(
    BASELINE,
    "benchmarks/programs/hand_written.py, default settings, 10 files per trigger",
    by(lambda place: submit("hand_written.py", {}, *_where(place))),
)
TUNED = Contender(
    "hand-written, tuned",
    "the same, 2 shuffle partitions, no UI, serial collector, 2 GB heap, 50 files per trigger",
    by(tuned),
)
DRAIN = Contender(
    "draindown, drain",
    "draindown run --no-check --no-compact: plan, and the drain with quarantine, tombstones and ledger",
    by(lambda place: draindown(place, "--no-check", "--no-compact")),
    keeps_refused=True,
)
ALL = Contender(
    "draindown, all",
    "draindown run: the same, then check and compact",
    by(draindown),
    keeps_refused=True,
)
DELTA_RS = Contender(
    "delta-rs, no Spark",
    "benchmarks/programs/delta_rs.py: DuckDB reads, delta-rs merges, a manifest remembers; one machine, no cluster",
    by(lambda place: [sys.executable, str(PROGRAMS / "delta_rs.py"), *_where(place)]),
)
DAG = Contender(
    "draindown, DAG",
    "the same as tasks of a DAG run, in an Airflow that stands: plan without a JVM, drain and check by one "
    "spark-submit; from the trigger to the end of the run; CPU of all Airflow's processes meanwhile, with what they "
    "burn when idle",
    standing.dag_run,
    keeps_refused=True,
    standing=standing.airflow,
)
HAND_WRITTEN_DAG = Contender(
    BASELINE,
    "benchmarks/programs/hand_written_dag.py: the hand-written job, default settings, as the one SparkSubmitOperator "
    "of a DAG, in an Airflow of its own that stands",
    standing.dag_run,
    standing=standing.by_hand,
)
KOHEESIO = Contender(
    "koheesio",
    "benchmarks/programs/koheesio_job.py: the hand-written job by an ETL framework's writers, default settings",
    _koheesio,
)
ON_SPARK = (HAND_WRITTEN, TUNED, DRAIN, ALL)
