"""A Postgres server for the tests of a worker, without a JVM."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from scripts.postgres_server import PostgresServer, public_directory, server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that is up. No test stops it."""
    home = public_directory()
    with server(home / "pg") as found:
        yield found
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server of the test's own, to be killed, frozen and restarted."""
    home = public_directory()
    with server(home / "pg") as found:
        yield found
    shutil.rmtree(home, ignore_errors=True)
