"""The shared form of the lease, with real processes that race, die, freeze and wake; a host is a
kernel's name.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from draindown.base.errors import TerminalError, TransientError
from draindown.config.lease import LeaseSpec
from draindown.config.models import PipelineSpec
from draindown.doctor.examination import examine
from draindown.flow import generations
from draindown.lake import delta
from draindown.lake.commits import FENCE
from draindown.lake.documents import Document
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.lease import holder as lease_holder
from draindown.lease import locks
from draindown.lease.holder import holder
from draindown.lease.lease import Lease
from draindown.lease.shared import CLOCK, KEPT, LONGEST, RELEASED, SAFE, Clock, Epochs, Heart
from draindown.ledger import target_log
from draindown.recovery import fencing
from draindown.recovery.opening import lease_of
from draindown.runs.request import Request

EXPIRES = 5.0  # a stall of a busy machine must not look like a death
# wants the lease, for a host of its own, whenever it is told to go; says which epoch it got or
# which error
DRIVER = """
import itertools, sys
from draindown.lease import locks
from draindown.recovery.opening import lease_of
from draindown.base.errors import DraindownError
from draindown.lake.home import FlowHome
from draindown.lease.shared import CLOCK, Clock
from draindown.config.lease import LeaseSpec
root, name, expires, skips = sys.argv[1:]
locks._kernel = lambda: name
layout, terms = FlowHome(root, "p", "f", "t"), LeaseSpec.model_construct(mode="shared", duration=float(expires))
clock = Clock(itertools.count(step=int(skips)).__next__, lambda _: None) if skips != "0" else CLOCK
print("ready", flush=True)
while sys.stdin.readline():
    try:
        with lease_of(layout, terms, owner=name, run_id=name, clock=clock) as held:
            print("held", held._heart.number, flush=True)
            while sys.stdin.readline().strip() != "leave":
                try:
                    held.check()
                    print("mine", flush=True)
                except DraindownError as error:
                    print(error.code, flush=True)
        print("left", flush=True)
    except DraindownError as error:
        print(error.code, error.found, flush=True)
"""


class Driver:
    """A process that wants the lease; it begins when it is told to. `skips`: seconds that each look
    of it takes.
    """

    def __init__(self, root: Path, name: str, skips: int = 0) -> None:
        command = [sys.executable, "-c", DRIVER, str(root), name, str(EXPIRES), str(skips)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.said() == "ready"

    def said(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def told(self, word: str) -> str:
        self.tell(word)
        return self.said()

    def tell(self, word: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@contextmanager
def drivers(root: Path, *names: str, skips: int = 0) -> Iterator[list[Driver]]:
    made = [Driver(root, name, skips) for name in names]
    try:
        yield made
    finally:
        for driver in made:
            driver.process.kill()
            driver.process.wait()
            for pipe in (driver.process.stdin, driver.process.stdout):
                assert pipe
                pipe.close()


def layout(root: Path) -> FlowHome:
    return FlowHome(str(root), "p", "f", "t")


def asked(root: Path) -> Request:
    flow = {
        "source": {"files": "in/*", "format": "json"},
        "columns": {"a": "int"},
        "target": {"table": "t"},
    }
    spec = PipelineSpec.model_validate({"pipeline": "p", "lake": str(root), "flows": {"f": flow}})
    return Request(spec=spec, flow="f", step="plan", run_id="r", root=str(root))


def epochs(root: Path) -> Epochs:
    return Epochs(f"{layout(root).lease}/epochs", EXPIRES)


class Skipping:
    """Time of a driver that waits for one that is dead: it passes only where the driver lets it
    pass.
    """

    def __init__(self) -> None:
        self.passed = 0.0

    def pause(self, seconds: float) -> None:
        self.passed += seconds

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.passed, self.pause)


def shared(root: Path, name: str = "me", mode: str = "shared", clock: Clock = CLOCK) -> Lease:
    terms = LeaseSpec.model_construct(mode=mode, duration=EXPIRES)  # type: ignore[arg-type]
    return lease_of(layout(root), terms, owner=name, run_id=name, clock=clock)


def after_the_wait(root: Path, name: str = "me", mode: str = "shared") -> Lease:
    """The lease for who follows one that is dead."""
    return shared(root, name, mode, Skipping().clock)


def until(there: Callable[[], Any]) -> None:
    limit = time.monotonic() + 30
    while not there():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.full
@pytest.mark.parametrize(
    ("in_order", "not_in_order"), [(1, 1), pytest.param(20, 2, marks=pytest.mark.long)]
)
def test_of_drivers_that_race_for_an_epoch_exactly_one_wins(
    tmp_path: Path, in_order: int, not_in_order: int
) -> None:
    """For a lease that was left in order, and for one that was not."""
    last = in_order + not_in_order
    with drivers(tmp_path, "a", "b", "c", "d") as racing:
        for epoch in range(1, last + 1):
            if epoch > in_order:
                epochs(tmp_path).tell(epoch - 1, b"17")  # as if its holder had died
            for driver in racing:
                driver.tell("go")
            said = [driver.said().split() for driver in racing]
            assert sorted(words[0] for words in said) == ["held", *["lease-held"] * 3]
            winner = racing[[words[0] for words in said].index("held")]
            assert ["held", str(epoch)] in said
            assert winner.told("check") == "mine"
            assert winner.told("leave") == "left"
            assert epochs(tmp_path).pulse(epoch) == RELEASED
    left = sorted(path.name for path in Path(epochs(tmp_path).home).iterdir())
    kept = range(max(1, last - KEPT + 1), last + 1)
    assert left == sorted(f"{number:010}.{kind}" for number in kept for kind in ("beat", "json"))


def test_a_holder_that_was_killed_is_followed_and_fenced(tmp_path: Path) -> None:
    table = layout(tmp_path).tables.target.path
    app = layout(tmp_path).app_id(1, "rows")
    delta.append(Table(table), pa.table({"id": [1]}), app=(app, 4))
    with drivers(tmp_path, "old") as (old,):
        assert old.told("go") == "held 1"
        version = Table(table).version
        old.signal(signal.SIGKILL)
        old.process.wait()
        assert holder(layout(tmp_path), patient=False)
        with mock.patch.object(locks, "_kernel", lambda: "new"), after_the_wait(tmp_path) as held:
            found = holder(layout(tmp_path))
            assert found is not None
            assert (found.owner, found.epoch) == ("me", 2)
            held.check()
    assert [commit.is_fence for commit in Table(table).commits(2)] == [True, False]
    assert Table(table).version == version + 1
    assert Table(table).query("select * from t").to_pylist() == [{"id": 1}]
    assert Table(table).last(app) == 4
    assert Table(table).last(layout(tmp_path).app_id(1, "rows", "withdraw")) is None
    assert (
        DeltaTable(table).transaction_version(layout(tmp_path).app_id(1, "rows", "withdraw")) == -1
    )
    assert delta.append(Table(table), pa.table({"id": [2]}), app=(app, 5)), (
        "the next batch is no replay"
    )
    assert not delta.append(Table(table), pa.table({"id": [2]}), app=(app, 5))
    with shared(tmp_path):  # after one that was left in order there is nothing to fence
        assert Table(table).version == version + 2


def test_a_holder_that_froze_and_wakes_has_lost_and_stays_silent(tmp_path: Path) -> None:
    with drivers(tmp_path, "old", "new", skips=1) as (old, new):
        assert old.told("go") == "held 1"
        old.signal(signal.SIGSTOP)
        assert new.told("go") == "held 2"
        frozen, newer = epochs(tmp_path).pulse(1), epochs(tmp_path).pulse(2)
        old.signal(signal.SIGCONT)
        assert old.told("check") == "lease-lost"
        assert new.told("check") == "mine"
        until(lambda: epochs(tmp_path).pulse(2) != newer)
        assert old.told("leave") == "left"
        assert epochs(tmp_path).pulse(1) == frozen, (
            "it neither beats again nor says that it left in order"
        )
        assert new.told("check") == "mine"
        assert new.told("leave") == "left"


def test_a_holder_that_nobody_followed_stops_by_itself(tmp_path: Path) -> None:
    """Its own clock says that somebody might; that nobody did makes no difference."""
    slept = 0.0
    with shared(tmp_path, clock=Clock(held=lambda: slept)) as held:
        slept = EXPIRES * SAFE
        held.check()
        slept += 0.1
        with pytest.raises(TransientError) as caught:
            held.check()
    assert caught.value.code == "lease-lost"
    assert epochs(tmp_path).is_open(1)


@pytest.mark.long
def test_a_holder_that_was_stopped_and_that_nobody_followed_stops_by_itself(tmp_path: Path) -> None:
    """The clock that it goes by counts while it is stopped."""
    with drivers(tmp_path, "old") as (old,):
        assert old.told("go") == "held 1"
        old.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        until(lambda: time.monotonic() - stopped > EXPIRES)
        old.signal(signal.SIGCONT)
        assert old.told("check") == "lease-lost"


def test_a_store_that_takes_no_heartbeat_ends_the_lease(tmp_path: Path) -> None:
    at = 0.0
    with (
        pytest.raises(TransientError) as caught,
        shared(tmp_path, clock=Clock(held=lambda: at)) as held,
    ):
        held.check()
        with mock.patch.object(
            Epochs, "tell", side_effect=OSError(5, "Input/output error")
        ) as told:
            until(lambda: told.called)
            at = EXPIRES * SAFE
            assert held._lost() is None
            at += 0.1
            assert held._lost()
        held.guard(lambda _: None)("remembered")
    assert caught.value.code == "lease-lost"
    assert "heartbeat" in caught.value.found
    assert epochs(tmp_path).is_open(1)


@pytest.mark.parametrize("shift", [-365 * 86400, pytest.param(365 * 86400, marks=pytest.mark.long)])
def test_whoever_waits_needs_no_clock_of_another_host(tmp_path: Path, shift: int) -> None:
    """A living holder whose files are dated a year off is left alone; what is shown to people may
    look odd.
    """
    with drivers(tmp_path, "old") as (old,):
        assert old.told("go") == "held 1"
        looked = threading.Event()

        def redate() -> None:
            while not looked.is_set():
                for path in list(Path(epochs(tmp_path).home).glob("0*")):
                    stamp = time.time() + shift
                    with suppress(FileNotFoundError):
                        os.utime(path, (stamp, stamp))
                looked.wait(0.001)

        thread = threading.Thread(target=redate)
        thread.start()
        with mock.patch.object(locks, "_kernel", lambda: "new"):
            with pytest.raises(TransientError) as caught, shared(tmp_path):
                pass
            assert holder(layout(tmp_path)) is not None
        looked.set()
        thread.join()
        assert caught.value.code == "lease-held"
        assert old.told("check") == "mine"


@pytest.mark.parametrize(
    ("card", "beat"),
    [(b"", None), (b"{", b""), (b"[]", b"\xff"), (b'{"format": 2, "expires": ""}', b"3")],
)
def test_torn_files_of_a_dead_holder_cost_no_more_than_the_wait(
    tmp_path: Path, card: bytes, beat: bytes | None
) -> None:
    home = Path(epochs(tmp_path).home)
    home.mkdir(parents=True)
    (home / "0000000007.json").write_bytes(card)
    if beat is not None:
        (home / "0000000007.beat").write_bytes(beat)
    (home / "notes.txt").touch()
    waited = Skipping()
    with mock.patch.object(locks, "POLL", 0.001), shared(tmp_path, clock=waited.clock):
        assert epochs(tmp_path).newest() == 8
    assert EXPIRES <= waited.passed <= EXPIRES * (1 if beat is not None else 2) + 0.2
    assert holder(layout(tmp_path)) is None


def test_a_torn_heartbeat_of_a_living_holder_is_a_heartbeat(tmp_path: Path) -> None:
    with drivers(tmp_path, "old") as (old,):
        assert old.told("go") == "held 1"
        Path(epochs(tmp_path).home, "0000000001.beat").write_bytes(b"")
        with (
            mock.patch.object(locks, "_kernel", lambda: "new"),
            pytest.raises(TransientError),
            shared(tmp_path),
        ):
            pass
        assert old.told("check") == "mine"


def test_a_reader_that_can_not_look_takes_nothing(tmp_path: Path) -> None:
    with (
        shared(tmp_path),
        mock.patch.object(Epochs, "pulse", side_effect=OSError(116, "Stale file handle")),
    ):
        assert epochs(tmp_path).watch(1) == "alive"


def test_who_watches_an_epoch_that_another_follows_waits_no_longer(tmp_path: Path) -> None:
    waited = Skipping()
    watched = Epochs(epochs(tmp_path).home, EXPIRES, waited.clock)
    assert watched.claim(1, {}) and watched.claim(2, {})
    assert watched.watch(1) == "alive" and waited.passed == 0


def test_a_number_that_was_pruned_is_no_epoch(tmp_path: Path) -> None:
    """Who was stopped between its look and its claim for longer than epochs are kept."""
    for _ in range(KEPT + 2):
        with shared(tmp_path):
            pass
    assert not epochs(tmp_path).claim(1, {})
    with shared(tmp_path) as held:
        held.check()
        assert not epochs(tmp_path).claim(KEPT + 3, {})
        assert held._heart
        assert held._heart.number == KEPT + 3
        assert not Path(epochs(tmp_path).home, "0000000001.json").exists()


def test_an_error_nobody_foresaw_leaves_the_epoch_open(tmp_path: Path) -> None:
    """The JVM may still write: whoever follows waits, and fences it."""
    with pytest.raises(ValueError, match="inside"), shared(tmp_path):
        raise ValueError("inside")
    assert epochs(tmp_path).is_open(1)
    foreseen = TerminalError("input-changed", tried="", found="")
    with pytest.raises(TerminalError), after_the_wait(tmp_path):
        raise foreseen
    assert not epochs(tmp_path).is_open(2)


def test_a_fence_that_fails_is_owed_by_the_next(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), shared(tmp_path):
        raise ValueError("inside")
    with (
        mock.patch.object(fencing, "write", side_effect=OSError(5, "Input/output error")),
        pytest.raises(OSError, match="Input"),
        after_the_wait(tmp_path),
    ):
        pass
    with mock.patch.object(fencing, "write", return_value=[]) as wrote, after_the_wait(tmp_path):
        assert wrote.call_args.args == (layout(tmp_path), 3)


def test_an_error_under_a_lost_lease_says_that_it_was_lost(tmp_path: Path) -> None:
    with pytest.raises(TransientError) as caught, shared(tmp_path):
        assert epochs(tmp_path).claim(2, {"owner": "another"})
        raise TerminalError("ledger-does-not-add-up", tried="", found="")
    assert caught.value.code == "lease-lost"
    assert "epoch 2" in caught.value.found
    assert isinstance(caught.value.__cause__, TerminalError)
    with pytest.raises(TransientError) as fenced, after_the_wait(tmp_path):
        raise RuntimeError(
            "[DELTA_CONCURRENT_TRANSACTION] This error occurs when multiple streaming queries ..."
        )
    assert fenced.value.code == "lease-lost"


def test_locks_of_one_kernel_count_in_the_shared_form_too(tmp_path: Path) -> None:
    with shared(tmp_path):
        with pytest.raises(TransientError) as caught, shared(tmp_path, "third"):
            pass
        assert caught.value.code == "lease-held"
        assert "epoch 1" in caught.value.found
        with pytest.raises(TransientError, match="lease-held"), shared(tmp_path, "third", "local"):
            pass
    with (
        shared(tmp_path, "local", "local"),
        pytest.raises(TransientError, match="local form"),
        shared(tmp_path),
    ):
        pass


def test_who_says_local_follows_who_said_shared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), shared(tmp_path):
        raise ValueError("inside")
    with after_the_wait(tmp_path, "local", "local") as held:
        assert held._heart
        assert held._heart.number == 2
    with shared(tmp_path, "local", "local") as held:
        assert held._heart is None


def test_who_looks_is_told_and_changes_nothing(tmp_path: Path) -> None:
    def files() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    with drivers(tmp_path, "old") as (old,):
        assert old.told("go") == "held 1"
        found = holder(layout(tmp_path))
        assert found is not None
        assert (found.owner, found.pid, found.epoch) == ("old", old.process.pid, 1)
        assert "epoch 1, heartbeat" in str(found)
        assert "stale" not in str(found)
        old.signal(signal.SIGKILL)
        old.process.wait()
        assert holder(layout(tmp_path)) is not None, "held until nobody can doubt it"
        card = Path(epochs(tmp_path).home, "0000000001.json")
        # so long whoever looks waits
        card.write_text(json.dumps(json.loads(card.read_bytes()) | {"expires": 0.1}))
        before = files()
        until(lambda: holder(layout(tmp_path)) is None)
        until(lambda: "it looks stale" in str(holder(layout(tmp_path), patient=False)))
        health = examine(asked(tmp_path))
        assert [symptom.code for symptom in health.symptoms if symptom.part == "lease"] == [
            "stale-lease"
        ]
        assert "epoch 1" in next(
            symptom.found for symptom in health.symptoms if symptom.part == "lease"
        )
        assert files() == before
    with after_the_wait(tmp_path):
        assert str(holder(layout(tmp_path))).startswith("me (run me")
    assert holder(layout(tmp_path)) is None
    assert (
        json.loads(Path(epochs(tmp_path).home, "0000000002.json").read_bytes())["expires"]
        == EXPIRES
    )


def test_a_holder_stops_before_anybody_follows() -> None:
    assert SAFE < 1


def died(root: Path) -> None:
    """A holder that did not leave in order."""
    with pytest.raises(ValueError, match="inside"), after_the_wait(root):
        raise ValueError("inside")


def test_a_table_that_deltalake_does_not_write_stays_without_a_fence_and_doctor_says_so(
    tmp_path: Path,
) -> None:
    where = layout(tmp_path)
    for path in (where.tables.target.path, where.tables.quarantine.path):
        delta.append(Table(path), pa.table({"id": [1]}))
    features = {"readerFeatures": [], "writerFeatures": ["clustering", "domainMetadata"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    Path(where.tables.target.path, "_delta_log", f"{2:020}.json").write_text(
        json.dumps(protocol) + "\n"
    )
    died(tmp_path)
    with after_the_wait(tmp_path):
        assert where.tables.target.version == 2
        assert where.tables.quarantine.commits(1)[0].is_fence
    assert lease_holder.unfenced(where) == [where.tables.target.path]
    notes = [
        symptom
        for symptom in examine(asked(tmp_path)).symptoms
        if symptom.code == "table-without-fence"
    ]
    assert [where.tables.target.path in note.found for note in notes] == [True]
    Path(where.tables.target.path, "_delta_log", f"{2:020}.json").unlink()
    died(tmp_path)
    with after_the_wait(tmp_path):
        assert where.tables.target.commits(1)[0].is_fence
    assert lease_holder.unfenced(where) == []


def test_a_fence_that_can_not_be_written_is_tried_again_only_where_someone_came_first(
    tmp_path: Path,
) -> None:
    path, app = str(tmp_path / "t"), ("x", 1)
    delta.append(Table(path), pa.table({"id": [1]}), app=app)
    right, tries = DeltaTable.create_write_transaction, []

    def overtaken(table: DeltaTable, *given: Any, **more: Any) -> None:
        tries.append(table.version())
        if len(tries) == 1:
            delta.append(Table(path), pa.table({"id": [2]}), app=("x", 2))
        right(table, *given, **more)

    with mock.patch.object(DeltaTable, "create_write_transaction", overtaken):
        assert delta.fence(Table(path), ["x"], "{}")
    assert tries == [1, 2]
    assert Table(path).last("x") == 2
    fails = mock.Mock(side_effect=CommitFailedError("Failed to commit transaction: no space"))
    with (
        mock.patch.object(DeltaTable, "create_write_transaction", fails),
        pytest.raises(CommitFailedError),
    ):
        delta.fence(Table(path), ["x"], "{}")
    assert fails.call_count == 1


def test_who_wakes_before_its_fence_writes_none(tmp_path: Path) -> None:
    where = layout(tmp_path)
    for path in (
        where.tables.target.path,
        where.tables.tombstones.path,
        where.tables.quarantine.path,
    ):
        delta.append(Table(path), pa.table({"id": [1]}))
    right = delta.fence
    for fenced in (0, 1):  # followed before the first table, and before the second
        died(tmp_path)
        before, newest = (
            [
                Table(path).version
                for path in (where.tables.target.path, where.tables.tombstones.path)
            ],
            epochs(tmp_path).newest(),
        )

        def frozen(*given: Any, newest: int = newest) -> bool:
            done = right(*given)
            epochs(tmp_path).claim(newest + 2, {"owner": "another"})
            return done

        write = fencing.write

        def late(*given: Any, newest: int = newest, write: Any = write, **more: Any) -> Any:
            epochs(tmp_path).claim(newest + 2, {"owner": "another"})
            return write(*given, **more)

        place = (
            mock.patch.object(delta, "fence", frozen)
            if fenced
            else mock.patch.object(fencing, "write", late)
        )
        with place, pytest.raises(TransientError) as caught, after_the_wait(tmp_path):
            pass
        assert caught.value.code == "lease-lost"
        assert [
            Table(path).version for path in (where.tables.target.path, where.tables.tombstones.path)
        ] == [
            before[0] + fenced,
            before[1],
        ]
        epochs(tmp_path).tell(newest + 2, RELEASED)


def test_who_thaws_after_another_one_took_over_writes_no_document(tmp_path: Path) -> None:
    where = layout(tmp_path)
    where.make()
    died(tmp_path)
    frozen = where.held(epochs(tmp_path).newest())
    generations.name_live(frozen, 1)
    card = generations.Card(2, 1, "then", "me")
    with after_the_wait(tmp_path) as held:
        assert held.epoch == frozen.epoch + 1
        for write in (
            lambda: generations.make_live(frozen, card),
            lambda: frozen.rebuild.write({"generation": 2}),
        ):
            with pytest.raises(TransientError) as caught:
                write()
            assert caught.value.code == "lease-lost"
        assert generations.generation(where) == 1 and not where.rebuild.exists
        generations.make_live(where.held(held.epoch), card)
    with shared(tmp_path, mode="local") as held:
        assert held.epoch == 0
        generations.go_back_to(where.held(held.epoch), 1)
    assert generations.generation(where) == 1


def test_a_lease_whose_directory_was_removed_goes_on_above_what_documents_say(
    tmp_path: Path,
) -> None:
    where = layout(tmp_path)
    for _ in range(3):
        with shared(tmp_path) as held:
            generations.name_live(where.held(held.epoch), 1)
    shutil.rmtree(where.lease)
    with shared(tmp_path) as held:
        assert held.epoch == 4
        generations.name_live(where.held(held.epoch), 2)
    assert generations.generation(where) == 2


def test_a_fence_is_not_taken_for_the_commit_that_was_just_made(tmp_path: Path) -> None:
    path, mark = str(tmp_path / "t"), json.dumps({FENCE: {}})
    delta.append(Table(path), pa.table({"id": [1]}))
    mine = target_log.last_commit(path).version
    for _ in range(3):
        assert delta.fence(Table(path), ["x"], mark)
    assert Table(path).version == mine + 3
    assert target_log.last_commit(path).version == mine


def test_a_write_that_says_it_is_a_fence_is_none(tmp_path: Path) -> None:
    path, mark = str(tmp_path / "t"), json.dumps({FENCE: {}})
    delta.append(Table(path), pa.table({"id": [1]}))
    told = CommitProperties(custom_metadata={"userMetadata": mark})
    write_deltalake(path, pa.table({"id": [2]}), mode="append", commit_properties=told)
    DeltaTable(path).delete("id = 1", commit_properties=told)
    delta.fence(Table(path), ["x"], mark)
    assert [commit.is_fence for commit in Table(path).commits(3)] == [True, False, False]


def test_a_fence_repeats_a_replay_under_its_own_generation_only(tmp_path: Path) -> None:
    where = layout(tmp_path)
    delta.append(where.tables.target, pa.table({"id": [1]}))
    for number in (1, 2):
        Path(where.checkpoint(number)).mkdir(parents=True)
        pinned = {
            "id": f"r{number}",
            "pipeline": "p",
            "flow": "f",
            "generation": number,
            "asked": "",
            "parts": [],
        }
        Document(f"{where.replays}/r{number}.json").write(pinned | {"begun": True, "done": 0})
    Path(where.replays, "torn.json").write_text("{")
    assert fencing.write(where, 1, check=lambda: None) == []
    known = DeltaTable(where.tables.target.path)
    kinds = ("drain", "release", "withdraw", "replay:r1", "replay:r2", "replay:torn")
    held = [
        (n, o)
        for n in (1, 2)
        for o in kinds
        if known.transaction_version(where.app_id(n, "rows", o)) == -1
    ]
    assert held == [(n, o) for n in (1, 2) for o in kinds if o != f"replay:r{3 - n}"]


def test_a_first_heartbeat_that_fails_says_why_and_leaves_no_lock(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    with (
        mock.patch.object(Epochs, "tell", side_effect=full),
        pytest.raises(OSError, match="No space left"),
        shared(tmp_path),
    ):
        pass
    with after_the_wait(tmp_path) as held:
        held.check()


def test_a_listing_that_is_older_than_the_epoch_loses_nothing(tmp_path: Path) -> None:
    with shared(tmp_path):
        pass
    right = Epochs.newest
    lag = mock.patch.object(Epochs, "newest", lambda self: min(right(self), 1))
    with lag, shared(tmp_path) as held:
        assert held._heart
        assert held._heart.number == 2
        held.check()
        Path(epochs(tmp_path).home, "0000000002.json").unlink()
        with pytest.raises(TransientError, match="epoch 2 is gone"):
            held.check()


def test_a_heartbeat_that_a_host_does_not_see_yet_is_awaited_longer(tmp_path: Path) -> None:
    with shared(tmp_path):
        right, waited = Epochs.pulse, Skipping()

        def cached(self: Epochs, number: int) -> bytes | None:
            late = waited.passed > 1.4 * EXPIRES
            mine = threading.current_thread() is threading.main_thread()
            return right(self, number) if late or not mine else None

        with mock.patch.object(Epochs, "pulse", cached):
            assert Epochs(epochs(tmp_path).home, EXPIRES, waited.clock).watch(1) == "alive"


def test_whoever_holds_it_in_one_form_is_seen_by_who_asked_in_the_other_before(
    tmp_path: Path,
) -> None:
    early = shared(tmp_path, "local", "local")  # nobody shares it yet
    with shared(tmp_path):
        with pytest.raises(TransientError, match="shared form") as caught, early:
            pass
        assert caught.value.code == "lease-held"
    claim, local = Epochs.claim, shared(tmp_path, "local", "local")

    def late(self: Epochs, *given: Any) -> bool:
        local.__enter__()  # between the look of who shares it and its epoch
        return claim(self, *given)

    with (
        mock.patch.object(Epochs, "claim", late),
        pytest.raises(TransientError, match="local form"),
        shared(tmp_path),
    ):
        pass
    local.check()
    local.__exit__(None, None, None)
    assert epochs(tmp_path).pulse(2) == RELEASED
    with shared(tmp_path) as held:
        held.check()


@pytest.mark.parametrize("said", ["Infinity", "NaN", "-1", "1e400", f"{LONGEST + 1}"])
def test_an_impossible_patience_is_none(tmp_path: Path, said: str) -> None:
    Path(tmp_path, "0000000001.json").write_text(f'{{"format": 2, "expires": {said}}}')
    assert Epochs(str(tmp_path), 2.0).patience(1) == 2.0


def test_a_heart_whose_first_beat_fails_never_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that could not begin an epoch must not look alive in it."""

    def refused(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    heart = Heart(epochs(tmp_path), 1)
    monkeypatch.setattr(Epochs, "tell", refused)
    with pytest.raises(OSError, match="Input/output"):
        heart.start()
    assert heart._thread.ident is None
