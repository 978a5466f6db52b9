"""Recovery of a flow of Kafka whose brokers no longer hold what it would read again, without a JVM."""

from __future__ import annotations

import shlex
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from draindown.base.errors import TerminalError
from draindown.lake import delta
from draindown.recovery import losses, rebuild, replay, reset
from draindown.runs.request import Again, Request
from draindown.sources import intake
from draindown.sources.batch_size import bound_for
from draindown.sources.kafka import accepted, positions
from draindown.sources.kafka.offsets import Loss, Span
from draindown.sources.registry import source_of
from tests.flowfiles import AT, checkpoint
from tests.tables.test_audit_records import World
from tests.tables.test_doctor_source import HELD, examined
from tests.tables.test_kafka_source import Brokers


def drained(root: Path) -> Request:
    """The request of a keyed flow that read all, and of which the lake has no raw record of t/0."""
    asked = World(root, keyed=True).write()
    checkpoint(asked, 1, offsets=2, commits=2)
    delta.delete(asked.layout.raw, "unit = 't/0'")
    return asked


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
        ["draindown accept-loss p --flow f", "draindown rebuild p --flow f --abort --yes"],
    )
    staged = asked.model_copy(update={"staged": 2})
    with pytest.raises(TerminalError) as caught:
        source_of(staged).refuse_lost(staged.layout, 2, 1) or losses.accept(asked, ["t/0:0-5"], by="me", note="n")
    assert caught.value.code == "not-lost" and "t/0:0-4" in caught.value.found
    assert list(losses.found(asked)) == ["t/0:0-4"]
    losses.accept(asked, ["t/0:0-4"], by="me", note="aged out")
    assert losses.found(asked) == {} and rebuild.plan(asked).missing == ()
    rebuild.abort(asked.layout)
    assert losses.found(asked) == {}


def test_what_a_rebuild_can_not_read_on_can_be_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = drained(tmp_path)
    examined(asked, Brokers({"t": ("x", [[8, 9], [0, 9]])}), monkeypatch)
    for staged, wanted in ((0, "--accept-missing"), (1, "--abort --yes")):
        flow = asked.model_copy(update={"staged": staged})
        with pytest.raises(TerminalError) as caught:
            source_of(flow).refuse_lost(asked.layout, 1, 3)
        assert caught.value.code == "offsets-lost" and wanted in caught.value.next[-1]


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
        ["draindown replay p --flow f --from TIME --to TIME"],
    )
    for code, begin in (
        ("reset", lambda: reset.begin(asked, reset.plan(asked), by="me", accept_missing=False)),
        ("rebuild", lambda: rebuild.begin(asked, by="me", accept_missing=False)),
    ):
        with pytest.raises(TerminalError) as caught:
            begin()
        assert (caught.value.code, [_words(step) for step in caught.value.next]) == (
            f"{code}-input-gone",
            [f"draindown {code} p --flow f --accept-missing --yes"],
        )
    assert reset.plan(asked).missing == rebuild.plan(asked).missing == ("t/0:0-4",)
    accepted.accept(asked.layout, [Loss("offsets-lost", span, "")], by="me", note="aged out", at=AT)
    replay.refuse_gone(source_of(asked), asked.layout, found.left)
    read = [(one.name, one.start, one.until) for part in found.left for one in replay.read_of(source, part).units]
    assert read == [("t/0", 2, 4), ("t/1", 7, 9), ("t/0", 4, 6)]
    assert reset.plan(asked).missing == rebuild.plan(asked).missing == ()


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: list[str], expected: list[tuple[str, int, int]] | None
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
    assert [(one.name, one.start, one.until) for part in found.parts for one in part.slice.units] == expected
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
    assert anew == ["draindown", "rebuild", "p", "--flow", "f", "--accept-missing"]
    for act in (lambda: losses.found(asked), lambda: losses.accept(asked, ["t/0:3-6"], by="me", note="3 a.m.")):
        with pytest.raises(TerminalError) as refused:
            act()
        assert refused.value.code == "log-truncated" and refused.value.next == caught.value.next
    examined(asked, Brokers({"t": ("x", [[0, 6], [0, 9]])}), monkeypatch)  # three came at offsets that were read before
    units = [unit for one in intake.slices(asked.layout, 1) for unit in one.units]
    assert all(one.kept for one in source_of(asked).located(units) if one.until > one.start)
    assert aside[0] == "mv"
    Path(aside[1]).rename(aside[2])
    assert not any(one.kept for one in source_of(asked).located(units))
    examined(asked, Brokers({"t": ("x", [[0, 8], [0, 9]])}), monkeypatch)
    assert rebuild.plan(asked).missing == ()
    staged = asked.model_copy(update={"staged": rebuild.begin(asked, by="me", accept_missing=True).generation})
    anew_source = source_of(staged)
    with closing(anew_source.pin(2, AT)) as pinning:
        pinning.take(bound_for(asked.flow_spec.source, heap_bytes=1024**3))
    fresh = [unit for one in intake.slices(staged.layout, 2) for unit in anew_source.left_of(one.units)]
    assert [(one.name, one.start, one.until) for one in fresh] == [("t/0", 0, 8), ("t/1", 7, 9)]
