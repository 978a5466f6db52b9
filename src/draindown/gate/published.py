"""The state of the gate: the published version and what is unpublished. No Spark, no GX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from draindown.lake.commits import Commit
from draindown.lake.home import FlowHome
from draindown.lake.revisions import Revisions
from draindown.ledger import foreign as ledger_foreign
from draindown.ledger import rows as ledger_rows
from draindown.ledger.foreign import ForeignCommits

QUARANTINED_SHARE = "quarantined_share"
"""Name of the verdict on the quarantined share of the input. Reserved: no expectation of a suite has
it.
"""
UNJUDGED = "could not be judged: "
"""Prefix of an expectation's detail if the suite, not the rows, is wrong."""


class Published(BaseModel):
    """The newest version of a target that passed its gate.

    Attributes:
        changed_at: the greatest `_changed_at` in that version.
        committed_ms: commit time of that version by the table's log. It distinguishes another
            commit with the same version number, in a table restored from a copy.
        distinct: ids of uniqueness expectations that hold over all rows of that version.
        changed_rows: number of rows that this version published.
        start: the start of the check that published it, if its task announces that by an asset
            event.
        foreign: the commits of others whose change that version has. Kept here, they stay
            known however many batches follow, and once the log has lost them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int
    table_id: str
    changed_at: datetime | None
    at: datetime
    run_id: str
    rows: int
    committed_ms: int | None = None
    distinct: tuple[str, ...] = ()
    changed_rows: int = 0
    start: str = ""
    foreign: ForeignCommits | None = None


@dataclass(frozen=True)
class Unpublished:
    """A target compared with its published version.

    Attributes:
        version: the target's newest version, which a check reads.
        table_id: Delta's id of the table. A table with another id is another table, whatever its
            version number.
        committed_ms: commit time of that version by the log.
        published: the pointer; None if it does not concern this table.
        since: rows with a later `_changed_at` are unpublished; None: all rows are.
        pending: whether a commit since then was not made by maintenance.
        changed: whether one of these commits changed rows, or it is not known.
        deleted: rows that these commits deleted; there is no row left to judge.
        waits_since_ms: time of the first of these commits by the log. Where nothing of this table
            is published, that of its creation.
    """

    version: int
    table_id: str
    committed_ms: int | None = None
    published: Published | None = None
    since: datetime | None = None
    pending: bool = True
    changed: bool = True
    deleted: int = 0
    waits_since_ms: int | None = None

    def moved(self, foreign: ForeignCommits) -> Published:
        """Return the pointer moved over commits that changed no row. Requires `published`."""
        assert self.published is not None
        moved = {"version": self.version, "committed_ms": self.committed_ms, "foreign": foreign}
        return self.published.model_copy(update=moved)


def published(layout: FlowHome) -> Published | None:
    """Return the published pointer, or None if nothing was published yet. Raises TerminalError
    `state-damaged`.
    """
    return layout.once(layout.published, lambda: _pointers(layout).newest()[1])


def publish(layout: FlowHome, pointer: Published) -> Published:
    """Move the published pointer atomically, and never back to an older version of the same table.

    Return the current pointer, which is newer than `pointer` if a check of a newer version ended
    first. Neither a lease nor a lock is needed: checks on several hosts may publish at once.
    """
    layout.make()
    pointers = _pointers(layout)
    while True:
        number, newest = pointers.newest()
        if newest is not None and _stays(layout, newest, pointer):
            return newest
        if pointers.put(number, pointer.model_dump(mode="json")):
            return pointer


def _pointers(layout: FlowHome) -> Revisions[Published]:
    lost = "the one before it counts: the next check judges all rows since, and until then that version is published"
    return Revisions(layout.published, Published.model_validate, lost)


def _stays(layout: FlowHome, newest: Published, pointer: Published) -> bool:
    """Return whether the newest pointer stays in place of `pointer`."""
    later = newest.table_id == pointer.table_id and newest.version > pointer.version
    if later and _names_a_commit(layout, newest):
        return True
    # what was judged is another table, which was put aside meanwhile
    return pointer.table_id != newest.table_id == layout.tables.target.id


def _names_a_commit(layout: FlowHome, pointer: Published) -> bool:
    """Return whether the table still has the published commit.

    A table restored from a copy may end before that version, or have another commit of that number.
    """
    table = layout.tables.target
    after = table.version - pointer.version
    return after >= 0 and not _is_another(pointer, table.commits(after + 1))


def _is_another(pointer: Published, commits: Sequence[Commit]) -> bool:
    own = [commit.timestamp for commit in commits if commit.version == pointer.version]
    return pointer.committed_ms is not None and any(at != pointer.committed_ms for at in own)


def unpublished(layout: FlowHome) -> Unpublished | None:
    """What the target holds beyond its published version, or None where there is no target. Reads
    its log alone.
    """
    pointer, table = (
        published(layout),
        layout.tables.target,
    )  # in this order: a check publishes what is there
    if not table.exists:
        return None
    version = table.version
    between = max(0, version - pointer.version) if pointer else 0
    commits = table.commits(between + 1)
    found = Unpublished(
        version,
        table.id,
        next((commit.timestamp for commit in commits), None),
        waits_since_ms=table.created_ms,
    )
    if pointer is None or pointer.table_id != found.table_id or pointer.version > version:
        return found
    if _is_another(pointer, commits):
        return found
    later = [commit for commit in commits if commit.version > pointer.version]
    return _since(found, pointer, later, complete=len(later) == between)


def _since(
    found: Unpublished, pointer: Published, commits: Sequence[Commit], *, complete: bool
) -> Unpublished:
    changes = [commit for commit in commits if commit.changed_rows]
    rows = [ledger_rows.from_commit(commit) for commit in changes]
    # A foreign commit sets no `_changed_at`, and an expired log shows no commits: in both cases all
    # rows are judged.
    known = complete and None not in rows
    return replace(
        found,
        published=pointer,
        since=pointer.changed_at if known else None,
        pending=bool(changes) or not complete,
        changed=not known
        or any(row.inserted or row.updated or row.deleted for row in rows if row is not None),
        deleted=sum(row.deleted for row in rows if row is not None),
        waits_since_ms=min((commit.timestamp for commit in changes), default=None),
    )


def carry(layout: FlowHome) -> Published | None:
    """Move the pointer over commits that changed no row. Return the current pointer.

    Maintenance rewrites files and later removes the old ones: a pointer that stayed behind would
    lose its files.
    """
    state = unpublished(layout)
    if state is None or state.published is None:
        return None
    if state.pending or state.version == state.published.version:
        return state.published
    return publish(layout, state.moved(foreign(layout, state)))


def foreign(layout: FlowHome, state: Unpublished) -> ForeignCommits:
    """Return the commits of others whose change the target has at `state.version`.

    The published pointer has those up to its version, so that only later commits are read. The
    whole log is read if no pointer of this table has them, or if a RESTORE went back before it.
    """
    table, pointer = layout.tables.target, state.published
    known = pointer.foreign if pointer else None
    if pointer is not None and known is not None:
        later = _up_to(state.version, table.commits_since(pointer.version))
        back = [commit.restored_version for commit in later if commit.operation == "RESTORE"]
        if all(to is None or to >= pointer.version for to in back):
            return ledger_foreign.after(layout, known, pointer.version, reversed(later))
    every = _up_to(state.version, table.commits())
    oldest = every[-1].version if every else 0
    if oldest == 0:
        return ledger_foreign.after(layout, ledger_foreign.NONE, -1, reversed(every))
    if pointer is not None and known is not None:
        later = [commit for commit in every if commit.version > pointer.version]
        return ledger_foreign.after(layout, known, pointer.version, reversed(later))
    before = ForeignCommits(generation=ledger_foreign.generation_before(layout, reversed(every)))
    return ledger_foreign.after(layout, before, oldest - 1, reversed(every))  # the log begins later


def _up_to(version: int, newest_first: Sequence[Commit]) -> list[Commit]:
    return [commit for commit in newest_first if commit.version <= version]


def oldest_needed_removal(layout: FlowHome) -> datetime | None:
    """Return the time of the first commit after the published version, or None if that version is
    the newest.

    Readers of the published version still need the files that this commit or a later one removed.
    """
    state = unpublished(layout)
    if state is None or state.published is None or state.version == state.published.version:
        return None
    commits = layout.tables.target.commits(state.version - state.published.version)
    return datetime.fromtimestamp(min(commit.timestamp for commit in commits) / 1000, UTC)
