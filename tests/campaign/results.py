"""Results of the campaign, a line each in results.jsonl. The file is committed, so runs and
machines add up.

A line names the commit that it is of, and a digest of the packages that its case is about. A case
is stale once these packages hold other code. The newest run of a test replaces what earlier runs of
it found.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.cases import CASES
from tests.scores import ABOUT
from tests.spark.inputs import WHAT

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).with_name("results.jsonl")
SOURCE = ROOT / "src" / "draindown"

Line = Mapping[str, Any]


def about(case: str) -> tuple[str, ...]:
    """Return the packages that a case is about."""
    return CASES[case].about if case in CASES else ABOUT


def digest(packages: Iterable[str], source: Path = SOURCE) -> str:
    """Return a digest of all files of packages but compiled ones. It doesn't depend on Git: clones
    may be shallow.
    """
    content = hashlib.sha256()
    for package in sorted(packages):
        for path in sorted((source / package).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                content.update(
                    f"{path.relative_to(source)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
                )
    return content.hexdigest()[:12]


def brief(found: Line) -> dict[str, Any]:
    """Return what is kept of a line that a test recorded."""
    kept = {
        name: found[name]
        for name in ("case", "place", "test", "fired", "score", "skipped", "soak")
        if name in found
    }
    if "runs" not in found:  # bad input, a soak, or a case that was not tried
        return kept | {name: found[name] for name in ("held", "wrong") if name in found}
    ended = [run["error"] or _exit(run["code"]) for run in found["runs"] if run["code"]]
    more = {
        "ended": ended,
        "typed": found["commands"],
        "checks": len({*found["held"]}),
        "seconds": [found["recovery"]],
    }
    return kept | more | {"wrong": [*found["wrong"], *found["surgery"]]}


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"


def added(kept: Sequence[Line], found: Iterable[Line], commit: str) -> list[Line]:
    """Return all lines that count after tests recorded what they found at a commit. Soaks add
    up.
    """
    fresh = [brief(one) | {"commit": commit} for one in found]
    newest = {
        (one.get("case"), one.get("place"), one.get("soak") and json.dumps(one)): one
        for one in fresh
    }
    fresh = [
        one | ({"code": digest(about(one["case"]))} if "case" in one else {})
        for one in newest.values()
    ]
    tests, cases = {one["test"] for one in fresh}, {one["case"] for one in fresh if "case" in one}
    left = [one for one in kept if "case" not in one or not _replaced(one, tests, cases)]
    return [*left, *fresh]


def _replaced(line: Line, tests: set[str], cases: set[str]) -> bool:
    return line["test"] in tests if line.get("test") else line["case"] in cases


def is_stale(results: Sequence[Line]) -> bool:
    """Whether a case has a result of other code than there is now."""
    return any(one["code"] != digest(about(one["case"])) for one in results)


def commits(results: Sequence[Line]) -> str:
    """Return the commits of a case's results, as a cell of a table."""
    names = list(dict.fromkeys(one["commit"] for one in results))
    shown = ", ".join(f"`{name}`" for name in names[-2:])
    return f"stale: {shown}" if is_stale(results) else shown


def by_case(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Return the results of each case of either campaign, in the order of the cases; none where
    none was tried.
    """
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if "case" in line:
            found[line["case"]].append(line)
    return {case: found[case] for case in (*CASES, *WHAT)}


def read(path: Path = KEPT) -> list[Line]:
    """Return the lines of a file; none if it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(lines: Iterable[Line], path: Path = KEPT) -> None:
    """Write lines, by case and place, so that a commit shows what changed."""
    order = sorted(
        lines, key=lambda one: (one.get("case", ""), str(one.get("place")), one.get("part", 0))
    )
    path.write_text("".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in order))
