"""Formats, kinds of targets and kinds of sources are members of ports: no code decides by their
names, every member is registered, and only registries and readers name one kind of source."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

from draindown.audit import columnar as audited
from draindown.audit import invariants, raw
from draindown.config.formats import FORMATS
from draindown.config.target_kinds import Name
from draindown.sources.files.columnar import COLUMNAR
from draindown.sources.files.formats import INSPECTORS
from draindown.spark.contract.records import READERS
from draindown.spark.targets import registry

SOURCE = Path(__file__).resolve().parents[2] / "src" / "draindown"


def _decisions(tree: ast.AST) -> list[str]:
    """What code compares with text, or matches: `a.b == "x"`, `a.b in ("x", "y")`, `match a.b`."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=[*others]):
                texts = any(
                    isinstance(one, ast.Constant) and isinstance(one.value, str)
                    for o in others
                    for one in ast.walk(o)
                )
                found += [ast.unparse(left)] if texts else []
            case ast.Match(subject=subject):
                found.append(ast.unparse(subject))
    return found


def test_nothing_is_decided_by_the_name_of_a_format_or_of_a_kind_of_target() -> None:
    decided = {
        f"{path.relative_to(SOURCE)}: {text}"
        for path in SOURCE.rglob("*.py")
        for text in _decisions(ast.parse(path.read_text()))
        if text in ("form", "format") or text.endswith((".format", ".form.name", ".kind.name"))
    }
    assert decided == set()
    assert _decisions(ast.parse('s.format in ("a",) or k.kind.name == "b"')) == [
        "s.format",
        "k.kind.name",
    ]


def test_every_format_and_kind_is_registered_on_every_side() -> None:
    columnar = {name for name, form in FORMATS.items() if form.columnar}
    assert set(INSPECTORS) == set(READERS) == set(FORMATS)
    assert set(COLUMNAR) == set(audited._COLUMNAR) == columnar
    assert set(raw._FIELDS) == set(FORMATS) - columnar
    assert set(registry._STRATEGIES) == set(invariants._INVARIANTS) == set(get_args(Name))


def test_only_registries_and_readers_name_a_kind_of_source() -> None:
    allowed = (
        "sources/",
        "spark/sources/",
        "config/",
        "drill/",
        "provenance/",
        "cli/inputs.py",
    )
    naming = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"\bFilesSource\b|sources\.files\b", path.read_text())
    }
    assert {name for name in naming if not name.startswith(allowed)} == set()
