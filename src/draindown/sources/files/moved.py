"""Landing directories that moved: whether new files are known ones in another directory, and what a
person answered.

A file is known by its path. In another directory it would be read again, which an append table
holds twice. Only a change of the fixed directory of `files` raises the question; equal files in
directories below it are deliveries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.lake.home import FlowHome
from draindown.sources import moves
from draindown.sources.files import catalog
from draindown.sources.files.listing import shown
from draindown.sources.objects import SourceFile, sha256_of

_COMPARED = 20
"""Files of which the bytes are compared: the smallest ones. One that is equal raises the
question.
"""


@dataclass(frozen=True)
class Moved:
    """Known files in another directory. `files`: equal in name and size; `new`: all new files below
    `now`.
    """

    before: str
    now: str
    files: int
    new: int

    def error(self, layout: FlowHome) -> TerminalError:
        """Return the error that asks the person."""
        flow = f"{layout.pipeline}/{layout.flow}"
        return TerminalError(
            "files-moved",
            tried=f"take in {count(self.new, 'new file')} of flow {layout.flow} in {shown(self.now)}",
            found=f"{self}: to read them again would append their rows a second time",
            changed="nothing was taken in",
            next=[
                f"draindown input accept {flow} --moved --yes   # the same files: they stay known, and are read there",
                f"draindown input accept {flow} --new --yes   # other deliveries: the next run takes them in",
            ],
        )

    def answer(self, layout: FlowHome, *, same: bool, by: str, note: str, at: datetime) -> None:
        """Record a person's answer: the `same` files, or new deliveries. Call it under the
        lease.
        """
        before = self.before if same else ""
        moves.record(
            layout, moves.Answer(before, self.now, at.isoformat(timespec="seconds"), by, note)
        )

    def __str__(self) -> str:
        return (
            f"{count(self.files, 'file')} of them have names, sizes and bytes of files that were taken in from "
            f"{shown(self.before)}"
        )


def find(
    layout: FlowHome, new: Sequence[SourceFile], directories: Collection[Path]
) -> Moved | None:
    """Return the known files among `new` that come from outside of `directories`, the fixed ones of
    the source.

    Compares relative names and sizes of all files, and bytes of a few. None if a person answered,
    or none is equal.
    """
    answered = moves.Moves.of(layout)
    bases = [str(one) for one in directories if not answered.are_new(str(one))]
    within: dict[tuple[str, int], tuple[str, str]] = {}
    for file in new:
        base = next((one for one in bases if file.path.startswith(f"{one}/")), None)
        if base and file.size:
            within[file.path.removeprefix(f"{base}/"), file.size] = base, file.path
    if not within:
        return None
    here = [str(directory) for directory in directories]
    # files below the old directory of an answer about this one are known already: none of them is
    # new
    answered_for = [
        answer.before for answer in answered.answers if answer.before and answer.now in here
    ]
    pairs = list(_pairs(catalog.outside(layout, [*here, *answered_for]), within))
    if not pairs:
        return None
    (before, now), _ = Counter((old, base) for old, base, _, _ in pairs).most_common(1)[0]
    chosen = [(known, path) for old, base, known, path in pairs if (old, base) == (before, now)]
    if not _any_equal(layout, chosen):
        return None
    return Moved(before, now, len(chosen), sum(file.path.startswith(f"{now}/") for file in new))


def _pairs(
    known: Sequence[tuple[str, int]], within: Mapping[tuple[str, int], tuple[str, str]]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield (old directory, new directory, known path, new path) of files that are equal in name
    and size.
    """
    for path, size in known:
        parts = path.split("/")
        for at in range(1, len(parts)):
            found = within.get(("/".join(parts[at:]), size))
            if found:
                yield "/".join(parts[:at]), found[0], path, found[1]


def _any_equal(layout: FlowHome, pairs: Sequence[tuple[str, str]]) -> bool:
    chosen = pairs[:_COMPARED]
    hashes = catalog.hashes(layout, [known for known, _ in chosen])
    for known, path in chosen:
        with suppress(OSError):  # the drain names a file that can't be read
            if sha256_of(path) == hashes.get(known):
                return True
    return False
