"""Unread offsets, losses and slices as functions, over many histories of a topic."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draindown.sources.kafka.offsets import Available, Span, by_partition, take, unread, without

A, B = "a" * 32, "b" * 32


def span(start: int, until: int, partition: int = 0, id: str = A) -> Span:
    return Span("t", partition, id, start, until)


def held(beginning: int, end: int, partition: int = 0, id: str = A) -> Available:
    return Available("t", partition, id, beginning, end)


sizes = st.lists(st.integers(0, 10**6), min_size=1, max_size=30)


@settings(max_examples=500)
@given(sizes, st.integers(1, 10**6))
def test_a_slice_holds_what_was_asked_for_and_leaves_the_rest(sizes: list[int], most: int) -> None:
    spans = [span(7 * at, 7 * at + size, at) for at, size in enumerate(sizes)]
    taken, left = take(spans, most)
    assert sum(one.size for one in taken) == min(most, sum(sizes))
    assert [(a.start, a.until, b.start, b.until) for a, b in zip(taken, left, strict=True)] == [
        (one.start, a.until, a.until, one.until) for one, a in zip(spans, taken, strict=True)
    ]
    assert all(0 <= a.size <= one.size for one, a in zip(spans, taken, strict=True))


@settings(max_examples=300)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=12), st.integers(200, 3000))
def test_partitions_are_drained_together(sizes: list[int], most: int) -> None:
    left, slices = [span(0, size, at) for at, size in enumerate(sizes)], 0
    while any(one.size for one in left):
        taken, left = take(left, most)
        slices += 1
        share = sum(one.until for one in taken) / sum(sizes)
        assert all(
            abs(one.until - share * size) <= slices + 1
            for one, size in zip(taken, sizes, strict=True)
        )
    assert slices == -(-sum(sizes) // most)
    assert [one.until for one in left] == sizes


offsets = st.integers(0, 40)


@settings(max_examples=1000)
@given(offsets, st.integers(0, 20), st.lists(st.tuples(offsets, st.integers(0, 20)), max_size=5))
def test_what_is_left_of_a_span_is_what_nothing_covers(
    start: int, size: int, holes: list[tuple[int, int]]
) -> None:
    removed = [span(at, at + length) for at, length in holes]
    parts = without(span(start, start + size), removed)
    covered = {offset for one in removed for offset in range(one.start, one.until)}
    assert [o for part in parts for o in range(part.start, part.until)] == [
        offset for offset in range(start, start + size) if offset not in covered
    ]
    assert all(part.size for part in parts)


def test_spans_of_another_topic_or_partition_cover_nothing() -> None:
    assert without(
        span(0, 5), [span(0, 5, 1), span(0, 5, id=B), replace(span(0, 5), topic="u")]
    ) == [span(0, 5)]


@dataclass
class Log:
    """A topic as the brokers keep it, and what became of each record: the model of the property
    below.
    """

    id: str = A
    parts: dict[int, list[int]] = field(default_factory=lambda: {0: [0, 0]})  # beginning, end


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(1, 50)),
        st.tuples(st.just("trim"), st.integers(0, 3), st.integers(1, 50)),
        st.tuples(st.just("add"), st.just(0), st.just(0)),
        st.tuples(st.just("recreate"), st.just(0), st.just(0)),
        st.tuples(st.just("pin"), st.just(0), st.integers(1, 60)),
    ),
    max_size=40,
)


@settings(max_examples=1000)
@given(steps)
def test_every_offset_is_read_once_or_named_as_lost(steps: list[tuple[str, int, int]]) -> None:
    """Whatever happens to a topic between runs: each offset of a life of a partition is pinned once
    or in a loss.
    """
    log, lives = Log(), 0
    pinned: list[Span] = []
    read: set[tuple[str, int, int]] = set()
    aged: set[tuple[str, int, int]] = set()  # trimmed before they were pinned
    red = False
    for kind, number, amount in steps:
        number = number % len(log.parts)
        part = log.parts[number]
        if kind == "write":
            part[1] += amount
        elif kind == "trim":
            aged |= {
                (log.id, number, o) for o in range(part[0], min(part[0] + amount, part[1]))
            } - read
            part[0] = min(part[0] + amount, part[1])
        elif kind == "add":
            log.parts[len(log.parts)] = [0, 0]
        elif kind == "recreate":
            lives += 1
            log = Log(id=f"{lives:032x}")
            red = red or bool(pinned)
        else:
            have = [held(b, e, p, log.id) for p, (b, e) in log.parts.items()]
            found = unread(have, pinned)
            lost = {
                (one.span.topic_id, one.span.partition, o)
                for one in found.losses
                for o in range(one.span.start, one.span.until)
            }
            if not pinned:
                aged.clear()  # a flow begins at what is there
            # of a topic that was created again nobody has read anything: all of it is in that loss
            assert lost == (set() if red else {one for one in aged if one[0] == log.id})
            assert bool([one for one in found.losses if one.kind == "topic-recreated"]) == red
            if found.losses:
                return  # red: nothing is pinned until a person decides
            taken, _ = take(found.spans, amount)
            offsets = {(s.topic_id, s.partition, o) for s in taken for o in range(s.start, s.until)}
            assert not offsets & read
            read |= offsets
            pinned = taken
    if pinned and not red:
        have = [held(b, e, p, log.id) for p, (b, e) in log.parts.items()]
        rest = unread(have, pinned)
        if not rest.losses:
            whole = {(log.id, p, o) for p, (b, e) in log.parts.items() for o in range(b, e)}
            left = {
                (s.topic_id, s.partition, o) for s in rest.spans for o in range(s.start, s.until)
            }
            assert whole <= read | left


@pytest.mark.parametrize(
    ("have", "pinned", "kind", "lost"),
    [
        ([held(5, 9)], [span(0, 3)], "offsets-lost", (3, 5)),
        ([held(12, 12)], [span(0, 3)], "offsets-lost", (3, 12)),
        ([held(0, 2)], [span(0, 3)], "log-truncated", (2, 3)),
        ([held(0, 2, id=B)], [span(0, 3)], "topic-recreated", (3, 3)),
        ([held(0, 900, id=B)], [span(0, 3)], "topic-recreated", (3, 3)),
        ([], [span(0, 3)], "topic-gone", (3, 3)),
        ([held(0, 3)], [span(0, 3), span(0, 4, 1)], "partition-gone", (4, 4)),
        ([held(0, 3), held(4, 9, 1)], [span(0, 3)], "offsets-lost", (0, 4)),
        ([held(0, 3, id=B), held(4, 9, 1, id=B)], [span(0, 3)], "topic-recreated", (3, 3)),
    ],
)
def test_what_is_lost_is_named(
    have: list[Available], pinned: list[Span], kind: str, lost: tuple[int, int]
) -> None:
    found = unread(have, pinned)
    assert [(one.kind, (one.span.start, one.span.until)) for one in found.losses] == [(kind, lost)]
    again = unread(have, pinned, accepted=[one.span for one in found.losses])
    assert again.losses == () or kind == "log-truncated"


def test_an_accepted_loss_is_gone_by_and_what_follows_is_read() -> None:
    found = unread([held(5, 9)], [span(0, 3)], accepted=[span(0, 5)])
    assert (found.spans, found.losses) == ((span(5, 9),), ())
    found = unread([held(2, 9, id=B)], [span(0, 3)], accepted=[span(3, 3)])
    assert (found.spans, found.losses) == ((span(2, 9, id=B),), ())
    found = unread([held(0, 4)], [span(0, 3), span(0, 4, 1)], accepted=[span(4, 4, 1)])
    assert (found.spans, found.losses) == ((span(3, 4), span(4, 4, 1)), ())


@pytest.mark.parametrize("other", [[held(0, 9)], []], ids=["a partition", "a topic"])
def test_what_was_accepted_as_gone_and_comes_back_is_read_on_or_is_another_log(
    other: list[Available],
) -> None:
    known, accepted = [span(0, len(other) * 9), span(0, 4, 1)][1 - len(other) :], [span(4, 4, 1)]
    found = unread(other, known, accepted=accepted)
    assert found.losses == ()
    taken, _ = take(found.spans, 100)
    back = unread([*other, held(0, 7, 1)], taken, accepted=accepted)
    assert (back.spans[-1], back.losses) == (span(4, 7, 1), ())
    shorter = unread([*other, held(0, 3, 1)], taken, accepted=accepted)
    assert [(one.kind, one.span) for one in shorter.losses] == [("log-truncated", span(3, 4, 1))]
    aged = unread([*other, held(6, 7, 1)], taken, accepted=accepted)
    assert [(one.kind, one.span) for one in aged.losses] == [("offsets-lost", span(4, 6, 1))]
    if not other:
        anew = unread([held(0, 7, 1, id=B)], taken, accepted=accepted)
        assert (anew.spans, anew.losses) == ((span(0, 7, 1, id=B),), ())


def test_a_loss_that_was_accepted_in_part_is_a_loss() -> None:
    assert [
        one.kind for one in unread([held(8, 9)], [span(0, 3)], accepted=[span(0, 7)]).losses
    ] == ["offsets-lost"]


def test_a_topic_never_read_begins_where_it_is_told_and_an_added_partition_at_zero() -> None:
    have = [held(10, 20), held(0, 20, 1), held(3, 3, 2)]
    assert [one.start for one in unread(have, []).spans] == [10, 0, 3]
    starts = {("t", 0): 15, ("t", 1): 99, ("t", 2): 0}
    assert [one.start for one in unread(have, [], starts=starts).spans] == [15, 20, 3]
    known = [span(10, 12)]
    assert [(one.partition, one.start) for one in unread(have[:2], known, starts=starts).spans] == [
        (0, 12),
        (1, 0),
    ]


def test_partitions_without_new_offsets_are_not_read() -> None:
    assert by_partition([span(0, 3), span(5, 5, 1), span(7, 8, 2)]) == [
        {"t": {0: (0, 3), 2: (7, 8)}}
    ]
    assert by_partition([span(0, 3), span(5, 6)]) == [{"t": {0: (0, 3)}}, {"t": {0: (5, 6)}}]
    assert by_partition([]) == []
