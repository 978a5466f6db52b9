"""The driver log is private and bounded, takes all that is said, and never ends a step."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from draindown.lake.home import FlowHome
from draindown.runs import driver_log
from draindown.runs.driver_log import DriverLog
from draindown.runs.store import forget_old


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DriverLog]:
    layout = FlowHome(str(tmp_path / "lake"), "p", "f", "t")
    with DriverLog.of(layout, "scheduled__2026-01-01T00:00:00+00:00", "drain") as log:
        yield log


def test_it_lies_with_the_reports_of_its_run_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        layout = FlowHome(str(tmp_path / "lake"), "p", "f", "t")
        with DriverLog.of(layout, "r", "check") as log:
            log.write("one")
    finally:
        os.umask(before)
    assert log.path == layout.start("r", "check").log
    assert Path(log.path).parent == Path(layout.start("r", "check").report.path).parent
    assert stat.S_IMODE(Path(log.path).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(layout.home).stat().st_mode) == 0o700


def test_it_is_bounded_and_keeps_the_newest(
    log: DriverLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.maxBytes = 10_000
    for number in range(5_000):
        log.write(f"line {number}")
    kept = sorted(Path(log.path).parent.glob("drain.log*"))
    assert [path.name for path in kept] == ["drain.log", "drain.log.1"]
    assert sum(path.stat().st_size for path in kept) <= 2 * 10_000
    assert Path(log.path).read_text().splitlines()[-1] == "line 4999"


def test_two_writers_lose_no_line_of_each_other(log: DriverLog) -> None:
    with DriverLog(log.path) as other:
        for number in range(10):
            log.write(f"a {number}")
            other.write(f"b {number}")
    assert len(Path(log.path).read_text().splitlines()) == 20


def test_what_a_process_says_is_taken_to_its_end(log: DriverLog) -> None:
    script = "import sys\nfor n in range(20000): print('x' * 50, n, file=sys.stderr)"
    with subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        log.pump(process.stderr).join()
    assert Path(log.path).read_text().splitlines()[-1].endswith(" 19999")


def test_a_file_that_takes_nothing_does_not_stop_who_speaks(
    log: DriverLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "_open", full)
    script = "import sys\nfor n in range(20000): print('x' * 50, n, file=sys.stderr)"
    with subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        log.pump(process.stderr).join()
    assert process.returncode == 0


def test_a_full_disk_does_not_stop_who_closes_it() -> None:
    """The report that names the full disk is written after the trace of the error is."""
    with DriverLog("/dev/full") as log:
        log.write("one")
    log.close()


def test_where_the_lake_takes_no_file_one_elsewhere_does(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("no directory")
    with DriverLog.of(FlowHome(str(tmp_path / "lake"), "p", "f", "t"), "r", "drain") as log:
        log.write("one")
    assert not log.path.startswith(str(tmp_path / "lake")) and Path(log.path).read_text() == "one\n"
    assert stat.S_IMODE(Path(log.path).stat().st_mode) == 0o600
    Path(log.path).unlink()


def test_s10_nothing_that_is_quoted_commands_a_terminal(log: DriverLog) -> None:
    log.write("a\x1b[2Jb\rx\n\tat c\u202e")
    assert Path(log.path).read_text() == "a\\x1b[2Jb\\rx\n        at c\\u202e\n"


def test_it_goes_with_its_run(log: DriverLog) -> None:
    assert driver_log.MOST_BYTES <= 8 * 1024**2
    log.write("x")
    assert (
        forget_old(
            FlowHome(str(Path(log.path).parents[5]), "p", "f", "t"), keep=0, age=timedelta(0)
        )
        == 1
    )
    assert not Path(log.path).exists()
