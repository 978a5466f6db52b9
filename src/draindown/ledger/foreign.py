"""Foreign commits: commits of a target that changed rows and are no batch of its flow.

What the table has of them is a function of its log. It is computed commit by commit, so that a
result that was kept for a version can be continued with the commits after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from draindown.base.formatting import count
from draindown.base.models import Frozen
from draindown.lake.commits import Commit
from draindown.lake.home import FlowHome
from draindown.ledger.rows import from_commit, swap_of


class ForeignCommit(Frozen):
    """A commit of another writer whose change the table has.

    Attributes:
        first: the first of the commits that made the table before the flow's first batch, of which
            this is the last. None if a batch precedes it.
        committed_ms: commit time by the log, which tells two commits of one number apart.
        inserted, updated, deleted: rows by the commit's metrics; None if these do not tell.
        generation: the newest generation of the batches before it; 0 if there is none.
        read_again: whether a later generation has read all input since.
    """

    version: int
    committed_ms: int
    operation: str
    engine: str = ""
    first: int | None = None
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    generation: int = 0
    read_again: bool = False

    @property
    def mark(self) -> tuple[int, int]:
        """Version and commit time, which tell it from all other commits of its table."""
        return self.version, self.committed_ms

    @property
    def at(self) -> datetime:
        """When it was committed."""
        return datetime.fromtimestamp(self.committed_ms / 1000, UTC)

    @property
    def name(self) -> str:
        """Its version, or its versions, in words."""
        several = self.first is not None and self.first < self.version
        return f"versions {self.first} to {self.version}" if several else f"version {self.version}"

    @property
    def writer(self) -> str:
        """Operation, engine and time, in words."""
        by = f" by {self.engine}" if self.engine else ""
        return f"{self.operation}{by} at {self.at:%Y-%m-%d %H:%M:%S} UTC"

    @property
    def rows(self) -> str:
        """What it did to rows, in words."""
        numbers = {"inserted": self.inserted, "updated": self.updated, "deleted": self.deleted}
        told = [f"{count(number, 'row')} {what}" for what, number in numbers.items() if number]
        return ", ".join(told) or "an unknown number of rows changed"

    def __str__(self) -> str:
        before = "; the table was there before the first batch" if self.first is not None else ""
        return f"{self.name} ({self.writer}): {self.rows}{before}"


class ForeignCommits(Frozen):
    """The foreign commits whose change a table has at one version, oldest first.

    `generation`: the newest generation of the flow's batches up to that version; 0 before the first
    batch.
    """

    commits: tuple[ForeignCommit, ...] = ()
    generation: int = 0


NONE = ForeignCommits()


def after(
    layout: FlowHome, known: ForeignCommits, start: int, commits: Iterable[Commit]
) -> ForeignCommits:
    """Return what the table has of foreign commits after `commits`, which follow version `start`,
    oldest first.

    `known`: what it has at version `start`. A RESTORE brings back what the table had at the
    restored version. If it takes back batches of the flow, it is a foreign commit itself, until a
    later generation has read the input again.
    """
    states, batches = {start: known}, list[int]()
    for commit in commits:
        own, swap = from_commit(commit), swap_of(commit)
        if swap is not None and _is_of(layout, swap.pipeline, swap.flow):
            batches.append(commit.version)
            known = ForeignCommits(generation=max(swap.generation, known.generation))
        elif own is not None and _is_of(layout, own.pipeline, own.flow):
            batches.append(commit.version)
            known = _after_batch(known, own.generation)
        elif commit.operation == "RESTORE":
            known = _after_restore(known, states, batches, commit)
        elif commit.moved_rows:
            known = _with(known, commit)
        states[commit.version] = known
    return known


def generation_before(layout: FlowHome, commits: Iterable[Commit]) -> int:
    """Return the generation of the batches before `commits`, which begin amid them, oldest first; 1
    if none tells.
    """
    rows = map(from_commit, commits)
    oldest = next(
        (row for row in rows if row is not None and _is_of(layout, row.pipeline, row.flow)), None
    )
    if oldest is None:
        return 1
    begins = oldest.kind == "drain" and oldest.batch == 0
    return oldest.generation - 1 if begins else oldest.generation


def _is_of(layout: FlowHome, pipeline: str, flow: str) -> bool:
    return (pipeline, flow) == (layout.pipeline, layout.flow)


def _after_batch(known: ForeignCommits, generation: int) -> ForeignCommits:
    if generation <= known.generation or not known.generation:
        return known.model_copy(update={"generation": max(generation, known.generation)})
    # of the batches that a RESTORE took back, the new generation reads the input again
    left = [
        one.model_copy(update={"read_again": True})
        for one in known.commits
        if one.operation != "RESTORE"
    ]
    return ForeignCommits(commits=tuple(left), generation=generation)


def _after_restore(
    known: ForeignCommits, states: dict[int, ForeignCommits], batches: list[int], commit: Commit
) -> ForeignCommits:
    to = commit.restored_version
    if to is None:
        return _with(known, commit)
    # a version from before what is known: at most those of the commits that are not younger
    older = tuple(one for one in known.commits if one.version <= to)
    before = states.get(to) or known.model_copy(update={"commits": older})
    if to in states and not any(to < version for version in batches):
        return before
    return _with(before.model_copy(update={"generation": known.generation}), commit)


def _with(known: ForeignCommits, commit: Commit) -> ForeignCommits:
    inserted, updated, deleted = commit.told_rows
    first = None
    if not known.generation:  # all that the table has is of others: one thing, decided about once
        first = known.commits[0].first if known.commits else commit.version
    if first != commit.version and first is not None:
        inserted = updated = deleted = None
    new = ForeignCommit(
        version=commit.version,
        committed_ms=commit.timestamp,
        operation=commit.operation,
        engine=commit.engine,
        first=first,
        inserted=inserted,
        updated=updated,
        deleted=deleted,
        generation=known.generation,
    )
    return known.model_copy(
        update={"commits": (new,) if first is not None else (*known.commits, new)}
    )
