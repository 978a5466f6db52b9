"""A job's JVM takes classes from the class-data archive of set-up, and one that it can't take
disturbs nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.lake.home import FlowHome
from draindown.launch import jvm
from draindown.launch import settings as spark_settings
from draindown.ledger.table import recent
from draindown.spark.setup import class_archive

_SESSION = "from draindown.spark.session import session; session('x', master='local[1]').stop(); print('{}')"

_INTERRUPTED = """
import signal
from draindown.spark.session import session
signal.signal(signal.SIGINT, lambda number, frame: print("asked to end", flush=True))
spark = session("x", master="local[1]")
signal.raise_signal(signal.SIGINT)
print(spark.range(3).count())
spark.stop()
"""


@pytest.mark.long
def test_a_session_leaves_the_interrupt_to_its_process() -> None:
    # PySpark's own handler cancels all jobs, in the middle of a batch
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines() == ["asked to end", "3"], done.stderr[-2000:]


@pytest.mark.long
def test_a_whole_class_archive_is_taken_for_its_own_class_path_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = spark_settings.class_archive()
    if not held.is_file():
        pytest.skip("set-up could make none with this Java")
    for name in (
        "PYSPARK_PYTHON",
        "PYSPARK_DRIVER_PYTHON",
    ):  # nor is any of an environment's programs on the PATH
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    assert jvm.tried(held) == "taken"
    torn = tmp_path / "classes.jsa"
    torn.write_bytes(held.read_bytes()[:10_000])
    assert jvm.tried(torn) == "fatal"

    (
        tmp_path / "spark-env.sh"
    ).touch()  # a directory that holds something is part of the class path
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert jvm.tried(held) == "ignored"
    done = subprocess.run(
        [sys.executable, "-c", _SESSION], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "{}\n"
    assert "Unable to use shared archive" in done.stderr


@pytest.mark.long
def test_the_exercise_derives_a_table_too(spark: SparkSession, tmp_path: Path) -> None:
    """Or the JVM of a derived flow would load from its jars the classes that a landing flow does
    not need.
    """
    class_archive.exercise(spark, tmp_path)
    layout = FlowHome(str(tmp_path / "project" / "lake"), "exercise", "hours", "hours")
    rows = recent(layout, 9)
    assert [(row.form, row.kind) for row in rows] == [("derive", "drain")] * 3
    assert rows[0].inserted and all(row.inserted and row.deleted for row in rows[1:]), (
        "the last two are MERGEs"
    )
    orders = layout.tables.other("exercise").row_count
    assert layout.tables.target.rows("select sum(orders) as n from t") == [{"n": orders}] and orders


def test_where_no_java_starts_nothing_is_said_of_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jvm.tried(spark_settings.class_archive()) == "untried"


def test_an_archive_that_no_jvm_takes_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "classes.jsa"
    held.write_text("older")

    def run(command: list[str], **_: object) -> None:
        option = next(part for part in command if "ArchiveClassesAtExit" in part)
        Path(option.split("ArchiveClassesAtExit=")[1].split()[0]).write_text("fresh")

    monkeypatch.setattr(class_archive.subprocess, "run", run)
    monkeypatch.setattr(jvm, "tried", lambda path: "ignored")
    with pytest.raises(TerminalError, match="it takes no class from it"):
        class_archive.make(held)
    assert held.read_text() == "older"
    monkeypatch.setattr(jvm, "tried", lambda path: "taken")
    assert class_archive.make(held).read_text() == "fresh"
