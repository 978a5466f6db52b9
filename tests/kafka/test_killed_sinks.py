"""kill -9 between the steps of batches with three sinks: the table, two of Postgres, a topic and the ledger agree.

The topic is read by the recipes of docs/kafka-sink.md; what it holds twice has the same id.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from draindown.ledger.rows import SINK_FATES
from tests.kafka.cluster import Cluster
from tests.kafka.test_sink import PAGE, by_recipe, read
from tests.landing import Landing
from tests.sinks.postgres_server import USER, WORD, PostgresServer, public_directory, server

SEEDS, BATCHES, KEYS = 3, 3, 12
SINKS = ("alerts", "events", "mirror")
STEPS = [f"{step}-{name}" for name in SINKS for step in ("counted", "noted", "portion", "taken", "sent")]
GAPS = ["connecting", "remembered", *STEPS, "merged", "recorded"]
TARGET = {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"}
COLUMNS = {"id": "bigint not null", "seq": "int not null", "op": "string", "amount": "int"}


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    home = public_directory()
    monkeypatch.setenv("DRAINDOWN_SECRET_PG", WORD)
    with server(home / "pg") as found:
        for name in ("alerts", "mirror"):
            found.execute(f"create table {name} (id bigint primary key, amount integer)")
            found.execute(f"grant select, insert, update, delete on {name} to {USER}")
        found.execute(f"grant usage, create on schema public to {USER}")
        yield found
    shutil.rmtree(home, ignore_errors=True)


def flow_of(home: Path, cluster: Cluster, topic: str, postgres: PostgresServer) -> Landing:
    cluster.create(topic, 1)
    columns = ["id", "amount"]
    also_to = {
        "alerts": {"postgres": {"url": postgres.url(), "table": "alerts", "create": True}, "where": "amount > 50"},
        "events": {"kafka": {"topic": topic, "bootstrap_servers": cluster.address}},
        "mirror": {"postgres": {"url": postgres.url(), "table": "mirror", "create": True}},
    }
    sinks = {name: {**sink, "columns": columns} for name, sink in also_to.items()}
    source = {"max_files_per_trigger": 1}
    return Landing(home, source=source, columns=COLUMNS, target=TARGET, also_to=sinks)


def deliver(flow: Landing, chance: random.Random, number: int) -> None:
    """Each row is another state of its key; in every batch a row enters and leaves what is sent to alerts."""
    rows = [(id_, chance.choice(["u", "u", "u", "d"]), chance.randrange(100)) for id_ in chance.sample(range(KEYS), 6)]
    rows += [(100, "u", 90 * (number % 2)), (101, "u", 90 * (1 - number % 2))]
    lines = [json.dumps({"id": i, "seq": number, "op": op, "amount": amount}) for i, op, amount in rows]
    flow.deliver(*lines)


def drain(flow: Landing, notes: Path, place: tuple[str, int] | None) -> int:
    """Drain in a process of its own, which dies at `place`. Return its exit code."""
    notes.mkdir()
    entry = {"request": flow.request(notes.name).encode(), "home": str(notes), "place": place}
    plan = notes / "plan.json"
    plan.write_text(json.dumps([entry]))
    command = [sys.executable, "-m", "draindown.spark.job.fault_driver", str(plan)]
    with (notes / "log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=dict(os.environ), check=False, timeout=300)
    assert (done.returncode == -signal.SIGKILL) == (place is not None) == (notes / "fired").exists(), (
        place,
        (notes / "log").read_text()[-3000:],
    )
    return done.returncode


def by_sql(postgres: PostgresServer, messages: list[Any]) -> dict[bytes, Any]:
    """Apply messages as the page has it for SQL. A second pass over the same messages finds nothing new."""
    (text,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    made, once = text.strip().split(";\n", 1)
    postgres.execute("create table messages (id text, key bytea, value bytea, partition int, at_offset bigint)")
    postgres.execute(made)
    for one in messages:
        id_ = dict(one.headers())["id"].decode()
        found = (id_, one.key(), one.value(), one.partition(), one.offset())
        postgres.execute("insert into messages values (%s, %s, %s, %s, %s)", *found)
    rows: dict[bytes, Any] = {}
    for _, key, value, _, _ in sorted(postgres.execute(once), key=lambda row: row[3:]):
        if value is None:
            rows.pop(bytes(key), None)
        else:
            rows[bytes(key)] = json.loads(bytes(value))
    assert postgres.execute(once) == []
    return rows


def dealt(seed: int, seeds: int = SEEDS) -> list[tuple[str, int]]:
    """The gaps of a seed, in order of their batches. All seeds together have every gap."""
    mine = GAPS[seed::seeds]
    return sorted(((step, at % BATCHES) for at, step in enumerate(mine)), key=lambda one: one[1])


def test_every_gap_has_its_turn() -> None:
    assert {step for seed in range(SEEDS) for step, _ in dealt(seed)} == set(GAPS)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_table_sinks_and_ledger_agree_after_kills(
    tmp_path: Path, cluster: Cluster, topic: str, postgres: PostgresServer, seed: int
) -> None:
    chance = random.Random(seed)
    flow = flow_of(tmp_path / "project", cluster, topic, postgres)
    for number in range(BATCHES):
        deliver(flow, chance, number)
    places = [*dealt(seed), None]
    for at, place in enumerate(places):
        drain(flow, tmp_path / f"run{at}", place)
    table = {row["id"]: row["amount"] for row in flow.rows("id, amount")}
    assert DeltaTable(flow.layout.table).version() >= BATCHES and 100 in table
    assert dict(postgres.execute("select id, amount from mirror")) == table
    flagged = {id_: amount for id_, amount in table.items() if amount is not None and amount > 50}
    assert dict(postgres.execute("select id, amount from alerts")) == flagged
    messages = read(cluster, topic)
    wanted = {str(id_).encode(): {"id": id_, "amount": amount} for id_, amount in table.items()}
    assert by_recipe(messages) == wanted
    assert by_sql(postgres, messages) == wanted
    ids = [dict(one.headers())["id"] for one in messages]
    rows = [row | {"sinks": json.loads(row["sinks"])} for row in flow.ledger()]
    told = sum(row["sinks"]["events"][fate] for row in rows for fate in ("sent", "deleted"))
    assert len(set(ids)) == told, "what is there twice has the same id, and nothing else is there"
    again = {step for step, _ in dealt(seed)} & {"taken-events"}
    assert len(ids) > len(set(ids)) if again else len(ids) >= len(set(ids))
    assert [row["batch"] for row in rows] == list(range(BATCHES)), "each batch once"
    for row, name in chain.from_iterable(((row, name) for name in SINKS) for row in rows):
        counts = row["sinks"][name]
        assert sum(counts[fate] for fate in SINK_FATES) == row["applied"]
