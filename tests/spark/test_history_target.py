"""A history that records land in, over real tables: late and repeated events, crashes, replays,
resets, rebuilds.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.audit.recount import audit
from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.config import loader
from draindown.config.models import PipelineSpec
from draindown.config.project import rooted
from draindown.doctor.examination import examine
from draindown.lake import delta
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow, conserve
from draindown.provenance.model import Trace
from draindown.provenance.why import Question, why
from draindown.recovery import rebuild as rebuild_plan
from draindown.recovery import reset
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.request import Again, Request
from draindown.spark.checks.check import check
from draindown.spark.runs.drain import drain
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_input import replay
from draindown.spark.targets import memory
from examples.flights import events
from tests.folding import fold
from tests.landing import COLUMNS, KEYED, Injected, Landing
from tests.spark.test_withdrawal import NAME, SANE, Gated

HISTORY = KEYED | {"stored_as_scd_type": 2}
TRACKED = HISTORY | {"track_history": ["a"]}
_NAMES = ("id", "seq", "op", "a", "b", "part", "region")


def line(id: str, seq: int, a: int | None = 1, **more: Any) -> str:
    return json.dumps({"id": id, "seq": seq, "a": a, **more})


def delete(id: str, seq: int) -> str:
    return line(id, seq, None, op="d")


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> Callable[..., Landing]:
    return lambda **flow: Landing(tmp_path, spark, **{"target": TRACKED, **flow})


def runs(it: Landing) -> list[tuple[Any, ...]]:
    """Key, start, end, the tracked value, and an untracked one of each row."""
    rows = it.rows('id, "__START_AT" as s, "__END_AT" as e, a, b')
    return sorted((row["id"], row["s"], row["e"], row["a"], row["b"]) for row in rows)


def folded(lines: Sequence[str], tracked: Sequence[str] = ("a",)) -> list[tuple[Any, ...]]:
    events = [dict.fromkeys(_NAMES) | json.loads(one) for one in lines]
    found = fold(events, ["id"], ["seq"], tracked, lambda event: event["op"] == "d")
    return sorted(
        (row["id"], *row["start"], (row["end"] or [None])[0], row["a"], row["b"]) for row in found
    )


def accounts(it: Landing) -> list[BatchRow]:
    """The ledger's rows, each of which adds up; their rows are those of the table."""
    rows = [conserve(BatchRow.from_dict(row)) for row in it.ledger()]
    assert sum(row.inserted - row.deleted for row in rows) == len(it.rows("1"))
    hidden = [] if not it.layout.tables.hidden.exists else it.read(it.layout.tables.hidden.path)
    assert sum(row.hidden for row in rows) == len(hidden)
    return rows


@pytest.mark.full
def test_rows_split_join_and_go_whatever_order_events_come_in(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    it, came = landing(), list[str]()

    def step(*lines: str) -> BatchRow:
        it.deliver(*lines)
        came.extend(lines)
        it.apply(spark)
        assert runs(it) == folded(came)
        return accounts(it)[-1]

    row = step(
        line("k", 39, 1), line("k", 41, 1, b="x"), line("b", 42), line("c", 43), line("c", 43)
    )
    assert (row.applied, row.duplicate, row.opened, row.hidden) == (4, 1, 3, 1), (
        "the first event of a run is hidden"
    )
    row = step(line("k", 40, 2, b="late"))
    assert (row.applied, row.opened, row.split, row.closed) == (1, 1, 1, 1)
    assert runs(it)[2:] == [
        ("k", 39, 40, 1, None),
        ("k", 40, 41, 2, "late"),
        ("k", 41, None, 1, "x"),
    ]
    row = step(delete("b", 50), delete("b", 60), delete("d", 5), line("b", 42))
    assert (row.applied, row.duplicate, row.closed, row.hidden) == (3, 1, 1, 2), (
        "deletes without a row are hidden"
    )
    row = step(line("b", 55, 7), line("d", 1, 3), line("d", 5, 4))
    assert (row.applied, row.superseded, row.opened) == (2, 1, 2), (
        "a delete wins at its sequence, whenever it came"
    )
    row = step(delete("k", 40))
    assert (row.applied, row.removed) == (1, 1), (
        "a delete at the sequence of a row's first event removes the row"
    )
    row = step(line("k", 40, 1), line("k", 42, 1), line("k", 41, 1, b="y"))
    assert (row.applied, row.superseded, row.changed) == (2, 1, 1)
    events = [json.loads(one) for one in came]
    assert sum(row.records for row in accounts(it)) == len(events)
    assert audit(it.spec, "f", root=it.home).clean


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("decimal(20,0)", TRACKED),
        pytest.param("decimal(18,2)", TRACKED, marks=pytest.mark.full),
        pytest.param("decimal(20,0)", KEYED, marks=pytest.mark.full),
        pytest.param("decimal(18,2)", KEYED, marks=pytest.mark.full),
    ],
    ids=["hidden-whole", "hidden-cents", "tombstones-whole", "tombstones-cents"],
)
def test_what_deltalake_wrote_anew_is_found_by_keys_that_are_decimals(
    landing: Callable[..., Landing],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    target: Any,
) -> None:
    """Its statistics of decimals are rounded, and a swap writes these tables by it."""
    monkeypatch.setattr(memory, "FEW_HELD", 0)  # else a process reads all tombstones
    it = landing(target=target, columns=COLUMNS | {"id": f"{kind} not null"})
    key = "17829072001234567890" if kind == "decimal(20,0)" else "1234567890123456.78"
    it.deliver(line(key, 1), line(key, 3), line(key, 5), delete(key, 7))
    it.apply(spark)
    side = it.layout.tables.memory(it.spec.flows["f"].target.kind.memory).path
    shutil.copytree(side, it.home / "copy")
    delta.replace(Table(side), Table(str(it.home / "copy")), app=("swap", 1))
    it.deliver(line(key, 2, 2))
    it.apply(spark)
    assert it.read(side), "there is something to find"
    if target is KEYED:
        assert not it.rows("id") and it.ledger()[-1]["superseded"] == 1
    else:
        assert [one[1:4] for one in runs(it)] == [(1, 2, 1), (2, 3, 2), (3, 7, 1)]


_GAPS = ("begun", "read", "inputs", "quarantined", "remembered", "merged", "recorded")


@pytest.mark.full
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(one, marks=pytest.mark.long) for one in range(1, 10))]
)
def test_random_events_survive_a_crash_in_every_gap(
    landing: Callable[..., Landing], spark: SparkSession, seed: int
) -> None:
    draw, it, came = (
        Random(seed),
        landing(target=HISTORY | {"track_history": {"except": ["b", "part"]}}),
        list[str](),
    )
    for at in range(3 if seed == 0 else 7):
        for _ in range(draw.randint(1, 2)):
            lines = []
            for _ in range(draw.randint(1, 12)):
                extra = {"b": draw.choice("xy")} if draw.random() < 0.5 else {}
                one = line(
                    draw.choice("abc"), draw.randrange(9), draw.choice((None, 1, 2)), **extra
                )
                lines += [
                    delete(draw.choice("abc"), draw.randrange(9)) if draw.random() < 0.2 else one
                ]
            it.deliver(*lines, *lines[:2], "broken")
            came += lines
        for fault in (
            draw.sample(_GAPS, 2) if seed else (("remembered",), ("merged",), ("recorded",))[at]
        ):
            try:
                it.apply(spark, fault=fault)
            except Injected:
                continue
        it.apply(spark)
        assert runs(it) == folded(came, ("a", "op", "region"))
        accounts(it)
    assert audit(it.spec, "f", root=it.home).clean


@pytest.mark.full
def test_fifty_histories_in_four_batches_equal_the_fold_of_their_events(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    """Some come in order, and change nothing for days; others late. The audit folds them in DuckDB,
    by its own code.
    """
    draw, it, came = Random(50), landing(), list[str]()
    for day in range(4):
        lines = [line(f"k{key:02}", 100 + day, 1, b=f"day {day}") for key in range(25)]
        for _ in range(120):
            key, seq = f"k{draw.randrange(25, 50)}", draw.randrange(12)
            event = line(key, seq, draw.choice((None, 1, 2)), b=draw.choice("xy"))
            lines.append(delete(key, seq) if draw.random() < 0.2 else event)
        lines += [line(f"k{draw.randrange(25):02}", draw.choice((50, 101)), 1, b="late")] * (
            day == 3
        )
        it.deliver(*lines)
        came += lines
        it.apply(spark)
        assert runs(it) == folded(came)
        accounts(it)
    assert audit(it.spec, "f", root=it.home).clean


@pytest.mark.long
def test_a_history_is_replayed_reset_and_rebuilt(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    since, it = now(), landing()
    came = [
        line("k", 1, 1),
        line("k", 3, 1, b="x"),
        line("k", 2, 2),
        delete("j", 4),
        line("j", 2, 1),
    ]
    it.deliver(*came)
    it.drain(spark)
    before = it.rows("*")
    again = it.request().model_copy(update={"replay": Again(since=since, until=now())})
    assert replay(again, spark, progress=lambda line: None).outcome == "done"
    assert it.rows("*") == before and accounts(it)[-1].duplicate == len(came)
    found = reset.plan(it.request())
    with open_flow(it.spec, "f", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(it.request(), found, by="me", accept_missing=False)
    it.deliver(line("k", 4, 2))
    it.drain(spark)
    came.append(line("k", 4, 2))
    assert runs(it) == folded(came) and audit(it.spec, "f", root=it.home).clean

    content = json.loads(it.spec.model_dump_json(exclude_none=True))
    for target, code in (
        (HISTORY | {"track_history": ["b"]}, "history-changed"),
        (KEYED, "table-mismatch"),
    ):
        content["flows"]["f"]["target"] = target
        it.spec = PipelineSpec.model_validate(content)
        it.deliver(line("k", 5 + len(came), 2))
        came.append(line("k", 5 + len(came), 2))
        with pytest.raises(TerminalError) as error:
            it.drain(spark)
        assert error.value.code == code
        planned = rebuild_plan.plan(it.request()).changes
        assert ("rows: no history any more" in planned) == (target is KEYED)
        assert rebuild(it.request(), spark, progress=lambda line: None).outcome == "done"
        assert audit(it.spec, "f", root=it.home).clean
        if target is not KEYED:
            assert runs(it) == folded(came, ("b",))
    assert [row["id"] for row in it.rows("id")] == ["k"], (
        "the newest row per key, of which j is deleted"
    )
    content["flows"]["f"]["target"] = TRACKED
    it.spec = PipelineSpec.model_validate(content)
    with pytest.raises(TerminalError):
        it.deliver(line("z", 1))
        it.drain(spark)
    came.append(line("z", 1))
    assert rebuild(it.request(), spark, progress=lambda line: None).outcome == "done"
    assert runs(it) == folded(came) and audit(it.spec, "f", root=it.home).clean
    assert {row.form for row in ledger_table.recent(it.layout, 1)} == {"history"}


@pytest.mark.long
def test_a_history_that_is_put_aside_begins_anew_by_another_contract(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    """Hidden events of the old one have values that no record gives any more, and some of a file
    that is gone.
    """
    it = landing(target=HISTORY | {"track_history": ["b"]})
    lost = it.deliver(line("k", 5, b="x"), line("k", 6, b="x"), delete("k", 7))
    it.deliver(line("k", 3, b="x"), line("k", 4, b="x"), delete("j", 4))
    it.drain(spark)
    assert accounts(it)[-1].hidden
    lost.unlink()
    content = json.loads(it.spec.model_dump_json(exclude_none=True))
    content["flows"]["f"]["columns"] |= {"a": "string", "b": "string"}
    content["flows"]["f"]["transform"] = "upper.run"
    it.transform("upper", "def run(rows):\n    return rows.withColumn('b', F.upper('b'))\n")
    it.spec = PipelineSpec.model_validate(content)
    with open_flow(it.spec, "f", Needs.FINISHED, owner="me", run_id="reset"):
        found = reset.plan(it.request(), table_aside=True)
        reset.begin(it.request(), found, by="me", accept_missing=True)
    it.drain(spark)
    assert runs(it) == [("k", 3, None, "1", "X")]
    assert not [one.code for one in examine(it.request()).symptoms if one.level == "wrong"]


@pytest.mark.long
@pytest.mark.parametrize(
    "target", [HISTORY, KEYED | {"ignore_null_updates": True}], ids=["history", "merged"]
)
def test_the_audit_says_which_records_had_a_field_before_it_was_a_column(
    landing: Callable[..., Landing], spark: SparkSession, target: dict[str, Any]
) -> None:
    since, it = now(), landing(target=target)
    it.deliver(line("k", 1, x="v"), line("j", 1), line("i", 1, x=None))
    it.drain(spark)
    assert audit(it.spec, "f", root=it.home).clean
    content = json.loads(it.spec.model_dump_json(exclude_none=True))
    content["flows"]["f"]["columns"]["x"] = "string"
    it.spec = PipelineSpec.model_validate(content)
    early = "the keys of 1 record with a value in a column that was not there when it was read"

    def right(*, filled: bool) -> None:
        found = audit(it.spec, "f", root=it.home)
        assert found.clean, str(found)
        assert any(one.startswith(early) for one in found.unlooked) != filled, found.unlooked

    right(filled=False)  # before anything was read by the new contract
    it.deliver(line("k", 2, x="w"), line("j", 2, x="w"))
    it.drain(spark)
    right(filled=False)
    again = it.request().model_copy(update={"replay": Again(since=since, until=now())})
    assert replay(again, spark, progress=lambda line: None).outcome == "done"
    right(filled=True)


@pytest.mark.long
def test_the_audit_judges_rows_by_the_columns_that_a_transform_gives(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    it = landing(target=HISTORY, transform="days.run")
    it.transform(
        "days",
        "def run(rows):\n    return rows.withColumn('day', F.col('seq') + 0).drop('region')\n",
    )
    it.deliver(line("k", 1), line("k", 2), line("j", 1))
    it.drain(spark)
    assert len(it.rows()) == 3
    found = audit(it.spec, "f", root=it.home)
    assert found.clean and any("days.run is not run" in one for one in found.unlooked), str(found)
    spark.sql(f"update delta.`{it.layout.tables.target.path}` set day = 1 where id = 'k'")
    assert "row-not-joined" in {one.kind for one in audit(it.spec, "f", root=it.home).residues}


UNIQUE = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}}


class Withdrawn(Gated):
    """A history behind a gate, and the events of which somebody keeps rows out."""

    def right(self, came: Sequence[str], out: Sequence[str] = ()) -> None:  # type: ignore[override]
        kept_out = [json.loads(one) for one in out]
        left = [one for one in came if json.loads(one) not in kept_out]
        assert runs(self) == folded(left)
        accounts(self)
        found = audit(self.spec, "f", root=self.home)
        assert found.clean, str(found)
        assert not [one.code for one in examine(self.request()).symptoms if one.level == "wrong"]


@pytest.mark.long
@pytest.mark.parametrize("fault", [None, "quarantined", "remembered"])
def test_an_interval_is_withdrawn_with_its_events_alone_and_comes_back(
    spark: SparkSession, tmp_path: Path, fault: str | None
) -> None:
    it = Withdrawn(spark, tmp_path, SANE, UNIQUE, target=TRACKED, columns=COLUMNS)
    came = [
        line("k", 1, 1, b="first"),
        line("k", 3, -5, b="x"),
        line("k", 5, -5, b="y"),
        line("k", 7, 1, b="last"),
    ]
    came += [line("j", 1, 1), line("j", 2, 2)]
    it.deliver(*came)
    it.drain(spark)
    assert _of_k(it) == [(1, 3, 1), (3, 7, -5), (7, None, 1)]
    if fault:
        with pytest.raises(Injected):
            it.withdraw(fault=fault)
    it.withdraw()
    assert _of_k(it) == [(1, None, 1)], "the neighbours join"
    out = came[1:3]
    it.right(came, out)
    row = accounts(it)[-1]
    assert (row.kind, row.records, row.applied, row.removed, row.joined, row.reopened) == (
        "withdraw",
        2,
        2,
        1,
        1,
        1,
    )
    it.publish()  # of an id several rows are closed, and one is open
    later = [line("k", 5, -5, b="y"), line("k", 4, 2), line("k", 5, -9, b="a"), delete("k", 3)]
    it.deliver(*later)
    it.drain(spark)
    row = accounts(it)[-1]
    assert (row.applied, row.superseded) == (2, 2), (
        "again, or less than a withheld event of its sequence: kept out"
    )
    it.right([*came, later[1], later[3]], [came[2]])
    ids = [one for one in it.open("k") if json.loads(_raw(it, one))["seq"] == 5]
    assert it.release(*ids).outcome == "done"
    row = accounts(it)[-1]
    assert (row.kind, row.records, row.applied) == ("release", 1, 1)
    it.right([*came, later[1], later[3]], [came[1]])
    assert _of_k(it) == [(1, 3, 1), (4, 5, 2), (5, 7, -5), (7, None, 1)]
    assert NAME in {one["reason"].removeprefix("gate:") for one in it.quarantine()}


@pytest.mark.long
def test_what_joins_when_an_interval_is_withdrawn_may_lie_in_another_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    it = Withdrawn(
        spark, tmp_path, SANE, UNIQUE, target=TRACKED | {"partition_by": ["part"]}, columns=COLUMNS
    )
    came = [line("k", 1, 1, part="x"), line("k", 3, -5, part="y"), line("k", 7, 1, part="x")]
    it.deliver(*came)
    it.drain(spark)
    it.withdraw()
    assert _of_k(it) == [(1, None, 1)], "the neighbours join"
    it.right(came, came[1:2])


def _of_k(it: Landing) -> list[tuple[Any, ...]]:
    return [row[1:4] for row in runs(it) if row[0] == "k"]


def _raw(it: Landing, id: str) -> str:
    (found,) = [row["raw"] for row in it.quarantine() if row["quarantine_id"] == id]
    return str(found)


@pytest.mark.long
def test_why_names_the_records_that_a_row_begins_with_has_and_ends_with(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    it = landing()
    it.deliver(
        line("k", 1, 1),
        line("k", 4, 2),
        line("k", 2, 1, b="x"),
        line("k", 2, 1),
        delete("g", 4),
        line("k", 4, 2),
    )
    it.apply(spark)
    it.deliver(
        line("k", 3, 1, b="y"),
        delete("k", 6),
        line("k", 6, 9),
        line("g", 4, 1),
        line("k", 3, 1, b="y"),
    )
    it.apply(spark)
    assert runs(it) == [("k", 1, 4, 1, "y"), ("k", 4, 6, 2, None)]

    def told(every: bool = False, **key: str) -> list[Trace]:
        return why(
            Question(it.spec, "f", it.home, key, 10, every, lambda _: it.spec, lambda _: None)
        )

    first, second = told(id="k")
    assert first.key == {"id": "k", "__START_AT": 1}
    assert _fates(first) == {
        ("001.json", 1): ("applied", "seq 1: begins the row"),
        ("001.json", 3): ("applied", "seq 2: in the row"),
        ("001.json", 4): ("superseded", "seq 2: less by its content than the event that counts"),
        ("002.json", 1): ("applied", "seq 3: in the row"),
        ("002.json", 5): ("duplicate", "seq 3: the same change again"),
        ("001.json", 2): ("applied", "seq 4: ends the row"),
        ("001.json", 6): ("duplicate", "seq 4: the same change again"),
    }
    assert (
        first.said.startswith("begins with the record at ")
        and "; 2 more in it; ends with that at" in first.said
    )
    assert _fates(second) == {
        ("001.json", 2): ("applied", "seq 4: begins the row"),
        ("001.json", 6): ("duplicate", "seq 4: the same change again"),
        ("002.json", 2): ("deleted", "seq 6: ends the row"),
        ("002.json", 3): ("superseded", "seq 6: a delete has the same sequence"),
    }
    assert told(id="k", __START_AT="4")[0] == second
    assert len(_fates(told(True, id="k", __START_AT="4")[0])) == 9
    (none,) = told(id="k", __START_AT="2")
    assert (none.state, none.said) == (
        "superseded",
        "its records are in other rows of the key: none begins there",
    )
    (gone,) = told(id="g")
    assert gone.state == "deleted" and _fates(gone)["002.json", 4] == (
        "superseded",
        "seq 4: a delete has the same sequence",
    )
    assert told(id="n")[0].state == "never-seen"


def _fates(trace: Trace) -> dict[tuple[str, int], tuple[str, str]]:
    return {(Path(one.input).name, one.position): (one.fate, one.why) for one in trace.records}


@pytest.mark.long
def test_columns_that_come_later_are_null_in_all_earlier_events(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    it = landing(drift={"new_columns": "add"})
    it.deliver(line("k", 1, 1), line("k", 2, 1))
    it.drain(spark)
    it.deliver(line("k", 3, 1, extra="e"), line("k", 5, 1), delete("z", 1))
    it.drain(spark)
    assert runs(it) == [("k", 1, None, 1, None)], "a column that drift made is not tracked"
    (row,) = it.rows("*")
    assert row["extra"] is None and {
        one["extra"] for one in it.read(it.layout.tables.hidden.path)
    } == {
        None,
        "e",
    }
    content = json.loads(it.spec.model_dump_json(exclude_none=True))
    content["flows"]["f"]["columns"]["late"] = "int"
    content["flows"]["f"]["target"]["track_history"] = ["a", "late"]
    it.spec = PipelineSpec.model_validate(content)
    it.deliver(line("k", 4, 1, late=7, extra="x"))
    it.drain(spark)
    assert [row[1:4] for row in runs(it)] == [(1, 4, 1), (4, 5, 1), (5, None, 1)]
    assert audit(it.spec, "f", root=it.home).clean
    content["flows"]["f"]["columns"]["extra"] = "string"
    content["flows"]["f"]["target"]["track_history"] = ["a", "late", "extra"]
    it.spec = PipelineSpec.model_validate(content)
    it.deliver(line("k", 6, 1))
    with pytest.raises(TerminalError, match="history-changed"):
        it.drain(spark)


@pytest.mark.long
def test_the_example_of_the_docs_keeps_the_history_of_the_demos_flights(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "pipeline-files.md").read_text()
    document = (
        text.partition("### A history that records land in")[2]
        .partition("```yaml\n")[2]
        .partition("```")[0]
    )
    (tmp_path / "dags" / "pipelines").mkdir(parents=True)
    (tmp_path / "dags" / "pipelines" / "flight_statuses.yaml").write_text(document)
    events.generate(tmp_path / "landing", 0.002)
    spec = rooted(
        loader.load(tmp_path / "dags" / "pipelines" / "flight_statuses.yaml", {}), tmp_path
    )
    for step, work in (("drain", drain), ("check", check)):
        work(
            Request(spec=spec, flow="flight_statuses", step=step, run_id="r", root=str(tmp_path)),
            spark,
        )
    layout = spec.layout("flight_statuses")
    assert audit(spec, "flight_statuses", root=tmp_path).clean
    names = 'flight_id, status, "__START_AT" as s, "__END_AT" as e'
    rows = layout.tables.target.rows(f"select {names} from t")
    known = [
        row
        for row in _landed(tmp_path)
        if None not in map(row.get, ("flight_id", "status", "updated_at"))
    ]
    wanted = fold(
        known,
        ["flight_id"],
        ["updated_at"],
        ["status"],
        lambda event: event["status"] == "withdrawn",
    )
    assert len(rows) == len(wanted) > len({row["flight_id"] for row in rows}) > 500
    ended = next(row for row in rows if row["e"] is not None)
    capsys.readouterr()
    words = [
        "as-of",
        "flight_statuses",
        ended["s"].isoformat(),
        "--key",
        ended["flight_id"],
        "--json",
    ]
    assert main(["--root", str(tmp_path), *words]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    assert (
        found["status"] == ended["status"]
        and datetime.fromisoformat(found["__END_AT"]) == ended["e"]
    )


def _landed(home: Path) -> Iterator[dict[str, Any]]:
    """The records of the demo's files that are JSON."""
    for path in (home / "landing" / "flights").iterdir():
        for record in gzip.decompress(path.read_bytes()).decode().splitlines():
            with suppress(ValueError):
                yield json.loads(record)
