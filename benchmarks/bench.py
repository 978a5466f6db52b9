"""Measure draindown beside the job one would write by hand: same files, same machine, turn by turn.

    python benchmarks/bench.py drain [--fraction 0.1] [--repeat 3] [--only hand-written,draindown]

Every run starts from nothing in a directory of its own and is timed as a whole process: start-up, work and exit, with
the CPU time of every process it started. The oracle then says how many rows each result has wrong. Numbers go to
`benchmarks/results/` as JSON and as a table into `docs/performance.md`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from draindown import sparkconf
from draindown.demo import events, oracle

ROOT = Path(__file__).resolve().parent.parent
HAND_WRITTEN = ROOT / "benchmarks" / "hand_written.py"
PERFORMANCE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
BASELINE = "hand-written"

Result = TypeVar("Result")

_SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER
_LINGER = 30.0  # seconds an orphan may take to end


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


@dataclass(frozen=True)
class Sample:
    """One run, measured."""

    contender: str
    wall_s: float
    cpu_s: float
    rss_mb: int
    """Peak of its largest process."""
    exit_code: int
    wrong_rows: int
    quarantined: int
    verdict: str


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


def _apart(work: Callable[..., Result], *args: object, **more: object) -> Result:
    """Do it in a process of its own: what this one once held would count as memory of every contender it forks."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *args, **more).result()


def run(contender: Contender, place: Place) -> Sample:
    """Run a contender to its end, count what it cost, and ask the oracle about its table."""
    place.home.mkdir(parents=True)
    code, wall, cpu, rss = _measured(contender.command(place), _environment(place), place.home, contender.cwd)
    kept = contender.keeps_refused
    judged = _apart(oracle.compare, place.lake, place.landing, quarantine=kept, rescued=kept)
    (place.home / "oracle.json").write_text(json.dumps(judged.as_dict(), indent=2))
    verdict = judged.problem or ("exact" if judged.ok else judged.as_text().splitlines()[0])
    return Sample(
        contender.name, round(wall, 2), round(cpu, 2), rss, code, judged.wrong_rows, judged.quarantined_found, verdict
    )


def _environment(place: Place) -> dict[str, str]:
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**os.environ, **python, "DRAINDOWN_LAKE": str(place.lake), "DRAINDOWN_LANDING": str(place.landing)}


def _measured(command: list[str], env: dict[str, str], home: Path, cwd: Path | None) -> tuple[int, float, float, int]:
    """Exit code, wall and CPU seconds, and the largest process in MB, orphans included."""
    with (home / "out.txt").open("wb") as out, (home / "err.txt").open("wb") as err:
        started = time.monotonic()
        main = subprocess.Popen(command, env=env, cwd=cwd or home, stdout=out, stderr=err)
        _, status, spent = os.wait4(main.pid, 0)
        wall = time.monotonic() - started
    main.returncode = os.waitstatus_to_exitcode(status)
    cpu, rss = spent.ru_utime + spent.ru_stime, spent.ru_maxrss
    until = time.monotonic() + _LINGER
    while time.monotonic() < until:
        try:
            pid, _, spent = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid:
            cpu, rss = cpu + spent.ru_utime + spent.ru_stime, max(rss, spent.ru_maxrss)
        else:
            time.sleep(0.05)
    return main.returncode, wall, cpu, rss // 1024


def _adopt_orphans() -> None:
    """Make orphaned grandchildren ours: a JVM whose parent left without waiting must not be missing from the bill."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def drain(fraction: float, repeat: int, contenders: tuple[Contender, ...], work: Path) -> list[Sample]:
    """Drain the demo's year from nothing, contender after contender, `repeat` times."""
    landing = work / f"landing-{fraction:g}"
    made = _apart(events.generate, landing, fraction)
    _say(
        f"{made.events:,} events in {len(made.files)} files; {repeat} rounds of {', '.join(c.name for c in contenders)}"
    )
    samples = []
    for turn in range(repeat):
        for contender in contenders:
            home = work / "runs" / f"{turn}-{contender.name.replace(', ', '-')}"
            shutil.rmtree(home, ignore_errors=True)
            sample = run(contender, Place(landing, home / "lake", home))
            samples.append(sample)
            _say(f"  {turn + 1}/{repeat} {sample.contender}: {sample.wall_s:.1f} s, {sample.cpu_s:.1f} CPU s, "
                 f"{sample.rss_mb} MB, exit {sample.exit_code}, {sample.verdict}")  # fmt: skip
    return samples


def summary(samples: list[Sample]) -> list[dict[str, object]]:
    """One row per contender: medians of its good runs, and their ratios to the baseline of the same measurement."""
    names = list(dict.fromkeys(s.contender for s in samples))
    groups = {name: [s for s in samples if s.contender == name] for name in names}
    base = groups.get(BASELINE) or []
    return [_row(name, group, base) for name, group in groups.items()]


def _row(name: str, group: list[Sample], base: list[Sample]) -> dict[str, object]:
    row: dict[str, object] = {"contender": name, "runs": len(group), "failed": sum(s.exit_code != 0 for s in group)}
    for what in ("wall_s", "cpu_s", "rss_mb"):
        row[what] = _median(group, what)
        row[f"{what}_ratio"] = round(_median(group, what) / _median(base, what), 2) if base else None
    return row | {
        "wrong_rows": max(s.wrong_rows for s in group),
        "quarantined": group[-1].quarantined,
        "verdict": group[-1].verdict,
    }


def _median(group: list[Sample], what: str) -> float:
    return round(float(statistics.median(getattr(s, what) for s in group)), 2)


def table(rows: list[dict[str, object]]) -> str:
    """The summary as Markdown."""
    lines = [
        "| | wall s | ratio | CPU s | ratio | largest process MB | wrong rows | refused rows kept |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        wrong = r["wrong_rows"] if not r["failed"] else f"{r['failed']} of {r['runs']} runs failed"
        lines.append(
            f"| {r['contender']} | {r['wall_s']} | {r['wall_s_ratio']} | {r['cpu_s']} | {r['cpu_s_ratio']} | "
            f"{r['rss_mb']:.0f} | {wrong} | {r['quarantined']} |"
        )
    return "\n".join(lines)


def publish(name: str, samples: list[Sample], facts: dict[str, object]) -> str:
    """Write the JSON and the section of docs/performance.md; return the section."""
    rows = summary(samples)
    RESULTS.mkdir(exist_ok=True)
    content = {"benchmark": name, **facts, "summary": rows, "samples": [asdict(s) for s in samples]}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    about = "\n".join(f"- {c.name}: {c.note}" for c in CONTENDERS if any(s.contender == c.name for s in samples))
    told = ", ".join(f"{key} {value}" for key, value in facts.items())
    section = f"{table(rows)}\n\n{about}\n\nMedians of whole processes in one session: {told}."
    _replace_section(PERFORMANCE, name, section)
    return section


def _replace_section(page: Path, name: str, section: str) -> None:
    """Put a section between its two marks, which are added at the end of the page if they are not there."""
    begin, end = f"<!-- bench {name}: begin -->", f"<!-- bench {name}: end -->"
    page.parent.mkdir(exist_ok=True)
    text = page.read_text() if page.exists() else "# Performance\n"
    if begin not in text:
        text = f"{text.rstrip()}\n\n## {name.capitalize()}\n\n{begin}\n{end}\n"
    head, rest = text.split(begin, 1)
    page.write_text(f"{head}{begin}\n{section}\n{end}{rest.split(end, 1)[1]}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measure what was asked for; exit 1 if draindown's result was wrong or a run failed."""
    parser = argparse.ArgumentParser(description="Measure draindown beside a hand-written job.")
    parser.add_argument("benchmark", choices=["drain"])
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the flights (default: all)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="contenders by name prefix, separated by commas")
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "bench", help="scratch directory")
    parser.add_argument("--dry", action="store_true", help="measure and print, write no results")
    asked = parser.parse_args()
    wanted = tuple(asked.only.split(",")) if asked.only else ("",)
    _adopt_orphans()
    chosen = tuple(c for c in CONTENDERS if c.name.startswith(wanted))
    samples = drain(asked.fraction, asked.repeat, chosen, asked.work.absolute())
    facts: dict[str, object] = {
        "fraction": asked.fraction, "repeat": asked.repeat, "cores": os.cpu_count() or 0,
        "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    print(table(summary(samples)) if asked.dry else publish(asked.benchmark, samples, facts))
    return int(any(s.exit_code or (s.contender.startswith("draindown") and s.verdict != "exact") for s in samples))


if __name__ == "__main__":
    sys.exit(main())
