"""The JVM that jobs run in, asked without a Spark session: whether it is there, and takes the class-data archive."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from draindown.base.errors import TerminalError
from draindown.launch import settings as spark_settings

Tried = Literal["taken", "ignored", "fatal", "untried"]
"""Classes come from the archive, or don't; or no JVM starts with it; or none starts (in time) without it either."""
_FROM_ARCHIVE = "shared objects file (top)"
"""What Java's log says of a class that it took from an archive beside its own."""
_PATIENCE = 60  # seconds


def require() -> None:
    """Raise TerminalError `java-missing` where no Java starts."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        subprocess.run([java, "-version"], capture_output=True, check=True, timeout=_PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        raise TerminalError("java-missing", tried=f"run {java}", found=str(error), next="make setup") from error


def tried(archive: Path) -> Tried:
    """What becomes of a JVM that is started as a job's is, with this archive.

    One that another Java made, or one for another class path (other jars, jars of another time, a directory of settings
    that holds files), it ignores, all but in silence. A torn one ends it.
    """
    try:
        loaded = _loaded(f"-XX:SharedArchiveFile={archive}")
        if loaded is None:
            return "untried" if _loaded("-Xshare:auto") is None else "fatal"
        return "taken" if _FROM_ARCHIVE in loaded else "ignored"
    except subprocess.TimeoutExpired:
        return "untried"


def _loaded(archive: str) -> str | None:
    """Java's log of the classes that a job's JVM loads under this option; None if it doesn't start."""
    options = spark_settings.settings("local[1]", short=True, archive=archive)
    with tempfile.TemporaryDirectory(prefix="draindown-jvm-") as scratch:
        flags = f"{options['spark.driver.extraJavaOptions']} -Xlog:class+load=info:file=classes"
        command = [str(spark_settings.spark_submit()), "--version"]
        for name in ("spark.driver.memory", "spark.driver.extraClassPath"):
            command += ["--conf", f"{name}={options[name]}"]
        command += ["--conf", f"spark.driver.extraJavaOptions={flags}"]
        env = os.environ | spark_settings.spark_python()
        try:
            # a JVM that ends badly leaves a report where it was started
            subprocess.run(command, capture_output=True, check=True, timeout=_PATIENCE, cwd=scratch, env=env)
            return Path(scratch, "classes").read_text(encoding="utf-8", errors="replace")
        except (OSError, subprocess.CalledProcessError):
            return None
