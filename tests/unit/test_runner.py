"""However a step ends, what is told is short and names a cause; the trace is in the driver log.
Starts no JVM.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark import SparkContext

from draindown.base.errors import TerminalError, TransientError
from draindown.base.exits import Exit
from draindown.flow import at_work, schema_drift
from draindown.lake.documents import Document
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.runs import report, store
from draindown.runs.card import card
from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.spark import cluster
from draindown.spark.job.main import attempt
from draindown.spark.limits import Stop
from tests.flowfiles import AT, request

Work = Callable[[Stop], StepReport]
JAVA = "An error occurred while calling o1.start.\n: org.apache.spark.SparkException: boom\n\tat org.X.y(X.scala:1)\n"


def fails(error: Exception, before: Callable[[], object] = lambda: None) -> Work:
    def work(stop: Stop) -> StepReport:
        before()
        raise error

    return work


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def spark(state: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a context were there: `state` is what `isStopped` says, or the error it raises."""

    def is_stopped() -> object:
        if isinstance(state, Exception):
            raise state
        return state

    context = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=is_stopped))
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(_jsc=context))


def code_of(told: StepReport) -> str:
    assert told.error is not None
    return str(told.error["code"])


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    return request(tmp_path)


def test_a_crash_is_told_in_a_few_words_and_its_trace_is_in_the_log(
    asked: Request, capfd: pytest.CaptureFixture[str]
) -> None:
    told, code = attempt(asked, fails(RuntimeError("boom\n" + JAVA * 200)))
    said = capfd.readouterr().err
    log = asked.layout.start(asked.run_id, asked.step, asked.start).log
    assert (code, code_of(told)) == (Exit.CRASH, "crash")
    assert len(said.splitlines()) <= 6 and "\tat " not in said and "Traceback" not in said
    assert f"less {log}" in said and "next 1:  draindown run p/f" in said
    trace = Path(log).read_text()
    assert "Traceback" in trace and trace.count("at org.X.y") == 200 and "in work" in trace


def test_an_error_that_was_foreseen_leaves_no_log(asked: Request) -> None:
    _, code = attempt(asked, fails(TransientError("lease-held", tried="t", found="f")))
    assert (
        code == Exit.TRY_AGAIN
        and not Path(asked.layout.start(asked.run_id, asked.step, asked.start).log).exists()
    )


def test_a_lake_that_takes_nothing_is_named_and_a_retry_is_not_advised(asked: Request) -> None:
    told, code = attempt(
        asked, fails(OSError(errno.EROFS, "Read-only file system", asked.layout.tables.target.path))
    )
    assert (code, code_of(told)) == (Exit.NEEDS_PERSON, "lake-not-writable")
    assert (
        "Traceback"
        in Path(asked.layout.start(asked.run_id, asked.step, asked.start).log).read_text()
    )


def test_a_torn_file_that_spark_stumbled_over_is_named_and_a_retry_is_not_advised(
    asked: Request,
) -> None:
    write_deltalake(asked.layout.tables.target.path, pa.table({"n": [1]}))
    (file,) = Path(asked.layout.tables.target.path).glob("*.parquet")
    boom = RuntimeError(
        f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:{file}. SQLSTATE: KD001"
    )
    assert code_of(attempt(asked, fails(boom))[0]) == "crash", (
        "the file is whole: it is something else"
    )
    file.write_bytes(file.read_bytes()[:100])
    told, code = attempt(asked.model_copy(update={"start": "again"}), fails(boom))
    assert (code, code_of(told)) == (Exit.NEEDS_PERSON, "table-damaged")
    assert told.error is not None and file.name in told.error["found"]


def test_where_not_even_the_report_can_be_written_the_exit_code_says_so(
    asked: Request, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "write", full)
    done = report.of(asked, AT, "done")
    assert attempt(asked, lambda _: done)[1] == Exit.NEEDS_PERSON


@pytest.mark.parametrize(
    "state", [True, ConnectionRefusedError(), None], ids=["stopped", "gone", "not started"]
)
def test_a_step_that_was_told_to_end_did_not_crash(
    asked: Request, state: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if state is not None:
        spark(state, monkeypatch)
    told, code = attempt(
        asked, fails(RuntimeError("No active or default Spark session"), before=sigterm)
    )
    assert told.error is not None
    assert (code, code_of(told)) == (Exit.TRY_AGAIN, "stopped") and "SIGTERM" in told.error["found"]


def test_what_fails_before_a_stop_takes_effect_is_a_crash_all_the_same(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark(False, monkeypatch)
    told, code = attempt(asked, fails(RuntimeError("boom"), before=sigterm))
    assert (code, code_of(told)) == (Exit.CRASH, "crash")


def test_a_jvm_that_alone_was_told_to_end_is_no_crash(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark(True, monkeypatch)
    told, code = attempt(asked, fails(RuntimeError("No active or default Spark session")))
    assert (code, code_of(told)) == (Exit.TRY_AGAIN, "stopped")


def test_a_jvm_that_no_longer_answers_is_named_and_a_retry_helps(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark(ConnectionRefusedError("gone"), monkeypatch)
    told, code = attempt(
        asked, fails(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    )
    assert (code_of(told), code) == ("jvm-gone", Exit.TRY_AGAIN)
    assert told.error is not None and "Errno" not in str(told.error["found"])


def test_an_answer_that_is_lost_of_a_jvm_that_lives_is_a_crash(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark(False, monkeypatch)
    told, code = attempt(
        asked, fails(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    )
    assert (code_of(told), code) == ("crash", Exit.CRASH)


def test_an_error_beside_a_jvm_that_is_gone_is_a_crash(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark(ConnectionRefusedError("gone"), monkeypatch)
    told, code = attempt(asked, fails(KeyError("id")))
    assert (code_of(told), code) == ("crash", Exit.CRASH)


@pytest.mark.parametrize(
    ("number", "why"), [(9, ", as the kernel does where memory is short"), (6, "")]
)
def test_a_jvm_that_a_signal_ended_is_named_with_it(
    asked: Request, monkeypatch: pytest.MonkeyPatch, number: int, why: str
) -> None:
    ended = subprocess.Popen(["sleep", "600"])
    ended.send_signal(number)
    ended.wait()
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=ended))
    told, code = attempt(asked, fails(RuntimeError("boom")))
    assert told.error is not None and (code, code_of(told)) == (Exit.CRASH, "crash")
    assert (
        told.error["found"]
        == f"the JVM was ended by {signal.Signals(number).name}{why}; RuntimeError: boom"
    )


EXHAUSTED = "java.lang.OutOfMemoryError: Java heap space"


def tidies_up_in_vain() -> None:
    try:
        raise RuntimeError(EXHAUSTED)
    finally:
        raise ValueError("could not unpersist")


@pytest.mark.parametrize(
    "before", [lambda: None, tidies_up_in_vain], ids=["at once", "while tidying up"]
)
def test_an_exhausted_heap_is_named_with_a_larger_one(
    asked: Request, before: Callable[[], None]
) -> None:
    told, code = attempt(asked, fails(RuntimeError(EXHAUSTED), before))
    assert told.error is not None and (code, code_of(told)) == (Exit.NEEDS_PERSON, "out-of-memory")
    assert "DRAINDOWN_DRIVER_MEMORY=4096m" in told.error["next"][0]


def test_an_exhausted_heap_of_an_executor_is_named_with_its_own_setting(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cluster, "described", lambda: "spark://h:7077, 2 executors, 2 cores, 1.0 GB each"
    )
    lost = "Lost task 0.3 in stage 1.0 (TID 5) (h executor 4): ExecutorLostFailure: Command exited with code 52"
    told, code = attempt(asked, fails(RuntimeError(lost)))
    assert told.error is not None and (code, code_of(told)) == (Exit.NEEDS_PERSON, "out-of-memory")
    assert "executors of spark://h:7077" in told.error["tried"]
    assert "spark.executor.memory" in told.error["next"][0] and "DRIVER_MEMORY" not in str(
        told.error
    )


class Mute(Exception):
    """As py4j's are once the JVM is gone that would say what happened."""

    def __str__(self) -> str:
        raise ConnectionRefusedError


def test_an_error_that_can_say_nothing_leaves_a_report(asked: Request) -> None:
    told, code = attempt(asked, fails(Mute()))
    assert told.error is not None
    assert (code, code_of(told), told.error["found"]) == (Exit.CRASH, "crash", "Mute: ")


class Gone(io.StringIO):
    """The standard error of a driver whose task was killed: nobody reads it."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_driver_that_nobody_listens_to_leaves_a_report(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Gone())
        told, code = attempt(asked, fails(ConnectionRefusedError("the JVM is gone")))
    assert (told.outcome, code, code_of(told)) == ("failed", Exit.TRY_AGAIN, "jvm-gone")
    assert store.read(asked.layout, asked.run_id, asked.step) == told


def test_the_next_start_tells_of_one_whose_driver_died(asked: Request) -> None:
    note = {"pid": 20434, "host": "vm", "at": AT.isoformat()}
    Document(asked.layout.start(asked.run_id, asked.step).at_work).write(note)
    done = report.of(asked, AT, "idle")
    told, code = attempt(asked, lambda _: done)
    assert code == Exit.DONE and [finding.kind for finding in told.findings] == ["died"]
    assert "process 20434 on vm" in told.findings[0].detail
    assert store.read(asked.layout, asked.run_id, asked.step) == told
    assert at_work.left(asked.layout, "p", asked.run_id, asked.step) is None
    assert attempt(asked, lambda _: done)[0].findings == []


def test_a_field_is_told_of_where_its_batch_was_committed_and_not_where_it_failed(
    asked: Request,
) -> None:
    for batch in (0, 1):
        sighting = schema_drift.Sighting(
            "new-field", f"f{batch}", 1, "drain", batch, asked.run_id, AT.isoformat()
        )
        schema_drift.remember(asked.layout, [sighting])
    row = BatchRow(
        "p",
        "f",
        1,
        0,
        asked.run_id,
        attempt=asked.start,
        started_at=AT,
        finished_at=AT,
        table_version=1,
    )
    ledger_table.record(asked.layout, [row])
    told, _ = attempt(
        asked, fails(TerminalError("table-mismatch", tried="drain", found="types differ"))
    )
    assert (told.outcome, [finding.subject for finding in told.findings]) == ("failed", ["f0"])


def test_a_bug_of_ours_is_a_crash_and_no_jvm_that_is_gone(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade of pyspark in which a private name is gone."""
    spark(AttributeError("'JavaObject' object has no attribute 'sc'"), monkeypatch)
    told, code = attempt(
        asked, fails(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    )
    assert (code_of(told), code) == ("crash", Exit.CRASH)
    assert store.read(asked.layout, asked.run_id, asked.step) == told
    log = Path(asked.layout.start(asked.run_id, asked.step, asked.start).log).read_text()
    assert "has no attribute 'sc'" in log and "Connection refused" in log


@pytest.mark.parametrize(
    "error", [KeyError("cut"), OSError(errno.EIO, "Input/output error")], ids=["bug", "storage"]
)
@pytest.mark.parametrize("ends", [fails(RuntimeError("boom")), None], ids=["failed", "done"])
def test_a_report_without_its_batches_says_so(
    asked: Request, ends: Work | None, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object) -> None:
        raise error

    monkeypatch.setattr(ledger_table, "of_run", raises)
    told, _ = attempt(asked, ends or (lambda _: report.of(asked, AT, "done")))
    assert {finding.kind for finding in told.findings} == {"incomplete"}
    assert (
        type(error).__name__ in told.findings[0].detail or "Input/output" in told.findings[0].detail
    )
    assert "finding" in card([told])


ELSE = "draindown replay p/f --from 2026-01-01T00:00:00+00:00 --to 2026-01-02T00:00:00+00:00 --yes"


@pytest.mark.parametrize(
    "command", ["", ELSE, "draindown rebuild p/f --yes"], ids=["run", "replay", "rebuild"]
)
@pytest.mark.parametrize("way", ["crash", "stopped", "jvm-gone", "out-of-memory", "disk-full"])
def test_next_goes_on_with_what_was_asked(
    asked: Request, command: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked.model_copy(update={"command": command})
    ways: dict[str, tuple[object, Work]] = {
        "crash": (False, fails(RuntimeError("boom"))),
        "stopped": (True, fails(RuntimeError("no context"))),
        "jvm-gone": (ConnectionRefusedError("gone"), fails(ConnectionRefusedError("refused"))),
        "out-of-memory": (
            False,
            fails(RuntimeError("java.lang.OutOfMemoryError: Java heap space")),
        ),
        "disk-full": (False, fails(OSError(errno.ENOSPC, "No space left on device"))),
    }
    state, work = ways[way]
    spark(state, monkeypatch)
    told, _ = attempt(asked, work)
    assert told.error is not None and code_of(told) == way
    wanted = command or "draindown run p/f"
    assert any(wanted in step for step in told.error["next"])
    assert bool(command) != any("draindown run" in step for step in told.error["next"])
