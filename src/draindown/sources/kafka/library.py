"""Kafka's client library, imported where it is used."""

from __future__ import annotations

from typing import Any

from draindown.base.errors import TerminalError


def library(part: str = "") -> Any:
    """Return the client's module. It is imported where it is used: flows without Kafka do not need
    it.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise TerminalError(
            "kafka-client-missing",
            tried="import confluent_kafka",
            found=str(error),
            next="pip install 'draindown[kafka]'",
        ) from error
    return getattr(confluent_kafka, part) if part else confluent_kafka
