"""The newest records of a flow's topics, which all copies of the flow read from the same
brokers.
"""

from __future__ import annotations

from draindown.base.formatting import count, size
from draindown.config.kafka import KafkaSource
from draindown.drill.material import BATCHES, Material, Wanted
from draindown.sources.kafka import bounds
from draindown.sources.kafka.client import Client
from draindown.sources.kafka.offsets import Span, take

_PER_FILE = 1000
"""Records that count as much as a file."""
_RECORD_BYTES = 1024.0  # of a record of which nothing is known


def newest(wanted: Wanted) -> Material:
    """Confine copies to the newest records, `max_bytes` of them at most. Raises TerminalError
    `nothing-to-drill`.

    Brokers are only asked and read. Raises as `Client.look` does.
    """
    source = wanted.spec.flow(wanted.flow).source
    assert isinstance(source, KafkaSource), "chosen by its kind"
    client = Client(source)
    every = [
        Span(one.topic, one.partition, one.topic_id, one.beginning, one.end)
        for one in client.look().partitions
    ]
    total = sum(span.size for span in every)
    if not total:
        raise wanted.nothing(f"no record in {source.place}")
    weight = client.sample(every).record_bytes or _RECORD_BYTES
    records = min(
        total, wanted.max_files * _PER_FILE, max(BATCHES, int(wanted.max_bytes / max(weight, 1.0)))
    )
    _, spans = take(every, total - records)
    fields = {
        "kafka": source.kafka.model_copy(update={"starting_offsets": "earliest"}).model_dump(),
        "max_bytes_per_trigger": None,
        "max_offsets_per_trigger": max(1, -(-records // BATCHES)),
    }
    told = f"{count(records, 'record')} of {count(len(every), 'partition')}, {size(round(records * weight))}"
    return Material(fields, told, plant=lambda layout: bounds.confine(layout, spans))
