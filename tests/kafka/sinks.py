"""A flow with four sinks: two tables of Postgres, a topic that gets batches at least once, and one
that gets them once.

`differences` says in what they are not as the table. Drivers that die or wait in a gap of a batch
have a process of their own.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from draindown.ledger.rows import SINK_FATES
from scripts.postgres_server import USER, WORD, PostgresServer, public_directory, server
from tests.kafka.cluster import Cluster
from tests.kafka.test_sink import PAGE, by_recipe, read
from tests.landing import Landing

BATCHES, KEYS = 3, 12
SINKS = ("alerts", "events", "mirror", "once")
STEPS = [
    f"{step}-{name}" for name in SINKS for step in ("counted", "noted", "portion", "taken", "sent")
]
GAPS = ["connecting", "remembered", *STEPS, "merged", "recorded"]
TARGET = {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"}
COLUMNS = {"id": "bigint not null", "seq": "int not null", "op": "string", "amount": "int"}
FLAGGED = 50
SECRET = {"DRAINDOWN_SECRET_PG": WORD}


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """A server without tables, which the sinks' user may write to."""
    home = public_directory()
    with server(home / "pg") as found:
        found.execute(f"grant usage, create on schema public to {USER}")
        yield found
    shutil.rmtree(home, ignore_errors=True)


def flow_of(
    home: Path, cluster: Cluster, topic: str, postgres: PostgresServer, **more: Any
) -> Landing:
    """A flow whose sinks are all named by `topic`. Three files wait in `deliver`ed order, a batch
    each.
    """
    for name in (topic, f"{topic}-once"):
        cluster.create(name, 1)
    for name in ("alerts", "mirror"):
        postgres.execute(f"create table {topic}_{name} (id bigint primary key, amount integer)")
        postgres.execute(f"grant select, insert, update, delete on {topic}_{name} to {USER}")

    def table(name: str, **condition: str) -> dict[str, Any]:
        return {
            "postgres": {"url": postgres.url(), "table": f"{topic}_{name}"},
            **condition,
        }

    brokers = {"bootstrap_servers": cluster.address}
    once = {"topic": f"{topic}-once", "marker_topic": f"{topic}-markers"}
    sinks = {
        "alerts": table("alerts", where=f"amount > {FLAGGED}"),
        "events": {"kafka": {"topic": topic, **brokers}},
        "mirror": table("mirror"),
        "once": {"kafka": {**once, **brokers, "delivery": "exactly_once"}},
    }
    sinks = {name: {**sink, "columns": ["id", "amount"]} for name, sink in sinks.items()}
    source = {"max_files_per_trigger": 1}
    return Landing(home, source=source, columns=COLUMNS, target=TARGET, sinks=sinks, **more)


def deliver(flow: Landing, chance: random.Random, number: int) -> None:
    """Each row is another state of its key; in every batch a row enters and leaves what is sent to
    alerts.
    """
    rows = [
        (id_, chance.choice(["u", "u", "u", "d"]), chance.randrange(100))
        for id_ in chance.sample(range(KEYS), 6)
    ]
    rows += [(100, "u", 90 * (number % 2)), (101, "u", 90 * (1 - number % 2))]
    lines = [
        json.dumps({"id": i, "seq": number, "op": op, "amount": amount}) for i, op, amount in rows
    ]
    flow.deliver(*lines)


def killed(flow: Landing, notes: Path, place: tuple[str, int] | None) -> int:
    """Drain in a process of its own, which dies at `place`. Return its exit code."""
    notes.mkdir()
    entry = {"request": flow.request(notes.name).encode(), "home": str(notes), "place": place}
    plan = notes / "plan.json"
    plan.write_text(json.dumps([entry]))
    command = [sys.executable, "-m", "draindown.spark.job.fault_driver", str(plan)]
    with (notes / "log").open("wb") as log:
        done = subprocess.run(
            command, stdout=log, stderr=log, env=os.environ | SECRET, check=False, timeout=300
        )
    assert (
        (done.returncode == -signal.SIGKILL) == (place is not None) == (notes / "fired").exists()
    ), (
        place,
        (notes / "log").read_text()[-3000:],
    )
    return done.returncode


def by_sql(postgres: PostgresServer, messages: Sequence[Any]) -> dict[bytes, Any]:
    """Apply messages as the page has it for SQL. A second pass over the same messages finds nothing
    new.
    """
    (text,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    made, once = text.strip().split(";\n", 1)
    schema = postgres.new_name()
    postgres.execute(f"create schema {schema}")
    with postgres.admin() as opened:
        opened.execute(f"set search_path = {schema}".encode())
        opened.execute(
            "create table messages (id text, key bytea, value bytea, partition int, at_offset bigint)"
        )
        opened.execute(made.encode())
        for one in messages:
            id_ = dict(one.headers())["id"].decode()
            found = (id_, one.key(), one.value(), one.partition(), one.offset())
            opened.execute("insert into messages values (%s, %s, %s, %s, %s)", found)
        rows: dict[bytes, Any] = {}
        for _, key, value, _, _ in sorted(
            opened.execute(once.encode()).fetchall(), key=lambda row: row[3:]
        ):
            if value is None:
                rows.pop(bytes(key), None)
            else:
                rows[bytes(key)] = json.loads(bytes(value))
        assert opened.execute(once.encode()).fetchall() == []
    return rows


def differences(flow: Landing, cluster: Cluster, topic: str, postgres: PostgresServer) -> list[str]:
    """Return in what the sinks and the ledger are not as the table. The first topic is read by its
    recipes.
    """
    table = {row["id"]: row["amount"] for row in flow.rows("id, amount")}
    rows = [row | {"sinks": json.loads(row["sinks"])} for row in flow.ledger()]
    wanted = {str(id_).encode(): {"id": id_, "amount": amount} for id_, amount in table.items()}
    flagged = {
        id_: amount for id_, amount in table.items() if amount is not None and amount > FLAGGED
    }
    often, once = read(cluster, topic), read(cluster, f"{topic}-once", committed=True)
    checks = {
        "the table has a row of each batch": 100 in table,
        "each batch is in the ledger once": [row["batch"] for row in rows] == list(range(BATCHES)),
        "mirror": dict(postgres.execute(f"select id, amount from {topic}_mirror")) == table,
        "alerts": dict(postgres.execute(f"select id, amount from {topic}_alerts")) == flagged,
        "the topic by the recipe in Python": by_recipe(often) == wanted,
        "the topic by the recipe in SQL": by_sql(postgres, often) == wanted,
        "messages of the topic, by id": len({*map(_id, often)}) == _told(rows, "events"),
        "the topic that gets batches once, without a recipe": _plain(once) == wanted,
        "its messages": len(once) == len({*map(_id, once)}) == _told(rows, "once"),
        "its order of batches": [_batch(one) for one in once] == sorted(map(_batch, once)),
        "the ledger adds up": all(
            sum(row["sinks"][name][fate] for fate in SINK_FATES) == row["applied"]
            for row, name in chain.from_iterable(((row, name) for name in SINKS) for row in rows)
        ),
    }
    return [what for what, holds in checks.items() if not holds]


def _told(rows: Sequence[dict[str, Any]], name: str) -> int:
    return sum(row["sinks"][name][fate] for row in rows for fate in ("sent", "deleted"))


def _id(message: Any) -> bytes:
    return bytes(dict(message.headers())["id"])


def _batch(message: Any) -> int:
    return int(dict(message.headers())["batch"])


def _plain(messages: Sequence[Any]) -> dict[bytes, Any]:
    rows: dict[bytes, Any] = {}
    for message in messages:
        if message.value() is None:
            rows.pop(message.key(), None)
        else:
            rows[message.key()] = json.loads(message.value())
    return rows
