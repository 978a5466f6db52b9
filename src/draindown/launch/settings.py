"""Spark settings of every job as text, for both `spark-submit` and in-process sessions."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from draindown.base.errors import TerminalError
from draindown.base.run_size import RunSize

DEFAULT_MASTER = "local[*]"
DEFAULT_HEAP = "2g"
"""Driver heap if `DRAINDOWN_DRIVER_MEMORY` is not set."""
_YOUNG_PER_TASK = 32 * 1024**2
"""Young generation per concurrent task, in bytes, measured with two. One task gets as much as
two.
"""
JARS = (
    *("delta-spark", "delta-storage"),
    *("spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2"),
)
"""The jars on the class path of every job, by artifact name."""
_UNITS = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


# The measured effect of each setting: docs/performance.md.
_LEAN = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.explainMode": "simple",  # Spark renders each plan for the UI, even if the UI is off
    "spark.sql.session.timeZone": "UTC",
    # INT96, the default, is read in nanoseconds by others: 9999-12-31 and 0001-01-01 would be days
    # of 1816 and 1754
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.autoCompact.enabled": "false",
    # else Delta refuses a version by its age alone, even while all its files are there: those that
    # a derived flow or a fill of a sink reads are kept for it, and an unpublished one that a check
    # judges was the newest a moment before
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # larger Python data stays out of the plan: the optimizer would evaluate all rows of a local
    # relation at once
    "spark.sql.execution.arrow.localRelationThreshold": "1m",
    "spark.sql.variable.substitute": "false",  # otherwise a field named ${env:...} is replaced from the environment
    # else a crash within the first write of offsets, which leaves a draft, stops the query for good
    # (SPARK-53103); `Checkpoint.verify` and `refuse_lost` refuse batches of another query (decision
    # 070)
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credential",
    "spark.log.level": "WARN",
}
_ONE_MACHINE = {
    "spark.sql.shuffle.partitions": "2",  # on a cluster a session sets it to the executors' cores (`spark.cluster`)
    # each stage broadcasts its task, each scan its configuration; blocks of 4 MB outlive the young
    # generation
    "spark.broadcast.blockSize": "256k",
    "spark.buffer.pageSize": "2m",
    # the share of the heap that sorts, joins and persisted rows may use before they spill, at no
    # measurable cost
    "spark.memory.fraction": "0.25",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
}
_CLOCKS = "-Duser.timezone=UTC"
"""ORC's reader takes a wall clock for an instant in the zone of the JVM: here it is known, and
skips no hour.

Executors get it as TZ, since options of their JVM are the user's.
"""
_ALWAYS = (
    _CLOCKS,
    # the JVM's own messages, such as those about an unusable archive, must not mix with a command's
    # output
    "-Xlog:all=off:stdout",
    "-Xlog:all=warning:stderr",
    "-XX:+DisplayVMOutputToStderr",
    "-Xshare:auto",
    "-XX:MetaspaceSize=256m",  # Spark's classes exceed the default three times, each time with a full collection
)


_SERIAL = "-XX:+UseSerialGC"
_HUGE_METHODS = "-XX:-DontCompileHugeMethods"  # for a wide contract Spark generates one, which Java would interpret


# A large run collects thousands of times, with one thread and a small young generation for a sixth
# of its time. It also takes so long that all pays that C2 compiles.
_LARGE = ("-XX:+UseParallelGC", _HUGE_METHODS)


# With C1 only, the JVM reserves 48 MB of code cache. A dozen batches fill it; after that code is
# interpreted.
_FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")


# By default C2 takes two fifths of the CPU time of a million rows, half of that for code of the
# planner and of code generation. These thresholds compile a method after ten times as many calls,
# and never the few largest, which cost most.
_SPARING = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    "-XX:MaxNodeLimit=20000",
    _HUGE_METHODS,
)


# A heap that grows in small steps and shrinks above 30 % free is collected more often and stays
# smaller. In a large heap each of these collections would take seconds.
_TIGHT_HEAP = ("-XX:MinHeapFreeRatio=20", "-XX:MaxHeapFreeRatio=30")


def jar_dir() -> Path:
    """Return the directory of the verified jars: `$DRAINDOWN_JARS`, else one in this Python's
    prefix.
    """
    return Path(
        os.environ.get("DRAINDOWN_JARS") or Path(sys.prefix) / "share" / "draindown" / "jars"
    )


def class_archive() -> Path:
    """Return the path of the JVM's class-data archive, made at set-up. Without a usable one jobs
    only start slower.
    """
    return Path(
        os.environ.get("DRAINDOWN_CLASS_ARCHIVE")
        or Path(sys.prefix) / "share" / "draindown" / "classes.jsa"
    )


def spark_submit() -> Path:
    """Return `$DRAINDOWN_SPARK_SUBMIT`, else the one of this Python's prefix: one on PATH may be
    another version.
    """
    return Path(
        os.environ.get("DRAINDOWN_SPARK_SUBMIT") or Path(sys.prefix) / "bin" / "spark-submit"
    )


def spark_python() -> dict[str, str]:
    """Return the environment in which spark-submit and its workers use this Python and its
    packages.
    """
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def class_path() -> str:
    """Return the jars of Delta and Kafka for `spark.driver.extraClassPath`. Raises TerminalError
    `jars-missing`.

    All jobs have all of them, in one order, whatever their flow reads: the class-data archive is
    valid for one class path only.
    """
    directory = jar_dir()
    found = [next(iter(sorted(directory.glob(f"{name}[_-]*.jar"))), None) for name in JARS]
    if None in found:
        missing = [name for name, jar in zip(JARS, found, strict=True) if jar is None]
        raise TerminalError(
            "jars-missing",
            tried=f"find the jars of Delta and Kafka in {directory}",
            found=f"no {' and no '.join(missing)}",
            next="make setup",
        )
    return ":".join(str(jar) for jar in found)


def master() -> str:
    """Return the Spark master of the command line: `$DRAINDOWN_MASTER`, else all cores of this
    machine.
    """
    return os.environ.get("DRAINDOWN_MASTER") or DEFAULT_MASTER


def is_local(master: str) -> bool:
    """Return whether a master runs tasks in the driver's JVM. `local-cluster[...]` starts executors
    of its own.
    """
    return master.partition("[")[0] == "local"


def _executor_jars() -> dict[str, str]:
    """Return how executors get the jars of Delta and Kafka: from the driver, or from a directory of
    their images.

    Without them a task of Delta fails at an executor with a ClassCastException that names neither
    Delta nor jars.
    """
    if installed := os.environ.get("DRAINDOWN_EXECUTOR_JARS"):
        return {"spark.executor.extraClassPath": f"{installed.rstrip('/')}/*"}
    return {"spark.jars": class_path().replace(":", ",")}


def heap() -> str:
    """Return the driver's heap in Spark's notation."""
    return os.environ.get("DRAINDOWN_DRIVER_MEMORY") or DEFAULT_HEAP


def heap_bytes(text: str) -> int:
    """Return `2g` as bytes. Raises TerminalError `bad-memory`."""
    number, unit = text[:-1], text[-1:].lower()
    if unit not in _UNITS or not number.isdigit() or not int(number):
        raise TerminalError(
            "bad-memory",
            tried="read the driver's memory",
            found=f"{text!r}; write a number and k, m, g or t",
            next="export DRAINDOWN_DRIVER_MEMORY=2g",
        )
    return int(number) * _UNITS[unit]


def _fast_start() -> tuple[str, ...]:
    """Return the JVM flags of a small run.

    The heap starts at a quarter of its maximum, most of it young: a few collections instead of 40.
    """
    initial = heap_bytes(heap()) // 4 // 1024
    return _SERIAL, *_FAST_START, f"-Xms{initial}k", f"-Xmn{initial * 5 // 8}k"


def _whole_work(master: str) -> tuple[str, ...]:
    """Return the JVM flags of a medium run whose driver does all work.

    The young generation is smaller than the default third of the heap: the rows of a large batch
    are promoted at once.
    """
    if not is_local(master):
        return (_SERIAL,)
    named = re.match(r"local\[(\d+)", master)
    tasks = int(named[1]) if named else 1 if master == "local" else os.cpu_count() or 1
    size = heap_bytes(heap())
    tight = _TIGHT_HEAP if size <= heap_bytes(DEFAULT_HEAP) else ()
    return (
        _SERIAL,
        *_SPARING,
        *tight,
        f"-Xmn{min(max(tasks, 2) * _YOUNG_PER_TASK, size // 3) // 1024}k",
    )


def _flags(master: str, size: RunSize) -> tuple[str, ...]:
    if size == "small":
        return _fast_start()
    return _LARGE if size == "large" and is_local(master) else _whole_work(master)


def settings(
    master: str, *, size: RunSize = "medium", archive: str | None = None
) -> Mapping[str, str]:
    """Return all Spark settings of a job on `master`.

    `archive` is the JVM's option for the class-data archive. By default the existing archive is
    used.
    """
    if archive is None and class_archive().is_file():
        archive = f"-XX:SharedArchiveFile={class_archive()}"
    flags = [*([archive] if archive else []), *_ALWAYS, *_flags(master, size)]
    return {
        **_LEAN,
        **(
            _ONE_MACHINE
            if is_local(master)
            else {"spark.executorEnv.TZ": "UTC", **_executor_jars()}
        ),
        # Spark makes this directory, which stays empty, as soon as a catalog is asked: by default
        # in the project
        "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/draindown-{os.getuid()}-warehouse",
        "spark.driver.memory": heap(),
        "spark.driver.extraClassPath": class_path(),
        "spark.driver.extraJavaOptions": " ".join(flags),
    }
