"""`jars.lock`: the jars that Spark needs beside pip's pyspark, each with its hash. Needs no Spark to be read."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from draindown.base.errors import TerminalError

LOCK_NAME = "jars.lock"
"""The lock's name, at the project's root and beside the jars."""
_LINE = re.compile(r"([\w.\-]+):([\w.\-]+):([\w.\-]+) ([0-9a-f]{64}) ([0-9]+)")


@dataclass(frozen=True)
class LockedJar:
    """One line of `jars.lock`. `size` in bytes."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def coordinates(self) -> str:
        """`group:artifact:version`, as people write it."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """Name in the jar directory."""
        return f"{self.artifact}-{self.version}.jar"

    def is_at(self, path: Path) -> bool:
        """Whether the file at `path` is this jar, byte for byte."""
        return path.is_file() and path.stat().st_size == self.size and sha256_of(path) == self.sha256


def locked_jars(lock: Path) -> tuple[LockedJar, ...]:
    """The jars a lock file pins, in its order. Raises TerminalError `jars-missing` or `jars-lock-invalid`."""
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TerminalError(
            "jars-missing", tried=f"read {lock}", found=error.strerror or str(error), next="make setup"
        ) from error
    return tuple(_locked(lock, at, line) for at, line in enumerate(lines, 1) if line.strip() and line[0] != "#")


def _locked(lock: Path, at: int, line: str) -> LockedJar:
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise TerminalError(
            "jars-lock-invalid",
            tried=f"read {lock}:{at}",
            found=f"{line!r}; expected `group:artifact:version sha256 size`",
            next=f"git checkout {lock.name} && make setup",
        )
    group, artifact, version, sha256, size = match.groups()
    return LockedJar(group, artifact, version, sha256, int(size))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
