"""The pipelines of examples/sinks, as a user runs them: topics and table are what an independent
fold computes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from draindown.config.loader import load
from draindown.lake.home import FlowHome
from examples.sinks import oracle, payments
from examples.user_events.events import PARTITIONS, send
from scripts.postgres_server import USER, WORD, PostgresServer, public_directory, server
from tests.kafka.cluster import Cluster
from tests.kafka.test_sink import read

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/sinks"


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    home = public_directory()
    with server(home / "pg") as found:
        found.execute(payments.TABLE)
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
    done = subprocess.run(
        command, env=known, cwd=home, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("name", ["shop_events", "payments"])
def test_the_examples_are_valid(name: str) -> None:
    assert load(EXAMPLES / f"{name}.yaml", {}).pipeline == name


@pytest.mark.long
@pytest.mark.timeout(600)
def test_events_windows_and_dead_letters(tmp_path: Path, own_broker: Cluster) -> None:
    for topic in (oracle.DEAD, oracle.WINDOWS):
        own_broker.create(topic, PARTITIONS)
    for count in (1500, 3000):  # windows that were sent change with the second half
        send(own_broker.address, count)
        run(tmp_path, "shop_events", {"DRAINDOWN_KAFKA": own_broker.address})
    found = oracle.compare(own_broker.address)
    assert found.differences == () and found.windows > 3 and found.dead > 5
    layout = FlowHome(str(tmp_path / "lake"), "shop_events", "events", "events")
    refused = {row["quarantine_id"] for row in layout.tables.quarantine.rows("select * from t")}
    assert {message.key().decode() for message in read(own_broker, oracle.DEAD)} == refused


@pytest.mark.long
@pytest.mark.timeout(600)
def test_flagged_payments_are_alerts_until_they_are_cleared(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = f"postgresql://{USER}:{quote(WORD, safe='')}@127.0.0.1:{postgres.port}/postgres"
    environ = {"DRAINDOWN_SECRET_ALERTS_URL": url, "DRAINDOWN_LANDING": str(tmp_path / "landing")}
    for day in (1, 2):
        payments.write(tmp_path / "landing/payments", day, 40)
        run(tmp_path, "payments", environ)
        found = set(postgres.execute("select id, amount, country from alerts"))
        assert found == payments.flagged(tmp_path / "landing/payments") and 5 < len(found) < 40
