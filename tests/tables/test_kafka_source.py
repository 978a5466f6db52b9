"""The Kafka source over its intake, with a cluster that lives in memory: pinning, positions,
losses, decisions.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from draindown.base.errors import TerminalError, TransientError
from draindown.config.kafka import KafkaSource
from draindown.lake import delta
from draindown.lake.documents import Document
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.sources import intake, raw
from draindown.sources.batch_size import Bound
from draindown.sources.kafka import bounds, positions, retention
from draindown.sources.kafka.client import Sample, Seen
from draindown.sources.kafka.losses import by_unit
from draindown.sources.kafka.offsets import Available, Loss, Span
from draindown.sources.kafka.retention import Policy
from draindown.sources.kafka.source import Kafka
from draindown.sources.port import Failure
from draindown.sources.registry import MAKERS
from draindown.sources.slices import Unit

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
SMALL = Bound(1024**2, 10, "10 records")


@dataclass
class Brokers:
    """What brokers hold: (id, [beginning, end] per partition) by topic. Answers as `Client`
    does.
    """

    topics: dict[str, tuple[str, list[list[int]]]] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    asked: Sequence[str] = ("t",)
    retention_ms: int | None = None
    sampled: list[Span] = field(default_factory=list)
    epoch: int | None = None
    truncated: dict[tuple[str, int], int] = field(default_factory=dict)
    compared: list[list[tuple[str, int | None]]] = field(default_factory=list)

    def look(self) -> Seen:
        parts = [
            Available(topic, at, id, first, end, self.epoch)
            for topic, (id, held) in sorted(self.topics.items())
            if topic in self.asked
            for at, (first, end) in enumerate(held)
        ]
        return Seen(tuple(parts), self.policies)

    @property
    def policies(self) -> dict[str, Policy]:
        return {
            name: Policy(name in self.compacted, True, self.retention_ms, None)
            for name in self.topics
        }

    def sample(self, spans: Sequence[Span]) -> Sample:
        self.sampled = list(spans)
        found = {span.place: NOW - timedelta(hours=1) for span in spans if span.size}
        return Sample(found, 100.0 if found else None)

    def truncations(self, spans: Sequence[Span]) -> dict[tuple[str, int], int]:
        self.compared.append([(str(span), span.epoch) for span in spans])
        cuts = ((span, self.truncated.get(span.place)) for span in spans)
        return {span.place: cut for span, cut in cuts if cut is not None and cut < span.until}

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return {name: self.topics[name][0] for name in topics if name in self.topics}

    def at_time(
        self, places: Sequence[tuple[str, int]], at: datetime
    ) -> dict[tuple[str, int], int | None]:
        return dict.fromkeys(places, 5)


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    return FlowHome(str(tmp_path / "lake"), "p", "f", "f", own_intakes=True)


def source(layout: FlowHome, brokers: Brokers, **more: Any) -> Kafka:
    kafka = {"topics": ["t"], "bootstrap_servers": "h:1"} | more.pop("kafka", {})
    spec = KafkaSource.model_validate({"kafka": kafka, "format": "json", **more})
    made = MAKERS[spec.kind](spec, layout, Path("/"), "r")
    assert isinstance(made, Kafka)
    brokers.asked = kafka["topics"]
    made._client = brokers  # type: ignore[assignment]
    return made


def pinned(layout: FlowHome, generation: int = 1) -> list[list[tuple[str, int, int]]]:
    """(unit, start, until) of each slice."""
    slices = intake.slices(layout, generation)
    return [[(unit.name, unit.start, unit.until) for unit in one.units] for one in slices]


def test_a_slice_holds_at_most_what_was_asked_for_and_every_offset_is_in_one(
    layout: FlowHome,
) -> None:
    brokers = Brokers({"t": ("a", [[0, 14], [3, 9], [0, 0]])})
    pinning = source(layout, brokers).pin(1, NOW)
    assert pinning.forecast(SMALL).slices == 2
    assert pinning.take(SMALL, most=1)
    assert not pinning.take(SMALL)
    assert pinned(layout) == [[("t/0", 0, 7), ("t/1", 3, 6)], [("t/0", 7, 14), ("t/1", 6, 9)]]
    assert (pinning.taken.slices, pinning.taken.units) == (2, 20)


def test_a_second_pinning_goes_on_where_the_first_one_died(layout: FlowHome) -> None:
    brokers = Brokers({"t": ("a", [[0, 25]])})
    assert source(layout, brokers).pin(1, NOW).take(SMALL, most=1)
    late = source(layout, brokers).pin(1, NOW)
    brokers.topics["t"][1][0][1] = 27
    assert not source(layout, brokers).pin(1, NOW).take(SMALL)
    assert pinned(layout) == [[("t/0", 0, 10)], [("t/0", 10, 20)], [("t/0", 20, 27)]]
    with pytest.raises(TransientError) as found:
        late.take(SMALL)
    assert found.value.code == "lease-lost"


def test_a_look_counts_records_pinned_and_not(layout: FlowHome) -> None:
    brokers = Brokers({"t": ("a", [[0, 25]])})
    source(layout, brokers).pin(1, NOW).take(SMALL, most=1)
    found = source(layout, brokers).look(layout, 1, 1, NOW)
    assert (found.units, found.unit, found.bytes, found.pinned.slices) == (25, "record", 2500, 1)
    assert found.oldest == (NOW - timedelta(hours=1)).timestamp()
    assert found.forecast(SMALL).slices == 2
    done = source(layout, brokers).look(layout, 1, 2, NOW)
    assert (done.units, done.pinned.slices) == (15, 0)
    nothing = source(layout, Brokers({"t": ("a", [[0, 10]])})).look(layout, 1, 2, NOW)
    assert (nothing.units, list(nothing.reasons), nothing.oldest) == (0, [], None)


def test_one_slice_says_where_every_partition_stands_however_long_the_history(
    layout: FlowHome,
) -> None:
    brokers = Brokers({"t": ("a", [[0, 5], [4, 4]])})
    for end in range(5, 60, 5):
        brokers.topics["t"][1][0][1] = end
        source(layout, brokers).pin(1, NOW).take(SMALL)
    assert positions.newest(layout, 1) == [Span("t", 0, "a", 50, 55), Span("t", 1, "a", 4, 4)]
    brokers.topics["t"][1][1][1] = 6  # it was empty from the start, and is not an added one
    source(layout, brokers).pin(1, NOW).take(SMALL)
    assert pinned(layout)[-1] == [("t/1", 4, 6)]


def test_latest_is_pinned_before_there_is_anything_to_read(layout: FlowHome) -> None:
    brokers = Brokers({"t": ("a", [[0, 5]])})
    latest = {"kafka": {"starting_offsets": "latest"}}
    first = source(layout, brokers, **latest)
    assert first.look(layout, 1, 1, NOW).reasons
    first.pin(1, NOW).take(SMALL)
    brokers.topics["t"][1][0][1] = 8
    again = source(layout, brokers, **latest)
    assert again.look(layout, 1, 1, NOW).units == 3
    again.pin(1, NOW).take(SMALL)
    assert pinned(layout) == [[("t/0", 5, 5)], [("t/0", 5, 8)]]
    assert not source(layout, brokers, **latest).look(layout, 1, 3, NOW).reasons


def test_a_later_generation_begins_where_the_first_one_did(layout: FlowHome) -> None:
    brokers = Brokers({"t": ("a", [[0, 9]])})
    at_a_time = {"kafka": {"starting_offsets": "2026-01-01"}}
    source(layout, brokers, **at_a_time).pin(1, NOW).take(SMALL)
    brokers.topics["t"] = ("a", [[7, 12]])
    source(layout, brokers, **at_a_time).pin(2, NOW).take(SMALL)
    assert (pinned(layout, 1), pinned(layout, 2)) == ([[("t/0", 5, 9)]], [[("t/0", 7, 12)]])


@pytest.mark.parametrize(("starting", "again"), [("latest", 2), ("earliest", 2), ("2026-01-01", 5)])
def test_where_the_first_generation_began_is_lost_nothing_is_skipped(
    layout: FlowHome, starting: str, again: int
) -> None:
    brokers = Brokers({"t": ("a", [[2, 7]])})
    source(layout, brokers, kafka={"starting_offsets": starting}).pin(1, NOW).take(SMALL)
    brokers.topics["t"][1][0][1] = 20
    shutil.rmtree(layout.tables.intake(1).path)
    source(layout, brokers, kafka={"starting_offsets": starting}).pin(2, NOW).take(
        Bound(1024**2, 100, "")
    )
    assert pinned(layout, 2) == [[("t/0", again, 20)]]


def test_a_topic_that_the_source_names_again_is_read_on(layout: FlowHome) -> None:
    brokers = Brokers({"t": ("a", [[0, 5]]), "u": ("b", [[0, 5]])})
    both = {"kafka": {"topics": ["t", "u"]}}
    source(layout, brokers, **both).pin(1, NOW).take(SMALL)
    brokers.topics["t"][1][0][1] = brokers.topics["u"][1][0][1] = 8
    source(layout, brokers).pin(1, NOW).take(SMALL)
    source(layout, brokers, **both).pin(1, NOW).take(SMALL)
    assert pinned(layout) == [[("t/0", 0, 5), ("u/0", 0, 5)], [("t/0", 5, 8)], [("u/0", 5, 8)]]


@pytest.mark.parametrize(("id", "start"), [("b", 5), ("c", 0)])
def test_a_topic_that_was_accepted_as_gone_and_comes_back_is_not_read_twice(
    layout: FlowHome, id: str, start: int
) -> None:
    brokers = Brokers({"t": ("a", [[0, 5]]), "u": ("b", [[0, 5]])})

    def made() -> Kafka:
        found = source(layout, brokers, kafka={"topics": [], "topic_pattern": "[tu]"})
        brokers.asked = ["t", "u"]
        return found

    made().pin(1, NOW).take(SMALL)
    del brokers.topics["u"]
    assert list(made().losses(1, 2)) == ["u/0:5-5"]
    made().accept_losses(["u/0:5-5"], {1: 2}, by="me", note="n", at=NOW)
    brokers.topics["t"][1][0][1] = 8
    made().pin(1, NOW).take(SMALL)
    brokers.topics["u"] = (id, [[0, 7]])
    made().pin(1, NOW).take(SMALL)
    assert pinned(layout) == [[("t/0", 0, 5), ("u/0", 0, 5)], [("t/0", 5, 8)], [("u/0", start, 7)]]


@pytest.mark.parametrize(
    ("after", "code", "ranges"),
    [
        ({"t": ("a", [[12, 15]])}, "offsets-lost", ["t/0:10-12"]),
        ({"t": ("b", [[0, 90]])}, "topic-recreated", ["t/0:10-10"]),
        ({}, "topic-gone", ["t/0:10-10"]),
        ({"t": ("a", [[0, 10], [2, 3]])}, "offsets-lost", ["t/1:0-2"]),
    ],
)
def test_a_loss_is_red_until_it_is_accepted(
    layout: FlowHome, after: dict[str, Any], code: str, ranges: list[str]
) -> None:
    brokers = Brokers({"t": ("a", [[0, 10]])})
    source(layout, brokers).pin(1, NOW).take(SMALL)
    brokers.topics = after
    for act in (
        lambda: source(layout, brokers).refuse_lost(layout, 1, 2),
        lambda: source(layout, brokers).pin(1, NOW),
    ):
        with pytest.raises(TerminalError) as found:
            act()
        assert found.value.code == code
    assert list(source(layout, brokers).losses(1, 2)) == ranges
    with pytest.raises(TerminalError) as wrong:
        source(layout, brokers).accept_losses(["t/0:1-2"], {1: 2}, by="me", note="n", at=NOW)
    assert wrong.value.code == "not-lost"
    source(layout, brokers).accept_losses(ranges, {1: 2}, by="me", note="n", at=NOW)
    if after:
        source(layout, brokers).refuse_lost(layout, 1, 2)
        assert source(layout, brokers).losses(1, 2) == {}


def test_a_topic_that_is_gone_for_good_must_leave_the_source(layout: FlowHome) -> None:
    brokers = Brokers({"t": ("a", [[0, 10]])})
    source(layout, brokers).pin(1, NOW).take(SMALL)
    brokers.topics = {}
    source(layout, brokers).accept_losses(["t/0:10-10"], {1: 2}, by="me", note="n", at=NOW)
    with pytest.raises(TerminalError) as found:
        source(layout, brokers).look(layout, 1, 2, NOW)
    assert found.value.code == "topic-unknown"


def test_accepted_ranges_of_pinned_offsets_are_left_out_and_the_slice_stays(
    layout: FlowHome,
) -> None:
    brokers = Brokers({"t": ("a", [[0, 10]])})
    source(layout, brokers).pin(1, NOW).take(SMALL)
    brokers.topics["t"][1][0][0] = 4
    made = source(layout, brokers)
    assert list(made.losses(1, 1)) == ["t/0:0-4"]
    made.accept_losses(["t/0:0-4"], {1: 1}, by="me", note="n", at=NOW)
    (one,) = intake.slices(layout, 1)
    assert [(unit.start, unit.until) for unit in made.left_of(one.units)] == [(4, 10)]
    assert made.look(layout, 1, 1, NOW).units == 6
    made.refuse_miscounted(1, made.left_of(one.units), {"t/0": 6})
    with pytest.raises(TerminalError) as found:
        made.refuse_miscounted(1, one.units, {"t/0": 6})
    assert found.value.code == "records-absent"


@pytest.mark.parametrize(
    ("source_says", "compacted", "read", "red"),
    [
        ({}, False, 10, False),
        ({}, False, 9, True),
        ({}, False, 0, True),
        ({}, True, 9, False),
        ({"kafka": {"transactional": True}}, False, 9, False),
        ({"kafka": {"transactional": True}}, True, 0, False),
        ({"kafka": {"transactional": True}}, True, 11, True),
    ],
)
def test_absent_records_need_a_reason(
    layout: FlowHome, source_says: dict[str, Any], compacted: bool, read: int, red: bool
) -> None:
    brokers = Brokers({"t": ("a", [[0, 10]])}, frozenset({"t"} if compacted else ()))
    made = source(layout, brokers, **source_says)
    made.pin(1, NOW).take(SMALL)
    (one,) = intake.slices(layout, 1)
    if red:
        with pytest.raises(TerminalError) as found:
            made.refuse_miscounted(1, one.units, {"t/0": read})
        assert found.value.code == "records-absent"
    else:
        made.refuse_miscounted(1, one.units, {"t/0": read})


def test_absent_records_can_be_accepted_once_a_batch_missed_them(layout: FlowHome) -> None:
    brokers = Brokers({"t": ("a", [[0, 10], [0, 5]])})
    made = source(layout, brokers)
    made.pin(1, NOW).take(Bound(1024**2, 20, "20 records"))
    (one,) = intake.slices(layout, 1)
    accept = partial(made.accept_losses, reading={1: 1}, by="me", note="trimmed by hand", at=NOW)
    assert made.losses(1, 1) == {}
    with pytest.raises(TerminalError) as found:
        accept(["t/0:0-10"])
    assert found.value.code == "not-lost"
    for read, wrong in (
        ({"t/0": 8, "t/1": 5}, "t/0"),
        ({"t/0": 10, "t/1": 0}, "t/1"),
        ({"t/0": 7, "t/1": 5}, "t/0"),
    ):
        with pytest.raises(TerminalError) as found:
            made.refuse_miscounted(1, one.units, read)
        assert found.value.code == "records-absent"
        (name,) = made.losses(1, 1)
        assert name.startswith(wrong) and f"--range {name} " in found.value.next[-1]
    accept(["t/0:0-10"])
    assert made.losses(1, 1) == {}
    looking = MAKERS["kafka"](made._source, layout, Path("/"), "")  # an audit, long after
    for some in (made, looking):
        some.refuse_miscounted(1, one.units, {"t/0": 7, "t/1": 5})
        assert [(unit.name, unit.start, unit.until) for unit in some.left_of(one.units)] == [
            ("t/0", 0, 10),
            ("t/1", 0, 5),
        ]
        for read in ({"t/0": 7, "t/1": 4}, {"t/0": 11, "t/1": 5}):
            with pytest.raises(TerminalError) as found:
                some.refuse_miscounted(1, one.units, read)
            assert found.value.code == "records-absent"
    made.refuse_miscounted(1, one.units, {"t/0": 10, "t/1": 5})
    assert made.losses(1, 1) == {}, "they were all there in the end"
    brokers.topics["t"][1][0][0] = 10
    assert list(made_again := source(layout, brokers).losses(1, 1)) == ["t/0:0-10"], made_again
    source(layout, brokers).accept_losses(["t/0:0-10"], {1: 1}, by="me", note="aged out", at=NOW)
    assert [unit.name for unit in source(layout, brokers).left_of(one.units)] == ["t/1"]


@pytest.mark.parametrize("read", [{"t/0": 7}, {"t/0": 11}])
def test_a_topic_that_became_compacted_explains_what_is_absent(
    layout: FlowHome, read: dict[str, int]
) -> None:
    brokers = Brokers({"t": ("a", [[0, 10]])})
    source(layout, brokers).pin(1, NOW).take(SMALL)
    brokers.compacted = frozenset({"t"})
    (one,) = intake.slices(layout, 1)
    looking = MAKERS["kafka"](source(layout, brokers)._source, layout, Path("/"), "")
    if read["t/0"] > 10:
        with pytest.raises(TerminalError) as found:
            source(layout, brokers).refuse_miscounted(1, one.units, read)
        assert found.value.code == "records-absent" and len(found.value.next) == 1
        return
    for _ in range(2):
        source(layout, brokers).refuse_miscounted(1, one.units, read)
    looking.refuse_miscounted(1, one.units, read)
    assert source(layout, brokers).losses(1, 1) == {}


def test_what_explained_gaps_when_a_slice_was_pinned_explains_them_for_good(
    layout: FlowHome,
) -> None:
    brokers = Brokers({"t": ("a", [[0, 10]])})
    source(layout, brokers, kafka={"transactional": True}).pin(1, NOW).take(SMALL)
    brokers.topics["t"][1][0][1] = 20
    source(layout, brokers).pin(1, NOW).take(SMALL)
    made = source(layout, brokers)
    for some in (made, MAKERS["kafka"](made._source, layout, Path("/"), "")):
        first, second = intake.slices(layout, 1)
        some.refuse_miscounted(1, first.units, {"t/0": 7})
        with pytest.raises(TerminalError) as found:
            some.refuse_miscounted(2, second.units, {"t/0": 7})
        assert found.value.code == "records-absent"


def test_raw_records_are_as_many_as_were_kept_whatever_the_source_says_by_then(
    layout: FlowHome,
) -> None:
    brokers = Brokers({"t": ("a", [[0, 15], [0, 4]])})
    raw.create(layout)
    common = {"input": "t/0", "log": "a", "day": NOW.date()}
    rows = [common | {"part": raw.RANGES, "from": 0, "until": 10}]
    rows += [common | {"part": raw.RECORDS, "position": at} for at in (0, 1, 2, 3, 5, 6, 9)]
    delta.append(layout.tables.raw, pa.Table.from_pylist(rows, schema=raw.SCHEMA))
    made = source(layout, brokers)
    made.pin(2, NOW).take(Bound(1024**2, 100, ""))
    (one,) = intake.slices(layout, 2)
    pieces = made.located(one.units)
    # an audit, which does not look for them
    looking = MAKERS["kafka"](made._source, layout, Path("/"), "")
    with pytest.raises(TerminalError):
        looking.refuse_miscounted(1, one.units, {"t/0": 12, "t/1": 4})
    for _ in range(2):
        made.refuse_miscounted(1, pieces, {"t/0": 12, "t/1": 4})
        for read in ({"t/0": 11, "t/1": 4}, {"t/0": 16, "t/1": 4}, {"t/0": 12, "t/1": 3}):
            with pytest.raises(TerminalError) as found:
                made.refuse_miscounted(1, pieces, read)
            assert found.value.code == "records-absent" and "t/0:0-10" not in " ".join(
                found.value.next
            )
    delta.delete(layout.tables.raw, "true")  # older days go
    looking.refuse_miscounted(1, one.units, {"t/0": 12, "t/1": 4})
    with pytest.raises(TerminalError):
        looking.refuse_miscounted(1, one.units, {"t/0": 12, "t/1": 3})


def test_a_pinned_topic_that_is_another_one_is_refused(layout: FlowHome) -> None:
    brokers = Brokers({"t": ("a", [[0, 10]])})
    made = source(layout, brokers)
    made.pin(1, NOW).take(SMALL)
    (one,) = intake.slices(layout, 1)
    made.refuse_changed(one.units)
    for after in ({"t": ("b", [[0, 10]])}, {}):
        brokers.topics = after
        with pytest.raises(TerminalError) as found:
            made.refuse_changed(one.units)
        assert found.value.code == "topic-recreated"


def test_what_can_not_be_read_again_is_named(layout: FlowHome) -> None:
    brokers = Brokers({"t": ("a", [[0, 5], [0, 5]])})
    source(layout, brokers).pin(1, NOW).take(SMALL)
    units = [unit for one in intake.slices(layout, 1) for unit in one.units]
    assert source(layout, brokers).missing(units) == {}
    brokers.topics["t"][1][1][0] = 2
    assert list(source(layout, brokers).missing(units)) == ["t/1:0-5"]


def _unit(number: int, start: int, until: int) -> Unit:
    row = {"topic": "t", "partition": number, "topic_id": "a"}
    return Unit(f"t/{number}", start, until, 10, 10, None, NOW, row)


def test_a_long_history_is_looked_through_once(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, asked = Counter[str](), Counter[str]()
    same, query = Span.same_log, Table.rows
    monkeypatch.setattr(Span, "same_log", lambda *spans: compared.update(["log"]) or same(*spans))
    monkeypatch.setattr(Table, "rows", lambda *more: asked.update(["table"]) or query(*more))
    units = [_unit(number, 10 * at, 10 * at + 10) for at in range(1000) for number in range(2)]
    raw.create(layout)
    rows = [
        {
            "part": raw.RANGES,
            "input": "t/1",
            "log": "a",
            "from": 20 * at,
            "until": 20 * at + 10,
            "day": NOW.date(),
        }
        for at in range(500)
    ]
    delta.append(layout.tables.raw, pa.Table.from_pylist(rows, schema=raw.SCHEMA))
    brokers = Brokers({"t": ("a", [[10_000, 10_000], [10_000, 10_000]])})
    missing = source(layout, brokers).missing(units)
    assert set(missing) == {one.range for one in units if one.name == "t/0" or one.start % 20}
    assert compared["log"] <= 2 * len(units) and asked["table"] <= 5


def test_a_loss_is_of_each_unit_that_holds_it() -> None:
    draw = random.Random(5)
    for _ in range(100):
        starts = [(draw.randrange(2), draw.randrange(30)) for _ in range(12)]
        units = [_unit(number, at, at + draw.randrange(9)) for number, at in starts]
        spans = [
            Span("t", number, draw.choice("ab"), at, at + draw.randrange(1, 5))
            for number, at in starts
        ]
        found = by_unit(units, [Loss("offsets-lost", span, "") for span in spans])
        pairs = [(unit, positions.span_of(unit), span) for span in spans for unit in units]
        wanted = [
            (unit.range, span)
            for unit, whole, span in pairs
            if whole.same_log(span) and whole.start <= span.start and span.until <= whole.until
        ]
        assert sorted((unit.range, loss.span) for unit, loss in found) == sorted(wanted)


def test_the_oldest_that_waits_is_of_the_topic_that_waits(layout: FlowHome) -> None:
    """Neither the topic that was before, nor what a batch of this generation has read."""
    brokers = Brokers({"t": ("new", [[0, 30]])})
    source(layout, brokers).pin(2, NOW).take(SMALL, most=1)
    raw.create(layout)
    spans = [("old", 0, 30), ("new", 0, 20)]
    rows = [
        {
            "part": raw.RANGES,
            "input": "t/0",
            "log": log,
            "from": start,
            "until": until,
            "day": NOW.date(),
        }
        for log, start, until in spans
    ]
    ages = [("old", 15, 9), ("new", 5, 5), ("new", 15, 2)]
    rows += [
        {"part": raw.RECORDS, "input": "t/0", "log": log, "position": position, "day": NOW.date()}
        | {"arrived_at": NOW - timedelta(days=days), "value": b"x"}
        for log, position, days in ages
    ]
    delta.append(layout.tables.raw, pa.Table.from_pylist(rows, schema=raw.SCHEMA))
    found = source(layout, brokers).look(layout, 2, 2, NOW)
    assert found.units == 20 and found.oldest == (NOW - timedelta(days=2)).timestamp()
    assert (
        source(layout, brokers).look(layout, 2, 1, NOW).oldest
        == (NOW - timedelta(days=5)).timestamp()
    )


def test_records_that_are_near_their_end_are_warned_of() -> None:
    def policy(**more: Any) -> dict[str, Policy]:
        return {
            "t": Policy(
                **(
                    {
                        "compacted": False,
                        "deleted": True,
                        "retention_ms": 3_600_000,
                        "retention_bytes": None,
                    }
                    | more
                )
            )
        }

    old, young = {("t", 0): NOW - timedelta(minutes=50)}, {("t", 0): NOW - timedelta(minutes=30)}
    (found,) = retention.findings(old, policy(), NOW, "draindown run p")
    assert found.kind == "retention" and (found.next or "").startswith("draindown run p ")
    assert retention.findings(young, policy(), NOW, "") == []
    assert retention.findings(old, policy(retention_ms=None), NOW, "") == []
    assert retention.findings(old, policy(deleted=False), NOW, "") == []


def test_after_a_reset_retention_judges_what_only_the_brokers_have(layout: FlowHome) -> None:
    brokers = Brokers({"t": ("a", [[0, 30], [0, 10]])}, retention_ms=3_600_000)
    source(layout, brokers).pin(1, NOW).take(Bound(1024**2, 100, ""))
    began = NOW - timedelta(days=3)
    kept = {"t/0": (0, 20), "t/1": (0, 10)}
    rows = [
        {
            "part": raw.RANGES,
            "input": unit,
            "log": "a",
            "from": start,
            "until": until,
            "day": NOW.date(),
        }
        for unit, (start, until) in kept.items()
    ]
    rows += [
        {
            "part": raw.RECORDS,
            "input": unit,
            "log": "a",
            "position": 3,
            "arrived_at": began,
            "day": NOW.date(),
        }
        | {"key": b"\xff" * 20, "value": b"\xfe" * 40 if unit == "t/0" else None}
        for unit in kept
    ]
    raw.create(layout)
    delta.append(layout.tables.raw, pa.Table.from_pylist(rows, schema=raw.SCHEMA))
    brokers.topics["t"] = ("a", [[12, 30], [8, 10]])
    again = source(layout, brokers)
    found = again.look(layout, 2, 1, NOW)
    assert brokers.sampled == [Span("t", 0, "a", 20, 30)], "the lake has all else"
    assert found.units == 40 and found.oldest == began.timestamp(), (
        "what waits in the lake is old all the same"
    )
    assert [one.subject for one in found.findings] == ["t/0"]
    assert found.expires == NOW.timestamp() and found.keeps == 3600
    again.pin(2, NOW)
    brokers.topics["t"] = ("a", [[12, 20], [8, 10]])
    assert source(layout, brokers).look(layout, 2, 1, NOW).bytes == 30 * 40, (
        "what the lake holds is weighed there"
    )
    delta.delete(layout.tables.raw, "input = 't/1'")
    brokers.topics["t"] = ("a", [[25, 30], [8, 10]])
    source(layout, brokers).look(layout, 2, 1, NOW)
    assert brokers.sampled == [Span("t", 0, "a", 25, 30), Span("t", 1, "a", 8, 10)], (
        "never below a beginning"
    )


def begun(layout: FlowHome, epoch: int | None = 3) -> Brokers:
    """A flow that has pinned two slices of two partitions."""
    brokers = Brokers({"t": ("a", [[0, 12], [0, 8]])}, epoch=epoch)
    assert not source(layout, brokers).pin(1, NOW).take(SMALL)
    return brokers


def test_logs_are_compared_once_they_have_other_leaders_and_once_a_look(layout: FlowHome) -> None:
    brokers = begun(layout)
    assert [one.epoch for one in positions.newest(layout, 1)] == [3, 3]
    brokers.topics["t"][1][0][1] = 20
    source(layout, brokers).refuse_lost(layout, 1, 1)
    assert not brokers.compared, "the same leaders"
    brokers.epoch = 5
    made = source(layout, brokers)
    made.refuse_lost(layout, 1, 1)
    assert made.look(layout, 1, 1, NOW).units == 28
    assert not made.losses(1, 1) and not made.missing(made.left_of(units(layout)))
    assert brokers.compared == [[("t/0 [6, 12)", 3), ("t/1 [4, 8)", 3)]]
    assert not made.pin(1, NOW).take(SMALL)
    assert [one.epoch for one in positions.newest(layout, 1)] == [5, 5]
    source(layout, brokers).refuse_lost(layout, 1, 1)
    assert len(brokers.compared) == 1


def units(layout: FlowHome) -> list[Unit]:
    return [unit for one in intake.slices(layout, 1) for unit in one.units]


def test_a_log_that_was_truncated_and_grew_again_is_never_read_on(layout: FlowHome) -> None:
    brokers = begun(layout)
    brokers.epoch, brokers.truncated = 5, {("t", 0): 7}
    brokers.topics["t"][1][0][1] = 40
    with pytest.raises(TerminalError) as found:
        source(layout, brokers).pin(1, NOW)
    assert found.value.code == "log-truncated"
    assert (
        "t/0 [7, 12): the log was truncated to 7 and written anew up to 40 (leader epoch 5)"
        in found.value.found
    )
    assert any("rebuild" in one for one in found.value.next)
    made = source(layout, brokers)
    with pytest.raises(TerminalError):
        made.refuse_lost(layout, 1, 3)
    for first, cut in ((3, "t/0 [7, 12)"), (2, "t/0 [7, 12)")):
        for act in (
            lambda first=first: made.losses(1, first),
            lambda first=first: made.accept_losses(
                ["t/0:7-12"], {1: first}, by="me", note="n", at=NOW
            ),
        ):
            with pytest.raises(TerminalError) as found:
                act()
            assert found.value.code == "log-truncated" and cut in found.value.found
    assert not Path(layout.accepted_losses.path).exists()
    assert set(made.missing(units(layout))) == {"t/0:6-12"}
    assert len(pinned(layout)) == 2


def test_a_batch_that_failed_asks_anew_whether_its_log_was_truncated(layout: FlowHome) -> None:
    brokers = begun(layout)
    made = source(layout, brokers)
    made.refuse_lost(layout, 1, 1)
    brokers.epoch, brokers.truncated = 5, {("t", 1): 2}
    slices = list(intake.slices(layout, 1))
    error = made.read_failed(Failure("lost", "gone"), slices[0].units)
    assert error.code == "log-truncated" and "t/1 [2, 4)" in error.found


@pytest.mark.parametrize(("kept", "now"), [(None, 5), (3, None), (5, 3)])
def test_without_epochs_to_compare_only_a_shorter_log_is_truncated(
    layout: FlowHome, kept: int | None, now: int | None
) -> None:
    """Slices of before have no epochs, and old brokers tell none."""
    brokers = begun(layout, kept)
    brokers.epoch, brokers.truncated = now, {("t", 0): 7}
    source(layout, brokers).refuse_lost(layout, 1, 3)
    brokers.topics["t"][1][0][1] = 11
    with pytest.raises(TerminalError) as found:
        source(layout, brokers).refuse_lost(layout, 1, 3)
    assert found.value.code == "log-truncated" and "t/0 [11, 12)" in found.value.found
    assert not brokers.compared


def test_positions_that_were_written_without_epochs_are_read(layout: FlowHome) -> None:
    intake.create(layout, 1, positions.OWN)
    rows = positions.rows(
        [Span("t", 0, "a", 0, 5)], record_bytes=1.0, oldest={}, now=NOW, compacted=()
    )
    assert rows[0]["positions"] == '{"t:a":{"0":[0,5]}}'
    intake.append(layout, 1, positions.OWN, rows, NOW, 1)
    assert [(one, one.epoch) for one in positions.newest(layout, 1)] == [
        (Span("t", 0, "a", 0, 5), None)
    ]


def test_a_copy_whose_bounds_could_not_be_written_is_not_marked_as_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = FlowHome(str(tmp_path), "p", "f", "t")
    Path(layout.home).mkdir(parents=True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Document, "write", full)
    with pytest.raises(OSError, match="No space"):
        bounds.confine(layout, [])
    assert not bounds._mark(layout).exists
