"""The audit across generations: batches whose rows the table lost, and input that a later generation read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draindown.audit.context import Desk, is_commit_of, of_source, origin_of
from draindown.audit.rebuilds import swaps
from draindown.base.formatting import count
from draindown.flow import generations, integrity
from draindown.lake import delta
from draindown.ledger.rows import BatchRow, Place


def generations_of(desk: Desk) -> None:
    """Move batches whose rows the table lost to `lost`, and mark refused rows that an earlier generation accepted."""
    live = generations.generation(desk.layout)
    desk.without = generations.left_out(desk.layout)
    if live == 1 and not any(batch.origin == "replay" for batch in desk.batches):
        return
    gone = _lost(desk, live)
    desk.lost = [batch for batch in desk.batches if batch.place in gone]
    desk.batches = [batch for batch in desk.batches if batch.place not in gone]
    if desk.lost:
        what = count(len(desk.lost), "batch", "batches")
        desk.unlooked.append(
            f"{what} of older generations: the table lost their rows, generation {live} reads them again"
        )
    desk.refused_since = integrity.put_aside_last(desk.layout, desk.layout.quarantine)
    older = sum(batch.generation < desk.refused_since and batch.quarantined > 0 for batch in of_source(desk))
    if older:
        desk.unlooked.append(
            f"what {count(older, 'batch', 'batches')} before generation {desk.refused_since} refused: "
            "the quarantine was damaged, and put aside"
        )
    _let_through_before(desk)


def _lost(desk: Desk, live: int) -> set[Place]:
    """Return the batches of generations before `live` whose rows the table no longer holds.

    A batch is lost if the table's log does not have its commit, if a RESTORE undid the commit, or if a rebuilt
    generation replaced the table's content.
    """
    commits = {row["version"]: row for row in delta.history(desk.layout.table, delta.version(desk.layout.table) + 1)}
    restored = _restores(commits)
    brought = {at: swap.generation for at, swap in swaps(desk, commits).items()}
    taken_back = {at for at in brought if any(to < at < by for by, to in restored.items())}
    newest = max((number for at, number in brought.items() if at not in taken_back), default=0)
    return {
        batch.place
        for batch in desk.batches
        if batch.generation < live
        and (
            batch.generation < newest
            or (
                batch.table_version >= min(commits)
                and brought.get(batch.table_version) != batch.generation
                and not is_commit_of(commits.get(batch.table_version), batch)
            )
            or any(to < batch.table_version < at for at, to in restored.items())
        )
    }


def made_up_for(desk: Desk) -> set[int]:
    """Return the versions of RESTOREs that precede a commit of a later generation, which read all input again."""
    begun = [batch.table_version for batch in of_source(desk) if batch.generation > 1]
    history = delta.history(desk.layout.table, delta.version(desk.layout.table) + 1) if begun else []
    return {at for at in _restores({row["version"]: row for row in history}) if any(at < version for version in begun)}


def _restores(commits: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
    """Return the version of each RESTORE, and the version that it restored (0 if it restored to a timestamp)."""
    found = {at: commit for at, commit in commits.items() if commit.get("operation") == "RESTORE"}
    return {at: int((commit.get("operationParameters") or {}).get("version") or 0) for at, commit in found.items()}


def _let_through_before(desk: Desk) -> None:
    """Mark rows that were refused only when their file was read again: the first read put them into the table."""
    cut_of = {row["path"]: row["cut"] for row in _intake(desk)}
    earliest: dict[int, int] = {}
    refused_again = {batch.cut: batch.reasons for batch in of_source(desk) if batch.generation == desk.refused_since}
    for batch in of_source(desk):
        if batch.generation < desk.refused_since and refused_again.get(batch.cut) == batch.reasons:
            continue  # the same rows were refused before; the record of it was lost with the damaged quarantine
        earliest[batch.cut] = min(batch.generation, earliest.get(batch.cut, batch.generation))
    for row in desk.refused:
        first = earliest.get(cut_of.get(row["file"], -1))
        later = origin_of(row) == "replay" or (
            origin_of(row) == "source" and first is not None and row["generation"] > first
        )
        if later:
            desk.accepted_before.add(row["quarantine_id"])


def _intake(desk: Desk) -> list[dict[str, Any]]:
    return (
        delta.query(desk.layout.intake, "select path, cut from t").to_pylist()
        if delta.exists(desk.layout.intake)
        else []
    )


def refused_before(desk: Desk, batch: BatchRow, missing: int) -> int:
    """Return how many of `missing` refused rows of a batch were already in the quarantine when the batch ran.

    `missing`: rows that the ledger counts as quarantined by the batch, less those that the quarantine has of it. Only a
    batch that reads input again does not write a row that is already there. The result is at most the number of rows
    that other batches refused in the files of the same cut.
    """
    if missing <= 0 or (batch.generation == 1 and batch.origin == "source"):
        return 0
    files = {row["path"] for row in _intake(desk) if row["cut"] == batch.cut}
    others = sum(
        row["file"] in files and (row["generation"], origin_of(row), row["batch"]) != batch.place
        for row in desk.refused
    )
    return min(missing, others)


def left_out(desk: Desk, path: str) -> bool:
    """Return whether a generation started without this file because the file was missing or changed."""
    return any(path in paths for paths in desk.without.values())
