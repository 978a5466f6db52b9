"""The project's record of the lakes that its pipelines have used, in `.draindown/` of the project."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from draindown.lake.documents import Document

_RECORDS = Path(".draindown", "lakes")


@dataclass(frozen=True)
class Record:
    """A lake that a pipeline of the project has used: its path and id, and the pipeline."""

    lake: str
    id: str
    pipeline: str

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Return the record in a document. Raises LookupError."""
        return cls(str(content["lake"]), str(content["id"]), str(content["pipeline"]))


def records(root: Path) -> list[Record]:
    """Return the lakes on record in a project, without unreadable records. Raises TerminalError
    `state-damaged`.
    """
    return list(_readable(root / _RECORDS))


def _readable(home: Path) -> Iterator[Record]:
    with suppress(OSError):
        for path in sorted(home.glob("*.json")) if home.is_dir() else ():
            found = Document(str(path)).parsed(
                Record.of, without="the next run writes it again", copied=False
            )
            if found:
                yield found


def remember(root: Path, record: Record) -> None:
    """Record a lake in the project. No-op if the directory is no project, or can't be written."""
    home = root / _RECORDS
    if not keeps_records(root):
        return
    path = (
        home
        / f"{hashlib.sha256(f'{record.lake}|{record.pipeline}'.encode()).hexdigest()[:24]}.json"
    )
    with suppress(OSError):
        home.mkdir(mode=0o755, parents=True, exist_ok=True)
        ignored = home.parent / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")
        Document(str(path)).write(asdict(record))
        path.chmod(0o644)


def forget(root: Path) -> None:
    """Remove all records of a project: its pipelines begin as in a new clone."""
    for path in (root / _RECORDS).glob("*.json"):
        path.unlink(missing_ok=True)


def keeps_records(root: Path) -> bool:
    """Return whether a directory is a project, and this user may write its records."""
    if not (root / "dags" / "pipelines").is_dir() and not (root / "jobs").is_dir():
        return False
    home = root / _RECORDS
    there = next(place for place in (home, home.parent, root) if os.path.lexists(place))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
