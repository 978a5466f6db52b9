"""Rows that are merged column by column, over real tables: late, repeated and partial records,
crashes, recovery.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.audit.recount import audit
from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.config.partial import SEQUENCES
from draindown.doctor.examination import examine
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow, conserve
from draindown.provenance.model import Trace
from draindown.provenance.why import Question, why
from draindown.recovery import rebuild as rebuild_plan
from draindown.recovery import reset
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.request import Again
from draindown.sinks import registry
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_input import replay
from tests.landing import KEYED, Injected, Landing
from tests.merging import merge
from tests.sinks.fake import FakeServer, FakeSink
from tests.spark.test_derived_flow import CARRIERS, FLIGHTS, Chain
from tests.spark.test_withdrawal import SANE, Gated

MERGED = KEYED | {"ignore_null_updates": True}
SOME = KEYED | {"ignore_null_updates": ["a", "b"]}
_NAMES = ("id", "seq", "op", "a", "b", "part", "region")


def line(id: str, seq: int, **given: Any) -> str:
    return json.dumps({"id": id, "seq": seq, **given})


def delete(id: str, seq: int) -> str:
    return line(id, seq, op="d")


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> Callable[..., Landing]:
    return lambda **flow: Landing(tmp_path, spark, **{"target": MERGED, **flow})


def held(it: Landing) -> list[str]:
    rows = it.rows(f"id, seq, op, a, b, part, region, {SEQUENCES}")
    return sorted(
        str([*(row[name] for name in _NAMES), sorted(dict(row[SEQUENCES]).items())]) for row in rows
    )


def folded(it: Landing, lines: Sequence[str]) -> list[str]:
    records = [dict.fromkeys(_NAMES) | json.loads(one) for one in lines]
    part = it.spec.flows["f"].target.partial
    partial = part.columns(_NAMES)
    whole = [name for name in _NAMES if name not in (*partial, "id", "seq")]
    found = merge(records, ["id"], ["seq"], whole, partial, lambda one: one["op"] == "d")
    return sorted(
        str(
            [
                *(row[name] for name in _NAMES),
                sorted((name, at) for name, (at,) in sequences.items()),
            ]
        )
        for row, sequences in found
    )


def accounts(it: Landing) -> list[BatchRow]:
    """The ledger's rows, each of which adds up; their rows are those of the table and of the
    tombstones.
    """
    rows = [conserve(BatchRow.from_dict(row)) for row in it.ledger()]
    assert sum(row.inserted - row.deleted for row in rows) == len(it.rows("1"))
    buried = it.tombstones() if it.layout.tables.tombstones.exists else []
    assert sum(row.deleted + row.tombstoned for row in rows) == len(buried)
    return rows


@pytest.mark.full
def test_a_record_changes_the_columns_that_it_has_whatever_order_records_come_in(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    it, came = landing(), list[str]()

    def step(*lines: str) -> BatchRow:
        it.deliver(*lines)
        came.extend(lines)
        it.apply(spark)
        assert held(it) == folded(it, came)
        return accounts(it)[-1]

    row = step(line("k", 1, a=1, b="x"), line("k", 3, a=3), line("k", 3, a=3), line("c", 1, b="c"))
    assert (row.applied, row.duplicate, row.inserted) == (3, 1, 2), (
        "both records of k gave it a value"
    )
    row = step(line("k", 2, a=2, part="p"), line("k", 2, a=2), line("k", 4))
    assert (row.applied, row.superseded, row.updated) == (2, 1, 1), (
        "an older record gives what is older still"
    )
    assert it.rows("seq, a, b, part", where="id = 'k'") == [
        {"seq": 4, "a": 3, "b": "x", "part": "p"}
    ]
    row = step(line("k", 3, a=3), line("k", 1, a=9), line("k", 4))
    assert (row.applied, row.superseded, row.duplicate, row.updated) == (0, 1, 2, 0)
    row = step(delete("k", 2))
    assert (row.applied, row.updated, row.deleted, row.tombstoned) == (1, 1, 0, 1), (
        "a late delete clears what is older"
    )
    assert it.rows("seq, a, b, part", where="id = 'k'") == [
        {"seq": 4, "a": 3, "b": None, "part": None}
    ]
    row = step(
        line("k", 1, region="old"), line("k", 2, region="tie"), delete("k", 2), delete("k", 1)
    )
    assert (row.applied, row.superseded, row.duplicate) == (0, 3, 1), (
        "nothing from before a delete returns"
    )
    row = step(delete("k", 9), delete("n", 5), line("n", 4, a=1))
    assert (row.applied, row.superseded, row.deleted, row.tombstoned) == (2, 1, 1, 1)
    row = step(line("n", 6, b="back"), line("k", 9, a=1), line("c", 1, b="d"), line("c", 1, a=5))
    assert (row.applied, row.superseded, row.inserted, row.updated) == (3, 1, 1, 1), (
        "at one sequence the greater value"
    )
    assert sum(row.records for row in accounts(it)) == len(came)
    found = audit(it.spec, "f", root=it.home)
    assert found.clean and not found.unlooked


_GAPS = ("begun", "read", "inputs", "quarantined", "remembered", "merged", "recorded")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_random_records_survive_a_crash_in_every_gap(
    landing: Callable[..., Landing], spark: SparkSession, seed: int
) -> None:
    draw, it, came = Random(seed), landing(target=SOME if seed % 2 else MERGED), list[str]()
    for _ in range(5):
        for _ in range(draw.randint(1, 2)):
            lines = []
            for _ in range(draw.randint(1, 12)):
                some = {
                    name: draw.choice("xy")
                    for name in ("b", "part", "region")
                    if draw.random() < 0.4
                }
                some |= {"a": draw.choice((1, 2, 3))} if draw.random() < 0.4 else {}
                one = line(draw.choice("abc"), draw.randrange(9), **some)
                lines += [
                    delete(draw.choice("abc"), draw.randrange(9)) if draw.random() < 0.15 else one
                ]
            it.deliver(*lines, *lines[:2], "broken")
            came += lines
        for fault in draw.sample(_GAPS, 2):
            try:
                it.apply(spark, fault=fault)
            except Injected:
                continue
        it.apply(spark)
        assert held(it) == folded(it, came)
        accounts(it)
    assert audit(it.spec, "f", root=it.home).clean
    wrong = [one.code for one in examine(it.request()).symptoms if one.level == "wrong"]
    assert wrong == ["checkpoint-missing"], "which `apply` never writes"


@pytest.mark.long
def test_merged_rows_are_replayed_and_reset(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    since, it = now(), landing()
    came = [
        line("k", 1, a=1),
        line("k", 3, b="x"),
        delete("g", 4),
        line("g", 2, a=1),
        line("k", 2, a=2),
    ]
    it.deliver(*came)
    it.drain(spark)
    before = it.rows("*")
    again = it.request().model_copy(update={"replay": Again(since=since, until=now())})
    assert replay(again, spark, progress=lambda line: None).outcome == "done"
    assert it.rows("*") == before and accounts(it)[-1].events == 0, (
        "what is read again changes nothing"
    )
    found = reset.plan(it.request())
    assert found.keyed
    with open_flow(it.spec, "f", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(it.request(), found, by="me", accept_missing=False)
    it.deliver(line("k", 4, part="p"))
    it.drain(spark)
    came.append(line("k", 4, part="p"))
    assert held(it) == folded(it, came) and audit(it.spec, "f", root=it.home).clean


@pytest.mark.long
def test_other_columns_and_whole_rows_need_a_rebuild(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    it, came = (
        landing(),
        [line("k", 1, a=1), line("k", 3, b="x"), delete("g", 4), line("g", 2, a=1)],
    )
    it.deliver(*came)
    it.drain(spark)
    content = json.loads(it.spec.model_dump_json(exclude_none=True))
    for target in (SOME, KEYED, MERGED):
        content["flows"]["f"]["target"] = target
        it.spec = PipelineSpec.model_validate(content)
        came.append(line("k", 5 + len(came), a=len(came)))
        it.deliver(came[-1])
        with pytest.raises(TerminalError) as error:
            it.drain(spark)
        assert error.value.code == "table-mismatch"
        planned = rebuild_plan.plan(it.request()).changes
        assert ("rows: of whole records" in planned) == (target is KEYED)
        assert rebuild(it.request(), spark, progress=lambda line: None).outcome == "done"
        assert audit(it.spec, "f", root=it.home).clean
        if "ignore_null_updates" in target:
            assert held(it) == folded(it, came)
    assert {row.form for row in ledger_table.recent(it.layout, 1)} == {"partial"}


@pytest.mark.long
def test_rows_that_were_withdrawn_before_their_table_was_merged_stay_out_and_come_back(
    landing: Callable[..., Landing], spark: SparkSession, tmp_path: Path
) -> None:
    """Such a row is one record, which is kept out alone."""
    it = Gated(spark, tmp_path, SANE, target=KEYED)
    came = [line("k", 1, b="x"), line("k", 2, a=-1, part="p"), line("c", 1, a=1)]
    it.deliver(*came)
    it.drain(spark)
    assert it.withdraw() == {"k": 2}
    content = json.loads(it.spec.model_dump_json(exclude_none=True))
    content["flows"]["f"]["target"] = MERGED
    it.spec = PipelineSpec.model_validate(content)
    assert rebuild(it.request(), spark, progress=lambda line: None).outcome == "done"
    assert held(it) == folded(it, [came[0], came[2]]) and audit(it.spec, "f", root=it.home).clean
    it.release(*it.open("k"))
    assert held(it) == folded(it, came) and audit(it.spec, "f", root=it.home).clean
    assert not [one for one in it.refuse().next if "quarantine" in one], (
        "a merged row is not offered to be withdrawn"
    )
    with pytest.raises(TerminalError, match="merged column by column") as error:
        it.withdraw()
    assert error.value.code == "withdraw-needs-keys"


@pytest.mark.long
def test_what_reads_merged_rows_sees_values_and_no_sequences(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, sink = (
        FakeServer(),
        {"postgres": {"url": "postgresql://u:${secret:X}@host:5432/d", "table": "t"}},
    )
    monkeypatch.setitem(
        registry.MAKERS, "postgres", lambda spec, place, environ: FakeSink(server, place)
    )
    merged = FLIGHTS | {
        "target": FLIGHTS["target"] | {"ignore_null_updates": True},
        "sinks": {"every": sink},
    }
    worst = {
        "source": {"table": "flights"},
        "top": {"group_by": ["carrier"], "order_by": ["delay desc"], "rows": 3},
    }
    it, draw = Chain(tmp_path, spark, flights=merged, carriers=CARRIERS, worst=worst), Random(42)
    for at in range(4):
        rows = [it.row(draw.randrange(12), None, None, delay=None) for _ in range(20)]
        rows = [
            one | draw.choice(({"delay": 5}, {"carrier": "AA"}, {"carrier": "B6", "delay": at}))
            for one in rows
        ]
        rows += [
            {"id": 3, "seq": draw.randrange(60), "op": "d"},
            {"id": 4, "seq": 1, "noise": "late"},
        ]
        it.deliver(*rows)
        it.run()
        held = it.layout("flights").tables.target.rows(
            "select id, seq, carrier, delay, noise from t"
        )
        sent = [{name: row[name] for name in held[0]} for row in server.rows.values()]
        assert sorted(map(str, sent)) == sorted(map(str, held))
        assert not [name for row in server.rows.values() for name in row if name == SEQUENCES]
        assert SEQUENCES not in it.layout("worst").tables.target.column_types
    it.run()
    assert it.proven("worst")  # a query of `query` is only Spark's
    assert audit(it.spec, "flights", root=it.home).clean
    for batch in ledger_table.recent(it.layout("flights"), 9):
        assert (
            sum(batch.sinks["every"].values())
            == batch.inserted + batch.updated + batch.deleted
            == batch.offered
        )


@pytest.mark.long
def test_why_names_the_records_that_each_value_is_from(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    it = landing()
    it.deliver(line("k", 1, a=1, b="x"), line("k", 5, part="p"))
    it.apply(spark)
    it.deliver(line("k", 3, a=3), line("k", 2, a=2), line("k", 3, a=3), delete("g", 4))
    it.apply(spark)

    def told(key: str) -> Trace:
        asked = Question(
            it.spec, "f", it.home, {"id": key}, 10, False, lambda _: it.spec, lambda _: None
        )
        (found,) = why(asked)
        return found

    found = told("k")
    records = {(Path(one.input).name, one.position): (one.fate, one.why) for one in found.records}
    assert records == {
        ("001.json", 1): ("applied", "seq 1: b of the row"),
        ("001.json", 2): ("applied", "seq 5: part, seq of the row"),
        ("002.json", 1): ("applied", "seq 3: a of the row"),
        ("002.json", 2): ("superseded", "seq 2: no value of the row is from it now"),
        ("002.json", 3): ("duplicate", "seq 3: the same change again"),
    }
    assert found.said.startswith("merged from ") and found.said.count(".json:") == 3
    assert (told("g").state, told("n").state) == ("deleted", "never-seen")


@pytest.mark.long
def test_a_column_that_input_adds_is_merged_like_any_other(
    landing: Callable[..., Landing], spark: SparkSession
) -> None:
    it = landing(drift={"new_columns": "add"})
    for some in (
        [line("k", 1, extra="e"), line("k", 3, a=1)],
        [line("k", 2, extra="f", more="m")],
        [line("k", 1, b="x")],
    ):
        it.deliver(*some)
        it.apply(spark)
    (row,) = it.rows(f"seq, a, b, extra, more, {SEQUENCES}")
    assert dict(row.pop(SEQUENCES)) == {"a": 3, "b": 1, "extra": 2, "more": 2}
    assert row == {"seq": 3, "a": 1, "b": "x", "extra": "f", "more": "m"}
    assert audit(it.spec, "f", root=it.home).clean


@pytest.mark.long
@pytest.mark.parametrize("target", [SOME, MERGED], ids=["list", "all"])
def test_a_column_that_leaves_the_contract_stays_of_its_kind(
    landing: Callable[..., Landing], spark: SparkSession, target: dict[str, Any]
) -> None:
    it = landing(target=target)
    it.deliver(line("k", 1, a=1, b="x", part="p"))
    it.apply(spark)
    content = json.loads(it.spec.model_dump_json(exclude_none=True))
    flow = content["flows"]["f"]
    for name in ("b", "part"):
        del flow["columns"][name]
    named = flow["target"]["ignore_null_updates"]
    if isinstance(named, list):
        flow["target"]["ignore_null_updates"] = [name for name in named if name in flow["columns"]]
    it.spec = PipelineSpec.model_validate(content)
    it.deliver(line("k", 2, a=2))
    it.apply(spark)
    left = {
        name: value if target is MERGED or name in named else None
        for name, value in (("b", "x"), ("part", "p"))
    }
    assert it.rows("a, b, part", where="id = 'k'") == [{"a": 2} | left]
