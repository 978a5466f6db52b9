"""Keep what libraries print by themselves off the terminal: a panic in a thread of Rust, which no Python code sees."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STDERR = 2


@contextmanager
def set_apart() -> Iterator[None]:
    """Send what is written to file descriptor 2 to a file, while `sys.stderr` goes where it went.

    The file is named at the end if anything is in it, else removed. Without a stderr nothing is done.
    """
    before = sys.stderr
    try:
        own = os.dup(_STDERR)
    except OSError:
        yield
        return
    handle, name = tempfile.mkstemp(prefix="draindown-", suffix=".stderr")
    os.dup2(handle, _STDERR)
    os.close(handle)
    encoding = getattr(before, "encoding", None) or "utf-8"
    sys.stderr = os.fdopen(own, "w", buffering=1, encoding=encoding, errors="backslashreplace")
    try:
        yield
    finally:
        os.dup2(own, _STDERR)
        sys.stderr.close()
        sys.stderr = before
        _tell(Path(name))


def _tell(path: Path) -> None:
    if path.stat().st_size:
        sys.stderr.write(f"draindown: a library printed by itself; that is in {path}\n")
    else:
        path.unlink()
