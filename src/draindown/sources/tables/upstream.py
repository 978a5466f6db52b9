"""A table that a derived flow reads, as its log and its gate show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

from draindown.gate import published
from draindown.lake.commits import Commit
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.ledger.rows import swap_of

FEED = "delta.enableChangeDataFeed"
"""The table property that makes Delta keep the rows of a commit as they were."""


@dataclass(frozen=True)
class Changes:
    """The commits after one version up to another, newest first, that may have changed rows.

    `lost`: why a reader can't follow them, in words; empty if it can. `rebuilt`: one of them
    swapped in a table that the flow rebuilt, so that all rows are new to the feed.
    """

    commits: Sequence[Commit]
    rebuilt: bool = False
    lost: str = ""

    @property
    def rows(self) -> int:
        """Rows that the commits inserted, updated or deleted, by their metrics."""
        return sum(commit.number_changed for commit in self.commits)

    @property
    def bytes(self) -> int:
        """Bytes of the files that the commits added."""
        names = ("numTargetBytesAdded", "numOutputBytes", "numAddedBytes")
        return sum(max(commit.metric(name) for name in names) for commit in self.commits)

    @property
    def only_inserts(self) -> bool:
        """Whether no row was updated or deleted, and all metrics tell so."""
        return all(_only_inserts(commit) for commit in self.commits)

    @property
    def oldest(self) -> datetime | None:
        """When the oldest of the commits was made; None without any."""
        return min(
            (datetime.fromtimestamp(one.timestamp / 1000, UTC) for one in self.commits),
            default=None,
        )


def _only_inserts(commit: Commit) -> bool:
    if commit.operation == "MERGE":
        return any(number is not None for number in commit.told_rows) and not any(
            commit.rows_changed[1:]
        )
    return commit.operation == "WRITE"


def changes_rows(commit: Commit) -> bool:
    """Return whether a reader has to read a commit: OPTIMIZE and a batch of duplicates change no
    row.

    A commit that replaces the table as a whole removes rows that its metrics do not count, even if
    it writes none.
    """
    return commit.moved_rows or swap_of(commit) is not None


class Upstream:
    """One look at a source table. Its log and its published version are read once."""

    def __init__(self, reader: FlowHome, table: str, pipeline: str, flow: str) -> None:
        self.layout = replace(
            reader.live, pipeline=pipeline, flow=flow, table_name=table, own_intakes=False
        )
        self.path = self.layout.tables.target.path

    @cached_property
    def _newest_pointer(self) -> published.Published | None:
        return published.published(self.layout)

    @cached_property
    def pointer(self) -> published.Published | None:
        """What the flow that writes the table published; None before the first time."""
        log, found = self.log, self._newest_pointer
        return found if found is not None and log.exists and found.table_id == log.id else None

    @cached_property
    def log(self) -> Table:
        """The table at its newest version, which is none before `pointer`: that is read first."""
        # the other way round, a version published in between would lack its commits
        _ = self._newest_pointer
        return Table(self.path)

    def reopen(self) -> None:
        """Open the log anew, at its newest version. The pointer stays."""
        self.log = Table(self.path)

    @property
    def has_feed(self) -> bool:
        """Whether the published version has the change feed, so that changes after it can be
        read.
        """
        return (
            self.pointer is not None
            and self.log.at(self.pointer.version).properties.get(FEED) == "true"
        )

    def between(self, start: int, until: int) -> Changes:
        """Return what changed after version `start` up to `until`."""
        commits = [one for one in self.log.commits_since(start) if one.version <= until]
        if len(commits) < until - start:
            return Changes(
                (),
                lost=f"its log begins after version {start}: commits that were not read are gone",
            )
        changing = [one for one in commits if changes_rows(one)]
        swaps = [one for one in changing if swap_of(one) is not None]
        foreign = next((why for one in changing if one not in swaps and (why := one.replaces)), "")
        off = (
            any(FEED in str(one.parameters) for one in commits)
            and self.log.properties.get(FEED) != "true"
        )
        lost = foreign or ("its change feed was switched off" if off else "")
        return Changes(changing, rebuilt=bool(swaps), lost=lost)
