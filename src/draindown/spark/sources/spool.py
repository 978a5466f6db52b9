"""Copies of input files in a form that Spark reads: multi-line CSV, ORC with time zones, very wide Parquet.

The driver writes them and executors read them, so they lie in the flow's home in the lake, which every host of the
cluster sees as it sees the tables. They live as long as their batch.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def emptied(spool: str) -> Iterator[None]:
    """Empty the flow's spool before and after the block. For the holder of the lease.

    Before, it holds what a killed driver left behind.
    """
    shutil.rmtree(spool, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(spool, ignore_errors=True)


def new_file(spool: str) -> Path:
    """A new Parquet file to write in the spool, readable by its owner only."""
    home = Path(spool).absolute()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="records-", dir=home)) / "records.parquet"
