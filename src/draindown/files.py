"""Files that are there whole or not at all, readable by this user alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_NAMED = 40  # characters of a file's name in that of its draft: a name has room for 255


def written(path: Path, content: bytes) -> Path:
    """A draft of `path` beside it, on disk; hidden, and named after it. Whoever calls moves or links it into place."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:_NAMED]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def replace(path: Path, content: bytes) -> None:
    """Write by rename, so that a reader sees the old file or the new one."""
    draft = written(path, content)
    try:
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
