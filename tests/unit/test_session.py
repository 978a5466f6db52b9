"""A Spark that can't start says why."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.runs.driver_log import DriverLog
from draindown.spark.session import _silence_query_loggers, session


class Raised(Py4JJavaError):
    """One without the gateway that a real one asks for its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def starting(monkeypatch: pytest.MonkeyPatch, text: str) -> BaseException:
    """What `session` raises where the JVM answers so."""

    def refuse(builder: object) -> None:
        raise Raised(text)

    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    with pytest.raises(Exception) as caught:
        session("x")
    return caught.value


def test_a_java_that_is_too_new_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/opt/jdk-25")
    answer = "java.lang.UnsupportedOperationException: getSubject is not supported\n\tat javax.security.auth.Subject"
    error = starting(monkeypatch, answer)
    assert isinstance(error, TerminalError)
    assert (error.code, "/opt/jdk-25" in error.found) == ("java-too-new", True)


def test_other_failures_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(starting(monkeypatch, "java.net.BindException: in use"), Raised)


def test_a_jvm_that_is_started_here_talks_to_the_log_and_we_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "import sys, time; print('banner'); time.sleep(0.2); print('WARN', file=sys.stderr); time.sleep(600)"
    started: list[subprocess.Popen[bytes]] = []

    def start(builder: object) -> str:
        started.append(subprocess.Popen([sys.executable, "-u", "-c", script]))
        return "a session"

    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    log = DriverLog(str(tmp_path / "drain.log"))
    try:
        assert session("x", log=log) == "a session"  # type: ignore[comparison-overlap]
        print("our words", flush=True)
        until = time.monotonic() + 30
        while "WARN" not in (kept := Path(log.path).read_text()) and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert kept.splitlines() == ["banner", "WARN"]
    assert capfd.readouterr() == ("our words\n", "")


def test_streams_are_put_back_where_no_session_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(builder: object) -> None:
        raise ValueError("x")

    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    with pytest.raises(ValueError, match="x"):
        session("x", log=DriverLog(str(tmp_path / "drain.log")))
    print("our words", flush=True)
    assert capfd.readouterr().out == "our words\n"


def test_pyspark_prints_no_error_of_a_query_beside_ours(capfd: pytest.CaptureFixture[str]) -> None:
    class Frame:
        """The context of an error in a DataFrame."""

        def contextType(self) -> Any:
            return SimpleNamespace(name="DataFrame")

        def callSite(self) -> str:
            return "module.py:3"

        def fragment(self) -> str:
            return "col"

    _silence_query_loggers()
    error = PySparkException("[UNRESOLVED_COLUMN] no such column", contexts=[Frame()])
    error._log_exception()
    assert capfd.readouterr() == ("", "")
