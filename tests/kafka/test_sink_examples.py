"""The pipelines of examples/sinks, as a user runs them: topics and table are what an independent fold computes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog
from draindown.spec.loader import load
from examples.user_events.events import PARTITIONS, TOPIC, send
from tests.kafka.cluster import Cluster
from tests.kafka.test_sink import by_recipe, read
from tests.sinks.postgres_server import USER, WORD, PostgresServer, public_directory, server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/sinks"


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    home = public_directory()
    with server(home / "pg") as found:
        found.execute("create table alerts (id text primary key, amount numeric(12,2), country text, at timestamptz)")
        found.execute(f"grant select, insert, update, delete on alerts to {USER}")
        found.execute(f"grant usage, create on schema public to {USER}")
        yield found
    shutil.rmtree(home, ignore_errors=True)


def run(home: Path, name: str, environ: Mapping[str, str]) -> None:
    """Type `draindown run`, in a project of its own."""
    place = home / "dags/pipelines"
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(EXAMPLES / f"{name}.yaml", place)
    command = [sys.executable, "-m", "draindown.cli", "--root", str(home), "run", name]
    known = {**os.environ, "DRAINDOWN_LAKE": str(home / "lake"), **environ}
    done = subprocess.run(command, env=known, cwd=home, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("name", ["shop_events", "payments"])
def test_the_examples_are_valid(name: str) -> None:
    assert load(EXAMPLES / f"{name}.yaml", {}).pipeline == name


@pytest.mark.long
@pytest.mark.timeout(600)
def test_events_windows_and_dead_letters(tmp_path: Path, own_broker: Cluster) -> None:
    for topic in ("user-events-dead", "user-events-5m"):
        own_broker.create(topic, PARTITIONS)
    for count in (1500, 3000):  # windows that were sent change with the second half
        send(own_broker.address, count)
        run(tmp_path, "shop_events", {"DRAINDOWN_KAFKA": own_broker.address})
    assert len(read(own_broker, TOPIC)) == 3000
    events = TableLog(FlowLayout(str(tmp_path / "lake"), "shop_events", "events", "events").table).rows(
        "select * from t"
    )
    windows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in events:
        at: datetime = row["happened_at"].astimezone(UTC)
        start = at - timedelta(minutes=at.minute % 5, seconds=at.second, microseconds=at.microsecond)
        windows.setdefault((start.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), row["event"]), []).append(row)
    found = {(row["window_start"], row["event"]): row for row in by_recipe(read(own_broker, "user-events-5m")).values()}
    assert found.keys() == windows.keys() and len(found) > 3
    for key, rows in windows.items():
        amounts = [row["amount"] for row in rows if row["amount"] is not None]
        told = found[key]
        assert (told["events"], told["users"]) == (len(rows), len({row["user_id"] for row in rows}))
        assert told["amount"] == (str(sum(amounts)) if amounts else None)
        assert (told["mean"] is None) == (not amounts)
        if amounts:
            assert abs(Decimal(str(told["mean"])) - sum(amounts) / len(amounts)) < Decimal("0.000001")
    layout = FlowLayout(str(tmp_path / "lake"), "shop_events", "events", "events")
    refused = {row["quarantine_id"]: row["reason"] for row in TableLog(layout.quarantine).rows("select * from t")}
    dead = read(own_broker, "user-events-dead")
    told = {message.key().decode(): json.loads(message.value())["reason"] for message in dead}
    assert told == refused and len(dead) == len(refused) > 5


@pytest.mark.long
@pytest.mark.timeout(600)
def test_flagged_payments_are_alerts_until_they_are_cleared(tmp_path: Path, postgres: PostgresServer) -> None:
    url = f"postgresql://{USER}:{quote(WORD, safe='')}@127.0.0.1:{postgres.port}/postgres"
    environ = {"DRAINDOWN_SECRET_ALERTS_URL": url, "DRAINDOWN_LANDING": str(tmp_path / "landing")}
    (tmp_path / "landing/payments").mkdir(parents=True)
    newest: dict[str, dict[str, Any]] = {}
    for day in (1, 2):
        lines = []
        for number in range(40):
            row = {
                "payment_id": f"p{number}",
                "amount": f"{number * 700 % 20000 + day}.50",
                "country": ("de", "fr")[number % 2],
                "card_country": ("de", "de", "fr")[number % 3],
                "state": ("open", "cleared")[(number + day) % 4 == 0],
                "at": f"2026-01-0{day}T00:00:00Z",
            }
            newest[str(row["payment_id"])] = row
            lines.append(json.dumps(row))
        (tmp_path / f"landing/payments/{day}.json").write_text("\n".join(lines) + "\n")
        run(tmp_path, "payments", environ)
        wanted = {
            (row["payment_id"], Decimal(row["amount"]), row["country"])
            for row in newest.values()
            if row["state"] != "cleared" and (Decimal(row["amount"]) > 10000 or row["country"] != row["card_country"])
        }
        assert set(postgres.execute("select id, amount, country from alerts")) == wanted
