"""A small JSON document that several hosts may change at once, without locks.

    0000000007.json   revision 7, whole; made once and never changed. The newest counts

A change is a compare-and-swap: who read revision 7 makes revision 8, of all who try one succeeds, and the others read
again. It rests on `Store.create` alone, and so holds on a mount whose hosts don't share file locks.
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
"""Revisions that stay, the newest among them: a reader has so many changes' time between the listing and the file."""
_NAME = re.compile(r"(\d{10})\.json")
_OLD = re.compile(r"(\d{10})\.json|\.(\d{10})\.json\..*\.tmp")  # the drafts of a writer that died too
_LISTINGS = 20  # that name a file which is gone


@dataclass(frozen=True)
class Revisions(Generic[T]):
    """The revisions of one document in the directory `home`.

    Attributes:
        home: made by the first change, for its owner alone.
        parse: makes the document of its JSON; raises as `kept` says where it is something else.
        without: what going on without a damaged newest revision means, for people.
    """

    home: Path
    parse: Callable[[Any], T]
    without: str

    def newest(self) -> tuple[int, T | None]:
        """Number and content of the newest revision; 0 and None before the first.

        Raises TerminalError `state-damaged`.
        """
        for _ in range(_LISTINGS):
            number = self._newest_number()
            found = kept(str(self._path(number)), self.parse, without=self.without) if number else None
            if found is not None or not number:
                return number, found
            # removed since it was listed: newer ones are there
        raise OSError(errno.ESTALE, "the listing names a file that is gone", str(self._path(number)))

    def put(self, after: int, content: Any) -> bool:
        """Make `content` (plain JSON) the revision after the one numbered `after`; false where another was quicker.

        False too where KEPT or more followed before this call could end: the change may be among them, so make only
        such changes as may be made twice.

        Crash-safe: the revision is there whole, or not at all.
        """
        self.home.mkdir(mode=0o700, exist_ok=True)
        number = after + 1
        try:
            if not create_json(str(self._path(number)), content):
                return False
        except FileNotFoundError:  # the draft, with others of old revisions
            return False
        # Who was stopped before this may find a number free whose revision was removed since: newer ones count. Fewer
        # than KEPT newer ones removed nothing that they did not follow, this one included.
        if self._newest_number() >= number + KEPT:
            return False
        self._remove_old(number)
        return True

    def _newest_number(self) -> int:
        try:
            names = os.listdir(self.home)  # noqa: PTH208 (names alone)
        except FileNotFoundError:
            return 0
        number = max((int(found[1]) for name in names if (found := _NAME.fullmatch(name))), default=0)
        while number and self._path(number + 1).exists():  # the listing of a network file system may be old
            number += 1
        return number

    def _remove_old(self, newest: int) -> None:
        for path in self.home.iterdir():
            found = _OLD.fullmatch(path.name)
            if found and int(found[1] or found[2]) <= newest - KEPT:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.home / f"{number:010}.json"
