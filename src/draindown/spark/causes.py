"""The errors of the JVM behind an error in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from draindown.base.errors import said

HEAP_EXHAUSTED = 52
"""Exit code of a JVM of Spark, driver or executor, that an OutOfMemoryError ended."""

_OF_MEMORY = (
    "OutOfMemoryError",
    "Not enough memory to build and broadcast",
    f"Command exited with code {HEAP_EXHAUSTED}",
)


def of_memory(error: BaseException) -> bool:
    """Return whether an error says that a heap was too small: the driver's, or that of an executor
    which it ended.
    """
    text = said(error)
    return any(words in text for words in _OF_MEMORY)


def of_lost_executors(error: BaseException) -> bool:
    """Return whether a job failed because each try of a task lost its executor, whatever ended
    these.
    """
    return "ExecutorLostFailure" in said(error)


def causes(error: BaseException) -> Iterator[tuple[str, str, str]]:
    """Yield (Spark's error condition, Java class, message) of an error and its causes, outermost
    first.
    """
    java = getattr(error, "java_exception", None) if isinstance(error, Py4JJavaError) else None
    if isinstance(error, PySparkException):
        java = getattr(error, "_origin", None)
        yield error.getCondition() or "", "", said(error)
    try:
        for _ in range(20):
            if java is None:
                return
            yield _condition(java), str(java.getClass().getName()), str(java.getMessage() or "")
            java = java.getCause()
    except Py4JError:  # the JVM is gone
        return


def _condition(java: Any) -> str:
    try:
        return str(java.getCondition() or "")
    # only Spark's own errors have one, and py4j can't be asked which methods there are
    except Py4JError:
        return ""
