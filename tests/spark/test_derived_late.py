"""Rows that come later than a flow accepts: kept apart by their own times, in any order, cut and
crash; applied.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.cli.program import main
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.doctor.examination import examine
from draindown.flow import generations
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.proof.compare import prove
from draindown.proof.pinned import pinned
from draindown.recovery import reset
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.card import card
from draindown.sources.tables import late
from draindown.sources.tables.late import Place
from draindown.spark.derived import batches
from draindown.spark.derived.batch import DeriveBatch, TableSlice, Versions
from draindown.spark.derived.derive import derive
from draindown.spark.derived.images import SIGN
from draindown.spark.derived.late import Sieve
from draindown.spark.derived.scope import Bucket
from draindown.spark.session import configured
from draindown.spark.targets.delta_target import TableWriter
from tests.landing import Injected
from tests.spark.test_derived_flow import START, Chain
from tests.spark.test_derived_vacuum import maintain
from tests.tables.test_late import pinned as pinned_slice

ACCEPT = timedelta(hours=2)
APPEND = {
    "source": {"files": "landing/*", "format": "json"},
    "columns": {"id": "bigint not null", "carrier": "string", "at": "timestamp", "delay": "int"},
}
HOURLY = {
    "source": {"table": "flights"},
    "window": {
        "time": "at",
        "size": "1 hour",
        "slide": "30 minutes",
        "group_by": ["carrier"],
        "measures": {"flights": "count(*)", "delay": "sum(delay)"},
    },
    "allowed_lateness": "2 hours",
}
SPEC = {"pipeline": "p", "flows": {"flights": APPEND, "hourly": HOURLY}}
_TYPES = (
    "id bigint, carrier string, at timestamp, delay int, _origin struct<input: string, position: bigint>, "
    "_arrived_at timestamp, _changed_at timestamp"
)
Event = tuple[int, str | None, datetime | None, int, tuple[str, int], datetime | None]


def event(draw: Random, number: int) -> Event:
    """A row of the source; one in three comes too late, some by a microsecond."""
    at = None if draw.random() < 0.1 else START + timedelta(minutes=draw.randint(0, 240))
    by = draw.choice(
        (
            timedelta(0),
            ACCEPT,
            ACCEPT + timedelta(microseconds=1),
            timedelta(days=draw.randint(1, 9)),
        )
    )
    arrived = None if draw.random() < 0.1 or at is None else at + by
    return (
        number,
        draw.choice(("A", "B", None)),
        at,
        draw.randint(0, 9),
        (f"f{number % 3}", number),
        arrived,
    )


def is_late(one: Event) -> bool:
    return one[2] is not None and one[5] is not None and one[2] < one[5] - ACCEPT


def windows(rows: list[Event]) -> Counter[tuple[Any, ...]]:
    """The rows of the table, by plain Python: start, carrier, number, sum."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for _, carrier, at, delay, _, _ in rows:
        if at is None:
            continue
        newest = at.replace(minute=at.minute // 30 * 30, second=0, microsecond=0)
        for start in (newest, newest - timedelta(minutes=30)):
            found.setdefault((start, carrier), []).append(delay)
    return Counter((*key, len(delays), sum(delays)) for key, delays in found.items())


class World:
    """Sources whose rows a test appends and withdraws, and the batches of a flow over them, without
    streams.

    `of`: which source; empty for the first one.
    """

    def __init__(
        self, home: Path, spark: SparkSession, document: Any = SPEC, flow: str = "hourly"
    ) -> None:
        self.spark, self.spec = (
            spark,
            PipelineSpec.model_validate(document | {"lake": str(home / "lake")}),
        )
        declared = self.spec.declared(flow)
        assert isinstance(declared, DerivedFlow)
        self.flow, self.layout = declared, self.spec.layout(flow)
        self.paths = {
            one.table: self.spec.layout(one.table).tables.target.path
            for one in declared.source.read
        }
        self.path = next(iter(self.paths.values()))
        self.batch, self.read, self.decided = 0, 0, 0
        self.consumed: list[int] | None = None
        self.filled = 0
        self.slices: list[TableSlice] = []
        for path in self.paths.values():
            spark.sql(
                f"create table delta.`{path}` ({_TYPES}) using delta "
                "tblproperties ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
            )

    def insert(self, *rows: Event, of: str = "") -> None:
        with configured(self.spark, {"spark.sql.session.timeZone": "UTC"}):
            frame = self.spark.createDataFrame([(*row, START) for row in rows], _TYPES)
            frame.write.format("delta").mode("append").save(self.paths.get(of, self.path))

    def withdraw(self, *rows: Event, of: str = "") -> None:
        ids = ", ".join(str(row[0]) for row in rows) or "-1"
        self.spark.sql(f"delete from delta.`{self.paths.get(of, self.path)}` where id in ({ids})")

    def apply(self, *rows: Event, of: str = "") -> None:
        names = ("late_id", "source_table", "input", "position", "arrived_at")
        table = of or next(iter(self.paths))
        told = [
            dict(zip(names, (str(row[0]), table, *row[4], row[5]), strict=True)) for row in rows
        ]
        chosen = pa.Table.from_pylist(told, schema=late._CHOSEN)
        late.decide(Place(self.layout, 1, 0), chosen, "released", by="me", note="", at=START)

    def derive(
        self,
        buckets: int = 1,
        *,
        fill: bool = False,
        dying: str = "",
        until: int | None = None,
        edited: DerivedFlow | None = None,
    ) -> list[BatchRow]:
        """Derive what changed and was decided since the last call; with `dying`, each batch dies
        there once.

        `edited`: the flow as somebody has edited it by the second attempt.
        """
        starts: Sequence[int | None] = (
            [None] * len(self.paths) if fill or self.consumed is None else self.consumed
        )
        ends = [Table(path).version if until is None else until for path in self.paths.values()]
        decided = 0 if fill or self.consumed is None else self.decided, late.newest(self.layout)
        tables = [Versions(*one) for one in zip(self.paths.values(), starts, ends, strict=True)]
        rows, self.filled = [], self.batch + 1 if starts[0] is None else self.filled
        for at in range(buckets):
            self.slices.append(TableSlice(self.batch + 1, tables, Bucket(at, buckets), decided))
            rows.append(self._tried(self.slices[-1], self.batch, dying, edited=edited))
            self.batch += 1
        self.consumed, self.decided = ends, decided[1]
        return rows

    def replay(self, at: int, number: int) -> BatchRow:
        """Compute again what slice `at` touched, as of now, in replay `number`."""
        assert self.consumed is not None
        piece = self.slices[at]
        tables = [
            replace(one, read_at=version)
            for one, version in zip(piece.tables, self.consumed, strict=True)
        ]
        again = replace(piece, tables=tables, decided=(piece.decided[0], self.decided))
        return self._tried(again, number, kind="replay")

    def _tried(
        self,
        piece: TableSlice,
        number: int,
        dying: str = "",
        kind: str = "drain",
        edited: DerivedFlow | None = None,
    ) -> BatchRow:
        at = datetime(2026, 5, 1, tzinfo=UTC) + timedelta(seconds=number)
        writer = TableWriter(self.layout, self.flow, 1, number, kind)
        left = [dying] if dying else []

        def reached(step: str) -> None:
            if left and step == left[0]:
                left.clear()
                raise Injected(step)

        batch = DeriveBatch(
            writer=writer,
            flow=self.flow,
            slice=piece,
            run_id="r",
            changed_at=at,
            started_at=at,
            reached=reached,
        )
        try:
            return derive(self.spark, batch)
        except Injected:
            return derive(self.spark, replace(batch, flow=edited or self.flow))

    def table(self) -> Counter[tuple[Any, ...]]:
        rows = self.layout.tables.target.rows("select window_start, carrier, flights, delay from t")
        return Counter(
            (row["window_start"], row["carrier"], row["flights"], row["delay"]) for row in rows
        )

    def apart(self, of: str = "") -> Counter[int]:
        """Ids of the rows that lie apart, by the signs of all batches of the newest fill and
        after.
        """
        own = f"slice >= {self.filled} and source_table = '{of or next(iter(self.paths))}'"
        found: Counter[int] = Counter()
        for row in self.layout.tables.late.rows(f"select record, change from t where {own}"):
            found[json.loads(row["record"])["id"]] += 1 if row["change"] == "came" else -1
        return +found


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 2), *(pytest.param(seed, 3, marks=pytest.mark.long) for seed in (0, 1))]
)
def test_the_table_depends_on_the_rows_alone(
    spark: SparkSession, tmp_path: Path, seed: int, steps: int
) -> None:
    draw = Random(seed)
    rows = [event(draw, number) for number in range(60)]
    withdrawn, applied = rows[::7], [row for row in rows[::2] if is_late(row)]
    assert applied and [row for row in withdrawn if is_late(row)]
    left = [row for row in rows if row not in withdrawn]
    expected = windows([row for row in left if not is_late(row) or row in applied])
    there = {row[0] for row in left if is_late(row)}
    kept = there - {row[0] for row in applied}
    it = World(tmp_path, spark)
    known: list[Event] = []
    draw.shuffle(rows)
    parts = (
        ((0, 25), (20, 26 + draw.randrange(30)), (26, 60)) if steps == 3 else ((0, 40), (30, 60))
    )
    for at, (start, end) in enumerate(parts):
        fresh = [row for row in rows[start:end] if row not in known]
        known += fresh
        it.insert(*fresh)
        if at:
            it.apply(
                *(row for row in applied if row in known and (steps == 2 or draw.random() < 0.5))
            )
            it.withdraw(
                *(
                    row
                    for row in withdrawn
                    if row in known and (at == steps - 1 or draw.random() < 0.5)
                )
            )
        dying = ("read", "late", "merged")[(at + seed) % 3] if at or steps == 3 else ""
        ledger = it.derive(1 + (at + seed) % 2 if steps == 3 else 1, dying=dying)
        assert all(one.records == one.used + one.unused + one.late for one in ledger)
    if steps == 3:
        it.apply(*applied)
        it.derive()
    assert it.table() == expected
    assert it.apart() == Counter(there), "also those that were applied"
    (filled,) = it.derive(fill=True)
    assert it.table() == expected and not filled.applied and filled.late == len(kept), (
        "a fill finds the same"
    )


@pytest.mark.parametrize("accept", [60 * 86_400, pytest.param(None, marks=pytest.mark.long)])
def test_rows_that_an_attempt_found_late_are_not_listed_once_the_flow_accepts_them(
    spark: SparkSession, tmp_path: Path, accept: int | None
) -> None:
    """The first fill wrote them down and failed; another `allowed_lateness` voids its slices, and the same
    batch runs anew.
    """
    it, base = World(tmp_path, spark), START.replace(tzinfo=UTC)
    rows = [(at, "A", base, 1, ("u", at), base + ACCEPT * 2) for at in range(2)]
    it.insert(*rows)
    pinned_slice(it.layout, 1, fill=True)
    place = Place(it.layout, 1, 2)
    (row,) = it.derive(
        fill=True, dying="late", edited=it.flow.model_copy(update={"allowed_lateness": accept})
    )
    assert row.late == 0 and it.table() == windows(rows) and it.layout.tables.late.version > 0, (
        "an attempt wrote some"
    )
    assert late.counts(place)["open"] == 0 and not late.listed(place, None)


@pytest.mark.long
def test_a_row_that_was_applied_and_went_is_listed_as_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    it, base = World(tmp_path, spark), START.replace(tzinfo=UTC)
    rows = [(at, "A", base, 1, ("u", at), base + ACCEPT * 2) for at in range(4)]

    def derived(*, fill: bool = False) -> dict[int, str]:
        pinned_slice(it.layout, it.batch + 1, fill=fill)
        it.derive(fill=fill)
        found = late.listed(Place(it.layout, 1, it.batch + 1), None)
        return {json.loads(row["record"])["id"]: row["state"] for row in found}

    it.insert(*rows)
    assert derived(fill=True) == dict.fromkeys(range(4), "open")
    place = Place(it.layout, 1, 2)
    chosen = late.chosen(place, (), "released")
    some = chosen.filter(pc.less(chosen["position"], 3))
    late.decide(place, some, "released", by="me", note="", at=START)
    assert derived() == {0: "released", 1: "released", 2: "released", 3: "open"}
    it.withdraw(rows[0])
    assert derived() == {
        0: "gone",
        1: "released",
        2: "released",
        3: "open",
    } and it.table() == windows(rows[1:3])
    it.withdraw(rows[1], rows[3])
    assert derived(fill=True) == {0: "gone", 1: "gone", 2: "released"} and it.table() == windows(
        rows[2:3]
    )
    it.insert(rows[1])
    assert derived() == {0: "gone", 1: "released", 2: "released"}, (
        "the same row again, as a release puts it back"
    )
    it.flow = it.flow.model_copy(update={"allowed_lateness": 30 * 86_400})
    assert derived(fill=True) == {0: "gone", 1: "released", 2: "released"}, (
        "there, and late no more"
    )
    assert it.table() == windows(rows[1:3])


def test_images_count_once_whenever_a_row_came_went_or_was_applied(
    spark: SparkSession, tmp_path: Path
) -> None:
    it = World(tmp_path, spark)
    # before, after, applied, late
    cases = list(product((False, True), (False, True), (0, 1, 2), (False, True)))
    base = START.replace(tzinfo=UTC)
    rows = [
        (at, "A", base, 1, ("u", at), base + (ACCEPT * 2 if comes_late else timedelta(0)))
        for at, (_, _, _, comes_late) in enumerate(cases)
    ]
    for step in (1, 2):
        it.apply(*(row for row, case in zip(rows, cases, strict=True) if case[2] == step))
    sieve = Sieve(spark, it.layout, it.flow, "flights", (1, 2))
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        frame = spark.createDataFrame([(*row, START) for row in rows], _TYPES).drop("_changed_at")
        now = frame.where(F.col("id").isin([at for at, case in enumerate(cases) if case[1]]))
        signs = {
            at: int(case[1]) - int(case[0]) for at, case in enumerate(cases) if case[0] != case[1]
        }
        # rows of topics that were created again: of the same unit and position, later
        twins = frame.where("_arrived_at > at").withColumns(
            {
                "id": F.col("id") + 1000,
                "_arrived_at": F.col("_arrived_at") + F.expr("interval 1 microsecond"),
            }
        )
        changed = frame.where(F.col("id").isin(list(signs))).withColumn(
            SIGN,
            F.when(F.col("id").isin([at for at, sign in signs.items() if sign > 0]), 1).otherwise(
                -1
            ),
        )
        found = {
            row["id"]: row["n"]
            for row in sieve.images(
                changed.unionByName(twins.withColumn(SIGN, F.lit(1))), now.unionByName(twins)
            )
            .groupBy("id")
            .agg(F.sum(SIGN).alias("n"))
            .collect()
        }
    assert not [number for number in found if number >= 1000], "nobody applied those"
    for at, (before, after, applied, comes_late) in enumerate(cases):
        counted = before and (not comes_late or applied == 1)
        counts = after and (not comes_late or applied > 0)
        assert found.get(at, 0) == int(counts) - int(counted), cases[at]


@pytest.mark.full
def test_a_column_that_the_source_gained_since_is_not_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    it, base = World(tmp_path, spark), START.replace(tzinfo=UTC)
    rows = [(at, "A", base, 1, ("u", at), base + ACCEPT * (2 if at < 2 else 0)) for at in range(4)]
    it.insert(rows[0], rows[2])
    it.derive(fill=True)
    it.insert(rows[1], rows[3])
    it.apply(rows[0])
    pinned_at = Table(it.path).version
    spark.sql(f"alter table delta.`{it.path}` add column gained int")
    (row,) = it.derive(until=pinned_at)
    assert it.table() == windows([rows[0], rows[2], rows[3]]) and row.late == 1
    told = it.layout.tables.late.rows("select record from t")
    assert len(told) == 2 and not any("gained" in one["record"] for one in told)


@pytest.mark.parametrize(
    ("late_rows", "is_fill", "asks"), [(6, True, True), (5, True, False), (6, False, False)]
)
def test_a_fill_that_finds_most_rows_late_asks_about_accept(
    late_rows: int, is_fill: bool, asks: bool
) -> None:
    row = BatchRow("p", "hourly", 1, 0, "r", records=10, late=late_rows)
    assert ("is `allowed_lateness` shorter" in batches._late(row, is_fill=is_fill).detail) == asks


@pytest.fixture
def chain(spark: SparkSession, tmp_path: Path) -> Callable[..., Chain]:
    return lambda **flows: Chain(tmp_path / "project", spark, **flows)


def _deliver(it: Chain, hours: float, *rows: dict[str, Any]) -> None:
    """Deliver a file that arrived so many hours after the start."""
    it.deliver(*rows)
    at = (START + timedelta(hours=hours)).timestamp()
    os.utime(it.home / "landing" / f"{it.files:03}.json", (at, at))


def _row(number: int, minutes: int, carrier: str = "A") -> dict[str, Any]:
    return {
        "id": number,
        "carrier": carrier,
        "at": (START + timedelta(minutes=minutes)).isoformat(),
        "delay": 1,
    }


def _typed(it: Chain, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    it.write_pipeline()
    capsys.readouterr()
    code = main(["--root", str(it.home), *words, "--json"])
    assert code == 0, words
    return json.loads(capsys.readouterr().out)


def _number(it: Chain) -> int:
    return sum(
        row["flights"] for row in it.layout("hourly").tables.target.rows("select flights from t")
    )


def _proven(it: Chain) -> bool:
    declared = it.spec.declared("hourly")
    assert isinstance(declared, DerivedFlow)
    found = pinned(it.layout("hourly"), declared.source)
    return prove(
        it.layout("hourly"), declared, found.sources, found.table, 1.0, found.decided
    ).holds


@pytest.mark.long
def test_late_rows_are_listed_applied_and_remembered(
    chain: Callable[..., Chain], capsys: pytest.CaptureFixture[str]
) -> None:
    it = chain(flights=APPEND, hourly=HOURLY)
    _deliver(it, 1, _row(1, 10), _row(2, 50))
    it.run()
    it.run()
    assert _number(it) == 4, "each row lies in two windows"
    _deliver(it, 5, _row(3, 5), _row(4, 240), _row(5, 15, "B"))
    it.run("flights")
    report = it.drain("hourly")
    it.check("hourly")
    assert _number(it) == 6 and report.drain and report.drain.totals["late"] == 2
    assert "draindown late list p/hourly" in card([report])
    assert "late-rows" in {one.code for one in examine(it.request("hourly")).symptoms} and _proven(
        it
    )

    listed = _typed(it, capsys, "late", "list", "p")["hourly"]
    assert listed["counts"] == {"open": 2, "released": 0, "discarded": 0, "gone": 0}
    first, second = listed["rows"]
    assert (json.loads(first["record"])["id"], first["lateness"]) == (3, 4 * 3600 + 55 * 60)
    assert (
        json.loads(second["groups"]) == {"carrier": "B"}
        and second["window_start"][:10] == "2026-03-01"
    )
    assert not it.waits("hourly")

    assert _typed(it, capsys, "late", "release", "p", "--id", first["late_id"][:10], "--yes") == {
        "released": 1
    }
    assert it.waits("hourly") and _proven(it), (
        "what was read is as it was; what was decided is yet to be counted"
    )
    it.run("hourly")
    newest = ledger_table.recent(it.layout("hourly"), 1)[0]
    assert (newest.records, newest.used, newest.recomputed, newest.applied) == (1, 1, 2, 2)
    assert _number(it) == 8 and _proven(it) and not it.waits("hourly")

    assert _typed(it, capsys, "late", "discard", "p", "--yes") == {"discarded": 1}
    counts = {"open": 0, "released": 1, "discarded": 1, "gone": 0}
    assert _typed(it, capsys, "late", "list", "p")["hourly"]["counts"] == counts
    found = reset.plan(it.request("hourly"))
    with open_flow(it.spec, "hourly", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(it.request("hourly"), found, by="me", accept_missing=False)
    listed = _typed(it, capsys, "late", "list", "p")["hourly"]["counts"]
    assert (listed["released"], listed["gone"]) == (1, 0), "the fill has yet to look for it"
    it.run("hourly")
    assert generations.generation(it.layout("hourly")) == 2 and _number(it) == 8 and _proven(it)
    assert ledger_table.recent(it.layout("hourly"), 1)[0].late == 1, (
        "the applied row counts in the fill"
    )
    assert _typed(it, capsys, "late", "list", "p")["hourly"]["counts"] == counts, (
        "the fill counts the applied one"
    )

    _deliver(it, 6, _row(6, 300))
    it.run()
    assert maintain(it) == 0 and _number(it) == 10 and _proven(it)
    it.run("flights")
    assert maintain(it) > 0 and _proven(it), "the files of the version that was read are gone"
    again = _typed(it, capsys, "late", "release", "p", "--id", second["late_id"], "--yes")
    it.run("hourly")
    assert again == {"released": 1} and _number(it) == 12 and _proven(it)
    assert examine(it.request("hourly")).exit == 0


@pytest.mark.long
def test_what_cant_be_decided_is_refused(
    chain: Callable[..., Chain], capsys: pytest.CaptureFixture[str]
) -> None:
    it = chain(flights=APPEND, hourly=HOURLY)
    _deliver(it, 5, _row(1, 10), _row(2, 250))
    it.run()
    it.run()
    it.write_pipeline()
    assert (
        main(["--root", str(it.home), "late", "release", "p", "--id", "ffff", "--yes", "--json"])
        == 78
    )
    assert "unknown-late-row" in capsys.readouterr().err
    assert main(["--root", str(it.home), "late", "release", "p"]) == 2, "nothing without --yes"
    assert late.newest(it.layout("hourly")) == 0
