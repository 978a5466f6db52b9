"""Copies of input files in a form that Spark can read: multi-line CSV, ORC with time zones, very
wide Parquet.

The driver writes them and executors read them. So the spool is in the flow's home in the lake,
which every host of the cluster can reach. The copies are deleted when their batch ends.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def emptied(spool: str) -> Iterator[None]:
    """Empty the flow's spool before and after the block. The caller must hold the lease.

    Before the block, the spool can contain copies of a driver that was killed.
    """
    shutil.rmtree(spool, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(spool, ignore_errors=True)


def new_file(spool: str) -> Path:
    """Return the path of a new Parquet file in the spool, in a directory that only the owner can
    access.
    """
    home = Path(spool).absolute()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="records-", dir=home)) / "records.parquet"
