"""JSON documents of a lake: written atomically, each with its format. Errors name the damaged
file.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from draindown.base.errors import TerminalError
from draindown.lake.formats import FIELD, FORMAT, refuse_unknown
from draindown.lake.home import FlowHome
from draindown.lake.store import store_of

T = TypeVar("T")


def absolute(path: str | Path) -> str:
    """Return a path as the intake records it: absolute, without `..`, and with symbolic links
    unresolved.
    """
    return os.path.abspath(path)  # noqa: PTH100 - `resolve` follows links, `absolute` leaves `..`


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Write a document, replacing any content. For documents with one writer at a time, such as the
    lease's holder.
    """
    store_of(path).put(path, encode(content))


def create_json(path: str, content: Mapping[str, Any]) -> bool:
    """Create a document and return whether this call created it. Of concurrent calls, exactly one
    succeeds.
    """
    return store_of(path).create(path, encode(content)) is not None


def delete(path: str) -> None:
    """Delete a document. No-op if it is absent."""
    store_of(path).delete(path)


def read_json(path: str) -> dict[str, Any] | None:
    """Return the document at `path`, or None if it is absent.

    Raises ValueError if it is truncated or not a document; TerminalError `format-unknown` if
    another version wrote it.
    """
    found = store_of(path).read(path)
    return None if found is None else decode(path, found[0])


def kept(
    path: str, what: Callable[[dict[str, Any]], T], *, without: str, copied: bool = True
) -> T | None:
    """Return the document at `path`, parsed by `what`, or None if it is absent. For state that
    can't be derived.

    `what` raises ValueError, TypeError, LookupError or AttributeError on invalid content.
    `without`: for people, the consequence of continuing without the file. `copied`: whether an
    older copy of the file is a valid replacement.

    Raises TerminalError `state-damaged`, `format-unknown`.
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


def encode(content: Mapping[str, Any]) -> bytes:
    """Return the document as bytes, with its format."""
    return json.dumps({FIELD: FORMAT, **content}, indent=1, default=str).encode()


def decode(path: str, raw: bytes) -> dict[str, Any]:
    """Return the content of a document. Raises ValueError if it is truncated, TerminalError
    `format-unknown`.
    """
    content = json.loads(raw)
    if not isinstance(content, dict) or FIELD not in content:
        raise ValueError("it names no format")
    refuse_unknown(path, content.pop(FIELD))
    return content


def make_home(layout: FlowHome) -> None:
    """Create the directory of the flow's state. No-op if it exists.

    Group and others have no access, whatever the umask. Checkpoint, reports and gate results
    contain data of records, and a writer of the directory controls what the flow reads.
    """
    home = Path(layout.home)
    for place in (home.parent.parent, home.parent):
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
