"""The commands of recovery as they are typed: what they print, and how they exit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draindown import checkpoint
from draindown.cli import main
from draindown.request import Request
from tests.flowfiles import drained, restore


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    """A drained flow in a project of its own."""
    found = drained(tmp_path)
    flow = found.flow_spec
    lines = [
        "pipeline: p",
        f"lake: {tmp_path}/lake",
        "flows:",
        "  f:",
        f"    source: {{files: {flow.source.files}, format: json, max_files_per_trigger: 1}}",
        "    columns: {id: string not null, n: int not null}",
        "    target: {keys: [id], sequence_by: [n]}",
    ]
    (tmp_path / "dags/pipelines").mkdir(parents=True)
    (tmp_path / "dags/pipelines/p.yaml").write_text("\n".join(lines))
    return found


def run(asked: Request, *arguments: str) -> int:
    return main(["--root", asked.root, *arguments])


def test_doctor_names_the_loss_and_its_command(asked: Request, capsys: pytest.CaptureFixture[str]) -> None:
    restore(asked, 1)
    assert run(asked, "doctor", "p", "--json") == 1
    page, setup = json.loads(capsys.readouterr().out)
    wrong = {symptom["code"]: symptom["next"] for symptom in page["symptoms"]}
    assert wrong["table-behind-checkpoint"] == "draindown reset p --flow f"
    assert setup["name"] == "set-up"
    assert run(asked, "doctor", "p") == 1
    assert "table-behind-checkpoint" in capsys.readouterr().out


def test_reset_prints_its_plan_and_needs_a_yes(asked: Request, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(asked, "reset", "p") == 2
    said = capsys.readouterr().err
    assert "generation 1 -> 2" in said
    assert "2 files" in said
    assert checkpoint.generation(asked.layout) == 1
    (Path(asked.root) / "in/0.json").unlink()
    assert run(asked, "reset", "p", "--yes") == 78
    assert "reset-input-gone" in capsys.readouterr().err
    assert run(asked, "reset", "p", "--accept-missing", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["generation"] == 2
    assert run(asked, "reset", "p", "--undo") == 2
    assert run(asked, "reset", "p", "--undo", "--yes") == 0
    assert checkpoint.generation(asked.layout) == 1
    assert run(asked, "reset", "p", "--undo", "--yes") == 78


def test_replay_prints_its_plan_and_needs_a_yes(asked: Request, capsys: pytest.CaptureFixture[str]) -> None:
    times = ("--from", "2026-01-01", "--to", "2026-01-02T00:00Z")
    assert run(asked, "replay", "p", *times) == 2
    assert "2 files" in capsys.readouterr().err
    assert run(asked, "replay", "p", "--from", "2027-01-01", "--to", "2027-01-02") == 0
    assert "nothing to replay" in capsys.readouterr().out
    assert run(asked, "replay", "p", "--from", "noon", "--to", "2027-01-02") == 2
    assert run(asked, "replay", "p", "--from", "2026-01-01") == 78
    assert run(asked, "replay", "p", "--file", "never.json") == 78
    (Path(asked.root) / "in/0.json").unlink()
    assert run(asked, "replay", "p", *times, "--yes") == 78
    assert "replay-input-gone" in capsys.readouterr().err
