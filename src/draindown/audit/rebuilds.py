"""The audit of rebuilt generations: drained into a staged table, then swapped in by one commit."""

from __future__ import annotations

from collections.abc import Mapping

from draindown.audit.context import AuditContext, differences, where_of
from draindown.lake.commits import Commit
from draindown.ledger import rows as ledger_rows
from draindown.ledger import target_log
from draindown.ledger.rows import BatchRow, Swap


def rebuilt_against_log(context: AuditContext, commits: Mapping[int, Commit]) -> dict[int, int]:
    """Hold the ledger's rows of rebuilt generations against the log they were made in, and that
    against the swap.

    Returns the version of each swap of this flow, and the generation that it brought.
    """
    found = swaps(context, commits)
    for version, swap in found.items():
        rows = [
            ledger_rows.from_commit(commit)
            for commit in target_log.made(context.layout, swap.generation, version)
        ]
        made = {row.batch: row for row in rows if row is not None}
        if made:
            _against_ledger(context, swap, version, made)
            _against_swap(context, swap, version, made, commits[version])
        else:
            context.unlooked.append(
                f"the commits of rebuilt generation {swap.generation}: the log they were made in is gone"
            )
    return {version: swap.generation for version, swap in found.items()}


def swaps(context: AuditContext, commits: Mapping[int, Commit]) -> dict[int, Swap]:
    """What each commit that brought a rebuilt generation of this flow says of itself, by
    version.
    """
    said = {version: ledger_rows.swap_of(commit) for version, commit in commits.items()}
    mine = (context.layout.pipeline, context.layout.flow)
    return {
        version: swap
        for version, swap in said.items()
        if swap and (swap.pipeline, swap.flow) == mine
    }


def _against_ledger(
    context: AuditContext, swap: Swap, version: int, made: Mapping[int, BatchRow]
) -> None:
    every = [*context.batches, *context.lost]
    told = {
        row.batch: row
        for row in every
        if (row.generation, row.table_version) == (swap.generation, version)
    }
    for number, row in made.items():
        if number not in told:
            context.expect(
                "ledger-missing-batch", where_of(row), f"a row with version {version}", "none"
            )
            continue
        for name, (true, said) in differences(row, told[number]).items():
            context.expect(
                "ledger-not-as-committed",
                where_of(row),
                true,
                said,
                f"{name} in the log of the rebuilt table",
            )
    for number in told.keys() - made.keys():
        context.expect(
            "ledger-without-commit", where_of(told[number]), "a commit of the rebuilt table", "none"
        )


def _against_swap(
    context: AuditContext, swap: Swap, version: int, made: Mapping[int, BatchRow], commit: Commit
) -> None:
    where = f"generation {swap.generation}, version {version}"
    brought = commit.rows_written
    context.expect(
        "rebuilt-batches",
        where,
        len(made),
        swap.batches,
        "batches of the rebuilt table against the swap",
    )
    rows = sum(row.inserted - row.deleted for row in made.values())
    context.expect(
        "rebuilt-rows",
        where,
        rows,
        brought,
        "inserted - deleted against the rows that the swap brought",
    )
