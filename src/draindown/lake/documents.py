"""JSON documents of a lake: written whole, each with its format, and told by name where they are torn."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from draindown.base.errors import TerminalError
from draindown.lake.formats import FIELD, FORMAT, refuse_unknown
from draindown.lake.layout import FlowLayout
from draindown.lake.store import store_of

T = TypeVar("T")


def absolute(path: str | Path) -> str:
    """A file as it was taken in, whatever directory it is named from: without `..`, and links as they are."""
    return os.path.abspath(path)  # noqa: PTH100 - `resolve` follows links, `absolute` leaves `..`


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Write a document, whatever was there. For documents with one writer at a time, such as the lease's holder."""
    store_of(path).put(path, encode(content))


def create_json(path: str, content: Mapping[str, Any]) -> bool:
    """Write a document where there is none; return whether this call wrote it. Of all who try at once, one succeeds."""
    return store_of(path).create(path, encode(content)) is not None


def delete(path: str) -> None:
    """Remove a document, if it is there."""
    store_of(path).delete(path)


def read_json(path: str) -> dict[str, Any] | None:
    """Return the document at `path`, or None where there is none.

    Raises ValueError if it is torn or no document; TerminalError `format-unknown` if another version wrote it.
    """
    found = store_of(path).read(path)
    return None if found is None else decode(path, found[0])


def kept(path: str, what: Callable[[dict[str, Any]], T], *, without: str, copied: bool = True) -> T | None:
    """What the document at `path` says, made by `what`, or None where there is none; for what nothing else knows.

    `what` raises ValueError, TypeError, LookupError or AttributeError of other content. `without`: what going on
    without the file means; `copied`: whether an older copy of it would do. Raises TerminalError `state-damaged`,
    `format-unknown`.
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
    """Return a document as it is written, with its format."""
    return json.dumps({FIELD: FORMAT, **content}, indent=1, default=str).encode()


def decode(path: str, raw: bytes) -> dict[str, Any]:
    """Return the content of a document. Raises ValueError if it is torn, TerminalError `format-unknown`."""
    content = json.loads(raw)
    if not isinstance(content, dict) or FIELD not in content:
        raise ValueError("it names no format")
    refuse_unknown(path, content.pop(FIELD))
    return content


def make_home(layout: FlowLayout) -> None:
    """Make the directory of what draindown keeps about the flow, where there is none: for its owner alone.

    Whatever the umask: checkpoint, reports and gate results tell of records, and who writes there decides what is read.
    """
    home = Path(layout.home)
    for place in (home.parent.parent, home.parent):
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
