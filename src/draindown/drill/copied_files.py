"""Copies of a flow's oldest files, in numbered directories that all copies of the flow read."""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from draindown.base.clock import now
from draindown.base.formatting import count, size
from draindown.config.sources import FilesSource
from draindown.drill.material import BATCHES, Material, Wanted
from draindown.sources.files.listing import list_source
from draindown.sources.objects import SourceFile

_SOURCE = "source"


def copied(wanted: Wanted) -> Material:
    """Copy the flow's oldest files, one at least. Raises TerminalError `nothing-to-drill`,
    `source-missing`.

    At most `max_files` are taken, and no further one once `max_bytes` would be exceeded.
    """
    source = wanted.spec.flow(wanted.flow).source
    assert isinstance(source, FilesSource), "chosen by its kind"
    files = _some(list_source(source, wanted.root, now()).files, wanted.max_files, wanted.max_bytes)
    if not files:
        raise wanted.nothing(f"no file at {source.files}")
    _refuse_full(wanted, files)
    deliveries = _deliver(wanted.home / _SOURCE, files, source, wanted.max_bytes)
    fields = {
        "files": f"../{_SOURCE}/*/*",
        "min_file_age": 0,
        "max_bytes_per_trigger": None,
        "max_files_per_trigger": max(1, deliveries // BATCHES),
    }
    told = f"{count(len(files), 'file')}, {size(sum(file.size for file in files))}"
    return Material(fields, told, read=tuple(file.path for file in files))


def _refuse_full(wanted: Wanted, files: Sequence[SourceFile]) -> None:
    """Refuse copies that the disk has no room for. Raises TerminalError `nothing-to-drill`."""
    needed = sum(file.size for file in files) * -(-BATCHES // len(files))
    place = next(one for one in (wanted.home, *wanted.home.parents) if one.exists())
    if needed > (free := shutil.disk_usage(place).free):
        raise wanted.nothing(
            f"copies of it take {size(needed)}, and {place} has {size(free)} left; see --scratch"
        )


def _some(files: Sequence[SourceFile], most: int, size: int) -> list[SourceFile]:
    found: list[SourceFile] = []
    for file in files[:most]:
        size -= file.size
        if found and size < 0:
            break
        found.append(file)
    return found


def _deliver(directory: Path, files: Sequence[SourceFile], source: FilesSource, size: int) -> int:
    """Copy the files in order, each into a numbered directory under its own name. Returns the
    number of copies.

    If there are too few files for BATCHES batches, text files are split by lines, and other files
    copied repeatedly.
    """
    parts = -(-BATCHES // len(files))
    number = 0
    for file in files:
        pieces: Sequence[bytes | None] = (
            _pieces(Path(file.path), source, parts, size) if parts > 1 else []
        )
        for piece in pieces or [None] * parts:
            number += 1
            place = directory / f"{number:05}" / Path(file.path).name
            place.parent.mkdir(parents=True)
            if piece is None:
                shutil.copy2(file.path, place)
            else:
                place.write_bytes(piece)
                os.utime(place, ns=(file.mtime_ns, file.mtime_ns))
    return number


def _pieces(path: Path, source: FilesSource, parts: int, size: int) -> list[bytes]:
    """Split a text file by lines into `parts` files of the same compression; an empty list if that
    is not possible.

    Of documents over several lines, or cells with line ends, a part would hold half of one.
    """
    if source.form.columnar or source.documents:
        return []
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if zipped else path.open("rb") as text:
            raw = text.read(size + 1)
    except (OSError, EOFError, zlib.error):  # unreadable: the drain will park it
        return []
    lines = raw.splitlines(keepends=True) if len(raw) <= size else []
    head = lines[:1] if source.has_header else []
    body = lines[len(head) :]
    if len(body) < parts:
        return []
    pieces = [b"".join([*head, *some]) for some in _dealt(body, parts)]
    if source.has_header and any(piece.count(b'"') % 2 for piece in pieces):
        return []
    return [gzip.compress(piece, mtime=0) if zipped else piece for piece in pieces]


def _dealt(lines: Sequence[bytes], parts: int) -> Iterator[Sequence[bytes]]:
    bounds = [len(lines) * part // parts for part in range(parts + 1)]
    return (lines[start:end] for start, end in pairwise(bounds))
