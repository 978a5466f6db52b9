"""A small JSON document that several hosts can change concurrently, without locks.

    0000000007.json   revision 7, complete and immutable. The newest revision is the document

A change is a compare-and-swap. A writer that read revision 7 creates revision 8. Of concurrent
writers one succeeds; the others read again and retry. It only needs an atomic `Store.create`, so it
works on a mount whose hosts don't share file locks.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from draindown.lake.documents import Document
from draindown.lake.stores import store_of

T = TypeVar("T")
R = TypeVar("R")
KEPT = 5
"""Revisions that are kept, including the newest: a reader can be this many changes late after
listing the directory.
"""
_NAME = re.compile(r"(\d{10})\.json")
_LISTINGS = 20  # attempts, if the listed file is gone


@dataclass(frozen=True)
class Revisions(Generic[T]):
    """The revisions of one document.

    Attributes:
        home: the prefix of their keys, without a slash at its end.
        parse: parses the JSON; raises as `Document.parsed` requires on invalid content.
        without: the consequence of continuing without a damaged newest revision, for people.
    """

    home: str
    parse: Callable[[Any], T]
    without: str

    def newest(self) -> tuple[int, T | None]:
        """Return number and content of the newest revision; 0 and None before the first.

        Raises TerminalError `state-damaged`; OSError ESTALE if the listing keeps naming a file that
        is gone.
        """
        return self._read_newest(lambda one: one.parsed(self.parse, without=self.without))

    def newest_bytes(self) -> tuple[int, bytes | None]:
        """Return number and bytes of the newest revision, whatever they are; 0 and None before the
        first. Raises OSError as `newest`.
        """
        return self._read_newest(lambda one: one.raw)

    def at(self, number: int) -> Document:
        """Return the document of one revision, which need not exist."""
        return self._revision(number)

    def _read_newest(self, read: Callable[[Document], R | None]) -> tuple[int, R | None]:
        for _ in range(_LISTINGS):
            number = self._newest_number()
            if not number:
                return 0, None
            content = read(self._revision(number))
            if content is not None:
                return number, content
            # the revision was removed after the listing, so newer ones exist
        raise OSError(
            errno.ESTALE, "the listing names a file that is gone", self._revision(number).path
        )

    def put(self, after: int, content: Any) -> bool:
        """Create the revision after number `after` with `content` (plain JSON). Return whether this
        call created it.

        Also returns False if KEPT or more revisions followed before this call ended. The change may
        be one of those, so changes must be idempotent.

        Atomic: after a crash, the revision is complete or absent.
        """
        number = after + 1
        try:
            if not self._revision(number).create(content):
                return False
        except FileNotFoundError:  # another writer removed this draft, as one of an old revision
            return False
        # A writer that was paused may create a number whose revision existed and was removed since.
        # Then at least KEPT newer revisions exist. With fewer newer ones, this number was not
        # removed and they follow this revision.
        if self._newest_number() >= number + KEPT:
            return False
        self._remove_old(number)
        return True

    def _newest_number(self) -> int:
        number = max(self._numbers(), default=0)
        # a network file system may return a stale listing
        while number and self._revision(number + 1).exists:
            number += 1
        return number

    def _remove_old(self, newest: int) -> None:
        for number in self._numbers():
            if number <= newest - KEPT:
                self._revision(number).delete()

    def _numbers(self) -> list[int]:
        prefix = f"{self.home}/0"  # a number has ten digits; fewer other keys are listed
        names = (entry.name for entry in store_of(prefix).list(prefix))
        return [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]

    def _revision(self, number: int) -> Document:
        return Document(f"{self.home}/{number:010}.json")
