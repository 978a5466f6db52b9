"""Decide which maintenance is worth doing, from Delta's logs alone. Reads no data and starts no
JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from draindown.base import clock
from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.config.targets import RETAIN_FLOOR, Maintenance
from draindown.gate import published
from draindown.lake.flow_tables import flow_tables
from draindown.lake.home import FlowHome
from draindown.lake.intervals import interval_seconds
from draindown.lake.table import Table
from draindown.planning.open_rows import HistoryFile, end_path, open_share, worth_rewriting
from draindown.recovery.opening import Needs, open_flow
from draindown.runs import report
from draindown.runs.report import CompactPart, StepReport
from draindown.runs.request import Request
from draindown.sources.tables import readers, registered

SMALL_FILES = 8
"""Small files in a partition from which reading them costs more than a rewrite, which saves half of
them or more.
"""
DELETED_RATIO = 0.2
"""Fraction of deleted rows above which a rewrite pays off. Readers then skip at least one row per
four live rows.
"""
_SHORT_SECONDS = 10.0  # forecast below which a compaction is no wait for flows that read the table
_TABLE_SECONDS = (
    2.0  # of a table to rewrite or vacuum, whatever its size: plans, a commit and its check
)
_BYTES_PER_SECOND = (
    8_000_000  # of compressed files, in a JVM without its second compiler on two cores
)
VACUUM_EVERY = timedelta(days=1)
"""Minimum time between two vacuums of a table. Old files cost storage, not time; each vacuum costs
commits.
"""
RETENTION = "delta.deletedFileRetentionDuration"
"""Table property: how long Delta keeps files that were removed from the table."""


@dataclass(frozen=True)
class Partition:
    """Files of one partition. `values` are typed. `rows` includes deleted rows. Sizes are bytes.

    Of a history, whose open rows are kept apart, `small` counts the files that are
    `worth_rewriting`, `bytes` is their size, and `mixed` counts those among them that are not small
    and hold both kinds of rows.
    """

    values: tuple[tuple[str, Any], ...]
    files: int
    small: int
    bytes: int
    rows: int
    deleted: int
    mixed: int = 0
    apart: bool = False

    @property
    def name(self) -> str:
        """Display name: `day=2013-01-01`, or `all` for a table without partitions."""
        return (
            "/".join(
                f"{column}={'null' if value is None else value}" for column, value in self.values
            )
            or "all"
        )

    def wants_merge(self, *, force: bool = False) -> bool:
        """Return whether to merge its small files, or to write open rows of a history apart."""
        least = 1 if self.apart else 2
        return self.mixed > 0 or self.small >= (least if force else SMALL_FILES)

    def wants_purge(self, *, force: bool = False) -> bool:
        """Return whether to rewrite its files without their deleted rows."""
        return self.deleted > (0 if force else DELETED_RATIO * self.rows)


@dataclass(frozen=True)
class TableWork:
    """The partitions of a table that need a rewrite. `label` is the table's display name."""

    label: str
    path: str
    merge: tuple[Partition, ...]
    purge: tuple[Partition, ...]

    def __bool__(self) -> bool:
        return bool(self.merge or self.purge)

    @property
    def apart(self) -> bool:
        """Whether rows without an end are written into files of their own: it is a history."""
        return any(partition.apart for partition in (*self.merge, *self.purge))

    @property
    def bytes(self) -> int:
        """Size of the partitions to rewrite."""
        return sum(partition.bytes for partition in {*self.merge, *self.purge})

    def __str__(self) -> str:
        parts = []
        if self.merge:
            what, how = (
                ("file", " to be written with open and closed rows apart")
                if self.apart
                else ("small file", "")
            )
            parts.append(
                f"{count(sum(p.small for p in self.merge), what)}{how} in {_partitions(self.merge)}"
            )
        if self.purge:
            rows, deleted = sum(p.rows for p in self.purge), sum(p.deleted for p in self.purge)
            parts.append(f"{deleted / rows:.0%} deleted rows in {_partitions(self.purge)}")
        return f"{self.label}: {', '.join(parts)}"


def _partitions(chosen: Sequence[Partition]) -> str:
    return count(len(chosen), "partition")


@dataclass(frozen=True)
class Work:
    """Work of a maintenance step. `kept`: why old files stay although a vacuum is due."""

    tables: tuple[TableWork, ...] = ()
    vacuum: tuple[tuple[str, str], ...] = ()
    kept: str = ""

    def __bool__(self) -> bool:
        return bool(self.tables or self.vacuum)

    @property
    def seconds(self) -> float:
        """Forecast of its time in a JVM that runs already."""
        rewritten = sum(table.bytes for table in self.tables)
        return (
            _TABLE_SECONDS * (len(self.tables) + len(self.vacuum)) + rewritten / _BYTES_PER_SECOND
        )

    def __str__(self) -> str:
        parts = [str(table) for table in self.tables]
        if self.vacuum:
            parts.append(f"old files to remove in {', '.join(label for label, _ in self.vacuum)}")
        if self.kept:
            parts.append(self.kept)
        return "; ".join(parts) or "nothing to do"


def work(layout: FlowHome, maintenance: Maintenance, *, force: bool = False) -> Work:
    """Return the work that is due for the flow's tables. Excludes the intake, since a stream reads
    its commits.
    """
    tables = [one for one in reversed(flow_tables(layout, 1)) if one.compacted]
    present = [(one.name, one.table) for one in tables if one.table.exists]
    found = (
        assess(label, log, maintenance.target_file_size, force=force) for label, log in present
    )
    kept = kept_back(layout, maintenance.retain)
    due = tuple(_expired(layout, present, maintenance.retain))
    if kept:
        due = tuple((label, path) for label, path in due if path != layout.tables.target.path)
    return Work(tuple(table for table in found if table), due, kept)


def joins(request: Request) -> bool:
    """Return whether the driver of a drain should compact too: work is due, and nobody waits long
    for it.

    Flows that read the table begin once the drain's task has ended, so they would wait for the
    compaction.
    """
    due = work(request.layout, request.declared.maintenance, force=request.force)
    return bool(due) and (not readers.readers(request) or due.seconds < _SHORT_SECONDS)


def idle(request: Request) -> StepReport | None:
    """Run the compact step without Spark if no work is due: carry the published pointer. Return
    None if work is due.

    Raises TransientError `lease-held`.
    """
    started, layout = clock.now(), request.layout
    with open_flow(
        request.spec, request.flow, Needs.LEASE, owner=request.owner, run_id=request.run_id
    ):
        published.carry(layout)
        found = work(layout, request.declared.maintenance, force=request.force)
    return (
        None
        if found
        else report.of(request, started, "idle", compact=CompactPart(evidence=str(found)))
    )


def assess(label: str, log: Table, target_file_size: int, *, force: bool = False) -> TableWork:
    """Return the partitions of a table that need a rewrite. A file is small below half of the
    target file size.
    """
    every = partitions(log, target_file_size, force=force)
    return TableWork(
        label,
        log.path,
        merge=tuple(p for p in every if p.wants_merge(force=force)),
        purge=tuple(p for p in every if p.wants_purge(force=force)),
    )


def partitions(log: Table, target_file_size: int, *, force: bool = False) -> list[Partition]:
    """Return all partitions of a table with statistics of their files."""
    adds, deleted = log.added_files(), log.deleted_rows()
    columns = [name for name in adds.column_names if name.startswith("partition.")]
    end = end_path(log.fields)
    without_end = f"null_count.{'.'.join(end)}" if end else ""
    if without_end not in adds.column_names:
        end = None  # no history: it has rows of one, and no statistics of their ends
    told = [
        name
        for name in ("path", "size_bytes", "num_records", without_end)
        if name in adds.column_names
    ]
    groups: dict[tuple[tuple[str, Any], ...], list[HistoryFile]] = {}
    values_of = {name.removeprefix("partition."): _values(adds[name]) for name in columns}
    for at, row in enumerate(adds.select(told).to_pylist()):
        values = tuple((name, held[at]) for name, held in values_of.items())
        kind = open_share(row["num_records"], row.get(without_end))
        one = HistoryFile(
            row["size_bytes"], row["num_records"] or 0, deleted.get(row["path"], 0), kind
        )
        groups.setdefault(values, []).append(one)
    ratio = 0 if force else DELETED_RATIO
    return [
        _partition(values, files, target_file_size, None if end is None else ratio)
        for values, files in groups.items()
    ]


def _partition(
    values: tuple[tuple[str, Any], ...],
    files: Sequence[HistoryFile],
    target_file_size: int,
    ratio: float | None,
) -> Partition:
    """Return a partition. `ratio`: of a history, the share of deleted rows from which on a file is
    rewritten.
    """
    small = [one for one in files if one.size < target_file_size // 2]
    chosen = small if ratio is None else worth_rewriting(files, target_file_size, ratio)
    return Partition(
        values,
        files=len(files),
        small=len(chosen),
        bytes=sum(one.size for one in (files if ratio is None else chosen)),
        rows=sum(one.rows for one in files),
        deleted=sum(one.gone for one in files),
        mixed=0 if ratio is None else sum(one.is_mixed and one not in small for one in chosen),
        apart=ratio is not None,
    )


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a partition column's values. Dates and times outside the range of Python's calendar
    become their numbers.

    These numbers are returned as bytes, so that no SQL literal is made of them.
    """
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        kind = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
        found = [
            None if number is None else str(number).encode()
            for number in column.cast(kind).to_pylist()
        ]
    return found


def _expired(
    layout: FlowHome, present: Iterable[tuple[str, Table]], retain: int
) -> Iterable[tuple[str, str]]:
    last = vacuumed(layout)
    for label, log in present:
        at = (last.get(label) or {}).get("at")
        # a time in the future is that of a clock that was wrong
        if at is not None and timedelta(0) <= now() - datetime.fromisoformat(at) < VACUUM_EVERY:
            continue
        # the longer of both retentions, as Delta applies them, rounded up to whole hours
        hours = -(-max(RETAIN_FLOOR, retain, retention_of(log)) // 3600)
        if log.has_expired_files(hours):
            yield label, log.path


def retention_of(log: Table) -> int:
    """Return how long removed files stay, in seconds, by the table's properties."""
    return interval_seconds(log.properties.get(RETENTION), RETAIN_FLOOR)


def vacuumed(layout: FlowHome) -> dict[str, Any]:
    """Return when each table was last vacuumed, by its label. Return nothing if the file is missing
    or torn.
    """
    try:
        found: dict[str, Any] = (layout.vacuumed.read() or {"tables": {}})["tables"]
        for one in found.values():
            _ = now() - datetime.fromisoformat(one["at"])
    # torn file: the tables are vacuumed again, which finds nothing
    except (ValueError, TypeError, LookupError, AttributeError):
        return {}
    return found


def remember_vacuumed(layout: FlowHome, label: str, *, files: int, run_id: str) -> None:
    """Record that a table was vacuumed now. Call it under the lease."""
    this = {"at": now().isoformat(), "files": files, "run_id": run_id}
    layout.vacuumed.write({"tables": vacuumed(layout) | {label: this}})


def kept_back(layout: FlowHome, retain: int, at: datetime | None = None) -> str:
    """Return why the target's old files must stay: the published version or a reader needs them. ""
    if none does.

    `at`: point in time to decide for; None: now.
    """
    at = at or now()
    # Files must last until the next check and through the rewrite that precedes a vacuum, hence one
    # interval of slack.
    kept_for = timedelta(seconds=max(RETAIN_FLOOR, retain)) - VACUUM_EVERY
    return _kept_for_published(layout, at - kept_for) or _kept_for_readers(layout, at, kept_for)


def _kept_for_readers(layout: FlowHome, at: datetime, kept_for: timedelta) -> str:
    try:
        behind = [
            one for one in registered.waiting(layout) if kept_for <= one.age(at) < registered.GONE
        ]
    except TerminalError as error:  # nobody knows what that reader needs; doctor names the document
        return f"old files stay: {error.found}"
    if not behind:
        return ""
    last = max(behind, key=lambda one: one.age(at))
    return f"old files stay: {last.reader} has yet to read what changed since {last.since:%Y-%m-%d}"


def _kept_for_published(layout: FlowHome, before: datetime) -> str:
    pointer = published.published(layout)
    removal = published.oldest_needed_removal(layout) if pointer else None
    if pointer is None or removal is None:
        return ""
    if removal > before:
        return ""
    return f"old files stay: published version {pointer.version} needs them (changed since {removal:%Y-%m-%d})"
