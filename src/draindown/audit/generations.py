"""The audit across generations: batches whose rows the table lost, and input that a later
generation read again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draindown.audit.context import AuditContext, is_commit_of, kind_of, of_source
from draindown.audit.origins import id_of
from draindown.audit.rebuilds import swaps
from draindown.base.formatting import count
from draindown.flow import generations, integrity
from draindown.lake.commits import Commit, standing_restores
from draindown.ledger.rows import BatchRow, Place
from draindown.sources import intake


def generations_of(context: AuditContext) -> None:
    """Move batches whose rows the table lost to `lost`, and mark quarantined rows that an earlier
    generation accepted.
    """
    live = generations.generation(context.layout)
    context.inputs_since = integrity.put_aside_last(context.layout, context.layout.tables.inputs)
    if context.inputs_since:
        context.unlooked.append(
            f"inputs before generation {context.inputs_since}: their table was damaged, and put aside"
        )
    context.without = generations.left_out(context.layout)
    if live == 1 and not any(batch.kind == "replay" for batch in context.batches):
        return
    commits = {commit.version: commit for commit in context.layout.tables.target.commits()}
    gone = _lost(context, live, commits)
    context.lost = [batch for batch in context.batches if batch.place in gone]
    context.batches = [batch for batch in context.batches if batch.place not in gone]
    context.hides_restore = _hides_restore(context.batches, live, min(commits))
    if context.lost:
        what = count(len(context.lost), "batch", "batches")
        context.unlooked.append(
            f"{what} of older generations: the table lost their rows, generation {live} reads them again"
        )
    context.refused_since = integrity.put_aside_last(
        context.layout, context.layout.tables.quarantine
    )
    older = sum(
        batch.generation < context.refused_since and batch.quarantined > 0
        for batch in of_source(context)
    )
    if older:
        context.unlooked.append(
            f"what {count(older, 'batch', 'batches')} before generation {context.refused_since} refused: "
            "the quarantine was damaged, and put aside"
        )
    _let_through_before(context)


def _lost(context: AuditContext, live: int, commits: Mapping[int, Commit]) -> set[Place]:
    """Batches of generations before `live` that are no commits of the table, that a RESTORE took
    back, in whose place a rebuilt generation came, or whose table was replaced. Of commits that the
    log no longer has the cards of generations, the tables put aside and the versions in the ledger
    say so."""
    restored, oldest = _restores(standing_restores(commits.values())), min(commits)
    brought = {at: swap.generation for at, swap in swaps(context, commits).items()}
    known = _brought_before(context, live, oldest) | brought
    taken_back = {at for at in known if any(to < at < by for by, to in restored.items())}
    newest = max((number for at, number in known.items() if at not in taken_back), default=0)
    newest = max(newest, integrity.replaced_last(context.layout, context.layout.tables.target))
    first = _first_after(context.batches)
    return {
        batch.place
        for batch in context.batches
        if batch.generation < live
        and (
            batch.generation < newest
            or batch.table_version >= first.get(batch.generation, batch.table_version + 1)
            or (
                batch.table_version >= oldest
                and brought.get(batch.table_version) != batch.generation
                and not is_commit_of(commits.get(batch.table_version), batch)
            )
            or any(to < batch.table_version < at for at, to in restored.items())
        )
    }


def _brought_before(context: AuditContext, live: int, oldest: int) -> dict[int, int]:
    """Version of each swap that is no longer in the log, and the generation that it brought."""
    rebuilt = sorted(
        int(number)
        for number, card in generations.cards(context.layout).items()
        if card.get("rebuilt")
    )
    versions = {
        number: min(
            (batch.table_version for batch in context.batches if batch.generation == number),
            default=oldest,
        )
        for number in rebuilt
        if number <= live
    }
    return {at: number for number, at in versions.items() if at < oldest}


def _first_after(batches: Sequence[BatchRow]) -> dict[int, int]:
    """By generation, the first version that a later generation wrote. From there on the table has
    none of its batches.

    Versions only go back where another table, or an older copy, came in the place of the table.
    """
    versions = defaultdict[int, list[int]](list)
    for batch in batches:
        versions[batch.generation].append(batch.table_version)
    first, found = None, dict[int, int]()
    for number in sorted(versions, reverse=True):
        if first is not None:
            found[number] = first
        first = min([*versions[number], *([] if first is None else [first])])
    return found


def _hides_restore(batches: Sequence[BatchRow], live: int, oldest: int) -> bool:
    """Whether the log was cleaned of a commit, not a batch, between a generation whose rows count
    and the next one.
    """
    first = _first_after(batches)
    for number in {batch.generation for batch in batches if batch.generation < live}:
        last = max(batch.table_version for batch in batches if batch.generation == number)
        if min(first.get(number, oldest), oldest) > last + 1:
            return True
    return False


def _restores(commits: Iterable[Commit]) -> dict[int, int]:
    """Version of each RESTORE, and the version that it brought back."""
    return {commit.version: commit.restored for commit in commits if commit.restored is not None}


def _let_through_before(context: AuditContext) -> None:
    """Mark rows that were refused only when their file was read again: the first read put them into
    the table.
    """
    cut_of = {row["input"]: row["slice"] for row in _intake(context, 1)}
    earliest: dict[int, int] = {}
    refused_again = {
        batch.slice: batch.reasons
        for batch in of_source(context)
        if batch.generation == context.refused_since
    }
    for batch in of_source(context):
        if (
            batch.generation < context.refused_since
            and refused_again.get(batch.slice) == batch.reasons
        ):
            continue  # the same rows were refused before; the record of it was lost with the damaged quarantine
        earliest[batch.slice] = min(batch.generation, earliest.get(batch.slice, batch.generation))
    for row in context.refused:
        first = earliest.get(cut_of.get(row["origin"]["input"], -1))
        later = kind_of(row) == "replay" or (
            kind_of(row) == "drain" and first is not None and row["generation"] > first
        )
        if later:
            context.accepted_before.add(row["quarantine_id"])


def _intake(context: AuditContext, generation: int) -> list[dict[str, Any]]:
    return context.layout.tables.intake(generation).rows("select input, slice from t")


def refused_before(context: AuditContext, batch: BatchRow, missing: int) -> int:
    """Return how many of `missing` quarantined rows of a batch were already in the quarantine when the
    batch ran.

    `missing`: rows that the ledger counts as quarantined by the batch, less those that the
    quarantine has of it. Only a batch that reads input again does not write a row that is already
    there. The result is at most the number of rows that other batches, of no later generation,
    refused in the ranges that this one read.
    """
    if missing <= 0 or (batch.generation == 1 and batch.kind == "drain"):
        return 0
    first, read = context.flow.source.counts_from, defaultdict[str, list[Mapping[str, Any]]](list)
    sql = f"select * from t where slice = {int(batch.slice)}"
    for row in context.layout.tables.intake(batch.generation).rows(sql):
        read[row["input"]].append(row)

    def is_within(row: Mapping[str, Any]) -> bool:
        unit, position = row["origin"]["input"], row["origin"]["position"]
        return any(
            one["start"] + first <= position < one["until"] + first
            and (
                not one.get(intake.LOG)
                or row["quarantine_id"] == id_of(unit, one[intake.LOG], position)
            )
            for one in read.get(unit, ())
        )

    others = (
        row
        for row in context.refused
        if (row["generation"], kind_of(row), row["batch"]) != batch.place
    )
    return min(
        missing,
        sum(1 for row in others if row["generation"] <= batch.generation and is_within(row)),
    )


def left_out(context: AuditContext, path: str) -> bool:
    """Return whether a generation started without this file because the file was missing or
    changed.
    """
    return any(path in paths for paths in context.without.values())
