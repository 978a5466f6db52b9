"""The format of what draindown writes into a lake, written down beside it, so that no other version misreads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draindown.base.errors import TerminalError

FORMAT = 1
"""Of every document, report and request, and of every table that is draindown's own."""
FIELD = "format"
"""Where a JSON object says it."""
PROPERTY = "draindown.format"
"""Where a Delta table says it. One without is not refused: the engine may make it where a crash left half of one."""


def refuse_unknown(what: str, found: object, *, otherwise: str = "") -> None:
    """Refuse what another version of draindown wrote. Raises TerminalError `format-unknown`.

    `what`: the file, or what else was read; `otherwise`: what may be done instead of using the other version.
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
    """Refuse a table of ours that another version made. Raises TerminalError `format-unknown`."""
    found = properties.get(PROPERTY)
    if found is not None:
        refuse_unknown(path, int(found) if str(found).isdecimal() else found)
