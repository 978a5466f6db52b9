"""Measure draindown beside other ways to the same table: same files, same machine, turn by turn.

Every run is timed as a whole process: start-up, work and exit, with the CPU time of every process
it started. An oracle then counts the wrong rows of each result. Results go to `benchmarks/results/`
as JSON with every sample, to `docs/benchmark-results.md` as tables, some to `docs/pictures/` as
pictures. Exit 1 if a result of draindown is wrong or a run failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contenders import Contender
from benchmarks.meter import adopt_orphans
from benchmarks.place import ROOT, Failed
from benchmarks.provenance import provenance
from benchmarks.publish import publish, section
from benchmarks.samples import Sample
from benchmarks.work import Asked, Bench, Work, say
from benchmarks.works import ALL


def main() -> int:
    """Do one work, or all of them one after the other."""
    asked = _parser().parse_args()
    adopt_orphans()
    works = list(ALL.values()) if asked.work == "all" else [ALL[asked.work]]
    return max([_done(work, asked) for work in works])


def _parser() -> argparse.ArgumentParser:
    works = "\n".join(f"  {work.name:<15}{work.about}" for work in ALL.values())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench",
        description=__doc__,
        epilog=f"works:\n{works}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "work", choices=[*ALL, "all"], metavar="WORK", help="one of the works below, or all"
    )
    parser.add_argument(
        "--fraction", type=float, default=1.0, help="share of the rows, to try it out (default 1)"
    )
    parser.add_argument(
        "--repeat", type=int, help="rounds; for small and longevity the number of runs"
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        help="with commas between; growth, longevity, upkeep: rows of the table; history: days; others: files, records",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="contenders by the start of their names"
    )
    parser.add_argument(
        "--scratch", type=Path, default=ROOT / ".work" / "bench", help="where tables and files go"
    )
    parser.add_argument("--dry", action="store_true", help="measure and print, publish nothing")
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(float(part)) for part in text.split(","))


def _done(work: Work, asked: argparse.Namespace) -> int:
    defaults = work.defaults
    size = Asked(asked.fraction, asked.repeat or defaults.repeat, asked.sizes or defaults.sizes)
    chosen = [c for c in work.contenders if c.name.startswith(tuple(asked.only or work.chosen))]
    say(f"{work.name}: {work.about}; {', '.join(c.name for c in chosen)}")
    told = facts(size)  # before it starts: whoever waits may go on writing
    try:
        samples = work.measure(Bench(asked.scratch.absolute(), size, chosen))
    except Failed as failure:
        say(f"{work.name}: {failure}")
        return 1
    print(f"{section(work, samples, told)}\n")
    if not asked.dry:
        publish(work, samples, told)
    return failed(samples, chosen)


def facts(size: Asked) -> dict[str, object]:
    """What must be known of a session to read its numbers."""
    sizes = {"sizes": " ".join(f"{one:,}" for one in size.sizes)} if size.sizes else {}
    machine = {"cores": os.cpu_count() or 0, "date": time.strftime("%Y-%m-%d")}
    return {"fraction": size.fraction, "repeat": size.repeat, **sizes, **machine, **provenance()}


def failed(samples: Sequence[Sample], contenders: Sequence[Contender]) -> int:
    """1 if a run failed, or a result of ours is not exact; what others have wrong is a finding."""
    ours = {c.name for c in contenders if c.ours}
    wrong = [
        s
        for s in samples
        if s.cost.exit_code or (s.contender in ours and s.verdict not in ("", "exact"))
    ]
    for sample in wrong:
        say(
            f"FAILED: {sample.kind} {sample.number}, {sample.contender}: exit {sample.cost.exit_code} {sample.verdict}"
        )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
