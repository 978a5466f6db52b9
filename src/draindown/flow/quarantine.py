"""Refused rows, and what people decided about them. Originals are never edited: a decision is a row of its own.

open = refused - released - discarded
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.flow import withdrawals
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import literal, log_of
from draindown.lake.transactions import WriterId

State = Literal["open", "released", "discarded"]
Action = Literal["released", "discarded", "reopened"]
COLUMNS = (
    *("quarantine_id", "file", "position", "raw", "raw_bytes", "raw_length", "reason", "field", "detail"),
    *("first_seen", "generation", "batch", "kind", "run_id", "refused_at"),
)
"""Columns of the quarantine table."""
RESOLUTIONS = pa.schema(
    [
        pa.field("quarantine_id", pa.string(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("by", pa.string(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("run_id", pa.string()),
    ]
)
"""Columns of the resolutions table."""


@dataclass(frozen=True)
class Filter:
    """Which refused rows are meant; parts that are None don't restrict. `ids` may be unambiguous beginnings."""

    reason: str | None = None
    ids: tuple[str, ...] | None = None
    run_id: str | None = None
    state: State | None = "open"

    @property
    def restricts(self) -> bool:
        """Whether it means anything less than all rows of its state."""
        return any((self.reason, self.ids, self.run_id))


@dataclass(frozen=True)
class Counts:
    """How many rows were refused and what became of them; `by_reason` counts the open ones."""

    refused: int = 0
    released: int = 0
    discarded: int = 0
    by_reason: Mapping[str, int] = field(default_factory=dict)

    @property
    def open(self) -> int:
        """Rows nobody decided about."""
        return self.refused - self.released - self.discarded

    def as_dict(self) -> dict[str, Any]:
        """Flat and JSON-ready."""
        sums = {"refused": self.refused, "released": self.released, "discarded": self.discarded, "open": self.open}
        return sums | {"by_reason": dict(self.by_reason)}


def places(layout: FlowLayout) -> list[dict[str, Any]]:
    """Of every row that was ever refused: `quarantine_id`, `file`, and the `kind` of the batch that refused it."""
    return log_of(layout, layout.quarantine).rows("select quarantine_id, file, kind from t")


def take_over(layout: FlowLayout, staged: FlowLayout, *, app: tuple[WriterId, int]) -> None:
    """Add the rows that a staged generation refused and that were never refused before, in one commit, once."""
    if not log_of(staged, staged.quarantine).exists:
        return
    fresh = "select t.* from t"
    if log_of(layout, layout.quarantine).exists:
        fresh += " left anti join held on t.quarantine_id = held.quarantine_id"
    delta.append_query(layout.quarantine, staged.quarantine, fresh, app=app)


def counts(layout: FlowLayout) -> Counts:
    """Refused, released, discarded and open rows of the flow."""
    decided = _decisions(layout)
    refused = _rows(layout, ("quarantine_id", "reason"), Filter(state=None))
    by_reason: dict[str, int] = {}
    for row in refused:
        if row["quarantine_id"] not in decided:
            by_reason[row["reason"]] = by_reason.get(row["reason"], 0) + 1
    actions = [decided[row["quarantine_id"]] for row in refused if row["quarantine_id"] in decided]
    ranked = dict(sorted(by_reason.items(), key=lambda item: (-item[1], item[0])))
    return Counts(len(refused), actions.count("released"), actions.count("discarded"), ranked)


def listed(layout: FlowLayout, which: Filter, limit: int | None = None) -> list[dict[str, Any]]:
    """The rows that `which` means, oldest first, each with its `state`; bytes that are no text as base64."""
    decided = _decisions(layout)
    rows = []
    for row in _rows(layout, COLUMNS, which):
        state = decided.get(row["quarantine_id"], "open")
        if which.state in (None, state):
            rows.append(row | {"state": state, "raw_bytes": _base64(row["raw_bytes"])})
            if limit is not None and len(rows) >= limit:
                break
    return rows


def identified(layout: FlowLayout, which: Filter) -> list[str]:
    """Ids of the open rows that `which` means. Raises TerminalError `unknown-quarantine-id`."""
    decided = _decisions(layout)
    found = [row["quarantine_id"] for row in _rows(layout, ("quarantine_id",), which)]
    for wanted in which.ids or ():
        matching = [known for known in found if known.startswith(wanted)]
        if len(matching) != 1:
            raise _unknown(layout, wanted, len(matching))
    return [known for known in found if known not in decided]


def whole(layout: FlowLayout, ids: Iterable[str]) -> list[dict[str, Any]]:
    """The open ones of these rows, for a replay: quarantine_id, file, position, first_seen, kind, `value`, the bytes.

    `value` is None where quarantine doesn't have the whole record: it was too long, or could not be written down.
    """
    # whoever chose them may have done so before a replay that died was settled: what it applied must not go in twice
    wanted = set(ids) - _decisions(layout).keys()
    names = ("quarantine_id", "file", "position", "first_seen", "kind", "raw", "raw_bytes", "raw_length")
    rows = [row for row in _rows(layout, names, Filter(state=None)) if row["quarantine_id"] in wanted]
    return [row | {"value": _record(row)} for row in rows]


def _record(row: Mapping[str, Any]) -> bytes | None:
    held: bytes | None = row["raw_bytes"]
    if held is None and row["raw"] is not None:
        held = row["raw"].encode()
    return held if held is not None and len(held) == row["raw_length"] else None


def discard(layout: FlowLayout, ids: Sequence[str], *, by: str, note: str = "") -> int:
    """Record that the open rows `ids` are given up; returns how many. The rows themselves stay where they are."""
    return resolve(layout, ids, "discarded", by=by, note=note)


def release(layout: FlowLayout, ids: Sequence[str], *, by: str, run_id: str) -> int:
    """Record that a run let the open rows `ids` through; returns how many."""
    return resolve(layout, ids, "released", by=by, run_id=run_id)


def resolve(
    layout: FlowLayout, ids: Sequence[str], action: Action, *, by: str, note: str = "", run_id: str = ""
) -> int:
    """Record a decision about rows. Idempotent: rows that are decided already are left out."""
    decided = _decisions(layout)
    return _decide(layout, [known for known in dict.fromkeys(ids) if known not in decided], action, by, note, run_id)


def reopen(layout: FlowLayout, ids: Sequence[str], *, by: str, note: str) -> int:
    """Take back decisions: what they were about is no longer so. Idempotent; returns how many."""
    decided = _decisions(layout)
    return _decide(layout, [known for known in dict.fromkeys(ids) if known in decided], "reopened", by, note, "")


def release_again(layout: FlowLayout, *, by: str, note: str) -> int:
    """Release the rows again that were reopened with this note, by the runs that released them before."""
    decided = _decisions(layout)
    rows = _history(layout)
    runs = {row["quarantine_id"]: row["run_id"] or "" for row in rows if row["action"] == "released"}
    ids = {row["quarantine_id"] for row in rows if row["action"] == "reopened" and row["note"] == note}
    again = [known for known in sorted(ids & runs.keys()) if known not in decided]
    for run_id in sorted({runs[known] for known in again}):
        _decide(layout, [i for i in again if runs[i] == run_id], "released", by, "the reset was undone", run_id)
    return len(again)


def read_again(layout: FlowLayout, ids: Sequence[str], *, by: str, run_id: str) -> int:
    """Release rows that a batch let through when it read their file again, discarded ones too. Idempotent."""
    decided = _decisions(layout)
    fresh = [known for known in dict.fromkeys(ids) if decided.get(known) != "released"]
    # without a run: what a replay of refused rows released is counted by run
    return _decide(layout, fresh, "released", by, f"let through by run {run_id}, which read their files again", "")


def let_through(layout: FlowLayout, ids: Sequence[str], *, by: str, note: str) -> int:
    """Release rows that a rebuild let through, whatever was decided about them before, replays included. Idempotent."""
    already = released(layout)
    return _decide(layout, [one for one in dict.fromkeys(ids) if already.get(one) != ""], "released", by, note, "")


def released(layout: FlowLayout) -> dict[str, str]:
    """Ids of the rows that are released now, each with the run that replayed it; "" where its file was read again."""
    newest = {row["quarantine_id"]: row for row in _history(layout)}
    return {known: row["run_id"] or "" for known, row in newest.items() if row["action"] == "released"}


def _decide(layout: FlowLayout, ids: Sequence[str], action: Action, by: str, note: str, run_id: str) -> int:
    if ids:
        row: dict[str, Any] = {"action": action, "at": _after_all(layout), "by": by, "note": note, "run_id": run_id}
        delta.append(layout.resolutions, pa.Table.from_pylist([{"quarantine_id": i} | row for i in ids], RESOLUTIONS))
    return len(ids)


def _after_all(layout: FlowLayout) -> datetime:
    """Now, but later than every earlier decision, whatever the clock does: the newest one of a row counts."""
    found = log_of(layout, layout.resolutions).rows('select max("at") as newest from t')
    newest = next((row["newest"] for row in found), None)
    return now() if newest is None else max(now(), newest + timedelta(microseconds=1))


def _decisions(layout: FlowLayout) -> dict[str, str]:
    newest = {row["quarantine_id"]: row["action"] for row in _history(layout)}
    return {known: action for known, action in newest.items() if action != "reopened"}


def _history(layout: FlowLayout) -> list[dict[str, Any]]:
    """All decisions about rows, oldest first."""
    sql = 'select quarantine_id, action, run_id, note from t order by "at"'
    return log_of(layout, layout.resolutions).rows(sql)


def _rows(layout: FlowLayout, names: Iterable[str], which: Filter) -> list[dict[str, Any]]:
    tests = []
    if which.reason:
        tests.append(f"reason = {literal(which.reason)}")
    if which.run_id:
        tests.append(f"run_id = {literal(which.run_id)}")
    if which.ids:
        tests.append("(" + " or ".join(f"starts_with(quarantine_id, {literal(i)})" for i in which.ids) + ")")
    # rows of a withdrawal that a crash cut short never left the target
    tests += [f"not ({withdrawals.rows_of(name)})" for name in withdrawals.unfinished(layout)]
    chosen = f"select {', '.join(names)} from t" + (f" where {' and '.join(tests)}" if tests else "")
    return log_of(layout, layout.quarantine).rows(f"{chosen} order by refused_at, file, position, quarantine_id")


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _unknown(layout: FlowLayout, wanted: str, matching: int) -> TerminalError:
    met = f"{matching} refused rows begin with it" if matching else "no refused row has it"
    return TerminalError(
        "unknown-quarantine-id",
        tried=f"find refused row {wanted!r} of flow {layout.flow}",
        found=met,
        next=f"draindown quarantine list {layout.pipeline} --flow {layout.flow}",
    )
