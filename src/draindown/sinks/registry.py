"""The sinks by kind: the one place that knows which package sends to a kind of sink. See `sinks.port`.

A package is imported when a flow of its kind asks for its sink, so a kind's client library costs other flows nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from importlib import import_module
from typing import Any

from draindown.sinks.port import Sink, SinkPlace
from draindown.spec.kafka_sink import KafkaSink
from draindown.spec.postgres_sink import PostgresSink
from draindown.spec.sink import SinkSpec

Make = Callable[[Any, SinkPlace, Mapping[str, str]], Sink]
"""Makes a sink from the model of its kind, its place, and the environment that holds the secrets."""


def _in(module: str, name: str) -> Make:
    def make(*given: Any) -> Sink:
        found: Sink = getattr(import_module(module), name)(*given)
        return found

    return make


MAKERS: MutableMapping[str, Make] = {
    KafkaSink.kind: _in("draindown.sinks.kafka.sink", "KafkaTopic"),
    PostgresSink.kind: _in("draindown.sinks.postgres.sink", "PostgresTable"),
}


def sink_of(spec: SinkSpec, place: SinkPlace, environ: Mapping[str, str] = os.environ) -> Sink:
    """Return the sink, without connecting to it. Secrets are looked up in `environ` once it connects.

    Raises TerminalError `sink-client-missing` or `kafka-client-missing`.
    """
    return MAKERS[spec.kind](spec, place, environ)
