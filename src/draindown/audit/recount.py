"""Recount a flow from its raw input, and compare every number that draindown recorded with the
result.

Plain Python reads the files, DuckDB compares, `deltalake` reads the tables: no code of the drain is
used. Compared are the raw files with the intake, the intake with the ledger, the ledger with the
target's commits, quarantined rows with the bytes they came from, and the target's keys with the newest
raw row of each. Read-only.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from draindown.audit.accepted import foreign_commits
from draindown.audit.cells import checked
from draindown.audit.context import AuditContext, Progress, kind_of, of_source, where_of
from draindown.audit.definitions import Definitions
from draindown.audit.files import FileFacts, Refusals, recount
from draindown.audit.generations import generations_of, left_out, refused_before
from draindown.audit.invariants import invariant_of
from draindown.audit.ledger_sums import inputs_against_intake, ledger_against_commits, ledger_sums
from draindown.audit.model import Audit, Collector
from draindown.audit.pinned import Piece, inputs_against_pinned
from draindown.audit.records import Records
from draindown.audit.withdrawals import released_withdrawals, settle_withdrawals, withdrawals
from draindown.base.errors import TerminalError, TransientError
from draindown.base.formatting import count
from draindown.config.models import PipelineSpec
from draindown.flow import altered, generations, integrity
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.quarantine import place_of
from draindown.flow.release_intent import pending
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.lease import holder as lease_holder
from draindown.ledger import inputs
from draindown.ledger import rows as ledger_rows
from draindown.ledger.rows import BatchRow
from draindown.recovery import rebuild
from draindown.sources import objects
from draindown.sources.moves import Moves

_LOOK_BACK = 100  # commits; a crash leaves at most one batch unrecorded, and maintenance commits may follow it


def audit(
    spec: PipelineSpec, flow_name: str, *, root: Path, progress: Progress | None = None
) -> Audit:
    """Audit one flow. `root`: the project, in which the source of a transform is looked up.

    Raises TerminalError `nothing-to-audit` if the flow has no table, `table-damaged` if a table's
    log is torn, `table-altered` if another engine altered its columns, `rebuild-unfinished` if the
    swap of a rebuilt table is incomplete; TransientError `drain-at-work` if the lease is held: a
    batch in progress would look wrong.
    """
    started = time.monotonic()
    context = AuditContext(spec.flow(flow_name), spec.layout(flow_name), root, progress or _silent)
    _refuse_drain_at_work(context.layout)
    integrity.refuse_torn(context.layout)
    altered.refuse(context.layout, context.flow)
    rebuild.refuse_half_swapped(
        context.layout, f"audit flow {flow_name} of pipeline {spec.pipeline}"
    )
    _load(context)
    _set_unfinished_apart(context)
    _set_replays_apart(context)
    settle_withdrawals(context)
    _settle_replay(context)
    generations_of(context)
    raw_files = context.flow.source.raw_files
    slices = {batch.slice for batch in of_source(context)}
    taken_in = _all(context.layout.tables.intake(1).path) if raw_files else []
    moves = Moves.of(context.layout)
    context.files = [_as_file(row, moves) for row in taken_in if row["slice"] in slices]
    units = {"files": len(context.files)} if raw_files else {}
    context.seen |= {
        "batches": len(context.batches),
        **units,
        "quarantined rows": len(context.refused),
    }
    ledger_sums(context)
    pieces: list[Piece] = []
    if raw_files:
        inputs_against_intake(context)
    else:
        pieces = inputs_against_pinned(context)
    ledger_against_commits(context)
    foreign_commits(context)
    _quarantine(context)
    withdrawals(context)
    with tempfile.TemporaryDirectory(prefix="draindown-audit-") as temporary:
        if raw_files:
            _raw(context, Path(temporary))
        else:
            invariant = invariant_of(context, Path(temporary))
            invariant.settle_records(
                context, Records(context, pieces, invariant.keys, Path(temporary))
            )
    seconds = round(time.monotonic() - started, 3)
    accepted = [acceptance for acceptance, _ in context.accepted]
    return Audit(
        spec.pipeline,
        flow_name,
        context.residues,
        context.unlooked,
        context.seen,
        seconds,
        accepted,
    )


def _silent(_done: int, _of: int, _name: str) -> None:
    """Ignore progress."""


def _refuse_drain_at_work(layout: FlowHome) -> None:
    holder = lease_holder.holder(layout)
    if holder is not None:
        raise TransientError(
            "drain-at-work",
            tried=f"audit flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"its lease is held by {holder}",
            next=f"draindown audit {layout.pipeline}/{layout.flow}   # once that process has ended",
        )


def _set_unfinished_apart(context: AuditContext) -> None:
    """Treat a batch that crashed as the next run will: count it if it was committed, else ignore
    it.
    """
    generation = generations.generation(context.layout)
    number = Checkpoint(context.layout.checkpoint(generation)).in_flight
    if number is None or any(
        (b.generation, b.batch) == (generation, number) for b in of_source(context)
    ):
        return
    rows = (
        ledger_rows.from_commit(commit)
        for commit in context.layout.tables.target.commits(_LOOK_BACK)
    )
    committed = [r for r in rows if r and r.place == (generation, "drain", number)]
    if committed:
        context.batches += committed
        context.unlooked.append(
            f"the ledger's row of batch {number}: a crash came before it; the next run adds it"
        )
    else:
        context.unfinished = (generation, number)
        context.refused = [r for r in context.refused if not _is_of(r, context.unfinished)]
        context.unlooked.append(
            f"batch {number}: it was cut short before its commit; the next run repeats it"
        )


def _set_replays_apart(context: AuditContext) -> None:
    """Ignore what a replay of input refused in a batch that crashed before its commit: the replay
    writes it again.

    No run does that, nor takes it back: it stays until the replay goes on, or a generation begins.
    """
    live, table = (
        generations.generation(context.layout),
        context.layout.tables.target,
    )
    known = {batch.place for batch in context.batches}
    begun = Counter(
        (row["kind"], row["batch"])
        for row in context.refused
        if kind_of(row) == "replay"
        and row["generation"] == live
        and (live, "replay", row["batch"]) not in known
    )
    done = {kind: table.last(context.layout.app_id(live, "rows", kind)) for kind, _ in begun}
    apart = {(live, kind, n) for kind, n in begun if (last := done[kind]) is None or n > last}
    context.refused = [
        r for r in context.refused if (r["generation"], r["kind"], r["batch"]) not in apart
    ]
    for _, kind, number in sorted(apart):
        what = f"{count(begun[kind, number], 'quarantined row')} of replay {kind.partition(':')[2]}, batch {number}"
        context.unlooked.append(
            f"{what}: it was cut short before its commit; the same replay repeats it"
        )


def _settle_replay(context: AuditContext) -> None:
    """Count the rows of a replay as released if it crashed after its commit: the next replay
    records the release.
    """
    note = pending(context.layout)
    if note is None:
        return
    if note.read_again:  # a batch that read files again and accepted rows that were refused before
        if note.is_applied(context.layout):
            context.released |= dict.fromkeys(note.ids, "")
        return
    rows = (
        ledger_rows.from_commit(commit)
        for commit in context.layout.tables.target.commits(_LOOK_BACK)
    )
    this = ("release", note.batch, note.run_id)
    committed = [row for row in rows if row and (row.kind, row.batch, row.run_id) == this]
    if committed and not any((b.kind, b.batch, b.run_id) == this for b in context.batches):
        context.batches += committed
        context.unlooked.append(f"the ledger's row of replay {note.run_id}: a crash came before it")
    if committed:
        context.released |= dict.fromkeys(note.ids, note.run_id)


def _is_of(row: Mapping[str, Any], batch: tuple[int, int]) -> bool:
    return kind_of(row) == "drain" and (row["generation"], row["batch"]) == batch


def _load(context: AuditContext) -> None:
    paths = context.layout
    if not paths.tables.target.exists:
        raise TerminalError(
            "nothing-to-audit",
            tried=f"audit flow {paths.flow} of pipeline {paths.pipeline}",
            found=f"no table at {paths.tables.target.path}: the flow has not committed a batch yet",
            next=f"draindown run {paths.pipeline}/{paths.flow}",
        )
    context.batches = [BatchRow.from_dict(row) for row in _all(paths.tables.ledger.path)]
    context.inputs = inputs.by_batch(paths)
    kept = _all(paths.tables.quarantine.path)
    context.refused = [row for row in kept if kind_of(row) != "withdraw"]
    context.withdrawn = [row for row in kept if kind_of(row) == "withdraw"]
    context.released = _released_now(_all(paths.tables.resolutions.path))
    context.judged = checked(context.flow, paths.tables.target)


def _released_now(decided: list[dict[str, Any]]) -> dict[str, str]:
    """Return the id of each row whose newest decision is a release, and the run that released it.

    A release without a run is that of a row whose file was read again.
    """
    newest = {row["quarantine_id"]: row for row in sorted(decided, key=lambda row: row["at"])}
    return {
        known: row["run_id"] or "" for known, row in newest.items() if row["action"] == "released"
    }


def _as_file(row: dict[str, Any], moves: Moves) -> dict[str, Any]:
    place = moves.place(row["input"])
    return row | {"path": row["input"], "place": place, "size": row["bytes"], "slice": row["slice"]}


def _all(path: str) -> list[dict[str, Any]]:
    return Table(path).rows("select * from t")


def _quarantine(context: AuditContext) -> None:
    first = [row for row in context.refused if kind_of(row) != "release"]
    for (place, unit), times in Counter((place_of(r), r["origin"]["input"]) for r in first).items():
        context.expect_once("quarantine-double", place, unit, times, "times refused")
    for known, times in Counter(r["quarantine_id"] for r in first).items():
        context.expect("quarantine-double-id", known, 1, times)
    reasons: dict[tuple[int, str, int], Counter[str]] = {}
    for row in context.refused:
        why = ":".join(filter(None, (row["reason"], row["field"])))
        reasons.setdefault((row["generation"], kind_of(row), row["batch"]), Counter())[why] += 1
    for batch in [b for b in context.batches + context.lost if b.kind != "release"]:
        if batch.generation < context.refused_since:
            continue
        kept = reasons.pop(batch.place, Counter())
        refused = kept.total() + refused_before(context, batch, batch.quarantined - kept.total())
        context.expect(
            "quarantine-count",
            where_of(batch),
            batch.quarantined,
            refused,
            "ledger against quarantine",
        )
        told, held = (json.dumps(dict(sorted(c.items()))) for c in (batch.reasons, kept))
        if batch.quarantined == kept.total():
            context.expect(
                "quarantine-reasons", where_of(batch), told, held, "ledger against quarantine"
            )
    _released(context)
    for (generation, kind, number), rows in reasons.items():
        where = f"generation {generation}, {kind} batch {number}"
        context.expect(
            "quarantine-without-batch",
            where,
            0,
            rows.total(),
            "rows of a batch the ledger doesn't know",
        )


def _released(context: AuditContext) -> None:
    """Compare released rows with replays: a replay releases each row that it does not refuse
    again.
    """
    known = Counter(context.released.values())
    passed = _replayed(context.batches)
    # a table that was lost took its released rows with it; withdrawn rows need no second release
    for run_id, number in _replayed(context.lost).items():
        passed[run_id] += min(number, released_withdrawals(context)[run_id])
    for run_id in (known.keys() | passed.keys()) - {""}:
        context.expect(
            "released-count",
            f"run {run_id}",
            passed[run_id],
            known[run_id],
            "rows replayed against released",
        )


def _replayed(batches: Iterable[BatchRow]) -> Counter[str]:
    passed: Counter[str] = Counter()
    for batch in batches:
        if batch.kind == "release":
            passed[batch.run_id] += batch.records - batch.quarantined
    return passed


def _raw(context: AuditContext, temporary: Path) -> None:
    """Everything that needs the raw files: counts, refused bytes, keys."""
    first = (row for row in context.refused if kind_of(row) != "release")
    refusals = Refusals(first, set(context.released) | context.accepted_before)
    known = {row["path"] for row in context.files}
    for path in refusals.files() - known:
        context.expect("quarantine-without-file", path, "a file that was taken in", "none")
    invariant = invariant_of(context, temporary)
    keys, definitions = invariant.keys, Definitions(context)
    collectors = [keys and keys.before(definitions.later(row["path"])) for row in context.files]
    read = zip(context.files, collectors, strict=True)
    facts = [_raw_file(context, row, refusals, one, at) for at, (row, one) in enumerate(read)]
    _inputs_against_raw(context, facts)
    unread = [row["path"] for row, fact in zip(context.files, facts, strict=True) if fact is None]
    context.unlooked += _unread(context, unread)
    context.seen["raw records"] = sum(fact.records for fact in facts if fact)
    if context.flow.source.form.columnar and context.refused:
        context.unlooked.append(
            f"raw text of {count(len(context.refused), 'quarantined row')}: "
            f"a {context.flow.source.format} file has none"
        )
    invariant.settle(context, [fact for fact in facts if fact], all_files=not unread)


def _unread(context: AuditContext, paths: list[str]) -> Iterator[str]:
    """Yield why raw files were not recounted: gone, changed since they were read, or left out by a
    generation.
    """
    places = {row["path"]: row["place"] for row in context.files}
    changed = {residue.where for residue in context.residues if residue.kind == "file-changed"}
    reasons = {
        "no longer there": [path for path in paths if not objects.is_file(places[path])],
        "there, with other bytes than were read": [path for path in paths if path in changed],
    }
    told = set(chain.from_iterable(reasons.values()))
    reasons["there, but left out when a generation began"] = [
        path for path in paths if path not in told
    ]
    for reason, found in reasons.items():
        if found:
            yield f"{count(len(found), 'raw file')} {reason}: {', '.join(found[:3])}"


def _raw_file(
    context: AuditContext,
    row: Mapping[str, Any],
    refusals: Refusals,
    keys: Collector | None,
    at: int,
) -> FileFacts | None:
    path = row["path"]
    context.progress(at, len(context.files), path.rpartition("/")[2])
    if not objects.is_file(row["place"]) or left_out(context, path):
        return None
    found = recount(row, context.flow, refusals, keys, context.judged)
    context.residues += found.residues
    if found.changed:
        return None
    counted = (0, found.records if found.physical is None else found.physical[0])
    context.expect(
        "intake-range",
        path,
        counted,
        (row["start"], row["until"]),
        "lines or rows against the intake",
    )
    if found.physical is None:
        context.expect(
            "intake-records",
            path,
            found.records,
            row["records"],
            "rows in the file against the intake",
        )
    else:
        for name, number in zip(("lines", "blank"), found.physical, strict=True):
            context.expect(
                f"intake-{name}", path, number, row[name], f"{name} in the file against the intake"
            )
    return found


def _inputs_against_raw(context: AuditContext, facts: list[FileFacts | None]) -> None:
    records = {fact.path: fact.records for fact in facts if fact}
    for batch in of_source(context):
        for one in context.inputs.get(batch.place, []):
            where = f"{where_of(batch)}, {one.unit}"
            known = records.get(one.unit, one.records)  # a file that is gone can't be recounted
            context.expect(
                "recount-records", where, known, one.records, "raw file against the inputs"
            )
