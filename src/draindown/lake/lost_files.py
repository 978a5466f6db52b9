"""Files that a table's log lists and that are not there: VACUUM removed them, or a person did."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from draindown.lake.table import Table

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # Hadoop writes `file:/a` for `file:///a`
_VECTOR = re.compile(r"[^/\s\"']*deletion_vector_[0-9a-f-]+\.bin")


def lost_files(log: Table) -> list[str]:
    """Return the paths of data files of a version that don't exist; if all do, of a deletion vector
    that doesn't.
    """
    # not `file_uris`: it URL-encodes the table's path but does not encode the file's path again
    places = (
        _place(log, name)
        for name in log.added_files()["path"].to_pylist()
        if not _is_elsewhere(name)
    )
    return [str(place) for place in places if not place.is_file()] or _lost_vectors(log)


def absent_files(log: Table) -> list[str]:
    """Return the data files of a version that their directories do not list. Each directory is
    listed once.

    For plans: empty for a table of more than `_LISTED` files, and deletion vectors are not looked
    for.
    """
    files = log.added_files()
    if files.num_rows > _LISTED:
        return []
    names = defaultdict[Path, list[str]](list)
    for name in files["path"].to_pylist():
        if _is_elsewhere(name):
            continue
        place = _place(log, name)
        names[place.parent].append(place.name)
    lacking = (
        (place, name) for place, some in names.items() for name in set(some) - _listed(place, some)
    )
    return sorted(str(place / name) for place, name in lacking)


def _place(log: Table, name: str) -> Path:
    return Path(_plain(log.path)) / unquote(name)


def _is_elsewhere(name: str) -> bool:
    """Return whether a file is named by a URI, as those of a shallow clone are: it is the
    original's.
    """
    return _URI.match(name) is not None


def _listed(directory: Path, names: list[str]) -> set[str]:
    """Return the names in a directory; `names` if it may not be listed."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries}
    except PermissionError:
        return set(names)
    except (FileNotFoundError, NotADirectoryError):
        return set()


_LISTED = 20_000
"""Most data files for which a plan lists directories: about 10 microseconds each on a local
disk.
"""


def vacuumed(log: Table, version: int, file: str) -> int | None:
    """Return the version of the VACUUM that may have removed a file of an earlier `version`; None
    if none may have.

    That is one after the commit that took the file out of the table.
    """
    taken_out = _taken_out(log, version, file)
    if taken_out is None:
        return None
    later = (
        one.version for one in log.commits_since(taken_out) if one.operation.startswith("VACUUM")
    )
    return min(later, default=None)


def _taken_out(log: Table, version: int, file: str) -> int | None:
    """Return the first commit after `version` that removes a data file from the table; None if the
    log has none.
    """
    home = Path(_plain(log.path))
    for number in range(version + 1, log.version + 1):
        commit = home / "_delta_log" / f"{number:020}.json"
        lines = commit.read_bytes().splitlines() if commit.is_file() else []
        removed = (
            json.loads(line)["remove"]["path"] for line in lines if line.startswith(b'{"remove"')
        )
        if any(str(home / unquote(name)) == file for name in removed):
            return number
    return None


def _lost_vectors(log: Table) -> list[str]:
    """Return the path of a deletion vector that doesn't exist. deltalake lists none, and reads all
    or fails.
    """
    try:
        log.deleted_rows()
    except DeltaError as error:
        if named := _VECTOR.search(str(error)):
            return [f"{_plain(log.path)}/{named[0]}"]
        raise
    return []


def _plain(path: str) -> str:
    return path.removeprefix("file://") if path.startswith("file:///") else path
