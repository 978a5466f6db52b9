"""Run a part of the campaign, add what it found to results.jsonl, and write the tables of
docs/guarantees.md.

    python -m tests.campaign 3      part 3; `next`: the one that was not run for longest
    python -m tests.campaign list   the parts, and when each was run
    python -m tests.campaign add    add what tests recorded that were run by hand, and write the tables
    python -m tests.campaign page   write the tables, with what is stale by now

Exit 1 if a test of the part failed, or a case scores less than it must.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tests.campaign import page, parts, results
from tests.campaign.results import ROOT

WORK = ROOT / ".work"
RECORDED = (WORK / "faults.jsonl", WORK / "bad-input.jsonl")
LEFT = WORK / "campaign-left"
_PATIENCE = 30


def main(word: str) -> int:
    """Do what a word asks for."""
    lines = results.read()
    if word == "list":
        print(page.sections(lines)["parts"])
        return 0
    if word == "page":
        return _write(lines)
    if word == "add":
        return _add([])
    number = parts.chosen(word, lines)
    for path in (*RECORDED, LEFT):
        path.unlink(missing_ok=True)
    begun, before = time.time(), parts.last(lines).get(number, {})
    print(f"part {number} of {len(parts.PARTS)}: {parts.PARTS[number - 1].what}", flush=True)
    code = _pytest(parts.command(number, before.get("left", [])), _environment(begun, lines))
    left = (
        sorted({name.split("::")[0] for name in LEFT.read_text().splitlines()})
        if LEFT.exists()
        else []
    )
    run = {
        "part": number,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "code": code,
    }
    return _add([run | {"minutes": round((time.time() - begun) / 60), "left": left}]) or int(
        code != 0
    )


def _environment(begun: float, lines: list[results.Line]) -> Mapping[str, str]:
    rounds = sum(line["soak"]["rounds"] for line in lines if "soak" in line)
    until = str(begun + 60 * parts.START_MINUTES)
    soak = {"DRAINDOWN_SOAK_ROUNDS": "25", "DRAINDOWN_SOAK_SEED": str(rounds + 1)}
    return os.environ | soak | {"DRAINDOWN_UNTIL": until, "DRAINDOWN_LEFT": str(LEFT)}


def _pytest(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run tests; end them, first as Ctrl-C does, when the part's time is over."""
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    ) as tests:
        for patience, ending in (
            (60 * parts.MOST_MINUTES, signal.SIGINT),
            (_PATIENCE, signal.SIGKILL),
        ):
            try:
                return tests.wait(patience)
            except subprocess.TimeoutExpired:
                os.killpg(tests.pid, ending)
        return tests.wait()


def _add(runs: list[results.Line]) -> int:
    found = [line for path in RECORDED for line in results.read(path)]
    kept = [
        line
        for line in results.read()
        if "part" not in line or line["part"] not in {run["part"] for run in runs}
    ]
    lines = [*results.added(kept, found, _commit()), *runs]
    results.write(lines)
    for path in RECORDED:
        path.unlink(missing_ok=True)
    print(
        f"{len(found)} results of tests; commit docs/guarantees.md and {results.KEPT.relative_to(ROOT)}"
    )
    return _write(lines)


def _write(lines: list[results.Line]) -> int:
    page.PAGE.write_text(page.filled(page.PAGE.read_text(), page.sections(lines)))
    wrong = page.wrong(lines)
    print("\n".join(wrong), end="\n" if wrong else "")
    return int(bool(wrong))


def _commit() -> str:
    """Return the commit that is checked out; with a + if the code differs from it."""
    asked = ("git", "rev-parse", "--short=7", "HEAD")
    named = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    changed = subprocess.run(
        ("git", "diff", "--quiet", "HEAD", "--", "src"), cwd=ROOT, check=False
    ).returncode
    return named.stdout.strip() + ("+" if changed else "")


if __name__ == "__main__":
    Path(WORK).mkdir(exist_ok=True)
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "next"))
