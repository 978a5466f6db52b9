"""The errors for a source table whose older versions can't be read any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from draindown.base.errors import DraindownError, TerminalError
from draindown.lake.home import FlowHome

_GONE = (
    "FILE_NOT_EXIST",
    "FileNotFoundException",
    "DELTA_CHANGE_DATA_FILE_NOT_FOUND",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_VERSION_NOT_FOUND",
)
"""What Spark and Delta say of a data file, a change file or a commit that the log names and that is
not there.
"""
_RESHAPED = "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE"
"""How the names of Delta's errors begin for changes that it can't read with the columns of the
newest version.
"""


@contextmanager
def kept(layout: FlowHome, read: Mapping[str, int]) -> Iterator[None]:
    """Replace an error of the block by TerminalError `history-gone` if Spark misses a file of the
    source table.

    It is `source-replaced` if somebody renamed or dropped columns, so that earlier changes can't be
    read with those of now. VACUUM removes files that no current version needs, after the table's
    retention. So a flow that stood still for longer may need files that are gone. `read`: the
    version of each source table that the batch reads.
    """
    try:
        yield
    except DraindownError:
        raise
    except Exception as error:
        if _RESHAPED in str(error):
            code, found = (
                "source-replaced",
                "somebody renamed or dropped columns, or gave them other types, since then",
            )
        elif any(mark in str(error) for mark in _GONE):
            code = "history-gone"
            found = (
                "files of that version, or of changes before it, are not there: VACUUM removed "
                "them, or a person did"
            )
        else:
            raise
        raise _unread(code, layout, _named(read, str(error)), found) from error


def dropped(layout: FlowHome, path: str, until: int, columns: Sequence[str]) -> TerminalError:
    """Return the error for columns that a source table has no more, as after a rebuild that left
    them out.
    """
    found = f"the table lacks {', '.join(columns)} now, and changes are read with the columns of its newest version"
    return _unread("source-replaced", layout, f"{path} up to version {until}", found)


def _unread(code: str, layout: FlowHome, read: str, found: str) -> TerminalError:
    return TerminalError(
        code,
        tried=f"read what changed in {read}, for flow {layout.flow}",
        found=found,
        changed="nothing of this batch is in the table",
        next=f"draindown reset {layout.pipeline}/{layout.flow}   # compares the whole table with its source",
    )


def _named(read: Mapping[str, int], message: str) -> str:
    """Return the tables that a message names, or all, each with the version that is read."""
    tables = [path for path in read if f"{path}/" in message] or list(read)
    return " and ".join(f"{path} up to version {read[path]}" for path in tables)
