"""Where numbers come from: the commit and the versions that were measured. Names no place of this
machine.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

from benchmarks.place import ROOT
from draindown.launch import settings as spark_settings

_MEASURED = ("src", "jobs", "dags", "benchmarks")
_PACKAGES = ("pyspark", "delta-spark", "deltalake", "apache-airflow")


def provenance() -> dict[str, str]:
    """What traces a result, by name."""
    packages = {name: version(name) for name in _PACKAGES}
    python = {"python": platform.python_version()}
    return {
        "commit": commit(ROOT),
        **python,
        **packages,
        "java": _java(),
        "heap": spark_settings.heap(),
    }


def commit(root: Path) -> str:
    """The commit, and which of the directories that matter were changed since: those of the results
    don't.
    """
    described = _said(["git", "describe", "--always", "--tags"], root).strip()
    if not described:
        return "unknown"
    paths = [*_MEASURED, ":(exclude)benchmarks/results", ":(exclude)*.md"]
    changed = _said(
        ["git", "status", "--porcelain", "--untracked-files=all", "--", *paths], root
    ).splitlines()
    tops = sorted({line[3:].strip('"').split("/")[0] for line in changed})
    return f"{described} with changes in {' and '.join(tops)}" if tops else described


def _java() -> str:
    """The version of the Java that runs Spark."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    told = re.search(r'version "([^"]+)"', _said([java, "-version"], ROOT))
    return told[1] if told else "unknown"


def _said(command: list[str], root: Path) -> str:
    """What a command prints; nothing where it is not there or fails."""
    try:
        done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""
