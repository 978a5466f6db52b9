"""Derived flows under faults: random histories, a model of their source in Python, their queries in
DuckDB.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from draindown.doctor.examination import examine
from draindown.drill.process import gone
from draindown.flow import generations
from draindown.gate import published
from draindown.ledger import table as ledger_table
from draindown.runs.request import Request, Step
from tests.faults.lakes import Driver
from tests.faults.trial import Trial
from tests.spark.test_derived_flow import CARRIERS, DAILY, HOURLY, START, Chain
from tests.spark.test_processed import CODE, write

FLOWS = {"hourly": HOURLY, "daily": DAILY, "carriers": CARRIERS}
DERIVED = tuple(FLOWS)
_PAIRED = {
    "table": "hourly",
    "on": ["carrier"],
    "interval": {"left": "at", "right": "window_start", "between": ["-1 hour", "30 minutes"]},
    "how": "left_outer",
    "columns": ["window_start", "late"],
}
_NAMED = {"table": "carriers", "on": ["carrier"], "columns": ["c"]}
PAIRS = {
    "hourly": HOURLY,
    "carriers": CARRIERS,
    "paired": {"source": {"table": "flights"}, "join": _PAIRED},
    "named": {"source": {"table": "flights"}, "lookup": _NAMED},
}
"""A join and a lookup, over the landing table and tables derived from it."""
FOLDED = {
    "baskets": {
        "source": {"table": "flights"},
        "processor": {
            "class": "shop.Basket",
            "group_by": ["carrier"],
            "order_by": ["at"],
            "gap": "5 hours",
            "columns": {"n": "bigint", "sum": "bigint"},
            "state": {"n": "bigint", "last": "array<bigint>"},
        },
    }
}
"""A processor over the landing table: a row for each second one of a segment, and one for its
end.
"""
GAPS = ("intake", "begun", "read", "data")
ENDS = ("commit", "merged", "recorded", "committed")
"""Of a batch: gaps before its commit, in their order; and the commit with those after it."""
_QUERIES = {
    "hourly": 'select time_bucket(interval 1 hour, "at") as window_start, carrier, '
    'time_bucket(interval 1 hour, "at") + '
    "interval 1 hour as window_end, count(*) as flights, sum(delay) as late, max(delay) as worst from flights "
    'where "at" is not null group by all',
    "daily": "select time_bucket(interval 1 day, window_start) as window_start, time_bucket(interval 1 day, "
    "window_start) + interval 1 day as window_end, sum(flights) as flights, count(*) as hours from hourly group by all",
    "carriers": "select carrier, count(*) as c, round(avg(delay), 6) as d from flights group by carrier",
    "paired": "select f.id, f.carrier, f.delay, h.window_start, h.late from flights f left join hourly h "
    'on f.carrier = h.carrier and h.window_start between f."at" - interval 1 hour and f."at" + interval 30 minute',
    "baskets": "with timed as (select *, row_number() over whole as nth, "
    '"at" - lag("at") over whole > interval 5 hour as gap from flights where "at" is not null '
    'window whole as (partition by carrier order by "at", delay nulls last, id)), '
    "numbered as (select *, sum(coalesce(gap, true)::int) over (partition by carrier order by nth) as run from timed), "
    'placed as (select *, min("at") over part as start, count(*) over part as size, '
    "row_number() over (partition by carrier, run order by nth) as place, "
    "lag(delay) over (partition by carrier, run order by nth) as before from numbered "
    "window part as (partition by carrier, run)) "
    "select carrier, start, place // 2 as position, place as n, coalesce(delay, 0) + coalesce(before, 0) as s "
    "from placed where place % 2 = 0 union all "
    "select carrier, start, size // 2 + 1, -size, delay from placed where place = size",
    "named": "select f.id, f.carrier, c.c, c.c is not null as carriers_found from flights f "
    "left join (select carrier, count(*) as c from flights group by carrier) c on f.carrier = c.carrier",
}
_COLUMNS = {
    "hourly": "window_start, carrier, window_end, flights, late, worst",
    "daily": "window_start, window_end, flights, hours",
    "carriers": "carrier, c, round(d, 6) as d",
    "statuses": 'id, __START_AT, __END_AT, seq, op, carrier, "at", delay, noise',
    "paired": "id, carrier, delay, window_start, late",
    "named": "id, carrier, c, carriers_found",
    "asked": "id, seq, was, noted, statuses_found",
    "baskets": 'carrier, session_start, position, n, "sum"',
}
_SOURCE = pa.schema(
    [
        ("id", pa.int64()),
        ("carrier", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("delay", pa.int32()),
    ]
)


class Fork(Driver):
    """A process that drains as requests say, and dies or waits where they say."""

    program = ("-m", "draindown.spark.job.fault_driver")


class Flow:
    """One flow of a chain, as `Trial` takes it."""

    def __init__(self, chain: Chain, name: str) -> None:
        self.chain, self.name, self.home = chain, name, chain.home

    def request(self, run_id: str = "r", suite: Any = None, **more: Any) -> Request:
        return self.chain.request(self.name).model_copy(
            update={"run_id": run_id, "suite": suite, **more}
        )

    def write_pipeline(self) -> None:
        self.chain.write_pipeline()


class History:
    """A chain whose source has a random history. `rows`: the source as it should be, by key."""

    def __init__(
        self, home: Path, spark: SparkSession, seed: int, flows: Mapping[str, Any] = FLOWS
    ) -> None:
        self.it, self.spark, self.draw = Chain(home, spark, **flows), spark, Random(seed)
        write(home, CODE)
        self.rows: dict[int, tuple[int, dict[str, Any] | None]] = {}
        self._seen: set[tuple[int, int]] = set()
        self.change()
        for _ in range(3):  # each flow switches on its feed for the next one
            self.it.run()

    def change(self) -> None:
        """Deliver new rows, late ones, updates that move rows, deletes, and changes older than what
        is there.
        """
        draw, rows = self.draw, []
        for at in range(draw.randint(6, 12)):
            number = draw.randrange(25) if at else 1000 + len(self.rows)  # one is new
            minutes = draw.choice(
                (
                    draw.randint(0, 300),
                    draw.randint(0, 5000),
                    -draw.randint(1, 4000),
                    None if at else 7,
                )
            )
            row = self.it.row(
                number,
                minutes,
                draw.choice(("A", "B", "C", None)),
                delay=draw.choice((None, 1, 5, 9)),
            )
            if draw.random() < 0.15:
                row["op"] = "d" if at else None
            elif draw.random() < 0.1 and at:
                row["seq"] = draw.randint(1, row["seq"])
            if (
                number,
                row["seq"],
            ) not in self._seen:  # content decides between equals: the model knows no such ties
                self._seen.add((number, row["seq"]))
                rows.append(row)
        for row in rows:
            known = self.rows.get(row["id"])
            if known is None or row["seq"] > known[0]:
                self.rows[row["id"]] = row["seq"], None if row.get("op") == "d" else row
        self.it.deliver(*rows)

    def flow(self, name: str) -> Flow:
        return Flow(self.it, name)

    def expected(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a derived table, from the model alone."""
        live = [row for _, row in self.rows.values() if row is not None]
        columns = {one.name: [_value(row, one.name) for row in live] for one in _SOURCE}
        return derived(name, pa.table(columns, schema=_SOURCE))

    def found(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a derived table, read by delta-rs."""
        return found(self.it, name)


def _value(row: dict[str, Any], name: str) -> Any:
    if name != "at" or row["at"] is None:
        return row[name]
    return type(START).fromisoformat(row["at"])


def derived(name: str, flights: pa.Table) -> list[tuple[Any, ...]]:
    """What a query gives over the rows of the source, by DuckDB."""
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        db.register("flights", flights)
        db.execute(f"create view hourly as {_QUERIES['hourly']}")
        return sorted(db.execute(_QUERIES[name]).fetchall(), key=str)


def found(it: Chain, name: str) -> list[tuple[Any, ...]]:
    """The rows of a table of the chain, read by delta-rs."""
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        table = (
            QueryBuilder()
            .register("t", DeltaTable(it.layout(name).tables.target.path))
            .execute("select * from t")
        )
        db.register("t", pa.table(table.read_all()))
        return sorted(db.execute(f"select {_COLUMNS[name]} from t").fetchall(), key=str)


def published_source(it: Chain) -> pa.Table:
    """The rows of the source as its flow published them, read by delta-rs."""
    pointer = published.published(it.layout("flights"))
    assert pointer is not None
    table = DeltaTable(it.layout("flights").tables.target.path, version=pointer.version)
    return pa.table(
        QueryBuilder()
        .register("t", table)
        .execute('select id, carrier, "at", delay from t')
        .read_all()
    )


def killed(trial: Trial, it: Chain, name: str, gap: str) -> None:
    """Drain a flow, be killed in the gap of its next batch, and prove it."""
    notes, batch = it.home / f"fault-{name}", next_batch(it, name)
    version = it.layout(name).tables.target.version + 1
    request = it.request(name).model_copy(update={"run_id": f"killed {gap}"})
    entry = {
        "request": request.encode(),
        "home": str(notes),
        "place": [gap, batch],
        "version": version,
    }
    driver = Fork(notes, entry)
    jvm = driver.fired()
    code = driver.wait(60)
    assert code == -signal.SIGKILL, driver.log.read_text()[-4000:]
    assert gone(jvm)
    trial.fired += f"{', then ' if trial.fired else 'exit -9, no JVM left; '}struck at `{gap}` of batch {batch}"
    trial.ran(code)


def next_batch(it: Chain, name: str) -> int:
    """The number of a flow's next batch: batch N reads slice N + 1."""
    layout = it.layout(name)
    return generations.first_unread(layout, generations.generation(layout)) - 1


def hold(trial: Trial, history: History, *names: str) -> None:
    """Hold derived tables against DuckDB over the model, and their ledgers and doctor against both
    accounts.
    """
    for name in names:
        trial.promise(
            f"{name} equals its query over the model", history.found(name) == history.expected(name)
        )
        hold_accounts(trial, history.it, name)


def hold_accounts(trial: Trial, it: Chain, name: str) -> None:
    """Hold the ledger of a derived flow against its table, and ask doctor."""
    rows = ledger_table.recent(it.layout(name), 10_000)
    trial.promise(
        "each batch stands in the ledger once", len({row.place for row in rows}) == len(rows)
    )
    for row in rows:
        trial.promise("images add up", row.records == row.used + row.unused + row.late)
        output = row.inserted + row.updated + row.deleted + row.unchanged + row.empty
        trial.promise("keys add up", row.recomputed == output)
    net = sum(row.inserted - row.deleted for row in rows)
    trial.promise("inserted less deleted keys are the table's rows", net == len(found(it, name)))
    wrong = [symptom for symptom in examine(it.request(name)).symptoms if symptom.level == "wrong"]
    trial.promise(
        f"doctor clean{': ' if wrong else ''}{', '.join(one.code for one in wrong)}", not wrong
    )


def drained(trial: Trial, it: Chain, name: str, spark: SparkSession, *steps: Step) -> int:
    """Run steps of a flow until one fails; the exit code of the last one."""
    for step in steps or ("drain", "check"):
        trial.run(Flow(it, name), spark, step)  # type: ignore[arg-type]
        if trial.runs[-1].code:
            break
    return trial.runs[-1].code
