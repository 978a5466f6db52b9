"""A JSON document that only the holder of a flow's lease changes, so that a driver which has lost
the lease can't.

    0000000007.json   revision 7: the content, and the lease epoch of its writer. The newest revision is the document

A driver may freeze after it has checked its lease, and thaw after another one took over. It writes
the revision after the one that it read. Whoever takes over writes a revision with the same content
and its own epoch first (`fence`): what comes later from the earlier driver finds a higher epoch, or
its number taken. A lease of the local form has no epoch, 0: the kernel's locks exclude other
drivers, and the document keeps the epoch that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draindown.base.errors import TransientError
from draindown.lake.documents import decode
from draindown.lake.revisions import KEPT, Revisions

EPOCH = "epoch"
"""Key of the epoch in a revision. A revision without any other key says that there is nothing."""


@dataclass(frozen=True)
class FencedDocument:
    """A document that need not exist.

    Attributes:
        home: the directory of its revisions.
        pipeline: the pipeline whose flow it is of, for errors.
        epoch: the lease epoch of who writes through this object; 0: none.
        opened: what a view has read, by directory; None outside of a view.
    """

    home: str
    pipeline: str
    epoch: int = 0
    opened: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.home

    @property
    def path(self) -> str:
        """Where the newest revision is, or where the first one would be."""
        return self._revisions.at(max(1, self._newest()[0])).path

    @property
    def exists(self) -> bool:
        """Whether there is a content, or a revision that can't be read."""
        try:
            return self.read() is not None
        except ValueError:
            return True

    @property
    def last_epoch(self) -> int:
        """The epoch of the newest revision; 0 without one."""
        return self._latest()[1]

    def read(self) -> dict[str, Any] | None:
        """Return the content, or None if there is none.

        Raises ValueError if the newest revision is truncated or not a document; TerminalError
        `format-unknown` if another version wrote it.
        """
        return self._parsed()[2]

    def write(self, content: Mapping[str, Any]) -> None:
        """Write the content, which replaces any other. Raises TransientError `lease-lost` if a
        later holder of the lease has written the document.
        """
        self._forget()
        number, newest, _ = self._latest()
        if self.epoch and newest > self.epoch:
            raise self._lost(f"a driver of epoch {newest} has written it")
        if not self._put(number, max(newest, self.epoch), content):
            raise self._lost("another driver has written it in the meantime")

    def delete(self) -> None:
        """Say that there is no content. No-op if there is none. Raises like `write`."""
        if self.exists:
            self.write({})

    def fence(self) -> None:
        """Keep the content, under this epoch: who holds an earlier one can't write any more.

        Also where there is no content, which an earlier holder could be about to write. What can't
        be read is left as it is, for a person.
        """
        while True:
            self._forget()
            try:
                number, newest, content = self._parsed()
            except ValueError:
                return
            if newest >= self.epoch or self._put(number, self.epoch, content or {}):
                return

    def _put(self, after: int, epoch: int, content: Mapping[str, Any]) -> bool:
        self._forget()
        return self._revisions.put(after, {EPOCH: epoch, **content})

    def _parsed(self) -> tuple[int, int, dict[str, Any] | None]:
        """Return number, epoch and content of the newest revision; 0, 0 and None before the
        first.
        """
        number, raw = self._newest()
        if raw is None:
            return number, 0, None
        content = decode(self._revisions.at(number).path, raw)
        epoch = content.pop(EPOCH, 0)
        if not isinstance(epoch, int):
            raise ValueError("its epoch is no number")
        return number, epoch, content or None

    def _latest(self) -> tuple[int, int, dict[str, Any] | None]:
        """Return what `_parsed` returns. If the newest revision can't be read, its epoch is the
        highest of the others.
        """
        try:
            return self._parsed()
        except ValueError:
            number = self._newest()[0]
        epochs = [0]
        for earlier in range(max(1, number - KEPT), number):
            try:
                epochs.append(int((self._revisions.at(earlier).read() or {}).get(EPOCH, 0)))
            except (ValueError, TypeError):
                continue
        return number, max(epochs), None

    def _newest(self) -> tuple[int, bytes | None]:
        """Return number and bytes of the newest revision; 0 and None before the first."""
        if self.opened is not None and self.home in self.opened:
            known: tuple[int, bytes | None] = self.opened[self.home]
            return known
        found = self._revisions.newest_bytes()
        if self.opened is not None:
            self.opened[self.home] = found
        return found

    def _forget(self) -> None:
        if self.opened is not None:
            self.opened.pop(self.home, None)

    @property
    def _revisions(self) -> Revisions[None]:
        return Revisions(self.home, lambda _: None, "")

    def _lost(self, why: str) -> TransientError:
        return TransientError(
            "lease-lost",
            tried=f"write {self.home}",
            found=f"this driver has lost the lease: {why}",
            changed="nothing of this document",
            next=[f"draindown run {self.pipeline}", f"draindown doctor {self.pipeline}"],
            in_order=True,
        )
