"""Recount a flow from its raw input, and compare every number that draindown recorded with the result.

Plain Python reads the files, DuckDB compares, `deltalake` reads the tables: no code of the drain is used. Compared are
the raw files with the intake, the intake with the ledger, the ledger with the target's commits, refused rows with the
bytes they came from, and the target's keys with the newest raw row of each. Read-only.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from draindown.audit.context import Desk, Progress, kind_of, of_source, where_of
from draindown.audit.files import FileFacts, Refusals, recount
from draindown.audit.generations import generations_of, left_out, refused_before
from draindown.audit.invariants import invariant_of
from draindown.audit.keys import KeyRecount
from draindown.audit.ledger_sums import inputs_against_intake, ledger_against_commits, ledger_sums
from draindown.audit.model import Audit
from draindown.audit.withdrawals import released_withdrawals, settle_withdrawals, withdrawals
from draindown.base.errors import TerminalError, TransientError
from draindown.base.formatting import count
from draindown.flow import generations
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.quarantine import place_of
from draindown.flow.release_intent import pending
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog, log_of
from draindown.lease import holder as lease_holder
from draindown.ledger import inputs
from draindown.ledger import rows as ledger_rows
from draindown.ledger.rows import BatchRow
from draindown.recovery import rebuild
from draindown.spec.models import PipelineSpec

_LOOK_BACK = 100  # commits; a crash leaves at most one batch unrecorded, and maintenance commits may follow it


def audit(spec: PipelineSpec, flow_name: str, *, root: Path, progress: Progress | None = None) -> Audit:
    """Audit one flow. `root`: the project, in which the source of a transform is looked up.

    Raises TerminalError `nothing-to-audit` if the flow has no table, `rebuild-unfinished` if the swap of a rebuilt
    table is incomplete; TransientError `drain-at-work` if the lease is held: a batch in progress would look wrong.
    """
    started = time.monotonic()
    desk = Desk(spec.flow(flow_name), spec.layout(flow_name), root, progress or _silent)
    _refuse_drain_at_work(desk.layout)
    rebuild.refuse_half_swapped(desk.layout, f"audit flow {flow_name} of pipeline {spec.pipeline}")
    _load(desk)
    _set_unfinished_apart(desk)
    settle_withdrawals(desk)
    _settle_replay(desk)
    generations_of(desk)
    cuts = {batch.cut for batch in of_source(desk)}
    desk.files = [_as_file(row) for row in _all(desk.layout.intake_of(1)) if row["slice"] in cuts]
    desk.seen |= {"batches": len(desk.batches), "files": len(desk.files), "refused rows": len(desk.refused)}
    ledger_sums(desk)
    inputs_against_intake(desk)
    ledger_against_commits(desk)
    _quarantine(desk)
    withdrawals(desk)
    with tempfile.TemporaryDirectory(prefix="draindown-audit-") as temporary:
        _raw(desk, Path(temporary))
    seconds = round(time.monotonic() - started, 3)
    return Audit(spec.pipeline, flow_name, desk.residues, desk.unlooked, desk.seen, seconds)


def _silent(_done: int, _of: int, _name: str) -> None:
    """Ignore progress."""


def _refuse_drain_at_work(layout: FlowLayout) -> None:
    holder = lease_holder.holder(layout)
    if holder is not None:
        raise TransientError(
            "drain-at-work",
            tried=f"audit flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"its lease is held by {holder}",
            next=f"draindown audit {layout.pipeline} --flow {layout.flow}   # once that process has ended",
        )


def _set_unfinished_apart(desk: Desk) -> None:
    """Treat a batch that crashed as the next run will: count it if it was committed, else ignore it."""
    generation = generations.generation(desk.layout)
    number = Checkpoint(desk.layout.checkpoint(generation)).in_flight
    if number is None or any((b.generation, b.batch) == (generation, number) for b in of_source(desk)):
        return
    rows = (ledger_rows.from_commit(commit) for commit in log_of(desk.layout, desk.layout.table).commits(_LOOK_BACK))
    committed = [r for r in rows if r and r.place == (generation, "source", number)]
    if committed:
        desk.batches += committed
        desk.unlooked.append(f"the ledger's row of batch {number}: a crash came before it; the next run adds it")
    else:
        desk.unfinished = (generation, number)
        desk.refused = [r for r in desk.refused if not _is_of(r, desk.unfinished)]
        desk.unlooked.append(f"batch {number}: it was cut short before its commit; the next run repeats it")


def _settle_replay(desk: Desk) -> None:
    """Count the rows of a replay as released if it crashed after its commit: the next replay records the release."""
    note = pending(desk.layout)
    if note is None:
        return
    if note.read_again:  # a batch that read files again and accepted rows that were refused before
        if note.is_applied(desk.layout):
            desk.released |= dict.fromkeys(note.ids, "")
        return
    rows = (ledger_rows.from_commit(commit) for commit in log_of(desk.layout, desk.layout.table).commits(_LOOK_BACK))
    this = ("quarantine", note.batch, note.run_id)
    committed = [row for row in rows if row and (row.kind, row.batch, row.run_id) == this]
    if committed and not any((b.kind, b.batch, b.run_id) == this for b in desk.batches):
        desk.batches += committed
        desk.unlooked.append(f"the ledger's row of replay {note.run_id}: a crash came before it")
    if committed:
        desk.released |= dict.fromkeys(note.ids, note.run_id)


def _is_of(row: Mapping[str, Any], batch: tuple[int, int]) -> bool:
    return kind_of(row) == "source" and (row["generation"], row["batch"]) == batch


def _load(desk: Desk) -> None:
    paths = desk.layout
    if not log_of(paths, paths.table).exists:
        raise TerminalError(
            "nothing-to-audit",
            tried=f"audit flow {paths.flow} of pipeline {paths.pipeline}",
            found=f"no table at {paths.table}: the flow has not committed a batch yet",
            next=f"draindown run {paths.pipeline} --flow {paths.flow}",
        )
    desk.batches = [BatchRow.from_dict(row) for row in _all(paths.ledger)]
    desk.inputs = inputs.by_batch(paths)
    kept = _all(paths.quarantine)
    desk.refused = [row for row in kept if kind_of(row) != "gate"]
    desk.withdrawn = [row for row in kept if kind_of(row) == "gate"]
    desk.released = _released_now(_all(paths.resolutions))


def _released_now(decided: list[dict[str, Any]]) -> dict[str, str]:
    """Return the id of each row whose newest decision is a release, and the run that released it.

    A release without a run is that of a row whose file was read again.
    """
    newest = {row["quarantine_id"]: row for row in sorted(decided, key=lambda row: row["at"])}
    return {known: row["run_id"] or "" for known, row in newest.items() if row["action"] == "released"}


def _as_file(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"path": row["unit"], "size": row["bytes"], "cut": row["slice"]}


def _all(path: str) -> list[dict[str, Any]]:
    return TableLog(path).rows("select * from t")


def _quarantine(desk: Desk) -> None:
    first = [row for row in desk.refused if kind_of(row) != "quarantine"]
    for place, times in Counter(place_of(r) for r in first).items():
        desk.expect("quarantine-double", place, 1, times, "times refused")
    for known, times in Counter(r["quarantine_id"] for r in first).items():
        desk.expect("quarantine-double-id", known, 1, times)
    reasons: dict[tuple[int, str, int], Counter[str]] = {}
    for row in desk.refused:
        why = ":".join(filter(None, (row["reason"], row["field"])))
        reasons.setdefault((row["generation"], kind_of(row), row["batch"]), Counter())[why] += 1
    for batch in [b for b in desk.batches + desk.lost if b.kind != "quarantine"]:
        if batch.generation < desk.refused_since:
            continue
        kept = reasons.pop(batch.place, Counter())
        refused = kept.total() + refused_before(desk, batch, batch.quarantined - kept.total())
        desk.expect("quarantine-count", where_of(batch), batch.quarantined, refused, "ledger against quarantine")
        told, held = (json.dumps(dict(sorted(c.items()))) for c in (batch.reasons, kept))
        if batch.quarantined == kept.total():
            desk.expect("quarantine-reasons", where_of(batch), told, held, "ledger against quarantine")
    _released(desk)
    for (generation, kind, number), rows in reasons.items():
        where = f"generation {generation}, {kind} batch {number}"
        desk.expect("quarantine-without-batch", where, 0, rows.total(), "rows of a batch the ledger doesn't know")


def _released(desk: Desk) -> None:
    """Compare released rows with replays: a replay releases each row that it does not refuse again."""
    known = Counter(desk.released.values())
    passed = _replayed(desk.batches)
    # a table that was lost took its released rows with it; withdrawn rows need no second release
    for run_id, number in _replayed(desk.lost).items():
        passed[run_id] += min(number, released_withdrawals(desk)[run_id])
    for run_id in (known.keys() | passed.keys()) - {""}:
        desk.expect("released-count", f"run {run_id}", passed[run_id], known[run_id], "rows replayed against released")


def _replayed(batches: Iterable[BatchRow]) -> Counter[str]:
    passed: Counter[str] = Counter()
    for batch in batches:
        if batch.kind == "quarantine":
            passed[batch.run_id] += batch.records - batch.quarantined
    return passed


def _raw(desk: Desk, temporary: Path) -> None:
    """Everything that needs the raw files: counts, refused bytes, keys."""
    first = (row for row in desk.refused if kind_of(row) != "quarantine")
    refusals = Refusals(first, set(desk.released) | desk.accepted_before)
    known = {row["path"] for row in desk.files}
    for path in refusals.files() - known:
        desk.expect("quarantine-without-file", path, "a file that was taken in", "none")
    invariant = invariant_of(desk, temporary)
    facts = [_raw_file(desk, row, refusals, invariant.keys, at) for at, row in enumerate(desk.files)]
    _inputs_against_raw(desk, facts)
    gone = [row["path"] for row, fact in zip(desk.files, facts, strict=True) if fact is None]
    if gone:
        desk.unlooked.append(f"{count(len(gone), 'raw file')} no longer there: {', '.join(gone[:3])}")
    desk.seen["raw records"] = sum(fact.records for fact in facts if fact)
    if desk.flow.source.form.columnar and desk.refused:
        desk.unlooked.append(
            f"raw text of {count(len(desk.refused), 'refused row')}: a {desk.flow.source.format} file has none"
        )
    invariant.settle(desk, [fact for fact in facts if fact], all_files=not gone)


def _raw_file(
    desk: Desk, row: Mapping[str, Any], refusals: Refusals, keys: KeyRecount | None, at: int
) -> FileFacts | None:
    path = row["path"]
    desk.progress(at, len(desk.files), Path(path).name)
    if not Path(path).is_file() or left_out(desk, path):
        return None
    found = recount(row, desk.flow, refusals, keys)
    desk.residues += found.residues
    if found.changed:
        return None
    counted = (0, found.records if found.physical is None else found.physical[0])
    desk.expect("intake-range", path, counted, (row["start"], row["until"]), "lines or rows against the intake")
    if found.physical is None:
        desk.expect("intake-records", path, found.records, row["records"], "rows in the file against the intake")
    else:
        for name, number in zip(("lines", "blank"), found.physical, strict=True):
            desk.expect(f"intake-{name}", path, number, row[name], f"{name} in the file against the intake")
    return found


def _inputs_against_raw(desk: Desk, facts: list[FileFacts | None]) -> None:
    records = {fact.path: fact.records for fact in facts if fact}
    for batch in of_source(desk):
        for one in desk.inputs.get(batch.place, []):
            where = f"{where_of(batch)}, {one.unit}"
            known = records.get(one.unit, one.records)  # a file that is gone can't be recounted
            desk.expect("recount-records", where, known, one.records, "raw file against the inputs")
