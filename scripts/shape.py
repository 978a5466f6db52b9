"""Print the shape of the code from its imports, and fail where it outgrows its measures.

A room is a package, or a module directly under `src/draindown`; each folder outside of it that
imports draindown is one room. An arrow is an import of one room by another, imports for types
included. A floor is the longest chain of imports below a room. The measures are upper bounds; raise
one only with a decision that says why.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "draindown"
OUTSIDE = ("dags", "jobs", "plugins", "scripts", "benchmarks", "examples")
MODULE, FUNCTION = "lines of the longest module", "lines of the longest function"
MOST = {"floors": 13, "arrows per room": 7, "circles": 0, MODULE: 500, FUNCTION: 80}


def room_of(module: str, packages: frozenset[str]) -> str:
    """Return the package that holds a module; a module directly under draindown is a room of its
    own.
    """
    parts = module.split(".")
    if module in packages or len(parts) == 2:
        return module
    return ".".join(parts[:-1])


def inner_arrows() -> set[tuple[str, str]]:
    """Return the imports between rooms of draindown."""
    graph = grimp.build_graph("draindown", exclude_type_checking_imports=False, cache_dir=None)
    packages = frozenset(
        ".".join(("draindown", *path.parent.relative_to(SOURCE).parts))
        for path in SOURCE.rglob("__init__.py")
    )
    pairs = (
        (room_of(module, packages), room_of(imported, packages))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    )
    return {(room, other) for room, other in pairs if room != other}


def imported_by(path: Path) -> Iterator[str]:
    """Yield the names that a file outside of draindown imports from it, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def outer_arrows(inside: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the imports of draindown's rooms, and of each other, by the folders outside of it."""
    found = set()
    for folder in OUTSIDE:
        for path in (ROOT / folder).rglob("*.py"):
            for name in imported_by(path):
                top = name.split(".")[0]
                if top == "draindown":
                    known = [
                        ".".join(name.split(".")[:n]) for n in range(name.count(".") + 1, 0, -1)
                    ]
                    found.add(
                        (f"{folder}/", next(inside[module] for module in known if module in inside))
                    )
                elif top in OUTSIDE and top != folder:
                    found.add((f"{folder}/", f"{top}/"))
    return found


def modules() -> dict[str, str]:
    """Return the room of every module of draindown."""
    packages = frozenset(
        ".".join(("draindown", *path.parent.relative_to(SOURCE).parts))
        for path in SOURCE.rglob("__init__.py")
    )
    names = (
        ".".join(("draindown", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for path in SOURCE.rglob("*.py")
    )
    return {name: room_of(name, packages) for name in names}


def rooms() -> dict[str, set[str]]:
    """Return the rooms that each room imports. A folder outside of draindown ends with a slash."""
    inside = modules()
    imports: dict[str, set[str]] = {room: set() for room in inside.values()}
    for room, other in inner_arrows() | outer_arrows(inside):
        imports.setdefault(room, set()).add(other)
        imports.setdefault(other, set())
    return imports


def floors(imports: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the floor of each room; none where rooms import each other in a circle."""
    found: dict[str, int] = {}
    try:
        for room in TopologicalSorter(imports).static_order():
            found[room] = 1 + max((found[other] for other in imports[room]), default=0)
    except CycleError as circle:
        print(f"circle: {' -> '.join(circle.args[1])}")
        return {}
    return found


def main() -> int:
    """Print the rooms by floor and the measures; return 1 where a measure is exceeded."""
    imports = rooms()
    floor = floors(imports)
    for room in sorted(floor, key=lambda room: (-floor[room], room)):
        print(
            f"{floor[room]:>3}  {_short(room):<16} {', '.join(sorted(map(_short, imports[room])))}"
        )
    modules = {path.relative_to(ROOT): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    lengths = {str(path): len(text.splitlines()) for path, text in modules.items()}
    functions = {
        f"{path}: {name}": lines
        for path, text in modules.items()
        for name, lines in functions_of(text)
    }
    found = {
        "floors": max(floor.values(), default=0),
        "arrows per room": round(sum(map(len, imports.values())) / len(imports), 1),
        "circles": int(not floor),
        MODULE: max(lengths.values()),
        FUNCTION: max(functions.values()),
    }
    print(f"{len(imports)} rooms")
    for name, value in found.items():
        print(
            f"{name:<30} {value:>4}  at most {MOST[name]}{'   EXCEEDED' if value > MOST[name] else ''}"
        )
    for name, value in density(modules.values()).items():
        print(f"{name:<30} {value:>4.1f}")
    long = {name: value for name, value in lengths.items() if value > MOST[MODULE]}
    long |= {name: value for name, value in functions.items() if value > MOST[FUNCTION]}
    for name, value in long.items():
        print(f"{name}: {value} lines")
    return int(any(value > MOST[name] for name, value in found.items()))


def density(texts: Iterable[str]) -> dict[str, float]:
    """Return how much a line of code holds, and how long names of variables are. No bars: a line
    can be folded, and a name stretched, to please a measure.
    """
    nodes, lines, letters = 0, 0, list[int]()
    for text in texts:
        tree = ast.parse(text)
        docstrings = {line for span in _docstrings(tree) for line in span}
        code = (line.strip() for line in text.splitlines())
        lines += sum(
            bool(line) and not line.startswith("#") and number not in docstrings
            for number, line in enumerate(code, 1)
        )
        for node in ast.walk(tree):
            nodes += not isinstance(
                node, ast.Import | ast.ImportFrom | ast.alias | ast.expr_context
            )
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                letters.append(len(node.id))
            elif isinstance(node, ast.arg):
                letters.append(len(node.arg))
    return {
        "syntax nodes (thousands)": nodes / 1000,
        "syntax nodes a line": nodes / lines,
        "letters of a variable": sum(letters) / len(letters),
    }


def _docstrings(tree: ast.Module) -> Iterator[range]:
    for node in ast.walk(tree):
        for part in (
            getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ()
        ):
            if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                yield range(part.lineno, (part.end_lineno or part.lineno) + 1)


def functions_of(text: str) -> Iterator[tuple[str, int]]:
    """Yield each function of a module with its number of lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def _short(room: str) -> str:
    return room.removeprefix("draindown.")


if __name__ == "__main__":
    sys.exit(main())
