"""What must hold between raw input, the ledger and the target, for each kind of target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from draindown.audit.accepted import images_with, rows_accepted, rows_by_origin
from draindown.audit.context import AuditContext
from draindown.audit.definitions import Definitions
from draindown.audit.files import FileFacts
from draindown.audit.histories import HistoryRecount
from draindown.audit.keys import MOST, KeyRecount, unusable
from draindown.audit.merged_rows import MergedRecount
from draindown.audit.model import Collector
from draindown.audit.record_tables import unfolded
from draindown.audit.records import Records
from draindown.audit.withdrawals import withheld_keys
from draindown.base.formatting import count
from draindown.config.names import END_AT, START_AT
from draindown.config.partial import SEQUENCES
from draindown.lake.table import Table, identifier


class Invariant(Protocol):
    """The invariant of one kind of target."""

    @property
    def keys(self) -> Collector | None:
        """Collects the keys, or more, of raw records while their files are read; None if the
        invariant needs none.
        """

    def settle(self, context: AuditContext, facts: Sequence[FileFacts], *, all_files: bool) -> None:
        """Add a residue for everything that does not hold. `facts`: one per raw file that was
        read.
        """

    def settle_records(self, context: AuditContext, records: Records) -> None:
        """Add a residue for everything that does not hold of a flow whose raw records the lake
        keeps, or none.
        """


def invariant_of(context: AuditContext, temporary: Path) -> Invariant:
    """The invariant of the flow's target; it may use the directory `temporary`."""
    return _INVARIANTS[context.flow.target.kind.name](context, temporary)


class Appended:
    """The table holds every raw record that was not refused, by its origin, once."""

    keys = None

    def __init__(self, context: AuditContext, temporary: Path) -> None:
        """Needs nothing beforehand."""

    def settle(self, context: AuditContext, facts: Sequence[FileFacts], *, all_files: bool) -> None:
        """Compare the number of rows with the ledger, and the origins of the rows with the raw
        records.

        If a raw file is gone, rows that come from no file are not looked for.
        """
        rows = self._count(context)
        if all_files:
            again = sum(b.inserted for b in context.batches if b.kind == "release")
            read_again = sum(1 for run_id in context.released.values() if not run_id)
            wanted = (
                sum(fact.accepted for fact in facts) + again + read_again + rows_accepted(context)
            )
            what = "raw records that weren't refused against rows"
            context.expect("appended-rows", context.layout.tables.target.path, wanted, rows, what)
        _origins(context, facts, all_files=all_files)

    def settle_records(self, context: AuditContext, records: Records) -> None:
        """Compare the number of rows with the ledger, and each origin with the raw records."""
        self._count(context)
        records.settle_rows()

    @staticmethod
    def _count(context: AuditContext) -> int:
        return _count_rows(
            context, sum(batch.inserted for batch in context.batches), "inserted against rows"
        )


class Upserted:
    """The table holds the newest raw record of every key, unless it is deleted or withheld."""

    def __init__(self, context: AuditContext, temporary: Path) -> None:
        self._why_not = unusable(context.flow, context.root)
        self._keys = None if self._why_not else KeyRecount(context.flow, temporary)

    @property
    def keys(self) -> KeyRecount | None:
        """Collects keys and sequences, if the audit can recount them."""
        return self._keys

    def settle(self, context: AuditContext, facts: Sequence[FileFacts], *, all_files: bool) -> None:  # noqa: ARG002
        """Compare the number of rows with the ledger, and every key with the raw records."""
        live = sum(batch.inserted - batch.deleted for batch in context.batches)
        _count_rows(context, live, "inserted - deleted against rows in the table")
        if self._why_not:
            context.unlooked.append(self._why_not)
        if self._keys:
            _keys(context, self._keys, all_files=all_files)

    def settle_records(self, context: AuditContext, records: Records) -> None:
        """As for files, with the keys that the raw records have."""
        self.settle(context, [], all_files=records.whole)


class Historical:
    """The table is the fold of all raw events of each key."""

    def __init__(self, context: AuditContext, temporary: Path) -> None:
        self._why_not = unfolded(context.flow)
        self._recount = self._recounted(context, temporary)

    @staticmethod
    def _recounted(context: AuditContext, temporary: Path) -> HistoryRecount | MergedRecount:
        newest = Definitions(context).newest
        return HistoryRecount(
            context.flow, temporary, None if newest is None else newest.get("tracked")
        )

    @property
    def keys(self) -> Collector | None:
        """All columns of the contract, if the audit can fold them."""
        return None if self._why_not else self._recount

    def settle(self, context: AuditContext, facts: Sequence[FileFacts], *, all_files: bool) -> None:  # noqa: ARG002
        """Compare the number of rows with the ledger, rows of a key with each other, and all with
        the raw records.
        """
        live = sum(batch.inserted - batch.deleted for batch in context.batches)
        _count_rows(context, live, "inserted - deleted against rows")
        table = context.layout.tables.target
        if lacking := [name for name in self._needed(context) if name not in table.column_types]:
            context.unlooked.append(
                f"rows and raw records: the table has no {', '.join(lacking)} yet"
            )
            return
        if excused := self._recount.accept(images_with(context, context.flow.target.keys)):
            context.unlooked.append(
                f"rows of {count(excused, 'key')} that accepted commits changed"
            )
        context.residues += self._recount.rows(table)
        if self._why_not or not all_files:
            gone = "the fold of raw records: not all of them are left"
            context.unlooked.append(self._why_not or gone)
            return
        if withheld := withheld_keys(context, self._recount.names):
            self._recount.add(
                "withheld",
                [pa.array(column, pa.string()) for column in zip(*withheld, strict=True)],
            )
        context.residues += self._recount.fold()
        if unread := self._recount.uncast():
            context.unlooked.append(
                f"the keys of {count(unread, 'record')} of which this audit can't cast a value"
            )
        if early := self._recount.early():
            context.unlooked.append(_early(context, early))

    @staticmethod
    def _needed(context: AuditContext) -> list[str]:
        return [*context.flow.target.essential, START_AT, END_AT]

    def settle_records(self, context: AuditContext, records: Records) -> None:
        """As for files, with the raw records that the lake keeps."""
        self.settle(context, [], all_files=records.whole)


class Merged(Historical):
    """The table is the fold of each column over all raw records of a key, and its tombstones are
    the newest deletes.
    """

    @staticmethod
    def _recounted(context: AuditContext, temporary: Path) -> MergedRecount:
        found, tombstones = (
            MergedRecount(context.flow, temporary),
            context.layout.tables.tombstones,
        )
        if tombstones.exists and {*context.flow.target.essential} <= {*tombstones.column_types}:
            found.deletes(tombstones, _finished(context))
        return found

    @staticmethod
    def _needed(context: AuditContext) -> list[str]:
        return [*context.flow.target.essential, SEQUENCES]


_INVARIANTS: Mapping[str, Callable[[AuditContext, Path], Invariant]] = {
    "append": Appended,
    "upsert": Upserted,
    "partial": Merged,
    "history": Historical,
}


def _early(context: AuditContext, number: int) -> str:
    """Return why records with values in columns that came later are not judged, and what fills
    these.
    """
    layout = context.layout
    again = (
        f"draindown replay {layout.pipeline}/{layout.flow} --from {_EVER[0]} --to {_EVER[1]} --yes"
    )
    some = f"the keys of {count(number, 'record')} with a value in a column that was not there when it was read"
    return f"{some}; this fills it: {again}"


_EVER = ("1970-01-01T00:00Z", "9999-01-01T00:00Z")


def _count_rows(context: AuditContext, expected: int, what: str) -> int:
    """Compare the number of rows by the ledger with the table, and return that of the table."""
    rows = context.layout.tables.target.row_count
    context.seen["rows in the table"] = rows
    expected += rows_accepted(context)
    if rows != expected and context.hides_restore:
        context.unlooked.append(
            f"row-count: {expected} {what}, {rows}; the table's log was cleaned up between two generations, and a "
            "RESTORE there takes back what the ledger counts"
        )
    else:
        context.expect("row-count", context.layout.tables.target.path, expected, rows, what)
    return rows


_UNIT, _POSITION = f"{identifier('_origin')}['input']", f"{identifier('_origin')}['position']"
_DOUBLED = f"""select {_UNIT} as input, {_POSITION} as position, count(*) as rows from t
    group by {_UNIT}, {_POSITION} having count(*) > 1 order by input, position limit {MOST}"""
_BY_UNIT = f"""select {_UNIT} as input, count(*) as rows, coalesce(sum({_POSITION}), 0) as positions,
    coalesce(sum(cast({_POSITION} as decimal(19, 0)) * cast({_POSITION} as decimal(19, 0))), 0) as squares from t
    group by {_UNIT} order by input"""


def _origins(context: AuditContext, facts: Sequence[FileFacts], *, all_files: bool) -> None:
    """Compare number and positions of the rows of each unit with its raw records; no origin stands
    there twice.
    """
    table = context.layout.tables.target
    accepted = rows_by_origin(context)
    for row in table.rows(_DOUBLED):
        where, more = (
            f"{row['input']}:{row['position']}",
            max(0, accepted.get((row["input"], row["position"]), 0)),
        )
        context.expect("double-origin", where, 1, max(1, row["rows"] - more), "rows of one record")
    held = {
        row["input"]: tuple(int(row[n]) for n in ("rows", "positions", "squares"))
        for row in table.rows(_BY_UNIT)
    }
    for (unit, position), number in accepted.items():
        rows, positions, squares = held.get(unit, (0, 0, 0))
        at = position or 0
        held[unit] = rows - number, positions - number * at, squares - number * at * at
    for fact in facts:
        rows, *sums = held.pop(fact.path, (0, 0, 0))
        context.expect(
            "appended-records",
            fact.path,
            fact.held,
            rows,
            "records of the file against rows of its origin",
        )
        if rows == fact.held:
            # which rows they are by two sums of powers: exchanged rows change one of them at least,
            # but for rare chance
            for what, own, found in zip(
                ("positions", "squared positions"),
                (fact.held_positions, fact.held_squares),
                sums,
                strict=True,
            ):
                told = f"sum of the records' {what} against that of the rows"
                context.expect("appended-positions", fact.path, own, found, told)
    for unit, (rows, *_) in held.items() if all_files else ():
        context.expect("origin-from-nowhere", str(unit), 0, rows, "rows of no file that was read")


def _keys(context: AuditContext, keys: KeyRecount, *, all_files: bool) -> None:
    for name, path in (
        ("target", context.layout.tables.target.path),
        ("tombstones", context.layout.tables.tombstones.path),
    ):
        if Table(path).exists:
            chosen = ", ".join(identifier(column) for column in keys.names)
            finished = "" if name == "target" else _finished(context)
            found: pa.Table = Table(path).query(f"select {chosen} from t{finished}")
            keys.add(name, found.columns)
    withheld = withheld_keys(context, keys.names)
    if withheld:
        keys.add(
            "withheld", [pa.array(column, pa.string()) for column in zip(*withheld, strict=True)]
        )
    keys.accept(images_with(context, keys.names))
    context.residues += [*keys.doubled(), *keys.compare(all_files=all_files)]
    unread = keys.uncast()
    if unread:
        context.unlooked.append(
            f"the keys of {count(unread, 'record')} whose key or sequence this audit can't cast"
        )
    context.unlooked += (
        []
        if all_files
        else ["keys in the table that no raw file holds: not all raw files are left"]
    )


def _finished(context: AuditContext) -> str:
    if context.unfinished is None:
        return ""
    generation, number = context.unfinished
    return f" where not (_generation = {generation} and _batch = {number} and _kind = 'drain')"
