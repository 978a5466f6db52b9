"""Connections to DuckDB, in memory. What does not fit there goes to a temporary directory, never to
the working one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb


def connect(temporary: Path, zone: str = "UTC") -> duckdb.DuckDBPyConnection:
    """Return a connection that spills into `temporary`, installs nothing, and takes times without a
    zone for `zone`'s.

    By default DuckDB spills into `.tmp` of the working directory, which may be read-only, and which
    nobody clears.
    """
    db = duckdb.connect(
        config={"temp_directory": str(temporary), "autoinstall_known_extensions": "false"}
    )
    db.execute(f"set timezone = '{zone}'")
    return db


@contextmanager
def connected() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with a temporary directory of its own, in UTC."""
    with (
        TemporaryDirectory(prefix="draindown-duckdb-") as temporary,
        closing(connect(Path(temporary))) as db,
    ):
        yield db
