"""The audit of the ledger: check its sums, and compare it with the intake and with the target's
commits.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from draindown.audit.context import AuditContext, differences, is_commit_of, of_source, where_of
from draindown.audit.rebuilds import rebuilt_against_log
from draindown.base.formatting import count
from draindown.lake.table import Table
from draindown.ledger import rows as ledger_rows
from draindown.ledger.rows import BatchRow


def ledger_sums(context: AuditContext) -> None:
    """Add a residue for every ledger row whose records are not the sum of its outcomes, or not
    those of its inputs.
    """
    for batch in context.batches:
        fates = batch.applied + batch.superseded + batch.duplicate + batch.quarantined + batch.late
        context.expect(
            "ledger-fates",
            where_of(batch),
            batch.records,
            fates,
            "records against the sum of their fates",
        )
        context.expect(
            "ledger-reasons",
            where_of(batch),
            batch.quarantined,
            sum(batch.reasons.values()),
            "sum of reasons",
        )
        if batch.form == "history":
            _of_rows(context, batch)
        if batch.kind in ("drain", "replay") and batch.generation >= context.inputs_since:
            _of_inputs(context, batch)
    for (generation, kind, number), times in Counter(b.place for b in context.batches).items():
        context.expect(
            "ledger-double-batch", f"generation {generation}, {kind} batch {number}", 1, times
        )
    for place, times in Counter((b.generation, b.slice) for b in of_source(context)).items():
        context.expect(
            "ledger-double-slice",
            f"generation {place[0]}, slice {place[1]}",
            1,
            times,
            "batches that read it",
        )


def _of_rows(context: AuditContext, batch: BatchRow) -> None:
    inserted, updated = batch.opened + batch.split, batch.closed + batch.reopened + batch.changed
    sums = {"inserted": inserted, "updated": updated, "deleted": batch.joined + batch.removed}
    for name, found in sums.items():
        context.expect(
            "ledger-rows",
            where_of(batch),
            getattr(batch, name),
            found,
            f"{name} against what became of rows",
        )


def _of_inputs(context: AuditContext, batch: BatchRow) -> None:
    read, where = context.inputs.get(batch.place, []), where_of(batch)
    context.expect(
        "ledger-inputs",
        where,
        len({one.unit for one in read}),
        batch.inputs,
        "inputs against the ledger",
    )
    context.expect(
        "ledger-bytes",
        where,
        sum(one.bytes for one in read),
        batch.bytes,
        "inputs against the ledger",
    )
    context.expect(
        "ledger-records",
        where,
        sum(one.records for one in read),
        batch.records,
        "inputs against the ledger",
    )


def inputs_against_intake(context: AuditContext) -> None:
    """Add a residue for every batch whose inputs differ from the files of its slice in the
    intake.
    """
    by_slice: dict[int, list[dict[str, Any]]] = {}
    for row in context.files:
        by_slice.setdefault(row["slice"], []).append(row)
    for path, times in Counter(row["path"] for row in context.files).items():
        context.expect("intake-double-file", path, 1, times, "times taken in")
    for batch in [one for one in of_source(context) if one.generation >= context.inputs_since]:
        left_out = context.without.get(batch.generation, frozenset())
        taken = [row for row in by_slice.get(batch.slice, []) if row["path"] not in left_out]
        known = {row["path"]: (row["start"], row["until"], row["size"]) for row in taken}
        read = {
            one.unit: (one.start, one.until, one.bytes)
            for one in context.inputs.get(batch.place, [])
        }
        for unit in sorted(known.keys() | read.keys()):
            where, said = (
                f"{where_of(batch)}, {unit}",
                "from, until and bytes, in the intake against the inputs",
            )
            context.expect(
                "inputs-unit", where, known.get(unit, "no file"), read.get(unit, "no input"), said
            )


def ledger_against_commits(context: AuditContext) -> None:
    """Add a residue for every ledger row that is not equal to a commit of the target, and vice
    versa.

    The ledger table is a projection of the target's commits.
    """
    table = context.layout.tables.target.path
    commits = {commit.version: commit for commit in Table(table).commits()}
    oldest = min(commits, default=0)
    aged = [batch for batch in context.batches if batch.table_version < oldest]
    if aged:
        context.unlooked.append(
            f"the commits of {count(len(aged), 'batch', 'batches')}: the table's log was cleaned up"
        )
    # the log still has a commit that a RESTORE undid; it does not have those of a table that was
    # replaced
    taken_back = [
        batch for batch in context.lost if is_commit_of(commits.get(batch.table_version), batch)
    ]
    rebuilt = rebuilt_against_log(context, commits)
    batches = [
        batch for batch in context.batches if rebuilt.get(batch.table_version) != batch.generation
    ]
    projected = {batch.table_version: batch for batch in [*taken_back, *batches]}
    for version, commit in commits.items():
        if version in rebuilt:
            continue
        written = ledger_rows.from_commit(commit)
        if written is None or (written.pipeline, written.flow) != (
            context.layout.pipeline,
            context.layout.flow,
        ):
            continue
        if version not in projected:
            context.expect(
                "ledger-missing-batch", where_of(written), f"a row with version {version}", "none"
            )
        else:
            for name, (true, said) in differences(written, projected[version]).items():
                context.expect(
                    "ledger-not-as-committed",
                    where_of(written),
                    true,
                    said,
                    f"{name} in version {version}",
                )
    for batch in batches:
        if batch.table_version >= oldest and not is_commit_of(
            commits.get(batch.table_version), batch
        ):
            context.expect(
                "ledger-without-commit",
                where_of(batch),
                f"version {batch.table_version} by it",
                "none",
            )
    context.seen["commits"] = len(commits)
