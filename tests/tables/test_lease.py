"""One driver at a time: with real processes, killed and not, and a stand-in for the JVM that
outlives its Python.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from draindown.base.errors import TransientError
from draindown.base.exits import Exit
from draindown.config.lease import LeaseSpec
from draindown.lake.home import FlowHome
from draindown.lease.holder import holder
from draindown.lease.lease import Lease
from draindown.recovery.opening import lease_of
from draindown.spark.job.main import attempt
from draindown.spark.runs.compaction import compact
from draindown.spark.runs.drain import drain
from tests.landing import Landing

DRIVER = """
import sys
from draindown.lake.home import FlowHome
from draindown.lease.lease import Lease
from draindown.recovery.opening import lease_of
from draindown.config.lease import LeaseSpec
with lease_of(FlowHome(sys.argv[1], "p", "f", "t"), LeaseSpec(), owner="first", run_id="run-1"):
    print("held", flush=True)
    sys.stdin.read()
"""
# a FileChannel lock of a JVM is this POSIX lock
JVM = """
import fcntl, sys
handle = open(sys.argv[1], "r+b")
fcntl.lockf(handle, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(code: str, argument: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, argument]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        try:
            assert child.stdout.readline() == "held\n"
            yield child
        finally:
            child.kill()


def layout(root: Path) -> FlowHome:
    return FlowHome(str(root), "p", "f", "t")


def second(root: Path) -> Lease:
    return lease_of(layout(root), LeaseSpec(), owner="second", run_id="run-2")


def test_a_second_driver_is_turned_away_and_told_who_holds_the_lease(tmp_path: Path) -> None:
    with process(DRIVER, str(tmp_path)) as child:
        with pytest.raises(TransientError) as caught, second(tmp_path):
            pass
        card = holder(layout(tmp_path))
        assert card is not None
        assert (card.owner, card.run_id, card.pid) == ("first", "run-1", child.pid)
        assert child.poll() is None
    assert caught.value.code == "lease-held"
    assert f"first (run run-1, process {child.pid} on " in caught.value.found
    assert caught.value.found.endswith("no batch of it is committed yet")
    command = f"draindown report {layout(tmp_path).pipeline}/{layout(tmp_path).flow} --run run-1"
    assert caught.value.next == (f"{command}   # the lease is free as soon as that process ends",)
    for part in ("first", "run-1", str(child.pid)):
        assert part in caught.value.found


def test_a_killed_driver_leaves_a_card_but_no_lease(tmp_path: Path) -> None:
    with process(DRIVER, str(tmp_path)) as child:
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert Path(layout(tmp_path).lease, "owner.json").exists()
        assert holder(layout(tmp_path)) is None
        with second(tmp_path):
            found = holder(layout(tmp_path))
            assert found is not None
            assert found.owner == "second"
    assert holder(layout(tmp_path)) is None


def test_a_jvm_that_outlives_its_driver_still_holds_the_lease(tmp_path: Path) -> None:
    with second(tmp_path):
        pass
    lock = Path(layout(tmp_path).lease, "jvm.lock")
    lock.touch()
    with process(JVM, str(lock)) as jvm:
        with pytest.raises(TransientError) as caught, second(tmp_path):
            pass
        assert caught.value.code == "lease-held"
        assert "JVM" in caught.value.found
        assert holder(layout(tmp_path)) is not None
        os.kill(jvm.pid, signal.SIGKILL)
        jvm.wait()
        with second(tmp_path):
            pass


def test_a_lease_is_free_after_an_error_inside_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), second(tmp_path):
        raise ValueError("inside")
    with second(tmp_path):
        assert Path(layout(tmp_path).lease).stat().st_mode & 0o777 == 0o700
    assert not Path(layout(tmp_path).lease, "owner.json").exists()


def test_two_leases_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    with second(tmp_path):
        with (
            pytest.raises(TransientError) as caught,
            lease_of(layout(tmp_path), LeaseSpec(), owner="third", run_id="run-3"),
        ):
            pass
        assert caught.value.code == "lease-held"
        assert "second" in caught.value.found


def test_other_flows_are_not_concerned(tmp_path: Path) -> None:
    with (
        second(tmp_path),
        lease_of(FlowHome(str(tmp_path), "p", "g", "t"), LeaseSpec(), owner="x", run_id="r"),
    ):
        pass


@pytest.mark.parametrize("card", ["", "{", "[]", '{"owner": 1}'])
def test_a_damaged_card_hides_the_holder_but_not_the_lease(tmp_path: Path, card: str) -> None:
    with second(tmp_path):
        Path(layout(tmp_path).lease, "owner.json").write_text(card)
        assert holder(layout(tmp_path)) is not None
        with pytest.raises(TransientError) as caught, second(tmp_path):
            pass
        assert "no card" in caught.value.found


def test_looking_at_a_flow_that_never_ran_makes_nothing(tmp_path: Path) -> None:
    assert holder(layout(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_driver_whose_lock_file_was_removed_writes_nothing_more(tmp_path: Path) -> None:
    """The check is asked for in Spark's threads, too."""
    told: list[str] = []
    with pytest.raises(TransientError) as caught, second(tmp_path) as lease:
        reached = lease.guard(told.append)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(reached, "read").result()
            Path(layout(tmp_path).lease, "driver.lock").unlink()
            with second(tmp_path):
                pool.submit(reached, "remembered").result()
    assert caught.value.code == "lease-lost"
    assert told == ["read", "remembered"]


class Jvm:
    """What of py4j's view the lease uses; `busy` tries fail first."""

    def __init__(self, busy: int = 0) -> None:
        self.java = self.io = self
        self.busy = busy
        self.open = 0
        self.locked = False

    def RandomAccessFile(self, path: str, mode: str) -> Jvm:
        assert (Path(path).name, mode) == ("jvm.lock", "rw")
        self.open += 1
        return self

    def getChannel(self) -> Jvm:
        return self

    def tryLock(self) -> Jvm | None:
        self.busy -= 1
        self.locked = self.busy < 0
        return self if self.locked else None

    def release(self) -> None:
        self.locked = False

    def close(self) -> None:
        self.open -= 1


def test_the_jvm_holds_its_half_until_the_lease_is_left(tmp_path: Path) -> None:
    jvm = Jvm(busy=2)
    with second(tmp_path) as lease:
        lease.hand_to_jvm(jvm)
        assert (jvm.locked, jvm.open) == (True, 1)
    assert (jvm.locked, jvm.open) == (False, 0)


def test_a_jvm_that_cannot_get_its_half_is_an_error(tmp_path: Path) -> None:
    jvm = Jvm(busy=10_000)
    with second(tmp_path) as lease:
        with pytest.raises(TransientError) as caught:
            lease.hand_to_jvm(jvm)
        assert caught.value.code == "lease-held"
    assert jvm.open == 0


def test_a_lake_that_can_not_be_looked_at_keeps_no_lock(tmp_path: Path) -> None:
    jvm, right, broken = Jvm(), Path.stat, []

    def stat(path: Path, *given: Any, **more: Any) -> os.stat_result:
        if broken and path.name == "driver.lock":
            raise OSError(116, "Stale file handle")
        return right(path, *given, **more)

    with (
        mock.patch.object(Path, "stat", stat),
        pytest.raises(TransientError) as caught,
        second(tmp_path) as lease,
    ):
        lease.hand_to_jvm(jvm)
        broken.append(True)
        raise RuntimeError("the real error")
    assert caught.value.code == "lease-lost"
    assert "can't be looked at: Stale file handle" in caught.value.found
    assert str(caught.value.__cause__) == "the real error"
    assert (jvm.locked, jvm.open) == (False, 0)
    with second(tmp_path):
        pass


@pytest.mark.parametrize("step", ["drain", "compact"])
def test_a_step_beside_a_drain_leaves_with_75_before_it_wants_a_session_and_touches_nothing(
    tmp_path: Path, step: str
) -> None:
    flow = Landing(tmp_path)
    flow.deliver('{"id": "a", "seq": 1}')
    asked = flow.request(run_id="second").model_copy(update={"step": step})
    none = cast(Any, None)

    def files() -> dict[str, int]:
        some = (
            path
            for path in Path(flow.spec.lake).rglob("*")
            if path.is_file() and "reports" not in path.parts
        )
        return {str(path): path.stat().st_mtime_ns for path in some}

    with lease_of(flow.layout, LeaseSpec(), owner="first", run_id="run-1"):
        before = files()
        told, code = attempt(
            asked, lambda stop: drain(asked, none) if step == "drain" else compact(asked, none)
        )
        assert files() == before
    assert code == Exit.TRY_AGAIN == 75
    assert told.error is not None and told.error["code"] == "lease-held"
    assert "another driver is at work" in str(told.error["found"])
