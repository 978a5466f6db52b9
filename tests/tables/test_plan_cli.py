"""`draindown plan` of several flows: one that can't be planned hides no other, and who follows whom
is said.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draindown.cli.program import main

PIPELINE = """
pipeline: p
lake: lake
flows:
  e: {source: {table: d}, deduplicate: {keys: [window_start], sequence_by: [n]}}
  d: {source: {table: a}, window: {time: at, size: 1 day, measures: {n: count(*)}}}
  lone: {source: {table: b}, window: {time: at, size: 1 day, measures: {n: count(*)}}}
  c: {source: {files: c/*.json, format: json}, columns: {at: timestamp}}
  b: {source: {files: b/*.json, format: json}, columns: {at: timestamp}}
  a: {source: {files: a/*.json, format: json}, columns: {at: timestamp}}
  of_c: {source: {table: c}, window: {time: at, size: 1 day, measures: {n: count(*)}}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Flow `a` has a file, `c` has none, and the directory of `b` is not there."""
    (tmp_path / "dags/pipelines").mkdir(parents=True)
    (tmp_path / "dags/pipelines/p.yaml").write_text(PIPELINE)
    (tmp_path / "a").mkdir()
    (tmp_path / "c").mkdir()
    (tmp_path / "a/1.json").write_text('{"at": "2026-01-01"}\n')
    return tmp_path


def planned(
    project: Path, capsys: pytest.CaptureFixture[str], *words: str, of: str = "p"
) -> tuple[int, str, str]:
    code = main(["--root", str(project), "plan", of, *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_flow_that_cannot_be_planned_hides_no_other(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = planned(project, capsys)
    assert code == 78
    assert "p/b  not planned\n  source-missing: " in out and f"mkdir -p {project}/b" in out
    assert "p/a\n  waiting  1 file" in out and "p/c\n  waiting  nothing" in out
    code, out, err = planned(project, capsys, of="p/b")
    assert (code, out) == (78, "") and err.startswith("source-missing: ")
    assert planned(project, capsys, of="p/a")[0] == 0


def test_a_flow_follows_those_upstream_that_this_run_may_change(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = planned(project, capsys, "--json")
    flows = json.loads(out)["flows"]
    assert (code, flows.pop("b")["error"]["code"]) == (78, "source-missing")
    follows = {name: flow["follows"] for name, flow in flows.items()}
    assert follows == {"a": [], "c": [], "d": ["a"], "e": ["d"], "lone": ["b"], "of_c": []}
    said = {part.split("\n")[0]: part for part in planned(project, capsys)[1].split("\n\n")}
    assert "follows  once a ran" in said["p/d"] and "follows  once d ran" in said["p/e"]
    assert "  follows  " not in said["p/of_c"] + said["p/a"]


def test_commands_about_records_name_the_flows_that_have_them(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("quarantine release", "quarantine discard", "input retry"):
        assert main(["--root", str(project), *words.split(), "p"]) == 2
        hint = " ".join(capsys.readouterr().err.split())
        assert all(f"p/{name}" in hint for name in "abc") and "p/d" not in hint
        assert main(["--root", str(project), *words.split(), "p/d"]) == 78
        assert "derived-flow" in capsys.readouterr().err
    assert main(["--root", str(project), "late", "list", "p/a"]) == 2
    assert "flow a is not derived; derived flows of p:" in " ".join(capsys.readouterr().err.split())
