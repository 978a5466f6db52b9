"""A small JSON document that several hosts can change concurrently, without locks.

    0000000007.json   revision 7, complete and immutable. The newest revision is the document

A change is a compare-and-swap. A writer that read revision 7 creates revision 8. Of concurrent
writers one succeeds; the others read again and retry. It only needs an atomic `Store.create`, so it
works on a mount whose hosts don't share file locks.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from draindown.lake.documents import create_json, kept

T = TypeVar("T")
KEPT = 5
"""Revisions that are kept, including the newest: a reader can be this many changes late after
listing the directory.
"""
_NAME = re.compile(r"(\d{10})\.json")
_OLD = re.compile(
    r"(\d{10})\.json|\.(\d{10})\.json\..*\.tmp"
)  # also matches drafts of a crashed writer
_LISTINGS = 20  # attempts, if the listed file is gone


@dataclass(frozen=True)
class Revisions(Generic[T]):
    """The revisions of one document in the directory `home`.

    Attributes:
        home: created by the first change, with access for its owner only.
        parse: parses the JSON; raises as `documents.kept` requires on invalid content.
        without: the consequence of continuing without a damaged newest revision, for people.
    """

    home: Path
    parse: Callable[[Any], T]
    without: str

    def newest(self) -> tuple[int, T | None]:
        """Return number and content of the newest revision; 0 and None before the first.

        Raises TerminalError `state-damaged`; OSError ESTALE if the listing keeps naming a file that
        is gone.
        """
        for _ in range(_LISTINGS):
            number = self._newest_number()
            found = (
                kept(str(self._path(number)), self.parse, without=self.without) if number else None
            )
            if found is not None or not number:
                return number, found
            # the revision was removed after the listing, so newer ones exist
        raise OSError(
            errno.ESTALE, "the listing names a file that is gone", str(self._path(number))
        )

    def put(self, after: int, content: Any) -> bool:
        """Create the revision after number `after` with `content` (plain JSON). Return whether this
        call created it.

        Also returns False if KEPT or more revisions followed before this call ended. The change may
        be one of those, so changes must be idempotent.

        Atomic: after a crash, the revision is complete or absent.
        """
        self.home.mkdir(mode=0o700, exist_ok=True)
        number = after + 1
        try:
            if not create_json(str(self._path(number)), content):
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
        try:
            names = os.listdir(self.home)  # noqa: PTH208 (names alone)
        except FileNotFoundError:
            return 0
        number = max(
            (int(found[1]) for name in names if (found := _NAME.fullmatch(name))), default=0
        )
        while (
            number and self._path(number + 1).exists()
        ):  # a network file system may return a stale listing
            number += 1
        return number

    def _remove_old(self, newest: int) -> None:
        for path in self.home.iterdir():
            found = _OLD.fullmatch(path.name)
            if found and int(found[1] or found[2]) <= newest - KEPT:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.home / f"{number:010}.json"
