"""Maintenance of a source between the runs of its reader: what the reader needs stays, what nobody
needs goes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.planning import compaction
from draindown.recovery import reset
from draindown.recovery.opening import Needs, open_flow
from draindown.sources.tables import registered, source
from draindown.spark.runs.compaction import compact
from tests.ageing import age
from tests.landing import Injected
from tests.spark.test_derived_flow import CARRIERS, HOURLY, Chain


def maintain(it: Chain, *, days: int = 8) -> int:
    """Let days pass, then compact the source, purge it and VACUUM. The number of files that this
    removed.
    """
    layout = it.layout("flights")
    age(layout.tables.target.path, days=days)
    it.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    Path(layout.vacuumed.path).unlink(missing_ok=True)
    before = files(it)
    compact(it.request("flights", "compact").model_copy(update={"force": True}), it.spark)
    return len(before - files(it))


def files(it: Chain) -> set[str]:
    return {
        str(path)
        for path in Path(it.layout("flights").tables.target.path).rglob("*.parquet")
        if "_delta_log" not in str(path)
    }


def right(it: Chain) -> bool:
    """Whether both tables are what their queries give over the source as it is now, all read by
    deltalake.
    """
    source, carriers = it.layout("flights").tables.target, it.layout("carriers").tables.target
    expected = source.rows(
        "select carrier, count(*) as c, avg(delay) as d from t group by carrier order by carrier"
    )
    return (
        it.proven("hourly")
        and carriers.rows("select carrier, c, d from t order by carrier") == expected
    )


def change(it: Chain, step: int) -> None:
    """New rows, updates that move a row to another window and carrier, and deletes."""
    it.deliver(
        *(it.row(step * 10 + number, step * 70 + number, "AB"[number % 2]) for number in range(6)),
        *(it.row(number, step * 130, "C") for number in range(2)),
        it.row(step + 3, 0, op="d"),
    )


pytestmark = pytest.mark.long


@pytest.fixture
def it(spark: SparkSession, tmp_path: Path) -> Chain:
    """Two flows that read the same table, both current."""
    it = Chain(tmp_path / "project", spark, hourly=HOURLY, carriers=CARRIERS)
    for step in range(2):
        change(it, step)
        it.run()
    assert right(it)
    return it


def test_between_any_two_steps_maintenance_leaves_what_the_slower_reader_needs(it: Chain) -> None:
    removed = 0
    for step in range(2, 5):
        change(it, step)
        for act in (
            lambda: it.drain("flights"),
            lambda: it.check("flights"),
            lambda: it.drain("hourly"),
            (lambda: it.drain("carriers")) if step == 4 else (lambda: None),
            lambda: it.check("hourly"),
        ):
            it.runs += 1
            act()
            removed += maintain(it, days=2)
    assert right(it)
    assert removed, "once both had read it"


@pytest.mark.parametrize("step", ["begun", "read"])
def test_a_reader_that_died_finds_what_it_had_pinned(
    it: Chain, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "ROWS", 4)
    change(it, 2)
    it.run("flights")
    it.run("carriers")

    def dying(name: str) -> None:
        if name == step:
            raise Injected(name)

    with pytest.raises(Injected):
        it.drain("hourly", reached=dying)
    for _ in range(2):
        change(it, 3)
        it.run("flights", "carriers")
        maintain(it)
    assert "p/hourly" in compaction.kept_back(it.layout("flights"), 7 * 86_400)
    it.run("hourly")
    assert right(it)
    assert maintain(it) > 0 and right(it)


def test_a_reader_that_is_let_go_is_red_by_name_and_a_reset_brings_it_back(it: Chain) -> None:
    change(it, 2)
    it.run("flights", "carriers")
    assert maintain(it) == 0 and maintain(it, days=53) > 0
    assert registered.waiting(it.layout("flights"))
    with pytest.raises(TerminalError) as caught:
        it.run("hourly")
    assert caught.value.code in ("history-gone", "source-replaced")
    found = reset.plan(it.request("hourly"))
    with open_flow(it.spec, "hourly", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(it.request("hourly"), found, by="me", accept_missing=False)
    it.run("hourly")
    assert right(it)
