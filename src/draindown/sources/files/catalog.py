"""The files that a flow has taken in, as the intake table records them. One commit is one cut, one cut is one batch.

Commit N of the table is cut N; version 0 creates the table. The holder of the flow's lease is the only writer.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from draindown.base.errors import TransientError
from draindown.base.formatting import count
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog, literal, log_of, moment
from draindown.sources.files.inspection import Verified

SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("first_seen", pa.timestamp("us", "UTC")),
        ("sha256", pa.string()),
        ("lines", pa.int64()),
        ("blank", pa.int64()),
        ("raw_bytes", pa.int64()),
        ("records", pa.int64()),
        ("header", pa.string()),
        ("multiline", pa.bool_()),
        ("bom", pa.bool_()),
        ("cut", pa.int64()),
    ]
)
_STATISTICS = ("path", "cut", "first_seen")
_APP = "intake"
_KNOWN = "path, size, mtime_ns, cut"


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A path of the intake table: its size and mtime when the file was taken in, and its cut."""

    path: str
    size: int
    mtime_ns: int
    cut: int


@dataclass(frozen=True)
class Taken:
    """A file as the intake recorded it."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    cut: int


@dataclass(frozen=True)
class Waiting:
    """Cuts that no batch has processed.

    `oldest` is the earliest first sight or mtime of a file, in seconds since 1970; None if there is none.
    """

    cuts: int = 0
    files: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    oldest: float | None = None


def last_cut(layout: FlowLayout) -> int:
    """The newest cut; 0 before the first."""
    intake = log_of(layout, layout.intake)
    return intake.version if intake.exists else 0


def create(layout: FlowLayout) -> None:
    """Create the empty intake table if it does not exist, so that a stream can start on it."""
    delta.create(layout.intake, SCHEMA, statistics=_STATISTICS, private=True)


def append_cut(layout: FlowLayout, files: Sequence[Verified], now: datetime, cut: int) -> None:
    """Append cut number `cut` in one commit. `now` becomes the files' `first_seen`.

    Raises TransientError `lease-lost` if the cut exists already: another driver takes in at the same time, and its cuts
    may hold these files.
    """
    create(layout)
    rows = [_row(file) | {"first_seen": now, "cut": cut} for file in files]
    if not delta.append(layout.intake, pa.Table.from_pylist(rows, schema=SCHEMA), app=(_APP, cut)):
        raise TransientError(
            "lease-lost",
            tried=f"take in {count(len(files), 'file')} of flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"another driver took in cut {cut} in the meantime",
            changed="whole cuts only, each file in one",
            next=f"draindown run {layout.pipeline}",
        )


def _row(file: Verified) -> dict[str, object]:
    return {name: getattr(file, name, None) for name in SCHEMA.names}


def find(layout: FlowLayout, paths: Iterable[str]) -> dict[str, KnownFile]:
    """Return those of `paths` that the intake table holds.

    Memory grows with the number of known paths, but there is no Python object per path.
    """
    wanted = _strings(list(paths))
    found: dict[str, KnownFile] = {}
    for part in _all_known(layout, log_of(layout, layout.intake)):
        hits = part.filter(pc.is_in(part["path"], value_set=wanted))
        found |= {row["path"]: KnownFile(**row) for row in hits.to_pylist()}
    return found


def sha256(layout: FlowLayout, file: KnownFile) -> str:
    """The hash of a file's bytes when it was taken in."""
    where = f"cut = {file.cut} and path = {literal(file.path)}"
    return str(log_of(layout, layout.intake).rows(f"select sha256 from t where {where}")[0]["sha256"])


def taken_in(layout: FlowLayout) -> list[Taken]:
    """Every file that the intake has, in the order of its cuts."""
    sql = "select path, size, mtime_ns, sha256, cut from t order by cut, path"
    return [Taken(**row) for row in log_of(layout, layout.intake).rows(sql)]


def recorded(
    layout: FlowLayout, paths: Sequence[str] = (), within: tuple[datetime, datetime] | None = None
) -> list[dict[str, Any]]:
    """All that the intake says of some files, `first_seen` included, in the order of its cuts: of those at `paths`.

    Without paths, of those first seen `within` two times, at the first or later and before the second; else of none.
    """
    names = ", ".join(name for name in SCHEMA.names if name != "raw_bytes")
    if paths:
        meant = f"path in ({', '.join(map(literal, paths))})"
    elif within is not None:
        meant = f"first_seen >= {moment(within[0])} and first_seen < {moment(within[1])}"
    else:
        return []
    return log_of(layout, layout.intake).rows(f"select {names} from t where {meant} order by cut, path")


def waiting(layout: FlowLayout, first_cut: int) -> Waiting:
    """Return the files of the cuts from `first_cut` on."""
    if last_cut(layout) < first_cut:
        return Waiting()
    sql = (
        "select count(distinct cut) as cuts, count(*) as files, coalesce(sum(size), 0) as bytes, "
        "coalesce(sum(raw_bytes), 0) as raw_bytes, "
        "min(least(cast(to_unixtime(first_seen) as double), mtime_ns / 1e9)) as oldest "
        f"from t where cut >= {int(first_cut)}"
    )
    return Waiting(**log_of(layout, layout.intake).rows(sql)[0])


def headers(layout: FlowLayout) -> dict[str, str]:
    """The CSV header record of every file taken in, by path."""
    rows = log_of(layout, layout.intake).rows("select path, header from t where header is not null")
    return {row["path"]: row["header"] for row in rows}


def unpack_ratio(layout: FlowLayout, recent_cuts: int = 20) -> float | None:
    """Return unpacked size / packed size of the gzipped files in the newest cuts; None without any."""
    newest = last_cut(layout)
    if not newest:
        return None
    sql = (
        "select sum(raw_bytes) as raw_bytes, sum(size) as size from t "
        f"where cut > {newest - recent_cuts} and path like '%.gz' and size > 0"
    )
    row = log_of(layout, layout.intake).rows(sql)[0]
    return row["raw_bytes"] / row["size"] if row["size"] else None


def remember(layout: FlowLayout) -> None:
    """Write all known files to one cache file, so that later reads need only it and the cuts after it.

    The table stays the source of truth: if the cache is missing, truncated or older, the table is read. The caller
    holds the lease.
    """
    intake = log_of(layout, layout.intake)
    newest = intake.version if intake.exists else 0
    parts = _all_known(layout, intake)
    if not newest or (len(parts) == 1 and newest < _CACHE_FROM):
        return
    whole = pa.concat_tables(parts).replace_schema_metadata({"cut": str(newest), "table": intake.id})
    target = Path(_cache(layout))
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix="_", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as out, pa.ipc.new_file(out, whole.schema) as writer:
            writer.write_table(whole)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


_CACHE_FROM = 8  # cuts; for fewer, reading the table costs less than writing a cache


def _all_known(layout: FlowLayout, intake: TableLog) -> list[pa.Table]:
    newest = intake.version if intake.exists else 0
    if not newest:
        return []
    cached = _read_cache(layout, newest, intake.id)
    if cached is None:
        return [intake.query(f"select {_KNOWN} from t")]
    parts, upto = [cached], int(cached.schema.metadata[b"cut"])
    if upto < newest:
        parts.append(intake.query(f"select {_KNOWN} from t where cut > {upto}"))
    return [part.replace_schema_metadata() for part in parts]


def _read_cache(layout: FlowLayout, newest: int, table_id: str) -> pa.Table | None:
    try:
        with pa.memory_map(_cache(layout)) as file:
            table = pa.ipc.open_file(file).read_all()
        facts = table.schema.metadata
        return table if facts[b"table"].decode() == table_id and int(facts[b"cut"]) <= newest else None
    except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError):
        return None


def _cache(layout: FlowLayout) -> str:
    # Delta ignores files whose name begins with _
    return f"{layout.intake}/_known.arrow"


def _strings(texts: list[str]) -> pa.Array:
    """Return an array of strings without `pa.array`, which imports pandas."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    offsets = array("q", [0, *accumulate(map(len, encoded))])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers).cast(pa.string())
