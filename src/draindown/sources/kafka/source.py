"""Topics of Kafka, as a source: a unit is a range of offsets of one partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.base.secrets import names_in, redacted, resolved
from draindown.config.kafka import KafkaSource
from draindown.lake.home import FlowHome
from draindown.sources import intake, raw
from draindown.sources.batch_size import Bound
from draindown.sources.kafka import backlog, bounds, positions, retention
from draindown.sources.kafka.absence import records_absent, unexplained
from draindown.sources.kafka.accepted import absent, accept, accepted
from draindown.sources.kafka.anew import passed_over
from draindown.sources.kafka.client import Client, Sample, Seen
from draindown.sources.kafka.losses import (
    by_unit,
    lost,
    not_lost,
    pinned_losses,
    recreated,
    refuse,
    refuse_unknown,
)
from draindown.sources.kafka.offsets import (
    Available,
    Loss,
    Span,
    Unread,
    led_anew,
    reaching_down,
    unread,
    without,
)
from draindown.sources.kafka.options import secrets_of
from draindown.sources.kafka.pinning import KafkaPinning, forecast
from draindown.sources.kafka.positions import span_of
from draindown.sources.port import Failure, Forecast, Look, Progress
from draindown.sources.slices import Unit


class Kafka:
    """The `Source` of Kafka topics. Looks at the cluster once: what a plan saw is what the drain
    after it pins.
    """

    unit = "range"
    named = None
    following = None

    def __init__(self, source: KafkaSource, layout: FlowHome, root: Path, run_id: str) -> None:  # noqa: ARG002
        self._source, self._layout, self._run_id = source, layout, run_id
        self._client: Client | None = None
        self._seen: Seen | None = None
        self._truncated_to: dict[tuple[Span, int | None], int | None] = {}
        self._located: tuple[list[Unit], list[Unit]] | None = None
        self._sample: tuple[Sequence[Span], Sample] | None = None

    @property
    def perishable(self) -> Kafka:
        """Return itself: brokers delete records by their retention."""
        return self

    @property
    def client(self) -> Client:
        """The client of the cluster; it connects when it is first asked."""
        if self._client is None:
            self._client = Client(self._source)
        return self._client

    def out_of_reach(self) -> tuple[str, str] | None:
        """Return the client or the secret that is not there. The brokers are not asked."""
        if find_spec("confluent_kafka") is None:
            return (
                "the package confluent-kafka is not installed on this machine",
                "pip install 'draindown[kafka]'",
            )
        texts = (
            value for value in self._source.kafka.model_dump().values() if isinstance(value, str)
        )
        for name in (name for text in texts for name in names_in(text)):
            try:
                resolved(f"${{secret:{name}}}")
            except TerminalError as error:
                return error.found, error.next[0]
        return None

    def look(self, state: FlowHome, generation: int, first: int, now: datetime) -> Look:
        """Compare what the brokers hold with the intake. Raises as `Client.look`, TerminalError
        `topic-unknown`.
        """
        found = self._unread(state, generation)
        slices = list(intake.slices(state, generation, first))
        pinned = [
            unit for one in slices for unit in self.left_of(one.units) if unit.until > unit.start
        ]
        held = sum(unit.until - unit.start for unit in pinned)
        spans = backlog.waiting(found.spans, pinned)
        kept = self._kept_of(spans, generation)
        sample, policies = self._sampled(spans, kept), self._look().policies
        oldest = {
            unit.name: unit.arrived_at for unit in reversed(pinned)
        }  # where the brokers didn't say in time
        oldest |= {f"{topic}/{number}": at for (topic, number), at in sample.oldest.items()}
        oldest |= {
            unit: min(at, oldest.get(unit, at))
            for unit, at in raw.oldest(self._layout, kept).items()
        }
        weight = self._record_bytes(pinned)

        def expected(bound: Bound) -> Forecast:
            return forecast(found.size, bound, weight)

        return Look(
            unit="record",
            units=found.size + held,
            bytes=round((found.size + held) * weight),
            oldest=min((at.timestamp() for at in oldest.values()), default=None),
            findings=retention.findings(
                sample.oldest, policies, now, f"draindown run {state.pipeline}/{state.flow}"
            ),
            pinned=Forecast(len(slices), round(held * weight)) if held else Forecast(),
            reasons=backlog.reasons(
                found, len(slices), held, begun=bool(positions.newest(state, generation))
            ),
            forecast=expected,
            parts=list(backlog.parts(spans, backlog.records(found.spans, pinned), oldest, weight)),
            expires=retention.expires(sample.oldest, policies),
            keeps=retention.keeps(policies.values()),
        )

    def pin(self, generation: int, now: datetime, progress: Progress | None = None) -> KafkaPinning:  # noqa: ARG002
        """Begin to pin what is unread. Raises as `refuse_lost`."""
        intake.create(self._layout, generation, positions.OWN)
        found = self._unread(self._layout, generation)
        refuse(found.losses, self._layout)
        spans = sorted(found.spans)
        sample = self._sampled(spans, self._kept_of(spans, generation))
        return KafkaPinning(
            layout=self._layout,
            generation=generation,
            spans=found.spans,
            now=now,
            record_bytes=self._record_bytes([]),
            oldest=sample.oldest,
            gaps=sorted(
                {span.topic for span in spans}
                if self._source.kafka.transactional
                else self._compacted
            ),
            before=intake.newest(self._layout, generation),
        )

    def refuse_lost(self, state: FlowHome, generation: int, first: int) -> None:  # noqa: ARG002
        """Refuse to continue if offsets that were never read are gone, or the topic is another one.

        Raises TerminalError `offsets-lost`, `log-truncated`, `topic-recreated`, `topic-gone`,
        `partition-gone`.
        """
        refuse(self._unread(state, generation).losses, self._layout)

    def losses(self, generation: int, first: int) -> Mapping[str, str]:
        """Return ranges that were never read and are gone, pinned or not, each with what the
        brokers hold instead.

        Raises TerminalError `log-truncated`: which records were written anew is unknown, so nobody
        can give them up.
        """
        return {loss.span.range: loss.detail for loss in self._losses(generation, first)}

    def accept_losses(
        self, ranges: Sequence[str], reading: Mapping[int, int], *, by: str, note: str, at: datetime
    ) -> None:
        """Give up ranges that are lost. Called under the lease. Raises TerminalError `not-lost`,
        `log-truncated`.
        """
        known = {loss.span.range: loss for one in reading.items() for loss in self._losses(*one)}
        if not set(ranges) <= set(known):
            raise not_lost(ranges, list(known.values()), self._layout)
        accept(self._layout, [known[name] for name in ranges], by=by, note=note, at=at)

    def _losses(self, generation: int, first: int) -> list[Loss]:
        waiting = [
            unit for one in intake.slices(self._layout, generation, first) for unit in one.units
        ]
        have = self._compared(positions.newest(self._layout, generation))
        pinned = pinned_losses(self._at_brokers(self.left_of(waiting)), have)
        found = [*pinned, *self._unread(self._layout, generation).losses, *self._absent(generation)]
        if cut := [loss for loss in found if loss.kind == "log-truncated"]:
            raise lost(
                cut, self._layout, "nothing was given up: other records may come at these offsets"
            )
        return found

    def _absent(self, generation: int) -> list[Loss]:
        """Return the ranges of a generation in which a batch, of whatever kind, did not find all
        records.
        """
        if not (lacking := absent(self._layout)):
            return []
        mine = [
            span_of(unit) for one in intake.slices(self._layout, generation) for unit in one.units
        ]
        return [one for one in lacking if not without(one.span, mine)]

    @property
    def _have(self) -> Mapping[tuple[str, int], Available]:
        return {one.place: one for one in self._look().partitions}

    def _compared(self, pinned: Sequence[Span]) -> Mapping[tuple[str, int], Available]:
        """Return what the brokers hold, with where a log was truncated since `pinned`, one span per
        partition.
        """
        have = dict(self._have)
        anew = {(span, span.epoch): span for span in led_anew(have.values(), pinned)}
        if fresh := [span for known, span in anew.items() if known not in self._truncated_to]:
            found = self.client.truncations(fresh)
            self._truncated_to |= {(span, span.epoch): found.get(span.place) for span in fresh}
        for known, span in anew.items():
            have[span.place] = replace(have[span.place], truncated_to=self._truncated_to[known])
        return have

    def left_of(self, units: Sequence[Unit]) -> list[Unit]:
        """Return what is left of pinned units without the ranges that a person gave up."""
        given_up = accepted(self._layout)
        if not given_up:
            return list(units)
        return [
            replace(unit, start=part.start, until=part.until)
            for unit in units
            for part in without(span_of(unit), given_up)
        ]

    def _look(self) -> Seen:
        if self._seen is None:
            self._seen = bounds.within(self.client.look(), self._layout)
        return self._seen

    def _unread(self, state: FlowHome, generation: int) -> Unread:
        found = self._compared_with(state, generation)
        refuse_unknown(self._source, {one.topic for one in self._look().partitions}, found.losses)
        return found

    def _compared_with(self, state: FlowHome, generation: int) -> Unread:
        seen, every = self._look(), positions.newest(state, generation)
        pinned = [span for span in every if self._source.matches(span.topic)]
        starts = {} if every else self._starts(state, generation, seen)
        have, given_up = tuple(self._compared(pinned).values()), accepted(self._layout)
        found = unread(have, pinned, starts=starts, accepted=given_up)
        if (found.losses or not every) and (kept := raw.ranges(self._layout)):
            have = reaching_down(have, [*map(positions.of_kept, kept), *given_up])
            found = unread(have, pinned, starts=starts, accepted=given_up)
        # topics that the source named once keep their place, should it name them again
        asleep = [replace(span, start=span.until) for span in every if span not in pinned]
        return Unread((*found.spans, *asleep), found.losses)

    def _starts(
        self, state: FlowHome, generation: int, seen: Seen
    ) -> Mapping[tuple[str, int], int]:
        """Return where partitions begin that the generation has not read.

        The first generation begins as the source says. A later one begins where the first one did,
        as far as the topics still hold it. Where that is lost, `latest` would be now, and skip all
        that was not read.
        """
        for earlier in range(1, generation):
            began = {span.place: span for span in positions.first(state, earlier)}
            if began:
                ids = {one.place: one.topic_id for one in seen.partitions}
                return {
                    place: span.start
                    for place, span in began.items()
                    if ids.get(place) == span.topic_id
                }
        if self._source.kafka.starting_offsets == "earliest" or (
            generation > 1 and self._source.starting_time is None
        ):
            return {}
        ends = {one.place: one.end for one in seen.partitions}
        if self._source.starting_time is None:
            return ends
        found = self.client.at_time(list(ends), self._source.starting_time)
        return {place: ends[place] if offset is None else offset for place, offset in found.items()}

    def _kept_of(self, spans: Sequence[Span], generation: int) -> list[raw.Kept]:
        """Return what the lake keeps of unread spans: nothing, unless an earlier generation read
        them.
        """
        asked = [positions.as_kept(one) for one in spans if one.size]
        return raw.kept_of(self._layout, asked) if generation > 1 else []

    def _sampled(self, spans: Sequence[Span], kept: Sequence[raw.Kept]) -> Sample:
        """Return a few records of spans that only brokers have; read once, unless batches have read
        on since.
        """
        if self._sample is None or self._sample[0] != spans:
            there = backlog.at_brokers(spans, list(map(positions.of_kept, kept)), self._have)
            sample = self.client.sample(there)
            if kept and sample.record_bytes is None:
                sample = replace(sample, record_bytes=raw.record_bytes(self._layout, kept))
            self._sample = (spans, sample)
        return self._sample[1]

    def _record_bytes(self, pinned: Sequence[Unit]) -> float:
        """Return the expected bytes of a record: those of a few unread ones, else those of pinned
        ones.
        """
        if self._sample is not None and (known := self._sample[1].record_bytes):
            return known
        records = sum(unit.until - unit.start for unit in pinned)
        return sum(unit.bytes for unit in pinned) / records if records else _RECORD_BYTES

    def located(self, units: Sequence[Unit]) -> list[Unit]:
        """Return units in pieces: what the lake keeps of them, and what is at the brokers."""
        asked = [replace(unit, log=span_of(unit).topic_id) for unit in units]
        if self._located is None or self._located[0] != asked:
            self._located = (asked, raw.divided(self._layout, asked))
        return self._located[1]

    def _at_brokers(self, units: Sequence[Unit]) -> list[Span]:
        return [
            span for unit in self.located(units) if not unit.kept and (span := span_of(unit)).size
        ]

    def missing(self, units: Iterable[Unit]) -> dict[str, Finding]:
        """Return the pinned ranges of which some offsets can't be read again, at the brokers or in
        the lake.

        Records that compaction removed are not told from records that are there.
        """
        found: dict[str, Finding] = {}
        whole = list(units)
        spans = self._at_brokers(whole)
        have = self._compared(positions.of_units(whole)) if spans else {}
        for unit, loss in by_unit(whole, pinned_losses(spans, have)):
            found[unit.range] = Finding(kind="vanished", subject=str(loss.span), detail=loss.detail)
        return found

    def missing_anew(
        self, units: Iterable[Unit], before: int, generation: int
    ) -> dict[str, Finding]:
        """Return what `generation` would not pin of what `before` did, besides what is `missing`.

        Raises TerminalError `log-truncated` if raw records would stand for records that were
        written anew.
        """
        whole = list(units)
        found = self.missing(whole)
        if not whole or positions.newest(self._layout, generation):  # it reads what it has pinned
            return found
        losses = self._compared_with(self._layout, before).losses
        pins = self._compared_with(self._layout, generation).spans
        return found | passed_over(whole, losses, self._have.values(), pins, self._layout)

    def refuse_changed(self, units: Sequence[Unit]) -> None:
        """Check that the topics are those of which the offsets were pinned. Raises TerminalError
        `topic-recreated`.

        An id is never used twice: if it is the same after the read, it was the same topic all the
        time.
        """
        spans = self._at_brokers(units)
        ids = self.client.topic_ids(sorted({span.topic for span in spans})) if spans else {}
        wrong = [span for span in spans if ids.get(span.topic) != span.topic_id]
        if wrong:
            raise lost(list(map(recreated, wrong)), self._layout, _NOTHING)

    def refuse_miscounted(
        self, number: int, units: Sequence[Unit], read: Mapping[str, int]
    ) -> None:
        """Refuse a batch that lacks records which nothing explains. Raises TerminalError
        `records-absent`.

        Transactions leave offsets without a record (markers, aborted ones), and compaction removes
        records. Where neither is, now or when they were pinned, and nobody accepted it, each pinned
        offset has its record. What the lake keeps was counted before it was kept: as many records
        are there again.
        """
        gaps = {
            unit.name for unit in units if self._source.kafka.transactional or unit.row["compacted"]
        }
        # an audit has no run: it changes nothing, and asks no broker
        compacted = (lambda: self._compacted) if self._run_id else None
        if wrong := unexplained(self._layout, units, read, gaps, compacted):
            raise records_absent(number, units, wrong, self._layout, _NOTHING)

    @property
    def _compacted(self) -> set[str]:
        return {topic for topic, policy in self._look().policies.items() if policy.compacted}

    def read_failed(self, failure: Failure, units: Sequence[Unit]) -> DraindownError:
        """Return the error of a read that failed. Lost offsets are told from others by asking the
        brokers.
        """
        tried = f"read {count(len(units), 'partition')} of flow {self._layout.flow}"
        found = redacted(failure.text, secrets_of(self._source.kafka))[:500]
        if failure.kind == "refused":
            return TerminalError(
                "kafka-denied", tried=tried, found=found, changed=_NOTHING, next=_ACCESS
            )
        if failure.kind == "lost":
            self._seen, self._truncated_to = (
                None,
                {},
            )  # what was seen before the read is not what the brokers hold now
            spans = self._at_brokers(units)
            if wrong := list(pinned_losses(spans, self._compared(positions.of_units(units)))):
                return lost(wrong, self._layout, _NOTHING)
        return TransientError(
            "kafka-unreachable",
            tried=tried,
            found=found,
            changed=_NOTHING,
            next=f"draindown run {self._layout.pipeline}   # it resumes with this batch",
        )

    def asked_again(self, asked: Collection[str], generation: int, first: int) -> list[str]:  # noqa: ARG002
        """Return partitions as they are, and of a range of offsets the pinned ranges that it
        reaches into.
        """
        return [name for one in asked for name in positions.reaching(self._layout, generation, one)]

    def leaving_out(self, units: Iterable[str]) -> str:  # noqa: ARG002
        """Return the command that goes on without what can't be read."""
        return f"draindown input list {self._layout.pipeline}/{self._layout.flow}"


_SHOWN = 5
_RECORD_BYTES = 1024.0  # of a record of which nothing is known
_NOTHING = "nothing of this batch is in the table"
_ACCESS = "draindown status   # once this user may Read the topics"
