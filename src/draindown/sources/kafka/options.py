"""The settings of Kafka's clients, made from a pipeline's: of librdkafka (no JVM) and of the Java
client in Spark.

They hold secrets. They are made where a client is made, on the driver, and are stored nowhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from draindown.base.errors import TerminalError
from draindown.base.secrets import names_in, resolved
from draindown.config.kafka import KafkaConnection

_GIVEN = (
    *("bootstrap_servers", "security_protocol", "sasl_mechanism", "sasl_username", "sasl_password"),
    *("ssl_ca_location", "ssl_certificate_location", "ssl_key_location", "ssl_key_password"),
)
"""Fields of a connection that librdkafka has under the same names, with points."""
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def of_librdkafka(
    cluster: KafkaConnection, environ: Mapping[str, str] = os.environ
) -> dict[str, str | int]:
    """Return the settings of a client without a JVM. Raises TerminalError `secret-missing`."""
    wait = cluster.request_timeout * 1000
    return {
        **{
            name.replace("_", "."): resolved(value, environ)
            for name, value in _given(cluster).items()
        },
        "socket.timeout.ms": wait,
        "socket.connection.setup.timeout.ms": min(wait, 10_000),
        "client.id": "draindown",
        "log_level": 0,  # otherwise it writes to stderr by itself
    }


def secrets_of(cluster: KafkaConnection, environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return what no text of a client may show: secrets, and of secret brokers each address and
    host.

    Raises TerminalError `secret-missing`.
    """
    found = {
        name: resolved(value, environ) for name, value in _given(cluster).items() if names_in(value)
    }
    return frozenset((*found.values(), *_addresses(found.get("bootstrap_servers", ""))))


def _given(cluster: KafkaConnection) -> dict[str, str]:
    values = {name: getattr(cluster, name) for name in _GIVEN}
    return {name: value for name, value in values.items() if value is not None}


def _addresses(servers: str) -> Iterator[str]:
    """Yield each server of a list as it is, without its protocol, and without its port."""
    for one in servers.split(","):
        address = one.strip().rpartition("://")[2]
        yield from (one.strip(), address, re.sub(r":[0-9]*$", "", address).strip("[]"))


def of_java(cluster: KafkaConnection, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings of the Java client. Certificates and keys are passed by content:
    executors need none on disk.

    Raises TerminalError `secret-missing` or `kafka-tls`.
    """
    wait = cluster.request_timeout * 1000
    found = {
        "bootstrap.servers": resolved(cluster.bootstrap_servers, environ),
        "security.protocol": cluster.security_protocol.upper(),
        "request.timeout.ms": str(wait),
        "default.api.timeout.ms": str(wait + 10_000),
    }
    if cluster.sasl_mechanism is not None:
        found["sasl.mechanism"] = cluster.sasl_mechanism
        found["sasl.jaas.config"] = _jaas(cluster, environ)
    if cluster.ssl_ca_location is not None:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.certificates"] = _read(cluster.ssl_ca_location)
    if cluster.ssl_certificate_location is not None and cluster.ssl_key_location is not None:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = _read(cluster.ssl_certificate_location)
        found["ssl.keystore.key"] = _read(cluster.ssl_key_location)
    if cluster.ssl_key_password is not None:
        found["ssl.key.password"] = resolved(cluster.ssl_key_password, environ)
    return found


def _jaas(cluster: KafkaConnection, environ: Mapping[str, str]) -> str:
    name, word = (
        resolved(text or "", environ) for text in (cluster.sasl_username, cluster.sasl_password)
    )
    return f"{_LOGIN[cluster.sasl_mechanism or '']} required username={_quoted(name)} password={_quoted(word)};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise TerminalError(
            "kafka-tls",
            tried=f"read {path}",
            found=str(error),
            next=f"ls -l {path}   # it must be a PEM file",
        ) from error
