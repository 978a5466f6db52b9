"""A broker under test: topics, records, deletions, and certificates for its TLS listener."""

from __future__ import annotations

import datetime
import fcntl
import itertools
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from filelock import FileLock

from scripts.kafka_broker import Broker, free_ports

USER, WORD = "alice", 'pa"ss\\word'
_WAIT = 20.0


class Secured:
    """Settings of a broker with a SASL and a TLS listener beside the plain one, made once in a
    directory.
    """

    def __init__(self, home: Path) -> None:
        self.ca, self.keystore, ports = home / "ca.pem", home / "keystore.pem", home / "ports.json"
        if not ports.exists():
            certificate, key = self_signed()
            self.ca.write_bytes(certificate)
            self.keystore.write_bytes(key + certificate)
            ports.write_text(json.dumps(free_ports(2)))
        self.sasl, self.tls = json.loads(ports.read_text())
        word = WORD.replace("\\", "\\\\").replace('"', '\\"')
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        self.settings: dict[str, object] = {
            "listeners": (
                "PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},"
                f"SASL_PLAINTEXT://127.0.0.1:{self.sasl},SSL://127.0.0.1:{self.tls}"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            # a backslash of a properties file is written twice
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_{USER}="{word}";'.replace(
                "\\", "\\\\"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore),
            "ssl.client.auth": "none",
        }


@dataclass
class Cluster:
    """A broker and clients of it."""

    broker: Broker
    secured: Secured | None = None
    _numbers: Any = field(default_factory=itertools.count)

    @classmethod
    def start(cls, home: Path, secured: Secured | None = None) -> Cluster:
        """Start a broker with its data in `home`."""
        return cls(Broker(home, secured.settings if secured else {}).start(), secured)

    @classmethod
    @contextmanager
    def shared(
        cls, home: Path, at_end: Callable[[Callable[[], None]], object]
    ) -> Iterator[Cluster]:
        """One broker for all workers of a test run. The first starts it, and ends it `at_end` once
        no other uses it.
        """
        home.mkdir(exist_ok=True)
        place, up = home / "broker", home / "up"
        with (home / "users").open("w") as users:
            with FileLock(home / "lock"):
                fcntl.flock(users, fcntl.LOCK_SH)  # the kernel gives it back for a worker that dies
                if up.exists():
                    found = cls(
                        Broker(place, _port=int((place / "port").read_text())), Secured(home)
                    )
                else:
                    found = cls.start(place, Secured(home))
                    up.touch()
                    at_end(lambda: _end_unused(found.broker, home))
            yield found

    @property
    def address(self) -> str:
        """Where the plain listener is."""
        return self.broker.address

    @cached_property
    def admin(self) -> AdminClient:
        """An admin client."""
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def new_name(self) -> str:
        """The name of a topic that no test uses, of another worker neither."""
        return f"t{os.getpid()}n{next(self._numbers)}"

    def create(self, topic: str, partitions: int = 1, **settings: object) -> None:
        """Create a topic. Settings in snake case. It keeps records for ever: retention goes by
        their own timestamps.
        """
        config = {
            name.replace("_", "."): str(value)
            for name, value in {"retention_ms": -1, **settings}.items()
        }
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(
            _WAIT
        )
        self.until(lambda: topic in self.admin.list_topics(timeout=_WAIT).topics)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([topic])[topic].result(_WAIT)
        self.until(lambda: topic not in self.admin.list_topics(timeout=_WAIT).topics)

    def add_partitions(self, topic: str, total: int) -> None:
        """Add partitions to a topic."""
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(_WAIT)
        self.until(
            lambda: (
                len(self.admin.list_topics(topic, timeout=_WAIT).topics[topic].partitions) == total
            )
        )

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition before an offset, as retention does."""
        self.admin.delete_records([TopicPartition(topic, partition, before)])
        found = self.admin.delete_records([TopicPartition(topic, partition, before)])
        for future in found.values():
            future.result(_WAIT)

    def restart(self, *topics: str) -> None:
        """Stop the broker as it should be and start it. It leads these topics again, in later
        epochs.
        """
        self.broker.stop()
        self.start_again(*topics)

    def start_again(self, *topics: str) -> None:
        """Start a broker that ended, and wait until each partition of these topics has a leader."""
        self.broker.start()
        self.__dict__.pop("admin", None)  # it takes minutes to notice new leaders

        def led() -> bool:
            found = (
                AdminClient({"bootstrap.servers": self.address, "log_level": 0})
                .list_topics(timeout=_WAIT)
                .topics
            )
            return all(
                name in found and all(p.leader >= 0 for p in found[name].partitions.values())
                for name in topics
            )

        self.until(led)

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Cut the log of a dead broker's partition to an offset at which a batch of records
        begins.
        """
        (directory,) = self.broker.home.rglob(f"{topic}-{partition}")
        (log,) = directory.glob("*.log")
        raw, at = log.read_bytes(), 0
        while at < len(raw):
            first, length = struct.unpack_from(">qi", raw, at)
            if first >= end:
                break
            at += 12 + length
        assert at < len(raw) and first == end, "a batch begins there"
        log.write_bytes(raw[:at])
        for name in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot"):
            for beside in directory.glob(name):
                beside.unlink()

    def configure(self, topic: str, **settings: object) -> None:
        """Change settings of a topic."""
        config = {name.replace("_", "."): str(value) for name, value in settings.items()}
        where = ConfigResource(ResourceType.TOPIC, topic, set_config=config)
        for future in self.admin.alter_configs([where]).values():
            future.result(_WAIT)

    def send(self, topic: str, records: Iterable[Mapping[str, Any]], **options: object) -> None:
        """Write records, each with the arguments of `Producer.produce`."""
        producer = self.producer(**options)
        _produce(producer, topic, records)
        assert producer.flush(_WAIT) == 0

    def send_transaction(
        self, topic: str, records: Iterable[Mapping[str, Any]], *, commit: bool, id: str = ""
    ) -> None:
        """Write records in one transaction, and commit or abort it."""
        producer = self.producer(transactional_id=id or topic)
        producer.init_transactions(_WAIT)
        producer.begin_transaction()
        _produce(producer, topic, records)
        assert producer.flush(_WAIT) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(_WAIT)

    def producer(self, **options: object) -> Producer:
        """A producer. Options in snake case."""
        more = {name.replace("_", "."): value for name, value in options.items()}
        return Producer({"bootstrap.servers": self.address, "log_level": 0, "linger.ms": 5, **more})

    def count(self, topic: str) -> int:
        """Return the number of committed records of a topic."""
        reader = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "tests",
                "isolation.level": "read_committed",
            }
        )
        parts = self.admin.list_topics(topic, timeout=_WAIT).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, 0) for number in parts])
        found = 0
        while messages := reader.consume(1000, 1.0):
            found += sum(message.error() is None for message in messages)
        reader.close()
        return found

    @staticmethod
    def pause(seconds: float) -> None:
        """Wait for the brokers' own clock: a log segment is rolled by age."""
        time.sleep(seconds)

    @staticmethod
    def later(seconds: float, action: Callable[[], None]) -> None:
        """Do something after a while, in another thread."""
        threading.Timer(seconds, action).start()

    def until(self, holds: Callable[[], bool], seconds: float = _WAIT) -> None:
        """Wait until something holds of the broker."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "the broker did not get there"
            time.sleep(0.05)


def _end_unused(broker: Broker, home: Path) -> None:
    with (home / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        (home / "up").unlink()
        broker.stop()


def _produce(producer: Producer, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
    for record in records:
        while True:
            try:
                producer.produce(topic, **record)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)


def self_signed() -> tuple[bytes, bytes]:
    """Return a certificate of 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return built.public_bytes(serialization.Encoding.PEM), private
