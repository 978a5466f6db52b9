"""A Spark that can't start says why."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.spark.session import session


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
