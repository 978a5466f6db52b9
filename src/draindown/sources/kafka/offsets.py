"""What is unread, what is lost, and what the next slice holds: functions of offsets, without a
broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

LossKind = Literal[
    "topic-gone",
    "topic-recreated",
    "partition-gone",
    "offsets-lost",
    "log-truncated",
    "records-absent",
]


@dataclass(frozen=True, order=True)
class Span:
    """Offsets [start, until) of one partition. `topic_id`: the id of the topic, which no other
    topic ever gets.

    `epoch`: the partition's leader epoch when the offsets were pinned; None if that was not written
    down.
    """

    topic: str
    partition: int
    topic_id: str
    start: int
    until: int
    epoch: int | None = field(default=None, compare=False)

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def unit(self) -> str:
        """The partition's name: `topic/partition`."""
        return f"{self.topic}/{self.partition}"

    @property
    def size(self) -> int:
        """Number of offsets. Some may hold no record: aborted, compacted, or markers of
        transactions.
        """
        return self.until - self.start

    def same_log(self, other: Span) -> bool:
        """Return whether both are spans of the same partition of the same topic, not of another of
        that name.
        """
        return (self.place, self.topic_id) == (other.place, other.topic_id)

    @property
    def range(self) -> str:
        """The span as a person types it: `topic/partition:start-until`."""
        return f"{self.unit}:{self.start}-{self.until}"

    def __str__(self) -> str:
        return f"{self.unit} [{self.start}, {self.until})"


@dataclass(frozen=True)
class Available:
    """What the brokers hold of a partition: offsets [beginning, end). `end`: its last stable
    offset.

    `epoch`: its leader's; None if the brokers don't say. `truncated_to`: where the log was
    truncated since it was read; None if it was not, as far as the brokers know.
    """

    topic: str
    partition: int
    topic_id: str
    beginning: int
    end: int
    epoch: int | None = None
    truncated_to: int | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def same_until(self) -> int:
        """The offset up to which the log is the one that was read."""
        return (
            self.end
            if self.truncated_to is None
            else max(self.beginning, min(self.truncated_to, self.end))
        )

    @property
    def truncated(self) -> str:
        """What became of the log, for people."""
        if self.truncated_to is None:
            return f"the log ends at {self.end}"
        return (
            f"the log was truncated to {self.same_until} and written anew up to {self.end} "
            f"(leader epoch {self.epoch})"
        )


@dataclass(frozen=True)
class Loss:
    """Offsets that were never read and can't be read any more. `detail`: what the brokers have
    instead, for people.
    """

    kind: LossKind
    span: Span
    detail: str


@dataclass(frozen=True)
class Unread:
    """What a flow has not pinned yet: one span per partition, empty ones included, and what is
    lost.
    """

    spans: tuple[Span, ...]
    losses: tuple[Loss, ...]

    @property
    def size(self) -> int:
        """Number of unread offsets."""
        return sum(span.size for span in self.spans)


def unread(
    available: Iterable[Available],
    pinned: Iterable[Span],
    *,
    starts: Mapping[tuple[str, int], int] | None = None,
    accepted: Sequence[Span] = (),
) -> Unread:
    """Compare what the brokers hold with the newest slice, which names every partition of the
    source.

    A topic that no slice names begins at its partitions' `starts`, by default at their beginnings.
    A partition that was added to a known topic begins at 0. `accepted`: spans that a person gave
    up; they are no losses.
    """
    have = {one.place: one for one in available}
    known = {span.place: span for span in pinned}
    topics = {topic for topic, _ in known}
    anew = {
        place[0]
        for place, last in known.items()
        if place in have and have[place].topic_id != last.topic_id
    }
    here = {topic for topic, _ in have}
    spans: list[Span] = []
    losses: list[Loss] = []
    for place in sorted({*have, *known}):
        held, last = have.get(place), known.get(place)
        if held is None:
            assert last is not None, "a place is held or known"
            # also once it was accepted: the same log may come back
            spans.append(replace(last, start=last.until))
            losses += _gone(last, here, accepted)
            continue
        # the loss `topic-recreated` stands for all partitions of a topic that was created again
        start = (
            held.beginning
            if last is None and place[0] in anew
            else _start(held, last, place[0] in topics, starts or {})
        )
        span, loss = _span(held, last, start, accepted)
        spans.append(span)
        losses += loss
    return Unread(tuple(spans), tuple(losses))


def led_anew(available: Iterable[Available], pinned: Iterable[Span]) -> list[Span]:
    """Return those of `pinned`, one per partition, whose partition has a later leader than when
    they were pinned.

    Only a later leader may have truncated the log. What ends at 0, or below what the brokers hold,
    can't be truncated.
    """
    have = {(one.place, one.topic_id): one for one in available}
    return [
        span
        for span in pinned
        if span.epoch is not None
        and (held := have.get((span.place, span.topic_id))) is not None
        and held.epoch is not None
        and held.epoch > span.epoch
        and max(held.beginning, 1) <= span.until
    ]


def _start(
    held: Available, last: Span | None, topic_known: bool, starts: Mapping[tuple[str, int], int]
) -> int:
    if last is not None:
        return last.until
    return (
        0
        if topic_known
        else min(max(starts.get(held.place, held.beginning), held.beginning), held.end)
    )


def _gone(last: Span, here: set[str], accepted: Sequence[Span]) -> list[Loss]:
    rest = replace(last, start=last.until, until=last.until)
    if _is_accepted(rest, accepted):
        return []
    kind: LossKind = "partition-gone" if last.topic in here else "topic-gone"
    what = (
        "the topic has no such partition any more"
        if last.topic in here
        else "there is no such topic any more"
    )
    return [Loss(kind, rest, f"{what}; offsets from {last.until} on were not read")]


def _span(
    held: Available, last: Span | None, start: int, accepted: Sequence[Span]
) -> tuple[Span, list[Loss]]:
    span = Span(held.topic, held.partition, held.topic_id, start, held.end, held.epoch)
    if last is not None and last.topic_id != held.topic_id:
        old = replace(last, start=last.until)
        # whatever the numbers say: the offsets of another topic are not those that were read up to
        # here
        span = replace(span, start=held.beginning)
        if _is_accepted(old, accepted):
            return span, []
        detail = f"the topic was created again (id {held.topic_id}, it was {last.topic_id})"
        return replace(span, until=span.start), [Loss("topic-recreated", old, detail)]
    if start < held.beginning:
        lost = replace(span, until=held.beginning)
        span = replace(span, start=held.beginning, until=max(held.end, held.beginning))
        if _is_accepted(lost, accepted):
            return span, []
        return span, [
            Loss("offsets-lost", lost, f"the brokers hold offsets from {held.beginning} on")
        ]
    if start > held.same_until:
        lost = replace(span, start=held.same_until, until=start)
        return replace(span, until=max(start, held.end)), [
            Loss("log-truncated", lost, f"{held.truncated}; it was read up to {start}")
        ]
    return span, []


def _is_accepted(lost: Span, accepted: Sequence[Span]) -> bool:
    if lost.size == 0:  # a partition or topic that is gone: nobody knows how much was in it
        return lost in accepted
    return not without(lost, accepted)


def without(span: Span, removed: Iterable[Span]) -> list[Span]:
    """Return the parts of a span that none of the `removed` spans of its partition covers, in
    order.
    """
    parts = [span] if span.size else []
    for one in removed:
        if not one.same_log(span):
            continue
        around = (
            (
                replace(part, until=min(part.until, one.start)),
                replace(part, start=max(part.start, one.until)),
            )
            for part in parts
        )
        parts = [part for pair in around for part in pair if part.size > 0]
    return parts


def reaching_down(have: Iterable[Available], there: Iterable[Span]) -> tuple[Available, ...]:
    """Return partitions that begin as early as the spans that are `there` beside them leave no
    gap.
    """
    beside: dict[tuple[tuple[str, int], str], list[Span]] = defaultdict(list)
    for span in sorted(there, reverse=True):
        beside[span.place, span.topic_id].append(span)
    found = []
    for held in have:
        beginning = held.beginning
        for span in beside[held.place, held.topic_id]:
            if span.start < beginning <= span.until:
                beginning = span.start
        found.append(replace(held, beginning=beginning))
    return tuple(found)


def take(spans: Sequence[Span], most: int) -> tuple[list[Span], list[Span]]:
    """Return the next slice and what is left after it: one span each per partition, empty ones
    included.

    The slice holds `most` offsets, or all if there are fewer. Each partition gives in proportion to
    what it has, so that all end together.
    """
    total = sum(span.size for span in spans)
    if total <= most:
        return list(spans), [replace(span, start=span.until) for span in spans]
    shares = [span.size * most // total for span in spans]
    rest = sorted(range(len(spans)), key=lambda at: (-(spans[at].size * most % total), at))
    for at in rest[: most - sum(shares)]:
        shares[at] += 1
    ends = [span.start + share for span, share in zip(spans, shares, strict=True)]
    taken = [replace(span, until=end) for span, end in zip(spans, ends, strict=True)]
    return taken, [replace(span, start=end) for span, end in zip(spans, ends, strict=True)]


def by_partition(spans: Iterable[Span]) -> list[dict[str, dict[int, tuple[int, int]]]]:
    """Return {topic: {partition: (start, until)}} of the spans that are not empty: as often as a
    partition has one.
    """
    rounds: list[dict[str, dict[int, tuple[int, int]]]] = []
    for span in spans:
        if span.size:
            free = (one for one in rounds if span.partition not in one.get(span.topic, {}))
            into = next(free, None)
            if into is None:
                rounds.append(into := {})
            into.setdefault(span.topic, {})[span.partition] = (span.start, span.until)
    return rounds
