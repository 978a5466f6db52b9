"""The format number of draindown's documents, tables and commits, stored with each so that no other
version misreads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draindown.base.errors import TerminalError

FORMAT = 2
"""Format number of every document, report and request, of every table that draindown creates, and
of what it writes into commits. One number for all: the names of two formats never meet in a lake.
"""
FIELD = "format"
"""Key of the format number in a JSON object."""
PROPERTY = "draindown.format"
"""Table property with the format number.

A table without it is accepted: after a crash during table creation, Spark may create the table
without it.
"""
_ANEW = (
    "give the pipeline another `lake`, then run it: all input is read again",
    "a new lake has no raw Kafka records older than the topic's, no decisions about quarantined or late rows "
    "or lost input, and no waivers",
)


def refuse_unknown(what: str, found: object, *, otherwise: str = "") -> None:
    """Refuse a format number other than FORMAT. Raises TerminalError `format-unknown`.

    There is no migration: what an earlier format holds is made again, in another lake. `what`: the
    file or other object that was read. `found`: its format number. `otherwise`: for what no lake
    holds, how it is made again.
    """
    is_number = isinstance(found, int) and not isinstance(found, bool)
    if is_number and found == FORMAT:
        return
    newer = [
        "pip install --upgrade draindown   # the version that wrote it, or a newer one; then try again",
        otherwise or f"restore the whole lake from a copy of before {what} was written",
    ]
    is_earlier = isinstance(found, int) and is_number and 0 < found < FORMAT and not otherwise
    raise TerminalError(
        "format-unknown",
        tried=f"read {what}",
        found=f"{what} is of format {str(found)[:40]!r}; this version of draindown reads format {FORMAT}",
        next=list(_ANEW) if is_earlier else newer,
    )


def refuse_unknown_table(path: str, properties: Mapping[str, Any]) -> None:
    """Refuse a table that another version of draindown created. Raises TerminalError
    `format-unknown`.
    """
    found = properties.get(PROPERTY)
    if found is not None:
        refuse_unknown(path, int(found) if str(found).isdecimal() else found)
