"""Recounts a flow from its raw input and holds every number draindown wrote against it.

Shares no code with the drain: plain Python reads the files, DuckDB compares, `deltalake` reads the tables. Looks at
raw files against the intake, the intake against the ledger, the ledger against the target's own commits, refused rows
against the bytes they came from, and the target's keys against the newest raw row of each. Writes nothing.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from draindown import ledger, tables
from draindown.audit_files import FileFacts, Refusals, recount
from draindown.audit_keys import KeyRecount, unusable
from draindown.audit_model import Audit, Residue
from draindown.errors import TerminalError
from draindown.layout import FlowLayout
from draindown.ledger import BatchRow
from draindown.spec import FlowSpec, PipelineSpec
from draindown.wording import count

Progress = Callable[[int, int, str], None]


@dataclass
class _Desk:
    """What one audit works on, and what it has found so far."""

    flow: FlowSpec
    layout: FlowLayout
    root: Path
    progress: Progress
    batches: list[BatchRow] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    released: set[str] = field(default_factory=set)
    residues: list[Residue] = field(default_factory=list)
    unlooked: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def expect(self, kind: str, where: str, expected: object, found: object, detail: str = "") -> None:
        """Note a residue unless both are equal."""
        if expected != found:
            self.residues.append(Residue(kind, where, str(expected), str(found), detail))


def audit(spec: PipelineSpec, flow_name: str, *, root: Path, progress: Progress = lambda done, of, name: None) -> Audit:
    """The audit of one flow. Raises TerminalError `nothing-to-audit` where the flow never ran."""
    started = time.monotonic()
    desk = _Desk(spec.flow(flow_name), spec.layout(flow_name), root, progress)
    _load(desk)
    _ledger_sums(desk)
    _ledger_against_intake(desk)
    _ledger_against_commits(desk)
    _quarantine(desk)
    with tempfile.TemporaryDirectory(prefix="draindown-audit-") as temporary:
        _raw(desk, Path(temporary))
    seconds = round(time.monotonic() - started, 3)
    return Audit(spec.pipeline, flow_name, desk.residues, desk.unlooked, desk.seen, seconds)


def _load(desk: _Desk) -> None:
    paths = desk.layout
    if not tables.exists(paths.table):
        raise TerminalError(
            "nothing-to-audit",
            tried=f"audit flow {paths.flow} of pipeline {paths.pipeline}",
            found=f"no table at {paths.table}: the flow has not committed a batch yet",
            next=f"draindown run {paths.pipeline} --flow {paths.flow}",
        )
    desk.batches = [BatchRow.from_dict(row) for row in _all(paths.ledger)]
    cuts = {batch.cut for batch in _of_source(desk)}
    desk.files = [row for row in _all(paths.intake) if row["cut"] in cuts]
    desk.refused = _all(paths.quarantine)
    decided = _all(paths.resolutions)
    desk.released = {row["quarantine_id"] for row in decided if row["action"] == "released"}
    desk.seen |= {"batches": len(desk.batches), "files": len(desk.files), "refused rows": len(desk.refused)}


def _all(path: str) -> list[dict[str, Any]]:
    return tables.query(path, "select * from t").to_pylist() if tables.exists(path) else []


def _of_source(desk: _Desk) -> list[BatchRow]:
    return [batch for batch in desk.batches if batch.origin == "source"]


def _where(batch: BatchRow) -> str:
    return f"generation {batch.generation}, {batch.origin} batch {batch.batch}"


def _ledger_sums(desk: _Desk) -> None:
    for batch in desk.batches:
        fates = batch.applied + batch.superseded + batch.duplicate + batch.quarantined + batch.late
        desk.expect("ledger-fates", _where(batch), batch.records, fates, "records against the sum of their fates")
        desk.expect("ledger-lines", _where(batch), batch.lines, batch.records + batch.blank, "records + blank")
        desk.expect("ledger-reasons", _where(batch), batch.quarantined, sum(batch.reasons.values()), "sum of reasons")
    for (generation, origin, number), times in Counter((b.generation, b.origin, b.batch) for b in desk.batches).items():
        desk.expect("ledger-double-batch", f"generation {generation}, {origin} batch {number}", 1, times)
    for cut, times in Counter((b.generation, b.cut) for b in _of_source(desk)).items():
        desk.expect("ledger-double-cut", f"generation {cut[0]}, cut {cut[1]}", 1, times, "batches that read it")


def _ledger_against_intake(desk: _Desk) -> None:
    by_cut: dict[int, list[dict[str, Any]]] = {}
    for row in desk.files:
        by_cut.setdefault(row["cut"], []).append(row)
    for path, times in Counter(row["path"] for row in desk.files).items():
        desk.expect("intake-double-file", path, 1, times, "times taken in")
    for batch in _of_source(desk):
        taken = by_cut.get(batch.cut, [])
        desk.expect("ledger-files", _where(batch), len(taken), batch.files, "files in the intake against the ledger")
        known = sum(row["size"] for row in taken)
        desk.expect("ledger-bytes", _where(batch), known, batch.bytes, "sizes in the intake against the ledger")


def _ledger_against_commits(desk: _Desk) -> None:
    """The ledger table is a projection of the target's commits: each row must be one of them, word for word."""
    table = desk.layout.table
    commits = {row["version"]: row for row in tables.history(table, tables.version(table) + 1)}
    oldest = min(commits, default=0)
    aged = [batch for batch in desk.batches if batch.table_version < oldest]
    if aged:
        desk.unlooked.append(f"the commits of {count(len(aged), 'batch', 'batches')}: the table's log was cleaned up")
    projected = {batch.table_version: batch for batch in desk.batches}
    for version, commit in commits.items():
        written = ledger.from_commit(commit)
        if written is None or (written.pipeline, written.flow) != (desk.layout.pipeline, desk.layout.flow):
            continue
        if version not in projected:
            desk.expect("ledger-missing-batch", _where(written), f"a row with version {version}", "none")
        else:
            for name, (true, said) in _differences(written, projected[version]).items():
                desk.expect("ledger-not-as-committed", _where(written), true, said, f"{name} in version {version}")
    for batch in desk.batches:
        if batch.table_version >= oldest and not _is_commit_of(commits.get(batch.table_version), batch):
            desk.expect("ledger-without-commit", _where(batch), f"version {batch.table_version} by it", "none")
    desk.seen["commits"] = len(commits)


def _differences(true: BatchRow, said: BatchRow) -> dict[str, tuple[object, object]]:
    # times differ by how a table keeps them; every count must be the same
    skipped = {"started_at", "finished_at", "seconds", "reasons"}
    pairs = {f.name: (getattr(true, f.name), getattr(said, f.name)) for f in fields(BatchRow) if f.name not in skipped}
    pairs["reasons"] = (json.dumps(dict(sorted(true.reasons.items()))), json.dumps(dict(sorted(said.reasons.items()))))
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _is_commit_of(commit: Mapping[str, Any] | None, batch: BatchRow) -> bool:
    written = ledger.from_commit(commit) if commit else None
    mine = (batch.generation, batch.origin, batch.batch)
    return written is not None and (written.generation, written.origin, written.batch) == mine


def _quarantine(desk: _Desk) -> None:
    first = [row for row in desk.refused if _origin(row) == "source"]
    for (path, position), times in Counter((r["file"], r["position"]) for r in first).items():
        desk.expect("quarantine-double", f"{path}:{position}", 1, times, "times refused")
    for known, times in Counter(r["quarantine_id"] for r in first).items():
        desk.expect("quarantine-double-id", known, 1, times)
    reasons: dict[tuple[int, str, int], Counter[str]] = {}
    for row in desk.refused:
        why = ":".join(filter(None, (row["reason"], row["field"])))
        reasons.setdefault((row["generation"], _origin(row), row["batch"]), Counter())[why] += 1
    for batch in desk.batches:
        kept = reasons.pop((batch.generation, batch.origin, batch.batch), Counter())
        desk.expect("quarantine-count", _where(batch), batch.quarantined, kept.total(), "ledger against quarantine")
        told, held = (json.dumps(dict(sorted(c.items()))) for c in (batch.reasons, kept))
        if batch.quarantined == kept.total():
            desk.expect("quarantine-reasons", _where(batch), told, held, "ledger against quarantine")
    for (generation, origin, number), rows in reasons.items():
        where = f"generation {generation}, {origin} batch {number}"
        desk.expect("quarantine-without-batch", where, 0, rows.total(), "rows of a batch the ledger doesn't know")


def _origin(row: Mapping[str, Any]) -> str:
    return "source" if row.get("origin") in (None, "source") else "quarantine"


def _raw(desk: _Desk, temporary: Path) -> None:
    """Everything that needs the raw files: counts, refused bytes, keys."""
    refusals = Refusals((r for r in desk.refused if _origin(r) == "source"), desk.released)
    known = {row["path"] for row in desk.files}
    for path in refusals.files() - known:
        desk.expect("quarantine-without-file", path, "a file that was taken in", "none")
    why_not = unusable(desk.flow, desk.root) if desk.flow.is_keyed else None
    keys = KeyRecount(desk.flow, temporary) if desk.flow.is_keyed and not why_not else None
    facts = [_raw_file(desk, row, refusals, keys, at) for at, row in enumerate(desk.files)]
    _ledger_against_raw(desk, facts)
    gone = [row["path"] for row, fact in zip(desk.files, facts, strict=True) if fact is None]
    if gone:
        desk.unlooked.append(f"{count(len(gone), 'raw file')} no longer there: {', '.join(gone[:3])}")
    desk.seen["raw records"] = sum(fact.records for fact in facts if fact)
    if why_not:
        desk.unlooked.append(why_not)
    if desk.flow.is_keyed:
        _live_rows(desk)
        if keys:
            _keys(desk, keys, all_files=not gone)
    else:
        _appended(desk, [fact for fact in facts if fact], all_files=not gone)


def _raw_file(
    desk: _Desk, row: Mapping[str, Any], refusals: Refusals, keys: KeyRecount | None, at: int
) -> FileFacts | None:
    path = row["path"]
    desk.progress(at, len(desk.files), Path(path).name)
    if not Path(path).is_file():
        return None
    found = recount(row, desk.flow, refusals, keys)
    desk.residues += found.residues
    if found.changed:
        return None
    if found.physical is None:
        desk.expect("intake-records", path, found.records, row["records"], "rows in the file against the intake")
    else:
        for name, number in zip(("lines", "blank"), found.physical, strict=True):
            desk.expect(f"intake-{name}", path, number, row[name], f"{name} in the file against the intake")
    return found


def _ledger_against_raw(desk: _Desk, facts: list[FileFacts | None]) -> None:
    by_cut: dict[int, list[FileFacts | None]] = {}
    for row, fact in zip(desk.files, facts, strict=True):
        by_cut.setdefault(row["cut"], []).append(fact)
    for batch in _of_source(desk):
        found = [fact for fact in by_cut.get(batch.cut, []) if fact]
        if len(found) < len(by_cut.get(batch.cut, [])):
            continue
        for name in ("lines", "blank", "records"):
            number = sum(getattr(fact, name) for fact in found)
            desk.expect(f"recount-{name}", _where(batch), number, getattr(batch, name), "raw files against the ledger")


def _live_rows(desk: _Desk) -> None:
    live = sum(batch.inserted - batch.deleted for batch in desk.batches)
    desk.expect("row-count", desk.layout.table, live, _rows_of(desk), "inserted - deleted against rows in the table")


def _appended(desk: _Desk, facts: Iterable[FileFacts], *, all_files: bool) -> None:
    rows = _rows_of(desk)
    desk.expect("row-count", desk.layout.table, sum(b.inserted for b in desk.batches), rows, "inserted against rows")
    if all_files:
        again = sum(b.inserted for b in desk.batches if b.origin == "quarantine")
        wanted = sum(fact.accepted for fact in facts) + again
        desk.expect("appended-rows", desk.layout.table, wanted, rows, "raw records that weren't refused against rows")


def _rows_of(desk: _Desk) -> int:
    found = tables.query(desk.layout.table, "select count(*) as n from t").column("n")[0].as_py()
    desk.seen["rows in the table"] = int(found)
    return int(found)


def _keys(desk: _Desk, keys: KeyRecount, *, all_files: bool) -> None:
    for name, path in (("target", desk.layout.table), ("tombstones", desk.layout.tombstones)):
        if tables.exists(path):
            chosen = ", ".join(_quoted(column) for column in keys.names)
            found: pa.Table = tables.query(path, f"select {chosen} from t")
            keys.add(name, found.columns)
    desk.residues += [*keys.doubled(), *keys.compare(all_files=all_files)]
    unread = keys.uncast()
    if unread:
        desk.unlooked.append(f"the keys of {count(unread, 'record')} whose key or sequence this audit can't cast")
    desk.unlooked += [] if all_files else ["keys in the table that no raw file holds: not all raw files are left"]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
