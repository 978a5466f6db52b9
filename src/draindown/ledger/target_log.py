"""The target's log as the ledger's source: which commit is which batch's, and whether it did what
the batch counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from draindown.lake.commits import Commit
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.ledger.rows import (
    BatchRow,
    Swap,
    adds_up,
    closed,
    from_commit,
    not_adding_up,
    swap_of,
)

_FENCES = 10  # newest commits among which at least one is not a fence, however many drivers took over in a row
_VERIFIED = 1000
"""Most commits that a check verifies."""


def commits(layout: FlowHome, limit: int) -> list[Commit]:
    """Return the target's newest commits, newest first, at most `limit`.

    A commit that swapped in a rebuilt generation is replaced by the commits of its batches, all
    with its version.
    """
    found: list[Commit] = []
    for commit in layout.tables.target.commits(limit):
        swap = swap_of(commit)
        found += (
            made(layout, swap.generation, commit.version)
            if swap and _is_own(layout, swap)
            else [commit]
        )
    return found[:limit]


def last_commit(path: str) -> Commit:
    """Return a table's newest commit that is not a fence. A fence of a driver that has lost its
    lease is harmless.
    """
    newest = Table(path).commits(_FENCES)
    return next((commit for commit in newest if not commit.is_fence), newest[0])


def commit_of(log: Table, row: BatchRow) -> Commit:
    """Return the commit of a batch among the newest of the target's `log`, or the newest if none is
    its.

    Maintenance by others, such as an OPTIMIZE or a VACUUM by hand, may have committed after it.
    """
    newest = log.commits(_FENCES)
    return next(
        (one for one in newest if (found := from_commit(one)) and found.place == row.place),
        newest[0],
    )


def made(layout: FlowHome, generation: int, version: int) -> list[Commit]:
    """Return the commits of a rebuilt generation's batches, newest first, as commits of target
    version `version`.

    They are read from the log of the rebuilt table, which is kept. Return nothing if that log is
    gone.
    """
    history = layout.beside(generation).tables.target.commits()
    return [replace(commit, version=version) for commit in history if from_commit(commit)]


def lacking(
    layout: FlowHome, known: Iterable[BatchRow], limit: int, generation: int = 0
) -> Iterator[tuple[Commit, BatchRow]]:
    """Yield the batches of the target's newest commits that are not among `known`, newest first.

    A batch that doesn't add up is left out once nothing of it counts: a rebuild has swapped in
    another table since, or it is of a generation before `generation`, the live one, which compares
    the whole table with its input.
    """
    places, swapped = {row.place for row in known}, _swapped(layout, limit)
    for commit in commits(layout, limit):
        row = from_commit(commit)
        if row is None or not _is_own(layout, row) or row.place in places:
            continue
        replaced = commit.version < swapped or row.generation < generation
        if not replaced or adds_up(commit):
            yield commit, row


def verify(layout: FlowHome, after: int, until: int, generation: int) -> None:
    """Verify the batches that versions above `after` up to `until` of the target brought, and a
    rebuild's swap.

    Raises TerminalError `ledger-does-not-add-up`. `generation`: the live one; the batches of others
    don't count.
    """
    log = layout.tables.target
    for commit in log.commits(min(max(log.version - after, 1), _VERIFIED)):
        if not after < commit.version <= until:
            continue
        swap = swap_of(commit)
        if swap and _is_own(layout, swap):
            verify_swap(commit, swap)
            return
        row = from_commit(commit)
        if row is not None and _is_own(layout, row) and row.generation >= generation:
            closed(commit)


def verify_swap(commit: Commit, swap: Swap) -> None:
    """Verify that a commit wrote the rows of the rebuilt table. Raises TerminalError
    `ledger-does-not-add-up`.
    """
    if commit.rows_written != swap.rows:
        of = BatchRow(swap.pipeline, swap.flow, swap.generation, swap.batches - 1, swap.run_id)
        wrote = f"rows of the rebuilt table: {swap.rows} beside the live one, {commit.rows_written} in its place"
        raise not_adding_up(of, [wrote])


def verify_written(row: BatchRow, path: str, expected: int, fate: str) -> None:
    """Verify that a side table's newest commit wrote `expected` rows. `fate`: the outcome of these
    rows, for the error.

    Raises TerminalError `ledger-does-not-add-up`.
    """
    wrote = last_commit(path).rows_written
    if wrote != expected:
        raise not_adding_up(row, [f"{fate}: {expected} in the batch, {wrote} written to {path}"])


def _swapped(layout: FlowHome, limit: int) -> int:
    """Return the version of the newest of the target's commits that swapped in a rebuilt table; -1
    if none did.
    """
    newest = layout.tables.target.commits(limit)
    own = (one.version for one in newest if (swap := swap_of(one)) and _is_own(layout, swap))
    return next(own, -1)


def _is_own(layout: FlowHome, of: BatchRow | Swap) -> bool:
    return (of.pipeline, of.flow) == (layout.pipeline, layout.flow)
