"""`make up` and `make down` end what a dead Airflow left, and nothing else; stand-ins take the
place of Airflow.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from draindown.base.errors import TerminalError

ROOT = Path(__file__).resolve().parents[2]
WAITS = "import sys, time; print('ready', flush=True); time.sleep(60)"
IGNORES_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"

Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program behind `make up` and `make down`, with a home of its own and little patience."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import airflow_local

    home = tmp_path / "airflow"
    home.mkdir()
    monkeypatch.setenv("DRAINDOWN_AIRFLOW_HOME", str(home))
    monkeypatch.setattr(airflow_local, "LEFT_SECONDS", 0.5)
    return airflow_local


@pytest.fixture
def started() -> Iterator[Started]:
    """Start a process that waits, with these variables and open files. It is at work when the call
    returns.
    """
    processes: list[subprocess.Popen[str]] = []

    def start(
        code: str = WAITS, *, held: tuple[int, ...] = (), **variables: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=variables,
            pass_fds=held,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def worker(local: Any, started: Started, home: Path) -> subprocess.Popen[str]:
    """A worker of a dead scheduler: it ignores SIGTERM and has no environment left, but the file it
    inherited.
    """
    held = local.airflow_processes.held({local.airflow_processes.VARIABLE: str(home)})
    process = started(IGNORES_SIGTERM, held=held)
    os.close(held[0])
    return process


def driver(local: Any, started: Started, home: Path) -> subprocess.Popen[str]:
    """A driver of a dead task: it has the environment and no inherited file."""
    return started(**{local.airflow_processes.VARIABLE: str(home)})


def strangers(local: Any, started: Started, home: Path) -> list[subprocess.Popen[str]]:
    """A program in a shell with Airflow's settings, a reader of its log, and a worker of another
    home.
    """
    log, other = home / "airflow.log", home.with_name("airflow-2")
    log.touch()
    other.mkdir()
    reading = os.open(log, os.O_RDONLY)
    reader = started(held=(reading,))
    os.close(reading)
    return [started(AIRFLOW_HOME=str(home)), reader, worker(local, started, other)]


def test_down_ends_what_a_dead_airflow_left_and_then_says_stopped(
    local: Any, started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    home = local.home()
    left = [
        worker(local, started, home),
        worker(local, started, home),
        driver(local, started, home),
    ]
    others = strangers(local, started, home)
    local.down()
    ending, stopped = capsys.readouterr().out.splitlines()
    assert stopped == "Stopped." and all(f"({process.pid})" in ending for process in left)
    assert not any(f"({process.pid})" in ending for process in others)
    assert local.airflow_processes.left(home) == []
    assert [process.poll() for process in others] == [None] * 3
    local.down()
    assert capsys.readouterr().out == "Airflow does not run.\n"


def test_up_ends_what_a_dead_airflow_left_before_it_starts(
    local: Any, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, left_at_start = local.home(), []
    worker(local, started, home)
    assert len(local.airflow_processes.left(home)) == 1
    monkeypatch.setattr(
        local, "_start", lambda _: left_at_start.append(local.airflow_processes.left(home))
    )
    monkeypatch.setattr(local, "_await_health", lambda _: None)
    monkeypatch.setattr(local, "_refuse_busy_port", lambda *_: None)
    local.up()
    assert left_at_start == [[]]


def test_up_ends_nothing_while_airflow_runs(
    local: Any, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = worker(local, started, local.home())
    monkeypatch.setattr(local, "_running", lambda: running.pid)
    monkeypatch.setattr(local, "_await_health", lambda _: None)
    local.up()
    assert running.poll() is None


def test_a_process_that_survives_is_named_and_airflow_is_not_called_stopped(
    local: Any,
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = driver(local, started, local.home())
    monkeypatch.setattr(local.airflow_processes, "end", lambda processes, seconds: processes)
    with pytest.raises(TerminalError) as caught:
        local.down()
    assert caught.value.code == "airflow-not-stopped"
    assert f"({process.pid})" in caught.value.found and "Stopped." not in capsys.readouterr().out


PART = """\
import os, pathlib, signal, sys, time
import setproctitle
if sys.argv[1] != "db":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    home = pathlib.Path(os.environ["AIRFLOW_HOME"])
    setproctitle.setproctitle(f"airflow {sys.argv[1]}")
    (home / f"{sys.argv[1]}.ready").touch()
    time.sleep(60)
"""


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_down_ends_the_parts_of_an_airflow_whose_server_was_killed(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts ignore SIGTERM and write a title over their environment, as Airflow's workers
    do.
    """
    home, fake = local.home(), tmp_path / "fake" / "airflow"
    fake.mkdir(parents=True)
    (fake / "__init__.py").touch()
    (fake / "__main__.py").write_text(PART)
    monkeypatch.setenv("PYTHONPATH", str(fake.parent), prepend=os.pathsep)
    local._start(local.env())
    parts = local.PARTS | local.SHOWN
    try:
        await_true(lambda: all((home / f"{name}.ready").exists() for name in parts))
        server = local._running()
        os.kill(server, signal.SIGKILL)
        await_true(lambda: local._running() is None)
        assert len(local.airflow_processes.left(home)) == len(parts)
        local.down()
        assert local.airflow_processes.left(home) == []
    finally:
        local.airflow_processes.end(local.airflow_processes.left(home), 0)


def await_true(holds: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)
