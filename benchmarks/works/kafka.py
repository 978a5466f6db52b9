"""A topic of change events drained from its beginning: append and upsert, with raw records in the lake and without."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import yaml
from confluent_kafka import Producer, TopicPartition

from benchmarks import oracle
from benchmarks.contenders import BASELINE, Contender, draindown, submit
from benchmarks.measure import measured
from benchmarks.oracle import Verdict
from benchmarks.place import CHANGES, ROOT, Failed, Place, Shape
from benchmarks.samples import Sample
from benchmarks.work import Asked, Bench, Work, say
from draindown.lake.table_log import TableLog
from draindown.launch import settings as spark_settings
from scripts.kafka_broker import Broker

FILES, PARTITIONS = 100, 4
_admin: Any = confluent_kafka.admin  # exports more than it says
_SECONDS = 60.0
_KINDS = ("append", "upsert")


def _unmeasured(_: Place) -> Any:
    raise AssertionError("what runs depends on the topic: see `_run`")


HAND = Contender(
    BASELINE,
    "benchmarks/programs/kafka_job.py: `readStream` of Kafka, `from_json`, then append, or newest row per key and "
    "MERGE in `foreachBatch`; start-up flags, shuffle partitions and number of batches as draindown's",
    _unmeasured,
)
OURS = Contender(
    "draindown",
    "draindown run --no-check --no-compact with `keep_raw: false`: quarantine, tombstones and ledger as for files",
    _unmeasured,
    keeps_refused=True,
)
RAW = Contender(
    "draindown, raw kept",
    "the same with raw records in the lake, as is the default: key, value, headers of each, written before the table",
    _unmeasured,
    keeps_refused=True,
)


def _kafka(bench: Bench) -> list[Sample]:
    files = bench.feed([bench.rows()] * FILES)
    landing = files[0].parent.parent
    samples: list[Sample] = []
    with _standing(bench.scratch / "broker") as address:
        topic, records = _delivered(address, files)
        for turn in range(bench.asked.repeat):
            for kind in _KINDS:
                batches = 1
                for contender in sorted(bench.contenders, key=lambda one: one is HAND):  # ours says how many batches
                    shape = Shape("changes", ROOT / "benchmarks", "", _append if kind == "append" else CHANGES.judge)
                    place = bench.place(f"kafka-{kind}-{turn}-{contender.name}", shape, landing)
                    command = _command(contender, place, kind, address, topic, -(-records // batches))
                    run = replace(contender, run=lambda at, c=command: measured(c, at.environment(), at.home))
                    sample = bench.judged(run, place, bench.must(run, place, kind, turn + 1))
                    if contender is not HAND:
                        batches = TableLog(str(place.lake / "ledger" / "changes")).row_count
                        sample = replace(sample, facts={"batches": batches})
                    samples.append(sample)
    return samples


@contextmanager
def _standing(home: Path) -> Iterator[str]:
    broker = Broker(home).start()
    try:
        yield broker.address
    finally:
        broker.stop()


def _delivered(address: str, files: list[Path]) -> tuple[str, int]:
    """Write each line of the files as a record, unless the topic has them. Return the topic and their number."""
    topic = files[0].parent.parent.name
    admin = _admin.AdminClient({"bootstrap.servers": address})
    lines = 0
    if topic not in admin.list_topics(timeout=_SECONDS).topics:
        settings = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
        admin.create_topics([_admin.NewTopic(topic, PARTITIONS, 1, config=settings)])[topic].result(_SECONDS)
        producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "queue.buffering.max.messages": 500_000})
        say(f"writing the lines of {len(files)} files into topic {topic}")
        for file in files:
            with gzip.open(file, "rb") as text:
                for line in text:
                    producer.produce(topic, value=line.rstrip(b"\n"), partition=lines % PARTITIONS)
                    lines += 1
            if producer.flush(_SECONDS):
                raise Failed(f"the broker did not take the records of {file}")
    ends = admin.list_offsets({TopicPartition(topic, at): _admin.OffsetSpec.latest() for at in range(PARTITIONS)})
    return topic, sum(int(found.result(_SECONDS).offset) for found in ends.values())


def _command(contender: Contender, place: Place, kind: str, address: str, topic: str, offsets: int) -> list[str]:
    if contender is HAND:
        where = ["--shape", "changes", "--landing", "-", "--lake", str(place.lake), "--mode", kind]
        flags = [*where, "--servers", address, "--topic", topic, "--offsets", str(offsets)]
        return submit("kafka_job.py", spark_settings.settings("local[*]"), *flags)
    content = yaml.safe_load((ROOT / "benchmarks" / "pipelines" / "changes.yaml").read_text())
    flow = content["flows"]["changes"]
    flow["source"] = {"kafka": {"topics": [topic], "bootstrap_servers": address}, "format": "json"}
    flow["source"] |= {} if contender is RAW else {"keep_raw": False}
    flow["target"] = flow["target"] if kind == "upsert" else {}
    del flow["expectations"]
    pipeline = place.home / "changes.yaml"
    pipeline.write_text(json.dumps(content))
    named = replace(place, shape=replace(place.shape, pipeline=str(pipeline)))
    return draindown(named, "--no-check", "--no-compact")


def _append(place: Place, keeps: bool) -> Verdict:
    quarantine = place.lake / "quarantine" / place.shape.name if keeps else None
    return oracle.compare_appended(place.table, place.files, quarantine=quarantine)


WORK = Work(
    "kafka",
    f"a topic of {FILES * 10_000:,} change events in {PARTITIONS} partitions into an empty table: append, upsert",
    _kafka,
    (HAND, OURS, RAW),
    Asked(repeat=1),
)
