"""Which connection to Spark a task uses, and what keeps work for a cluster from beginning on a
worker.
"""

from __future__ import annotations

import json
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowException, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse

from draindown.airflow.spark_connection import Hook, find
from draindown.base.errors import DraindownError
from draindown.base.exits import Exit, exit_for

WORD = "canary-5d20"
MALFORMED = [
    f"spark://u:{WORD}@spark://m:7077://x",
    f'{{"conn_type": "spark", "password": "{WORD}", ',
    f"spark://u:{WORD}@m:x",
]


@pytest.fixture(autouse=True)
def none_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has Airflow's server answer every question with an error, as in a task."""

    def every(error: ErrorType) -> None:
        response = ErrorResponse(error=error, detail={"status_code": 503})
        supervisor = SimpleNamespace(send=lambda message: response)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)

    return every


def refused(conn_id: str, *, named: bool) -> DraindownError:
    with pytest.raises(DraindownError) as caught:
        find(conn_id, named=named)
    assert WORD not in "".join(traceback.format_exception(caught.value)), (
        "the log of the task has the trace"
    )
    return caught.value


def master(found: Connection) -> str:
    return str(Hook(found)._connection["master"])


def test_none_that_nobody_named_is_this_machine() -> None:
    assert master(find("spark_default", named=False)) == "local[*]"


def test_one_that_is_named_and_not_found_is_asked_for_again() -> None:
    error = refused("cluster", named=True)
    assert (error.code, exit_for(error)) == ("no-spark-connection", Exit.TRY_AGAIN)


def test_a_server_that_is_away_is_not_taken_for_an_answer(answers: Any) -> None:
    answers(ErrorType.API_SERVER_ERROR)
    assert refused("cluster", named=True).code == "no-spark-connection", (
        "Airflow says of it what it says of none"
    )
    answers(ErrorType.PERMISSION_DENIED)
    for named in (False, True):
        error = refused("cluster", named=named)
        assert (error.code, exit_for(error)) == ("bad-spark-connection", Exit.NEEDS_PERSON)


@pytest.mark.parametrize("text", MALFORMED)
@pytest.mark.parametrize("named", [False, True])
def test_what_is_no_connection_is_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch, text: str, named: bool
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", text)
    error = refused("spark_default", named=named)
    assert (error.code, exit_for(error)) == ("bad-spark-connection", Exit.NEEDS_PERSON)
    assert "AIRFLOW_CONN_SPARK_DEFAULT" in error.found


def test_no_error_of_airflow_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: str) -> None:
        raise AirflowException(f"Invalid connection string: spark://u:{WORD}@m")

    monkeypatch.setattr(BaseHook, "get_connection", away)
    assert refused("spark_default", named=False).code == "bad-spark-connection"


def test_it_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get(conn_id: str) -> Connection:
        asked.append(conn_id)
        return Connection(conn_id=conn_id, conn_type="spark", host="spark://m", port=7077)

    monkeypatch.setattr(BaseHook, "get_connection", get)
    assert master(find("cluster", named=True)) == "spark://m:7077"
    assert asked == ["cluster"]


def test_what_the_provider_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = json.dumps({"spark-binary": "rm"})
    with pytest.raises(DraindownError, match="spark-binary") as caught:
        Hook(Connection(conn_id="c", conn_type="spark", host="spark://m", extra=extra))
    assert caught.value.code == "bad-spark-connection"
