"""The audit of the ledger: check its sums, and compare it with the intake and with the target's commits."""

from __future__ import annotations

from collections import Counter
from typing import Any

from draindown.audit.context import Desk, differences, is_commit_of, of_source, where_of
from draindown.audit.generations import made_up_for
from draindown.audit.rebuilds import rebuilt_against_log
from draindown.base.formatting import count
from draindown.lake.table_log import TableLog
from draindown.ledger import rows as ledger_rows
from draindown.ledger.rows import BatchRow

_WRITES_ROWS = ("WRITE", "MERGE", "UPDATE", "DELETE", "TRUNCATE", "RESTORE", "STREAMING UPDATE", "CLONE", "REPLACE")


def ledger_sums(desk: Desk) -> None:
    """Add a residue for every ledger row whose records are not the sum of its outcomes, or not those of its inputs."""
    for batch in desk.batches:
        fates = batch.applied + batch.superseded + batch.duplicate + batch.quarantined + batch.late
        desk.expect("ledger-fates", where_of(batch), batch.records, fates, "records against the sum of their fates")
        desk.expect("ledger-reasons", where_of(batch), batch.quarantined, sum(batch.reasons.values()), "sum of reasons")
        if batch.kind in ("source", "replay") and batch.generation >= desk.inputs_since:
            _of_inputs(desk, batch)
    for (generation, kind, number), times in Counter(b.place for b in desk.batches).items():
        desk.expect("ledger-double-batch", f"generation {generation}, {kind} batch {number}", 1, times)
    for cut, times in Counter((b.generation, b.cut) for b in of_source(desk)).items():
        desk.expect("ledger-double-cut", f"generation {cut[0]}, cut {cut[1]}", 1, times, "batches that read it")


def _of_inputs(desk: Desk, batch: BatchRow) -> None:
    read, where = desk.inputs.get(batch.place, []), where_of(batch)
    desk.expect("ledger-units", where, len({one.unit for one in read}), batch.units, "inputs against the ledger")
    desk.expect("ledger-bytes", where, sum(one.bytes for one in read), batch.bytes, "inputs against the ledger")
    desk.expect("ledger-records", where, sum(one.records for one in read), batch.records, "inputs against the ledger")


def inputs_against_intake(desk: Desk) -> None:
    """Add a residue for every batch whose inputs differ from the files of its cut in the intake."""
    by_cut: dict[int, list[dict[str, Any]]] = {}
    for row in desk.files:
        by_cut.setdefault(row["cut"], []).append(row)
    for path, times in Counter(row["path"] for row in desk.files).items():
        desk.expect("intake-double-file", path, 1, times, "times taken in")
    for batch in [one for one in of_source(desk) if one.generation >= desk.inputs_since]:
        left_out = desk.without.get(batch.generation, frozenset())
        taken = [row for row in by_cut.get(batch.cut, []) if row["path"] not in left_out]
        known = {row["path"]: (row["start"], row["until"], row["size"]) for row in taken}
        read = {one.unit: (one.start, one.until, one.bytes) for one in desk.inputs.get(batch.place, [])}
        for unit in sorted(known.keys() | read.keys()):
            where, said = f"{where_of(batch)}, {unit}", "from, until and bytes, in the intake against the inputs"
            desk.expect("inputs-unit", where, known.get(unit, "no file"), read.get(unit, "no input"), said)


def ledger_against_commits(desk: Desk) -> None:
    """Add a residue for every ledger row that is not equal to a commit of the target, and for every foreign commit.

    The ledger table is a projection of the target's commits.
    """
    table = desk.layout.table
    commits = {commit.version: commit for commit in TableLog(table).commits()}
    oldest = min(commits, default=0)
    aged = [batch for batch in desk.batches if batch.table_version < oldest]
    if aged:
        desk.unlooked.append(f"the commits of {count(len(aged), 'batch', 'batches')}: the table's log was cleaned up")
    # the log still has a commit that a RESTORE undid; it does not have those of a table that was replaced
    taken_back = [batch for batch in desk.lost if is_commit_of(commits.get(batch.table_version), batch)]
    rebuilt = rebuilt_against_log(desk, commits)
    batches = [batch for batch in desk.batches if rebuilt.get(batch.table_version) != batch.generation]
    projected = {batch.table_version: batch for batch in [*taken_back, *batches]}
    for version, commit in commits.items():
        if version in rebuilt:
            continue
        written = ledger_rows.from_commit(commit)
        if written is None or (written.pipeline, written.flow) != (desk.layout.pipeline, desk.layout.flow):
            made_up = version < max(rebuilt, default=0) or version in made_up_for(desk) or commit.is_fence
            if version and commit.operation.startswith(_WRITES_ROWS) and not made_up:
                desk.expect("foreign-commit", f"version {version}", "a batch of this flow", commit.operation)
            continue
        if version not in projected:
            desk.expect("ledger-missing-batch", where_of(written), f"a row with version {version}", "none")
        else:
            for name, (true, said) in differences(written, projected[version]).items():
                desk.expect("ledger-not-as-committed", where_of(written), true, said, f"{name} in version {version}")
    for batch in batches:
        if batch.table_version >= oldest and not is_commit_of(commits.get(batch.table_version), batch):
            desk.expect("ledger-without-commit", where_of(batch), f"version {batch.table_version} by it", "none")
    desk.seen["commits"] = len(commits)
