"""status, doctor and audit without a target: every flow of the project on one screen, and the worst
exit code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draindown.base.clock import now
from draindown.cli.program import main
from draindown.config import scaffold
from draindown.config.loader import find, load
from draindown.flow.checkpoint import Checkpoint
from draindown.lake.home import FlowHome
from draindown.runs import report, store
from draindown.runs.report import CheckPart, Expectation
from tests.flowfiles import drained


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pipelines without a run, and pipeline `p`, whose flow `f` drained two files."""
    monkeypatch.setenv("DRAINDOWN_LAKE", str(tmp_path / "lake"))
    for name in ("orders", "bills"):
        scaffold.init(tmp_path, name)
    asked = drained(tmp_path)
    spec = asked.spec.model_dump(mode="json", exclude_defaults=True)
    (tmp_path / "dags" / "pipelines" / "p.yaml").write_text(json.dumps(spec))
    return tmp_path


def typed(project: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["--root", str(project), *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def layout_of(project: Path, pipeline: str, flow: str) -> FlowHome:
    return load(find(pipeline, project), {"DRAINDOWN_LAKE": str(project / "lake")}).layout(flow)


def left(project: Path, pipeline: str, flow: str, **more: Any) -> None:
    """The report of a plan that could not be made."""
    error = {
        "code": "bad-params",
        "tried": "t",
        "found": "there is no param 'x'",
        "changed": "nothing",
        "next": ["n"],
    }
    layout = layout_of(project, pipeline, flow)
    store.write(layout, report.unreached(layout, "manual__1", "plan", now(), error | more))


def test_status_shows_the_newest_run_of_every_flow(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left(project, "orders", "orders")
    code, out, _ = typed(project, capsys, "status")
    lines = out.splitlines()
    assert code == 0
    rows = {line.split()[0]: line for line in lines if "/" in line.split()[0]}
    assert rows["bills/bills"].endswith("no run yet") and rows["orders/orders"].endswith("FAILED")
    assert "none, newer waits" in rows["p/f"]
    at = lines.index(next(line for line in lines if line.startswith("FAILED")))
    assert "FAILED  orders/orders  plan: bad-params" in lines[at]
    assert (
        lines[at + 1].strip().startswith("next: draindown --root")
        and "report orders" in lines[at + 1]
    )
    found = {
        (one["pipeline"], one["flow"]): one
        for one in json.loads(typed(project, capsys, "status", "--json")[1])
    }
    assert found["orders", "orders"]["run_id"] == "manual__1" and found["p", "f"]["run_id"] is None
    facts = found["p", "f"]
    assert facts["published"] is None and facts["unpublished"] and facts["bytes"]["table"] > 0
    assert found["bills", "bills"]["bytes"] == {}


def test_doctor_shows_the_verdict_on_every_flow(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in Path(layout_of(project, "p", "f").tables.target.path).glob("*.parquet"):
        file.unlink()
    code, out, _ = typed(project, capsys, "doctor")
    assert "bills/bills  healthy" in out and "orders/orders  healthy" in out and "set-up  " in out
    assert code == 1 and "p/f  1 thing wrong" in out and "next: " in out
    assert "  lease " not in out  # the parts that agree
    assert {one["name"] for one in json.loads(typed(project, capsys, "doctor", "--json")[1])} >= {
        "p/f",
        "set-up",
    }


def test_doctor_goes_on_past_a_flow_that_this_user_may_not_see(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look, hidden = Checkpoint.look, ["/p/f/"]

    def denied(it: Checkpoint) -> None:
        if any(part in it.path for part in hidden):
            raise PermissionError(13, "Permission denied", it.path)
        look(it)

    monkeypatch.setattr(Checkpoint, "look", denied)
    code, out, _ = typed(project, capsys, "doctor")
    assert code == 75 and "bills/bills  healthy" in out and "p/f" in out
    assert typed(project, capsys, "doctor", "p")[0] == 75
    hidden[:] = ["/orders/orders/"]
    for file in Path(layout_of(project, "p", "f").tables.target.path).glob("*.parquet"):
        file.unlink()
    assert typed(project, capsys, "doctor")[0] == 1, "what is wrong comes first"


def test_audit_shows_what_does_not_fit_in_every_flow(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = typed(project, capsys, "audit")
    assert "p/f  " in out and "bills/bills  " in out
    alone = {name: typed(project, capsys, "audit", name)[0] for name in ("bills", "orders", "p")}
    assert code == max(alone.values()) > 1
    assert json.loads(typed(project, capsys, "audit", "--json")[1])["clean"] is False


@pytest.mark.parametrize("command", ["doctor", "status", "audit"])
def test_a_file_that_cannot_be_read_hides_no_other_and_is_the_worst(
    project: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (project / "dags" / "pipelines" / "bad.yaml").write_text(
        "pipeline: bad\nlake: lake\nflow: {}\n"
    )
    code, out, _ = typed(project, capsys, command)
    assert code == 78 and "bad  invalid-pipeline: " in out and "p/f" in out
    assert "validate" in out


def test_what_chooses_within_a_pipeline_needs_one(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = typed(project, capsys, "audit", "--sample", "1%")
    assert code == 2 and "name that too" in err


def test_gate_show_gives_no_advice_on_a_verdict_about_an_older_version(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after `gate withdraw`: what the verdict advised is done, and the table waits for the
    next check.
    """
    layout = layout_of(project, "p", "f")
    newest = layout.tables.target.version
    advice = "draindown gate withdraw p/f amount_known"
    error = {"code": "gate-failed", "tried": "t", "found": "f", "changed": "c", "next": [advice]}
    failing = Expectation(
        name="amount_known", success=False, scope="changed", unexpected=2, judged=3
    )
    for version, waits in ((newest, False), (newest - 1, True)):
        part = CheckPart(version=version, changed_rows=3, expectations=[failing])
        store.write(
            layout,
            report.unreached(layout, f"r{version}", "check", now(), error).model_copy(
                update={"check": part}
            ),
        )
        code, out, _ = typed(project, capsys, "gate", "show", "p")
        assert code == 0 and "FAILED" in out
        assert ("unjudged   version" in out, advice.partition("draindown ")[2] in out) == (
            waits,
            not waits,
        )
        assert ("run p/f   # judges it" in out) == waits
        assert json.loads(typed(project, capsys, "gate", "show", "p", "--json")[1])["f"][
            "unjudged"
        ] == (newest if waits else None)
