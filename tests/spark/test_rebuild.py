"""Rebuilds: the table is what a fresh flow would have made, readers see the old one or the new one,
a crash changes nothing of that."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter

from draindown.audit.recount import audit
from draindown.base.clock import now
from draindown.base.errors import TerminalError, TransientError
from draindown.config.lease import LeaseSpec
from draindown.doctor.examination import examine
from draindown.flow import generations, quarantine
from draindown.gate import published as gate_published
from draindown.lake.lost_files import lost_files
from draindown.lake.table import Table
from draindown.planning import compaction
from draindown.recovery import swap
from draindown.recovery.abort import abort
from draindown.recovery.opening import lease_of
from draindown.runs.card import card
from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.spark.checks.check import check
from draindown.spark.limits import Stop
from draindown.spark.runs.compaction import rewrite
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_rows import replay as replay_rows
from draindown.spark.sql import STAMPS
from draindown.spark.targets import swap as targets_swap
from tests.landing import KEYED, Injected, Landing

COLUMNS = {
    "id": "string not null",
    "seq": "int not null",
    "op": "string",
    "a": "int",
    "region": "string",
}
ONE = {"max_files_per_trigger": 1}
OLD: dict[str, Any] = {
    "source": ONE,
    "columns": COLUMNS,
    "rules": {"sane": "a is null or a >= 0"},
    "transform": "own.tidy",
}
NEW: dict[str, Any] = OLD | {
    "columns": COLUMNS | {"id": "bigint not null"},
    "rules": {"sane": "a is null or a < 10"},
    "target": KEYED | {"partition_by": ["zone"]},
}
TIDY_OLD = "def tidy(df):\n    return df.withColumn('twice', F.col('a') * 3)\n"
TIDY_NEW = (
    "def tidy(df):\n    return df.withColumn('twice', F.col('a') * "
    "2).withColumn('zone', F.pmod('id', F.lit(2)))\n"
)


def land(landing: Landing, *numbers: int) -> None:
    """Files of changes, deletes and rows that the old rule refuses, the new one, or both
    contracts.
    """
    for batch in numbers:
        rows: list[dict[str, Any]] = [
            {
                "id": str(n % 9),
                "seq": batch * 10 + n % 4,
                "a": n - 2 if n < 14 else None,
                "region": f"r{n % 3}",
            }
            for n in range(20)
        ]
        rows += [{"id": str(n), "seq": batch * 10 + 5, "op": "d"} for n in range(batch, 9, 3)]
        rows += [{"id": "no number", "seq": batch, "a": 1}]
        landing.deliver(*[json.dumps(row) for row in rows], "no json", "", name=f"{batch:03}.json")


def content(path: str, version: int | None = None) -> Counter[str]:
    """The rows of a table without their stamps, by deltalake alone."""
    batches = (
        QueryBuilder()
        .register("t", DeltaTable(path, version=version))
        .execute("select * from t")
        .read_all()
    )
    import pyarrow as pa

    rows = pa.table(batches).to_pylist()
    return Counter(
        json.dumps({k: v for k, v in row.items() if k not in STAMPS}, sort_keys=True, default=str)
        for row in rows
    )


def refusals(landing: Landing) -> dict[tuple[str, int], str]:
    """State of each quarantined row, by file and record."""
    rows = quarantine.listed(landing.layout, quarantine.Filter(state=None))
    found = {
        (Path(row["origin"]["input"]).name, row["origin"]["position"]): row["state"] for row in rows
    }
    assert len(found) == len(rows), "a row stands in the quarantine twice"
    return found


def healthy(landing: Landing) -> None:
    found = audit(landing.spec, "f", root=landing.home)
    assert found.clean, str(found)
    page = examine(landing.request())
    assert page.exit == 0, str(page)


def rebuilt(
    landing: Landing, spark: SparkSession, fault: str | None = None, **more: Any
) -> StepReport:
    """Rebuild; with `fault`, die at that step."""

    def reached(step: str) -> None:
        if step == fault:
            raise Injected(step)

    hooks = {"reached": reached} | more
    return rebuild(landing.request("rebuild"), spark, progress=lambda line: None, **hooks)


@contextmanager
def polling(path: str) -> Iterator[list[Counter[str]]]:
    """Read the table again and again meanwhile; the states that were seen, each once, in their
    order.
    """
    seen: list[Counter[str]] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def poll() -> None:
        try:
            while not done.wait(0.05):  # leaves the rebuild some of the processor
                state = content(path)
                if not seen or seen[-1] != state:
                    seen.append(state)
        except BaseException as error:  # noqa: BLE001 - it is the test's to raise
            errors.append(error)

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        yield seen
    finally:
        done.set()
        reader.join()
    if errors:
        raise errors[0]


def publish(landing: Landing) -> gate_published.Published:
    state = gate_published.unpublished(landing.layout)
    assert state is not None
    pointer = {
        "version": state.version,
        "table_id": state.table_id,
        "changed_at": now(),
        "at": now(),
    }
    return gate_published.publish(
        landing.layout, gate_published.Published(**pointer, run_id="r", rows=1)
    )


@pytest.mark.full
def test_other_keys_or_another_sequence_need_a_rebuild(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of the keys that were would stay beside those of the keys that are."""
    it = Landing(tmp_path, target={"keys": ["id"], "sequence_by": ["seq"]})
    lines = [json.dumps({"id": "k", "seq": seq, "a": seq}) for seq in (1, 2)]
    it.deliver(lines[0])
    it.drain(spark)
    other = Landing(tmp_path, target={"keys": ["id", "seq"], "sequence_by": ["seq"]})
    other.deliver(lines[1], name="second.json")
    with pytest.raises(TerminalError) as caught:
        other.drain(spark)
    said = "keys: id of the table's rows, id, seq in the spec"
    assert (caught.value.code, caught.value.found) == ("table-mismatch", said)
    assert rebuild(other.request(), spark, progress=lambda line: None).outcome == "done"
    assert sorted(row["seq"] for row in other.rows("seq")) == [1, 2]
    it.deliver(lines[0], name="third.json")
    with pytest.raises(TerminalError) as caught:
        it.drain(spark)
    assert caught.value.code == "table-mismatch"


@pytest.mark.full
def test_keys_that_come_or_go_need_a_rebuild(spark: SparkSession, tmp_path: Path) -> None:
    """Changes of a key would be appended beside its row, or merged into several rows of it."""
    keyed, appending = (
        Landing(tmp_path, target={"keys": ["id"], "sequence_by": ["seq"]}),
        Landing(tmp_path, target={}),
    )
    lines = [json.dumps({"id": "k", "seq": seq, "a": seq}) for seq in (1, 2, 3)]
    keyed.deliver(lines[0])
    keyed.drain(spark)
    appending.deliver(lines[1], name="second.json")
    for other, said in (
        (appending, "the table has keys, id, and the spec has none"),
        (keyed, "were appended"),
    ):
        with pytest.raises(TerminalError) as caught:
            other.drain(spark)
        assert caught.value.code == "table-mismatch" and said in caught.value.found
        assert rebuild(other.request(), spark, progress=lambda line: None).outcome == "done"
        other.deliver(lines[2], name="third.json")


@pytest.mark.full
@pytest.mark.parametrize("before_it", [True, False])
def test_a_swap_that_is_cut_short_leaves_the_table_saying_what_its_rows_go_by(
    spark: SparkSession, tmp_path: Path, before_it: bool
) -> None:
    it = Landing(tmp_path, target={"keys": ["id"], "sequence_by": ["seq"]})
    lines = [json.dumps({"id": "k", "seq": seq, "a": seq}) for seq in (1, 2, 3)]
    it.deliver(lines[0])
    it.drain(spark)
    other = Landing(tmp_path, target={"keys": ["id", "seq"], "sequence_by": ["seq"]})
    other.deliver(lines[1], name="second.json")
    place = (DataFrameWriter, "partitionBy") if before_it else (targets_swap, "take_properties")
    with mock.patch.object(*place, side_effect=Injected("swap")), pytest.raises(Injected):
        rebuild(other.request(), spark, progress=lambda line: None)
    other.deliver(lines[2], name="third.json")
    if before_it:
        with pytest.raises(TerminalError) as caught:
            other.drain(spark)
        assert caught.value.code == "table-mismatch"
        assert rebuild(other.request(), spark, progress=lambda line: None).outcome == "done"
    other.drain(spark)
    assert sorted(row["seq"] for row in other.rows("seq")) == [1, 2, 3]


@pytest.mark.campaign
def test_a_rebuild_is_what_a_fresh_flow_makes_and_readers_see_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = Landing(tmp_path / "one", **OLD)
    landing.transform("own", TIDY_OLD)
    land(landing, 1, 2)
    landing.drain(spark)
    first = [
        row["quarantine_id"]
        for row in quarantine.listed(landing.layout, quarantine.Filter(reason="malformed"))
    ]
    quarantine.discard(landing.layout, first[:1], by="someone")
    published, before = publish(landing), content(landing.layout.tables.target.path)
    refused_before = refusals(landing)
    assert set(Counter(refused_before.values())) == {"open", "discarded"}

    changed = Landing(landing.home, **NEW)
    changed.transform("own", TIDY_NEW)
    land(changed, 3)
    with pytest.raises(TerminalError) as caught:
        changed.drain(spark)  # whose quarantined rows stand in the quarantine all the same
    assert (caught.value.code, "draindown rebuild p/f" in caught.value.next[1]) == (
        "table-mismatch",
        True,
    )
    cut_short = refusals(changed)
    control = Landing(tmp_path / "two", **NEW)
    control.transform("own", TIDY_NEW)
    land(control, 1, 2, 3)
    control.drain(spark)

    held: list[str] = []

    def reached(step: str) -> None:
        if step in ("read", "staged") and step not in held:
            held.append(step)
            assert content(changed.layout.tables.target.path) == before
            assert refusals(changed) == cut_short
            assert generations.generation(changed.layout) == 1
            with pytest.raises(TransientError) as caught:
                changed.drain(spark)
            assert caught.value.code == "lease-held"

    with polling(changed.layout.tables.target.path) as seen:
        done = rebuilt(changed, spark, reached=reached)
    assert (done.outcome, held) == ("done", ["read", "staged"])
    after = content(changed.layout.tables.target.path)
    assert after == content(control.layout.tables.target.path)
    assert [state for state in seen if state not in (before, after)] == []
    assert seen[0] == before
    assert seen[-1] in (before, after)

    table = DeltaTable(changed.layout.tables.target.path)
    assert (changed.layout.tables.target.id, table.metadata().partition_columns) == (
        published.table_id,
        ["zone"],
    )
    assert content(changed.layout.tables.target.path, published.version) == before
    assert (
        changed.layout.tables.target.properties["delta.dataSkippingStatsColumns"]
        == "id,seq,_changed_at"
    )
    assert Counter(row["id"] for row in changed.tombstones()) == Counter(
        row["id"] for row in control.tombstones()
    )
    states = refusals(changed)
    assert states.keys() == refused_before.keys() | refusals(control).keys()
    for place, state in states.items():
        again = place in refusals(control)
        expected = refused_before.get(place, "open") if again else "released"
        assert state == expected, place
    assert "discarded" in states.values() and "released" in states.values()
    assert {row["generation"] for row in changed.quarantine()} == {1, 2}
    state = gate_published.unpublished(changed.layout)
    assert state is not None and (state.pending, state.since) == (True, None)
    assert [(row["generation"], row["batch"]) for row in changed.ledger()] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
        (2, 2),
    ]
    healthy(changed)

    publish(changed)
    for one in (changed, control):
        land(one, 4)
        one.drain(spark)
    assert content(changed.layout.tables.target.path) == content(control.layout.tables.target.path)
    healthy(changed)
    state = gate_published.unpublished(changed.layout)
    assert state is not None and state.since is not None
    work = compaction.work(changed.layout, changed.request().flow_spec.maintenance, force=True)
    for one_table in work.tables:
        rewrite(spark, one_table, 64 * 1024**2, lambda: None)
    assert lost_files(Table(changed.layout.tables.target.path, published.version)) == []
    assert content(changed.layout.tables.target.path) == content(control.layout.tables.target.path)
    healthy(changed)


def finish_killed_at_each_step(landing: Landing) -> None:
    def dying(step: str) -> Callable[[str], None]:
        def reached(done: str) -> None:
            if done == step:
                raise Injected(step)

        return reached

    for step in ("tombstones", "moved", "decided", "ledger", "named"):
        with lease_of(landing.layout, LeaseSpec(), owner="me", run_id="r"), pytest.raises(Injected):
            swap.finish(landing.layout, by="me", reached=dying(step))


@pytest.mark.long
def test_an_append_table_is_rebuilt_once_however_often_it_dies(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow: dict[str, Any] = {"source": ONE, "columns": COLUMNS, "rules": OLD["rules"]}
    old = Landing(tmp_path / "one", **flow, target={"partition_by": ["region"]})
    land(old, 1, 2)
    old.drain(spark)
    loose = flow | {"rules": NEW["rules"], "target": {}}
    new, control = Landing(old.home, **loose), Landing(tmp_path / "two", **loose)
    land(control, 1, 2)
    control.drain(spark)
    passing = [
        row["quarantine_id"]
        for row in quarantine.listed(old.layout, quarantine.Filter(reason="rule:sane"))
    ]
    free = Landing(old.home, **(flow | {"rules": {}, "target": {"partition_by": ["region"]}}))
    # in the table by a replay
    replay_rows(free.request("rows", quarantine_ids=tuple(passing[:1])), spark)
    before = content(old.layout.tables.target.path)

    stop = Stop()
    stopped = rebuilt(
        new,
        spark,
        stop=stop,
        reached=lambda step: stop.ask("enough") if step == "recorded" else None,
    )
    assert (stopped.outcome, len(stopped.drain.batches if stopped.drain else [])) == ("stopped", 1)
    assert {"rebuild-unfinished"} <= {symptom.code for symptom in examine(new.request()).symptoms}
    healthy(old)  # which goes on meanwhile
    with pytest.raises(TerminalError) as caught:
        rebuilt(old, spark)
    assert caught.value.code == "rebuild-other-contract"
    for fault in ("quarantined", "merged", "staged"):
        with pytest.raises(Exception):  # noqa: B017 - Spark wraps what a batch raises
            rebuilt(new, spark, fault)
        assert content(new.layout.tables.target.path) == before, fault
    with pytest.raises(Injected):
        rebuilt(new, spark, "swapped")
    assert content(new.layout.tables.target.path) == content(control.layout.tables.target.path)
    assert generations.generation(new.layout) == 1
    finish_killed_at_each_step(new)
    land(new, 3)
    land(control, 3)
    # a run finishes it, and goes on in the new generation
    assert new.drain(spark).outcome == "done"
    control.drain(spark)
    assert content(new.layout.tables.target.path) == content(control.layout.tables.target.path)
    assert new.layout.tables.target.partition_columns == []
    assert {
        place: state for place, state in refusals(new).items() if state != "released"
    } == refusals(control)
    assert [(row["generation"], row["kind"]) for row in new.ledger()] == [
        *[(1, "drain"), (1, "drain"), (1, "release")],
        *[(2, "drain"), (2, "drain"), (2, "drain")],
    ]
    healthy(new)

    with pytest.raises(Exception):  # noqa: B017 - as above
        rebuilt(new, spark, "merged")
    with lease_of(new.layout, LeaseSpec(), owner="me", run_id="r"):
        assert abort(new.layout, lambda: None) == 3
    healthy(new)
    (new.landing / "002.json").unlink()
    with pytest.raises(TerminalError) as caught:
        rebuilt(new, spark)
    assert caught.value.code == "rebuild-input-gone"
    done = rebuilt(new, spark, accept_missing=True)
    assert done.drain is not None
    assert (done.drain.generation, generations.without(new.layout, 4)) == (
        4,
        {str(new.landing / "002.json")},
    )
    rows = sum(content(control.layout.tables.target.path).values())
    assert 0 < sum(content(new.layout.tables.target.path).values()) < rows
    healthy(new)


def test_a_request_of_a_rebuild_survives_its_job(tmp_path: Path) -> None:
    asked = Landing(tmp_path).request(staged=2)
    assert Request.decode(asked.encode()).layout.tables.target.path.endswith(
        "generations/0002/rebuilt/table"
    )


@pytest.mark.full  # tests/tables/test_foreign_rows.py has the counts
def test_rows_of_another_writer_are_on_the_card_and_dropped_by_a_word(
    tmp_path: Path, spark: SparkSession
) -> None:
    """A table that was there before, of a MERGE by hand: two of its rows are of keys that no input
    has.
    """
    it = Landing(tmp_path, columns={"id": "string not null", "seq": "int not null", "op": "string"})
    old = spark.sql("select cast(id as string) as id, cast(9 as int) as seq from range(2, 5)")
    old.write.format("delta").save(it.layout.tables.target.path)
    it.deliver(*[json.dumps({"id": str(number), "seq": 1}) for number in range(3)])
    drained = it.drain(spark)
    judged = check(it.request(), spark)
    told = card([drained, judged]).splitlines()
    assert (judged.outcome, [finding.kind for finding in judged.findings]) == ("done", ["foreign"])
    assert (
        told[0].startswith("WRONG")
        and "version 0" in told[1]
        and "3 rows inserted" in " ".join(told[1:3])
    )
    with pytest.raises(TerminalError) as refused:
        rebuilt(it, spark)
    assert refused.value.code == "rebuild-drops-rows"
    assert rebuilt(it, spark, drop_foreign=True).outcome == "done"
    assert {row["id"]: row["seq"] for row in it.rows()} == {"0": 1, "1": 1, "2": 1}
    assert check(it.request(), spark).findings == []
    healthy(it)
