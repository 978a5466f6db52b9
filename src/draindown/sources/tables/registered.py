"""The readers of a table: one document each in the home of the flow that writes it, with what it
must still read.

A reader writes its document before it pins versions, and again once it has read them; a rebuild of
it has a second one. A flow that rebuilt its own table has one for its sinks, which are compared
with the version from before (see `recovery.sink_bases`). Maintenance of the table keeps the files
that these documents name. A reader that stood still for GONE is let go.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from draindown.lake.commits import Commit
from draindown.lake.documents import Document
from draindown.lake.home import FlowHome
from draindown.sources.tables.upstream import changes_rows

BEHIND = timedelta(days=30)
"""A reader that has not read changes of this age is behind."""
GONE = timedelta(days=60)
"""A reader that has not read changes of this age is let go. The log is kept for 90 days."""
_LOST = "the reader writes it again when it drains next; until then old files may go that it needs"


@dataclass(frozen=True)
class Reader:
    """A flow that reads a table, by pipeline and name.

    Attributes:
        table_id: Delta's id of the table that it reads.
        version: it needs the changes of all later versions.
        snapshot: whether it needs the rows of that version, too, for a fill that it has begun.
        staged: the generation that a rebuild of the reader fills; 0 for its live one.
        sinks: whether it is the flow that writes the table, for its sinks.
    """

    pipeline: str
    flow: str
    table_id: str
    version: int
    snapshot: bool = False
    staged: int = 0
    sinks: bool = False

    def __str__(self) -> str:
        of = " (its rebuild)" if self.staged else " (its sinks)" if self.sinks else ""
        return f"{self.pipeline}/{self.flow}{of}"

    def needs(self, commit: Commit) -> bool:
        """Return whether the reader needs what a later commit added or removed."""
        return commit.version > self.version and (self.snapshot or changes_rows(commit))


@dataclass(frozen=True)
class Waiting:
    """What a table keeps for a reader. `since`: when the oldest commit was made that it needs; None
    without any.
    """

    reader: Reader
    since: datetime | None

    def age(self, now: datetime) -> timedelta:
        """Return how far the reader is behind."""
        return timedelta(0) if self.since is None else now - self.since


def readers(source: FlowHome) -> list[Reader]:
    """Return the registered readers of the table that a flow writes. Raises TerminalError
    `state-damaged`.
    """
    documents = [
        source.document(f"{source.readers}/{name}.json") for name in source.names(source.readers)
    ]
    found = [reader for document in documents if (reader := _read(document)) is not None]
    return [reader for reader in found if not reader.staged or _is_rebuilding(source, reader)]


def _is_rebuilding(source: FlowHome, reader: Reader) -> bool:
    """Return whether a rebuild of the reader is in progress. The document of one that ended or was
    aborted is void.
    """
    return replace(source.live, pipeline=reader.pipeline, flow=reader.flow).rebuild.exists


def waiting(source: FlowHome) -> list[Waiting]:
    """Return what each registered reader of the table needs. Readers of an earlier table of its
    name need nothing.
    """
    log = source.tables.target
    found = readers(source) if log.exists else []
    known = [reader.version for reader in found if reader.table_id == log.id]
    commits = log.commits_since(min(known)) if known and min(known) < log.version else []
    return [Waiting(one, _since(one, commits) if one.table_id == log.id else None) for one in found]


def _since(reader: Reader, commits: list[Commit]) -> datetime | None:
    times = (commit.timestamp for commit in commits if reader.needs(commit))
    oldest = min(times, default=None)
    return None if oldest is None else datetime.fromtimestamp(oldest / 1000, UTC)


def register(source: FlowHome, reader: Reader) -> None:
    """Write down what a reader is about to pin. What it needed of the same table before stays
    needed.
    """
    before = _read(_document(source, reader))
    if before is not None and (before.table_id, before.staged) == (reader.table_id, reader.staged):
        least, snapshot = min(before.version, reader.version), before.snapshot or reader.snapshot
        reader = replace(reader, version=least, snapshot=snapshot)
    if before != reader:
        _document(source, reader).write(asdict(reader))


def advance(source: FlowHome, reader: Reader) -> None:
    """Write down what a reader needs once it has read. No-op if it says the same already, or never
    registered.
    """
    before = _read(_document(source, reader))
    if before is not None and before != reader:
        _document(source, reader).write(asdict(reader))


def forget(source: FlowHome, pipeline: str, flow: str) -> None:
    """Delete the documents of a reader. No-op if there are none."""
    for staged in (False, True):
        source.reader(pipeline, flow, staged=staged).delete()


def _document(source: FlowHome, reader: Reader) -> Document:
    return source.reader(reader.pipeline, reader.flow, staged=bool(reader.staged))


def _read(document: Document) -> Reader | None:
    return document.parsed(lambda content: Reader(**content), without=_LOST)
