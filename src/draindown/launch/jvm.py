"""Check the JVM that jobs run in, without a Spark session: does it start, does it accept the
class-data archive?
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from draindown.base.errors import TerminalError
from draindown.launch import settings as spark_settings

Tried = Literal["taken", "ignored", "fatal", "untried"]
"""The JVM uses the archive, ignores it, fails to start with it, or fails to start (in time) without
it too.
"""
_FROM_ARCHIVE = "shared objects file (top)"
"""The source in Java's class loading log of a class loaded from an additional archive."""
_PATIENCE = 60  # seconds


def require() -> None:
    """Raise TerminalError `java-missing` if no Java starts."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        subprocess.run([java, "-version"], capture_output=True, check=True, timeout=_PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        raise TerminalError(
            "java-missing", tried=f"run {java}", found=str(error), next="make setup"
        ) from error


def tried(archive: Path) -> Tried:
    """Start a JVM with a job's options and this archive, and return whether it used the archive.

    A JVM ignores, almost silently, an archive that another Java made, or one for another class path
    (other jars, jars with another mtime, a settings directory that holds files). A truncated
    archive ends it.
    """
    try:
        loaded = _loaded(f"-XX:SharedArchiveFile={archive}")
        if loaded is None:
            return "untried" if _loaded("-Xshare:auto") is None else "fatal"
        return "taken" if _FROM_ARCHIVE in loaded else "ignored"
    except subprocess.TimeoutExpired:
        return "untried"


def _loaded(archive: str) -> str | None:
    """Return Java's log of the classes that a job's JVM loads under this option; None if it doesn't
    start.
    """
    options = spark_settings.settings("local[1]", size="small", archive=archive)
    with tempfile.TemporaryDirectory(prefix="draindown-jvm-") as scratch:
        flags = f"{options['spark.driver.extraJavaOptions']} -Xlog:class+load=info:file=classes"
        command = [str(spark_settings.spark_submit()), "--version"]
        for name in ("spark.driver.memory", "spark.driver.extraClassPath"):
            command += ["--conf", f"{name}={options[name]}"]
        command += ["--conf", f"spark.driver.extraJavaOptions={flags}"]
        env = os.environ | spark_settings.spark_python()
        try:
            # a JVM that crashes writes a report into its working directory
            subprocess.run(
                command, capture_output=True, check=True, timeout=_PATIENCE, cwd=scratch, env=env
            )
            return Path(scratch, "classes").read_text(encoding="utf-8", errors="replace")
        except (OSError, subprocess.CalledProcessError):
            return None
