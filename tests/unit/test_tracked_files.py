"""Every tracked file belongs to the project: no scratch file of a shell, an editor or a merge is
committed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = {
    *(
        ".ci",
        ".editorconfig",
        ".git-blame-ignore-revs",
        ".gitignore",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
    ),
    *(
        "benchmarks",
        "broker.lock",
        "dags",
        "docker",
        "docker-compose.yaml",
        "docs",
        "examples",
        "expectations",
    ),
    *(
        "jars.lock",
        "jobs",
        "plugins",
        "pyproject.toml",
        "requirements.in",
        "requirements.lock",
        "scripts",
        "src",
        "tests",
    ),
}
LEFTOVERS = ("~", ".bak", ".log", ".orig", ".out", ".pyc", ".rej", ".swp", ".tmp")
EMPTY_BY_DESIGN = {"__init__.py", "py.typed"}


def objection(path: str, size: int) -> str:
    """Return why a tracked file does not belong to the project, or ""."""
    parts = PurePosixPath(path).parts
    if parts[0] not in TOP:
        return "not in TOP, the files and directories of the top level"
    if parts[-1].endswith(LEFTOVERS):
        return "a leftover of a tool"
    if size <= 1 and parts[-1] not in EMPTY_BY_DESIGN:
        return "empty"
    return ""


@pytest.mark.parametrize(
    ("path", "size"),
    [
        *(
            (".out2", 1),
            ("notes.txt", 900),
            ("lake/part-0.parquet", 900),
            ("src/a.py~", 900),
            ("docs/a.md.orig", 900),
        ),
        *(
            ("tests/unit/test_a.py.rej", 900),
            ("scripts/.demo.py.swp", 900),
            ("jobs/out.log", 900),
            ("docs/a.md", 0),
        ),
    ],
)
def test_a_scratch_file_is_found(path: str, size: int) -> None:
    assert objection(path, size)


@pytest.mark.parametrize(
    ("path", "size"), [("src/draindown/py.typed", 0), ("docs/a.md", 2), ("Makefile", 900)]
)
def test_a_file_of_the_project_is_not_objected_to(path: str, size: int) -> None:
    assert objection(path, size) == ""


@pytest.mark.docs
def test_no_scratch_file_is_tracked() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("a copy without Git tracks nothing")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    present = [path for path in listed.split("\0") if path and (ROOT / path).is_file()]
    assert len(present) > 500
    refused = {
        path: why for path in present if (why := objection(path, (ROOT / path).stat().st_size))
    }
    assert refused == {}
