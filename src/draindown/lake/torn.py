"""Find the file that makes a Delta table unreadable: a commit or a data file that is torn, garbled
or gone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from draindown.base.errors import TerminalError, said
from draindown.base.formatting import size
from draindown.lake import features
from draindown.lake.delta_log import DeltaLog

_READ_WHOLE = 256 * 1024**2
"""Bytes of data files up to which pages are read too. Of a larger table only the footers are."""
_FILE = re.compile(r"file:/*(/[^\s,;)]+?\.parquet)")
_VECTOR = re.compile(r"[^/\s\"']*deletion_vector_[0-9a-f-]+\.bin")
_BROKEN = (
    pa.ArrowException,
    ValueError,
)  # what readers of Parquet and JSON raise for bytes that are not as written


class TableDamaged(TerminalError):
    """A file of a table is not as it was written. Its code is `table-damaged`."""


UNREAD = (TableDamaged, features.Unsupported)
"""The errors of a table that cannot be read, each of which names the table."""


@contextmanager
def named(path: str) -> Iterator[None]:
    """Translate an error of the block, which reads the table at `path`, into one that names the
    file at fault.

    Or the table feature that deltalake lacks: it opens no table with some features, and another
    engine may add one after the table was opened.

    Other errors of the readers pass unchanged: storage that fails, a query that the table can't
    answer.
    """
    try:
        yield
    except (DeltaError, pa.ArrowException) as error:
        damage = torn_file(path)
        if damage is None:
            features.refuse_logged(path)
            raise
        raise _damaged(path, damage) from error


def _damaged(path: str, damage: str) -> TableDamaged:
    return TableDamaged(
        "table-damaged",
        tried=f"read the table {path}",
        found=f"{path}: {damage}",
        next="draindown doctor   # names the flow, and what helps",
    )


def of_error(error: BaseException) -> TableDamaged | None:
    """Return the error that names the torn file if Spark stumbled over one of a table; else
    None.
    """
    for file in dict.fromkeys(_FILE.findall(said(error))):
        table = next(
            (home for home in Path(unquote(file)).parents if (home / "_delta_log").is_dir()), None
        )
        if table is not None and (damage := torn_file(str(table))):
            return _damaged(str(table), damage)
    return None


def torn_file(path: str) -> str | None:
    """Return the first file of the table at `path` that can't be read and how, in words; None if
    there is none.
    """
    try:
        return next(_torn(Path(path)), None)
    except (OSError, DeltaError):  # storage that fails says nothing of what is stored
        return None


def _torn(table: Path) -> Iterator[str]:
    log = DeltaLog(str(table))
    commits = list(log.commits())
    yield from _gaps(commits)
    for number in commits:
        if words := _torn_commit(log, number):
            yield f"commit {number:020}.json {words}"
    for checkpoint in map(Path, (entry.key for entry in log.checkpoints())):
        if words := _torn_parquet(checkpoint, pages=True):
            yield f"checkpoint {checkpoint.name} of its log {words}"
    names = _data_files(table)
    sizes = ((table / name).stat().st_size for name in names if (table / name).exists())
    pages = sum(sizes) <= _READ_WHOLE
    for name in names:
        if words := _torn_parquet(table / name, pages=pages):
            yield f"data file {name} {words}"
    if lost := _lost_vector(table):
        yield f"deletion vector {lost} is gone"


def _gaps(versions: list[int]) -> Iterator[str]:
    for before, version in pairwise(versions):
        if version != before + 1:
            yield f"commit {before + 1:020}.json is gone"


def _torn_commit(log: DeltaLog, number: int) -> str | None:
    raw = log.content(number)
    if raw is None:  # removed since it was listed
        return None
    try:
        actions = [json.loads(line) for line in raw.splitlines() if line.strip()]
    except ValueError:
        return f"is torn or garbled ({size(len(raw))})"
    return None if actions else "is empty"


def _torn_parquet(file: Path, *, pages: bool) -> str | None:
    from pyarrow import parquet

    if not file.exists():
        return "is gone"
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches() if pages else ():
                batch.validate()
    except _BROKEN:
        return f"is torn or garbled ({size(file.stat().st_size)})"
    except OSError as error:
        if error.errno is not None:  # of the system, not of the bytes
            raise
        return f"is torn or garbled ({size(file.stat().st_size)})"
    return None


def _lost_vector(table: Path) -> str | None:
    """Return the name of a deletion vector of the newest version that is not there. deltalake lists
    none.
    """
    if not DeltaTable.is_deltatable(str(table)):
        return None
    opened = DeltaTable(str(table))
    if "deletionVectors" not in (opened.protocol().reader_features or ()):
        return None
    try:
        pa.RecordBatchReader.from_stream(opened.deletion_vectors()).read_all()
    except DeltaError as error:
        named = _VECTOR.search(str(error))
        return named[0] if named and not (table / named[0]).is_file() else None
    return None


def _data_files(table: Path) -> list[str]:
    """Return the data files of the newest version, relative to the table. Its log has to be
    whole.
    """
    if not DeltaTable.is_deltatable(str(table)):
        return []
    adds = pa.RecordBatchReader.from_stream(
        DeltaTable(str(table)).get_add_actions(flatten=True)
    ).read_all()
    return [unquote(name) for name in adds["path"].to_pylist()]
