"""What every source keeps to: files, and the lists that only tests know, with one intake or one per
generation.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from draindown.base.errors import TerminalError, TransientError
from draindown.flow import discards, generations
from draindown.lake import delta
from draindown.recovery import replay, reset
from draindown.runs.request import Again, Request
from draindown.sources import intake
from draindown.sources.batch_size import Bound
from draindown.sources.port import Look, Source, given_up
from draindown.sources.registry import source_of
from draindown.sources.slices import Slice, Unit
from tests import numbered_source
from tests.flowfiles import AT, about, checkpoint

SMALL, LARGE = Bound(1, 1, "small"), Bound(1 << 30, 100, "large")


class World(ABC):
    """A flow and the input that lies at its source."""

    def __init__(self, root: Path, flow: dict[str, object]) -> None:
        self.root, self.asked = root, about(root, flow)

    @abstractmethod
    def deliver(self, *records: str) -> None:
        """Add input: one unit with these records."""

    @abstractmethod
    def spoil(self, unit: Unit) -> str:
        """Change a record of a unit. Return the name that the source calls the unit by."""

    @abstractmethod
    def lose(self, unit: Unit) -> str:
        """Remove a unit. Return the name that the source calls it by."""

    @property
    def source(self) -> Source:
        """The source, which has looked at nothing yet."""
        return source_of(self.asked)

    def pin(self, bound: Bound = LARGE, *, minutes: int = 0) -> int:
        """Pin all that is new; return the number of slices."""
        with closing(self.source.pin(1, AT + timedelta(minutes=minutes))) as pinning:
            while pinning.take(bound):
                pass
            return pinning.taken.slices

    def look(self, first: int = 1) -> Look:
        """What waits from a slice on."""
        return self.source.look(self.asked.layout, 1, first, AT)

    def slices(self) -> list[Slice]:
        """All that is pinned."""
        return list(intake.slices(self.asked.layout, 1))


class OfFiles(World):
    """Each delivery is a file."""

    def __init__(self, root: Path) -> None:
        (root / "in").mkdir()
        source = {"files": "in/*", "format": "json", "max_files_per_trigger": 1}
        super().__init__(root, numbered_source.flow("files", source=source))

    def deliver(self, *records: str) -> None:
        number = len(list((self.root / "in").iterdir()))
        (self.root / "in" / f"{number:03}.json").write_text(
            "".join(f"{record}\n" for record in records)
        )

    def spoil(self, unit: Unit) -> str:
        Path(unit.name).write_text("x" * unit.bytes)
        return unit.name

    def lose(self, unit: Unit) -> str:
        Path(unit.name).unlink()
        return unit.name


class OfLists(World):
    """Each delivery follows the earlier ones in the one list; a slice takes two records."""

    def __init__(self, root: Path, kind: str) -> None:
        super().__init__(root, numbered_source.flow(kind))

    def deliver(self, *records: str) -> None:
        held = self._lists().get("a", [])
        (self.root / "lists.json").write_text(json.dumps({"a": [*held, *records]}))

    def spoil(self, unit: Unit) -> str:
        held = self._lists()["a"]
        held[unit.start] = "spoilt"
        (self.root / "lists.json").write_text(json.dumps({"a": held}))
        return unit.range

    def lose(self, unit: Unit) -> str:
        held = self._lists()["a"]
        (self.root / "lists.json").write_text(json.dumps({"a": held[: unit.start]}))
        return unit.range

    def _lists(self) -> dict[str, list[str]]:
        return numbered_source.lists(str(self.root / "lists.json"))


@pytest.fixture(params=["files", "numbers", "own_numbers"])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    numbered_source.register(monkeypatch)
    yield OfFiles(tmp_path) if request.param == "files" else OfLists(tmp_path, request.param)


class TestSource:
    """The contract of `sources.port`, held against every source."""

    def test_new_input_is_seen_before_it_is_pinned_and_counted_once_afterwards(
        self, world: World
    ) -> None:
        world.deliver("1", "2")
        seen = world.look()
        assert (seen.units, seen.pinned.slices, bool(seen.reasons), seen.oldest is None) == (
            1,
            0,
            True,
            False,
        )
        assert (seen.forecast(LARGE).slices, seen.unit) == (1, world.source.unit)
        assert world.pin() == 1
        waits = world.look()
        assert (waits.units, waits.pinned.slices, waits.bytes) == (1, 1, seen.bytes)
        assert waits.forecast(LARGE).slices == 0
        read = world.look(first=2)
        assert (read.units, read.bytes, read.oldest, list(read.reasons)) == (0, 0, None, [])

    def test_a_source_is_looked_at_once(self, world: World) -> None:
        source = world.source
        world.deliver("1", "2")
        assert source.look(world.asked.layout, 1, 1, AT).units == 1
        world.deliver("3", "4")
        assert source.look(world.asked.layout, 1, 1, AT).units == 1
        with closing(source.pin(1, AT)) as pinning:
            assert not pinning.take(LARGE)
            assert pinning.taken.units == 1

    def test_a_slice_is_a_commit_with_ranges_that_follow_each_other(self, world: World) -> None:
        world.deliver("1", "2")
        world.deliver("3", "4")
        assert world.pin(SMALL) == 2
        world.deliver("5", "6")
        assert world.pin(SMALL, minutes=1) == 1
        found = world.slices()
        assert [one.number for one in found] == [1, 2, 3]
        assert [one.first_seen for one in found] == [AT, AT, AT + timedelta(minutes=1)]
        units = [unit for one in found for unit in one.units]
        assert [unit.until - unit.start for unit in units] == [2, 2, 2]
        assert len({unit.range for unit in units}) == 3
        assert all(unit.arrived_at <= one.first_seen for one in found for unit in one.units)
        assert world.asked.layout.tables.intake(1).version == 3

    def test_portions_leave_the_rest_for_the_next_pinning(self, world: World) -> None:
        for _ in range(4):
            world.deliver("1", "2")
        with closing(world.source.pin(1, AT)) as pinning:
            assert pinning.take(SMALL, 1)
            assert len(world.slices()) == 1
            assert pinning.take(SMALL, 2)
            assert (pinning.taken.slices, pinning.taken.units) == (3, 3)
        assert world.pin(SMALL, minutes=1) == 1
        assert sorted({unit.range for one in world.slices() for unit in one.units}) == sorted(
            unit.range for one in world.slices() for unit in one.units
        )

    @pytest.mark.parametrize("before", [True, False])
    @pytest.mark.parametrize("call", [1, 2, 3])
    def test_after_a_crash_around_any_commit_nothing_is_pinned_twice(
        self, world: World, before: bool, call: int
    ) -> None:
        for _ in range(3):
            world.deliver("1", "2")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delta, "append", _dying(call, before))
            with pytest.raises(Killed):
                world.pin(SMALL)
        world.pin(SMALL, minutes=1)
        ranges = [unit.range for one in world.slices() for unit in one.units]
        assert len(ranges) == len(set(ranges)) == 3

    def test_of_two_drivers_one_is_refused(self, world: World) -> None:
        world.deliver("1", "2")
        with closing(world.source.pin(1, AT)) as late:
            assert world.pin() == 1
            with pytest.raises(TransientError) as caught:
                late.take(LARGE)
        assert caught.value.code == "lease-lost"
        assert len(world.slices()) == 1

    @pytest.mark.parametrize("change", ["spoil", "lose"])
    def test_what_is_not_as_it_was_pinned_is_named(self, world: World, change: str) -> None:
        world.deliver("1", "2")
        world.deliver("3", "4")
        world.pin(SMALL)
        units = [unit for one in world.slices() for unit in one.units]
        assert dict(world.source.missing(units)) == {}
        world.source.refuse_changed(units)
        name = getattr(world, change)(units[1])
        found = world.source.missing(units)
        assert set(found) == {name}
        assert found[name].next
        assert units[1].is_among(found) and not units[0].is_among(found)
        with pytest.raises(TerminalError) as caught:
            world.source.refuse_changed(units)
        assert caught.value.code == "input-changed"

    def test_a_replay_reads_what_was_first_seen_then_and_read(self, world: World) -> None:
        world.deliver("1", "2")
        world.pin(SMALL)
        world.deliver("3", "4")
        world.pin(SMALL, minutes=10)
        checkpoint(world.asked, 1, offsets=2, commits=2)
        early, late, name = AT, AT + timedelta(minutes=10), world.slices()[1].units[0].range
        assert _numbers(world, Again(since=early, until=late)) == [1]
        assert _numbers(world, Again(since=late, until=late + timedelta(minutes=1))) == [2]
        if world.source.unit != "file":
            assert _numbers(world, Again(units=("a",))) == [1, 2]
            assert _numbers(world, Again(units=(name,))) == [2]
        found = replay.find(_replaying(world, Again(since=early, until=late)))
        replay.pin(world.asked, found)
        again = replay.find(_replaying(world, Again(since=early, until=late)))
        assert (again.begun, again.parts[0].slice) == (True, found.parts[0].slice)
        assert again.parts[0].slice.units[0].row == found.parts[0].slice.units[0].row

    def test_what_is_given_up_unread_is_left_out_from_now_on(self, world: World) -> None:
        world.deliver("1", "2")
        world.deliver("3", "4")
        world.pin(SMALL)
        checkpoint(world.asked, 1, offsets=1, commits=1)
        read, unread = (one.units[0] for one in world.slices())
        name, layout = world.lose(unread), world.asked.layout
        for _ in range(2):
            discards.discard_input(world.source, layout, [name], by="me", note="", at=AT)
        assert generations.without(layout, 1) == {name}
        assert given_up(world.source) == {name}
        plan = reset.plan(world.asked)
        assert (plan.slices, plan.units, plan.missing, plan.unit) == (1, 1, (), world.source.unit)
        refused = read.name if world.source.unit == "file" else read.range
        with pytest.raises(TerminalError) as caught:
            discards.discard_input(world.source, layout, [refused], by="me", note="", at=AT)
        assert caught.value.code == "not-parked"

    def test_where_records_are_is_found_by_their_positions(self, world: World) -> None:
        world.deliver("1", "2")
        world.deliver("3", "4")
        world.pin(SMALL)
        layout, first = world.asked.layout, world.asked.flow_spec.source.counts_from
        one, two = (some.units[0] for some in world.slices())
        origins = [(unit.name, unit.start + first + at) for unit in (one, two) for at in range(2)]
        ids = [f"id {number}" for number in range(4)]
        records = dict(zip(ids, origins, strict=True))
        assert intake.find(layout, 1, records) == dict(zip(ids, (1, 1, 2, 2), strict=True))
        left = one.name if one.name != two.name else one.range
        assert set(intake.find(layout, 1, records, {left}).values()) == {2}
        assert discards.not_read(layout, 1, records) == set(origins)
        checkpoint(world.asked, 1, offsets=1, commits=1)
        assert discards.not_read(layout, 1, records) == set(origins[2:])
        assert intake.find(layout, 1, {"x": ("elsewhere", 0)}) == {}


def _replaying(world: World, again: Again) -> Request:
    return world.asked.model_copy(update={"replay": again})


def _numbers(world: World, again: Again) -> Sequence[int]:
    return [part.slice.number for part in replay.find(_replaying(world, again)).parts]


class Killed(BaseException):
    pass


def _dying(call: int, before: bool) -> Callable[..., bool]:
    """The function that appends to tables; its call number `call` dies, before or after it has
    written.
    """
    right, calls = delta.append, [0]

    def append(*given: Any, **more: Any) -> bool:
        calls[0] += 1
        if calls[0] == call and before:
            raise Killed
        done = right(*given, **more)
        if calls[0] == call:
            raise Killed
        return done

    return append
