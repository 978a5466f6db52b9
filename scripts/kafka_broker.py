"""A Kafka broker for tests and the demo: one node, loopback only, without containers and without
root.

    python scripts/kafka_broker.py up | down [HOME]      HOME defaults to .work/kafka

The jars are those of `broker.lock`, fetched and verified as `jars.lock` is; the Scala library is
pyspark's own.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from draindown.airflow.process import die_with_parent
from draindown.base.errors import DraindownError, TerminalError
from draindown.base.exits import exit_for
from draindown.spark.setup import jars

ROOT = Path(__file__).resolve().parent.parent
UP_SECONDS, DOWN_SECONDS = 60.0, 20.0
_JVM = (
    "-Xmx512m",
    "-Xshare:auto",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Duser.timezone=UTC",
)
_LOGGING = """\
status=error
appender.file.type=File
appender.file.name=file
appender.file.fileName={home}/broker.log
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %m (%c)%n
rootLogger.level=warn
rootLogger.appenderRef.file.ref=file
"""
_PROTOCOLS = {one: one for one in ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")} | {
    "CONTROLLER": "PLAINTEXT"
}
_FAST = {
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "num.partitions": 1,
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    "log.retention.check.interval.ms": 500,
    "log.initial.task.delay.ms": 500,
    "log.segment.delete.delay.ms": 100,
    "log.cleaner.backoff.ms": 200,
    "message.max.bytes": 8 * 1024**2,
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
}
"""Settings with which one node holds all internal topics, and retention acts within a second."""


def class_path() -> str:
    """Return the broker's class path. Fetches jars that are missing. Raises TerminalError
    `jar-unresolved`.
    """
    place = Path(sys.prefix) / "share" / "draindown" / "broker"
    place.mkdir(parents=True, exist_ok=True)
    lock = ROOT / "broker.lock"
    with (place / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with suppress(OSError):  # the copy of the lock is placed last: with it all jars are there
            if (place / lock.name).read_bytes() == lock.read_bytes():
                return _joined(place)
        _fetch(lock, place)
        shutil.copyfile(lock, place / lock.name)
    return _joined(place)


def _fetch(lock: Path, place: Path) -> None:
    # in a process of its own: the resolver's JVM, which lacks the jars of jobs, would be that of
    # sessions started later
    command = [sys.executable, "-m", jars.__name__, "fetch", str(lock)]
    done = subprocess.run(
        command, env=os.environ | {"DRAINDOWN_JARS": str(place)}, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise TerminalError(
            "jar-unresolved",
            tried=f"fetch the jars of {lock.name}",
            found=done.stderr.strip()[-500:],
            next="make demo-kafka   # fetches them again, once what it names is mended",
        )


def _joined(place: Path) -> str:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "pyspark is installed by make setup"
    scala = sorted((Path(spec.origin).parent / "jars").glob("scala-library-2.13.*.jar"))
    return ":".join([f"{place}/*", *map(str, scala)])


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on, of those that Linux gives to
    no client.

    Until a broker listens, seconds pass in which other tests and their JVMs connect.
    """
    with ExitStack() as held:
        found: set[int] = set()
        while len(found) < count:
            port, one = 20_000 + secrets.randbelow(12_000), held.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.add(port)
        return list(found)


@dataclass
class Broker:
    """A broker whose data and settings are below `home`. Restarts keep both, and the port.

    `more`: broker settings beside or instead of the usual ones; the placeholders {port} and
    {controller} are filled in.
    """

    home: Path
    more: Mapping[str, object] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _port: int = 0

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the broker. Raises AssertionError if none was started."""
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    def start(self, *, with_parent: bool = True) -> Broker:
        """Start the broker and wait until it answers. `with_parent`: it ends with this process.

        One that `up` started there is used, and stays. Raises TerminalError `broker-not-up`.
        """
        if not (self.home / "server.properties").exists():
            self._format()
        self._port = int((self.home / "port").read_text())
        if running(self.home) is not None:
            self._await()
            return self
        if self._answers():
            raise self._not_up("start the broker", f"another program listens at {self.address}")
        options = {"preexec_fn": die_with_parent} if with_parent else {"start_new_session": True}
        with (self.home / "console.log").open("ab") as out:
            self._process = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(self.home / "server.properties")],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=self.home,
                **options,  # type: ignore[call-overload]
            )
        # before it answers, so that `down` ends a slow one
        (self.home / "pid").write_text(str(self.pid))
        self._await()
        return self

    def stop(self) -> None:
        """Ask the broker to end, and wait. A broker that does not end in time is killed."""
        if self._process is None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(DOWN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """End the broker as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def freeze(self) -> None:
        """Stop the broker's process; it keeps its connections and answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen broker go on."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def _java(self) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else "java"
        logging = self.home / "log4j2.properties"
        return [java, *_JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", class_path()]

    def _format(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        port, controller = free_ports(2)
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(
                f"{name}:{kind}" for name, kind in _PROTOCOLS.items()
            ),
            "log.dirs": str(self.home / "data"),
            **_FAST,
            **{
                name: str(value).format(port=port, controller=controller)
                for name, value in self.more.items()
            },
        }
        shutil.rmtree(self.home / "data", ignore_errors=True)  # of a start that was interrupted
        (self.home / "port").write_text(str(port))
        (self.home / "log4j2.properties").write_text(_LOGGING.format(home=self.home))
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        partial = self.home / "server.properties.partial"
        partial.write_text(text)
        cluster = (
            urlsafe_b64encode(secrets.token_bytes(16))
            .decode()
            .rstrip("=")
            .replace("-", "a")
            .replace("_", "b")
        )
        done = subprocess.run(
            [*self._java(), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(partial)],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.home,
        )
        if done.returncode:
            raise self._not_up(
                "format the broker's storage", (done.stderr or done.stdout).strip()[-500:]
            )
        partial.rename(self.home / "server.properties")

    def _await(self) -> None:
        until = time.monotonic() + UP_SECONDS
        while time.monotonic() < until:
            if self._process is not None and self._process.poll() is not None:
                raise self._not_up("start the broker", f"it ended with {self._process.returncode}")
            if self._answers():
                return
            time.sleep(0.1)
        raise self._not_up(
            "start the broker", f"nothing answers at {self.address} after {UP_SECONDS:.0f} s"
        )

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False

    def _not_up(self, tried: str, found: str) -> TerminalError:
        logs = [shlex.quote(str(self.home / name)) for name in ("broker.log", "console.log")]
        return TerminalError(
            "broker-not-up", tried=tried, found=found, next=f"less {' '.join(logs)}   # says more"
        )


def running(home: Path) -> psutil.Process | None:
    """Return the process of the broker in `home`, whoever started it; None if none runs."""
    with suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int((home / "pid").read_text()))
        # not another process with its number
        is_ours = str(home / "server.properties") in process.cmdline()
        if is_ours and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def down(home: Path) -> bool:
    """End the broker in `home`. Return whether one ran."""
    process = running(home)
    if process is None:
        return False
    process.terminate()
    try:
        process.wait(DOWN_SECONDS)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(DOWN_SECONDS)
    return True


def main(arguments: list[str]) -> int:
    """Run `up` or `down`. Prints the address or the error, returns the exit code."""
    verb, *rest = arguments or ("",)
    home = Path(rest[0]).absolute() if rest else ROOT / ".work" / "kafka"
    if verb not in ("up", "down"):
        print(__doc__, file=sys.stderr)
        return 64
    try:
        if verb == "down":
            print("Stopped." if down(home) else f"No broker of {home} runs.")
        else:
            print(Broker(home).start(with_parent=False).address)
    except DraindownError as error:
        print(error, file=sys.stderr)
        return exit_for(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
