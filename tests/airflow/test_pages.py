"""The page: behind Airflow's login, and nothing that comes from data becomes markup."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI

from draindown import pages, report
from draindown.layout import FlowLayout
from draindown.report import Backlog, DrainPart, Finding, StepReport, now

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

REPOSITORY = Path(__file__).resolve().parents[2]


def leave_report(project: Path) -> None:
    """One drain of flow `first`, with a finding that would like to be a script."""
    at = now()
    report.write(
        FlowLayout(str(project / "lake"), "good", "first", "first"),
        StepReport(
            pipeline="good",
            flow="first",
            run_id="manual__1",
            step="drain",
            outcome="done",
            started_at=at,
            finished_at=at,
            findings=[Finding(kind="parked", subject="<script>alert(1)</script>", detail="broken")],
            drain=DrainPart(
                generation=1,
                before=Backlog(files=3, bytes=10),
                after=Backlog(files=1, bytes=4),
                batches=[
                    dict.fromkeys(("files", "records", "applied", "superseded", "duplicate", "quarantined"), 41)
                    | {"generation": 1, "batch": 0, "seconds": 1.5}
                ],
                totals={"files": 2, "records": 41, "applied": 41},
            ),
        ),
    )


def test_the_page_shows_flows_runs_and_ledger_and_escapes(project: Path) -> None:
    leave_report(project)
    place = project / "dags" / "pipelines"
    html = pages.render(pages.flows(place, project), pages.broken(place))
    for shown in ("good", "second", "1 file", "manual__1", "Ledger", "41", "bro ken.yaml:3:1", "none yet"):
        assert shown in html
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_a_flow_that_cannot_be_read_hides_no_other(project: Path) -> None:
    layout = FlowLayout(str(project / "lake"), "good", "first", "first")
    report.write_json(layout.published, {"no": "pointer"})
    first, second = pages.flows(project / "dags" / "pipelines", project)
    assert "ValidationError" in first.problem
    assert second.problem == ""


def plugin() -> Any:
    path = REPOSITORY / "plugins" / "draindown_plugin.py"
    spec = importlib.util.spec_from_file_location("draindown_plugin", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.DraindownPlugin


@pytest.fixture
def client(database: None, project: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Airflow's own API server with the plugin's app mounted as Airflow mounts it."""
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient  # warns when it is imported

    passwords = Path(os.environ["AIRFLOW_HOME"]) / "passwords.json"
    passwords.write_text(json.dumps({"admin": "secret-of-the-test"}))
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "admin:admin")
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(passwords))
    server: FastAPI = create_app(apps="all")
    mounted = plugin().fastapi_apps[0]
    server.mount(mounted["url_prefix"], mounted["app"])
    # routes are tried in order, and the UI's own catches everything
    server.router.routes.insert(0, server.router.routes.pop())
    return TestClient(server, base_url="http://127.0.0.1")


def test_nobody_sees_the_page_without_login(client: TestClient) -> None:
    for path in ("/draindown/", "/draindown/dag/good"):
        assert client.get(path).status_code == 401
    for path in ("/draindown/docs", "/draindown/openapi.json"):
        assert client.get(path).status_code == 404


def test_who_is_logged_in_sees_it(client: TestClient) -> None:
    with client:
        answer = client.post("/auth/token", json={"username": "admin", "password": "secret-of-the-test"})
        headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}
        for path in ("/draindown/", "/draindown/dag/good"):
            page = client.get(path, headers=headers)
            assert page.status_code == 200
            assert "good" in page.text
            assert "frame-ancestors 'self'" in page.headers["content-security-policy"]
