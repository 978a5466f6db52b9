"""The contract of sinks, over a sink in memory and over Postgres, and random histories over the one
in memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from scripts.postgres_server import WORD, PostgresServer
from tests.sinks import contract
from tests.sinks.contract import PLACE, Bench
from tests.sinks.fake import FakeServer, FakeSink


def fake() -> Bench:
    server = FakeServer()
    return Bench(
        lambda: FakeSink(server, PLACE),
        lambda: {key: (r["name"], r["note"]) for (key,), r in server.rows.items()},
    )


def of_postgres(server: PostgresServer) -> Bench:
    from draindown.config.postgres_sink import PostgresSink
    from draindown.sinks.postgres.sink import PostgresTable

    schema = server.new_name()
    server.execute(f"create schema {schema} authorization loader")
    server.execute(f"create table {schema}.alerts (id bigint primary key, name text, note text)")
    server.execute(f"grant select, insert, update, delete on {schema}.alerts to loader")
    spec = PostgresSink(url=server.url(), table=f"{schema}.alerts")
    return Bench(
        lambda: PostgresTable(spec, PLACE, {"DRAINDOWN_SECRET_PG": WORD}),
        lambda: {
            key: (name, note)
            for key, name, note in server.execute(f"select id, name, note from {schema}.alerts")
        },
    )


@pytest.mark.parametrize("rule", contract.EVERY)
def test_contract_of_the_sink_in_memory(rule: Callable[[Bench], None]) -> None:
    rule(fake())


@pytest.mark.parametrize("rule", contract.EVERY)
def test_contract_of_postgres(rule: Callable[[Bench], None], postgres: PostgresServer) -> None:
    rule(of_postgres(postgres))


class Killed(BaseException):
    """The sender ends at this step."""


def test_any_history_of_crashes_and_retries_ends_as_the_batches_say() -> None:
    """Each history is batches of random rows, sent in order; a crash at a random step, then the
    same batch again.
    """
    for seed in range(2_000):
        chance, server, wanted, crashes = random.Random(seed), FakeServer(), {}, 0
        bench = Bench(lambda s=server: FakeSink(s, PLACE), dict)
        for number in range(chance.randint(1, 5)):
            rows = contract.upserts(
                {key: (str(chance.random()), None) for key in chance.sample(range(8), 3)}
            )
            rows += contract.deletes(*chance.sample(range(8, 12), 2))
            gone = chance.sample(range(8), 1)
            rows = [row for row in rows if row["id"] not in gone] + contract.deletes(*gone)
            for epoch in range(number * 10, number * 10 + chance.randint(1, 4)):
                _dies_at(server, chance.randint(0, 12))
                try:
                    contract.send(bench, number, rows, epoch)
                except Killed:
                    crashes += 1
            server.fault = lambda step: None
            contract.send(bench, number, rows, number * 10 + 9)
            wanted = {key: row for key, row in wanted.items() if key not in {r["id"] for r in rows}}
            wanted |= {row["id"]: row["name"] for row in rows if row["_fate"] == "upsert"}
            assert {key: row["name"] for (key,), row in server.rows.items()} == wanted
            assert server.sent == number + 1, "each batch is applied once"
        assert seed or crashes


def _dies_at(server: FakeServer, step: int) -> None:
    left = [step]

    def fault(name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed(name)

    server.fault = fault
