"""Brokers that are killed, restarted, frozen or full, or want SASL or TLS: each ends by name, the
next run right.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.config.kafka_sink import KafkaSink
from draindown.sinks.kafka.sink import KafkaTopic
from draindown.sinks.kafka.transactions import KafkaTransactions
from scripts.kafka_broker import Broker
from tests.kafka.cluster import USER, WORD, Cluster
from tests.kafka.test_sink import by_recipe, read
from tests.sinks import contract
from tests.sinks.contract import BATCH, COLUMNS, place_of

pytestmark = pytest.mark.long
ROWS = contract.upserts({at: (str(at), "x" * 50) for at in range(400)})
FORMS = pytest.mark.parametrize("form", ["at_least_once", "exactly_once"])


def sink(
    form: str, cluster: Cluster, topic: str, delivery_timeout: int = 3, **more: Any
) -> KafkaTopic:
    once = (
        {"delivery": form, "marker_topic": f"{topic}-markers", "transaction_timeout": 10}
        if form == "exactly_once"
        else {}
    )
    given = {
        "topic": topic,
        "bootstrap_servers": cluster.address,
        "request_timeout": 3,
        **once,
    }
    made = KafkaTransactions if form == "exactly_once" else KafkaTopic
    found = made(KafkaSink(**(given | more)), place_of(topic), {"DRAINDOWN_SECRET_WORD": WORD})
    found._client.delivery_timeout = delivery_timeout
    return found


def sent(found: KafkaTopic, rows: Any = None) -> None:
    try:
        found.fence(5)
        found.check(COLUMNS)
        found.send(BATCH, COLUMNS, rows if rows is not None else contract.batches(ROWS, 100))
    finally:
        found.close()


def fails(action: Callable[[], Any]) -> DraindownError:
    with pytest.raises(DraindownError) as raised:
        action()
    return raised.value


def struck(by: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """The rows; what it strikes by happens once some of them were sent."""
    for at, part in enumerate(contract.batches(ROWS, 100)):
        if at == 2:
            by()
        yield part


def assert_sent(form: str, cluster: Cluster, topic: str) -> None:
    """Every row is there, and where it is sent exactly once, no message twice."""
    messages = read(cluster, topic, committed=True)
    assert len(by_recipe(messages)) == len(ROWS)
    assert form != "exactly_once" or len(messages) == len(ROWS)


@FORMS
@pytest.mark.timeout(300)
def test_a_broker_that_is_killed_or_stands_still_in_a_batch_is_tried_again(
    own_broker: Cluster, form: str
) -> None:
    own_broker.create("killed")
    killed = fails(lambda: sent(sink(form, own_broker, "killed"), struck(own_broker.broker.kill)))
    assert isinstance(killed, TransientError) and killed.code == "sink-unreachable"
    down = fails(lambda: sink(form, own_broker, "killed").check(COLUMNS))
    assert isinstance(down, TransientError) and down.code == "sink-unreachable"
    own_broker.start_again("killed")
    sent(sink(form, own_broker, "killed", request_timeout=20, delivery_timeout=20))
    assert_sent(form, own_broker, "killed")
    own_broker.create("frozen")
    frozen = fails(lambda: sent(sink(form, own_broker, "frozen"), struck(own_broker.broker.freeze)))
    own_broker.broker.thaw()
    assert isinstance(frozen, TransientError) and frozen.code == "sink-unreachable"
    sent(sink(form, own_broker, "frozen", request_timeout=20, delivery_timeout=20))
    assert_sent(form, own_broker, "frozen")


@FORMS
@pytest.mark.timeout(300)
def test_a_broker_that_is_restarted_in_a_batch_is_waited_for(
    own_broker: Cluster, form: str
) -> None:
    own_broker.create("t")
    longer = {"request_timeout": 60, "delivery_timeout": 60}
    longer |= {"transaction_timeout": 60} if form == "exactly_once" else {}
    try:
        sent(sink(form, own_broker, "t", **longer), struck(lambda: own_broker.restart("t")))
    except TransientError as error:  # a transaction may end with its coordinator
        assert error.code in ("sink-unreachable", "sink-fenced") and form == "exactly_once"
        sent(sink(form, own_broker, "t", **longer))
    assert_sent(form, own_broker, "t")


@pytest.fixture
def small_broker(tmp_path: Path) -> Iterator[tuple[Cluster, Path]]:
    """A broker whose data are on a file system of 64 MB."""
    home = tmp_path / "disk"
    home.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(home)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(
            f"a small file system can't be mounted: {done.stderr.strip() or done.returncode}"
        )
    broker = Broker(
        home / "broker", {"log.segment.bytes": 1048576, "log.index.size.max.bytes": 65536}
    )
    cluster = Cluster(broker.start())
    yield cluster, home
    broker.stop()
    subprocess.run(["umount", "--lazy", str(home)], check=True)


@FORMS
@pytest.mark.timeout(300)
def test_a_broker_whose_disk_is_full_is_tried_again(
    small_broker: tuple[Cluster, Path], form: str
) -> None:
    cluster, home = small_broker
    cluster.create("t")
    ballast = home / "ballast"

    def fill() -> None:
        with ballast.open("ab", buffering=0) as out, pytest.raises(OSError, match="No space left"):
            while True:
                out.write(bytes(2**16))

    chance = random.Random(1)  # the client compresses, and can't make less of noise
    rows = contract.upserts({at: (str(at), chance.randbytes(20_000).hex()) for at in range(400)})

    def large() -> Iterator[pa.RecordBatch]:
        for at, part in enumerate(contract.batches(rows, 100)):
            if at == 1:
                fill()
            yield part

    error = fails(lambda: sent(sink(form, cluster, "t"), large()))
    assert isinstance(error, TransientError) and error.code == "sink-unreachable"
    ballast.unlink()
    cluster.broker.stop()  # a broker ends where it can't write
    cluster.start_again("t")
    sent(sink(form, cluster, "t", request_timeout=20, delivery_timeout=20))
    assert_sent(form, cluster, "t")


@FORMS
def test_sasl_lets_in_whoever_has_the_secret(cluster: Cluster, topic: str, form: str) -> None:
    assert cluster.secured is not None
    cluster.create(topic)
    login = {"sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": "${secret:WORD}"}
    sasl = {
        "bootstrap_servers": f"127.0.0.1:{cluster.secured.sasl}",
        "security_protocol": "sasl_plaintext",
        **login,
    }
    sent(sink(form, cluster, topic, **sasl, request_timeout=20))
    assert_sent(form, cluster, topic)
    changed = sink(form, cluster, topic, **sasl, request_timeout=20)
    changed._client._environ = {"DRAINDOWN_SECRET_WORD": "canary"}
    for action in (
        lambda: changed.check(COLUMNS),
        lambda: changed.send(replace(BATCH, number=1), COLUMNS, struck(int)),
    ):
        error = fails(action)
        assert (
            isinstance(error, TerminalError)
            and error.code == "sink-auth"
            and "canary" not in str(error)
        )


@FORMS
def test_tls_verifies_the_brokers_certificate(cluster: Cluster, topic: str, form: str) -> None:
    assert cluster.secured is not None
    cluster.create(topic)
    tls = {"bootstrap_servers": f"127.0.0.1:{cluster.secured.tls}", "security_protocol": "ssl"}
    sent(
        sink(
            form, cluster, topic, **tls, ssl_ca_location=str(cluster.secured.ca), request_timeout=20
        )
    )
    assert_sent(form, cluster, topic)
    error = fails(lambda: sent(sink(form, cluster, topic, **tls)))
    assert isinstance(error, TerminalError) and error.code == "sink-tls"
