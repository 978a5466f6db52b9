"""What a command begins, it goes on with: its request carries the command that does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draindown.base.clock import now
from draindown.base.exits import Exit
from draindown.cli.program import main
from draindown.flow import quarantine
from draindown.lake import delta
from draindown.runs import report
from draindown.runs.request import Request
from draindown.spark.job import main as job
from tests.flowfiles import REFUSED, drained, places


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that commands of the project would begin to work on."""
    found: list[Request] = []

    def attempt(request: Request, work: Any, **_: Any) -> Any:
        found.append(request)
        return report.of(
            request, now(), "failed", error={"code": "crash", "next": [request.resume]}
        ), Exit.CRASH

    monkeypatch.setattr(job, "attempt", attempt)
    ran = drained(tmp_path)
    row = {
        "quarantine_id": "abc",
        "origin": places(1)[0].as_py(),
        "batch": 0,
        "generation": 1,
        "kind": "drain",
    }
    delta.append(
        ran.layout.tables.quarantine,
        REFUSED.empty_table().from_pylist([row | {"reason": "type"}], REFUSED),
    )
    assert len(quarantine.listed(ran.layout, quarantine.Filter())) == 1
    home = tmp_path / "dags" / "pipelines"
    home.mkdir(parents=True)
    (home / "p.yaml").write_text(
        json.dumps(ran.spec.model_dump(mode="json", exclude_defaults=True))
    )
    return found


TIMES = ("--from", "2020-01-01T00:00:00+00:00", "--to", "2030-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "p/f", *TIMES, "--yes"),
        ("replay", "p/f", *TIMES, "--again", "--yes"),
        ("rebuild", "p/f", "--yes"),
        ("quarantine", "release", "p/f", "--reason", "type", "--yes"),
        ("quarantine", "release", "p/f", "--id", "abc", "--yes"),
        ("compact", "p/f", "--force"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_that_is_cut_short_names_itself(
    tmp_path: Path, asked: list[Request], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(tmp_path), *words]) == Exit.CRASH
    (request,) = asked
    assert request.resume == f"draindown {' '.join(words)}"
    assert f"next: draindown --root {tmp_path} {' '.join(words)}" in capsys.readouterr().out


def test_a_run_names_a_run(tmp_path: Path, asked: list[Request]) -> None:
    (tmp_path / "in" / "2.json").write_text('{"id": "2", "n": 1}\n')
    assert main(["--root", str(tmp_path), "run", "p", "--no-check", "--no-compact"]) == Exit.CRASH
    assert [one.resume for one in asked] == ["draindown run p/f"]
