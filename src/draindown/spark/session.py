"""The only place that builds a Spark session."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.launch import settings as spark_settings

DEFAULT_MASTER = "local[*]"
_NO_SUBJECT = "getSubject is not supported"
"""How every Java after 22 answers the Hadoop that Spark 4.1 brings."""
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For little data: generating and compiling code for a plan takes longer than interpreting it (docs/performance.md)."""


def session(app: str, *, master: str | None = None, short: bool = False) -> SparkSession:
    """A classic session with Delta, ready for a job.

    Under spark-submit the JVM runs already and its own settings stand; otherwise a JVM is started here with
    draindown's. Raises TerminalError `jars-missing` where set-up is incomplete, `java-too-new` where Spark can't start.
    """
    for name, value in spark_settings.spark_python().items():
        os.environ.setdefault(name, value)
    builder = SparkSession.builder.appName(app)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        chosen = master or os.environ.get("DRAINDOWN_MASTER") or DEFAULT_MASTER
        builder = builder.master(chosen)
        for name, value in spark_settings.settings(chosen, short=short).items():
            builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Py4JJavaError as error:
        if _NO_SUBJECT in str(error):
            raise _too_new() from error
        raise


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
    """Stop a session; nothing to do where its JVM died: who was at work has said so."""
    with suppress(OSError, Py4JError):
        spark.stop()


def heap_bytes(spark: SparkSession) -> int:
    """The most memory the driver's JVM may use for objects."""
    return int(spark._jvm.java.lang.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]


@contextmanager
def configured(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set session settings for a block and put back what was there.

    Delta's transaction ids stay in force until unset, and a later write with the same id is dropped silently.
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
