"""The kind `history` over real tables and streams: late, deleted and withdrawn events, crashes,
resets, proofs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.config import loader
from draindown.config.models import PipelineSpec
from draindown.config.project import rooted
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.proof import compare
from draindown.recovery import reset
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.request import Again, Request
from draindown.spark.checks.check import check
from draindown.spark.derived.whole import prove as by_spark
from draindown.spark.runs.drain import drain
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_input import replay
from examples.flights import events
from tests.derivation import Derivation
from tests.folding import fold
from tests.landing import Injected
from tests.spark.test_derived_flow import FLIGHTS, Chain

_START = datetime(2026, 3, 1, tzinfo=UTC)
_NAMES = ("id", "seq", "k", "at", "n", "x", "noise")
TARGET = {"keys": ["k"], "sequence_by": ["at"], "stored_as_scd_type": 2}
TRACKED = TARGET | {"track_history": ["n"], "apply_as_deletes": "noise = 'd'"}
SEVERAL = TRACKED | {"sequence_by": ["at", "seq"], "partition_by": ["k"]}


def event(
    number: int, minutes: int | None, n: int | None = 1, noise: str = "", k: str | None = "a"
) -> tuple[Any, ...]:
    at = None if minutes is None else _START + timedelta(minutes=minutes)
    return (number, number % 3, k, at, n, 0.5, noise)


@pytest.fixture
def derivation(spark: SparkSession, tmp_path: Path) -> Callable[..., Derivation]:
    return lambda **parts: Derivation(tmp_path, spark, appended=True, **parts)


def _runs(it: Derivation) -> list[tuple[Any, ...]]:
    """Key, first and last minute, value and number of the newest event of each row."""
    rows = it.layout.tables.target.rows(
        'select k, "__START_AT" as s, "__END_AT" as e, n, id from t'
    )
    return sorted(
        ((r["k"], _minute(r["s"]), _minute(r["e"]), r["n"], r["id"]) for r in rows), key=str
    )


def _minute(at: datetime | None) -> int | None:
    return None if at is None else (at - _START) // timedelta(minutes=1)


def _proven(it: Derivation) -> bool:
    return compare.prove(it.layout, it.flow, [Table(it.path)], it.layout.tables.target).holds


@pytest.mark.long
def test_events_split_join_extend_and_remove_rows(derivation: Callable[..., Derivation]) -> None:
    it = derivation(target=TRACKED)
    it.insert(event(1, 0), event(2, 10), event(3, 20, n=2), event(4, None))
    (filled,) = it.derive()
    assert (filled.records, filled.used, filled.unused, filled.inserted) == (4, 3, 1, 2)
    assert _runs(it) == [("a", 0, 20, 1, 2), ("a", 20, None, 2, 3)]
    it.insert(event(5, 5, n=7), event(6, 0, k=None))  # late: it splits the first run
    (row,) = it.derive()
    assert (row.inserted, row.updated, row.deleted, row.unchanged) == (3, 1, 0, 1)
    history = [
        ("a", 0, 5, 1, 1),
        ("a", 10, 20, 1, 2),
        ("a", 20, None, 2, 3),
        ("a", 5, 10, 7, 5),
        (None, 0, None, 1, 6),
    ]
    assert _runs(it) == history
    # a gap, a return, and nothing new
    it.insert(event(7, 12, noise="d"), event(8, 15), event(9, 30, n=2))
    it.derive()
    assert (
        ("a", 10, 12, 1, 2) in _runs(it)
        and ("a", 15, 20, 1, 8) in _runs(it)
        and ("a", 20, None, 2, 9) in _runs(it)
    )
    it.insert(event(10, 5, noise="d"))  # a delete at the sequence of another event wins
    (row,) = it.derive()
    assert (row.inserted, row.updated, row.deleted) == (0, 0, 1) and ("a", 0, 5, 1, 1) in _runs(it)
    it.sql("delete from {t} where id in (7, 10, 5)")  # by hand: what it held apart joins
    it.derive()
    assert _runs(it) == [("a", 0, 20, 1, 8), ("a", 20, None, 2, 9), (None, 0, None, 1, 6)]
    it.sql("delete from {t} where k = 'a'")
    (row,) = it.derive()
    assert row.deleted == 2 and row.empty == 0 and _proven(it) and it.table() == it.whole()


@pytest.mark.long
def test_a_delete_without_a_row_is_remembered_by_the_source(
    derivation: Callable[..., Derivation],
) -> None:
    it = derivation(target=TRACKED)
    it.insert(event(1, 10, noise="d"))
    it.derive()
    it.insert(event(2, 20, noise="d"))
    (row,) = it.derive()
    assert (row.recomputed, row.empty, _runs(it)) == (1, 1, [])
    it.insert(event(3, 0), event(4, 15))
    it.derive()
    assert _runs(it) == [("a", 0, 10, 1, 3), ("a", 15, 20, 1, 4)] and _proven(it)


@pytest.mark.parametrize(
    ("target", "steps"),
    [
        (SEVERAL, 1),
        *(pytest.param(one, 6, marks=pytest.mark.long) for one in (SEVERAL, TARGET, TRACKED)),
    ],
)
def test_random_histories_follow_every_change(
    derivation: Callable[..., Derivation], target: dict[str, Any], steps: int
) -> None:
    draw, it, number = Random(7), derivation(target=target), 0
    for step in range(steps):
        events = []
        for _ in range(30):
            number += 1
            minutes = draw.choice((None, *range(8)))
            events.append(
                event(
                    number,
                    minutes,
                    draw.choice((None, 1, 2)),
                    draw.choice("dxy"),
                    draw.choice("abc"),
                )
            )
        it.insert(*events)
        if step:
            it.sql(f"delete from {{t}} where id % 7 = {step}")
        it.derive(buckets=2)
        assert it.table() == it.whole() and _proven(it)
        assert _model(it) == _found(it), step
    log = it.layout.tables.target
    assert "__START_AT,__END_AT" in log.properties["delta.dataSkippingStatsColumns"]
    assert by_spark(it.spark, it.layout, it.flow, [Table(it.path)], log).holds


def _model(it: Derivation) -> list[str]:
    said = it.flow.target
    events = Table(it.path).rows(
        f"select {', '.join(chr(34) + name + chr(34) for name in _NAMES)} from t"
    )
    tracked = said.track_history or [
        name for name in _NAMES if name not in (*said.keys, *said.sequence_by)
    ]
    assert isinstance(tracked, list)
    deletes = (lambda one: one["noise"] == "d") if said.apply_as_deletes else (lambda one: False)
    found = fold(events, said.keys, said.sequence_by, tracked, deletes)
    return sorted(str([_plain(row[name]) for name in ("start", "end", *_NAMES)]) for row in found)


def _found(it: Derivation) -> list[str]:
    names = ", ".join(f'"{name}"' for name in ("__START_AT", "__END_AT", *_NAMES))
    rows = it.layout.tables.target.rows(f"select {names} from t")
    made = [
        [_tuple(row["__START_AT"]), _tuple(row["__END_AT"]), *(row[name] for name in _NAMES)]
        for row in rows
    ]
    return sorted(str([_plain(value) for value in row]) for row in made)


def _tuple(sequence: Any) -> Any:
    if sequence is None:
        return None
    return tuple(sequence.values()) if isinstance(sequence, dict) else (sequence,)


def _plain(value: Any) -> Any:
    """A value with times as minutes."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return f"minute {_minute(value)}" if isinstance(value, datetime) else value


EVENTS = {**FLIGHTS, "target": {}}
HISTORY = {
    "source": {"table": "flights"},
    "target": {
        "keys": ["id"],
        "sequence_by": ["seq"],
        "stored_as_scd_type": 2,
        "track_history": {"except": ["op", "noise"]},
        "apply_as_deletes": "op = 'd'",
    },
}


SPANS = {
    "source": {"table": "statuses"},
    "query": {
        "keys": ["id"],
        "sql": "select id, count(*) n, max(__END_AT) e, max(__START_AT) s from statuses group by id",
    },
}


def _statuses(it: Chain) -> list[tuple[Any, ...]]:
    rows = it.layout("statuses").tables.target.rows(
        'select id, "__START_AT" as s, "__END_AT" as e, carrier from t'
    )
    return sorted(tuple(row.values()) for row in rows)


@pytest.mark.long
def test_a_history_runs_like_any_derived_flow(spark: SparkSession, tmp_path: Path) -> None:
    it = Chain(tmp_path / "project", spark, flights=EVENTS, statuses=HISTORY, spans=SPANS)
    it.deliver(it.row(1, 0, "A", seq=10), it.row(1, 0, "B", seq=30), it.row(2, 0, "A", seq=10))
    it.run()
    assert _statuses(it) == [
        (1, 10, 30, "A"),
        (1, 30, None, "B"),
        (2, 10, None, "A"),
    ] and it.proven("statuses")
    it.deliver(it.row(1, 0, "C", seq=20), it.row(2, 0, seq=40, op="d"))
    it.run("flights")
    assert it.waits("statuses")
    left = ["merged"]

    def dying(name: str) -> None:
        if left and name == left[0]:
            left.clear()
            raise Injected(name)

    with pytest.raises(Injected):
        it.drain("statuses", reached=dying)
    it.run("statuses")
    history = [(1, 10, 20, "A"), (1, 20, 30, "C"), (1, 30, None, "B"), (2, 10, 40, "A")]
    assert _statuses(it) == history and it.proven("statuses") and not it.waits("statuses")
    rows = ledger_table.recent(it.layout("statuses"), 9)
    assert [(row.inserted, row.updated, row.deleted, row.unchanged) for row in rows] == [
        (3, 0, 0, 0),
        (1, 2, 0, 1),
    ]
    table = it.layout("statuses").tables.target.path
    spark.sql(f"delete from delta.`{table}` where id = 2")
    spark.sql(f"update delta.`{table}` set __END_AT = 25 where __END_AT = 30")
    assert not it.proven("statuses")
    found = reset.plan(it.request("statuses"))
    with open_flow(it.spec, "statuses", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(it.request("statuses"), found, by="me", accept_missing=False)
    it.run("statuses")
    assert _statuses(it) == history and it.proven("statuses")
    it.run()
    assert it.rows("spans") == [(1, 3, 30, 30), (2, 1, 40, 10)], (
        "a flow reads starts and ends like other columns"
    )


@pytest.mark.long
def test_a_history_is_replayed_and_rebuilt_under_another_sequence(
    spark: SparkSession, tmp_path: Path
) -> None:
    it, since = Chain(tmp_path / "project", spark, flights=EVENTS, statuses=HISTORY), now()
    it.deliver(it.row(1, 5, "A", seq=10), it.row(1, 7, "B", seq=10), it.row(1, 6, "C", seq=20))
    it.run()
    assert _statuses(it) == [(1, 10, 20, "B"), (1, 20, None, "C")], (
        "of two at one sequence the greater counts"
    )
    table = it.layout("statuses").tables.target.path
    spark.sql(f"delete from delta.`{table}` where __START_AT = 10")
    request = it.request("statuses").model_copy(update={"replay": Again(since=since, until=now())})
    assert replay(request, spark, progress=lambda line: None).outcome == "done"
    assert (
        _statuses(it) == [(1, 10, 20, "B"), (1, 20, None, "C")]
        and it.check("statuses").outcome == "done"
    )

    document = json.loads(it.spec.model_dump_json(exclude_none=True))
    document["flows"]["statuses"]["target"] |= {
        "sequence_by": ["seq", "at"],
        "track_history": ["carrier"],
    }
    it.spec = PipelineSpec.model_validate(document)
    with pytest.raises(TerminalError) as error:
        it.drain("statuses")
    assert error.value.code == "derivation-changed"
    assert rebuild(it.request("statuses"), spark, progress=lambda line: None).outcome == "done"
    assert it.check("statuses").outcome == "done" and it.proven("statuses")
    it.deliver(it.row(1, 6, "A", seq=10))
    it.run()
    rows = Table(table).rows('select "__START_AT" as s, carrier from t')
    carriers = {(row["s"]["seq"], _minute(row["s"]["at"])): row["carrier"] for row in rows}
    assert carriers == {(10, 5): "A", (10, 7): "B", (20, 6): "C"} and it.proven("statuses")


@pytest.mark.long
def test_the_example_of_the_docs_keeps_the_history_of_the_demos_flights(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "pipeline-files.md").read_text()
    section = text.partition("### A history of the demo's flights")[2]
    document = section.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "dags" / "pipelines").mkdir(parents=True)
    (tmp_path / "dags" / "pipelines" / "flight_history.yaml").write_text(document)
    events.generate(tmp_path / "landing", 0.002)
    spec = rooted(
        loader.load(tmp_path / "dags" / "pipelines" / "flight_history.yaml", {}), tmp_path
    )
    for flow in spec.graph.order:
        for step, work in (("drain", drain), ("check", check)):
            request = Request(spec=spec, flow=flow, step=step, run_id="r", root=str(tmp_path))
            work(request, spark)
    source, table = (
        spec.layout(flow).tables.target for flow in ("flight_events", "flight_history")
    )
    columns = ("flight_id", "status", "dep_delay", "updated_at")
    landed = source.rows(f"select {', '.join(columns)} from t")
    rows = fold(
        landed,
        ["flight_id"],
        ["updated_at"],
        ["status"],
        lambda event: event["status"] == "withdrawn",
    )
    held = table.rows(f'select "__START_AT" as s, "__END_AT" as e, {", ".join(columns)} from t')
    expected = [
        (*row["start"], (row["end"] or [None])[0], *(row[name] for name in columns)) for row in rows
    ]
    assert sorted((tuple(row.values()) for row in held), key=str) == sorted(expected, key=str)
    assert len(landed) > len(held) > len({row["flight_id"] for row in held}) > 500

    ended = next(row for row in rows if row["end"] is not None)
    key, (at,) = ended["flight_id"], ended["start"]
    capsys.readouterr()
    assert (
        main(
            [
                "--root",
                str(tmp_path),
                "as-of",
                "flight_history",
                at.isoformat(),
                "--key",
                key,
                "--json",
            ]
        )
        == 0
    )
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    assert (
        found["status"] == ended["status"]
        and datetime.fromisoformat(found["__END_AT"]) == ended["end"][0]
    )
    (sql,) = re.findall(r"^\| Spark \| ``(.*)`` \|$", text, re.MULTILINE)
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    valid = [
        row
        for row in rows
        if row["start"][0] <= noon and (row["end"] is None or row["end"][0] > noon)
    ]
    answered = spark.sql(sql.replace("lake/tables/flight_history", table.path)).collect()
    assert (
        sorted(row["flight_id"] for row in answered)
        == sorted(row["flight_id"] for row in valid)
        != []
    )
