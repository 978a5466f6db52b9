"""What maintenance would be good for, from Delta's logs alone: no data is read, no JVM started."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from draindown.base import clock
from draindown.base.clock import now
from draindown.base.formatting import count
from draindown.gate import published
from draindown.lake.documents import read_json, write_json
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog, log_of
from draindown.recovery.opening import Needs, open_flow
from draindown.runs import report
from draindown.runs.report import CompactPart, StepReport
from draindown.runs.request import Request
from draindown.spec.targets import RETAIN_FLOOR, Maintenance

SMALL_FILES = 8
"""So many small files in a partition are worth a rewrite: reading them costs more than merging them, and a rewrite
then saves at least half of the files."""
DELETED_RATIO = 0.2
"""Above this part of deleted rows, every read of a partition carries a quarter of useless rows or more."""
VACUUM_EVERY = timedelta(days=1)
"""Old files cost money, not time: looking for them more often only costs commits."""
RETENTION = "delta.deletedFileRetentionDuration"
"""Property of a table: how long files that left it stay."""
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


@dataclass(frozen=True)
class Partition:
    """Files of one partition. `values` are typed; rows include the deleted ones, sizes are bytes."""

    values: tuple[tuple[str, Any], ...]
    files: int
    small: int
    bytes: int
    rows: int
    deleted: int

    @property
    def name(self) -> str:
        """As people know it: `day=2013-01-01`, or `all` for a table without partitions."""
        return "/".join(f"{column}={'null' if value is None else value}" for column, value in self.values) or "all"

    def wants_merge(self, *, force: bool = False) -> bool:
        """Whether its small files should become fewer."""
        return self.small >= (2 if force else SMALL_FILES)

    def wants_purge(self, *, force: bool = False) -> bool:
        """Whether its files should be rewritten without their deleted rows."""
        return self.deleted > (0 if force else DELETED_RATIO * self.rows)


@dataclass(frozen=True)
class Table:
    """A table's partitions that deserve a rewrite; `label` is what people call the table."""

    label: str
    path: str
    merge: tuple[Partition, ...]
    purge: tuple[Partition, ...]

    def __bool__(self) -> bool:
        return bool(self.merge or self.purge)

    def __str__(self) -> str:
        parts = []
        if self.merge:
            parts.append(f"{count(sum(p.small for p in self.merge), 'small file')} in {_partitions(self.merge)}")
        if self.purge:
            rows, deleted = sum(p.rows for p in self.purge), sum(p.deleted for p in self.purge)
            parts.append(f"{deleted / rows:.0%} deleted rows in {_partitions(self.purge)}")
        return f"{self.label}: {', '.join(parts)}"


def _partitions(chosen: Sequence[Partition]) -> str:
    return count(len(chosen), "partition")


@dataclass(frozen=True)
class Work:
    """What a maintenance step has to do; `kept` says why old files stay although a day has passed."""

    tables: tuple[Table, ...] = ()
    vacuum: tuple[tuple[str, str], ...] = ()
    kept: str = ""

    def __bool__(self) -> bool:
        return bool(self.tables or self.vacuum)

    def __str__(self) -> str:
        parts = [str(table) for table in self.tables]
        if self.vacuum:
            parts.append(f"old files to remove in {', '.join(label for label, _ in self.vacuum)}")
        if self.kept:
            parts.append(self.kept)
        return "; ".join(parts) or "nothing to do"


def work(layout: FlowLayout, maintenance: Maintenance, *, force: bool = False) -> Work:
    """What is worth doing now for the flow's tables. The intake is left alone: a stream reads its commits."""
    present = [(label, log) for label, path in _tables(layout) if (log := log_of(layout, path)).exists]
    found = (assess(label, log, maintenance.target_file_size, force=force) for label, log in present)
    kept = kept_back(layout, maintenance.retain)
    due = tuple(_expired(layout, present, maintenance.retain))
    if kept:
        due = tuple((label, path) for label, path in due if path != layout.table)
    return Work(tuple(table for table in found if table), due, kept)


def idle(request: Request) -> StepReport | None:
    """The compact step where no work is due: it carries the published pointer, and needs no Spark. None where some is.

    Raises TransientError `lease-held`.
    """
    started, layout = clock.now(), request.layout
    with open_flow(request.spec, request.flow, Needs.LEASE, owner=request.owner, run_id=request.run_id):
        published.carry(layout)
        found = work(layout, request.flow_spec.maintenance, force=request.force)
    return None if found else report.of(request, started, "idle", compact=CompactPart(evidence=str(found)))


def _tables(layout: FlowLayout) -> list[tuple[str, str]]:
    return [
        ("table", layout.table),
        ("tombstones", layout.tombstones),
        ("quarantine", layout.quarantine),
        ("ledger", layout.ledger),
    ]


def assess(label: str, log: TableLog, target_file_size: int, *, force: bool = False) -> Table:
    """The partitions of one table that deserve a rewrite. A file below half of the target size is small."""
    every = partitions(log, target_file_size)
    return Table(
        label,
        log.path,
        merge=tuple(p for p in every if p.wants_merge(force=force)),
        purge=tuple(p for p in every if p.wants_purge(force=force)),
    )


def partitions(log: TableLog, target_file_size: int) -> list[Partition]:
    """All partitions of a table with what their files look like."""
    adds = log.added_files()
    columns = [name for name in adds.column_names if name.startswith("partition.")]
    deleted = log.deleted_rows()
    groups: dict[tuple[tuple[str, Any], ...], Counter[str]] = {}
    values_of = {name.removeprefix("partition."): _values(adds[name]) for name in columns}
    for at, row in enumerate(adds.select(["path", "size_bytes", "num_records"]).to_pylist()):
        values = tuple((name, held[at]) for name, held in values_of.items())
        size = row["size_bytes"]
        groups.setdefault(values, Counter()).update(
            files=1,
            small=int(size < target_file_size // 2),
            bytes=size,
            rows=row["num_records"] or 0,
            deleted=deleted.get(row["path"], 0),
        )
    return [Partition(values, **{k: n[k] for k in _COUNTS}) for values, n in groups.items()]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """A partition column's values; of times that Python's calendar doesn't have, the numbers that stand for them.

    These are bytes: no literal of SQL is made of them.
    """
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        kind = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
        found = [None if number is None else str(number).encode() for number in column.cast(kind).to_pylist()]
    return found


_COUNTS = ("files", "small", "bytes", "rows", "deleted")


def _expired(layout: FlowLayout, present: Iterable[tuple[str, TableLog]], retain: int) -> Iterable[tuple[str, str]]:
    last = vacuumed(layout)
    for label, log in present:
        at = (last.get(label) or {}).get("at")
        recently = at is not None and now() - datetime.fromisoformat(at) < VACUUM_EVERY
        if recently:
            continue
        # as Delta does, by the longer of both; in whole hours, of which the table's own time may have none
        hours = -(-max(RETAIN_FLOOR, retain, retention_of(log)) // 3600)
        if log.has_expired_files(hours):
            yield label, log.path


def retention_of(log: TableLog) -> int:
    """Seconds for which files that left the table stay, by its properties."""
    return duration(log.properties.get(RETENTION), RETAIN_FLOOR)


def duration(interval: str | None, default: int) -> int:
    """Seconds of Delta's `interval 7 days`; what can't be read counts as 0, which the floor refuses."""
    if interval is None:
        return default
    parts = re.findall(r"(\d+)\s*(second|minute|hour|day|week)s?\b", interval.lower())
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)


def vacuumed(layout: FlowLayout) -> dict[str, Any]:
    """When each table's old files were last removed, by its label; nothing where that is not known (any more)."""
    try:
        found: dict[str, Any] = (read_json(layout.vacuumed) or {}).get("tables", {})
        for one in found.values():
            _ = now() - datetime.fromisoformat(one["at"])
    except (ValueError, TypeError, LookupError, AttributeError):  # torn: they are removed again, which finds nothing
        return {}
    return found


def remember_vacuumed(layout: FlowLayout, label: str, *, files: int, run_id: str) -> None:
    """Write down that a table's old files were removed now. Call it under the lease."""
    this = {"at": now().isoformat(), "files": files, "run_id": run_id}
    write_json(layout.vacuumed, {"tables": vacuumed(layout) | {label: this}})


def kept_back(layout: FlowLayout, retain: int, at: datetime | None = None) -> str:
    """Why the target's old files must stay, or "": the published version still reads what was removed after it.

    `at`: the moment asked about; now, if None.
    """
    pointer = published.published(layout)
    removal = published.oldest_needed_removal(layout) if pointer else None
    if pointer is None or removal is None:
        return ""
    # what is kept today must last until it is looked at again, and through the rewrite before a removal
    if (at or now()) - removal < timedelta(seconds=max(RETAIN_FLOOR, retain)) - VACUUM_EVERY:
        return ""
    return f"old files stay: published version {pointer.version} needs them (changed since {removal:%Y-%m-%d})"
