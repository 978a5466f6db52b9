"""Names of the server, as statements have them."""

from __future__ import annotations


def identifier(name: str) -> str:
    """Return a name as a quoted identifier of Postgres."""
    return '"' + name.replace('"', '""') + '"'
