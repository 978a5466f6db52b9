"""JSON documents of a lake: written atomically, each with its format. Errors name the damaged
file.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from draindown.base.errors import TerminalError
from draindown.lake.formats import FIELD, FORMAT, refuse_unknown
from draindown.lake.stores import store_of

T = TypeVar("T")


@dataclass(frozen=True)
class Document:
    """A JSON document of a lake, which need not exist.

    Attributes:
        path: where it is.
        opened: what a view has read, by path; None outside of a view.
    """

    path: str
    opened: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.path

    @property
    def exists(self) -> bool:
        """Whether the document exists."""
        return self._bytes() is not None

    @property
    def raw(self) -> bytes | None:
        """The bytes of the document, whatever they are; None if it is absent."""
        return self._bytes()

    def read(self) -> dict[str, Any] | None:
        """Return the content, or None if the document is absent.

        Raises ValueError if it is truncated or not a document; TerminalError `format-unknown` if
        another version wrote it.
        """
        found = self._bytes()
        return None if found is None else decode(self.path, found)

    def parsed(
        self, parse: Callable[[dict[str, Any]], T], *, without: str, copied: bool = True
    ) -> T | None:
        """Return what `parse` makes of the content, or None if the document is absent. For state
        that can't be derived.

        `parse` raises ValueError, TypeError, LookupError or AttributeError on invalid content.
        `without`: for people, the consequence of continuing without the file. `copied`: whether an
        older copy of the file is a valid replacement.

        Raises TerminalError `state-damaged`, `format-unknown`.
        """
        try:
            content = self.read()
            return None if content is None else parse(content)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            place = shlex.quote(self.path)
            restore = [f"restore {self.path} from a copy"] if copied else []
            raise TerminalError(
                "state-damaged",
                tried="read what is kept about the flow",
                found=f"{self.path} is torn, or not what was written there: "
                f"{str(error).splitlines()[0]}",
                next=[*restore, f"mv {place} {place}.damaged   # {without}"],
            ) from None

    def write(self, content: Mapping[str, Any]) -> None:
        """Write the document, replacing any content. For one writer at a time, such as the holder
        of the lease.
        """
        self._forget()
        store_of(self.path).put(self.path, encode(content))

    def create(self, content: Mapping[str, Any]) -> bool:
        """Create the document and return whether this call created it. Of concurrent calls, exactly
        one succeeds.
        """
        self._forget()
        return store_of(self.path).create(self.path, encode(content)) is not None

    def delete(self) -> None:
        """Delete the document. No-op if it is absent."""
        self._forget()
        store_of(self.path).delete(self.path)

    def _bytes(self) -> bytes | None:
        if self.opened is not None and self.path in self.opened:
            known: bytes | None = self.opened[self.path]
            return known
        found = store_of(self.path).read(self.path)
        content = None if found is None else found[0]
        if self.opened is not None:
            self.opened[self.path] = content
        return content

    def _forget(self) -> None:
        if self.opened is not None:
            self.opened.pop(self.path, None)


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
