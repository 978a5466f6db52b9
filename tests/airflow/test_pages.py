"""The page: behind Airflow's login, and nothing that comes from data becomes markup."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from fastapi import FastAPI

from draindown.base.clock import now
from draindown.base.findings import Finding
from draindown.flow import at_work, proven
from draindown.gate.published import Published
from draindown.lake import documents
from draindown.lake.home import FlowHome
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.pages import overview
from draindown.runs import store
from draindown.runs.report import Backlog, DrainPart, PlanPart, RunSums, StepReport
from draindown.runs.request import Request, Step, new_start

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

REPOSITORY = Path(__file__).resolve().parents[2]


def leave_report(project: Path, run_id: str = "manual__1") -> None:
    """One drain of flow `first`, with a finding that would like to be a script."""
    at = now()
    store.write(
        FlowHome(str(project / "lake"), "good", "first", "first"),
        StepReport(
            pipeline="good",
            flow="first",
            run_id=run_id,
            step="drain",
            outcome="done",
            started_at=at,
            finished_at=at,
            findings=[Finding(kind="parked", subject="<script>alert(1)</script>", detail="broken")],
            drain=DrainPart(
                generation=1,
                before=Backlog(units=3, bytes=10),
                after=Backlog(units=1, bytes=4),
                totals={"inputs": 2, "records": 41, "applied": 41},
            ),
        ),
    )


def test_the_page_shows_flows_runs_and_ledger_and_escapes(project: Path) -> None:
    leave_report(project)
    row = BatchRow("good", "first", 1, 0, "<b>run</b>", records=82, quarantined=41, inserted=41)
    ledger_table.record(FlowHome(str(project / "lake"), "good", "first", "first"), [row])
    place = project / "dags" / "pipelines"
    html = overview.render(overview.flows(place, project), overview.broken(place))
    for shown in (
        "good",
        "second",
        "1 file",
        "manual__1",
        "Ledger",
        "41",
        "50%",
        "bro ken.yaml:3:1",
        "none yet",
    ):
        assert shown in html
    assert "<script" not in html and "<b>run" not in html
    assert "&lt;script&gt;" in html


def test_the_ledger_of_a_derived_table_is_shown_by_its_two_accounts(project: Path) -> None:
    row = BatchRow(
        "good",
        "first",
        1,
        0,
        "r",
        records=907,
        used=905,
        unused=2,
        recomputed=61,
        inserted=60,
        empty=1,
    )
    derived = replace(row, form="derive")
    ledger_table.record(FlowHome(str(project / "lake"), "good", "first", "first"), [derived])
    html = overview.render(overview.flows(project / "dags" / "pipelines", project))
    header = html[html.index(">generation<") : html.index("907")]
    for name in (
        "changes",
        "used",
        "unused",
        "late",
        "recomputed",
        "inserted",
        "updated",
        "deleted",
        "unchanged",
        "empty",
    ):
        assert f">{name}<" in header
    assert not any(
        f">{name}<" in header for name in ("superseded", "duplicate", "quarantined", "share")
    )
    assert [html.count(f">{number}<") for number in (907, 905, 61, 60)] == [1, 1, 1, 1]


def test_only_the_pipelines_asked_for_are_shown(project: Path) -> None:
    place = project / "dags" / "pipelines"
    assert overview.flows(place, project, set()) == []
    assert [view.flow for view in overview.flows(place, project, {"good", "x"})] == [
        "first",
        "second",
    ]
    assert overview.broken(place, {"good"}) == []
    assert len(overview.broken(place, {"broken"})) == 1


def test_a_run_is_called_by_its_own_id(project: Path) -> None:
    leave_report(project, "scheduled__2026-01-01T00:00:00+00:00")
    first = overview.flows(project / "dags" / "pipelines", project)[0]
    assert [run.run_id for run in first.runs] == ["scheduled__2026-01-01T00:00:00+00:00"]


def test_a_flow_that_cannot_be_read_hides_no_other(project: Path) -> None:
    layout = FlowHome(str(project / "lake"), "good", "first", "first")
    documents.Document(f"{layout.published}/0000000001.json").write({"no": "pointer"})
    first, second = overview.flows(project / "dags" / "pipelines", project)
    assert "state-damaged" in first.problem
    assert second.problem == ""


def test_a_flow_whose_lake_deltalake_misreads_says_so(project: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(project, tmp_path / "job%2Fbranch")
    assert "lake-misread" in overview.flows(copy / "dags" / "pipelines", copy)[0].problem


def test_what_waits_is_what_the_newest_step_saw_that_looked(project: Path) -> None:
    """Neither a drain that failed nor a withdrawal looked; the plan of the failed run did."""

    def leave(run_id: str, step: Step, **more: Any) -> None:
        at = now()
        who = {
            "pipeline": "good",
            "flow": "first",
            "run_id": run_id,
            "step": step,
            "started_at": at,
            "finished_at": at,
        }
        store.write(layout, StepReport.model_validate({**who, "outcome": "done", **more}))

    def waiting() -> str:
        return next(iter(overview.flows(project / "dags" / "pipelines", project))).waiting

    layout = FlowHome(str(project / "lake"), "good", "first", "first")
    leave("r1", "plan", plan=PlanPart(backlog=Backlog(units=3, bytes=10), drain=True))
    leave("r1", "drain", outcome="failed", drain=DrainPart(generation=1))
    assert waiting().startswith("3 files")
    leave("r2", "drain", drain=DrainPart(generation=1, bound="unpublished rows that make x fail"))
    assert waiting().startswith("3 files")
    leave("r3", "drain", drain=DrainPart(generation=1, before=Backlog(units=3), after=Backlog()))
    assert waiting().startswith("nothing, 20")


FIRST = ("good", "first", "first")


def layout_of(project: Path) -> FlowHome:
    return FlowHome(str(project / "lake"), *FIRST)


def first_of(project: Path) -> overview.FlowView:
    return overview.flows(project / "dags" / "pipelines", project)[0]


def leave(project: Path, run_id: str, step: Step, start: str = "", **more: Any) -> str:
    at = more.pop("at", now())
    who = {
        "pipeline": "good",
        "flow": "first",
        "run_id": run_id,
        "step": step,
        "started_at": at,
        "finished_at": at,
    }
    told = StepReport.model_validate(
        {**who, "outcome": "done", **({"start": start} if start else {}), **more}
    )
    return store.write(layout_of(project), told)


def test_a_pointer_to_another_table_publishes_nothing_and_its_proof_is_not_shown(
    project: Path,
) -> None:
    layout, at = layout_of(project), now()
    write_deltalake(layout.tables.target.path, pa.table({"id": [1]}))
    table = layout.tables.target
    pointer = Published(version=0, table_id=table.id, changed_at=None, at=at, run_id="r", rows=1)
    proof = {
        "holds": False,
        "share": 1.0,
        "differing": 3,
        "found": 9,
        "digest": "d",
        "engine": "DuckDB",
        "at": "2026",
    }
    for number, (id, version, shown) in enumerate(
        (
            (table.id, 0, "0"),
            ("another", 812, "nothing of the table as it is: version 812 is not one of its"),
            (table.id, 3, "nothing of the table as it is: version 3 is not one of its"),
        )
    ):
        told = pointer.model_copy(update={"table_id": id, "version": version})
        documents.Document(f"{layout.published}/{number + 1:010}.json").write(
            told.model_dump(mode="json")
        )
        proven.keep(
            layout, {**proof, "table": {"id": id, "version": version}, "sources": [{"version": 7}]}
        )
        view = first_of(project)
        assert view.published == shown
        assert ("DOES NOT HOLD" in view.proven) == (id == table.id)


def test_names_that_are_not_utf_8_and_ledgers_of_another_version_hide_no_page(
    project: Path,
) -> None:
    bad = project / "dags" / "pipelines" / os.fsdecode(b"bad\xff.yaml")
    bad.write_text("pipeline: [")
    try:
        ledger_table.record(
            layout_of(project), [replace(BatchRow("good", "first", 1, 0, "r"), form="new")]
        )  # type: ignore[arg-type]
        place = project / "dags" / "pipelines"
        html = overview.render(overview.flows(place, project), overview.broken(place)).encode()
    finally:
        bad.unlink()
    assert b"bad" in html and b"bro ken.yaml:3:1" in html and b">superseded<" in html


def test_a_torn_report_hides_its_run_and_nothing_else(project: Path) -> None:
    Path(
        leave(project, "r1", "drain", drain=DrainPart(generation=1, after=Backlog(units=4)))
    ).write_text("{")
    leave(project, "r2", "drain", drain=DrainPart(generation=1, after=Backlog(units=5)))
    view = first_of(project)
    assert view.problem == "" and view.waiting.startswith("5 files")
    (torn,) = (run for run in view.runs if run.run_id == "r1")
    assert torn.failed and str(layout_of(project).run_reports("r1")) in torn.card
    layout_of(project).proven.write({"no": "proof"})
    assert "can't be read" in first_of(project).proven


def test_a_cleared_run_shows_what_its_new_plan_saw(project: Path) -> None:
    leave(
        project,
        "r1",
        "drain",
        drain=DrainPart(generation=1, after=Backlog()),
        at=now() - timedelta(hours=1),
    )
    leave(project, "r1", "plan", plan=PlanPart(backlog=Backlog(units=5_000), drain=True))
    assert first_of(project).waiting.startswith("5,000 files")


def test_runs_that_did_not_look_do_not_mean_that_none_was_planned(project: Path) -> None:
    assert first_of(project).waiting == "not planned yet"
    for number in range(3):
        leave(project, f"r{number}", "plan", outcome="failed")
    assert first_of(project).waiting == "" and first_of(project).unlooked.startswith(
        "unknown: the plan failed, 20"
    )
    leave(project, "r3", "drain", drain=DrainPart(generation=1))
    assert first_of(project).unlooked.startswith("unknown: the plan failed, 20")


def test_a_driver_that_died_without_any_report_is_shown_and_marked(project: Path) -> None:
    layout = layout_of(project)
    leave(project, "r1", "drain", drain=DrainPart(generation=1, after=Backlog()))
    note = Path(layout.start("replay1", "drain", new_start()).at_work)
    facts = {"pid": 1, "host": "h", "at": now().isoformat(), "command": "draindown replay good"}
    documents.Document(str(note)).write(facts)
    dead, done = first_of(project).runs
    assert (dead.run_id, dead.failed, done.failed) == ("replay1", True, False)
    assert (
        dead.mark == "DIED"
        and "its driver died" in dead.what
        and "draindown replay good" in dead.card
    )
    leave(project, "r2", "drain", new_start(), drain=DrainPart(generation=1, after=Backlog()))
    assert [run.run_id for run in first_of(project).runs] == ["r2", "replay1", "r1"]


def test_runs_of_a_copied_lake_stand_in_the_order_in_which_they_began(project: Path) -> None:
    for number in (1, 2, 3):
        path = leave(
            project, f"r{number}", "drain", f"2026-11-0{number}T10-00-00.000000_ab", at=now()
        )
        os.utime(path, (10 - number, 10 - number))
    assert [run.run_id for run in first_of(project).runs] == ["r3", "r2", "r1"]


def plugin() -> Any:
    path = REPOSITORY / "plugins" / "draindown_plugin.py"
    spec = importlib.util.spec_from_file_location("draindown_plugin", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.DraindownPlugin


@pytest.fixture(scope="module")
def client(database: None) -> Iterator[TestClient]:
    """Airflow's own API server with the plugin's app mounted as Airflow mounts it, once for all who
    ask it.
    """
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient  # warns when it is imported

    passwords = Path(os.environ["AIRFLOW_HOME"]) / "passwords.json"
    passwords.write_text(json.dumps({"admin": "secret-of-the-test"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "admin:admin")
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(passwords))
        server: FastAPI = create_app(apps="all")
        mounted = plugin().fastapi_apps[0]
        server.mount(mounted["url_prefix"], mounted["app"])
        # routes are tried in order, and the UI's own catches everything
        server.router.routes.insert(0, server.router.routes.pop())
        with TestClient(server, base_url="http://127.0.0.1") as started:
            yield started


@pytest.fixture(scope="module")
def login(client: TestClient) -> dict[str, str]:
    """The headers of who has logged in."""
    answer = client.post(
        "/auth/token", json={"username": "admin", "password": "secret-of-the-test"}
    )
    return {"Authorization": f"Bearer {answer.json()['access_token']}"}


def test_nobody_sees_the_page_without_login(client: TestClient, project: Path) -> None:
    mounted = plugin().fastapi_apps[0]
    routes = [route for route in mounted["app"].routes if hasattr(route, "methods")]
    assert {route.path for route in routes} == {"/", "/dag/{dag_id}"}
    for route in routes:
        assert route.methods == {"GET"}
        assert (
            client.get(mounted["url_prefix"] + route.path.format(dag_id="good")).status_code == 401
        )
    for path in (
        "/draindown/docs",
        "/draindown/openapi.json",
        "/draindown/dag/..%2f..%2fetc%2fpasswd/x",
    ):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize("readable", [set(), {"good"}, {"broken"}])
@pytest.mark.parametrize("query", ["", "?dag_id=mine", "?dag_id=good", "?dag_id=~"])
def test_each_sees_what_he_may_read_whatever_the_query_names(
    client: TestClient,
    login: dict[str, str],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    readable: set[str],
    query: str,
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    manager = get_auth_manager()
    monkeypatch.setattr(manager, "get_authorized_dag_ids", lambda **_: readable)
    monkeypatch.setattr(
        manager, "is_authorized_dag", lambda **k: k["details"].id in {"mine", *readable}
    )
    page = client.get(f"/draindown/{query}", headers=login)
    assert page.status_code == 200
    assert ("second" in page.text) == ("good" in readable)
    assert ("bro ken.yaml" in page.text) == ("broken" in readable)
    one = client.get(f"/draindown/dag/good{query}", headers=login)
    assert one.status_code == (200 if "good" in readable else 403)


def test_what_is_wrong_with_the_project_is_said(
    client: TestClient, login: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    monkeypatch.setattr(get_auth_manager(), "get_authorized_dag_ids", lambda **_: {"good"})
    monkeypatch.setenv("DRAINDOWN_ROOT", str(project / "nowhere"))
    page = client.get("/draindown/", headers=login)
    assert page.status_code == 200 and "no-project-root" in page.text


def test_who_may_read_everything_sees_it(
    client: TestClient, login: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    # no scheduler has written the DAGs into the database of this test
    monkeypatch.setattr(
        get_auth_manager(), "get_authorized_dag_ids", lambda **_: {"good", "broken"}
    )
    for path in ("/draindown/", "/draindown/dag/good"):
        page = client.get(path, headers=login)
        assert page.status_code == 200
        assert "good" in page.text
        assert "frame-ancestors 'self'" in page.headers["content-security-policy"]


def test_a_plan_that_failed_before_it_looked_does_not_say_that_nothing_waits(project: Path) -> None:
    leave(project, "r1", "drain", drain=DrainPart(generation=1, after=Backlog()))
    leave(project, "r2", "plan", outcome="failed", error={"code": "not-a-directory"})
    view = first_of(project)
    assert (
        view.unlooked.startswith("unknown: the plan failed (not-a-directory), 20")
        and " UTC" in view.unlooked
    )
    assert view.waiting.startswith("nothing, 20"), "what an earlier plan saw, with its time"
    leave(project, "r3", "plan", plan=PlanPart(backlog=Backlog(units=2)))
    assert (first_of(project).unlooked, first_of(project).waiting[:7]) == ("", "2 files")


def test_every_row_of_the_page_has_a_time_and_no_fact_twice(project: Path) -> None:
    share = RunSums(starts=1, totals={"batches": 1}, quarantined_share=0.014)
    part = DrainPart(
        generation=1,
        after=Backlog(),
        batches=[{"kind": "drain"}],
        over_limit="failed",
        quarantined_share=0.014,
    )
    leave(project, "r1", "drain", drain=part, run=share)
    layout, at = layout_of(project), now()
    ledger_table.record(layout, [BatchRow("good", "first", 1, 0, "r1", finished_at=at)])
    view = first_of(project)
    (run,) = view.runs
    assert (run.mark, run.what.count("quarantined"), run.quarantined) == (
        "OVER LIMIT",
        1,
        "",
    ) and "good/first" not in run.what
    assert run.at.endswith(" UTC") and view.ledger[0]["at"] == f"{at:%Y-%m-%d %H:%M} UTC"
    html = overview.render([view])
    assert html.count('class="when"') == 3 and 'class="mark over-limit">OVER LIMIT<' in html


def test_states_that_differ_look_different(project: Path) -> None:
    """By their words and by their class, so not by color alone."""
    leave(project, "r1", "plan", outcome="failed", error={"code": "x"})
    leave(project, "r2", "drain", drain=DrainPart(generation=1, batches=[{"kind": "drain"}]))
    leave(project, "r3", "drain", outcome="idle", drain=DrainPart(generation=1, after=Backlog()))
    documents.Document(layout_of(project).start("r4", "drain", new_start()).at_work).write(
        {"pid": 1, "host": "h"}
    )
    shown = {run.run_id: (run.mark, run.kind) for run in first_of(project).runs}
    assert shown == {
        "r1": ("FAILED", "failed"),
        "r2": ("NOT CHECKED", "not-checked"),
        "r3": ("IDLE", "idle"),
        "r4": ("DIED", "died"),
    }
    style = overview.render([])
    assert all(f".{kind}" in style for _, kind in shown.values())


def test_a_run_at_work_stands_before_a_later_one_that_found_it(project: Path) -> None:
    layout = layout_of(project)
    asked = SimpleNamespace(
        layout=layout, run_id="r1", step="drain", start=new_start(), try_number=2, command=""
    )
    with at_work.at_work(cast(Request, asked)):
        leave(
            project,
            "r1",
            "drain",
            "2026-01-01T00-00-00.000000_ab",
            outcome="failed",
            error={"code": "jvm-gone"},
        )
        leave(
            project,
            "r2",
            "drain",
            new_start(asked.start),
            outcome="failed",
            error={"code": "lease-held"},
        )
        first, second = first_of(project).runs
        assert (first.run_id, first.mark, second.mark) == ("r1", "AT WORK", "FAILED")
        assert "drain is at work since" in first.what and "try 2, process" in first.what
        assert "drain failed with jvm-gone" in first.card


def test_a_rebuild_that_is_half_done_is_on_the_page(project: Path) -> None:
    layout = layout_of(project)
    begun = {"generation": 2, "previous": 1, "at": "then", "by": "me", "contract": "c"}
    layout.rebuild.write(begun | {"foreign": []})
    # .write(begun)
    view = first_of(project)
    assert view.rebuild is not None and view.rebuild.code == "rebuild-unfinished"
    assert "draindown rebuild good/first --yes" in overview.render([view])
