"""Spark settings of every job, as plain text: one place for `spark-submit` lines and in-process sessions alike."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from draindown.base.errors import TerminalError

DEFAULT_HEAP = "2g"
"""Driver heap where `DRAINDOWN_DRIVER_MEMORY` doesn't say otherwise."""
_YOUNG_PER_TASK = 32 * 1024**2
"""Bytes for each task at a time, measured with two; one has as much as two, for the driver's own threads."""
_DELTA_JARS = ("delta-spark", "delta-storage")
_UNITS = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


# Why each is set, measured on small and large drains: docs/performance.md.
_LEAN = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.explainMode": "simple",  # each plan is put into words for a UI, whether there is one or not
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # rows of Python's that are more than this are no part of a plan, whose optimizer would work on all of them at once
    "spark.sql.execution.arrow.localRelationThreshold": "1m",
    "spark.sql.variable.substitute": "false",  # or a field named ${env:...} becomes what the environment holds
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credential",
    "spark.log.level": "WARN",
}
_ONE_MACHINE = {
    # each stage broadcasts its task, each scan its configuration: in blocks of 4 MB, which outlive the young generation
    "spark.broadcast.blockSize": "256k",
    "spark.buffer.pageSize": "2m",
    # what sorts, joins and kept rows may take of the heap before they go on to disk, at no cost that could be measured
    "spark.memory.fraction": "0.25",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
}
_ALWAYS = (
    # what the JVM has to say, of an archive that it can't use for one, is no part of a command's output
    "-Xlog:all=off:stdout",
    "-Xlog:all=warning:stderr",
    "-XX:+DisplayVMOutputToStderr",
    "-Xshare:auto",
    "-XX:+UseSerialGC",
    "-XX:MetaspaceSize=256m",  # Spark's classes fill the default thrice over, each time with a full collection
)


# With one compiler the JVM reserves 48 MB for its code; a dozen batches fill that, and then it only interprets.
_FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")


# By default the second compiler takes two fifths of the CPU time of a million rows, half of that for code that plans or
# makes code: a method must run ten times as often to be worth it, and the few largest, which cost most, never are. What
# Spark generates for a wide contract is one huge method, though, which would be interpreted for good.
_SPARING = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    "-XX:MaxNodeLimit=20000",
    "-XX:-DontCompileHugeMethods",
)


# A heap that grows less at a time, and gives back what is free beyond three tenths, is collected more often and ends
# smaller; a large one would be for seconds at once.
_TIGHT_HEAP = ("-XX:MinHeapFreeRatio=20", "-XX:MaxHeapFreeRatio=30")


def jar_dir() -> Path:
    """Directory of the verified jars: `$DRAINDOWN_JARS`, else beside this Python's own packages."""
    return Path(os.environ.get("DRAINDOWN_JARS") or Path(sys.prefix) / "share" / "draindown" / "jars")


def class_archive() -> Path:
    """The JVM's class-data archive, made at set-up; a missing or foreign one only costs time."""
    return Path(os.environ.get("DRAINDOWN_CLASS_ARCHIVE") or Path(sys.prefix) / "share" / "draindown" / "classes.jsa")


def spark_submit() -> Path:
    """`$DRAINDOWN_SPARK_SUBMIT`, else the one that belongs to this Python: one on the PATH may be another version."""
    return Path(os.environ.get("DRAINDOWN_SPARK_SUBMIT") or Path(sys.prefix) / "bin" / "spark-submit")


def spark_python() -> dict[str, str]:
    """Environment in which spark-submit finds its Spark, and workers their packages: this Python's."""
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def class_path() -> str:
    """Delta's jars for `spark.driver.extraClassPath`. Raises TerminalError `jars-missing`."""
    directory = jar_dir()
    found = [next(iter(sorted(directory.glob(f"{name}[_-]*.jar"))), None) for name in _DELTA_JARS]
    if None in found:
        missing = [name for name, jar in zip(_DELTA_JARS, found, strict=True) if jar is None]
        raise TerminalError(
            "jars-missing",
            tried=f"find Delta's jars in {directory}",
            found=f"no {' and no '.join(missing)}",
            next="make setup",
        )
    return ":".join(str(jar) for jar in found)


def heap() -> str:
    """The driver's heap in Spark's notation."""
    return os.environ.get("DRAINDOWN_DRIVER_MEMORY") or DEFAULT_HEAP


def heap_bytes(text: str) -> int:
    """`2g` as bytes. Raises TerminalError `bad-memory`."""
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
    """Flags of a short run: a heap that starts at a quarter, most of it young, is collected a few times, not 40."""
    initial = heap_bytes(heap()) // 4 // 1024
    return *_FAST_START, f"-Xms{initial}k", f"-Xmn{initial * 5 // 8}k"


def _whole_work(master: str) -> tuple[str, ...]:
    """Flags of a long run where the driver does all work.

    Its young generation is no third of the heap, as by default: the rows of a large batch are not in it, they are old
    at once.
    """
    if not master.startswith("local"):
        return ()
    named = re.match(r"local\[(\d+)", master)
    tasks = int(named[1]) if named else 1 if master == "local" else os.cpu_count() or 1
    size = heap_bytes(heap())
    tight = _TIGHT_HEAP if size <= heap_bytes(DEFAULT_HEAP) else ()
    return *_SPARING, *tight, f"-Xmn{min(max(tasks, 2) * _YOUNG_PER_TASK, size // 3) // 1024}k"


def settings(master: str, *, short: bool = False, archive: str | None = None) -> Mapping[str, str]:
    """All Spark settings of a job on `master`; `short` trades peak speed for a faster start.

    `archive`: the JVM's option about the class-data archive, unless it shall use the one that is there.
    """
    if archive is None and class_archive().is_file():
        archive = f"-XX:SharedArchiveFile={class_archive()}"
    flags = [*([archive] if archive else []), *_ALWAYS, *(_fast_start() if short else _whole_work(master))]
    local = _ONE_MACHINE if master.startswith("local") else {}
    return {
        **_LEAN,
        **local,
        "spark.driver.memory": heap(),
        "spark.driver.extraClassPath": class_path(),
        "spark.driver.extraJavaOptions": " ".join(flags),
    }
