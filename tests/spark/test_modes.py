"""jobs/drain.py as spark-submit runs it: what its request asks for is what it does."""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from draindown.base.exits import Exit
from draindown.flow import quarantine
from draindown.runs import store
from draindown.runs.report import DrainPart, StepReport
from draindown.runs.request import Again
from draindown.spark.job import main
from draindown.spark.runs.drain import drain
from draindown.spark.targets import delta_target
from tests.landing import Landing

JOB = Path(__file__).resolve().parents[2] / "jobs" / "drain.py"
ALWAYS = Again(since=datetime(2000, 1, 1, tzinfo=UTC), until=datetime(2100, 1, 1, tzinfo=UTC))


def landed(home: Path, files: int) -> Landing:
    """Files of one batch each; the last has a row that is refused."""
    made = Landing(
        home,
        source={"max_files_per_trigger": 1},
        rules={"sane": "a is null or a >= 0"},
        max_batches=5,
    )
    for number in range(files):
        rows: list[dict[str, Any]] = [{"id": f"k{n}", "seq": number, "a": n} for n in range(3)]
        rows += [{"id": "bad", "seq": 1, "a": -1}] if number == files - 1 else []
        made.deliver(*map(json.dumps, rows))
    return made


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    """Two batches."""
    return landed(tmp_path, 2)


@pytest.mark.parametrize("batches", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_job_drains_replays_input_and_replays_rows(
    spark: SparkSession, tmp_path: Path, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = landed(tmp_path, batches)

    def job(run_id: str, **asked: Any) -> tuple[StepReport, DrainPart]:
        request = landing.request(run_id, **asked)
        monkeypatch.setattr(sys, "argv", [str(JOB), "--request", request.encode()])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(JOB), run_name="__main__")
        assert ended.value.code == 0
        left = store.read(landing.layout, run_id, "drain")
        assert left is not None and left.drain is not None
        return left, left.drain

    first, part = job("first")
    assert (first.outcome, part.replay, part.totals["inputs"]) == ("done", "", batches)
    rows = landing.rows()

    again, part = job("again", replay=ALWAYS, max_batches=1)
    assert (again.outcome, part.totals["inputs"], part.totals["applied"]) == (
        "stopped" if batches > 1 else "done",
        1,
        0,
    )
    assert "2000-01-01" in part.replay
    if batches > 1:
        assert "1 batch left" in part.bound
        (told,) = [one for one in again.findings if one.kind == "stopped"]
        asked = part.replay.partition(": ")[2]
        assert told.next == f"draindown replay {again.pipeline}/{again.flow} {asked} --yes"
        again, part = job("again", replay=ALWAYS)  # a retry goes on where it ended
        assert (again.outcome, part.totals["inputs"], part.bound) == (
            "done",
            1,
            "1 batch of it before",
        )
        assert job("again", replay=ALWAYS)[0].outcome == "idle"
    assert landing.rows() == rows
    assert [row["kind"] for row in landing.ledger()] == ["drain"] * batches + ["replay"] * batches

    (refused,) = quarantine.identified(landing.layout, quarantine.Filter())
    chosen, part = job("rows", quarantine_ids=(refused,))
    assert (chosen.outcome, part.replay, part.totals["quarantined"]) == (
        "done",
        "quarantined rows, as chosen",
        1,
    )
    assert landing.rows() == rows


@pytest.fixture
def unending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries whose threads end, and that never say so."""
    right = StreamingQuery.awaitTermination

    def wait(query: StreamingQuery, timeout: int | None = None) -> bool:
        assert timeout is not None, "this wait never ends"
        with contextlib.suppress(StreamingQueryException):
            right(query)
        return False

    monkeypatch.setattr(StreamingQuery, "awaitTermination", wait)


@pytest.mark.full
@pytest.mark.usefixtures("unending")
def test_a_query_whose_thread_died_is_an_error_and_the_next_run_resumes(
    spark: SparkSession, landing: Landing
) -> None:
    request = landing.request("r")
    told, code = main.attempt(request, lambda stop: drain(request, spark, stop=stop))
    assert told.error is not None and (code, told.error["code"]) == (Exit.TRY_AGAIN, "query-died")
    assert told.drain is not None and told.drain.totals["inputs"] == 2  # all that this start did
    assert told.error["next"] == ["draindown run p/f   # it resumes where this one ended"]
    assert drain(landing.request("again"), spark).outcome == "idle"


@pytest.mark.usefixtures("unending")
def test_an_error_in_a_batch_is_told_although_the_query_never_ends(
    spark: SparkSession, landing: Landing
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("of a batch")

    with mock.patch.object(delta_target, "merge", fail):
        told, code = main.attempt(
            landing.request("r"), lambda stop: drain(landing.request("r"), spark, stop=stop)
        )
    assert told.error is not None and (code, told.error["code"]) == (Exit.CRASH, "crash")
    assert told.error["found"] == "RuntimeError: of a batch"


@pytest.mark.usefixtures("unending")
def test_a_drain_that_was_stopped_is_bounded_although_the_query_never_ends(
    spark: SparkSession, landing: Landing
) -> None:
    assert drain(landing.request("r", max_batches=1), spark).outcome == "stopped"
    assert [row["batch"] for row in landing.ledger()] == [0]


def test_what_fails_in_java_within_a_batch_is_said_by_its_name(
    spark: SparkSession, landing: Landing
) -> None:
    """Not by the stream that it ended."""

    def nothing(*_: object, **__: object) -> None:
        spark._jvm.java.util.Optional.empty().get()  # type: ignore[union-attr]

    with mock.patch.object(delta_target, "merge", nothing):
        told, code = main.attempt(
            landing.request("r"), lambda stop: drain(landing.request("r"), spark, stop=stop)
        )
    assert told.error is not None and (code, told.error["code"]) == (Exit.CRASH, "crash")
    expected = "Py4JJavaError: java.util.NoSuchElementException: No value present"
    assert told.error["found"] == expected
