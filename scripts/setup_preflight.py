"""Requirements of set-up, checked before it changes anything: Python, Java, disk space. Standard
library only.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from draindown.base.errors import TerminalError

OLDEST_PYTHON = (3, 11)
OLDEST_JAVA, NEWEST_JAVA = (
    17,
    22,
)  # Spark 4.1's Hadoop fails to start on Java 23 and newer (HADOOP-19212)


def choose_python(version=sys.version_info[:2], which=shutil.which):
    """Return the path of a suitable Python: this one, else a newer one on PATH.

    Raises `python-too-old` or `python-no-venv`.
    """
    if version >= OLDEST_PYTHON:
        if importlib.util.find_spec("ensurepip") is None:
            name = f"python{version[0]}.{version[1]}-venv"
            raise TerminalError(
                "python-no-venv",
                tried="make a virtual environment",
                found=f"{sys.executable} has no ensurepip module",
                next=f"sudo apt-get install {name}   # or your system's name for it",
            )
        return _outside_environments()
    for minor in range(11, 15):
        found = which(f"python3.{minor}")
        if found and quiet([found, "-c", "import ensurepip, venv"]).returncode == 0:
            return found
    wanted = ".".join(map(str, OLDEST_PYTHON))
    raise TerminalError(
        "python-too-old",
        tried=f"find Python {wanted} or newer",
        found=f"{sys.executable} is {'.'.join(map(str, version))}, and PATH has no newer one",
        next=[
            "make setup PYTHON=/path/to/python3.11",
            "sudo apt-get install python3.11 python3.11-venv",
        ],
    )


def _outside_environments():
    """Return this Python's real path. In an activated `.venv` its `python3` is a link that set-up
    replaces.
    """
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def find_java(environ=os.environ):
    """Return path and version of the Java that Spark will use.

    Raises `java-missing`, `java-home-wrong`, `java-too-old`, `java-too-new` or `java-broken`.
    """
    home = environ.get("JAVA_HOME")
    java = (
        os.path.join(home, "bin", "java")
        if home
        else shutil.which("java", path=environ.get("PATH", ""))
    )
    advice = _java_advice()
    if home and not os.access(java, os.X_OK):
        raise TerminalError(
            "java-home-wrong",
            tried="find Java by JAVA_HOME",
            found=f"no program {java}",
            next=["unset JAVA_HOME   # to take java from PATH", *advice],
        )
    if not java:
        raise TerminalError(
            "java-missing",
            tried="find `java` by JAVA_HOME and PATH",
            found="JAVA_HOME is not set, no java on PATH",
            next=advice,
        )
    text = quiet([java, "-version"]).stdout
    version = java_version(text)
    if not _will_do(version):
        raise TerminalError(
            "java-broken"
            if version is None
            else "java-too-old"
            if version < OLDEST_JAVA
            else "java-too-new",
            tried=f"find a Java that Spark runs on: {OLDEST_JAVA} to {NEWEST_JAVA}",
            found=f"{java} is version {version}"
            if version
            else f"{java} says {text.strip()[:100]!r}",
            next=advice,
        )
    return java, re.search(r'"(.+?)"', text).group(1)


def _will_do(version):
    return version is not None and OLDEST_JAVA <= version <= NEWEST_JAVA


def java_version(text):
    """Return the major version from the output of `java -version` (1.8 is 8), or None."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def _java_advice(homes=Path("/usr/lib/jvm")):
    for java in sorted(homes.glob("*/bin/java")):
        if _will_do(java_version(quiet([str(java), "-version"]).stdout)):
            return [f"export JAVA_HOME={java.parent.parent}"]
    if platform.system() == "Darwin":
        return ["brew install openjdk@17 && export JAVA_HOME=$(brew --prefix openjdk@17)"]
    return [
        "sudo apt-get install openjdk-17-jre-headless   # or your system's name for Java 17, or set JAVA_HOME"
    ]


def check_disk(places, usage=shutil.disk_usage):
    """Check free space: `places` maps directories to the GB they need. Raises `disk-full`."""
    for place, need in places.items():
        free = usage(_nearest(place)).free / 1e9
        if free < need:
            raise TerminalError(
                "disk-full",
                tried=f"find {need:.1f} GB for packages and jars in {place}",
                found=f"{free:.1f} GB free",
                next=[
                    "df -h .",
                    "XDG_CACHE_HOME=/roomy/disk make setup   # moves the package cache",
                ],
            )


def _nearest(path):
    return next(parent for parent in (path, *path.parents) if parent.exists())


def quiet(command):
    """Run a short command and return its output, from both streams."""
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
