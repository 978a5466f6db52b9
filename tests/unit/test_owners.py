"""Each document has one owner, and a lease is taken in one place: read from the source."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "draindown"
_WRITES = ("write", "create", "delete")
_DOCUMENTS = {
    "generation",
    "rebuild",
    "replaying",
    "published",
    "waivers",
    "vacuumed",
    "loads",
    "drift",
}


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Module, name of the function, and the call, of every call in the source."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = (
                    node.func.id
                    if isinstance(node.func, ast.Name)
                    else getattr(node.func, "attr", "")
                )
                yield str(path.relative_to(SOURCE)), name, node


def test_a_document_is_written_by_one_module() -> None:
    writers = defaultdict(set)
    for module, name, call in calls():
        if name in _WRITES and isinstance(call.func, ast.Attribute):
            document = call.func.value
            if isinstance(document, ast.Attribute):
                writers[document.attr].add(module)
        if name == "Revisions" and isinstance(call.args[0], ast.Attribute):
            writers[call.args[0].attr].add(module)
    assert {
        document: writers[document] for document in _DOCUMENTS if len(writers[document]) != 1
    } == {}
    assert writers["generation"] == {"flow/generations.py"}


def test_a_lease_is_taken_in_one_place() -> None:
    takers = [(module, name) for module, name, _ in calls() if name in ("Lease", "lease_of")]
    assert sorted(takers) == [("recovery/opening.py", "Lease"), ("recovery/opening.py", "lease_of")]
