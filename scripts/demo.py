"""The demo: drain a year of real flights through the Airflow DAG, verify every row, show the result.

`DRAINDOWN_DEMO_FRACTION` (0 to 1) is the share of the flights; `DRAINDOWN_DEMO_HOME` is the directory of landing and
lake.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import airflow_local

sys.path.insert(0, str(airflow_local.ROOT))  # for `examples`, which is not in the package

from draindown.base import clock
from draindown.base.errors import DraindownError, TerminalError
from draindown.base.exits import Exit, exit_for
from draindown.runs import store
from draindown.runs.request import STEPS, Request
from draindown.spec.loader import load
from draindown.spec.project import rooted, suite
from examples.flights.events import generate
from examples.flights.oracle import compare

if TYPE_CHECKING:
    from draindown.spec.models import PipelineSpec

ROOT = airflow_local.ROOT
PIPELINE = "flights"
HOME = Path(os.environ.get("DRAINDOWN_DEMO_HOME") or ROOT / "demo").resolve()
LANDING, LAKE = HOME / "landing", HOME / "lake"
LOG = HOME / "airflow.log"
# The output of Spark and Airflow goes to the log; only draindown's own lines are shown.
_TASK = re.compile(r"\[DAG TEST\] (?:starting|end) task_id=(\S+)")
_LOGGER = re.compile(r"\s+\[airflow\.task[\w.]*\].*$")
_OWN_LINE = re.compile(r"(?:^|\s)((?:batch \d|[\d,]+ of [\d,]+ files|[\d,]+ files? waiting|waiting: ).*)")


def main() -> int:
    """Run the whole demo. Return 0 only if the oracle finds every row correct."""
    started = time.monotonic()
    try:
        requests = prepared()
        if not any(has_work(request) for request in requests):
            print(
                f"Nothing to do: every file of {LANDING} is drained, checked and published, and what follows from it."
            )
            say_what_next()
            return int(Exit.DONE)
        through_airflow()
        show(requests)
        return proven(started)
    except DraindownError as error:
        print(error, file=sys.stderr)
        return int(exit_for(error))


def prepared() -> list[Request]:
    """Write the events if they are missing, and return a request for each flow of the pipeline, in their order."""
    fraction = float(os.environ.get("DRAINDOWN_DEMO_FRACTION") or 1)
    say(f"Events of 2013 in {LANDING}")
    made = generate(LANDING, fraction, progress=_every_tenth)
    print(f"  {made.events:,} events of {made.keys + made.withdrawn:,} flights in {len(made.files)} files")
    environ = {**os.environ, "DRAINDOWN_LAKE": str(LAKE), "DRAINDOWN_LANDING": str(LANDING)}
    spec = rooted(load(ROOT / "dags" / "pipelines" / "flights.yaml", environ), ROOT)
    return [_request(spec, flow) for flow in spec.graph.order]


def _request(spec: PipelineSpec, flow: str) -> Request:
    named = spec.declared(flow).expectations
    judged_by = suite(ROOT, named) if named else None
    return Request(spec=spec, flow=flow, step="plan", run_id="demo", root=str(ROOT), suite=judged_by)


def has_work(request: Request) -> bool:
    """Return whether a plan, made without Airflow and without a JVM, has a step to run."""
    from draindown.planning.plan import plan

    part, _ = plan(request, clock.now())
    return part.drain or part.check or part.compact


def through_airflow() -> None:
    """Run the DAG once, without servers, and show its tasks' output. Raises TerminalError `demo-run-failed`."""
    environ = {
        **os.environ,
        "DRAINDOWN_ROOT": str(ROOT),
        "DRAINDOWN_LAKE": str(LAKE),
        "DRAINDOWN_LANDING": str(LANDING),
    }
    environ |= airflow_local.env(environ)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    airflow = [sys.executable, "-m", "airflow"]
    with LOG.open("w") as log:
        say(f"The DAG {PIPELINE} through Airflow: plan, drain, check, compact of each flow (log: {LOG})")
        code = subprocess.call([*airflow, "db", "migrate"], env=environ, cwd=ROOT, stdout=log, stderr=log)
        if code == 0:
            dag_file = ROOT / "dags" / "draindown_dags.py"
            code = _followed([*airflow, "dags", "test", PIPELINE, "-f", str(dag_file)], environ, log)
    if code != 0:
        raise TerminalError(
            "demo-run-failed",
            tried=f"run the DAG {PIPELINE} with `airflow dags test`",
            found=f"exit code {code}; the end of its log:\n{_last_words()}",
            changed="what was drained before it failed stays; the next run goes on from there",
            next=[f"less {LOG}", "make demo"],
            in_order=True,
        )


def _followed(command: list[str], environ: dict[str, str], log: Any) -> int:
    process = subprocess.Popen(
        command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    started = time.monotonic()
    for line in process.stdout:
        log.write(line)
        for own in _own_lines(line):
            print(f"  {time.monotonic() - started:5.0f} s  {own}", flush=True)
    return process.wait()


def _own_lines(line: str) -> Iterator[str]:
    line = _LOGGER.sub("", re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip()))
    if found := _TASK.search(line):
        if "starting" in line:
            yield found[1]
    elif found := _OWN_LINE.search(line):
        yield f"  {found[1][:110]}"


def show(requests: list[Request]) -> None:
    """The run card and small results, read without Spark."""
    from draindown.lake.table_log import TableLog
    from draindown.runs.card import card

    steps = []
    for layout in (request.layout for request in requests):
        newest = store.runs(layout, 1)
        steps += [store.read(layout, newest[0], step) for step in STEPS] if newest else []
    say("Run card")
    print(card([step for step in steps if step is not None]))
    for title, path, sql in _questions({request.flow: request.layout for request in requests}):
        if TableLog(path).exists:
            say(title)
            _print_rows(TableLog(path).query(sql).to_pylist())


def _questions(layouts: dict[str, Any]) -> list[tuple[str, str, str]]:
    flights = layouts["flights"]
    return [
        (
            "Busiest airports",
            flights.table,
            "select origin as airport, count(*) as flights, round(avg(dep_delay), 1) as mean_delay_min "
            "from t group by origin order by flights desc",
        ),
        (
            "Worst hours (table departures_hourly, a window over flights)",
            layouts["departures_hourly"].table,
            "select window_start as hour_utc, origin as airport, flights, airlines, worst as worst_delay_min, "
            "round(delay / 60.0, 1) as delay_hours from t order by delay desc nulls last, window_start limit 5",
        ),
        (
            "Worst months of an airline (table carrier_month, a query per month and airline; 20 flights or more)",
            layouts["carrier_month"].table,
            "select flight_month as month, carrier, flights, cancelled, round(mean_delay, 1) as mean_delay_min, "
            "worst as worst_flight from t where flights >= 20 order by mean_delay desc nulls last, month limit 5",
        ),
        (
            "Quarantined, by reason",
            flights.quarantine,
            "select reason, count(*) as rows, min(raw) as example from t group by reason order by rows desc, reason",
        ),
    ]


def _print_rows(rows: list[dict[str, Any]]) -> None:
    cells = [[str(value)[:60] for value in row.values()] for row in rows]
    lines = [list(rows[0]), *cells] if rows else [["none"]]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def proven(started: float) -> int:
    """Compare tables and quarantine with what an independent implementation computes from the landing files."""
    say("Every row against the oracle, which reads the landing files by itself")
    found = compare(LAKE, LANDING, derived=True)
    print(found.as_text())
    if not found.ok:
        print(f"A table is WRONG. Look: .venv/bin/draindown audit {PIPELINE}", file=sys.stderr)
        return int(Exit.FINDINGS)
    print(f"Done in {time.monotonic() - started:.0f} s.")
    say_what_next()
    return int(Exit.DONE)


def say_what_next() -> None:
    """Print what to try next."""
    print(
        "\nTry next:\n"
        "  make up                                            the Airflow UI; make down stops it\n"
        f"  .venv/bin/python -m examples.flights.events {LANDING} --more\n"
        "                                                     one more day of events; then make demo again\n"
        f"  export DRAINDOWN_LAKE={LAKE} DRAINDOWN_LANDING={LANDING}\n"
        f"  .venv/bin/draindown audit {PIPELINE}                   recount every row from the raw files\n"
        f"  .venv/bin/draindown prove {PIPELINE}                   recompute both derived tables with another engine\n"
        f"  .venv/bin/draindown quarantine list {PIPELINE}         what was refused, and why"
    )


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


def _every_tenth(done: int, of: int) -> None:
    if done == of or done % max(1, of // 10) == 0:
        print(f"  {done} of {of} files", flush=True)


def _last_words() -> str:
    return "\n".join(LOG.read_text(errors="replace").splitlines()[-25:])


if __name__ == "__main__":
    sys.exit(main())
