"""A Spark cluster of one master and workers on loopback, from pip's pyspark, for demo and tests.

    python scripts/spark_cluster.py HOME [WORKERS]     start it, print its address, and end it with Ctrl-C

It runs as this user, listens on 127.0.0.1 only and ends with the process that started it. Spark
submits without a login, so nothing but loopback will do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import psutil
import pyspark

from draindown.airflow.process import die_with_parent
from draindown.base.errors import DraindownError, TerminalError
from draindown.base.exits import exit_for
from draindown.launch.settings import spark_python, spark_submit

# for `scripts`, which is not in the package
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.kafka_broker import free_ports

UP_SECONDS = 120.0
_DIRECT = build_opener(ProxyHandler({}))  # no proxy: the master is this machine's
_DOWN_SECONDS = 20.0
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass
class SparkCluster:
    """A standalone cluster whose work and logs are below `home`. `memory`: MiB of each worker,
    which has one core.
    """

    home: Path
    memory: int = 1024
    _master: subprocess.Popen[bytes] | None = None
    _workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _ports: Sequence[int] = ()

    @property
    def address(self) -> str:
        """The master's address, as a Spark master or a connection has it."""
        return f"spark://127.0.0.1:{self._ports[0]}"

    def start(self, workers: int = 2, *, under: Sequence[str] = ()) -> SparkCluster:
        """Start the master and workers, and wait until all are alive. `under`: the command that
        runs a worker's.

        Raises TerminalError `cluster-not-up`.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self._ports = free_ports(2)
        port, page = map(str, self._ports)
        self._master = self._run(
            "master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", page
        )
        self._await("start a master", lambda: self._state()["status"] == "ALIVE")
        for _ in range(workers):
            self.start_worker(under)
        self._await("start workers", lambda: self._state()["aliveworkers"] == workers)
        return self

    def start_worker(self, under: Sequence[str] = ()) -> None:
        """Start one more worker. `under`: see `start`."""
        sizes = ("--cores", "1", "--memory", f"{self.memory}m", "--webui-port", "0")
        place = ("--host", "127.0.0.1", "--work-dir", str(self.home / "work"), self.address)
        self._workers.append(self._run("worker.Worker", *sizes, *place, before=under))

    def executors(self) -> list[psutil.Process]:
        """Return the processes of executors that workers run now."""
        return [
            one
            for worker in self._workers
            for one in _below(worker.pid)
            if _EXECUTOR in _words(one)
        ]

    def spent(self) -> float:
        """Return the CPU seconds of all executors that have ended, with what they started, once
        none is left.
        """
        self._await("end executors", lambda: not self.executors())
        times = [psutil.Process(worker.pid).cpu_times() for worker in self._workers]
        return float(sum(one.children_user + one.children_system for one in times))

    def kill_worker(self) -> None:
        """End the last worker, and with it its executor, as the loss of a host would."""
        worker = self._workers.pop()
        for one in (*_below(worker.pid), worker):
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                one.kill()
        worker.wait()

    def kill_master(self) -> None:
        """End the master as a crash would."""
        assert self._master is not None
        self._master.kill()
        self._master.wait()

    def stop(self) -> None:
        """End workers and master, and wait. An executor whose task does not end is killed."""
        left = [one for worker in self._workers for one in _below(worker.pid)]
        for process in (*self._workers, self._master):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(_DOWN_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()

    def _run(
        self, part: str, *arguments: str, before: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        command = [
            *before,
            str(spark_submit().parent / "spark-class"),
            f"org.apache.spark.deploy.{part}",
            *arguments,
        ]
        environ = {**os.environ, **spark_python(), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
        environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        with (self.home / "console.log").open("ab") as out:
            return subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=environ,
                cwd=self.home,
                preexec_fn=die_with_parent,
            )

    def _state(self) -> dict[str, Any]:
        with _DIRECT.open(f"http://127.0.0.1:{self._ports[1]}/json/", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _await(self, tried: str, there: Callable[[], bool]) -> None:
        until = time.monotonic() + UP_SECONDS
        while time.monotonic() < until:
            with suppress(OSError, ValueError, KeyError):
                if there():
                    return
            ended = next(
                (one for one in (self._master, *self._workers) if one and one.poll() is not None),
                None,
            )
            if ended is not None:
                raise self._not_up(tried, f"a process ended with {ended.returncode}")
            time.sleep(0.2)
        raise self._not_up(tried, f"not done after {UP_SECONDS:.0f} s")

    def _not_up(self, tried: str, found: str) -> TerminalError:
        log = self.home / "console.log"
        return TerminalError(
            "cluster-not-up",
            tried=tried,
            found=f"{found}; it says more in {log}",
            next="make setup",
        )


def _below(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _words(process: psutil.Process) -> list[str]:
    """Return a process's command line; of one that has ended nothing, whether its parent has waited
    for it or not.
    """
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def blind_to(place: Path) -> Sequence[str]:
    """Return the command under which a worker sees an empty directory there, as on a host without
    the mount.

    It takes the right to mount.
    """
    return ("unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(place))


def main(arguments: list[str]) -> int:
    """Start a cluster, print its address, and end it when asked. Return the exit code."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 64
    cluster = SparkCluster(Path(arguments[0]).absolute())
    try:
        print(cluster.start(int(arguments[1]) if arguments[1:] else 2).address, flush=True)
        signal.pause()
    except KeyboardInterrupt:
        return 0
    except DraindownError as error:
        print(error, file=sys.stderr)
        return exit_for(error)
    finally:
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
