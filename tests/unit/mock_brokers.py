"""Brokers inside the test's process: librdkafka's own, which answer as they are asked to, with
errors too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka

REQUESTS = {"Produce": 0, "InitProducerId": 22, "AddPartitionsToTxn": 24, "EndTxn": 26}
"""Numbers of requests in Kafka's protocol."""


class MockBrokers:
    """One broker. `address` is that of a bootstrap server."""

    def __init__(self) -> None:
        self._library = _library()
        settings = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(
            ctypes.c_void_p(settings), b"log_level", b"0", None, ctypes.c_size_t(0)
        )
        self._client = self._library.rd_kafka_new(
            0, ctypes.c_void_p(settings), None, ctypes.c_size_t(0)
        )
        self._cluster = self._library.rd_kafka_mock_cluster_new(ctypes.c_void_p(self._client), 1)
        self.address = self._library.rd_kafka_mock_cluster_bootstraps(
            ctypes.c_void_p(self._cluster)
        ).decode()

    def create(self, topic: str) -> None:
        """Create a topic of one partition."""
        self._library.rd_kafka_mock_topic_create(
            ctypes.c_void_p(self._cluster), topic.encode(), 1, 1
        )

    @contextmanager
    def answering(self, request: str, error: int, times: int = 20) -> Iterator[None]:
        """Answer so many requests of a kind with an error, by its number in Kafka's protocol."""
        number, cluster = ctypes.c_int16(REQUESTS[request]), ctypes.c_void_p(self._cluster)
        answers = (ctypes.c_int * times)(*[error] * times)
        self._library.rd_kafka_mock_push_request_errors_array(
            cluster, number, ctypes.c_size_t(times), answers
        )
        try:
            yield
        finally:
            self._library.rd_kafka_mock_clear_request_errors(cluster, number)

    def close(self) -> None:
        """End the broker."""
        self._library.rd_kafka_mock_cluster_destroy(ctypes.c_void_p(self._cluster))
        self._library.rd_kafka_destroy(ctypes.c_void_p(self._client))


def _library() -> Any:
    """Return the library that confluent-kafka's wheel brings along."""
    beside = Path(confluent_kafka.__file__).parents[1]
    (path,) = [
        *beside.glob("confluent_kafka.libs/librdkafka-*"),
        *beside.glob("confluent_kafka/.dylibs/librdkafka.*"),
    ]
    found = ctypes.CDLL(str(path))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(found, name).restype = ctypes.c_void_p
    found.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return found
