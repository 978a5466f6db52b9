"""doctor, report and audit without a pipeline: every flow of the project on one screen, and the
worst exit code.
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


def test_report_shows_the_newest_run_of_every_flow(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left(project, "orders", "orders")
    code, out, _ = typed(project, capsys, "report")
    lines = out.splitlines()
    assert code == 0
    assert "bills/bills  no run left a report yet" in out
    (at,) = [at for at, line in enumerate(lines) if "orders/orders" in line and "next:" not in line]
    assert "FAILED  orders/orders  plan: bad-params" in lines[at]
    assert (
        lines[at + 1].strip().startswith("next: draindown --root")
        and "report orders" in lines[at + 1]
    )
    found = {
        (one["pipeline"], one["flow"]): one
        for one in json.loads(typed(project, capsys, "report", "--json")[1])
    }
    assert found["orders", "orders"]["run_id"] == "manual__1" and found["p", "f"]["run_id"] is None
    health = found["p", "f"]["health"]
    assert health["published"] is None and health["unpublished"] and health["bytes"]["table"] > 0
    assert found["bills", "bills"]["health"]["bytes"] == {}


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
    look = Checkpoint.look

    def denied(it: Checkpoint) -> None:
        if "/p/f/" in it.path:
            raise PermissionError(13, "Permission denied", it.path)
        look(it)

    monkeypatch.setattr(Checkpoint, "look", denied)
    code, out, _ = typed(project, capsys, "doctor")
    assert code == 2 and "bills/bills  healthy" in out and "p/f" in out
    assert typed(project, capsys, "doctor", "p")[0] == 2


def test_audit_shows_what_does_not_fit_in_every_flow(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = typed(project, capsys, "audit")
    assert "p/f  " in out and "bills/bills  " in out
    alone = {name: typed(project, capsys, "audit", name)[0] for name in ("bills", "orders", "p")}
    assert code == max(alone.values()) > 1
    assert json.loads(typed(project, capsys, "audit", "--json")[1])["clean"] is False


def test_lag_has_an_entry_for_a_file_that_cannot_be_read(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "dags" / "pipelines" / "bad.yaml").write_text(
        "pipeline: bad\nlake: lake\nflow: {}\n"
    )
    code, out, err = typed(project, capsys, "lag", "--json")
    (bad,) = [one for one in json.loads(out) if one["pipeline"] == "bad"]
    assert (code, bad["flow"], bad["error"]["code"], bad["units"]) == (
        0,
        None,
        "invalid-pipeline",
        None,
    )
    assert json.loads(err)["error"]["code"] == "invalid-pipeline"
    assert "bad/?" in typed(project, capsys, "lag")[1]


@pytest.mark.parametrize("command", ["doctor", "report", "audit"])
def test_a_file_that_cannot_be_read_hides_no_other_and_is_the_worst(
    project: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (project / "dags" / "pipelines" / "bad.yaml").write_text(
        "pipeline: bad\nlake: lake\nflow: {}\n"
    )
    code, out, _ = typed(project, capsys, command)
    assert code == 78 and "bad  invalid-pipeline: " in out and "p/f" in out
    assert "validate" in out


@pytest.mark.parametrize("words", [["report", "--run", "x"], ["doctor/f"], ["audit/f"]])
def test_what_chooses_within_a_pipeline_needs_one(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code, _, err = typed(project, capsys, *words)
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
