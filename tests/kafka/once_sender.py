"""A driver that sends batches of a sink exactly once, in a process of its own, which may be killed
or frozen.

    python -m tests.kafka.once_sender ADDRESS TOPIC EPOCH [BATCH:PART:SIGNAL]

Batches from 0 come in portions of two record batches each. At BATCH:PART, once the brokers have
what was sent before of the open transaction, the process sends itself the signal. It prints what it
did; its exit code is that of a job.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from draindown.base.errors import DraindownError
from draindown.base.exits import exit_for
from draindown.config.kafka_sink import KafkaSink
from draindown.sinks.kafka.transactions import KafkaTransactions
from draindown.sinks.port import FATE, of_portion
from tests.sinks.contract import BATCH, COLUMNS, SCHEMA, place_of

BATCHES, PARTS, ROWS = 4, 6, 300
"""Batches, record batches in each, rows in each of these."""
_PORTIONS = PARTS // 2


def sink(address: str, topic: str) -> KafkaTransactions:
    """The sink of the topic. Each portion is a transaction of its own."""
    spec = KafkaSink(
        topic=topic,
        bootstrap_servers=address,
        delivery="exactly_once",
        marker_topic=f"{topic}-markers",
    )
    clock = iter(range(0, 10**9, 1000))
    return KafkaTransactions(spec, place_of(topic), {}, lambda: float(next(clock)))


def keys(part: int) -> range:
    """The keys of a record batch."""
    return range(part * ROWS, (part + 1) * ROWS)


def _rows(
    found: KafkaTransactions, batch: int, strike: tuple[int, int, int]
) -> Iterator[pa.RecordBatch]:
    for part in range(PARTS):
        rows = [{"id": id_, "name": str(batch), "note": None, FATE: "upsert"} for id_ in keys(part)]
        yield of_portion(pa.RecordBatch.from_pylist(rows, SCHEMA), part // 2)
        if strike[:2] == (batch, part):
            found._producer.flush(20)
            print("struck", flush=True)
            os.kill(os.getpid(), strike[2])


def main(address: str, topic: str, epoch: str, place: str = "-1:-1:0") -> int:
    """Send every batch that the sink does not have."""
    strike = tuple(map(int, place.split(":")))
    print("begun", flush=True)
    try:
        for number in range(BATCHES):
            found, began = sink(address, topic), time.monotonic()
            batch = replace(
                BATCH, number=number, epoch=int(epoch), rows=PARTS * ROWS, portions=_PORTIONS
            )
            found.fence(int(epoch))
            newest = found.has(batch)
            if newest is not None and newest.number > number:  # as a flow knows by its document
                continue
            print(f"began within {time.monotonic() - began:.2f} s", flush=True)
            found.send(replace(batch, digest=f"{number:x}"), COLUMNS, _rows(found, number, strike))  # type: ignore[arg-type]
            found.close()
            print(f"sent batch {number} within {time.monotonic() - began:.2f} s", flush=True)
    except DraindownError as error:
        print(error, flush=True)
        return int(exit_for(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
