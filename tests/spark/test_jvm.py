"""A job's JVM takes classes from the class-data archive of set-up, and one that it can't take disturbs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from draindown import jvm, sparkconf

_SESSION = "from draindown.spark.session import session; session('x', master='local[1]').stop(); print('{}')"


def test_a_class_archive_is_taken_for_its_own_class_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = sparkconf.class_archive()
    assert archive.is_file(), "set-up makes it"
    assert jvm.tried(archive) == "taken"

    (tmp_path / "spark-env.sh").touch()  # a directory that holds something is part of the class path
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert jvm.tried(archive) == "ignored"
    done = subprocess.run([sys.executable, "-c", _SESSION], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "{}\n"
    assert "Unable to use shared archive" in done.stderr


def test_a_torn_class_archive_is_fatal_and_told(tmp_path: Path) -> None:
    torn = tmp_path / "classes.jsa"
    torn.write_bytes(sparkconf.class_archive().read_bytes()[:10_000])
    assert jvm.tried(torn) == "fatal"


def test_where_no_java_starts_nothing_is_said_of_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jvm.tried(sparkconf.class_archive()) == "untried"
