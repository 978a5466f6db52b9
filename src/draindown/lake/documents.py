"""Files that are there whole or not at all, readable by this user alone."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from draindown.base.errors import TerminalError
from draindown.lake.layout import FlowLayout

T = TypeVar("T")
_NAMED = 40  # characters of a file's name in that of its draft: a name has room for 255


def absolute(path: str | Path) -> str:
    """A file as it was taken in, whatever directory it is named from: without `..`, and links as they are."""
    return os.path.abspath(path)  # noqa: PTH100 - `resolve` follows links, `absolute` leaves `..`


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


def put_if_absent(path: Path, content: bytes) -> bool:
    """Make the file, whole, unless there is one: what a store must offer to hold a shared lease.

    A hard link is made where no file is or not at all, on NFS too. Returns whether this call made it.
    """
    temporary = written(path, content)
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        # an answer that got lost and a second try of the file system's client look the same as another's file
        return temporary.stat().st_nlink > 1
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str, content: Any) -> None:
    """Write JSON by rename, so that a reader sees the old file or the new one, readable by this user alone."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace(target, json.dumps(content, indent=1, default=str).encode())


def read_json(path: str) -> Any | None:
    """The JSON at `path`, or None where there is no file. Raises ValueError if it is torn."""
    target = Path(path)
    return json.loads(target.read_text()) if target.is_file() else None


def kept(path: str, what: Callable[[Any], T], *, without: str, copied: bool = True) -> T | None:
    """What the JSON at `path` says, made by `what`, or None where there is no file; for what nothing else knows.

    `what` raises ValueError, TypeError, LookupError or AttributeError of other content. `without`: what going on
    without the file means; `copied`: whether an older copy of it would do. Raises TerminalError `state-damaged`.
    """
    try:
        content = read_json(path)
        return None if content is None else what(content)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise TerminalError(
            "state-damaged",
            tried="read what is kept about the flow",
            found=f"{path} is torn, or not what was written there: {str(error).splitlines()[0]}",
            next=[f"restore {path} from a copy"] * copied
            + [f"mv {shlex.quote(path)} {shlex.quote(path)}.damaged   # {without}"],
        ) from None


def make_home(layout: FlowLayout) -> None:
    """Make the directory of what draindown keeps about the flow, where there is none: for its owner alone.

    Whatever the umask: checkpoint, reports and gate results tell of records, and who writes there decides what is read.
    """
    home = Path(layout.home)
    for place in (home.parent.parent, home.parent):
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
