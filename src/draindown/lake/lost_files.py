"""Files that a table's log lists and that are not there: VACUUM removed them, or a person did."""

from __future__ import annotations

import json
import re

from deltalake.exceptions import DeltaError

from draindown.lake.table import Table

_VECTOR = re.compile(r"[^/\s\"']*deletion_vector_[0-9a-f-]+\.bin")
_LISTED = 20_000
"""Most data files for which a plan lists a table: about 10 microseconds each on a local disk."""


def lost_files(table: Table) -> list[str]:
    """Return the paths of data files of a version that don't exist; if all do, of a deletion vector
    that doesn't.
    """
    return _absent(table) or _lost_vectors(table)


def absent_files(table: Table) -> list[str]:
    """Return the paths of data files of a version that don't exist, for plans.

    Empty for a table of more than 20,000 files. Deletion vectors are not looked for.
    """
    return [] if table.added_files().num_rows > _LISTED else _absent(table)


def _absent(table: Table) -> list[str]:
    names = table.added_files()["path"].to_pylist()
    files = {file for name in names if (file := table.file(name)) is not None}
    return sorted(table.absent(files))


def vacuumed(table: Table, version: int, file: str) -> int | None:
    """Return the version of the VACUUM that may have removed a file of an earlier `version`; None
    if none may have.

    That is one after the commit that took the file out of the table.
    """
    taken_out = _taken_out(table, version, file)
    if taken_out is None:
        return None
    later = (
        commit.version
        for commit in table.commits_since(taken_out)
        if commit.operation.startswith("VACUUM")
    )
    return min(later, default=None)


def _taken_out(table: Table, version: int, file: str) -> int | None:
    """Return the first commit after `version` that removes a data file from the table; None if the
    log has none.
    """
    for number in range(version + 1, table.version + 1):
        removed = (
            json.loads(line)["remove"]["path"]
            for line in table.log.lines(number)
            if line.startswith(b'{"remove"')
        )
        if any(table.file(name) == file for name in removed):
            return number
    return None


def _lost_vectors(table: Table) -> list[str]:
    """Return the path of a deletion vector that doesn't exist. deltalake lists none, and reads all
    or fails.
    """
    try:
        table.deleted_rows()
    except DeltaError as error:
        if named := _VECTOR.search(str(error)):
            return [f"{table.path}/{named[0]}"]
        raise
    return []
