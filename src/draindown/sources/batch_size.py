"""The size of a batch: the source's own bound, else what memory allows, estimated from the flow's
newest batches.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from draindown.base import formatting
from draindown.config.source import SourceSpec
from draindown.config.table_source import TableSource
from draindown.config.units import show_size
from draindown.lake.home import FlowHome

_SPARKS_HEAP = 1024**3
_FEW_ROWS = 3  # batches of history that a fit needs: a line through two points predicts nothing
_VARIED = (
    4.0  # smallest ratio of largest to smallest batch at which size, not chance, explains time
)
_FAR = 4.0  # times the largest measured batch: no estimate beyond it
_FLOOR, _CEILING = 32 * 1024**2, 1024**3
_HEAP_SHARE = 8  # heap / this = unpacked bytes, without history: rows take two or three times the bytes of their input
_KEPT_SHARE = 4  # heap / this = bytes for the persisted rows of a batch and their outcomes; Spark spills the rest
_LARGEST_SHARE = (
    4  # heap / this = most unpacked bytes: a slice is final, and later ones may need more memory
)
# unpacked bytes: the cost of a smaller batch is mostly fixed, so it is not used for estimates
_TELLING = 8 * 1024**2
_LONGEST = 600.0  # seconds: batches do not grow beyond it, since a kill loses that much work and a stop waits that long
_SPILLED_SHARE = (
    0.9  # of a batch's persisted bytes: up to this share, spilling cost no measurable time
)
_SAME_HEAP = 1.1  # tolerance: heaps of one setting differ slightly between machines
_GC_SHARE = 0.5  # of a batch's time: more means that the heap is too small; batches that just fit took up to 0.28
_KEPT = 8


@dataclass(frozen=True)
class Bound:
    """Upper bounds of one slice, in unpacked bytes and in units (None: any number), and where they
    come from.
    """

    bytes: int
    units: int | None
    reason: str


@dataclass(frozen=True)
class Load:
    """The measured load of one batch.

    Attributes:
        raw_bytes: size of its input, unpacked.
        kept_bytes: size of its persisted rows while it ran.
        spilled_bytes: the part of `kept_bytes` on disk because memory was full.
        gc_seconds: time of the garbage collector, part of `seconds`.
        seconds: wall time of the batch.
        heap_bytes: maximum heap of the JVMs that held the rows: of the driver, or of all executors
            of a cluster.
    """

    raw_bytes: int
    kept_bytes: int
    spilled_bytes: int
    gc_seconds: float
    seconds: float
    heap_bytes: int

    @property
    def too_heavy(self) -> str:
        """Why later batches should be smaller than this one; empty if they need not."""
        if self.spilled_bytes > _SPILLED_SHARE * self.kept_bytes:
            return f"spilled {formatting.size(self.spilled_bytes)} to disk"
        if self.seconds and self.gc_seconds > _GC_SHARE * self.seconds:
            return f"spent {self.gc_seconds / self.seconds:.0%} of its time collecting garbage"
        return ""


_LOADS = TypeAdapter(list[Load])


def batch_seconds(history: Sequence[tuple[int, float]], size: float) -> float | None:
    """Estimate the seconds of a batch of `size` bytes from (bytes, seconds) of earlier ones; None
    if these are too few.

    A batch has a fixed cost, which dominates while it is small, and a rate. Both are fitted to
    batches of different sizes. If all earlier batches had similar sizes, a larger one is assumed to
    take proportionally longer, a smaller one as long.
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


def is_adaptive(source: SourceSpec | TableSource) -> bool:
    """Return whether the size of a batch is derived from memory, not set by the source."""
    return isinstance(source, SourceSpec) and source.max_bytes_per_trigger is None


def bound_for(
    source: SourceSpec, heap_bytes: int, loads: Sequence[Load] = (), jvms: int = 1
) -> Bound:
    """Return the bound of a slice for a heap of that size.

    Memory bounds the bytes if the source doesn't. `loads` are those of the flow's newest batches,
    as `loads` returns them. By these, batches grow to at most twice the largest one, and shrink if
    rows are heavy or a batch did not fit.
    """
    units, limit = source.most_units
    if source.max_bytes_per_trigger is not None:
        size = source.max_bytes_per_trigger
        return Bound(size, units, f"max_bytes_per_trigger: {show_size(size)}")
    size, why = _by_memory(
        heap_bytes, [load for load in loads if load.raw_bytes >= _TELLING], jvms * _CEILING
    )
    memory = f"sized to memory: {formatting.size(size)} ({why})"
    return Bound(size, units, f"{limit}, {memory}" if limit else memory)


def bound_now(
    layout: FlowHome,
    source: SourceSpec | TableSource,
    heap_bytes: int | None = None,
    jvms: int = 1,
) -> Bound:
    """Return the bound of the flow's next slice. The default heap is that of the newest batch, or
    Spark's.

    `heap_bytes` is the heap of all `jvms` that hold the rows of a batch: a cluster of many
    executors takes larger ones.

    Slices of tables are bounded by rows and bucketed by key instead: see `sources.tables`.
    """
    if isinstance(source, TableSource):
        return Bound(_CEILING, None, "bucketed by key")
    newest = loads(layout)
    return bound_for(
        source, heap_bytes or (newest[-1].heap_bytes if newest else _SPARKS_HEAP), newest, jvms
    )


def _by_memory(heap: int, loads: Sequence[Load], most: int) -> tuple[int, str]:
    usual = heap // _HEAP_SHARE
    if not loads:
        return _within(usual, most), f"heap {formatting.size(heap)} / {_HEAP_SHARE}"
    choices = [_grown(heap, usual, loads, most)] + [_weighed(heap, load) for load in loads]
    choices += [
        (
            load.raw_bytes // 2,
            f"half of a batch of {formatting.size(load.raw_bytes)} that {load.too_heavy}",
        )
        for load in loads
        if load.too_heavy and load.heap_bytes * _SAME_HEAP >= heap
    ]
    size, why = min(choices)
    return _within(size, most), why


def _grown(heap: int, usual: int, loads: Sequence[Load], most: int) -> tuple[int, str]:
    """Return the bytes to which batches may grow. Slow batches only stop the growth: smaller ones
    may be as slow.
    """
    largest = max(loads, key=lambda load: load.raw_bytes)
    slowest = max(loads, key=lambda load: load.seconds / load.raw_bytes)
    choices = [
        (2 * largest.raw_bytes, f"twice the largest of late, {formatting.size(largest.raw_bytes)}"),
        (heap // _LARGEST_SHARE, f"heap {formatting.size(heap)} / {_LARGEST_SHARE}"),
    ]
    if slowest.seconds:
        in_time = int(min(slowest.raw_bytes * _LONGEST / slowest.seconds, most))
        choices.append((in_time, f"what takes {_LONGEST / 60:.0f} minutes"))
    size, why = min(choices)
    return (size, why) if size > usual else (usual, f"heap {formatting.size(heap)} / {_HEAP_SHARE}")


def _within(size: int, most: int) -> int:
    return min(max(size, _FLOOR), most)


def _weighed(heap: int, load: Load) -> tuple[int, str]:
    """Return the bytes whose rows fill their share of the heap, if all rows need as much memory as
    those of `load`.
    """
    factor = max(load.kept_bytes / load.raw_bytes, 0.1)
    why = f"{factor:.1f} bytes in memory per byte of input, heap {formatting.size(heap)} / {_KEPT_SHARE}"
    return int(heap / _KEPT_SHARE / factor), why


def loads(layout: FlowHome) -> list[Load]:
    """Return the loads of the flow's newest batches, newest last. Empty if none is known."""
    try:
        return _LOADS.validate_python((layout.loads.read() or {"loads": []})["loads"])
    except (OSError, ValueError, LookupError):  # torn, or by another hand: sizes start anew
        return []


def remember(layout: FlowHome, load: Load) -> None:
    """Keep what a batch weighed, and that of the few before it. Call it under the lease."""
    layout.loads.write({"loads": [asdict(one) for one in [*loads(layout), load][-_KEPT:]]})
