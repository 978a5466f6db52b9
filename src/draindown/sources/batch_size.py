"""How large a batch may be: what the source says, else what memory allows by what the flow's newest batches weighed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from draindown.base import formatting
from draindown.lake.documents import read_json, write_json
from draindown.lake.layout import FlowLayout
from draindown.spec.sources import FilesSource
from draindown.spec.units import show_size

FILES_PER_CUT = 2000
"""Files of one batch at most: each costs the engine a task or part of one, however small it is."""
_SPARKS_HEAP = 1024**3
_FLOOR, _CEILING = 32 * 1024**2, 1024**3
_HEAP_SHARE = 8  # of unpacked bytes, where nothing is known: rows take two or three times as much
_KEPT_SHARE = 4  # of the heap, for the rows of a batch and their fates; what Spark has no memory for lies on disk
_LARGEST_SHARE = 4  # of unpacked bytes, however little they take: cuts are for good, and later files may be heavier
_TELLING = 8 * 1024**2  # unpacked bytes: a smaller batch weighs mostly what every batch does
_LONGEST = 600.0  # seconds of a batch before it need not grow: a kill loses that much, a stop waits that long
_SPILLED_SHARE = 0.9  # of a batch's rows: most of them on disk cost next to nothing
_SAME_HEAP = 1.1  # heaps of one setting differ a little from machine to machine
_GC_SHARE = 0.5  # of a batch's time: above it the heap is too full to work in; a tight one that fits takes up to 0.28
_KEPT = 8


@dataclass(frozen=True)
class Bound:
    """Upper bounds of one cut, in unpacked bytes and in files, and where they come from."""

    bytes: int
    files: int
    reason: str


@dataclass(frozen=True)
class Load:
    """What one batch weighed. `raw_bytes` of its files, unpacked; `kept_bytes` of its rows while it ran, of which
    `spilled_bytes` lay on disk because memory was full; `seconds` in all, of which `gc_seconds` were the collector's.
    """

    raw_bytes: int
    kept_bytes: int
    spilled_bytes: int
    gc_seconds: float
    seconds: float
    heap_bytes: int

    @property
    def too_heavy(self) -> str:
        """Why a batch should be smaller than this one; empty if it need not."""
        if self.spilled_bytes > _SPILLED_SHARE * self.kept_bytes:
            return f"spilled {formatting.size(self.spilled_bytes)} to disk"
        if self.seconds and self.gc_seconds > _GC_SHARE * self.seconds:
            return f"spent {self.gc_seconds / self.seconds:.0%} of its time collecting garbage"
        return ""


_LOADS = TypeAdapter(list[Load])


def is_adaptive(source: FilesSource) -> bool:
    """Whether the source leaves the bytes of a batch to what memory allows."""
    return source.max_bytes_per_trigger is None


def bound_for(source: FilesSource, heap_bytes: int, loads: Sequence[Load] = ()) -> Bound:
    """How large a cut may be in a heap of that size. Memory bounds it wherever the source doesn't bound its bytes.

    `loads`: of the flow's newest batches, as `loads` returns them. By these, batches grow to at most twice the largest,
    and shrink where rows are heavy or one of them did not fit.
    """
    if source.max_bytes_per_trigger is not None:
        size = source.max_bytes_per_trigger
        return Bound(size, FILES_PER_CUT, f"max_bytes_per_trigger: {show_size(size)}")
    size, why = _by_memory(heap_bytes, [load for load in loads if load.raw_bytes >= _TELLING])
    memory = f"sized to memory: {formatting.size(size)} ({why})"
    if source.max_files_per_trigger is not None:
        files = min(source.max_files_per_trigger, FILES_PER_CUT)
        return Bound(size, files, f"max_files_per_trigger: {files}, {memory}")
    return Bound(size, FILES_PER_CUT, memory)


def bound_now(layout: FlowLayout, source: FilesSource, heap_bytes: int | None = None) -> Bound:
    """The same for a flow as it is. A heap that is not known is that of its newest batch, or Spark's default."""
    newest = loads(layout)
    return bound_for(source, heap_bytes or (newest[-1].heap_bytes if newest else _SPARKS_HEAP), newest)


def _by_memory(heap: int, loads: Sequence[Load]) -> tuple[int, str]:
    usual = heap // _HEAP_SHARE
    if not loads:
        return _within(usual), f"heap {formatting.size(heap)} / {_HEAP_SHARE}"
    choices = [_grown(heap, usual, loads)] + [_weighed(heap, load) for load in loads]
    choices += [
        (load.raw_bytes // 2, f"half of a batch of {formatting.size(load.raw_bytes)} that {load.too_heavy}")
        for load in loads
        if load.too_heavy and load.heap_bytes * _SAME_HEAP >= heap
    ]
    size, why = min(choices)
    return _within(size), why


def _grown(heap: int, usual: int, loads: Sequence[Load]) -> tuple[int, str]:
    """As much as batches may grow to. Slow ones only stop growing: smaller ones may be as slow."""
    largest = max(loads, key=lambda load: load.raw_bytes)
    slowest = max(loads, key=lambda load: load.seconds / load.raw_bytes)
    choices = [
        (2 * largest.raw_bytes, f"twice the largest of late, {formatting.size(largest.raw_bytes)}"),
        (heap // _LARGEST_SHARE, f"heap {formatting.size(heap)} / {_LARGEST_SHARE}"),
    ]
    if slowest.seconds:
        in_time = int(min(slowest.raw_bytes * _LONGEST / slowest.seconds, _CEILING))
        choices.append((in_time, f"what takes {_LONGEST / 60:.0f} minutes"))
    size, why = min(choices)
    return (size, why) if size > usual else (usual, f"heap {formatting.size(heap)} / {_HEAP_SHARE}")


def _within(size: int) -> int:
    return min(max(size, _FLOOR), _CEILING)


def _weighed(heap: int, load: Load) -> tuple[int, str]:
    """As much as takes its share of the heap, if all rows weigh what those of the batch did."""
    factor = max(load.kept_bytes / load.raw_bytes, 0.1)
    why = f"{factor:.1f} bytes in memory per byte of files, heap {formatting.size(heap)} / {_KEPT_SHARE}"
    return int(heap / _KEPT_SHARE / factor), why


def loads(layout: FlowLayout) -> list[Load]:
    """What the flow's newest batches weighed, the newest last. Empty where that is not known (any more)."""
    try:
        return _LOADS.validate_python((read_json(layout.loads) or {}).get("loads", []))
    except (OSError, ValueError):  # torn, or of another version: sizes start anew
        return []


def remember(layout: FlowLayout, load: Load) -> None:
    """Keep what a batch weighed, and that of the few before it. Call it under the lease."""
    write_json(layout.loads, {"loads": [asdict(one) for one in [*loads(layout), load][-_KEPT:]]})
