"""What is sent to a sink when a batch is tried again: histories of crashes over a sink in memory,
as pure functions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from draindown.base.errors import TerminalError
from draindown.flow import sink_identity, sink_state
from draindown.flow.sink_delivery import deliver
from draindown.flow.sink_state import Holds, SinkState
from draindown.lake.home import FlowHome
from draindown.recovery import sink_bases
from draindown.sinks import refusals
from draindown.sinks.port import SinkBatch, SinkColumn, SinkPlace


class Crash(Exception):
    """The driver dies here."""


@dataclass
class MemorySink:
    """A keyed table in memory. `records`: whether it remembers batches. `dies`: before or after it
    took the rows.
    """

    records: bool = True
    table: dict[Any, Any] = field(default_factory=dict)
    batches: dict[str, SinkBatch] = field(default_factory=dict)
    sends: int = 0
    dies: str = ""
    refuses: bool = False

    def check(self, columns: Sequence[SinkColumn]) -> None: ...

    def fence(self, epoch: int) -> None: ...

    def unsendable(self, columns: Sequence[SinkColumn]) -> Mapping[str, str]:
        return {}

    def has(self, batch: SinkBatch) -> SinkBatch | None:
        return self.batches.get(batch.writer) if self.records else None

    def send(self, batch: SinkBatch, columns: Sequence[SinkColumn], rows: Iterable[Any]) -> None:
        if self.dies == "before":
            raise Crash
        if self.refuses:
            raise TerminalError(
                "sink-refused", tried="send", found="key 1", next="draindown sink skip"
            )
        rows = list(rows)
        known = self.batches.get(batch.writer)
        if not (
            self.records and known and (known.number, known.digest) == (batch.number, batch.digest)
        ):
            self.sends += 1
            for key, value in rows:
                self.table[key] = value
            if self.records:
                self.batches[batch.writer] = batch
        if self.dies == "after":
            raise Crash

    def retain(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], keys: Iterable[Any]
    ) -> int | None:
        return None

    def close(self) -> None: ...


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    found = FlowHome(str(tmp_path), "p", "f", "f")
    found.make()
    return found


PLACE = SinkPlace("lake", "p", "f", "s")
PRINT = Holds("print", "no such table")


def _batch(
    number: int, rows: Mapping[Any, Any], writer: str = "w", kind: str = "drain", epoch: int = 1
) -> SinkBatch:
    digest = format(hash(tuple(sorted(rows.items()))) & 0xFFFF, "x")
    return SinkBatch(PLACE, writer, number, 1, kind, number, epoch, len(rows), digest)


def _deliver(
    layout: FlowHome, sink: Any, number: int, rows: Mapping[Any, Any], **more: Any
) -> None:
    deliver(layout, sink, _batch(number, rows, **more), (), lambda: list(rows.items()), PRINT)  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_retry_sends_the_same_rows_or_none(layout: FlowHome, records: bool, dies: str) -> None:
    sink = MemorySink(records=records, dies=dies)
    with pytest.raises(Crash):
        _deliver(layout, sink, 0, {1: "a"})
    known = SinkState.read(layout, "s").of("w")
    assert known is not None and not known.sent
    sink.dies = ""
    _deliver(layout, sink, 0, {1: "a"})
    _deliver(layout, sink, 0, {1: "a"})  # once it is known as sent, the sink is not asked
    assert sink.table == {1: "a"}
    assert sink.sends == (2 if dies == "after" and not records else 1)


@pytest.mark.parametrize("dies", ["", "before", "after"])
@pytest.mark.parametrize("records", [True, False])
def test_other_rows_of_a_batch_that_may_be_there_are_refused(
    layout: FlowHome, records: bool, dies: str
) -> None:
    sink = MemorySink(records=records)
    _deliver(layout, sink, 0, {1: "a"})
    sink.dies = dies
    try:
        _deliver(layout, sink, 1, {2: "b"})
    except Crash:
        assert dies
    sink.dies = ""
    if records and dies == "before":  # the sink says that it never got it
        _deliver(layout, sink, 1, {2: "other"})
        assert sink.table == {1: "a", 2: "other"}
        return
    for rows in ({2: "other"}, {}):
        with pytest.raises(TerminalError, match="another than then") as raised:
            _deliver(layout, sink, 1, rows)
        assert raised.value.code == "sink-differs"
    assert sink.table.get(2) in (None, "b")


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_batch_that_was_begun_without_a_record_is_not_sent_with_one(
    layout: FlowHome, dies: str
) -> None:
    """The sink is recording, is not while a driver dies, and is again: it says that it lacks what
    it may have.
    """
    sink = MemorySink()
    _deliver(layout, sink, 0, {1: "a"})
    sink.records, sink.dies = False, dies
    with pytest.raises(Crash):
        _deliver(layout, sink, 1, {1: "b"})
    sink.records, sink.dies = True, ""
    before = SinkState.read(layout, "s")
    for _ in range(2):
        with pytest.raises(TerminalError, match="delivery") as raised:
            _deliver(layout, sink, 1, {1: "b"})
        assert raised.value.code == "sink-records"
    assert SinkState.read(layout, "s") == before
    sink.records = False  # as `next` has it: the old delivery ends the batch
    _deliver(layout, sink, 1, {1: "b"})
    sink.records = True
    _deliver(layout, sink, 1, {1: "b"})
    _deliver(layout, sink, 2, {1: "c"})
    assert (sink.table, sink.sends) == ({1: "c"}, 4 if dies == "after" else 3)
    known = SinkState.read(layout, "s").of("w")
    assert known is not None and known.recorded


def test_a_batch_that_was_begun_with_a_record_goes_on_without_one(layout: FlowHome) -> None:
    sink = MemorySink(dies="after")
    with pytest.raises(Crash):
        _deliver(layout, sink, 0, {1: "a"})
    sink.records, sink.dies = False, ""
    _deliver(layout, sink, 0, {1: "a"})
    known = SinkState.read(layout, "s").of("w")
    assert known is not None and (known.sent, known.recorded, sink.sends) == (True, False, 2)


def test_a_batch_without_rows_is_not_sent(layout: FlowHome) -> None:
    sink = MemorySink()
    _deliver(layout, sink, 0, {})
    assert sink.sends == 0
    assert SinkState.read(layout, "s").sendings == ()


@pytest.mark.parametrize("rows", [{2: "b"}, {}])
@pytest.mark.parametrize("stale", ["", sink_state.SWAPPED])
def test_a_batch_by_an_edited_spec_leaves_the_sink_stale_once_the_edit_is_undone(
    layout: FlowHome, rows: dict[int, str], stale: str
) -> None:
    _deliver(layout, MemorySink(), 0, {1: "a"})
    replace(SinkState.read(layout, "s"), stale=stale).write(layout, "s")
    deliver(
        layout, MemorySink(), _batch(1, rows), (), lambda: list(rows.items()), Holds("edited", "")
    )  # type: ignore[arg-type]
    _deliver(layout, MemorySink(), 2, {3: "c"})
    state = SinkState.read(layout, "s")
    assert state.why_stale("print") == state.why_stale("edited") == sink_state.EDITED
    assert not state.is_of_base


class LeaseLost(Exception):
    """Another driver took over."""


STEPS = ("counted-s", "noted-s", "portion-s", "taken-s")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("records", [True, False])
def test_a_driver_that_thaws_after_another_one_took_over_overwrites_nothing(
    layout: FlowHome, step: str, records: bool
) -> None:
    sink, steps = MemorySink(records=records), list[str]()

    def frozen_at(name: str) -> None:
        steps.append(name)
        if name == step:
            _deliver(layout, sink, 0, {1: "a"})
            _deliver(layout, sink, 1, {1: "b"})
            raise LeaseLost

    with pytest.raises(LeaseLost):
        deliver(layout, sink, _batch(0, {1: "a"}), (), lambda: [(1, "a")], PRINT, frozen_at)
    known = SinkState.read(layout, "s").of("w")
    assert known is not None and (known.number, known.sent) == (1, True)
    assert sink.table == {1: "b"}
    assert steps == [*STEPS[: STEPS.index(step) + 1]], "nothing was done after the lease was lost"


def test_what_the_system_refuses_is_given_up_as_a_row_or_as_a_batch(layout: FlowHome) -> None:
    sink = MemorySink(refuses=True)
    with pytest.raises(TerminalError):
        _deliver(layout, sink, 3, {1: "a", 2: "b"})
    known = SinkState.read(layout, "s").of("w")
    assert known is not None and known.refused and not known.sent
    assert sink_state.skip_row(layout, "s", {"id": "1"}, by="me", reason="bad") is not None
    assert sink_state.skip_row(layout, "s", {"id": "2"}, by="me", reason="bad") is not None
    state = SinkState.read(layout, "s")
    assert [one.key for one in state.skipped("w", 3)] == [{"id": "1"}, {"id": "2"}]
    assert state.skipped("w", 4) == [] and state.stale == ""
    assert [one.number for one in sink_state.give_up(layout, "s", by="me", reason="all bad")] == [3]
    state = SinkState.read(layout, "s")
    assert state.stale == sink_state.GIVEN_UP and state.skipped("w", 3)[-1].key == {}
    assert sink_state.in_flight(layout), "the batch comes before all others, and is not sent"
    whole = _batch(3, {1: "a", 2: "b"})
    # its digest has the rows that were given up
    deliver(layout, sink, replace(whole, rows=0), (), list, PRINT)
    assert sink.table == {}


def test_a_fill_may_go_on_without_a_row(layout: FlowHome) -> None:
    assert sink_state.skip_row(layout, "s", {"id": "1"}, by="me", reason="bad") is None
    SinkState(fill=sink_state.Fill(7, 1, 2, "print")).write(layout, "s")
    found = sink_state.skip_row(layout, "s", {"id": "1"}, by="me", reason="bad")
    assert found is not None
    begun_again = replace(SinkState.read(layout, "s"), fill=sink_state.Fill(8, 2, 2, "print"))
    assert begun_again.skipped(sink_state.FILL, sink_state.ALL_PORTIONS) == [found], (
        "batches ran in between"
    )


def test_a_batch_that_was_refused_and_given_up_is_passed_over_with_other_rows_too(
    layout: FlowHome,
) -> None:
    """What the error advises is done first: fewer columns are sent, so the rows are others."""
    for records in (True, False):
        sink = MemorySink(records=records, refuses=True)
        with pytest.raises(TerminalError):
            _deliver(layout, sink, 3, {1: "a", 2: "b"})
        with pytest.raises(TerminalError):
            _deliver(layout, sink, 3, {1: "x", 2: "y"})
        assert len(sink_state.give_up(layout, "s", by="me", reason="all bad")) == 1
        deliver(layout, sink, replace(_batch(3, {1: "x", 2: "y"}), rows=0), (), list, PRINT)  # type: ignore[arg-type]
        sink.refuses = False
        _deliver(layout, sink, 4, {5: "c"})
        assert sink.table == {5: "c"}
        Path(layout.sink("s").path).unlink()


def test_the_ways_on_from_a_refusal_are_those_of_a_fill(layout: FlowHome) -> None:
    known = refusals.refused(PLACE, tried="send", found="no", changed="nothing", key='{"id": 1}')
    with (
        pytest.raises(TerminalError) as raised,
        refusals.of_fill("draindown sink resync p s --yes"),
    ):
        raise known
    change, row, fill = raised.value.next
    assert change == "change what the row breaks" and " --key " in row
    assert fill.startswith("draindown sink resync p s --yes ")


@pytest.mark.parametrize(
    "text", ["5", "{}", "[1]", '{"id": null}', '{"id": [1]}', "id=5", '{"id": {"a": 1}']
)
def test_a_key_that_is_no_object_of_values_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no|has a value|Expecting"):
        refusals.parsed(text)


def test_a_key_has_the_text_of_each_value() -> None:
    typed = '{"id": 12345678901234567890, "x": 1.50, "ok": true, "name": "a b"}'
    assert refusals.parsed(typed) == {
        "id": "12345678901234567890",
        "x": "1.50",
        "ok": "true",
        "name": "a b",
    }
    found = refusals.parsed('{"k": 1, "__START_AT": {"at": "2026-01-02T00:00:00.000000Z", "n": 5}}')
    assert json.loads(found.pop("__START_AT")) == {"at": "2026-01-02T00:00:00.000000Z", "n": 5}
    assert found == {"k": "1"}


def test_an_older_batch_than_the_one_sent_is_refused(layout: FlowHome) -> None:
    sink = MemorySink()
    _deliver(layout, sink, 5, {1: "a"})
    with pytest.raises(TerminalError, match="batch 5"):
        _deliver(layout, sink, 4, {1: "z"})


def test_10000_histories_of_batches_crashes_retries_and_replays_end_as_the_batches_say(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents: dict[str, SinkState] = {}
    monkeypatch.setattr(
        SinkState, "read", lambda _, name: documents.get(name, SinkState(filled="print"))
    )
    monkeypatch.setattr(SinkState, "write", lambda state, _, name: documents.update({name: state}))
    chance = random.Random(40)
    for _ in range(10_000):
        documents.clear()
        sink, wanted, numbers = (
            MemorySink(records=chance.random() < 0.5),
            {},
            {"w": 0, "replay:1": 0},
        )
        for _ in range(chance.randrange(6)):
            writer = chance.choice(["w", "w", "replay:1"])
            rows = {chance.randrange(5): chance.randrange(100) for _ in range(chance.randrange(4))}
            for dies in [*chance.choices(["", "before", "after"], k=chance.randrange(3)), ""]:
                sink.dies = dies
                try:
                    _deliver(layout, sink, numbers[writer], rows, writer=writer)
                except Crash:
                    assert dies
            numbers[writer] += 1
            wanted |= rows
            assert sink.table == wanted


def test_1000_lakes_that_were_restored_send_all_that_they_do_then(
    layout: FlowHome, documents: dict[str, SinkState]
) -> None:
    """From a copy of the documents, of any age or none. The sink is as it was; its rows of keys
    apart are left over.
    """
    chance, stale = random.Random(42), 0
    for _ in range(1_000):
        sink, copies = MemorySink(), [SinkState(filled="print")]
        for number in range(chance.randrange(1, 6)):
            documents["s"] = copies[-1]
            _deliver(layout, sink, number, {chance.randrange(4): chance.randrange(9)})
            copies.append(documents["s"])
        age = chance.randrange(len(copies))
        documents["s"] = copies[age]
        is_older, wanted = age < len(copies) - 1, dict(sink.table)
        for number, epoch in zip(range(age, age + 3), (10, 20, 30), strict=True):
            rows = {chance.randrange(4): chance.randrange(10, 99)}
            for dies in [*chance.choices(["before", "after"], k=chance.randrange(3)), ""]:
                sink.dies, epoch = dies, epoch + 1
                try:
                    _deliver(layout, sink, number, rows, epoch=epoch)
                except Crash:
                    assert dies
            wanted |= rows
            assert sink.table == wanted
        if age == 0 and is_older:  # nothing is known of the writer: the first batch asks
            assert documents["s"].stale == sink_state.RESTORED
            stale += 1
    assert stale > 100


def test_only_so_many_writers_are_remembered() -> None:
    state = SinkState()
    for at in range(40):
        state = state.sending(sink_state.Sending(f"replay:{at}", 0, "replay", 1, "0"))
    writers = [one.writer for one in state.sendings]
    assert writers == [f"replay:{at}" for at in range(8, 40)]


def test_epochs_only_grow_and_two_drivers_never_share_one(layout: FlowHome) -> None:
    epochs = [sink_identity.next_epoch(layout, lambda: None) for _ in range(12)]
    assert epochs == sorted(set(epochs))
    between: list[int] = []

    def taken_meanwhile() -> None:
        if not between:
            between.append(0)
            between[0] = sink_identity.next_epoch(layout, lambda: None)

    assert sink_identity.next_epoch(layout, taken_meanwhile) > between[0] > epochs[-1]


def test_a_sink_that_batches_went_by_is_stale_once_it_is_back(layout: FlowHome) -> None:
    _deliver(layout, MemorySink(), 0, {1: "a"})
    sink_bases.leave_out(layout, {"s"})
    assert SinkState.read(layout, "s").why_stale("print") == ""
    sink_bases.leave_out(layout, {"another"})
    assert SinkState.read(layout, "s").why_stale("print") == sink_state.LEFT_OUT


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> dict[str, SinkState]:
    """Documents in memory, of sinks of a table that keeps nothing."""
    found: dict[str, SinkState] = {}
    monkeypatch.setattr(
        SinkState, "read", lambda _, name: found.get(name, SinkState(filled="print"))
    )
    monkeypatch.setattr(SinkState, "write", lambda state, _, name: found.update({name: state}))
    monkeypatch.setattr(sink_state, "names", lambda layout: list(found))
    monkeypatch.setattr(sink_state, "in_flight", lambda layout: {})
    monkeypatch.setattr(sink_bases, "keep", lambda layout: None)
    return found


def test_a_swap_makes_every_sink_stale_and_an_earlier_reason_stays(
    layout: FlowHome, documents: dict[str, SinkState]
) -> None:
    _deliver(layout, MemorySink(), 0, {1: "a"})
    sent = documents["s"].sendings
    sink_bases.swapped(layout, 3)
    sink_bases.swapped(layout, 3)
    state = documents["s"]
    assert (state.why_stale("print"), state.bases, state.is_of_base) == (
        sink_state.SWAPPED,
        (3,),
        True,
    )
    assert state.sendings == sent, "doctor still compares them with what the sink has"
    assert replace(state, stale="").why_stale("another") == sink_state.EDITED
    sink_bases.swapped(layout, 5)
    assert (documents["s"].bases, documents["s"].is_of_base) == ((3, 5), False)
    replace(state, stale=sink_state.ADDED, bases=()).write(layout, "s")
    sink_bases.swapped(layout, 7)
    assert (documents["s"].stale, documents["s"].is_of_base) == (sink_state.ADDED, False)
    sink_bases.put_aside(layout)
    assert (documents["s"].stale, documents["s"].bases) == (sink_state.ASIDE, ())


def _lost(
    documents: Mapping[str, SinkState], versions: Sequence[Mapping[int, int]]
) -> dict[int, int | None]:
    """What a fill sends, by `documents`, from the newest of the versions; None deletes."""
    state, table = documents["s"], versions[-1]
    bases = [versions[base] for base in state.bases]
    gone: dict[int, int | None] = {key: None for base in bases for key in base if key not in table}
    if state.is_of_base:
        return gone | {key: value for key, value in table.items() if bases[0].get(key) != value}
    return gone | dict(table)


def test_3000_histories_of_batches_rebuilds_and_fills_end_as_the_table(
    layout: FlowHome, documents: dict[str, SinkState]
) -> None:
    """A topic, which can't delete by absence. Batches may go by it, fills may die anywhere and
    begin again.
    """
    chance, ends = random.Random(41), [0, 0]
    for _ in range(3_000):
        documents["s"] = SinkState(filled="print")
        topic, versions, went_by = dict[int, int](), list[dict[int, int]]([{}]), False

        def send(rows: Mapping[int, int | None], topic: dict[int, int] = topic) -> None:
            for key, value in rows.items():
                topic.pop(key, None) if value is None else topic.update({key: value})

        for _ in range(chance.randrange(1, 9)):
            act = chance.choice(["batch", "batch", "batch", "by", "swap", "swap", "dies"])
            if act == "swap":
                sink_bases.swapped(layout, len(versions) - 1)
                versions.append(
                    {key: chance.randrange(3) for key in range(6) if chance.random() < 0.6}
                )
            elif act == "dies":
                why = documents["s"].stale or sink_state.UNFILLED
                replace(documents["s"], stale=why).write(layout, "s")
                sent = _lost(documents, versions)
                send(
                    {
                        key: sent[key]
                        for key in chance.sample(sorted(sent), chance.randrange(len(sent) + 1))
                    }
                )
            else:
                changes = {
                    key: chance.choice([None, 0, 1, 2]) for key in chance.sample(range(6), 2)
                }
                after = {**versions[-1], **changes}
                live = {key: value for key, value in after.items() if value is not None}
                applied = {
                    key: live.get(key) for key in changes if live.get(key) != versions[-1].get(key)
                }
                versions.append(live)
                if act == "by":
                    sink_bases.leave_out(layout, ())
                    went_by = True
                else:
                    send(applied)
        ends[documents["s"].is_of_base] += 1
        send(_lost(documents, versions) if documents["s"].stale else {})
        extra = topic.keys() - versions[-1].keys()
        assert {key: topic.get(key) for key in versions[-1]} == versions[-1]
        assert went_by or not extra, (
            "a topic keeps only keys that were deleted while it was left out"
        )
    assert min(ends) > 300
