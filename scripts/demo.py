"""The demo: drain a year of real flights through the Airflow DAG, verify every row, show the
result.

`DRAINDOWN_DEMO_FRACTION` (0 to 1) is the share of the flights; `DRAINDOWN_DEMO_HOME` is the
directory of landing and lake.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from shlex import quote

from demo_run import HOME, LAKE, ROOT, DemoRun, Question, say

sys.path.insert(0, str(ROOT))  # for `examples`, which is not in the package

from draindown.base.errors import DraindownError
from draindown.base.exits import Exit, exit_for
from draindown.lake.home import FlowHome
from examples.flights.events import generate
from examples.flights.oracle import compare

PIPELINE = "flights"
LANDING = HOME / "landing"
CLUSTER = "--cluster"


def main(arguments: list[str]) -> int:
    """Run the whole demo, with `--cluster` on a Spark cluster. Return 0 only if the oracle finds
    every row correct.
    """
    try:
        with _cluster() if CLUSTER in arguments else nullcontext({}) as settings:
            again = "make demo-cluster" if settings else "make demo"
            return demo(
                DemoRun(
                    PIPELINE,
                    {"DRAINDOWN_LANDING": str(LANDING)} | settings,
                    HOME / "airflow.log",
                    again,
                )
            )
    except DraindownError as error:
        print(error, file=sys.stderr)
        return int(exit_for(error))


@contextmanager
def _cluster() -> Iterator[dict[str, str]]:
    """Start a cluster, and yield what lets Airflow's tasks run on it. End it with the block."""
    from spark_cluster import SparkCluster

    say(f"A Spark cluster of two workers of its own in {HOME / 'cluster'}")
    cluster = SparkCluster(HOME / "cluster", memory=1536)
    try:
        address = cluster.start().address
        print(f"  {address}")
        connection = json.dumps({"conn_type": "spark", "host": address})
        yield {
            "AIRFLOW_CONN_SPARK_DEFAULT": connection,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "DRAINDOWN_MASTER": address,
        }
    finally:
        cluster.stop()


def demo(run: DemoRun) -> int:
    """Deliver the events, drain what waits through the DAG, and compare. Return the exit code."""
    started = time.monotonic()
    prepare()
    run.begin_lake()
    if not run.has_work():
        print(
            f"Nothing to do: every file of {LANDING} is drained, checked and published, and what follows from it."
        )
        if run.is_proven():
            say_what_next()
            return int(Exit.DONE)
        return proven(run, started)
    run.through_airflow()
    run.show(_questions(run.layouts()))
    return proven(run, started)


def prepare() -> None:
    """Write the events if they are missing."""
    fraction = float(os.environ.get("DRAINDOWN_DEMO_FRACTION") or 1)
    say(f"Events of 2013 in {LANDING}")
    made = generate(LANDING, fraction, progress=_every_tenth)
    print(
        f"  {made.events:,} events of {made.keys + made.withdrawn:,} flights in {len(made.files)} files"
    )


def _questions(layouts: Mapping[str, FlowHome]) -> list[Question]:
    flights = layouts["flights"]
    return [
        (
            "Busiest airports",
            flights.tables.target.path,
            "select origin as airport, count(*) as flights, round(avg(dep_delay), 1) as mean_delay_min "
            "from t group by origin order by flights desc",
        ),
        (
            "Worst hours (table departures_hourly, a window over flights)",
            layouts["departures_hourly"].tables.target.path,
            "select window_start as hour_utc, origin as airport, flights, airlines, worst as worst_delay_min, "
            "round(delay / 60.0, 1) as delay_hours from t order by delay desc nulls last, window_start limit 5",
        ),
        (
            "Worst months of an airline (table carrier_month, a query per month and airline; 20 flights or more)",
            layouts["carrier_month"].tables.target.path,
            "select flight_month as month, carrier, flights, cancelled, round(mean_delay, 1) as mean_delay_min, "
            "worst as worst_flight from t where flights >= 20 order by mean_delay desc nulls last, month limit 5",
        ),
        (
            "Quarantined, by reason",
            flights.tables.quarantine.path,
            "select reason, count(*) as rows, min(raw) as example from t group by reason order by rows desc, reason",
        ),
    ]


def proven(run: DemoRun, started: float) -> int:
    """Compare tables and quarantine with what an independent implementation computes from the
    landing files.
    """
    say("Every row against the oracle, which reads the landing files by itself")
    found = compare(LAKE, LANDING, derived=True)
    print(found.as_text())
    if not found.ok:
        print(f"A table is WRONG. Look: .venv/bin/draindown audit {PIPELINE}", file=sys.stderr)
        return int(Exit.FINDINGS)
    run.keep_proof()
    print(f"Done in {time.monotonic() - started:.0f} s.")
    say_what_next()
    return int(Exit.DONE)


def say_what_next() -> None:
    """Print what to try next."""
    print(
        "\nTry next:\n"
        "  make up                                            the Airflow UI; make down stops it\n"
        f"  .venv/bin/python -m examples.flights.events {quote(str(LANDING))} --more\n"
        "                                                     one more day of events; then make demo again\n"
        f"  export DRAINDOWN_LAKE={quote(str(LAKE))} DRAINDOWN_LANDING={quote(str(LANDING))}\n"
        f"  .venv/bin/draindown audit {PIPELINE}                   recount every row from the raw files,\n"
        "                                                    recompute both derived tables with another engine\n"
        f"  .venv/bin/draindown quarantine list {PIPELINE}         what was refused, and why"
    )


def _every_tenth(done: int, of: int) -> None:
    if done == of or done % max(1, of // 10) == 0:
        print(f"  {done} of {of} files", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
