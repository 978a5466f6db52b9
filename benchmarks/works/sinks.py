"""What a sink adds to a batch of 100,000 rows: a table of Postgres, a topic, one by transactions,
table and topic.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import confluent_kafka.admin
import yaml
from confluent_kafka import Consumer, TopicPartition

from benchmarks.contenders import DRAIN, Contender, draindown
from benchmarks.measure import measured
from benchmarks.place import CHANGES, ROOT, Failed, Place, Shape
from benchmarks.samples import Row, Sample, median, of
from benchmarks.work import Asked, Bench, Finding, Work, result
from draindown.base.formatting import count
from draindown.lake.table import Table
from scripts.kafka_broker import Broker
from scripts.postgres_server import USER, WORD, PostgresServer, public_directory, server

ROWS, FILES = 100_000, 4
_admin: Any = confluent_kafka.admin  # exports more than it says
_SECONDS = 60.0
_COLUMNS = ["event_date", "order_id", "status", "amount"]
_TYPES = (
    "event_date date, order_id bigint, status text, amount int, primary key (event_date, order_id)"
)
_KIND = f"{FILES} batches"
_TITLES = {"batch": "a batch, s", "first": "the first, s", "wall_s": "wall, s", "cpu_s": "CPU s"}


def _unmeasured(_: Place) -> Any:
    raise AssertionError("what runs needs the addresses of servers: see `_command`")


def _with(name: str, note: str) -> Contender:
    return Contender(
        f"draindown, {name}", f"the same drain with {note}", _unmeasured, keeps_refused=True
    )


POSTGRES = _with("to Postgres", "`sinks` a table of a server on loopback, four columns")
KAFKA = _with("to Kafka", "`sinks` a topic of a broker on loopback, four columns, at least once")
ONCE = _with("to Kafka once", "`sinks` such a topic, `delivery: exactly_once`")
BOTH = _with("to Postgres and Kafka", "both")


@dataclass(frozen=True)
class _Servers:
    postgres: PostgresServer
    broker: str

    def sinks(self, contender: Contender, name: str) -> dict[str, Any]:
        """Make what the contender's sinks write to, and return them as the pipeline file has
        them.
        """
        table = {
            "postgres": {"url": self.postgres.url(), "table": name},
            "columns": _COLUMNS,
        }
        topic = {"kafka": {"topic": name, "bootstrap_servers": self.broker}, "columns": _COLUMNS}
        once = {
            "kafka": topic["kafka"] | {"delivery": "exactly_once"},
            "columns": _COLUMNS,
        }
        found = {
            POSTGRES.name: {"table": table},
            KAFKA.name: {"topic": topic},
            ONCE.name: {"topic": once},
            BOTH.name: {"table": table, "topic": topic},
        }.get(contender.name, {})
        if "table" in found:
            self.postgres.execute(f"create table {name} ({_TYPES})")
            self.postgres.execute(f"grant select, insert, update, delete on {name} to {USER}")
        if "topic" in found:
            admin = _admin.AdminClient({"bootstrap.servers": self.broker})
            admin.create_topics([_admin.NewTopic(name, 1, 1)])[name].result(_SECONDS)
        return found

    def wrong(self, contender: Contender, name: str, table: Mapping[Any, Any]) -> str:
        """Return which sink is not as the table, "" if all are."""
        found = []
        if contender in (POSTGRES, BOTH):
            rows = self.postgres.execute(f"select {', '.join(_COLUMNS)} from {name}")
            found += (
                [] if {(str(day), id_): more for day, id_, *more in rows} == table else ["Postgres"]
            )
        if contender in (KAFKA, ONCE, BOTH):
            found += [] if self._folded(name) == table else ["the topic"]
        return " and ".join(found)

    def _folded(self, name: str) -> dict[Any, Any]:
        """Return the rows of the topic, as a consumer that reads committed messages from its
        beginning has them.
        """
        settings = {
            "bootstrap.servers": self.broker,
            "group.id": "bench",
            "isolation.level": "read_committed",
        }
        consumer, place = Consumer(settings), TopicPartition(name, 0, 0)
        consumer.assign([place])
        _, end = consumer.get_watermark_offsets(place, timeout=_SECONDS)
        rows: dict[Any, Any] = {}
        while consumer.position([place])[0].offset < end and (
            found := consumer.consume(10_000, _SECONDS / 6)
        ):
            for message in found:
                key = tuple(json.loads(message.key()).values())
                if message.value() is None:
                    rows.pop(key, None)
                else:
                    row = json.loads(message.value())
                    rows[key] = [row["status"], row["amount"]]
        consumer.close()
        return rows


@contextmanager
def _standing(bench: Bench) -> Iterator[_Servers]:
    broker, home = Broker(bench.scratch / "sinks-broker").start(), public_directory()
    try:
        with server(home / "pg") as postgres:
            postgres.execute(f"grant usage, create on schema public to {USER}")
            yield _Servers(postgres, broker.address)
    finally:
        broker.stop()
        shutil.rmtree(home, ignore_errors=True)


def _measure(bench: Bench) -> list[Sample]:
    files = bench.feed([bench.rows(ROWS)] * FILES)
    samples = []
    with _standing(bench) as servers:
        for turn in range(1, bench.asked.repeat + 1):
            for at, contender in enumerate(bench.contenders):
                place = bench.place(
                    f"sinks-{turn}-{contender.name}",
                    Shape("changes", ROOT / "benchmarks", "", CHANGES.judge),
                )
                place.deliver(files)
                name = f"bench_{os.getpid()}_{turn}_{at}"
                named = _written(place, servers.sinks(contender, name))
                run = replace(contender, run=_run)
                sample = bench.judged(run, place, bench.must(run, named, _KIND, turn))
                samples.append(
                    _agreeing(sample, servers.wrong(contender, name, _rows(place)), place)
                )
    return samples


def _written(place: Place, sinks: Mapping[str, Any]) -> Place:
    """Write the pipeline with the sinks, a file per batch."""
    content = yaml.safe_load((ROOT / "benchmarks" / "pipelines" / "changes.yaml").read_text())
    flow = content["flows"]["changes"]
    flow["source"]["max_files_per_trigger"] = 1
    flow |= {"sinks": dict(sinks)} if sinks else {}
    del flow["expectations"]
    pipeline = place.home / "changes.yaml"
    pipeline.write_text(json.dumps(content))
    return replace(place, shape=replace(place.shape, pipeline=str(pipeline)))


def _run(place: Place) -> Any:
    secret = {"DRAINDOWN_SECRET_PG": WORD}
    return measured(
        draindown(place, "--no-check", "--no-compact"), place.environment() | secret, place.home
    )


def _rows(place: Place) -> dict[Any, Any]:
    rows = Table(str(place.table)).rows(f"select {', '.join(_COLUMNS)} from t")
    return {
        (str(row["event_date"]), row["order_id"]): [row["status"], row["amount"]] for row in rows
    }


def _agreeing(sample: Sample, wrong: str, place: Place) -> Sample:
    """Return the sample with the seconds of its batches after the first, which warms the JVM up."""
    ledger = Table(str(place.lake / "ledger" / "changes")).rows(
        "select seconds from t order by batch"
    )
    if len(ledger) != FILES:
        raise Failed(
            f"{count(len(ledger), 'batch', 'batches')} in {place.home}, not {FILES}: {result(place)}"
        )
    later = [row["seconds"] for row in ledger[1:]]
    found = replace(sample, facts={"batch": sum(later) / len(later), "first": ledger[0]["seconds"]})
    return replace(found, verdict=f"{wrong} not as the table") if wrong else found


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    rows: list[Row] = []
    for contender in WORK.contenders:
        row: Row = {"": contender.name}
        for what, title in (
            ("batch", "a batch, s"),
            ("first", "the first, s"),
            ("wall_s", "wall, s"),
            ("cpu_s", "CPU s"),
        ):
            ours, plain = (median(of(samples, _KIND, one.name), what) for one in (contender, DRAIN))
            row |= {
                title: ours,
                f"{title} more": round(ours - plain, 2) if ours and plain else None,
            }
        rows.append(row)
    return [
        Finding(f"What sinks add to batches of {ROWS:,} rows; all hold what the table does", rows)
    ]


WORK = Work(
    "sinks",
    f"{FILES} files of {ROWS:,} changes, a batch each, to the table alone, and to sinks beside it",
    _measure,
    (DRAIN, POSTGRES, KAFKA, ONCE, BOTH),
    Asked(repeat=3),
    findings=_findings,
)
