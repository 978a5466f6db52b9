"""A Postgres server for the tests of a worker, without a JVM."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sinks.postgres_server import PostgresServer, server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that is up. No test stops it."""
    home = Path(tempfile.mkdtemp(prefix="draindown-pg-"))  # pytest's own directories are closed to other users
    home.chmod(0o755)
    with server(home / "pg") as found:
        yield found
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server of the test's own, to be killed, frozen and restarted."""
    home = Path(tempfile.mkdtemp(prefix="draindown-pg-"))
    home.chmod(0o755)
    with server(home / "pg") as found:
        yield found
    shutil.rmtree(home, ignore_errors=True)
