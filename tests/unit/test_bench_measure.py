"""What runs cost is measured whole: orphans, children of others that stand, memory, and nothing that is not theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.measure import Cost, apart, measured, watched
from benchmarks.place import ROOT

BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"
HOLD = "held = bytearray({mb} * 1024**2); held[::4096] = b'x' * len(held[::4096])\n"


def _python(*statements: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(statements)]


def _run(home: Path, *statements: str) -> Cost:
    return measured(_python(*statements), os.environ, home)


def test_a_run_is_measured_with_its_memory_exit_code_and_output(tmp_path: Path) -> None:
    cost = _run(tmp_path, HOLD.format(mb=150), BURN.format(seconds=0.3), "print(7); raise SystemExit(3)")
    assert cost.exit_code == 3
    assert cost.wall_s >= 0.3
    assert 0.3 <= cost.cpu_s < 5
    assert 150 <= cost.rss_mb < 250
    assert (tmp_path / "out.txt").read_text() == "7\n"
    assert (tmp_path / "err.txt").read_text() == ""


def test_a_run_is_where_it_was_sent_with_the_environment_it_was_given(tmp_path: Path) -> None:
    measured(_python("import os; print(os.getcwd(), os.environ['GIVEN'])"), {**os.environ, "GIVEN": "x"}, tmp_path)
    assert (tmp_path / "out.txt").read_text().split() == [str(tmp_path), "x"]


def test_a_killed_run_has_the_number_of_its_signal(tmp_path: Path) -> None:
    assert _run(tmp_path, "import os; os.kill(os.getpid(), 9)").exit_code == -9


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
def test_what_a_run_leaves_behind_is_waited_for_and_counted_but_not_in_its_time(tmp_path: Path) -> None:
    orphan = HOLD.format(mb=150) + BURN.format(seconds=0.5) + "open('done', 'w')"
    started = time.monotonic()
    cost = _run(tmp_path, f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {orphan!r}])")
    assert (tmp_path / "done").exists()
    assert cost.cpu_s >= 0.5
    assert cost.rss_mb >= 150
    assert cost.wall_s < time.monotonic() - started


def test_a_process_of_somebody_else_is_not_waited_for(tmp_path: Path) -> None:
    """Such as the one that multiprocessing keeps, from the first look of the oracle until the bench ends."""
    assert apart(abs, -3) == 3
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            cost = _run(tmp_path, "pass")
            assert other.poll() is None
        finally:
            other.kill()
    assert cost.exit_code == 0


def test_the_memory_of_whoever_measures_is_not_the_run_s(tmp_path: Path) -> None:
    held = bytearray(200 * 1024**2)
    held[::4096] = b"x" * len(held[::4096])
    assert _run(tmp_path, "pass").rss_mb < 100
    assert len(held)


@pytest.fixture
def servant(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that stands and runs the Python that it is sent, line by line; it answers when done."""
    loop = textwrap.dedent(
        """
        import sys
        for line in sys.stdin:
            exec(line.replace(";;", "\\n"))
            print("done", flush=True)
        """
    )
    command = [sys.executable, "-c", loop]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def _ask(servant: subprocess.Popen[str], *statements: str) -> int:
    assert servant.stdin and servant.stdout
    servant.stdin.write(";;".join(statements).replace("\n", ";;") + "\n")
    servant.stdin.flush()
    assert servant.stdout.readline() == "done\n"
    return 0


def test_what_servers_spend_on_some_work_is_counted_and_what_they_spent_before_is_not(
    servant: subprocess.Popen[str],
) -> None:
    burn = "import time;;end = time.process_time() + {};;while time.process_time() < end: pass"
    _ask(servant, burn.format(1.0))
    cost = watched(lambda: _ask(servant, burn.format(0.4)))
    assert 0.3 <= cost.cpu_s < 1.0
    assert cost.wall_s >= 0.4
    assert cost.exit_code == 0
    assert watched(lambda: _ask(servant, "pass")).cpu_s < 0.2


def test_children_of_servers_count_those_that_ended_too(servant: subprocess.Popen[str]) -> None:
    child = BURN.format(seconds=0.5) + HOLD.format(mb=150) + "time.sleep(1.5)"  # longer than between two looks
    cost = watched(lambda: _ask(servant, f"import subprocess, sys;;subprocess.run([sys.executable, '-c', {child!r}])"))
    assert cost.cpu_s >= 0.4
    assert cost.rss_mb >= 150


def test_one_s_own_time_is_not_the_servers(servant: subprocess.Popen[str]) -> None:
    def work() -> int:
        until = time.process_time() + 0.5
        while time.process_time() < until:
            pass
        return 5

    cost = watched(work)
    assert cost.exit_code == 5
    assert cost.cpu_s < 0.3


def test_work_that_fails_is_told_as_it_failed(servant: subprocess.Popen[str]) -> None:
    def work() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        watched(work)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
def test_orphans_of_servers_count_where_they_are_adopted(tmp_path: Path) -> None:
    """In a process of its own: adopting orphans is for good."""
    program = """
        import subprocess, sys, time
        from benchmarks.measure import watched
        from benchmarks.meter import adopt_orphans
        adopt_orphans()
        orphan = "import time\\nwhile time.process_time() < 0.5: pass\\nopen('done', 'w')"
        parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {orphan!r}])"
        def work():
            subprocess.run([sys.executable, "-c", parent], check=True)
            from pathlib import Path
            while not Path("done").exists(): time.sleep(0.01)
            return 0
        print(watched(work).cpu_s)
    """
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=tmp_path, env=env, check=True, stdout=subprocess.PIPE, text=True)
    assert float(done.stdout) >= 0.4
