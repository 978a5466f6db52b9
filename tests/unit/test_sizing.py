"""Batches are sized by what the newest ones weighed, within caps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from draindown.config.sources import FilesSource
from draindown.lake.home import FlowHome
from draindown.sources import batch_size
from draindown.sources.batch_size import Bound, Load, bound_for

MB = 1024**2
HEAP = 2048 * MB


def bound(*loads: Load, heap: int = HEAP, **source: Any) -> Bound:
    return bound_for(FilesSource(files="x", format="json", **source), heap, loads)


def load(raw: int = 200 * MB, **more: Any) -> Load:
    """A batch that fitted well: rows of twice the bytes, no pressure."""
    usual = {
        "kept_bytes": 2 * raw,
        "spilled_bytes": 0,
        "gc_seconds": 1.0,
        "seconds": 30.0,
        "heap_bytes": HEAP,
    }
    return Load(raw, **(usual | more))


def layout(root: Path) -> FlowHome:
    return FlowHome(str(root), "p", "f", "f")


weights = st.builds(
    Load,
    st.integers(0, 4 << 30),
    st.integers(0, 8 << 30),
    st.one_of(st.just(0), st.integers(0, 1 << 30)),
    st.floats(0, 5000),
    st.floats(0, 5000),
    st.integers(1 * MB, 64 << 30),
)


# so fast that time allows more than there are numbers
@example([Load(8 * MB, 0, 0, 0.0, 1e-310, MB)], 64 * MB)
@given(st.lists(weights, max_size=8), st.integers(64 * MB, 64 << 30))
def test_whatever_was_weighed_a_bound_keeps_its_caps(loads: list[Load], heap: int) -> None:
    found = bound(*loads, heap=heap)
    assert 32 * MB <= found.bytes <= max(32 * MB, min(1024 * MB, heap // 4))
    telling = [one for one in loads if one.raw_bytes >= 8 * MB]
    assert found.bytes <= max([32 * MB, heap // 8, *(2 * one.raw_bytes for one in telling)])
    heavy = [one.raw_bytes for one in telling if one.too_heavy and one.heap_bytes >= heap]
    assert not heavy or found.bytes <= max(32 * MB, min(heavy) // 2)
    # rows like these take a quarter of the heap at most, or the smallest batch there is
    for one in telling:
        assert (
            found.bytes == 32 * MB or found.bytes * one.kept_bytes / one.raw_bytes <= heap / 4 + 1
        )


def test_the_executors_of_a_large_cluster_take_more_than_one_machine() -> None:
    source, heap = FilesSource(files="x", format="json"), 80 * 1024 * MB
    assert [bound_for(source, heap, (), jvms).bytes // MB for jvms in (1, 2, 20)] == [
        1024,
        2048,
        10 * 1024,
    ]


def test_rows_that_grow_in_memory_make_batches_smaller() -> None:
    assert (bound(load()).bytes, bound(load(kept_bytes=1600 * MB)).bytes) == (256 * MB, 64 * MB)
    assert bound(load(kept_bytes=1600 * MB)).reason == (
        "sized to memory: 64.0 MB (8.0 bytes in memory per byte of input, heap 2.0 GB / 4)"
    )


def test_rows_that_shrink_in_memory_make_batches_larger_but_not_at_once() -> None:
    thin = load(kept_bytes=50 * MB)
    assert (bound(thin).bytes, bound(thin, load(400 * MB, kept_bytes=100 * MB)).bytes) == (
        400 * MB,
        512 * MB,
    )
    assert bound(thin).reason == "sized to memory: 400 MB (twice the largest of late, 200 MB)"
    assert (
        bound(thin, load(400 * MB, kept_bytes=90 * MB)).reason
        == "sized to memory: 512 MB (heap 2.0 GB / 4)"
    )


@pytest.mark.parametrize(
    ("pressure", "why"),
    [
        ({"spilled_bytes": 380 * MB}, "spilled 380 MB to disk"),
        ({"gc_seconds": 18.0}, "spent 60% of its time collecting garbage"),
    ],
)
def test_a_batch_that_was_too_heavy_is_halved_until_the_heap_is_larger(
    pressure: dict[str, Any], why: str
) -> None:
    heavy = load(200 * MB, **pressure)
    found = bound(heavy, load(90 * MB))
    assert found.bytes == 100 * MB
    assert found.reason == f"sized to memory: 100 MB (half of a batch of 200 MB that {why})"
    assert bound(heavy, heap=2 * HEAP).bytes > 200 * MB
    # the same setting on another machine
    assert bound(heavy, heap=HEAP + HEAP // 50).bytes == 100 * MB


def test_slow_batches_grow_no_further_and_never_shrink_for_it() -> None:
    slow = load(kept_bytes=20 * MB, seconds=400.0)
    assert bound(slow).bytes == 300 * MB
    assert bound(slow).reason.endswith("(what takes 10 minutes)")
    size, loads = bound().bytes, list[Load]()
    # the same quarter of an hour each, whatever is in it: smaller ones would only be more
    for _ in range(20):
        loads.append(load(size, seconds=900.0))
        size = bound(*loads[-8:]).bytes
        assert size == 256 * MB


def test_rows_on_disk_and_a_busy_collector_are_no_pressure_yet() -> None:
    assert not load(kept_bytes=400 * MB, spilled_bytes=350 * MB).too_heavy
    assert load(kept_bytes=400 * MB, spilled_bytes=370 * MB).too_heavy
    assert not load(gc_seconds=8.4).too_heavy


def test_small_batches_say_nothing() -> None:
    tiny = load(1 * MB, kept_bytes=300 * MB, spilled_bytes=5 * MB)
    assert bound(tiny) == bound()


def test_what_the_source_says_stands() -> None:
    assert bound(load(kept_bytes=1600 * MB), max_bytes_per_trigger="500mb").bytes == 500 * MB
    assert bound(load(kept_bytes=1600 * MB), max_files_per_trigger=3).units == 3


def test_the_newest_eight_are_remembered(tmp_path: Path) -> None:
    for number in range(10):
        batch_size.remember(layout(tmp_path), load(number * MB))
    assert [one.raw_bytes // MB for one in batch_size.loads(layout(tmp_path))] == [
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
    ]


WORDS = '[{"raw_bytes": "x", "kept_bytes": 1, "spilled_bytes": 1, "gc_seconds": 1, "seconds": 1, "heap_bytes": 1}]'


@pytest.mark.parametrize("text", ["", "[{", "[1]", '[{"raw_bytes": 1}]', '{"a": 1}', WORDS, "null"])
def test_what_can_not_be_read_is_not_known(tmp_path: Path, text: str) -> None:
    place = Path(layout(tmp_path).loads.path)
    place.parent.mkdir(parents=True)
    place.write_text(text)
    assert batch_size.loads(layout(tmp_path)) == []
    batch_size.remember(layout(tmp_path), load())
    assert len(batch_size.loads(layout(tmp_path))) == 1
