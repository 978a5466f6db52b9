"""Rows of the ledger: per batch, its input and its outcome, which must add up to the same number.

A commit of the target carries what is known before it as `userMetadata`; its own metrics state what
it changed. The row combines both, so data and ledger can't disagree. The ledger table is only a
projection of these commits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from draindown.base.errors import TerminalError
from draindown.lake.commits import Commit
from draindown.lake.formats import FIELD, FORMAT, refuse_unknown
from draindown.lake.transactions import WriterId

Place = tuple[int, str, int]
"""Key of a batch, unique within a flow: generation, kind, number."""
BatchKind = Literal["drain", "release", "replay", "withdraw"]
BatchForm = Literal["land", "derive", "history", "partial"]
"""What a batch does: records to rows of a target by a contract, to its history, or to its columns
one by one; touched keys to it by a query."""
WITHDRAW: BatchKind = "withdraw"
"""Kind of a batch that moves rows from the target to the quarantine."""
FATES = ("superseded", "duplicate", "inserted", "updated", "deleted", "tombstoned")
RUNS = ("opened", "split", "closed", "reopened", "changed", "joined", "removed")
"""What a batch of a history does to rows: it inserts, updates and deletes them."""
_RECORDS = ("records", ("applied", "superseded", "duplicate", "quarantined", "late"))
SUMS: Mapping[BatchForm, Sequence[tuple[str, tuple[str, ...]]]] = {
    "land": (_RECORDS,),
    "partial": (_RECORDS,),
    "history": (
        _RECORDS,
        ("inserted", ("opened", "split")),
        ("updated", ("closed", "reopened", "changed")),
        ("deleted", ("joined", "removed")),
    ),
    "derive": (
        ("records", ("used", "unused", "late")),
        ("recomputed", ("inserted", "updated", "deleted", "unchanged", "empty")),
    ),
}
"""By form, the sums that hold in each row: a number, and those that it is the sum of. See
`BatchRow`.
"""
ACCOUNT = ("used", "unused", "recomputed", "unchanged", "empty")
COUNTED = (
    "inputs",
    "bytes",
    "records",
    "quarantined",
    "late",
    *FATES,
    "applied",
    *ACCOUNT,
    "hidden",
    *RUNS,
)
SINK_FATES = ("sent", "deleted", "filtered", "unsendable")
"""What becomes of a row at a sink: sent, deleted there, filtered by `where`, or not to be held by
it.
"""
TIMES = ("changed_at", "started_at", "finished_at")
_KEY = "draindown"
_SWAP = "draindown_rebuilt"


@dataclass(frozen=True)
class BatchRow:
    """One batch in the ledger. Counts are rows unless named otherwise. Times are UTC. `seconds` is
    wall time.

        records = applied + superseded + duplicate + quarantined + late
        applied = inserted + updated + deleted + tombstoned

    A batch of a derived flow (`form`: derive) has two accounts instead. Its input are images of
    rows: a changed row of the source as it was, or as it is. Its output are touched rows,
    recomputed and compared with the table.

        records = used + unused + late
        recomputed = inserted + updated + deleted + unchanged + empty

    A batch of a history (`form`: history) has records as the first and rows as the second account.
    `applied` are events that count, whether a row shows them or not:

        records = applied + superseded + duplicate + quarantined + late
        inserted = opened + split        (rows that begin with an event of the batch, or with one that was within a row)
        updated = closed + reopened + changed
        deleted = joined + removed       (rows whose first event is within another row now, or counts no more)

    A batch that merges column by column (`form`: partial) has records as the first account, too.
    `applied` are records that gave the row of their key a value, and deletes; rows are inserted,
    updated and deleted as the commit says:

        records = applied + superseded + duplicate + quarantined + late

    `inputs`, `bytes`, `records`: sums of what the batch read, which is in the table `inputs`. A
    batch that reads no source (kinds release and withdraw) has records and no inputs. `unused`:
    images without a trace in what the query reads, such as an update of other columns. `empty`:
    touched rows that neither the query returns nor the table has. `reread`: rows in the files of
    the sources that could hold touched rows, of those that are read again. `tombstoned`: deletes of
    keys that the target did not hold, or of which it keeps newer columns. `hidden`: of a history
    the events that were added to the hidden ones. `history`: by which columns a history was folded,
    or rows were merged, as JSON. `changed_at`: timestamp of the rows that the batch changed, later
    than that of every earlier batch. `attempt`: the start of the step that committed the batch.
    `sinks`: by sink, what became of the rows there: applied = sent + deleted + filtered +
    unsendable. A sink of quarantined rows has their number as `quarantined` in the place of
    applied; of rows that are merged it is those that differ.
    """

    pipeline: str
    flow: str
    generation: int
    batch: int
    run_id: str
    kind: BatchKind = "drain"
    slice: int = 0
    inputs: int = 0
    bytes: int = 0
    records: int = 0
    quarantined: int = 0
    late: int = 0
    superseded: int = 0
    duplicate: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    tombstoned: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    sinks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    max_sequence: str | None = None
    changed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    seconds: float = 0.0
    table_version: int = -1
    attempt: str = ""
    form: BatchForm = "land"
    applied: int = 0
    used: int = 0
    unused: int = 0
    recomputed: int = 0
    unchanged: int = 0
    empty: int = 0
    reread: int = 0
    hidden: int = 0
    opened: int = 0
    split: int = 0
    closed: int = 0
    reopened: int = 0
    changed: int = 0
    joined: int = 0
    removed: int = 0
    history: str = ""

    def __post_init__(self) -> None:
        if self.form in ("land", "derive"):  # as many as the commit changed and tombstones remember
            applied = self.inserted + self.updated + self.deleted + self.tombstoned
            object.__setattr__(self, "applied", applied)

    @property
    def place(self) -> Place:
        """Key of the batch: generation, kind, number."""
        return self.generation, self.kind, self.batch

    def child(self, purpose: str) -> WriterId:
        """Return the transaction id of the batch's row in a table beside the target; the version is
        the batch number.

        Replays may finish in another order than they began, so each of their batches gets an id of
        its own.
        """
        apart = f":{self.batch}" if self.kind == "replay" else ""
        return WriterId(f"{purpose}:{self.generation}:{self.kind}{apart}")

    @property
    def offered(self) -> int:
        """Rows that each sink is asked to take: those applied; of rows that are merged, those that
        differ.
        """
        return (
            self.inserted + self.updated + self.deleted if self.form == "partial" else self.applied
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the row as a flat, JSON-ready dict. Times are ISO 8601."""
        sinks = {name: dict(counts) for name, counts in self.sinks.items()}
        row = asdict(self) | {"reasons": dict(self.reasons), "sinks": sinks}
        return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in row.items()}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> BatchRow:
        """Inverse of `as_dict`. Ignores fields that this version does not have."""
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in row.items() if k in known and v is not None}
        for name in TIMES:
            if isinstance(values.get(name), str):
                values[name] = datetime.fromisoformat(values[name])
        for name in ("reasons", "sinks"):
            if isinstance(values.get(name), str):
                values[name] = json.loads(values[name])
        return cls(**values)

    def as_metadata(self) -> str:
        """Return what is known before the target's commit, as JSON for its `userMetadata`."""
        return json.dumps({_KEY: {FIELD: FORMAT, **self.as_dict()}}, separators=(",", ":"))


def conserve(row: BatchRow, *, fates_seen: Mapping[str, tuple[int, int]] | None = None) -> BatchRow:
    """Return `row` if its numbers add up.

    `fates_seen` maps the name of an outcome to (count expected by the batch, count from another
    source). Each pair must be equal. Raises TerminalError `ledger-does-not-add-up`, which names
    every sum that fails.
    """
    sums = {**_sums(row), **_sent(row), **(fates_seen or {})}
    wrong = [
        f"{name}: {left} against {right}" for name, (left, right) in sums.items() if left != right
    ]
    if wrong:
        raise not_adding_up(row, wrong)
    return row


def _sums(row: BatchRow) -> dict[str, tuple[int, int]]:
    reasons = {"quarantined = sum of reasons": (row.quarantined, sum(row.reasons.values()))}
    return reasons | {
        f"{whole} = {' + '.join(parts)}": (
            getattr(row, whole),
            sum(getattr(row, part) for part in parts),
        )
        for whole, parts in SUMS[row.form]
    }


def _sent(row: BatchRow) -> dict[str, tuple[int, int]]:
    """Return the sum of each sink: every row that was applied, or refused, has one fate there."""
    return {
        f"{'quarantined' if 'quarantined' in counts else 'applied'} = {' + '.join(SINK_FATES)} (sink {name})": (
            counts.get("quarantined", row.offered),
            sum(counts.get(fate, 0) for fate in SINK_FATES),
        )
        for name, counts in row.sinks.items()
    }


def not_adding_up(row: BatchRow, wrong: Sequence[str]) -> TerminalError:
    """Return the error that blocks a batch from being published. `wrong` describes each sum that
    fails.

    A derived flow is proven, not audited, and a reset compares its table with its source, whatever
    a batch did to it.
    """
    changed = "the batch may be in the table, but it will not be published"
    own, report = f"{row.pipeline}/{row.flow}", f"draindown report {row.pipeline} --json"
    again = f"draindown rebuild {own}   # says what it reads again; its table takes the place of a wrong one"
    next_ = [f"draindown audit {row.pipeline}", report, again]
    if row.form == "derive":
        compare = f"draindown reset {own}   # compares the whole table with its source"
        next_ = [
            f"draindown audit {own}   # names the rows of the table that are wrong",
            report,
            compare,
        ]
    if row.form == "derive" and row.table_version < 0:
        changed = "nothing of this batch is in the table"
        next_.remove(report)
    return TerminalError(
        "ledger-does-not-add-up",
        tried=f"close the ledger of flow {row.flow}, generation {row.generation}, batch {row.batch}",
        found="; ".join(wrong),
        changed=changed,
        next=next_,
        in_order=True,
    )


def from_commit(commit: Commit) -> BatchRow | None:
    """Return the ledger row of a target's commit, or None if draindown did not write the commit.

    Raises TerminalError `format-unknown`.
    """
    known = commit.note.get(_KEY)
    if not isinstance(known, dict):
        return None
    refuse_unknown(f"the batch of table version {commit.version}", known.get(FIELD))
    finished = datetime.fromtimestamp(commit.timestamp / 1000, UTC)
    row = replace(BatchRow.from_dict(known), finished_at=finished, table_version=commit.version)
    if row.started_at is not None:
        row = replace(row, seconds=round((finished - row.started_at).total_seconds(), 3))
    inserted, updated, deleted = commit.rows_changed
    return replace(row, inserted=inserted, updated=updated, deleted=deleted)


def closed(commit: Commit) -> BatchRow | None:
    """Return the row of `from_commit` after verifying it: it adds up, and the commit changed what
    its writer expected.

    Raises TerminalError `ledger-does-not-add-up`.
    """
    row = from_commit(commit)
    if row is None:
        return None
    expected = commit.note[_KEY]
    pairs = {
        name: (int(expected.get(name, 0)), getattr(row, name))
        for name in ("inserted", "updated", "deleted")
    }
    return conserve(row, fates_seen=pairs)


def adds_up(commit: Commit) -> bool:
    """Return whether `closed` accepts a commit."""
    try:
        return closed(commit) is not None
    except TerminalError as error:
        if error.code != "ledger-does-not-add-up":
            raise
        return False


@dataclass(frozen=True)
class Swap:
    """Metadata of the commit that replaced the live table by a rebuilt generation.

    The log of the rebuilt table has the commits of its batches. `rows`: number of rows in that
    table.
    """

    pipeline: str
    flow: str
    generation: int
    batches: int
    rows: int
    run_id: str

    def as_metadata(self) -> str:
        """Return the metadata as JSON for the commit's `userMetadata`."""
        return json.dumps({_SWAP: {FIELD: FORMAT, **asdict(self)}}, separators=(",", ":"))


def swap_of(commit: Commit) -> Swap | None:
    """Return the swap metadata of a target's commit; None for every other commit.

    Raises TerminalError `format-unknown`.
    """
    known = commit.note.get(_SWAP)
    if not isinstance(known, dict):
        return None
    refuse_unknown(f"the rebuild of table version {commit.version}", known.get(FIELD))
    try:
        return Swap(**{name: value for name, value in known.items() if name != FIELD})
    except TypeError:
        return None


def newest_sequence(texts: Iterable[str]) -> str | None:
    """Return the greatest `max_sequence`: by value if all are numbers, otherwise as text, as ISO
    times sort.
    """
    known = list(texts)
    try:
        return max(known, key=Decimal, default=None)
    except InvalidOperation:
        return max(known)


def quarantined_share(rows: Iterable[BatchRow]) -> float | None:
    """Return the fraction of quarantined records in source batches, 0 to 1; None if there are no
    records.

    Replays, released rows and withdrawals do not count. Their records came in before, or a person
    refused them.
    """
    source = [row for row in rows if row.kind == "drain"]
    records = sum(row.records for row in source)
    return sum(row.quarantined for row in source) / records if records else None


def sink_totals(rows: Iterable[BatchRow]) -> dict[str, dict[str, int]]:
    """Return sums over batches of what became of rows at each sink, by its name."""
    sums: dict[str, dict[str, int]] = {}
    for row in rows:
        for name, counts in row.sinks.items():
            own = sums.setdefault(name, dict.fromkeys(SINK_FATES, 0))
            for fate in SINK_FATES:
                own[fate] += counts.get(fate, 0)
    return sums


def total(rows: Iterable[BatchRow]) -> dict[str, int]:
    """Return sums over batches of every counted column, and `batches`."""
    rows = list(rows)
    return {"batches": len(rows)} | {
        name: sum(getattr(row, name) for row in rows) for name in COUNTED
    }
