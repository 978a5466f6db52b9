"""Recovery of a flow of Kafka whose brokers no longer hold what it would read again, without a
JVM.
"""

from __future__ import annotations

import random
import shlex
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from draindown.base.errors import TerminalError
from draindown.flow import generations
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.recovery import losses, rebuild, replay, reset
from draindown.recovery.abort import abort
from draindown.runs.request import Again, Request
from draindown.sources import intake, raw
from draindown.sources.batch_size import Bound, bound_for
from draindown.sources.kafka import accepted, positions
from draindown.sources.kafka.offsets import Loss, Span
from draindown.sources.port import left_of, located, missing_anew
from draindown.sources.registry import source_of
from draindown.sources.slices import Unit
from tests.flowfiles import AT, checkpoint
from tests.tables.test_audit_records import World
from tests.tables.test_doctor_source import HELD, examined
from tests.tables.test_kafka_source import SMALL, Brokers
from tests.tables.test_kafka_source import source as kafka


def drained(root: Path) -> Request:
    """The request of a keyed flow that read all, and of which the lake has no raw record of t/0."""
    asked = World(root, keyed=True).write()
    checkpoint(asked, 1, offsets=2, commits=2)
    delta.delete(asked.layout.tables.raw, "input = 't/0'")
    return asked


def test_a_replay_notices_that_its_topic_was_created_again_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = drained(tmp_path)
    brokers = Brokers(dict(HELD))
    examined(asked, brokers, monkeypatch)
    replaying = asked.model_copy(update={"replay": Again(units=("t/0", "t/1"))})
    found, source = replay.find(replaying), source_of(asked)
    replay.refuse_gone(source, asked.layout, found.left)
    first, second = (replay.read_of(source, part).units for part in found.left)
    replay.refuse_changed(source, asked.layout, first)
    brokers.topics = {"t": ("y", [[0, 900], [0, 9]])}
    for units in (first, second):
        with pytest.raises(TerminalError) as caught:
            replay.refuse_changed(source, asked.layout, units)
        assert caught.value.code == "replay-input-gone" and "t/0 [" in caught.value.found
        assert [_words(step) for step in caught.value.next] == [
            "draindown replay p/f --from TIME --to TIME"
        ]
    # the lake has it
    replay.refuse_changed(source, asked.layout, [unit for unit in first if unit.name == "t/1"])


ACCEPT = 'draindown input discard p/f --range {} --note "..." --yes'


def _words(step: str) -> str:
    """What is typed of a step: without the comment."""
    return step.partition("#")[0].strip()


def test_a_rebuild_whose_rest_aged_out_goes_on_behind_an_accepted_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = drained(tmp_path)
    examined(asked, Brokers(HELD), monkeypatch)
    assert rebuild.begin(asked, by="me", accept_missing=False).generation == 2
    spans = [Span("t", 0, "x", 0, 6), Span("t", 1, "x", 7, 9)]
    pinned = positions.rows(spans, record_bytes=1.0, oldest={}, now=AT, compacted=())
    intake.append(asked.layout, 2, positions.OWN, pinned, AT, 1)
    found = examined(asked, Brokers({"t": ("x", [[4, 6], [0, 9]])}), monkeypatch)
    (told,) = [one for one in found.symptoms if one.code == "input-lost"]
    assert "pinned for the rebuild of generation 2 and gone: t/0:0-4" in told.found
    assert rebuild.plan(asked).missing == ("t/0:0-6",)
    with pytest.raises(TerminalError) as caught:
        rebuild.begin(asked, by="me", accept_missing=False)
    assert (caught.value.code, [_words(step) for step in caught.value.next]) == (
        "rebuild-input-gone",
        ["draindown input list p/f", "draindown rebuild p/f --abort --yes"],
    )
    staged = asked.model_copy(update={"staged": 2})
    with pytest.raises(TerminalError) as caught:
        source_of(staged).refuse_lost(staged.layout, 2, 1) or losses.accept(
            asked, ["t/0:0-5"], by="me", note="n"
        )
    assert caught.value.code == "not-lost" and "t/0:0-4" in caught.value.found
    assert list(losses.found(asked)) == ["t/0:0-4"]
    losses.accept(asked, ["t/0:0-4"], by="me", note="aged out")
    assert losses.found(asked) == {} and rebuild.plan(asked).missing == ()
    abort(asked.layout, lambda: None)
    assert losses.found(asked) == {}


def test_what_a_rebuild_can_not_read_on_can_be_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = drained(tmp_path)
    examined(asked, Brokers({"t": ("x", [[8, 9], [0, 9]])}), monkeypatch)
    for staged, wanted in ((0, []), (1, ["draindown rebuild p/f --abort --yes"])):
        flow = asked.model_copy(update={"staged": staged})
        with pytest.raises(TerminalError) as caught:
            source_of(flow).refuse_lost(asked.layout, 1, 3)
        assert caught.value.code == "offsets-lost"
        assert [_words(step) for step in caught.value.next] == [ACCEPT.format("t/0:6-8"), *wanted]


def test_what_was_given_up_as_lost_is_missing_to_nobody_who_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = drained(tmp_path)
    examined(asked, Brokers({"t": ("x", [[2, 6], [0, 9]])}), monkeypatch)
    span = Span("t", 0, "x", 0, 2)
    again = Again(since=AT - timedelta(days=1), until=AT + timedelta(days=1))
    replaying = asked.model_copy(update={"replay": again})
    found, source = replay.find(replaying), source_of(asked)
    with pytest.raises(TerminalError) as caught:
        replay.refuse_gone(source, asked.layout, found.left)
    assert (caught.value.code, [_words(step) for step in caught.value.next]) == (
        "replay-input-gone",
        ["draindown replay p/f --from TIME --to TIME"],
    )
    for code, begin in (
        ("reset", lambda: reset.begin(asked, reset.plan(asked), by="me", accept_missing=False)),
        ("rebuild", lambda: rebuild.begin(asked, by="me", accept_missing=False)),
    ):
        with pytest.raises(TerminalError) as caught:
            begin()
        assert (caught.value.code, [_words(step) for step in caught.value.next]) == (
            f"{code}-input-gone",
            [f"draindown {code} p/f --accept-missing --yes"],
        )
    assert reset.plan(asked).missing == rebuild.plan(asked).missing == ("t/0:0-4",)
    accepted.accept(asked.layout, [Loss("offsets-lost", span, "")], by="me", note="aged out", at=AT)
    replay.refuse_gone(source_of(asked), asked.layout, found.left)
    read = [
        (one.name, one.start, one.until)
        for part in found.left
        for one in replay.read_of(source, part).units
    ]
    assert read == [("t/0", 2, 4), ("t/1", 7, 9), ("t/0", 4, 6)]
    assert reset.plan(asked).missing == rebuild.plan(asked).missing == ()


def _kafka(**more: Any) -> dict[str, Any]:
    return {"kafka": {"bootstrap_servers": "h:1"} | more}


AGED = ["t/0:0-4", "t/0:4-6"]
ALL = ["t/0:0-4", "t/1:7-9", "t/0:4-6"]
OLD = [("t/0", 0, 6), ("t/1", 7, 9)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("brokers", "says", "missing", "next", "anew"),
    [
        (
            Brokers({"t": ("x", [[8, 12], [0, 9]])}),
            {},
            ["t/0:0-4", "t/0:4-6"],
            ACCEPT.format("t/0:6-8"),
            [*OLD, ("t/0", 8, 12)],
        ),
        (Brokers({"t": ("y", [[0, 9], [0, 8]])}), {}, ALL, "", [("t/0", 0, 9), ("t/1", 0, 8)]),
        (Brokers({"t": ("x", [[6, 9]])}), {}, ["t/1:7-9"], "", [("t/0", 0, 9)]),
        (
            Brokers({"u": ("z", [[0, 9]])}, asked=("u",)),
            _kafka(topics=["u"]),
            ALL,
            "",
            [("u/0", 0, 9)],
        ),
        (
            Brokers({"u": ("z", [[0, 9]])}, asked=("u",)),
            _kafka(topic_pattern="[tu]"),
            ALL,
            "",
            [("u/0", 0, 9)],
        ),
    ],
    ids=[
        "below a gap",
        "created again",
        "a partition is gone",
        "not named any more",
        "accepted as gone",
    ],
)
def test_raw_records_that_a_new_generation_would_not_read_are_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    brokers: Brokers,
    says: dict[str, Any],
    missing: list[str],
    next: str,
    anew: list[tuple[str, int, int]],
) -> None:
    asked = World(tmp_path, keyed=True, source=says).write()
    checkpoint(asked, 1, offsets=2, commits=2)
    examined(asked, brokers, monkeypatch)
    if "topic_pattern" in says.get("kafka", ()):
        losses.accept(asked, ["t/0:6-6", "t/1:9-9"], by="me", note="gone for good")
    commands = {
        "reset": lambda: reset.begin(
            asked, reset.plan(asked, table_aside=True), by="me", accept_missing=False
        ),
        "rebuild": lambda: rebuild.begin(asked, by="me", accept_missing=False),
    }
    for command, begin in commands.items():
        with pytest.raises(TerminalError) as caught:
            begin()
        aside = " --table-aside" * (command == "reset")
        wanted = next or f"draindown {command} p/f{aside} --accept-missing --yes"
        assert (caught.value.code, _words(caught.value.next[-1])) == (
            f"{command}-input-gone",
            wanted,
        )
        assert len(caught.value.next) == 1 and all(name in caught.value.found for name in missing)
    assert (
        reset.plan(asked, table_aside=True).missing == rebuild.plan(asked).missing == tuple(missing)
    )
    if next:
        losses.accept(asked, ["t/0:6-8"], by="me", note="aged out")
        assert reset.plan(asked, table_aside=True).missing == rebuild.plan(asked).missing == ()
    assert sorted(_pinned_anew(asked)) == sorted(anew)


def _pinned_anew(asked: Request) -> list[tuple[str, int, int]]:
    """Begin a rebuild, and return what it pins: unit, start and until."""
    number = rebuild.begin(asked, by="me", accept_missing=True).generation
    staged = asked.model_copy(update={"staged": number})
    source = source_of(staged)
    with closing(source.pin(number, AT)) as pinning:
        pinning.take(bound_for(asked.flow_spec.source, heap_bytes=1024**3))
    units = [
        unit for one in intake.slices(staged.layout, number) for unit in left_of(source, one.units)
    ]
    return [(one.name, one.start, one.until) for one in units]


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.long) for n in range(3, 15))]
)
def test_what_a_new_generation_does_not_read_is_missing_whatever_happened(
    tmp_path: Path, seed: int
) -> None:
    """Each offset that was read is pinned again, or is in a range that is named; and no other range
    is.
    """
    draw = random.Random(seed)
    layout = FlowHome(str(tmp_path / "lake"), "p", "f", "f", own_intakes=True)
    brokers, kept, lives = Brokers({"t": ("0", [[0, 4], [0, 4]])}), list[Span](), 0
    for _ in range(8):
        held = brokers.topics["t"][1]
        lost = kafka(layout, brokers).losses(1, intake.newest(layout, 1) + 1)
        kafka(layout, brokers).accept_losses(list(lost), {1: 9**9}, by="me", note="n", at=AT)
        kafka(layout, brokers).pin(1, AT).take(SMALL)
        spans = [span for span in positions.newest(layout, 1) if span.size]
        kept += spans if draw.random() < 0.7 else draw.sample(spans, len(spans) // 2)
        for part in held:
            part[1] += draw.randrange(6)
            part[0] = min(part[1], part[0] + draw.choice([0, 0, 3, 9]))
        if draw.random() < 0.1:
            brokers.topics["t"] = (str(lives := lives + 1), [[0, draw.randrange(9)] for _ in held])
        elif draw.random() < 0.2:
            held.append([0, draw.randrange(5)])
    raw.create(layout)
    rows = [
        {
            "part": raw.RANGES,
            "input": s.unit,
            "log": s.topic_id,
            "from": s.start,
            "until": s.until,
            "day": AT.date(),
        }
        for s in kept
        if draw.random() < 0.9
    ]
    delta.append(layout.tables.raw, pa.Table.from_pylist(rows, schema=raw.SCHEMA))
    source = kafka(layout, brokers)
    units = left_of(source, [unit for one in intake.slices(layout, 1) for unit in one.units])
    missing = set(missing_anew(source, units, 1, 2))
    source.pin(2, AT).take(Bound(1024**3, 1000, ""))
    again = left_of(source, [unit for one in intake.slices(layout, 2) for unit in one.units])
    assert source.missing(again) == {}
    pinned = {place for unit in again for place in _places(unit)}
    assert missing == {unit.range for unit in units if not _places(unit) <= pinned}


def _places(unit: Unit) -> set[tuple[str, str, int]]:
    return {(unit.name, unit.row["topic_id"], at) for at in range(unit.start, unit.until)}


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (["t/0:3-5"], [("t/0", 0, 4), ("t/0", 4, 6)]),
        (["t/0:4-5"], [("t/0", 4, 6)]),
        (["t/0:0-4"], [("t/0", 0, 4)]),
        (["t/1"], [("t/1", 7, 9)]),
        (["t/1:0-8", "t/0:5-99"], [("t/1", 7, 9), ("t/0", 4, 6)]),
        (["t/0:6-9"], None),
        (["t/0:4-4"], None),
        (["t/7:0-9"], None),
    ],
)
def test_offsets_are_replayed_by_the_pinned_ranges_that_have_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranges: list[str],
    expected: list[tuple[str, int, int]] | None,
) -> None:
    asked = drained(tmp_path)
    examined(asked, Brokers(HELD), monkeypatch)
    replaying = asked.model_copy(update={"replay": Again(units=tuple(ranges))})
    if expected is None:
        with pytest.raises(TerminalError) as caught:
            replay.find(replaying)
        assert caught.value.code == "not-taken-in" and ranges[0] in caught.value.found
        return
    found = replay.find(replaying)
    assert [
        (one.name, one.start, one.until) for part in found.parts for one in part.slice.units
    ] == expected
    assert found.asked == " ".join(f"--range {one}" for one in ranges)


def test_raw_records_do_not_stand_for_what_came_at_the_offsets_of_a_log_that_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = World(tmp_path, keyed=True).write()
    checkpoint(asked, 1, offsets=2, commits=2)
    examined(asked, Brokers({"t": ("x", [[0, 3], [0, 9]])}), monkeypatch)
    with pytest.raises(TerminalError) as caught:
        source_of(asked).refuse_lost(asked.layout, 1, 3)
    aside, anew = (shlex.split(_words(step)) for step in caught.value.next)
    assert caught.value.code == "log-truncated" and caught.value.in_order
    assert anew == ["draindown", "rebuild", "p/f", "--accept-missing"]
    for act in (
        lambda: losses.found(asked),
        lambda: losses.accept(asked, ["t/0:3-6"], by="me", note="3 a.m."),
    ):
        with pytest.raises(TerminalError) as refused:
            act()
        assert refused.value.code == "log-truncated" and refused.value.next == caught.value.next
    # three came at offsets that were read before
    examined(asked, Brokers({"t": ("x", [[0, 6], [0, 9]])}), monkeypatch)
    units = [unit for one in intake.slices(asked.layout, 1) for unit in one.units]
    assert all(one.kept for one in located(source_of(asked), units) if one.until > one.start)
    assert aside[0] == "mv"
    Path(aside[1]).rename(aside[2])
    assert not any(one.kept for one in located(source_of(asked), units))
    examined(asked, Brokers({"t": ("x", [[0, 8], [0, 9]])}), monkeypatch)
    assert rebuild.plan(asked).missing == ()
    assert _pinned_anew(asked) == [("t/0", 0, 8), ("t/1", 7, 9)]


def test_nothing_is_read_again_while_raw_records_stand_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = World(tmp_path, keyed=True).write()
    checkpoint(asked, 1, offsets=2, commits=2)
    examined(asked, Brokers({"t": ("x", [[0, 3], [0, 9]])}), monkeypatch)
    for begin in (
        lambda: reset.begin(asked, reset.plan(asked), by="me", accept_missing=True),
        lambda: rebuild.begin(asked, by="me", accept_missing=True),
    ):
        with pytest.raises(TerminalError) as caught:
            begin()
        assert caught.value.code == "log-truncated" and "t/0 [3, 6)" in caught.value.found
        assert caught.value.next[0].startswith("mv ") and caught.value.in_order
    assert generations.generation(asked.layout) == 1 and rebuild.unfinished(asked.layout) is None
    delta.delete(asked.layout.tables.raw, "input = 't/0'")  # others stay, and stand for none
    assert rebuild.plan(asked).missing == reset.plan(asked).missing == ("t/0:0-4", "t/0:4-6")
