"""A Postgres that is restarted, full, or given another password in a batch, and one with TLS: by
name, then right.
"""

from __future__ import annotations

import select
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.sinks.postgres.sink import PostgresTable
from scripts.postgres_server import USER, WORD, PostgresServer, public_directory, server
from tests.kafka.cluster import self_signed
from tests.sinks import contract
from tests.sinks.contract import BATCH, COLUMNS
from tests.tables.test_postgres_sink import fails, sink, table

ROWS = contract.upserts({at: (str(at), "x" * 20) for at in range(200)})


def rows(by: Callable[[], Any]) -> Iterator[pa.RecordBatch]:
    """The rows; what strikes the server happens between two record batches."""
    for at, part in enumerate(contract.batches(ROWS, 50)):
        if at == 2:
            by()
        yield part


def sent(found: PostgresTable, by: Callable[[], Any] = lambda: None) -> None:
    try:
        found.fence(5)
        found.check(COLUMNS)
        found.send(BATCH, COLUMNS, rows(by))
    finally:
        found.close()


def assert_sent(postgres: PostgresServer, name: str) -> None:
    assert postgres.execute(f"select count(*), count(distinct id) from {name}") == [
        (len(ROWS), len(ROWS))
    ]


def code(error: DraindownError, kind: type[DraindownError]) -> str:
    assert isinstance(error, kind)
    return str(error.code)


@pytest.mark.parametrize("how", ["immediate", "fast"])
def test_a_server_that_is_restarted_in_a_batch_has_none_of_it_and_then_all(
    own_postgres: PostgresServer, how: str
) -> None:
    name = table(own_postgres)

    def restart() -> None:
        own_postgres.stop(how)
        own_postgres.start()

    assert (
        code(fails(lambda: sent(sink(own_postgres, name), restart)), TransientError)
        == "sink-unreachable"
    )
    assert own_postgres.execute(f"select count(*) from {name}") == [(0,)]
    sent(sink(own_postgres, name))
    assert_sent(own_postgres, name)


def test_a_password_that_is_changed_in_a_batch_ends_the_next_one_by_name(
    own_postgres: PostgresServer,
) -> None:
    """The connection at work goes on; whoever connects anew needs the new one."""
    name = table(own_postgres)
    sent(
        sink(own_postgres, name), lambda: own_postgres.execute(f"alter role {USER} password 'new'")
    )
    assert_sent(own_postgres, name)
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s"
    own_postgres.execute(f"alter role {USER} password '{WORD}'")

    def changed_and_cut() -> None:
        own_postgres.execute(f"alter role {USER} password 'new'")
        own_postgres.execute(cut, USER)

    own_postgres.execute(f"truncate {name}; truncate {name.partition('.')[0]}.draindown_sinks")
    found = sink(own_postgres, name)
    assert code(fails(lambda: sent(found, changed_and_cut)), TransientError) == "sink-unreachable"
    assert code(fails(lambda: sent(found)), TerminalError) == "sink-auth"
    sent(sink(own_postgres, name, "new"))
    assert_sent(own_postgres, name)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 96 MB that any user can reach."""
    home = public_directory()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "none", str(home)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        shutil.rmtree(home)
        pytest.skip(
            f"a small file system can't be mounted: {done.stderr.strip() or done.returncode}"
        )
    home.chmod(0o755)
    yield home
    subprocess.run(["umount", "--lazy", str(home)], check=True)
    shutil.rmtree(home)


@pytest.mark.long
def test_a_server_whose_disk_is_full_is_tried_again(small_disk: Path) -> None:
    with server(small_disk / "pg") as postgres:
        name, ballast = table(postgres), small_disk / "ballast"

        def fill() -> None:
            with (
                ballast.open("ab", buffering=0) as out,
                pytest.raises(OSError, match="No space left"),
            ):
                while True:
                    out.write(bytes(2**12))

        many = contract.upserts({at: (str(at), "x" * 20_000) for at in range(400)})

        def large() -> Iterator[pa.RecordBatch]:
            for at, part in enumerate(contract.batches(many, 100)):
                if at == 1:
                    fill()
                yield part

        found = sink(postgres, name)
        found.fence(5)
        full = code(fails(lambda: found.send(BATCH, COLUMNS, large())), TransientError)
        assert full in ("sink-full", "sink-unreachable"), (
            "it ends its connections where it can't write its log"
        )
        ballast.unlink()
        with suppress(subprocess.CalledProcessError):
            postgres.stop("immediate")
        postgres.start()
        assert postgres.execute(f"select count(*) from {name}") == [(0,)]
        sent(sink(postgres, name))
        assert_sent(postgres, name)


def _certificate(home: Path, name: str) -> tuple[Path, Path]:
    """Write a certificate that signs itself, and its key."""
    certificate, key = self_signed()
    paths = home / f"{name}.pem", home / f"{name}.key"
    for path, content in zip(paths, (certificate, key), strict=True):
        path.write_bytes(content)
    return paths


@contextmanager
def in_front_of(port: int, certificate: Path, key: Path) -> Iterator[int]:
    """Speak TLS as a server of Postgres does, and plainly to the one behind, which is built
    without.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):  # until it is closed
                while True:
                    client, _ = listening.accept()
                    threading.Thread(target=speak, args=(client,), daemon=True).start()

        def speak(client: socket.socket) -> None:
            with suppress(OSError), client, socket.create_connection(("127.0.0.1", port)) as behind:
                client.recv(8)  # SSLRequest
                client.sendall(b"S")
                with context.wrap_socket(client, server_side=True) as secured:
                    while True:
                        ready = (
                            [secured]
                            if secured.pending()
                            else select.select([secured, behind], [], [])[0]
                        )
                        for one, other in ((secured, behind), (behind, secured)):
                            if one in ready:
                                data = one.recv(65536)
                                if not data:
                                    return
                                other.sendall(data)

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)  # closing it alone would leave the thread in accept


def test_verify_full_takes_the_servers_certificate_and_no_other(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    name, (own, key), (other, _) = (
        table(postgres),
        _certificate(tmp_path, "own"),
        _certificate(tmp_path, "other"),
    )
    with in_front_of(postgres.port, own, key) as port:

        def through(ca: Path, host: str = "127.0.0.1") -> PostgresTable:
            tls = f"?sslmode=verify-full&sslrootcert={ca}"
            url = postgres.url(more=tls).replace(f"127.0.0.1:{postgres.port}", f"{host}:{port}")
            return sink(postgres, name, url=url)

        sent(through(own))
        assert_sent(postgres, name)
        for wrong in (through(other), through(own, "localhost")):
            assert (
                code(fails(lambda found=wrong: found.check(COLUMNS)), TerminalError) == "sink-tls"
            )  # type: ignore[misc]
