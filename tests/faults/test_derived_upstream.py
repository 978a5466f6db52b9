"""What happens to a table as a whole under its derived flows: they follow, or end red by name;
never silent (F38).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.config.models import PipelineSpec
from draindown.gate import published
from draindown.lake.table import Table
from draindown.recovery import reset
from draindown.recovery.opening import Needs, open_flow
from draindown.spark.checks.check import check
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.withdrawal import withdraw
from tests.faults import derived
from tests.faults.derived import Flow, Fork, History
from tests.faults.trial import Trial, conclude

_BOUND = "expect_column_values_to_be_between"
SUITE: dict[str, Any] = {
    "name": "s",
    "expectations": [{"type": _BOUND, "kwargs": {"column": "delay", "max_value": 100}}],
    "meta": {},
}
READERS = ("hourly", "carriers")


def _rebuilt(history: History) -> str:
    """A rebuild under another contract, which refuses a part of the rows."""
    it = history.it
    it.document["flows"]["flights"] = it.document["flows"]["flights"] | {
        "rules": {"known": "carrier is not null"}
    }
    it.spec = PipelineSpec.model_validate(it.document)
    before = len(derived.published_source(it))
    rebuild(it.request("flights"), it.spark, progress=lambda line: None)
    it.check("flights")
    assert len(derived.published_source(it)) < before
    return "the swap is in the log"


def _restored(history: History) -> str:
    """RESTORE by hand; the flow's own reset mends its table, and publishes that."""
    table = history.it.layout("flights").tables.target.path
    history.it.spark.sql(f"restore table delta.`{table}` to version as of 1")
    _reset(history)
    return f"version {Table(table).version} came after RESTORE"


def _vacuumed(history: History) -> str:
    """VACUUM by hand, which knows no readers and removes the change feed."""
    it, table = history.it, history.it.layout("flights").tables.target.path
    before = set(Path(table).rglob("*.parquet"))
    for statement in (
        "set spark.databricks.delta.retentionDurationCheck.enabled = false",
        f"vacuum delta.`{table}` retain 0 hours",
    ):
        it.spark.sql(statement)
    it.spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    gone = before - set(Path(table).rglob("*.parquet"))
    assert gone
    return f"{len(gone)} files removed"


def _recreated(history: History) -> str:
    """The table is gone; its flow's reset makes it anew."""
    path = Path(history.it.layout("flights").tables.target.path)
    before = Table(str(path)).id
    path.rename(history.it.home / "aside")
    _reset(history)
    assert Table(str(path)).id != before
    return "another table id"


def _reset(history: History) -> str:
    """A reset of the flow that writes the table: it reads all its input again."""
    it = history.it
    with open_flow(it.spec, "flights", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(
            it.request("flights"), reset.plan(it.request("flights")), by="me", accept_missing=False
        )
    it.run("flights")
    return "generation 2 read all input again"


def _refused(history: History) -> str:
    """The gate refuses what came; the flow publishes nothing."""
    it = history.it
    before = published.published(it.layout("flights"))
    it.deliver(it.row(5000, 10, "A", delay=500))
    it.drain("flights")
    trial = Trial("F38", "", "")
    trial.run(Flow(it, "flights"), it.spark, "check", suite=SUITE)  # type: ignore[arg-type]
    assert trial.runs[-1].code == Exit.GATE_FAILED
    assert published.published(it.layout("flights")) == before
    return "the gate ended with 65"


def _withdrawn(history: History) -> str:
    """A row that fails is withdrawn, and the next version published."""
    it = history.it
    _refused(history)
    request = it.request("flights").model_copy(update={"suite": SUITE})
    withdraw(
        request, it.spark, f"{_BOUND}:delay", agreed=lambda plan: True, reached=lambda step: None
    )
    check(it.request("flights", "check").model_copy(update={"suite": SUITE}), it.spark)
    assert 500 not in derived.published_source(it)["delay"].to_pylist()
    return "the row is in the quarantine"


EVENTS: dict[str, Callable[[History], str]] = {
    "rebuilt": _rebuilt,
    "restored": _restored,
    "vacuumed": _vacuumed,
    "recreated": _recreated,
    "reset": _reset,
    "refused": _refused,
    "withdrawn": _withdrawn,
}


def _pending(where: Path, spark: SparkSession, seed: int) -> History:
    """A chain whose derived flows have changes to read."""
    history = History(where, spark, seed)
    history.change()
    history.it.run("flights")
    return history


def _goes_on(trial: Trial, history: History) -> None:
    """Run the derived flows, type what a red one names, and hold them against what their source
    published.
    """
    it = history.it
    for name in READERS:
        if derived.drained(trial, it, name, it.spark):
            trial.promise(
                "red by name", trial.runs[-1].error in ("source-replaced", "history-gone")
            )
            trial.follow(Flow(it, name), "reset")  # type: ignore[arg-type]
            derived.drained(trial, it, name, it.spark)
        expected = derived.derived(name, derived.published_source(it))
        trial.promise(
            f"{name} equals its query over the published source",
            derived.found(it, name) == expected,
        )
        derived.hold_accounts(trial, it, name)
    it.deliver(it.row(6000, 30, "A"))
    it.run("flights", "hourly", "daily", "carriers")
    for name in derived.DERIVED:
        expected = derived.derived(name, derived.published_source(it))
        trial.promise(
            f"{name} equals its query after more came", derived.found(it, name) == expected
        )


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("event", ["restored", "withdrawn"])
def test_a_source_that_changed_between_runs(
    tmp_path: Path, spark: SparkSession, event: str
) -> None:
    _between(tmp_path, spark, event)


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("event", sorted(set(EVENTS) - {"restored", "withdrawn"}))
def test_a_source_that_changed_between_runs_in_any_way(
    tmp_path: Path, spark: SparkSession, event: str
) -> None:
    _between(tmp_path, spark, event)


def _between(where: Path, spark: SparkSession, event: str) -> None:
    history = _pending(where / "project", spark, len(event))
    trial = Trial("F38", f"{event}, between runs", (EVENTS[event].__doc__ or "").splitlines()[0])
    trial.fired = EVENTS[event](history)
    trial.ran(0)
    _goes_on(trial, history)
    conclude(trial)


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("event", EVENTS)
def test_a_source_that_changes_while_a_derived_flow_is_at_work(
    tmp_path: Path, spark: SparkSession, event: str
) -> None:
    history = _pending(tmp_path / "project", spark, len(event))
    it, trial = (
        history.it,
        Trial(
            "F38", f"{event}, within a batch", f"{EVENTS[event].__doc__} A batch waits meanwhile"
        ),
    )
    request = it.request("hourly").model_copy(update={"run_id": "waits"})
    batch = derived.next_batch(it, "hourly")
    entry = {
        "request": request.encode(),
        "home": str(it.home / "fork"),
        "place": ["begun", batch],
        "act": "wait",
    }
    driver = Fork(it.home / "fork", entry)
    driver.fired()
    trial.fired = f"batch {batch} waits; {EVENTS[event](history)}"
    (it.home / "fork" / "go").touch()
    code = driver.wait()
    trial.ran(code)
    trial.promise(
        "the batch ends green, or red for a person", code in (Exit.DONE, Exit.NEEDS_PERSON)
    )
    _goes_on(trial, history)
    conclude(trial)
