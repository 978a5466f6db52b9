"""Rows that fail the gate are withdrawn: out of the table, kept out and kept whole, until somebody
decides.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.audit.recount import audit
from draindown.base.errors import DraindownError, TerminalError
from draindown.cli import running
from draindown.cli.program import main
from draindown.config.lease import LeaseSpec
from draindown.doctor.examination import examine
from draindown.flow import generations, quarantine, withdrawals
from draindown.flow.quarantine import Filter
from draindown.gate import published, refusal
from draindown.lake import delta
from draindown.ledger import table as ledger_table
from draindown.recovery import reset as reset_plan
from draindown.recovery.opening import lease_of
from draindown.runs.report import StepReport
from draindown.runs.request import Again, Request
from draindown.spark.checks.check import check
from draindown.spark.contract import json_rows
from draindown.spark.limits import Stop
from draindown.spark.runs import replay_input
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_rows import replay as replay_rows
from draindown.spark.runs.withdrawal import Plan, withdraw
from draindown.spark.session import INTERPRETED, configured
from tests.landing import COLUMNS, Injected, Landing

SANE = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", "min_value": 0}}
NAME = "expect_column_values_to_be_between:a"
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def interpreted(spark: SparkSession) -> Iterator[None]:
    """A dozen rows are judged faster by plans that nobody compiles."""
    with configured(spark, INTERPRETED):
        yield


def row(key: str, seq: int, a: int = -1, **more: Any) -> Row:
    return {"id": key, "seq": seq, "a": a, "b": "é\n\u2028" * 3} | more


class Gated(Landing):
    """A landing flow behind a gate, and what its table must hold by a model of its own."""

    def __init__(self, spark: SparkSession, home: Path, *expectations: Row, **flow: Any) -> None:
        super().__init__(home, **flow)
        self.spark, self.seen, self.runs = spark, list[Row](), 0
        self.kept_out: dict[str, int] = {}
        self.suite = {"name": "s", "expectations": list(expectations or (SANE,)), "meta": {}}

    def run_id(self, what: str) -> str:
        self.runs += 1
        return f"{what} {self.runs}"

    def feed(self, *rows: Row) -> dict[str, Any]:
        """Deliver and drain; the batch's ledger row."""
        self.seen += rows
        self.deliver(*[json.dumps(one) for one in rows])
        done = self.drain(self.spark, run_id=self.run_id("feed")).drain
        assert done is not None
        return done.batches[-1]

    def withdraw(self, name: str = NAME, fault: str | None = None) -> dict[str, int]:
        """Withdraw what fails; every key with its sequence."""
        before = {one["id"]: one["seq"] for one in self.rows()}

        def reached(step: str) -> None:
            if step == fault:
                raise Injected(step)

        request = self.request(self.run_id("withdraw"), suite=self.suite)
        withdraw(request, self.spark, name, agreed=lambda plan: bool(plan.rows), reached=reached)
        gone = {
            key: seq for key, seq in before.items() if key not in {one["id"] for one in self.rows()}
        }
        self.kept_out |= gone
        return gone

    def release(self, *ids: str) -> StepReport:
        return replay_rows(self.request(self.run_id("release"), quarantine_ids=ids), self.spark)

    def rebuild(self, fault: str | None = None) -> StepReport:
        """Rebuild, or die at that step."""

        def reached(step: str) -> None:
            if step == fault:
                raise Injected(step)

        request = self.request(self.run_id("rebuild"))
        return rebuild(
            request, self.spark, stop=Stop(), progress=lambda line: None, reached=reached
        )

    def publish(self) -> None:
        """The check passes, and its version is published."""
        assert check(self.request(self.run_id("check"), suite=self.suite), self.spark).outcome in (
            "done",
            "idle",
        )
        state = published.unpublished(self.layout)
        assert state is not None and not state.pending

    def refuse(self) -> refusal.Refused:
        with pytest.raises(refusal.Refused) as caught:
            check(self.request(self.run_id("check"), suite=self.suite), self.spark)
        return caught.value

    def open(self, key: str) -> list[str]:
        """Ids of the open rows of a key, oldest first."""
        rows = quarantine.listed(self.layout, Filter())
        return [one["quarantine_id"] for one in rows if json.loads(one["raw"])["id"] == key]

    def model(self) -> dict[str, Row]:
        """The newest row of each key that nobody keeps out; a delete wins over a row of its
        sequence.
        """
        newest: dict[str, Row] = {}
        for one in self.seen:
            out, dead = self.kept_out.get(one["id"], -1), one.get("op") == "d"
            if one["seq"] > out or (dead and one["seq"] == out):
                held = newest.get(one["id"])
                if held is None or (one["seq"], dead) > (held["seq"], held.get("op") == "d"):
                    newest[one["id"]] = one
        return {key: one for key, one in newest.items() if one.get("op") != "d"}

    def right(self, *, whole: bool = True, lost: bool = False) -> None:
        """The table is the model's, the ledger closes, and neither audit nor doctor finds anything.

        `whole`: the ledger's rows are those of this table, no more and no fewer; `lost`: the table
        was made anew, and nothing of it is published yet.
        """
        held = {
            one["id"]: {name: one[name] for name in ("id", "seq", "a", "b")} for one in self.rows()
        }
        assert held == self.model()
        assert len(held) == len(self.rows())
        sums = self.totals()
        if whole and not lost:
            assert sums["inserted"] - sums["deleted"] == len(held)
        found = audit(self.spec, "f", root=self.home)
        assert found.clean, str(found)
        wrong = [
            symptom.code for symptom in examine(self.request()).symptoms if symptom.level == "wrong"
        ]
        assert wrong == (["published-other-table"] if lost else [])

    def reset(self) -> None:
        with lease_of(self.layout, LeaseSpec(), owner="me", run_id="reset"):
            plan = reset_plan.plan(self.request())
            reset_plan.begin(self.request(), plan, by="me", accept_missing=False)


def test_kept_values_are_read_with_other_types_than_they_had(spark: SparkSession) -> None:
    kept = (
        '{"id": "7", "n": 5, "at": "2026-01-01T00:00:00.000001Z", "x": "no number", "s": {"a": 1}}'
    )
    wanted = "id bigint, n string, at timestamp, x int, s struct<a int>, gone string"
    frame = spark.createDataFrame([(kept,)], "raw string")
    schema = spark.createDataFrame([], wanted).schema
    (row,) = (
        frame.select(json_rows.decoded_as(F.col("raw"), schema).alias("r")).select("r.*").collect()
    )
    assert (row["id"], row["n"], row["x"], row["s"]["a"], row["gone"]) == (7, "5", None, 1, None)
    assert row["at"].microsecond == 1


@pytest.mark.long
def test_nothing_is_withdrawn_or_released_while_a_rebuild_is_unfinished(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Gated(spark, tmp_path)
    flow.feed(row("good", 1, a=1), row("bad", 2))
    assert flow.withdraw() == {"bad": 2}

    with pytest.raises(Injected):
        flow.rebuild("merged")
    flow.feed(row("worse", 3))
    for act in (lambda: flow.release(*flow.open("bad")), flow.withdraw):
        with pytest.raises(TerminalError) as caught:
            act()
        assert caught.value.code == "rebuild-unfinished"
    flow.rebuild()
    flow.right(whole=False)
    flow.release(*flow.open("bad"))
    del flow.kept_out["bad"]
    flow.right(whole=False)


@pytest.mark.long
def test_withdrawn_rows_stay_out_until_released_whatever_comes_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    _withdrawn_released_and_read_again(spark, tmp_path)


@pytest.mark.campaign
def test_withdrawn_rows_stay_out_of_later_generations(spark: SparkSession, tmp_path: Path) -> None:
    flow = _withdrawn_released_and_read_again(spark, tmp_path)
    held, states = flow.rows(), quarantine.counts(flow.layout).as_dict()
    _generations_come_and_go(flow, spark, held, states)


def _withdrawn_released_and_read_again(spark: SparkSession, tmp_path: Path) -> Gated:
    """Every fate of a withdrawn row, and what comes again after it."""
    flow = Gated(spark, tmp_path)
    keys = ("newer", "same", "older", "dead", "deleted", "back", "gone", "twice", "stale")
    first = [row(key, 5) for key in keys]
    flow.feed(row("good", 5, a=1), *first)
    assert f"draindown gate withdraw p/f {NAME}" in flow.refuse().next
    assert flow.withdraw() == dict.fromkeys(keys, 5)
    [batch] = [one for one in flow.ledger() if one["kind"] == "withdraw"]
    assert (batch["records"], batch["deleted"], batch["applied"], batch["quarantined"]) == (
        9,
        9,
        9,
        0,
    )
    kept = quarantine.listed(flow.layout, Filter(reason=f"gate:{NAME}"))
    assert {(one["field"], one["kind"], quarantine.place_of(one)) for one in kept} == {
        ("a", "withdraw", f"{flow.layout.tables.target.path}:1")
    }
    assert "min_value=0" in kept[0]["detail"]
    flow.right()
    assert flow.withdraw() == {}  # nothing fails: nothing to do
    flow.publish()

    came = flow.feed(
        *[row("same", 5), row("older", 4, a=1), row("newer", 6, a=2), row("newer", 5)],
        *[row("dead", 5, op="d"), row("deleted", 6, op="d"), row("stale", 7, a=-7)],
    )
    assert (came["superseded"], came["inserted"], came["tombstoned"]) == (3, 2, 2)
    flow.right()
    assert flow.withdraw() == {"stale": 7}
    flow.right()

    assert quarantine.discard(flow.layout, flow.open("gone"), by="me") == 1
    chosen = [flow.open(key)[0] for key in ("back", "twice", "dead", "stale")]
    done = flow.release(*chosen).drain
    assert done is not None
    assert (done.totals["inserted"], done.totals["superseded"]) == (
        2,
        2,
    )  # a delete, and a newer row withheld
    for key in ("back", "twice", "dead"):
        del flow.kept_out[key]
    flow.right()
    assert "2 of 3 rows" in flow.refuse().found  # they are judged again, beside the newer one
    assert flow.withdraw() == {"back": 5, "twice": 5}
    assert (
        len({one["quarantine_id"] for one in quarantine.listed(flow.layout, Filter(state=None))})
        == 12
    )
    flow.right()
    flow.release(*flow.open("back"))
    del flow.kept_out["back"]
    flow.right()
    held, states = flow.rows(), quarantine.counts(flow.layout).as_dict()
    assert (states["released"], states["discarded"], states["open"]) == (5, 1, 6)

    everything = Again(units=tuple(str(path) for path in flow.landing.iterdir()))
    again = replay_input.replay(
        flow.request("again", replay=everything), spark, progress=lambda line: None
    )
    assert again.drain is not None and again.drain.totals["applied"] == 0
    assert flow.rows() == held
    flow.right()
    return flow


@pytest.mark.campaign
def test_a_rebuild_keeps_out_what_was_withdrawn_until_it_is_released(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Gated(spark, tmp_path)
    flow.feed(row("good", 1, a=1), row("bad", 2), row("back", 2), row("newer", 2), row("lost", 2))
    assert flow.withdraw() == {"bad": 2, "back": 2, "newer": 2, "lost": 2}
    quarantine.discard(flow.layout, flow.open("lost"), by="me")
    states = quarantine.counts(flow.layout).as_dict()

    with pytest.raises(Injected):
        flow.rebuild("swapped")
    flow.rebuild()
    assert quarantine.counts(flow.layout).as_dict() == states
    flow.right(whole=False)
    flow.feed(row("newer", 3, a=3), row("bad", 1, a=5))
    flow.right(whole=False)
    flow.release(*flow.open("back"))
    del flow.kept_out["back"]
    flow.right(whole=False)
    flow.rebuild()
    flow.right(whole=False)
    assert flow.withdraw() == {"back": 2}
    flow.right(whole=False)


def _generations_come_and_go(
    flow: Gated, spark: SparkSession, held: list[dict[str, Any]], states: dict[str, Any]
) -> None:
    flow.reset()
    with lease_of(flow.layout, LeaseSpec(), owner="me", run_id="undo"):
        assert reset_plan.undo(flow.request(), by="me") == 1
    assert quarantine.counts(flow.layout).as_dict() == states
    flow.right()
    flow.reset()
    flow.drain(spark)
    assert flow.rows() == held  # the table was kept
    flow.right()
    shutil.rmtree(flow.layout.tables.target.path)
    flow.reset()
    flow.drain(spark)
    assert generations.generation(flow.layout) == 4
    # of all that was decided nothing is decided anew
    assert quarantine.counts(flow.layout).as_dict() == states
    flow.right(lost=True)
    flow.feed(row("gone", 9, a=3))
    done = flow.release(*flow.open("gone"), *flow.open("same")).drain
    assert done is not None and done.totals["inserted"] == 1
    del flow.kept_out["same"]
    flow.right(lost=True)


@pytest.mark.full
@pytest.mark.parametrize("fed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_withdrawal_that_dies_counts_nowhere_or_entirely(
    spark: SparkSession, tmp_path: Path, fed: bool
) -> None:
    flow = Gated(spark, tmp_path)
    flow.feed(row("good", 1, a=1), row("bad", 1), row("worse", 1))
    with pytest.raises(Injected):
        flow.withdraw(fault="quarantined")
    assert len(flow.quarantine()) == 2
    assert quarantine.listed(flow.layout, Filter(state=None)) == []
    assert quarantine.counts(flow.layout).refused == 0
    assert {"withdrawal-unfinished"} <= {
        symptom.code for symptom in examine(flow.request()).symptoms
    }
    flow.right()
    if fed:
        flow.feed(row("more", 1, a=1), row("bad", 1))  # the same row again: it isn't withheld
        assert flow.quarantine() == []
        flow.right()
    with pytest.raises(Injected):
        flow.withdraw(fault="merged")
    flow.kept_out |= {"bad": 1, "worse": 1}
    before = ["drain"] * (1 + fed)
    assert [one["kind"] for one in flow.ledger()] == before
    assert quarantine.counts(flow.layout).open == 2
    flow.right(whole=False)
    flow.feed(row("bad", 1), row("worse", 1))
    assert [one["kind"] for one in flow.ledger()] == [*before, "withdraw", "drain"]
    flow.right()


@pytest.mark.campaign
def test_a_release_that_dies_is_settled_by_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Gated(spark, tmp_path)
    flow.feed(row("good", 1, a=1), row("bad", 1), row("worse", 1))
    flow.withdraw()

    class Died(Exception):
        """The release's driver."""

    def dies(*_: Any, **__: Any) -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ledger_table, "record", dies)  # after the commit, before anything else
        with pytest.raises(Died):
            flow.release(*flow.open("bad"))
    del flow.kept_out["bad"]
    flow.right(whole=False)
    flow.feed(row("bad", 1), row("worse", 1))
    assert quarantine.counts(flow.layout).as_dict()["released"] == 1
    flow.right()


@pytest.mark.campaign
def test_a_restored_table_holds_its_rows_again_and_nobody_overlooks_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Gated(spark, tmp_path)
    flow.feed(row("good", 1, a=1), row("bad", 1), row("worse", 1))
    assert set(flow.withdraw()) == {"bad", "worse"}
    flow.release(*flow.open("bad"))
    spark.sql(f"RESTORE TABLE delta.`{flow.layout.tables.target.path}` TO VERSION AS OF 1")
    with pytest.raises(TerminalError) as caught:
        flow.withdraw()
    assert caught.value.code == "table-behind-checkpoint"
    flow.reset()
    flow.drain(spark)
    residues = audit(flow.spec, "f", root=flow.home).residues
    assert [(found.kind, found.where) for found in residues] == [("undead-key", "id=worse")]
    assert set(flow.withdraw()) == {"bad", "worse"}  # the same command takes them out again
    flow.right(whole=False)
    # what is gone from the quarantine is missed
    delta.delete(flow.layout.tables.quarantine, "generation = 2")
    residues = audit(flow.spec, "f", root=flow.home).residues
    assert {(found.kind, found.where) for found in residues} == {
        ("withdrawn-count", "generation 2, gate batch 0"),
        ("lost-key", "id=bad"),
    }


EVERY_TYPE = {
    "ts": "timestamp",
    "far": "timestamp",
    "n": "timestamp_ntz",
    "day": "date",
    "d": "decimal(38,18)",
    "bin": "binary",
    "dbl": "double",
    "m": "map<string, array<timestamp>>",
    "st": "struct<x: int, y: array<struct<z: double>>>",
    "flag": "boolean",
}


def content(flow: Gated) -> str:
    """All rows as text, to the last digit, without their stamp. Spark's own: Python has no year
    10000.
    """
    rows = (
        flow.spark.read.format("delta")
        .load(flow.layout.tables.target.path)
        .drop("_changed_at", "odd")
    )
    found = rows.selectExpr(
        *(f"cast(`{name}` as string) as `{name}`" for name in rows.columns)
    ).collect()
    return str(sorted(str(one.asDict()) for one in found))


@pytest.mark.long
def test_a_row_of_any_type_comes_back_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    late = {
        "ts": "2026-10-25T00:30:00.000001Z",
        "n": "9999-12-31T23:59:59.999999",
        "day": "9999-12-31",
    }
    late |= {"far": "9999-12-31T23:59:59.999999Z"}
    odd = {
        "d": "12345678901234567890.123456789012345678",
        "bin": "\u0000\u00ff",
        "dbl": 1.5,
        "flag": False,
    }
    nested = {
        "m": {"k": ["0001-01-01T00:00:00.000001Z", None]},
        "st": {"x": None, "y": [{"z": -1e300}, None]},
    }
    pair = {
        "type": "expect_column_pair_values_a_to_be_greater_than_b",
        "kwargs": {"column_A": "seq", "column_B": "a"},
    }
    easy = {
        **SANE,
        "kwargs": {**SANE["kwargs"], "mostly": 0.5},
        "meta": {"draindown": {"name": "easy"}},
    }
    flow = Gated(
        spark,
        tmp_path,
        *(
            pair,
            easy,
            {**SANE, "kwargs": {"column": "nope"}, "meta": {"draindown": {"name": "blind"}}},
        ),
        {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "a", "max_value": 0}},
        transform="odd.odd",
        columns=COLUMNS
        | EVERY_TYPE
        | {name: f"{EVERY_TYPE[name]} not null" for name in ("ts", "n")},
        target={"keys": ["ts", "id"], "sequence_by": ["seq", "n"], "partition_by": ["id"]},
    )
    flow.transform(
        "odd", "def odd(df):\n    return df.withColumn('dbl', F.col('dbl') * float('nan'))\n"
    )
    rows = [
        row("k 'é", 1, a=7, **late, **odd, **nested),
        row("ok", 1, a=-1, **late | {"more": "unnamed"}),
    ]
    flow.feed(*rows, row("fine", 1, a=0, **late))
    before = content(flow)
    name = "expect_column_pair_values_a_to_be_greater_than_b:seq,a"
    assert flow.withdraw("easy") == {}  # mostly lets it pass
    assert flow.withdraw(name) == {"k 'é": 1}
    [kept] = quarantine.listed(flow.layout, Filter())
    assert (kept["field"], kept["raw_length"]) == ("seq, a", len(kept["raw"].encode()))
    found = audit(flow.spec, "f", root=flow.home)
    assert found.clean, str(found)
    spark.sql(
        f"ALTER TABLE delta.`{flow.layout.tables.target.path}` ADD COLUMNS (odd map<int, string>)"
    )
    flow.release(kept["quarantine_id"])
    assert content(flow) == before
    for wrong, code in (
        ("blind", "not-judged"),
        ("expect_column_mean_to_be_between:a", "not-row-level"),
        ("what", "unknown-expectation"),
    ):
        version = flow.layout.tables.target.version
        with pytest.raises(TerminalError) as caught:
            flow.withdraw(wrong)
        assert (caught.value.code, flow.layout.tables.target.version) == (code, version)
    with pytest.raises(TerminalError) as caught:
        flow.withdraw(name)
    assert (caught.value.code, "odd" in caught.value.found) == ("row-not-exact", True)


def test_an_append_table_has_no_key_to_keep_out(spark: SparkSession, tmp_path: Path) -> None:
    flow = Gated(spark, tmp_path, target={})
    with pytest.raises(TerminalError) as caught:
        flow.withdraw()
    assert caught.value.code == "withdraw-needs-keys"
    assert caught.value.next[0].startswith("draindown gate waive p/f ")
    assert not withdrawals.ever(flow.layout)


@pytest.mark.campaign
def test_the_command_shows_its_plan_and_needs_a_yes(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def shared(*_: Any, **__: Any) -> Iterator[Callable[[Request], SparkSession]]:
        yield lambda request: spark

    monkeypatch.setattr(running, "_spark", shared)
    flow = Gated(spark, tmp_path, expectations="s")
    (tmp_path / "dags/pipelines").mkdir(parents=True)
    content = flow.spec.model_dump(mode="json", exclude_unset=True, by_alias=True)
    (tmp_path / "dags/pipelines/p.yaml").write_text(json.dumps(content))
    (tmp_path / "expectations").mkdir()
    (tmp_path / "expectations/s.json").write_text(json.dumps(flow.suite))
    words = ("--root", str(tmp_path), "gate", "withdraw", "p", NAME)
    flow.feed(row("good", 1, a=1), *[row(f"bad{n}", 1, a=-n) for n in range(1, 8)])
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "7 of 8 rows not yet published" in said.err
    assert (
        "bad1" in said.err
        and "bad5" in said.err
        and "and 2 more" in said.err
        and "bad6" not in said.err
    )
    assert (len(flow.rows()), flow.quarantine()) == (8, [])
    assert main((*words, "--yes", "--json")) == 0
    said = capsys.readouterr()
    [report] = json.loads(said.out)["reports"]
    assert (report["drain"]["totals"]["deleted"], len(flow.rows())) == (7, 1)
    assert f"next: draindown --root {tmp_path} run p/f" in said.err
    assert main(("--root", str(tmp_path), "report", "p")) == 0
    assert "withdrew 7 rows from the table" in capsys.readouterr().out
    assert main((*words, "--yes")) == 0
    assert "nothing to withdraw" in capsys.readouterr().out
    flow.publish()
    assert (
        main(
            (
                "--root",
                str(tmp_path),
                "quarantine",
                "release",
                "p",
                "--reason",
                f"gate:{NAME}",
                "--yes",
            )
        )
        == 0
    )
    assert (len(flow.rows()), "7 applied" in capsys.readouterr().out) == (8, True)


def test_what_other_hands_wrote_since_the_verdict_is_not_touched(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Gated(spark, tmp_path)
    flow.feed(row("bad", 1))

    def meddle(plan: Plan) -> bool:
        spark.sql(f"UPDATE delta.`{flow.layout.tables.target.path}` SET a = 1")
        return True

    with pytest.raises(DraindownError) as caught:
        withdraw(flow.request("late", suite=flow.suite), spark, NAME, agreed=meddle)
    assert caught.value.code == "table-moved"
    assert [one["a"] for one in flow.rows()] == [1]
    assert flow.quarantine() == []
