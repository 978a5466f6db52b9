"""Formats, kinds of targets and kinds of sources are members of ports: no code decides by their names, every member is
registered, and only a listed few modules speak of one kind of source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from draindown.audit import files, invariants, raw
from draindown.sources.files.columnar import COLUMNAR
from draindown.sources.files.formats import INSPECTORS
from draindown.spark.contract.records import READERS
from draindown.spark.targets import registry
from draindown.spec.formats import FORMATS
from draindown.spec.target_kinds import Name

SOURCE = Path(__file__).resolve().parents[2] / "src" / "draindown"


def _decisions(tree: ast.AST) -> list[str]:
    """What code compares with text, or matches: `a.b == "x"`, `a.b in ("x", "y")`, `match a.b`."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=[*others]):
                texts = any(
                    isinstance(one, ast.Constant) and isinstance(one.value, str) for o in others for one in ast.walk(o)
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
    assert _decisions(ast.parse('s.format in ("a",) or k.kind.name == "b"')) == ["s.format", "k.kind.name"]


def test_every_format_and_kind_is_registered_on_every_side() -> None:
    columnar = {name for name, form in FORMATS.items() if form.columnar}
    assert set(INSPECTORS) == set(READERS) == set(FORMATS)
    assert set(COLUMNAR) == set(files._COLUMNAR) == columnar
    assert set(raw._FIELDS) == set(FORMATS) - columnar
    assert set(registry._STRATEGIES) == set(invariants._INVARIANTS) == set(get_args(Name))


FILES = ("sources/files/", "spark/sources/files.py", "spark/sources/readers.py", "spark/sources/spool.py", "drill/")
"""What knows files as input: the source, its reader, and drills, which strike copies of files."""
SAYS_CUT_OR_PARKED = frozenset(
    [
        "cli/quarantine.py",
        "flow/integrity.py",
        "lake/layout.py",
        "flow/discards.py",
        "sources/port.py",
        "audit/generations.py",
        "audit/ledger_sums.py",
        "audit/pinned.py",
        "audit/recount.py",
        "ledger/rows.py",
        "flow/refused_share.py",
        "spark/batch/counting.py",
        "spark/batch/landing.py",
        "spark/batch/registry.py",
        "spark/contract/__init__.py",
        "runs/card.py",
        "runs/report.py",
        "spark/checks/result.py",
        "lake/store.py",
        "airflow/plan_log.py",
        "cli/context.py",
        "cli/drilling.py",
        "cli/inspect.py",
        "planning/plan.py",
        "runs/request.py",
        "sources/tables/source.py",
        "spark/runs/drain.py",
        "runs/card_lines.py",
        "runs/card_parts.py",
        "spark/checks/check.py",
        "spark/derived/touched.py",
        "spark/runs/batches.py",
        "spark/targets/delta_target.py",
        "spec/models.py",
        "spec/targets.py",
    ]
)
"""The table `parked` and its error; the ledger's column `cut`; flows that land; text that is cut."""
INPUT_ROOMS = ("flow/", "recovery/", "planning/", "spark/runs/", "spark/batch/", "spark/contract/", "sources/")
FILES_ON_DISK = frozenset(
    [
        "at_work",
        "checkpoint",
        "compaction",
        "fencing",
        "generations",
        "opening",
        "rebuild",
        "replay",
        "reset",
        "swap",
        "validation",
        "withdrawal",
        "analysis",
        "parsing",
        "transforms",
        "counting",
        "model",
        "pruning_advice",
        "required_columns",
    ]
)
"""Names of modules for which a file is a document, a pipeline file, or a data file of a Delta table."""
SAYS_FILE = frozenset(
    [
        "flow/quarantine.py",
        "flow/refused_share.py",
        "spark/batch/quarantine.py",
        "spark/runs/replay_rows.py",
        "sources/intake.py",
        "sources/port.py",
        "sources/registry.py",
        "sources/slices.py",
        "spark/batch/evaluation.py",
        "spark/batch/process.py",
        "spark/contract/transform_errors.py",
        "spark/contract/unreadable.py",
        "spark/runs/drain.py",
        "spark/runs/batch_lines.py",
        "spark/runs/replay_input.py",
        "planning/plan.py",
        "sources/tables/readers.py",
        "sources/tables/registered.py",
        "sources/tables/division.py",
        "sources/tables/followed.py",
        "sources/tables/source.py",
        "sources/tables/upstream.py",
    ]
)
"""A file as an example of a unit; the error `file-unreadable`; the file of a module."""


def _words(tree: ast.AST) -> Iterator[str]:
    """The words of identifiers and docstrings."""
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef():
                texts = [ast.get_docstring(node) or "", getattr(node, "name", "")]
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text) | ast.keyword(arg=str(text)):
                texts = [text]
            case _:
                continue
        yield from (word for text in texts for word in re.findall(r"[a-z]+", re.sub("([A-Z])", r" \1", text).lower()))


def _saying(*words: str) -> set[str]:
    modules = {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*.py")}
    others = {name: path for name, path in modules.items() if not name.startswith(FILES)}
    return {name for name, path in others.items() if {*words} & {*_words(ast.parse(path.read_text()))}}


def test_only_a_listed_few_modules_speak_of_files_as_input() -> None:
    assert set(_words(ast.parse("def f(by_file): return InputFile.path"))) == {"f", "by", "file", "input", "path"}
    assert _saying("cut", "cuts", "parked", "landing", "landings") <= SAYS_CUT_OR_PARKED
    found = {name for name in _saying("file", "files") if name.startswith(INPUT_ROOMS)}
    assert {name for name in found if Path(name).stem not in FILES_ON_DISK} <= SAYS_FILE


def test_only_registries_and_readers_name_a_kind_of_source() -> None:
    allowed = ("sources/", "spark/sources/", "spec/", "drill/", "cli/quarantine.py")
    naming = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"\bFilesSource\b|sources\.files\b", path.read_text())
    }
    assert {name for name in naming if not name.startswith(allowed)} == set()
