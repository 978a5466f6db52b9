"""The demo of Kafka: start a broker, write a shop's events, drain them through the Airflow DAG,
verify every row, and drain them once more with sinks.

`DRAINDOWN_DEMO_RECORDS` is the number of events; `DRAINDOWN_DEMO_HOME` is the directory of broker
and lake. The broker listens on loopback, runs as this user and ends with the demo; its topic stays.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from shlex import quote

from demo_run import HOME, LAKE, ROOT, DemoRun, Question, say
from kafka_broker import Broker

sys.path.insert(0, str(ROOT))  # for `examples`, which is not in the package

from demo_sinks import alerts, events

from draindown.base.errors import DraindownError
from draindown.base.exits import Exit, exit_for
from draindown.lake.home import FlowHome
from examples.user_events.events import COUNT, TOPIC, send
from examples.user_events.oracle import compare

PIPELINE, BROKERS = "user_events", "DRAINDOWN_KAFKA"
BROKER = HOME / "kafka"


def main() -> int:
    """Run the whole demo. Return 0 only if the oracle finds every row correct."""
    started = time.monotonic()
    broker = Broker(BROKER)
    try:
        say(f"A broker of its own in {BROKER}")
        address = broker.start().address
        run = DemoRun(
            PIPELINE, {BROKERS: address}, HOME / f"airflow-{PIPELINE}.log", "make demo-kafka"
        )
        print(f"  {address}; topic {TOPIC}")
        sent = send(address, int(os.environ.get("DRAINDOWN_DEMO_RECORDS") or COUNT))
        print(f"  {sent:,} events written")
        return drained(run, started)
    except DraindownError as error:
        print(error, file=sys.stderr)
        return int(exit_for(error))
    finally:
        broker.stop()


def drained(run: DemoRun, started: float) -> int:
    """Drain what waits and show it. Return 0 if there is nothing to do, or if the oracle finds
    every row correct.
    """
    run.begin_lake()
    if not run.has_work():
        print(f"Nothing to do: every record of topic {TOPIC} is drained, checked and published.")
        if run.is_proven():
            say_what_next(run)
            return int(Exit.DONE)
        return proven(run, started)
    show_status(run, "before")
    run.through_airflow()
    run.show(_questions(run.layouts()[PIPELINE]))
    show_status(run, "after")
    return proven(run, started)


def show_status(run: DemoRun, when: str) -> None:
    """Print what `draindown status` says."""
    say(f"Status {when} the run")
    subprocess.run(
        [sys.executable, "-m", "draindown.cli", "status", PIPELINE],
        env=run.environ,
        cwd=ROOT,
        check=True,
    )


def _questions(layout: FlowHome) -> list[Question]:
    return [
        (
            "What users did",
            layout.tables.target.path,
            "select event, count(*) as events, count(distinct user_id) as users, sum(amount) as amount "
            "from t group by event order by events desc, event",
        ),
        (
            "Quarantined, by reason; each with partition and offset of one",
            layout.tables.quarantine.path,
            "select reason, coalesce(field, '') as column, count(*) as records, "
            "min(concat(origin.input, ' at ', cast(origin.position as varchar))) as one_of_them "
            "from t group by reason, field order by records desc, reason, field",
        ),
    ]


def proven(run: DemoRun, started: float) -> int:
    """Compare table and quarantine with what an independent implementation computes from the
    topic.
    """
    say("Every row against the oracle, which reads the topic by itself")
    found = compare(str(LAKE), run.settings[BROKERS])
    print(found.as_text())
    if not found.ok:
        print(f"The table is WRONG. Look: .venv/bin/draindown audit {PIPELINE}", file=sys.stderr)
        return int(Exit.FINDINGS)
    if not all((events(run.settings[BROKERS]), alerts())):
        print("What the sinks hold is WRONG.", file=sys.stderr)
        return int(Exit.FINDINGS)
    run.keep_proof()
    print(
        f"Done in {time.monotonic() - started:.0f} s. The broker stays if it ran before; so does its topic."
    )
    say_what_next(run)
    return int(Exit.DONE)


def say_what_next(run: DemoRun) -> None:
    """Print what to try next."""
    print(
        "\nTry next:\n"
        f"  DRAINDOWN_DEMO_RECORDS=150000 make demo-kafka          half as many events again\n"
        f"  .venv/bin/python scripts/kafka_broker.py up {quote(str(BROKER))}   start it; down: stop it\n"
        f"  export DRAINDOWN_LAKE={quote(str(LAKE))} {BROKERS}={run.settings[BROKERS]}\n"
        f"  .venv/bin/draindown quarantine list {PIPELINE}         what was refused, and why\n"
        f"  .venv/bin/draindown audit {PIPELINE}                   whether table, ledger and quarantine agree"
    )


if __name__ == "__main__":
    sys.exit(main())
