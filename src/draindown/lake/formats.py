"""The format number of draindown's documents and tables, stored with each so that no other version
misreads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draindown.base.errors import TerminalError

FORMAT = 1
"""Format number of every document, report and request, and of every table that draindown
creates.
"""
FIELD = "format"
"""Key of the format number in a JSON object."""
PROPERTY = "draindown.format"
"""Table property with the format number.

A table without it is accepted: after a crash during table creation, Spark may create the table
without it.
"""


def refuse_unknown(what: str, found: object, *, otherwise: str = "") -> None:
    """Refuse a format number other than FORMAT. Raises TerminalError `format-unknown`.

    `what`: the file or other object that was read. `found`: its format number. `otherwise`: the
    alternative to installing another version, for people.
    """
    if found == FORMAT and not isinstance(found, bool):
        return
    raise TerminalError(
        "format-unknown",
        tried=f"read {what}",
        found=f"{what} is of format {str(found)[:40]!r}; this version of draindown reads format {FORMAT}",
        next=[
            "pip install --upgrade draindown   # the version that wrote it, or a newer one; then try again",
            otherwise or f"restore the whole lake from a copy of before {what} was written",
        ],
    )


def refuse_unknown_table(path: str, properties: Mapping[str, Any]) -> None:
    """Refuse a table that another version of draindown created. Raises TerminalError
    `format-unknown`.
    """
    found = properties.get(PROPERTY)
    if found is not None:
        refuse_unknown(path, int(found) if str(found).isdecimal() else found)
