"""The note of a batch that lets refused rows through: written before its commit, settled once the commit is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from draindown.lake import documents
from draindown.lake.documents import kept, write_json
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import log_of
from draindown.lake.transactions import WriterId


@dataclass(frozen=True)
class Pending:
    """Quarantine ids that are released when the target holds `batch` of `app`, a transaction id.

    `read_again`: the batch read their files again, rather than the rows of the quarantine.
    """

    app: str
    batch: int
    run_id: str
    ids: tuple[str, ...]
    read_again: bool = False

    def is_applied(self, layout: FlowLayout) -> bool:
        """Whether the target holds the batch."""
        newest = log_of(layout, layout.table).last(WriterId(self.app))
        return newest is not None and newest >= self.batch


def pending(layout: FlowLayout) -> Pending | None:
    """The note that waits to be settled, or None. Raises TerminalError `state-damaged`."""
    lost = "refused rows that were let through last may stay open: see `state-damaged` before you decide about them"
    return kept(layout.replaying, _read, without=lost, copied=False)  # an older one says what was settled long ago


def note(layout: FlowLayout, of: Pending) -> None:
    """Write down what a batch will release, in place of any older note. Call it under the lease."""
    write_json(layout.replaying, asdict(of))


def forget(layout: FlowLayout, settled: Pending) -> None:
    """Remove the note if it is still this one: whoever wakes here may find that of a batch that began after it."""
    if pending(layout) == settled:
        documents.delete(layout.replaying)


def _read(content: Mapping[str, Any]) -> Pending:
    return Pending(**{**content, "ids": tuple(content["ids"])})
