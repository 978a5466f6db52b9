"""Measure draindown beside the job one would write by hand: same files, same machine, turn by turn.

    python benchmarks/bench.py drain [--fraction 0.1] [--repeat 3] [--only hand-written,draindown]
    python benchmarks/bench.py small [--fraction 0.1] [--repeat 20]
    python benchmarks/bench.py tiny  [--fraction 0.1] [--files 1000]

Every run is timed as a whole process: start-up, work and exit, with the CPU time of every process it started. The
oracle then says how many rows each result has wrong. Numbers go to `benchmarks/results/` as JSON and as a table into
`docs/performance.md`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from contenders import BASELINE, CONTENDERS, ROOT, Contender, Place, environment
from measure import Cost, adopt_orphans, apart, measured

from draindown.demo import events, oracle

PERFORMANCE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
_IDLE_RUNS = 3
_SMALL_FILES = 110  # of a tenth of the year: about 1,000 lines each
_ENDS = 5  # runs at either end of a series that are compared


@dataclass(frozen=True)
class Sample:
    """One run, measured. `kind`: which of the benchmark's kinds of run; what the oracle says stands in the last one."""

    contender: str
    kind: str
    cost: Cost
    wrong_rows: int = 0
    quarantined: int = 0
    verdict: str = ""


def drain(asked: argparse.Namespace, contenders: Sequence[Contender]) -> list[Sample]:
    """Drain the demo's year from nothing, contender after contender, `repeat` times."""
    landing = _events(asked)
    samples = []
    for turn in range(asked.repeat):
        for contender in contenders:
            place = _place(asked, f"{turn}-{contender.name}", landing)
            samples.append(_judged(contender, place, _run(contender, place, "drain")))
            _tell(samples[-1], f"{turn + 1}/{asked.repeat}")
    return samples


def small(asked: argparse.Namespace, contenders: Sequence[Contender]) -> list[Sample]:
    """Most of the demo's files in one run, the last `repeat` files one by one, then runs with nothing new."""
    files = sorted((_pieces(asked, _SMALL_FILES) / "flights").iterdir())
    before, after = files[: -asked.repeat], files[-asked.repeat :]
    places = {c.name: _place(asked, f"small-{c.name}") for c in contenders}
    for contender in contenders:
        _deliver(places[contender.name], before)
        _tell(_run(contender, places[contender.name], "first"), f"{len(before)} files")
    samples = []
    for turn, file in enumerate([[one] for one in after] + [[]] * _IDLE_RUNS):
        for contender in contenders:
            place = places[contender.name]
            _deliver(place, file)
            samples.append(_run(contender, place, "small" if file else "idle"))
            _tell(samples[-1], f"{turn + 1}/{asked.repeat + _IDLE_RUNS}")
    return samples + [_judged(c, places[c.name], _run(c, places[c.name], "end")) for c in contenders]


def tiny(asked: argparse.Namespace, contenders: Sequence[Contender]) -> list[Sample]:
    """The demo's events in many files of a few lines each, from nothing."""
    landing = _pieces(asked, asked.files)
    samples = []
    for contender in contenders:
        place = _place(asked, f"tiny-{contender.name}", landing)
        samples.append(_judged(contender, place, _run(contender, place, "drain")))
        _tell(samples[-1], f"{asked.files:,} files")
    return samples


def _events(asked: argparse.Namespace) -> Path:
    landing = asked.work / f"landing-{asked.fraction:g}"
    made = apart(events.generate, landing, asked.fraction)
    _say(f"{made.events:,} events in {len(made.files)} files")
    return landing


def _pieces(asked: argparse.Namespace, number: int) -> Path:
    """The events again, in so many files."""
    landing: Path = asked.work / f"pieces-{asked.fraction:g}-{number}"
    if not landing.exists():
        apart(_split, _events(asked) / "flights", landing, number)
    return landing


def _split(source: Path, landing: Path, number: int) -> None:
    lines = [line for file in sorted(source.iterdir()) for line in gzip.decompress(file.read_bytes()).splitlines(True)]
    temporary = landing.with_name(f"{landing.name}.part")
    (temporary / "flights").mkdir(parents=True, exist_ok=True)
    for at in range(number):
        part = lines[at * len(lines) // number : (at + 1) * len(lines) // number]
        file = temporary / "flights" / f"events-{at:05}.json.gz"
        file.write_bytes(gzip.compress(b"".join(part), mtime=0))
        os.utime(file, (at, at))
    temporary.rename(landing)


def _place(asked: argparse.Namespace, name: str, landing: Path | None = None) -> Place:
    home = asked.work / "runs" / name.replace(", ", "-")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    return Place(landing or home / "landing", home / "lake", home)


def _deliver(place: Place, files: Iterable[Path]) -> None:
    (place.landing / "flights").mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy2(file, place.landing / "flights")


def _run(contender: Contender, place: Place, kind: str) -> Sample:
    cost = measured(contender.command(place), environment(place), place.home, contender.cwd)
    return Sample(contender.name, kind, cost)


def _judged(contender: Contender, place: Place, sample: Sample) -> Sample:
    """The sample with what the oracle says of the table."""
    kept = contender.keeps_refused
    found = apart(oracle.compare, place.lake, place.landing, quarantine=kept, rescued=kept)
    (place.home / "oracle.json").write_text(json.dumps(found.as_dict(), indent=2))
    verdict = found.problem or ("exact" if found.ok else found.as_text().splitlines()[0])
    return replace(sample, wrong_rows=found.wrong_rows, quarantined=found.quarantined_found, verdict=verdict)


def _tell(sample: Sample, progress: str) -> None:
    cost = sample.cost
    _say(
        f"  {progress} {sample.contender}, {sample.kind}: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU s, "
        f"{cost.rss_mb} MB, exit {cost.exit_code} {sample.verdict}"
    )


def summary(samples: Sequence[Sample]) -> list[dict[str, object]]:
    """One row per kind of run and contender: medians, and their ratios to the baseline of the same kind."""
    kinds = [kind for kind in dict.fromkeys(s.kind for s in samples) if kind != "end"]
    names = list(dict.fromkeys(s.contender for s in samples))
    return [_row(kind, name, samples) for kind in kinds for name in names]


def _row(kind: str, name: str, samples: Sequence[Sample]) -> dict[str, object]:
    own = [s for s in samples if s.contender == name]
    group = [s.cost for s in own if s.kind == kind]
    base = [s.cost for s in samples if s.contender == BASELINE and s.kind == kind]
    row: dict[str, object] = {"kind": kind, "contender": name, "runs": len(group)}
    for what in ("wall_s", "cpu_s", "rss_mb"):
        row[what] = _median(group, what)
        row[f"{what}_ratio"] = round(_median(group, what) / _median(base, what), 2) if base else None
    if len(group) >= 2 * _ENDS:
        row["last_first"] = round(_median(group[-_ENDS:], "wall_s") / _median(group[:_ENDS], "wall_s"), 2)
    row["failed"] = sum(cost.exit_code != 0 for cost in group)
    return row | {"wrong_rows": max(s.wrong_rows for s in own), "quarantined": own[-1].quarantined}


def _median(group: Sequence[Cost], what: str) -> float:
    return round(float(statistics.median(getattr(cost, what) for cost in group)), 2)


def table(rows: Sequence[dict[str, object]]) -> str:
    """The summary as Markdown."""
    titles = {"kind": "run", "contender": "", "wall_s": "wall s", "wall_s_ratio": "ratio", "cpu_s": "CPU s",
              "cpu_s_ratio": "ratio", "rss_mb": "largest process MB", "last_first": "last runs / first",
              "wrong_rows": "wrong rows", "quarantined": "refused rows kept"}  # fmt: skip
    kept = [name for name in titles if any(name in row for row in rows)]
    lines = [f"| {' | '.join(titles[name] for name in kept)} |", f"| {' | '.join('---' for _ in kept)} |"]
    for row in rows:
        failed = {"wrong_rows": f"{row['failed']} of {row['runs']} runs failed"} if row["failed"] else {}
        told = {**row, "rss_mb": f"{row['rss_mb']:.0f}", **failed}
        lines.append(f"| {' | '.join(str(told.get(name, '')) for name in kept)} |")
    return "\n".join(lines)


def publish(name: str, samples: Sequence[Sample], facts: dict[str, object]) -> str:
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
    text = page.read_text()
    if begin not in text:
        text = f"{text.rstrip()}\n\n## {name.capitalize()}\n\n{begin}\n{end}\n"
    head, rest = text.split(begin, 1)
    page.write_text(f"{head}{begin}\n{section}\n{end}{rest.split(end, 1)[1]}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


BENCHMARKS = {"drain": drain, "small": small, "tiny": tiny}
_DEFAULTS = {"drain": (1.0, 3), "small": (0.1, 20), "tiny": (0.1, 1)}  # fraction, repeat


def main() -> int:
    """Measure what was asked for; exit 1 if draindown's result was wrong or a run failed."""
    parser = argparse.ArgumentParser(description="Measure draindown beside a hand-written job.")
    parser.add_argument("benchmark", choices=list(BENCHMARKS))
    parser.add_argument("--fraction", type=float, help="share of the flights (default: 1; 0.1 for small, tiny)")
    parser.add_argument("--repeat", type=int, help="rounds (default 3), for small the number of small runs (20)")
    parser.add_argument("--files", type=int, default=1000, help="how many tiny files (default 1000)")
    parser.add_argument("--only", default="", help="contenders by name prefix, separated by commas")
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "bench", help="scratch directory")
    parser.add_argument("--dry", action="store_true", help="measure and print, write no results")
    asked = parser.parse_args()
    asked.work = asked.work.absolute()
    fraction, repeat = _DEFAULTS[asked.benchmark]
    asked.fraction, asked.repeat = asked.fraction or fraction, asked.repeat or repeat
    adopt_orphans()
    wanted = tuple(asked.only.split(",")) if asked.only else ("",)
    samples = BENCHMARKS[asked.benchmark](asked, [c for c in CONTENDERS if c.name.startswith(wanted)])
    facts: dict[str, object] = {
        "fraction": asked.fraction, "repeat": asked.repeat, "cores": os.cpu_count() or 0,
        "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    print(table(summary(samples)) if asked.dry else publish(asked.benchmark, samples, facts))
    mine = [s for s in samples if s.contender.startswith("draindown")]
    return int(any(s.cost.exit_code for s in samples) or any(s.verdict not in ("", "exact") for s in mine))


if __name__ == "__main__":
    sys.exit(main())
