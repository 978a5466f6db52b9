"""`jars.lock`: the jars that Spark needs besides the pyspark package, each with its hash. Reading
it needs no Spark.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from draindown.base.errors import TerminalError

LOCK_NAME = "jars.lock"
"""The name of the lock file, in the project root and beside the jars."""
_LINE = re.compile(r"([\w.\-]+):([\w.\-]+):([\w.\-]+) ([0-9a-f]{64}) ([0-9]+)")


@dataclass(frozen=True)
class LockedJar:
    """One line of `jars.lock`. `size` is in bytes."""

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
        """File name in the jar directory."""
        return f"{self.artifact}-{self.version}.jar"

    def is_at(self, path: Path) -> bool:
        """Return whether the file at `path` has the size and hash of this jar."""
        return (
            path.is_file() and path.stat().st_size == self.size and sha256_of(path) == self.sha256
        )


def locked_jars(lock: Path) -> tuple[LockedJar, ...]:
    """Return the jars of a lock file, in its order. Raises TerminalError `jars-missing` or
    `jars-lock-invalid`.
    """
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TerminalError(
            "jars-missing",
            tried=f"read {lock}",
            found=error.strerror or str(error),
            next="make setup",
        ) from error
    return tuple(
        _locked(lock, at, line)
        for at, line in enumerate(lines, 1)
        if line.strip() and line[0] != "#"
    )


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
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
