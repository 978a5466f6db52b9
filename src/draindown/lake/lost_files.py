"""Files that a table's log lists and that are not there: VACUUM removed them, or a person did."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from draindown.lake.table_log import TableLog

_VECTOR = re.compile(r"[^/\s\"']*deletion_vector_[0-9a-f-]+\.bin")


def lost_files(log: TableLog) -> list[str]:
    """Return the paths of data files of a version that don't exist; if all do, of a deletion vector that doesn't."""
    # not `file_uris`: it URL-encodes the table's path but does not encode the file's path again
    places = (Path(_plain(log.path)) / unquote(name) for name in log.added_files()["path"].to_pylist())
    return [str(place) for place in places if not place.is_file()] or _lost_vectors(log)


def _lost_vectors(log: TableLog) -> list[str]:
    """Return the path of a deletion vector that doesn't exist. deltalake lists none, and reads all or fails."""
    try:
        log.deleted_rows()
    except DeltaError as error:
        if named := _VECTOR.search(str(error)):
            return [f"{_plain(log.path)}/{named[0]}"]
        raise
    return []


def _plain(path: str) -> str:
    return path.removeprefix("file://") if path.startswith("file:///") else path
