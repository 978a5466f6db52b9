"""Build, configure and stop the Spark session. No other module builds one."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.base.run_size import RunSize
from draindown.launch import settings as spark_settings
from draindown.runs.driver_log import DriverLog

_STREAMS = (1, 2)
_QUERY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers in pyspark/errors/exceptions/base.py. The same error is raised; whoever handles it says
what is wrong.
"""
_NO_SUBJECT = "getSubject is not supported"
"""The error of Hadoop before 3.4.3, which Spark 4.1 bundles, on Java 23 and later (HADOOP-19212,
SPARK-54276).
"""
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for small batches: compiling generated code takes longer than interpreting it
(docs/performance.md).
"""


def session(
    app: str, *, master: str | None = None, size: RunSize = "medium", log: DriverLog | None = None
) -> SparkSession:
    """Return a classic (not Connect) session with Delta.

    Under spark-submit the running JVM keeps its settings. Otherwise a JVM is started with
    draindown's settings, and its output goes to `log` if given.

    Raises TerminalError `jars-missing` if set-up is incomplete, `java-too-new` if Spark can't run
    on this Java.
    """
    _silence_query_loggers()
    for name, value in spark_settings.spark_python().items():
        os.environ.setdefault(name, value)
    builder = SparkSession.builder.appName(app)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        chosen = master or spark_settings.master()
        builder = builder.master(chosen)
        for name, value in spark_settings.settings(chosen, size=size).items():
            builder = builder.config(name, value)
    try:
        with _said_to(log), _own_interrupts():
            return builder.getOrCreate()
    except Py4JJavaError as error:
        if _NO_SUBJECT in str(error):
            raise _too_new() from error
        raise


def _silence_query_loggers() -> None:
    """Keep pyspark from printing each error of a query to stderr as JSON with a stack trace, also
    those we handle.
    """
    for name in _QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _said_to(log: DriverLog | None) -> Iterator[None]:
    """Redirect stdout and stderr of processes that start in this block to `log`.

    PySpark starts the JVM with this process's file descriptors; the session builder has no option
    to change them.
    """
    if log is None:
        yield
        return
    reader, writer = os.pipe()
    log.pump(_lines(reader))  # ends when the JVM closes the pipe
    sys.stdout.flush()
    kept = [os.dup(stream) for stream in _STREAMS]
    try:
        for stream in _STREAMS:
            os.dup2(writer, stream)
        yield
    finally:
        for stream, own in zip(_STREAMS, kept, strict=True):
            os.dup2(own, stream)
            os.close(own)
        os.close(writer)


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep this process's SIGINT handler. A new SparkContext replaces it by one that cancels every
    job of the batch.
    """
    before = signal.getsignal(signal.SIGINT)
    yield
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _lines(descriptor: int) -> Iterator[str]:
    with os.fdopen(descriptor, errors="backslashreplace") as said:
        yield from said


def _too_new() -> TerminalError:
    home = os.environ.get("JAVA_HOME")
    return TerminalError(
        "java-too-new",
        tried="start Spark",
        found=f"the Java {f'of JAVA_HOME={home}' if home else 'on PATH'} is newer than 22, which Spark 4.1 can't use",
        changed="nothing",
        next="export JAVA_HOME=/path/to/java-17   # or 21; then the same command again",
    )


def stop(spark: SparkSession) -> None:
    """Stop a session. No-op if its JVM died: the step that ran has reported it."""
    with suppress(OSError, Py4JError):
        spark.stop()


def heap_bytes(spark: SparkSession) -> int:
    """Return the maximum heap of the driver's JVM in bytes."""
    return int(spark._jvm.java.lang.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]


def context_state() -> Literal["at work", "stopped", "gone"]:
    """Return the state of this process's Spark. During a step only a signal to its JVM, or its
    master, stops it.
    """
    context = SparkContext._active_spark_context
    try:
        if context is None:
            return "gone"
        return "stopped" if context._jsc.sc().isStopped() else "at work"
    except (Py4JError, OSError):
        return "gone"


def is_lost() -> bool:
    """Return whether this process had a Spark that no longer works."""
    return SparkContext._active_spark_context is not None and context_state() != "at work"


@contextmanager
def configured(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set session settings for a block, and restore the previous values.

    Delta's transaction settings (`txnAppId`, `txnVersion`) must not outlive their write: Delta
    silently skips a later write to the same table with the same pair.
    """
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
