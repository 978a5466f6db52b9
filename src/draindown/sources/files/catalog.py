"""The files that a flow has taken in, as its intake records them: what `sources.intake` does not
know of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from draindown.base.clock import EPOCH
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, literal
from draindown.sources import intake
from draindown.sources.files.inspection import Verified

COLUMNS = pa.schema(
    [
        ("mtime_ns", pa.int64()),
        ("sha256", pa.string()),
        ("lines", pa.int64()),
        ("blank", pa.int64()),
        ("header", pa.string()),
        ("multiline", pa.bool_()),
        ("bom", pa.bool_()),
    ]
)
"""The columns that the intake of files has besides those of every intake."""
SHARED = 1
"""Any generation: all share the intake of files."""
_KNOWN = "input as path, bytes as size, mtime_ns, slice"


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A path of the intake table: its size and mtime when the file was taken in, and its slice."""

    path: str
    size: int
    mtime_ns: int
    slice: int


def last_slice(layout: FlowHome) -> int:
    """The newest slice; 0 before the first."""
    return intake.newest(layout, SHARED)


def create(layout: FlowHome) -> None:
    """Create the empty intake table if it does not exist, so that a stream can start on it."""
    intake.create(layout, SHARED, COLUMNS)


def append_slice(layout: FlowHome, files: Sequence[Verified], now: datetime, number: int) -> None:
    """Pin files as slice `number`. Raises TransientError `lease-lost` as `intake.append` does."""
    intake.append(layout, SHARED, COLUMNS, [_row(file, now) for file in files], now, number)


def _row(file: Verified, now: datetime) -> dict[str, object]:
    return {name: getattr(file, name) for name in COLUMNS.names} | {
        "input": file.path,
        "start": 0,
        "until": file.counted,
        "bytes": file.size,
        "unpacked": file.raw_bytes,
        "records": file.records,
        "arrived_at": arrival(file.mtime_ns, now),
    }


def arrival(mtime_ns: int, first_seen: datetime) -> datetime:
    """Return when a file arrived: the earlier of when it was first seen and its mtime."""
    return min(EPOCH + timedelta(microseconds=mtime_ns // 1000), first_seen)


def find(layout: FlowHome, paths: Iterable[str]) -> dict[str, KnownFile]:
    """Return those of `paths` that the intake table holds.

    Memory grows with the number of known paths, but there is no Python object per path.
    """
    wanted = intake.strings(list(paths))
    found: dict[str, KnownFile] = {}
    for part in _all_known(layout, _log(layout)):
        hits = part.filter(pc.is_in(part["path"], value_set=wanted))
        found |= {row["path"]: KnownFile(**row) for row in hits.to_pylist()}
    return found


def outside(layout: FlowHome, directories: Sequence[str]) -> list[tuple[str, int]]:
    """Return path and size of the known files that are below none of the directories, the smallest
    first.
    """
    found: list[tuple[str, int]] = []
    for part in _all_known(layout, _log(layout)):
        for directory in directories:
            part = part.filter(pc.invert(pc.starts_with(part["path"], f"{directory}/")))
        found += zip(part["path"].to_pylist(), part["size"].to_pylist(), strict=True)
    return sorted(found, key=lambda file: file[1])


def hashes(layout: FlowHome, paths: Sequence[str]) -> dict[str, str]:
    """Return the hash of each known file's bytes when it was taken in, by path."""
    rows = _log(layout).rows(
        f"select input, sha256 from t where input in ({', '.join(map(literal, ['', *paths]))})"
    )
    return {row["input"]: row["sha256"] for row in rows}


def sha256(layout: FlowHome, file: KnownFile) -> str:
    """The hash of a file's bytes when it was taken in."""
    where = f"slice = {file.slice} and input = {literal(file.path)}"
    return str(_log(layout).rows(f"select sha256 from t where {where}")[0]["sha256"])


def headers(layout: FlowHome) -> dict[str, str | None]:
    """The CSV header record of every file taken in, by path; None for one without."""
    rows = _log(layout).rows("select input, header from t")
    return {row["input"]: row["header"] for row in rows}


def unpack_ratio(layout: FlowHome, recent: int = 20) -> float | None:
    """Return unpacked size / packed size of the gzipped files in the newest slices; None without
    any.
    """
    newest = last_slice(layout)
    if not newest:
        return None
    sql = (
        "select sum(unpacked) as unpacked, sum(bytes) as size from t "
        f"where slice > {newest - recent} and input like '%.gz' and bytes > 0"
    )
    row = _log(layout).rows(sql)[0]
    return row["unpacked"] / row["size"] if row["size"] else None


def remember(layout: FlowHome) -> None:
    """Write all known files to one cache file, so that later reads need only it and the slices
    after it.

    The table stays the source of truth: if the cache is missing, truncated or older, the table is
    read. The caller holds the lease.
    """
    log = _log(layout)
    newest = log.version if log.exists else 0
    parts = _all_known(layout, log)
    if not newest or (len(parts) == 1 and newest < _CACHE_FROM):
        return
    whole = pa.concat_tables(parts).replace_schema_metadata({"slice": str(newest), "table": log.id})
    target = Path(_cache(layout))
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix="_", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as out, pa.ipc.new_file(out, whole.schema) as writer:
            writer.write_table(whole)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


_CACHE_FROM = 8  # slices; for fewer, reading the table costs less than writing a cache


def _all_known(layout: FlowHome, log: Table) -> list[pa.Table]:
    newest = log.version if log.exists else 0
    if not newest:
        return []
    cached = _read_cache(layout, newest, log.id)
    if cached is None:
        return [log.query(f"select {_KNOWN} from t")]
    parts, upto = [cached], int(cached.schema.metadata[b"slice"])
    if upto < newest:
        parts.append(log.query(f"select {_KNOWN} from t where slice > {upto}"))
    return [part.replace_schema_metadata() for part in parts]


def _read_cache(layout: FlowHome, newest: int, table_id: str) -> pa.Table | None:
    try:
        with pa.memory_map(_cache(layout)) as file:
            table = pa.ipc.open_file(file).read_all()
        facts = table.schema.metadata
        return (
            table
            if facts[b"table"].decode() == table_id and int(facts[b"slice"]) <= newest
            else None
        )
    except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError):
        return None


def _log(layout: FlowHome) -> Table:
    return layout.tables.intake(SHARED)


def _cache(layout: FlowHome) -> str:
    # Delta ignores files whose name begins with _
    return f"{layout.tables.intake(SHARED).path}/_known.arrow"
