"""A topic of change events drained from its beginning: append and upsert, with raw records in the
lake and without.

And topics of different sizes in batches of one size: the memory of a drain follows the batch, not
the backlog.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
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
from benchmarks.samples import Row, Sample, contenders, kinds, median, of, ratio
from benchmarks.work import Asked, Bench, Finding, Work, say
from draindown.lake.table import Table
from draindown.launch import settings as spark_settings
from scripts.kafka_broker import Broker

FILES, PARTITIONS = 100, 4
_admin: Any = confluent_kafka.admin  # exports more than it says
_SECONDS = 60.0
_KINDS = ("append", "upsert")
_BATCHES = 10
"""Batches of the smallest topic of a backlog. Larger topics have more, of as many records each."""


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
                # ours says how many batches
                for contender in sorted(bench.contenders, key=lambda one: one is HAND):
                    shape = Shape(
                        "changes",
                        ROOT / "benchmarks",
                        "",
                        _append if kind == "append" else CHANGES.judge,
                    )
                    place = bench.place(f"kafka-{kind}-{turn}-{contender.name}", shape, landing)
                    if contender is HAND:
                        command = _by_hand(place, kind, address, topic, -(-records // batches))
                    else:
                        command = _drain(contender, place, kind, address, topic)
                    sample = _drained(bench, contender, place, command, kind, turn + 1)
                    batches = batches if contender is HAND else round(sample.facts["batches"])
                    samples.append(sample)
    return samples


def _backlog(bench: Bench) -> list[Sample]:
    samples, bound = [], -(-bench.rows(min(bench.asked.sizes)) // _BATCHES)
    with _standing(bench.scratch / "broker") as address:
        for size in bench.asked.sizes:
            files = bench.feed([bench.rows(size) // FILES] * FILES)
            topic, _ = _delivered(address, files)
            shape = Shape("changes", ROOT / "benchmarks", "", CHANGES.judge)
            for turn in range(bench.asked.repeat):
                for contender in bench.contenders:
                    place = bench.place(
                        f"backlog-{size}-{turn}-{contender.name}", shape, files[0].parent.parent
                    )
                    command = _drain(contender, place, "upsert", address, topic, bound)
                    samples.append(
                        _drained(bench, contender, place, command, f"{size:,} records", turn + 1)
                    )
    return samples


def _drained(
    bench: Bench, contender: Contender, place: Place, command: list[str], kind: str, number: int
) -> Sample:
    """Run the command and judge its table. A drain's sample says how many batches it made."""
    run = replace(contender, run=lambda at: measured(command, at.environment(), at.home))
    sample = bench.judged(run, place, bench.must(run, place, kind, number))
    if contender is HAND:
        return sample
    return replace(
        sample, facts={"batches": Table(str(place.lake / "ledger" / "changes")).row_count}
    )


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    """Per contender and size: batches, and memory over that of the smallest topic."""
    rows: list[Row] = [
        {
            "topic": kind,
            "contender": name,
            "batches": median(of(samples, kind, name), "batches"),
            "memory over the smallest": ratio(
                median(of(samples, kind, name), "rss_mb"),
                median(of(samples, kinds(samples)[0], name), "rss_mb"),
            ),
        }
        for kind in kinds(samples)
        for name in contenders(samples)
    ]
    return [Finding("Memory by size of the backlog", rows)]


@contextmanager
def _standing(home: Path) -> Iterator[str]:
    broker = Broker(home).start()
    try:
        yield broker.address
    finally:
        broker.stop()


def _delivered(address: str, files: list[Path]) -> tuple[str, int]:
    """Write each line of the files as a record, unless the topic has them. Return the topic and
    their number.
    """
    topic = files[0].parent.parent.name
    admin = _admin.AdminClient({"bootstrap.servers": address})
    lines = 0
    if topic not in admin.list_topics(timeout=_SECONDS).topics:
        settings = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
        admin.create_topics([_admin.NewTopic(topic, PARTITIONS, 1, config=settings)])[topic].result(
            _SECONDS
        )
        producer = Producer(
            {"bootstrap.servers": address, "linger.ms": 50, "queue.buffering.max.messages": 500_000}
        )
        say(f"writing the lines of {len(files)} files into topic {topic}")
        for file in files:
            with gzip.open(file, "rb") as text:
                for line in text:
                    producer.produce(topic, value=line.rstrip(b"\n"), partition=lines % PARTITIONS)
                    lines += 1
            if producer.flush(_SECONDS):
                raise Failed(f"the broker did not take the records of {file}")
    ends = admin.list_offsets(
        {TopicPartition(topic, at): _admin.OffsetSpec.latest() for at in range(PARTITIONS)}
    )
    return topic, sum(int(found.result(_SECONDS).offset) for found in ends.values())


def _by_hand(place: Place, kind: str, address: str, topic: str, offsets: int) -> list[str]:
    where = ["--shape", "changes", "--landing", "-", "--lake", str(place.lake), "--mode", kind]
    flags = [*where, "--servers", address, "--topic", topic, "--offsets", str(offsets)]
    return submit("kafka_job.py", spark_settings.settings("local[*]"), *flags)


def _drain(
    contender: Contender,
    place: Place,
    kind: str,
    address: str,
    topic: str,
    bound: int | None = None,
) -> list[str]:
    """Write the pipeline, with `bound` as its `max_offsets_per_trigger`, and return the command
    that drains it.
    """
    content = yaml.safe_load((ROOT / "benchmarks" / "pipelines" / "changes.yaml").read_text())
    flow = content["flows"]["changes"]
    flow["source"] = {"kafka": {"topics": [topic], "bootstrap_servers": address}, "format": "json"}
    flow["source"]["kafka"] |= {} if contender is RAW else {"keep_raw": False}
    flow["source"] |= {"max_offsets_per_trigger": bound} if bound else {}
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
BACKLOG = Work(
    "kafka-backlog",
    "topics of 3,000,000 and 10,000,000 change events in batches of 300,000 records",
    _backlog,
    (OURS, RAW),
    Asked(sizes=(3_000_000, 10_000_000)),
    findings=_findings,
)
