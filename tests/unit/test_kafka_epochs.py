"""Truncated logs as a rule of leader epochs, over many lives of a partition."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from draindown.sources.kafka.losses import pinned_losses
from draindown.sources.kafka.offsets import Available, Span, led_anew, unread

ID = "a" * 32


@dataclass
class Log:
    """A partition: for each offset the record that stands there, with the epoch of the leader that
    wrote it.
    """

    epoch: int = 0
    beginning: int = 0
    # epoch, a number that no other record has
    records: list[tuple[int, int]] = field(default_factory=list)
    written: int = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.written += 1
            self.records.append((self.epoch, self.written))

    def truncate(self, by: int) -> None:
        """A replica that lacks the newest records becomes the leader."""
        del self.records[max(self.beginning, len(self.records) - by) :]
        self.epoch += 1

    def end_of(self, epoch: int) -> int:
        """What a leader answers for an epoch: the first offset of a later one, or the end of the
        log.
        """
        later = (
            at for at, (one, _) in enumerate(self.records) if one > epoch and at >= self.beginning
        )
        return next(later, len(self.records))

    def held(self) -> Available:
        return Available("t", 0, ID, self.beginning, len(self.records), self.epoch)


def compared(log: Log, pinned: list[Span]) -> tuple[Available, int]:
    """The look of a flow, and how many partitions it asked the leaders about."""
    held = log.held()
    asked = led_anew([held], pinned)
    for span in asked:
        assert span.epoch is not None
        end = log.end_of(span.epoch)
        held = replace(held, truncated_to=end if end < span.until else None)
    return held, len(asked)


steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "pin", "pin", "elect", "truncate", "trim"]),
        st.integers(1, 12),
    ),
    min_size=3,
    max_size=30,
)
seen: Counter[str] = Counter()


@settings(max_examples=5000)
@given(steps)
def _live(steps: list[tuple[str, int]]) -> None:
    log, pinned = Log(), list[Span]()
    read: dict[int, int] = {}
    for kind, amount in [*steps, ("pin", 1)]:
        if kind == "write":
            log.write(amount)
        elif kind == "elect":
            log.epoch += 1
        elif kind == "truncate":
            log.truncate(amount)
        elif kind == "trim":
            log.beginning = min(log.beginning + amount, len(log.records))
        else:
            held, asked = compared(log, pinned)
            found = unread([held], pinned)
            position = pinned[0].until if pinned else log.beginning
            if position < log.beginning:
                assert [one.kind for one in found.losses] == ["offsets-lost"]
                return
            stands = {at: number for at, (_, number) in enumerate(log.records)}
            wrong = [
                at
                for at, number in read.items()
                if at >= log.beginning and stands.get(at) != number
            ]
            assert asked <= (1 if pinned and pinned[0].epoch != log.epoch else 0), (
                "the same leader is not asked"
            )
            if wrong:
                (loss,) = found.losses
                assert (loss.kind, loss.span.start, loss.span.until) == (
                    "log-truncated",
                    min(wrong),
                    position,
                )
                whole = Span("t", 0, ID, log.beginning, position)
                assert [one.span for one in pinned_losses([whole], {whole.place: held})] == [
                    loss.span
                ]
                seen["grown past" if len(log.records) >= position else "shorter"] += 1
                return
            assert not found.losses
            (span,) = found.spans
            assert (span.start, span.until, span.epoch) == (position, len(log.records), log.epoch)
            seen["intact, other leader"] += bool(asked)
            pinned = [replace(span, until=min(span.until, span.start + amount))]
            read |= {at: stands[at] for at in range(pinned[0].start, pinned[0].until)}


def test_a_flow_goes_on_as_long_as_all_that_it_read_still_stands_in_the_log() -> None:
    _live()
    assert min(seen[kind] for kind in ("grown past", "shorter", "intact, other leader")) > 50, seen


def test_a_topic_of_another_id_or_a_position_at_zero_is_not_asked_for() -> None:
    held = Available("t", 0, ID, 0, 9, epoch=4)
    assert led_anew([held], [Span("t", 0, ID, 0, 5, 3)])
    assert not led_anew([held], [Span("t", 0, "b" * 32, 0, 5, 3)])
    assert not led_anew([held], [Span("t", 0, ID, 0, 0, 3)])
    assert not led_anew([replace(held, beginning=6)], [Span("t", 0, ID, 0, 5, 3)])
    assert not led_anew([], [Span("t", 0, ID, 0, 5, 3)])
