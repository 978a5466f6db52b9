"""Secrets of a pipeline from Airflow connections: what reaches the driver, and what does not."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from draindown.airflow import secrets
from draindown.airflow.operators import StepOperator
from draindown.base.errors import TerminalError
from draindown.base.secrets import resolved
from draindown.config.models import PipelineSpec
from draindown.runs.driver_log import DriverLog
from draindown.runs.request import Request

WORD = "canary-77c1"


@pytest.fixture
def spec(tmp_path: Path) -> PipelineSpec:
    kafka = {"topics": ["a"], "bootstrap_servers": "h:1", "security_protocol": "sasl_plaintext"}
    kafka |= {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "${secret:WORD}"}
    flow = {"source": {"kafka": kafka, "format": "json"}, "columns": {"n": "int"}, "target": {}}
    return PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(tmp_path / "lake"), "flows": {"first": flow}}
    )


def connection(monkeypatch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "generic", **fields})
    )


def test_the_password_of_the_connection_is_the_secret(
    spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection(monkeypatch, "draindown_WORD", password=WORD, login="other")
    assert secrets.of_connections(spec) == {"DRAINDOWN_SECRET_WORD": WORD}
    with secrets.in_environment(spec):
        assert resolved("${secret:WORD}") == WORD
    assert "DRAINDOWN_SECRET_WORD" not in os.environ


def test_environment_and_file_come_first(
    spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connection(monkeypatch, "draindown_WORD", password=WORD)
    (tmp_path / "WORD").write_text("of the file\n")
    assert secrets.of_connections(spec, {"DRAINDOWN_SECRET_WORD": "mine"}) == {}
    assert secrets.of_connections(spec, {"DRAINDOWN_SECRETS": str(tmp_path)}) == {}


def test_a_reference_reaches_no_connection_of_others(
    spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection(monkeypatch, "WORD", password=WORD)
    connection(monkeypatch, "draindown_OTHER", password=WORD)
    assert secrets.of_connections(spec) == {}
    with secrets.in_environment(spec), pytest.raises(TerminalError) as found:
        resolved("${secret:WORD}")
    assert found.value.code == "secret-missing"


@pytest.mark.parametrize("error", [AirflowException, ValueError, PermissionError])
def test_a_connection_that_airflow_cannot_read_is_named(
    spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def away(_: str) -> None:
        raise error(f"kafka://me:{WORD}@somewhere is no connection")

    monkeypatch.setattr(secrets.BaseHook, "get_connection", away)
    with pytest.raises(TerminalError) as found:
        secrets.of_connections(spec)
    assert found.value.code == "secret-unreadable"
    assert error.__name__ in str(found.value)
    assert WORD not in "".join(traceback.format_exception(found.value)), (
        "the log of the task has the trace"
    )


def test_the_driver_has_it_in_its_environment_and_nothing_that_stays(
    spec: PipelineSpec, told: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection(monkeypatch, "draindown_WORD", password=WORD)
    task = StepOperator(task_id="drain", spec=spec, flow="first", step="drain")
    request = Request(spec=spec, flow="first", step="drain", run_id="r", root=str(project))
    task._secrets = secrets.of_connections(spec)
    task.prepare(request, size="small")
    log = DriverLog.of(request.layout, "r", "drain", request.start)
    assert task._submit(log, request) == 0
    assert json.loads((told / "first.drain.secrets").read_text()) == {
        "DRAINDOWN_SECRET_WORD": len(WORD)
    }
    left = [
        path
        for home in (told, project, Path(spec.lake))
        for path in home.rglob("*")
        if path.is_file()
    ]
    assert left and not [path for path in left if WORD.encode() in path.read_bytes()]
