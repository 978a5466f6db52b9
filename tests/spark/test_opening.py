"""What holds under a flow's lease, whichever command opened it first after a crash."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from draindown.audit.recount import audit
from draindown.base.errors import TerminalError, TransientError
from draindown.cli.program import main
from draindown.flow import generations, quarantine
from draindown.recovery import rebuild as rebuild_plan
from draindown.sources.files.source import Files
from draindown.spark.runs import drain as drain_step
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_rows import replay as replay_rows
from draindown.spark.targets import swap
from tests.landing import KEYED, Injected, Landing

COLUMNS = {
    "id": "string not null",
    "seq": "int not null",
    "op": "string",
    "a": "int",
    "region": "string not null",
}
BOUNDS = "delta.dataSkippingStatsColumns"


def flow(home: Path, **more: object) -> Landing:
    landing = Landing(home, source={"max_files_per_trigger": 1}, columns=COLUMNS, **more)
    landing.write_pipeline()
    return landing


def deliver(landing: Landing, number: int) -> None:
    good = f'{{"id": "k{number}", "seq": {number}, "a": 1, "region": "x"}}'
    landing.deliver(good, '{"id": null, "seq": 1}', name=f"{number}.json")


def without_spark(landing: Landing, spark: SparkSession) -> None:
    assert main(["--root", str(landing.home), "reset", "p", "--yes"]) == 0
    assert (generations.generation(landing.layout), rebuild_plan.unfinished(landing.layout)) == (
        3,
        None,
    )
    landing.drain(spark)


def by_a_replay_of_rows(landing: Landing, spark: SparkSession) -> None:
    replay_rows(landing.request("rows", quarantine_ids=()), spark)
    assert (generations.generation(landing.layout), rebuild_plan.unfinished(landing.layout)) == (
        2,
        None,
    )


@pytest.mark.parametrize(
    "opened", [pytest.param(without_spark, marks=pytest.mark.long), by_a_replay_of_rows]
)
@pytest.mark.long
def test_a_rebuilt_table_keeps_bounds_whoever_finished_its_swap(
    spark: SparkSession, tmp_path: Path, opened: Callable[[Landing, SparkSession], None]
) -> None:
    old = flow(tmp_path)
    deliver(old, 1)
    old.drain(spark)
    new = flow(tmp_path, target=KEYED | {"keys": ["id", "region"]})
    dies = mock.patch.object(swap, "keep_bounds", side_effect=Injected("swapped"))
    with dies, pytest.raises(Injected):
        rebuild(new.request("rebuild"), spark, progress=lambda line: None)
    assert BOUNDS not in new.layout.tables.target.properties
    opened(new, spark)
    assert new.layout.tables.target.properties[BOUNDS] == "id,region,seq,_changed_at"
    found = audit(new.spec, "f", root=new.home)
    assert found.clean, str(found)


@pytest.mark.long
def test_refused_rows_are_not_replayed_into_a_table_that_lost_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They would be applied, and the stream would go on as if the batches in between were there."""
    landing = flow(tmp_path)
    for number in (1, 2):
        deliver(landing, number)
        landing.drain(spark)
    ids = tuple(
        row["quarantine_id"] for row in quarantine.listed(landing.layout, quarantine.Filter())
    )
    assert len(ids) == 2
    before = landing.layout.tables.target.version
    DeltaTable(landing.layout.tables.target.path).restore(before - 1)
    with pytest.raises(TerminalError) as caught:
        replay_rows(landing.request("rows", quarantine_ids=ids), spark)
    assert (caught.value.code, caught.value.next[0]) == (
        "table-behind-checkpoint",
        "draindown reset p/f",
    )
    assert landing.layout.tables.target.version == before + 1


def test_first_offsets_whose_write_was_cut_short_do_not_stop_the_flow(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = flow(tmp_path)
    deliver(landing, 1)
    offsets = Path(landing.layout.checkpoint(1), "offsets")
    offsets.mkdir(parents=True)
    # as Spark names it, until it is renamed to `0`
    draft = offsets / ".0.5e3b2c1d-7d3e-4b7a-9c55-0a4f0c6f3f10.tmp"
    draft.write_text("v1\n")
    landing.drain(spark)
    assert [(row["batch"], row["records"]) for row in landing.ledger()] == [(0, 2)]
    assert landing.drain(spark).outcome == "idle"


@pytest.mark.parametrize(
    ("step", "written"),
    [
        ("drained", []),
        ("feed", ["feed"]),
        ("looked", ["feed", "source"]),
        ("", ["feed", "source", "raw"]),
    ],
)
def test_a_drain_that_lost_its_lease_after_its_last_batch_writes_nothing_more(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    written: list[str],
) -> None:
    """What follows the batches: the table's change feed, what the source must still keep, and days
    of raw records.
    """
    landing, found = flow(tmp_path), list[str]()
    monkeypatch.setattr(drain_step, "_switch_on_feed", lambda *_: found.append("feed"))
    following = SimpleNamespace(
        is_void=lambda *_: False, read_up_to=lambda *_: found.append("source")
    )
    monkeypatch.setattr(Files, "following", following)
    monkeypatch.setattr(drain_step, "_drop_raw", lambda *_: found.append("raw"))

    def lose(at: str) -> None:
        if at == step:
            (Path(landing.layout.lease) / "driver.lock").unlink()

    with pytest.raises(TransientError, match="lease-lost") if step else nullcontext():
        drain_step.drain(landing.request(), spark, progress=lambda line: None, reached=lose)
    assert found == written
