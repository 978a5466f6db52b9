"""Divide files into slices, in their order and within bounds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from draindown.config.sources import FilesSource
from draindown.lake.home import FlowHome
from draindown.sources.batch_size import Bound
from draindown.sources.files import catalog
from draindown.sources.files.inspection import Verified
from draindown.sources.objects import SourceFile
from draindown.sources.port import Forecast

SHAPES_PER_SLICE = 32
"""The most different headers or schemas of one batch. Each is a branch of the query plan."""
_GZIP_RATIO = 6.0  # unpacked size / packed size of JSON lines, if the flow has no history
_COLUMNAR_RATIO = 3.0


def divided(
    files: Iterable[Verified], bound: Callable[[], Bound]
) -> Generator[list[Verified], None, None]:
    """Group files into slices, in their order. A file larger than the bound is a slice of its own.

    `bound` is called before each file, so it may change between slices.
    """
    group: list[Verified] = []
    shapes: set[str] = set()
    size = 0
    for file in files:
        most = bound()
        full = size + file.raw_bytes > most.bytes or (
            most.units is not None and len(group) >= most.units
        )
        if group and (full or len(shapes | {file.shape}) > SHAPES_PER_SLICE):
            yield group
            group, shapes, size = [], set(), 0
        group.append(file)
        shapes.add(file.shape)
        size += file.raw_bytes
    if group:
        yield group


def forecast(
    layout: FlowHome, source: FilesSource, files: Sequence[SourceFile], bound: Bound
) -> Forecast:
    """Estimate the slices of files that nobody has read yet, from the unpack ratio of earlier
    ones.
    """
    guesses = list(_guesses(layout, source, files))
    return Forecast(
        sum(1 for _ in divided(guesses, lambda: bound)), sum(file.raw_bytes for file in guesses)
    )


def _guesses(
    layout: FlowHome, source: FilesSource, files: Sequence[SourceFile]
) -> Iterator[Verified]:
    if files:
        ratio = catalog.unpack_ratio(layout) or _GZIP_RATIO
        yield from (
            Verified(f.path, f.size, f.mtime_ns, raw_bytes=_raw_size(f, source, ratio))
            for f in files
        )


def _raw_size(file: SourceFile, source: FilesSource, ratio: float) -> int:
    if source.form.columnar:
        return int(file.size * _COLUMNAR_RATIO)
    return int(file.size * ratio) if file.path.endswith(".gz") else file.size
