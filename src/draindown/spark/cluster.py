"""The executors of a cluster: their number, cores and memory, and whether they see what the driver
sees.

A local lake on a cluster of several hosts without a shared mount would be silently wrong: an
executor's file lands on the executor's disk, and the commit names it all the same. So each step on
a cluster begins with a probe.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import InheritableThread, SparkContext
from pyspark.sql import SparkSession

from draindown.base.errors import DraindownError, TerminalError, TransientError, first_line, said
from draindown.base.formatting import count, shortened, size
from draindown.config.units import parse_duration, show_duration
from draindown.lake.lost_files import lost_files
from draindown.lake.table import Table
from draindown.launch.settings import is_local
from draindown.runs.request import Request
from draindown.sources.registry import source_of
from draindown.spark import session
from draindown.spark.sql import hadoop_path
from draindown.spark.tuning import PARTITIONS

_WAIT = "DRAINDOWN_EXECUTOR_WAIT"
_PATIENCE = "10 minutes"
"""How long to wait for the first executor: a busy cluster queues applications, an elastic one
starts machines.
"""
_PROBED = "spark.draindown.probed"
"""Session setting: the lake that this session's executors have been found to share, and their
ids.
"""
_ROUNDS = 3
_DRIVER = "driver"
_NO_CLASSES = ("DefaultSerializationProxy", "ClassNotFoundException", "NoClassDefFoundError")
_CLOSED = ("Mkdirs failed", "Permission denied")
_UNSEEN = ("FileNotFoundException", "No such file", "does not exist", *_CLOSED)
_OTHER_PYTHON = ("PYTHON_VERSION_MISMATCH", "Cannot run program")


@dataclass(frozen=True)
class Executors:
    """The executors that are registered now. `hosts`: each once, sorted; `cores`: of all; `heap`:
    bytes of each.
    """

    number: int
    cores: int
    heap: int
    hosts: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{count(self.number, 'executor')}, {count(self.cores, 'core')}, {size(self.heap)} each"
        )


def executors(context: SparkContext) -> Executors | None:
    """Return the executors of a cluster, or None on a local master, whose only executor is the
    driver.
    """
    if is_local(str(context.master)):
        return None
    found = _registered(context)
    heap = int(context._jsc.sc().executorMemory()) * 1024**2
    hosts = sorted({str(one.hostPort()).rpartition(":")[0] for one in found})
    return Executors(len(found), sum(int(one.totalCores()) for one in found), heap, tuple(hosts))


def described() -> str:
    """Return the master and executors of this process's Spark in words; empty on a local master, or
    without Spark.
    """
    context = SparkContext._active_spark_context
    if context is None:
        return ""
    try:
        registered = executors(context)
    except Exception:  # noqa: BLE001 - that a cluster is gone must not hide what ended the step
        return ""
    return "" if registered is None else f"{context.master}, {registered}"


@dataclass(frozen=True)
class Workers:
    """The JVMs that run tasks and hold the rows of a batch. `heap`: bytes of each."""

    number: int
    heap: int

    @property
    def memory(self) -> int:
        """Bytes of heap of all."""
        return self.number * self.heap


def workers(spark: SparkSession) -> Workers:
    """Return the executors of a cluster, at least one, or the driver on a local master."""
    found = executors(spark.sparkContext)
    return (
        Workers(1, session.heap_bytes(spark))
        if found is None
        else Workers(max(found.number, 1), found.heap)
    )


def refuse_other_python(error: BaseException, transform: str) -> None:
    """Raise TerminalError `executors-lack-python` if a task failed because it found no Python, or
    another version.
    """
    text = said(error)
    if any(sign in text for sign in _OTHER_PYTHON):
        line = next(
            line.strip(": ")
            for line in text.splitlines()
            if any(sign in line for sign in _OTHER_PYTHON)
        )
        raise TerminalError(
            "executors-lack-python",
            tried=f"run the Python code of transform {transform} in tasks",
            found=f"they need {os.environ.get('PYSPARK_PYTHON', 'python3')}, the driver's: {shortened(line)}",
            changed="nothing of this batch is in the table",
            next=[
                "install that Python with its packages at that path on all workers, or name another by PYSPARK_PYTHON",
                "write the transform without a UDF: then executors need no Python",
            ],
        ) from error


def refuse_unfit(spark: SparkSession, request: Request) -> None:
    """Refuse a cluster whose executors lack Delta, or don't see the lake or the landing directory.
    No-op if local.

    Writes a small Delta table into the flow's home by tasks on all executors, looks for its files
    here, and has executors read it, and files of the source, back. Again in a later step if another
    executor has joined. Then a shuffle gets a partition per core.

    Raises TransientError `no-executors` if none registers within `$DRAINDOWN_EXECUTOR_WAIT` (10
    minutes), `cluster-gone`; TerminalError `executors-lack-jars`, `lake-not-shared`,
    `landing-not-shared`, `bad-wait`.
    """
    lake = request.layout.lake
    if is_local(str(spark.sparkContext.master)) or _is_probed(spark, lake):
        return
    request.layout.make()
    probe = Path(request.layout.probe(request.start))
    probe.mkdir(mode=0o700)  # as the directories of its tables are that hold data of records
    try:
        _probe_lake(spark, request, probe, _patience())
        _probe_landing(spark, request)
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    found = executors(spark.sparkContext)
    spark.conf.set(PARTITIONS, str(max(found.cores if found else 1, 2)))
    spark.conf.set(_PROBED, json.dumps([lake, _ids(spark)]))


def _is_probed(spark: SparkSession, lake: str) -> bool:
    known = json.loads(spark.conf.get(_PROBED, None) or "[null, []]")
    return known[0] == lake and set(_ids(spark)) <= set(known[1])


def _ids(spark: SparkSession) -> list[str]:
    return [str(one.id()) for one in _registered(spark.sparkContext)]


def _patience() -> int:
    text = os.environ.get(_WAIT) or _PATIENCE
    try:
        return parse_duration(text)
    except ValueError as error:
        found, next_ = f"{_WAIT}: {error}", f"export {_WAIT}='{_PATIENCE}'"
        raise TerminalError(
            "bad-wait", tried="wait for executors", found=found, next=next_
        ) from error


def _probe_lake(spark: SparkSession, request: Request, probe: Path, patience: int) -> None:
    table = str(probe / "table")
    with _explained(spark, request, lambda detail: _lake_unseen(spark, request, detail)):
        for _ in range(_ROUNDS):
            _awaiting_executors(spark, request, patience, lambda: _write(spark, table))
            if all(int(one.completedTasks()) for one in _registered(spark.sparkContext)):
                break
        log = Table(table)
        if unseen := lost_files(log):
            number = log.added_files().num_rows
            raise _lake_unseen(
                spark, request, f"{len(unseen)} of {number} files that they wrote are not here"
            )
        spark.read.format("delta").load(table).collect()


def _write(spark: SparkSession, table: str) -> None:
    """Write a row by each task, two tasks a core."""
    tasks = 2 * int(spark.sparkContext.defaultParallelism)
    spark.range(0, tasks, 1, tasks).write.format("delta").mode("append").save(table)


def _awaiting_executors(
    spark: SparkSession, request: Request, patience: int, work: Callable[[], None]
) -> None:
    """Run `work`, but give up if no executor registers in time: Spark itself would wait forever."""
    context, failures = spark.sparkContext, list[BaseException]()
    group = f"probe {request.start}"

    def run() -> None:
        context.setJobGroup(group, "do executors see the lake?", interruptOnCancel=True)
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            failures.append(error)

    # with dynamic allocation executors start only once a job waits, so the job comes first
    worker = InheritableThread(target=run, daemon=True)
    worker.start()
    worker.join(patience)
    if worker.is_alive() and not _registered(context):
        context.cancelJobGroup(group)
        raise _no_executors(spark, patience)
    worker.join()
    if failures:
        raise failures[0]


def _probe_landing(spark: SparkSession, request: Request) -> None:
    named = source_of(request).named
    files = named.samples(2 * int(spark.sparkContext.defaultParallelism)) if named else []
    if not files:
        return
    with _explained(spark, request, lambda detail: _landing_unseen(spark, request, files, detail)):
        # its reader asks the file system for each file's status at an executor, and opens none for
        # these columns
        frame = spark.read.format("binaryFile").load([hadoop_path(path) for path in files])
        frame.select("path", "length").collect()


@contextmanager
def _explained(
    spark: SparkSession, request: Request, unseen: Callable[[str], DraindownError]
) -> Iterator[None]:
    try:
        yield
    except DraindownError:
        raise
    except Exception as error:
        text, context = said(error), spark.sparkContext
        if session.context_state() != "at work":
            raise gone(context, request, error) from error
        if any(sign in text for sign in _NO_CLASSES):
            raise _no_jars(spark, error) from error
        if any(sign in text for sign in _UNSEEN):
            raise unseen(shortened(_cause(text))) from error
        raise


def _cause(text: str) -> str:
    """Return the line of Spark's message that names the file: that of the first sign of a missing
    one.
    """
    lines = text.splitlines()
    return next(
        (line.strip(": ") for line in lines if any(sign in line for sign in _UNSEEN)),
        "".join(lines[:1]),
    )


def _registered(context: SparkContext) -> list[Any]:
    """Return Spark's summaries of the executors that are registered now, without the driver's
    own.
    """
    found = context._jsc.sc().statusStore().executorList(True)
    return [
        one for one in (found.apply(i) for i in range(found.size())) if str(one.id()) != _DRIVER
    ]


def gone(context: SparkContext, request: Request, error: BaseException) -> TransientError:
    """Return the error of a cluster that ended the application, or that no longer answers."""
    return TransientError(
        "cluster-gone",
        tried=f"{request.step} flow {request.flow} of pipeline {request.spec.pipeline} on {context.master}",
        found=f"the master ended the application, or does not answer: {shortened(first_line(error))}",
        changed="whole batches only; the same command goes on after the last one",
        next=request.resume,
    )


def _no_executors(spark: SparkSession, patience: int) -> TransientError:
    context = spark.sparkContext
    conf, memory = context.getConf(), context._jsc.sc().executorMemory()
    cores = conf.get("spark.executor.cores", "all of a worker")
    waited = show_duration(patience)
    return TransientError(
        "no-executors",
        tried=f"run a task on {context.master}",
        found=f"no executor registered within {waited}; asked for {memory} MiB of memory each, cores: {cores}",
        changed="nothing",
        next=[
            "look at the master's page: are workers alive, with so much memory and a core free?",
            "set spark.executor.memory and spark.executor.cores in spark-defaults.conf, then the same command again",
        ],
    )


def _no_jars(spark: SparkSession, error: BaseException) -> TerminalError:
    conf = spark.sparkContext.getConf()
    place = (
        conf.get("spark.executor.extraClassPath", "")
        or f"the driver, by spark.jars ({conf.get('spark.jars', '')})"
    )
    return TerminalError(
        "executors-lack-jars",
        tried=f"write a Delta table by executors of {spark.sparkContext.master}",
        found=f"they have no Delta, or another; they look in {place}: {shortened(first_line(error))}",
        changed="nothing",
        next=[
            "unset DRAINDOWN_EXECUTOR_JARS   # the driver sends its jars to executors",
            "put the jars of draindown's jars.lock there, on every host",
        ],
    )


def _lake_unseen(spark: SparkSession, request: Request, detail: str) -> TerminalError:
    lake, home = request.layout.lake, Path(request.layout.home)
    whose = _owner(home)
    if any(sign in detail for sign in _CLOSED):
        detail += f"; on this host {home} is {whose}'s and closed to others"
    return TerminalError(
        "lake-not-shared",
        tried=f"write to the lake {lake} by executors and read it back, {_where(spark)}",
        found=detail,
        changed="nothing",
        next=f"mount {lake} at the same path on this host and on all workers, and run these as {whose}: "
        "the directories of a flow are closed to others   # then the same command again",
    )


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # a user of a container has a number, and perhaps no name
        return f"user {path.stat().st_uid}"


def _landing_unseen(
    spark: SparkSession, request: Request, files: Sequence[str], detail: str
) -> TerminalError:
    home = Path(files[0]).parent
    return TerminalError(
        "landing-not-shared",
        tried=f"look at {count(len(files), 'file')} of flow {request.flow} in {home} by executors, {_where(spark)}",
        found=detail,
        changed="nothing",
        next=f"mount {home} at the same path on all workers, readable by the user that executors run as"
        "   # then the same command again",
    )


def _where(spark: SparkSession) -> str:
    found = executors(spark.sparkContext)
    return (
        f"on {', '.join(found.hosts)}"
        if found and found.hosts
        else f"of {spark.sparkContext.master}"
    )
