"""Divide files into batches, in their order and within bounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from draindown.lake.layout import FlowLayout
from draindown.sources.batch_size import Bound
from draindown.sources.files import catalog
from draindown.sources.files.inspection import Verified
from draindown.sources.files.listing import SourceFile
from draindown.spec.sources import FilesSource

SHAPES_PER_CUT = 32
"""The most different headers or schemas of one batch. Each is a branch of the query plan."""
_FEW_ROWS = 3  # batches of history that a fit needs: a line through two points predicts nothing
_VARIED = 4.0  # smallest ratio of largest to smallest batch at which size, not chance, explains time
_FAR = 4.0  # times the largest measured batch: no estimate beyond it
_GZIP_RATIO = 6.0  # unpacked size / packed size of JSON lines, if the flow has no history
_COLUMNAR_RATIO = 3.0


@dataclass(frozen=True)
class Forecast:
    """The expected number of cuts, and their unpacked bytes."""

    cuts: int
    bytes: int


def cut(files: Iterable[Verified], bound: Callable[[], Bound]) -> Generator[list[Verified], None, None]:
    """Group files into cuts, in their order. A file larger than the bound is a cut of its own.

    `bound` is called before each file, so it may change between cuts.
    """
    group: list[Verified] = []
    shapes: set[str] = set()
    size = 0
    for file in files:
        most = bound()
        full = size + file.raw_bytes > most.bytes or len(group) >= most.files
        if group and (full or len(shapes | {file.shape}) > SHAPES_PER_CUT):
            yield group
            group, shapes, size = [], set(), 0
        group.append(file)
        shapes.add(file.shape)
        size += file.raw_bytes
    if group:
        yield group


def forecast(layout: FlowLayout, source: FilesSource, files: Sequence[SourceFile], bound: Bound) -> Forecast:
    """Estimate the cuts of files that nobody has read yet, from the unpack ratio of earlier ones."""
    guesses = list(_guesses(layout, source, files))
    return Forecast(sum(1 for _ in cut(guesses, lambda: bound)), sum(file.raw_bytes for file in guesses))


def batch_seconds(history: Sequence[tuple[int, float]], size: float) -> float | None:
    """Estimate the seconds of a batch of `size` bytes from (bytes, seconds) of earlier ones; None if these are too few.

    A batch has a fixed cost, which dominates while it is small, and a rate. Both are fitted to batches of different
    sizes. If all earlier batches had similar sizes, a larger one is assumed to take proportionally longer, a smaller
    one as long.
    """
    if not history or size > _FAR * max(read for read, _ in history):
        return None
    sizes, seconds = [float(read) for read, _ in history], [took for _, took in history]
    mean = statistics.fmean(seconds)
    if len(history) < _FEW_ROWS or max(sizes) < _VARIED * min(sizes):
        return mean * max(1.0, size / statistics.fmean(sizes))
    rate, fixed = statistics.linear_regression(sizes, seconds)
    if rate <= 0:
        return mean
    if fixed < 0:
        rate, fixed = statistics.linear_regression(sizes, seconds, proportional=True)
    return fixed + rate * size


def _guesses(layout: FlowLayout, source: FilesSource, files: Sequence[SourceFile]) -> Iterator[Verified]:
    if files:
        ratio = catalog.unpack_ratio(layout) or _GZIP_RATIO
        yield from (Verified(f.path, f.size, f.mtime_ns, raw_bytes=_raw_size(f, source, ratio)) for f in files)


def _raw_size(file: SourceFile, source: FilesSource, ratio: float) -> int:
    if source.form.columnar:
        return int(file.size * _COLUMNAR_RATIO)
    return int(file.size * ratio) if file.path.endswith(".gz") else file.size
