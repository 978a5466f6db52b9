"""The sinks by kind: the one place that knows which package sends to a kind of sink. See
`sinks.port`.

A package is imported when a flow of its kind asks for its sink, so a kind's client library costs
other flows nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from importlib import import_module
from typing import Any

from draindown.config.kafka_sink import KafkaSink
from draindown.config.postgres_sink import PostgresSink
from draindown.config.sink import AT_LEAST_ONCE, EXACTLY_ONCE
from draindown.config.sinks import FlowSink
from draindown.sinks.port import Sink, SinkPlace

Make = Callable[[FlowSink, SinkPlace, Mapping[str, str]], Sink]
"""Makes a sink from what the pipeline file says of it, its place, and the environment that holds
the secrets.
"""


def _in(**classes: tuple[str, str]) -> Make:
    """Return what makes a sink of the class, by module and name, that has the delivery which the
    file asks for.
    """

    def make(spec: FlowSink, *given: Any) -> Sink:
        module, name = classes[spec.delivered]
        found: Sink = getattr(import_module(module), name)(spec.part, *given)
        return found

    return make


MAKERS: MutableMapping[str, Make] = {
    KafkaSink.kind: _in(
        **{
            AT_LEAST_ONCE: ("draindown.sinks.kafka.sink", "KafkaTopic"),
            EXACTLY_ONCE: ("draindown.sinks.kafka.transactions", "KafkaTransactions"),
        }
    ),
    PostgresSink.kind: _in(**{EXACTLY_ONCE: ("draindown.sinks.postgres.sink", "PostgresTable")}),
}


def sink_of(spec: FlowSink, place: SinkPlace, environ: Mapping[str, str] = os.environ) -> Sink:
    """Return the sink, without connecting to it. Secrets are looked up in `environ` once it
    connects.

    Raises TerminalError `sink-client-missing` or `kafka-client-missing`.
    """
    return MAKERS[spec.kind](spec, place, environ)
