"""Keys that a pipeline file may have and its models have not: the merge takes them before anything
is validated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from draindown.config.derived import DerivedFlow
from draindown.config.kafka import KafkaCluster
from draindown.config.kafka_sink import KafkaSink
from draindown.config.landing import FlowSpec
from draindown.config.postgres_sink import PostgresSink

CONNECTION = "connection"
"""The key that names a connection."""
CONNECTED: Mapping[type[BaseModel], str] = {
    KafkaCluster: "bootstrap_servers",
    KafkaSink: "bootstrap_servers",
    PostgresSink: "url",
}
"""Models of which a connection gives keys, and the key that each requires without one."""
OF_TEMPLATE = ("template", "params")
"""The keys of a flow that name a template and fill its holes."""


def merged_keys(model: object) -> Sequence[str]:
    """Return the keys that the merge takes at the place of a model."""
    if model in (FlowSpec, DerivedFlow):
        return OF_TEMPLATE
    return (CONNECTION,) if model in CONNECTED else ()
