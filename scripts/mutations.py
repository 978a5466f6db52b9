"""Break the code in 30 places, one at a time, and see which tests find it.

    python scripts/mutations.py                  30 mutations drawn by the hash of HEAD, all tiers of `make test`
    python scripts/mutations.py --through 2      only tests without a JVM; what survives goes on in a later run
    python scripts/mutations.py --seed abc --count 9 --list

Three kinds, in ten packages: a comparison is turned round, a guard (an `if` that only raises,
returns or continues) is removed, and two calls that follow each other change places. Tests run on a
copy of the repository below .work, cheapest first, until one fails. Results are kept per seed, so a
run that was stopped goes on. Exit 1 if more than a tenth survive.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".work" / "mutations"
ROOMS = (
    *("flow", "gate", "lease", "planning", "recovery", "sources/files", "sources/kafka"),
    *("spark/batch", "spark/derived", "spark/targets"),
)
TURNED = {
    **dict(
        zip(("==", "!=", "<", ">=", ">", "<="), ("!=", "==", ">=", "<", "<=", ">"), strict=True)
    ),
    **dict(zip(("in", "not in", "is", "is not"), ("not in", "in", "is not", "is"), strict=True)),
}
_COPIED = (
    "src",
    "tests",
    "scripts",
    "benchmarks",
    "examples",
    "dags",
    "jobs",
    "plugins",
    "expectations",
    "docs",
    "docker",
)
_SHORT = "not long and not campaign"
_PAIRS = ("-n", "2", "--dist", "worksteal", "-m", _SHORT)
_PARALLEL = ("-n", "auto", "--dist", "worksteal", "-m", f"{_SHORT} and not docs")


@dataclass(frozen=True)
class Mutation:
    """A change of one file: lines `first` to `last` become `text`. `line`: where the changed thing
    begins.
    """

    file: str
    line: int
    kind: str
    first: int
    last: int
    text: str

    def applied(self, source: str) -> str:
        """Return the file's text with the change."""
        lines = source.splitlines(keepends=True)
        return "".join([*lines[: self.first - 1], self.text, *lines[self.last :]])


def found_in(file: str, source: str) -> Iterator[Mutation]:
    """Yield every mutation of a file."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(ops=[_]) if node.left.end_lineno == node.comparators[0].lineno:
                yield from _turned(file, lines, node)
            case ast.If(orelse=[], body=[ast.Raise() | ast.Return() | ast.Continue()]):
                yield _replaced(file, "guard removed", node, f"{' ' * node.col_offset}pass\n")
        for block in (getattr(node, name, ()) for name in ("body", "orelse", "finalbody")):
            yield from _swapped(file, lines, block) if isinstance(block, list) else ()


def _turned(file: str, lines: Sequence[str], node: ast.Compare) -> Iterator[Mutation]:
    number = node.left.end_lineno or node.lineno
    line = lines[number - 1].encode()
    begin, end = node.left.end_col_offset or 0, node.comparators[0].col_offset
    operator = re.search(r"(not in|is not|[!<>=]=?|in|is)", line[begin:end].decode())
    if operator is None:
        return
    between = line[begin:end].decode().replace(operator[1], TURNED[operator[1]])
    text = line[:begin].decode() + between + line[end:].decode()
    yield Mutation(
        file, number, f"{operator[1]} became {TURNED[operator[1]]}", number, number, text
    )


def _swapped(file: str, lines: Sequence[str], block: Sequence[ast.AST]) -> Iterator[Mutation]:
    for one, two in pairwise(block):
        if not all(
            isinstance(call, ast.Expr) and isinstance(call.value, ast.Call) for call in (one, two)
        ):
            continue
        first, second = ("".join(lines[call.lineno - 1 : call.end_lineno]) for call in (one, two))  # type: ignore[attr-defined]
        between = "".join(lines[one.end_lineno : two.lineno - 1])  # type: ignore[attr-defined]
        span = (one.lineno, two.end_lineno)  # type: ignore[attr-defined]
        yield Mutation(file, span[0], "calls out of order", *span, second + between + first)


def _replaced(file: str, kind: str, node: ast.stmt, text: str) -> Mutation:
    return Mutation(file, node.lineno, kind, node.lineno, node.end_lineno or node.lineno, text)


def drawn(seed: str, count: int, source: Path) -> list[Mutation]:
    """Return mutations, the same for a seed and a source. Rooms take turns, and in a room the kinds
    that it has.
    """
    chance = random.Random(seed)
    pools = {room: _pools(room, source, chance) for room in ROOMS}
    chosen: list[Mutation] = []
    while len(chosen) < count and any(any(pool) for pool in pools.values()):
        for number, room in enumerate(ROOMS):
            kinds = [pool for pool in pools[room] if pool]
            if kinds and len(chosen) < count:
                chosen.append(kinds[(len(chosen) // len(ROOMS) + number) % len(kinds)].pop())
    return chosen


def _pools(room: str, source: Path, chance: random.Random) -> list[list[Mutation]]:
    """Return the mutations of a room by kind, each in an order by chance."""
    every = [
        one
        for path in sorted((source / room).glob("*.py"))
        for one in found_in(path.relative_to(source).as_posix(), path.read_text())
    ]
    every.sort(key=lambda one: (one.file, one.line, one.kind, one.text))
    kinds = ("guard removed", "calls out of order")
    pools = [[one for one in every if one.kind == kind] for kind in kinds]
    pools.insert(0, [one for one in every if one.kind not in kinds])
    for pool in pools:
        chance.shuffle(pool)
    return pools


def stages(file: str, tree: Path) -> list[tuple[str, ...]]:
    """Return pytest's arguments, cheapest first: tests without a JVM, streams, Airflow, then faults
    and a user's way.

    Of the first two, files that name the module are a stage of their own. A stage may have no
    tests.
    """
    module = re.compile(rf"\b{re.escape(Path(file).stem)}\b")
    found = []
    for tiers, options in ((("input", "tables"), _PARALLEL), (("spark", "kafka"), _PAIRS)):
        paths = [
            path for tier in tiers for path in sorted((tree / "tests" / tier).glob("test_*.py"))
        ]
        near = [path for path in paths if module.search(path.read_text())]
        for those in (near, [path for path in paths if path not in near]):
            found.append(
                (*options, *(path.relative_to(tree).as_posix() for path in those)) if those else ()
            )
    airflow, faults = (
        ("tests/airflow",),
        ("--ignore", "tests/e2e/test_evening.py", "tests/faults", "tests/e2e"),
    )
    return [*found, (*_PAIRS, *airflow), (*_PAIRS, *faults)]


def copy(tree: Path) -> None:
    """Make a copy of what tests need; the environment is shared."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in _COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, tree)
    (tree / ".venv").symlink_to(ROOT / ".venv")


def failing(tree: Path, arguments: Sequence[str]) -> str | None:
    """Return the first test that fails; None if all pass, or none is there. The copy's code is what
    tests import.

    Raises RuntimeError with what pytest said if it failed without a test.
    """
    python = str(tree / ".venv" / "bin" / "python")
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    command = [python, "-m", "pytest", "-q", "-x", *arguments]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode in (0, 5):
        return None
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if named is None:
        raise RuntimeError((done.stdout + done.stderr)[-2000:])
    return named[1]


def tried(tree: Path, mutation: Mutation, begin: int, through: int) -> tuple[str | None, int]:
    """Return which test finds a mutation, if one does, and how many stages were run in all."""
    path = tree / "src" / "draindown" / mutation.file
    before = path.read_text()
    path.write_text(mutation.applied(before))
    try:
        for number, arguments in enumerate(
            stages(mutation.file, tree)[begin:through], start=begin + 1
        ):
            test = failing(tree, arguments) if arguments else None
            if test is not None:
                return test, number
    finally:
        path.write_text(before)
    return None, through


def main(words: Sequence[str] | None = None) -> int:
    """Draw, try what was not tried yet, and print what survived."""
    options = _options(words)
    mutations = drawn(options.seed, options.count, ROOT / "src" / "draindown")
    if options.list:
        print(*(f"{one.file}:{one.line}  {one.kind}" for one in mutations), sep="\n")
        return 0
    kept = WORK / f"{re.sub('[^A-Za-z0-9]', '-', options.seed)}.jsonl"
    results = _read(kept)
    copy(WORK / "tree")
    for number, one in enumerate(mutations, start=1):
        if _open(results, one, options.through):
            before = results.get(_key(one), {"stages": 0})["stages"]
            test, ran = tried(WORK / "tree", one, before, options.through)
            if test is not None and failing(WORK / "tree", (test,)):
                print(f"{test} fails without a mutation, so nothing can be said", file=sys.stderr)
                return 1
            results[_key(one)] = {**asdict(one), "found": test, "stages": ran}
            with kept.open("a") as out:
                out.write(json.dumps(results[_key(one)]) + "\n")
        found = results[_key(one)]["found"]
        print(f"{number:>3}  {one.file}:{one.line}  {one.kind}: {found or 'SURVIVED'}", flush=True)
    left = [one for one in mutations if results[_key(one)]["found"] is None]
    print(
        f"{len(mutations) - len(left)} of {len(mutations)} found (seed {options.seed}, stages 1 to {options.through})"
    )
    return int(len(left) > len(mutations) // 10)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", default="", help="the hash of HEAD if it is not given")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--through", type=int, default=6, help="run so many of the six stages")
    parser.add_argument("--list", action="store_true", help="only print what was drawn")
    options = parser.parse_args(words)
    head = ("git", "rev-parse", "HEAD")
    options.seed = (
        options.seed
        or subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    )
    return options


def _open(results: dict[str, dict[str, object]], mutation: Mutation, through: int) -> bool:
    known = results.get(_key(mutation))
    return known is None or (known["found"] is None and int(str(known["stages"])) < through)


def _key(mutation: Mutation) -> str:
    return json.dumps(asdict(mutation))


def _read(path: Path) -> dict[str, dict[str, object]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    names: Iterable[str] = Mutation.__dataclass_fields__
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {json.dumps({name: line[name] for name in names}): line for line in lines}


if __name__ == "__main__":
    sys.exit(main())
