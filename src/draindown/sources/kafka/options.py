"""The settings of Kafka's clients, made from a pipeline's: of librdkafka (no JVM) and of the Java client in Spark.

They hold secrets. They are made where a client is made, on the driver, and are stored nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from draindown.base.errors import TerminalError
from draindown.base.secrets import resolved
from draindown.spec.kafka import KafkaConnection

_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def of_librdkafka(cluster: KafkaConnection, environ: Mapping[str, str] = os.environ) -> dict[str, str | int]:
    """Return the settings of a client without a JVM. Raises TerminalError `secret-missing`."""
    given = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": cluster.security_protocol,
        "sasl.mechanism": cluster.sasl_mechanism,
        "sasl.username": cluster.sasl_username,
        "sasl.password": cluster.sasl_password,
        "ssl.ca.location": cluster.ssl_ca_location,
        "ssl.certificate.location": cluster.ssl_certificate_location,
        "ssl.key.location": cluster.ssl_key_location,
        "ssl.key.password": cluster.ssl_key_password,
    }
    wait = cluster.request_timeout * 1000
    return {
        **{name: resolved(value, environ) for name, value in given.items() if value is not None},
        "socket.timeout.ms": wait,
        "socket.connection.setup.timeout.ms": min(wait, 10_000),
        "client.id": "draindown",
        "log_level": 0,  # otherwise it writes to stderr by itself
    }


def of_java(cluster: KafkaConnection, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings of the Java client. Certificates and keys are passed by content: executors need none on disk.

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
    name, word = (resolved(text or "", environ) for text in (cluster.sasl_username, cluster.sasl_password))
    return f"{_LOGIN[cluster.sasl_mechanism or '']} required username={_quoted(name)} password={_quoted(word)};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise TerminalError(
            "kafka-tls", tried=f"read {path}", found=str(error), next=f"ls -l {path}   # it must be a PEM file"
        ) from error
