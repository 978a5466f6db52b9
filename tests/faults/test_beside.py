"""Maintenance beside drains and readers, alive and killed: no row changes, no reader is cut off
(F11 to F13).
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from draindown.base.errors import TransientError
from draindown.lake.lost_files import lost_files
from draindown.lake.table import Table
from draindown.lease.holder import holder
from draindown.spark.runs.compaction import compact
from draindown.spark.runs.drain import drain
from tests.ageing import age
from tests.faults import lakes
from tests.faults.lakes import Control
from tests.faults.reader import Reader, fingerprint
from tests.faults.trial import Trial, conclude
from tests.landing import Landing


def _hold(trial: Trial, landing: Landing, control: Control) -> None:
    """As `lakes.hold`; commits of OPTIMIZE and VACUUM keep nobody from counting."""
    lakes.hold(trial, landing, control)
    missing = lost_files(
        Table(landing.layout.tables.target.path, landing.layout.tables.target.version)
    )
    trial.promise("no file is missed", not missing)


def _files(landing: Landing) -> int:
    return len(list(Path(landing.layout.tables.target.path).glob("*.parquet")))


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_optimize_by_other_hands_beside_a_batch(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    """Begun before each MERGE and left to run beside it, in the same JVM: Delta decides who
    wins.
    """
    trials = []
    for batch, place in enumerate(lakes.PLACES):
        landing = lakes.lake(tmp_path / place)
        trial = Trial(
            "F11",
            f"{place} batch, by hand",
            "OPTIMIZE by hand, begun before a MERGE and running beside it",
        )
        threads: list[threading.Thread] = []

        def optimize(landing: Landing = landing, trial: Trial = trial) -> None:
            try:
                spark.sql(f"REORG TABLE delta.`{landing.layout.tables.target.path}` APPLY (PURGE)")
                spark.sql(f"OPTIMIZE delta.`{landing.layout.tables.target.path}`")
                trial.fired = (
                    f"OPTIMIZE ended; table at version {landing.layout.tables.target.version}"
                )
            except Exception as error:  # noqa: BLE001 - it may lose against the MERGE
                trial.fired = f"OPTIMIZE lost: {type(error).__name__}"

        def beside(
            step: str,
            landing: Landing = landing,
            batch: int = batch,
            threads: list[threading.Thread] = threads,
        ) -> None:
            if step == "remembered" and len(landing.ledger()) == batch:
                threads.append(threading.Thread(target=optimize))
                threads[-1].start()

        with Reader(landing.layout.tables.target.path) as reader:
            trial.run(landing, spark, reached=beside)
            for thread in threads:
                thread.join()
            trial.run(landing, spark)
        lakes.read_whole(trial, reader, landing, control)
        _hold(trial, landing, control)
        trials.append(trial)
    conclude(*trials)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_drain_beside_compact_is_refused(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    landing = lakes.lake(tmp_path / "lake")
    landing.drain(spark, max_batches=2)
    trial = Trial("F11", "middle batch, reverse", "a drain while compact is at work")
    request = landing.request(force=True).model_copy(update={"step": "compact"})
    work = threading.Thread(target=lambda: compact(request, spark))
    work.start()
    while not holder(landing.layout):
        assert work.is_alive()
    try:
        drain(landing.request(), spark, progress=lambda _: None)
    except TransientError as error:
        trial.fired = f"compact held the lease: {error.code}"
        trial.ran(75, error.as_dict())
    work.join()
    trial.promise("the drain left with 75", trial.fired)
    trial.run(landing, spark)
    _hold(trial, landing, control)
    conclude(trial)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_compact_that_is_killed_changes_no_row(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    trials = []
    # after one batch there is nothing to rewrite
    for done, place, step in ((2, "middle", "data"), (2, "middle", "commit"), (3, "last", "data")):
        landing = lakes.lake(tmp_path / f"{place}-{step}")
        landing.drain(spark, max_batches=done)
        before, old = (
            fingerprint(DeltaTable(landing.layout.tables.target.path)),
            DeltaTable(landing.layout.tables.target.path),
        )
        trial = Trial(
            "F12",
            f"after the {place} batch, {step}",
            f"SIGKILL inside OPTIMIZE or REORG, at its {step}",
        )
        with Reader(landing.layout.tables.target.path) as reader:
            version = landing.layout.tables.target.version
            lakes.killed(trial, landing.home, (step, version), step="compact")
        trial.promise(
            "no row changed", fingerprint(DeltaTable(landing.layout.tables.target.path)) == before
        )
        trial.promise("a reader of the version before goes on", fingerprint(old) == before)
        trial.run(landing, spark, "compact", force=True)
        trial.promise(
            "no row changed", fingerprint(DeltaTable(landing.layout.tables.target.path)) == before
        )
        trial.run(landing, spark)
        lakes.read_whole(trial, reader, landing, control)
        _hold(trial, landing, control)
        trials.append(trial)
    conclude(*trials)


def _vacuum_is_due(landing: Landing, spark: SparkSession) -> None:
    """Files that left the table eight days ago."""
    request = landing.request(force=True).model_copy(update={"step": "compact"})
    compact(request, spark)
    age(landing.layout.tables.target.path, days=8)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_vacuum_that_is_killed_is_missed_by_nobody(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    trials = []
    for done, place in ((2, "middle"), (3, "last")):  # after one batch no file left the table
        landing = lakes.lake(tmp_path / place)
        landing.drain(spark, max_batches=done)
        _vacuum_is_due(landing, spark)
        open_before, before = (
            DeltaTable(landing.layout.tables.target.path),
            fingerprint(DeltaTable(landing.layout.tables.target.path)),
        )
        files, version = _files(landing), landing.layout.tables.target.version
        trial = Trial(
            "F13", f"after the {place} batch", "SIGKILL when VACUUM has begun; a reader beside it"
        )
        with Reader(landing.layout.tables.target.path) as reader:
            lakes.killed(trial, landing.home, ("logged", version), step="compact")
        log = _operations(landing)
        trial.promise(
            "VACUUM began and did not end", "VACUUM START" in log and "VACUUM END" not in log
        )
        trial.fired += f"; {files - _files(landing)} files removed by then"
        trial.promise("who read before reads on", fingerprint(open_before) == before)
        trial.run(landing, spark, "compact", force=True)
        trial.promise("the next one ends", _files(landing) < files)
        trial.promise("who read before reads on", fingerprint(open_before) == before)
        trial.run(landing, spark)
        lakes.read_whole(trial, reader, landing, control)
        _hold(trial, landing, control)
        trials.append(trial)
    conclude(*trials)


def _operations(landing: Landing) -> list[Any]:
    files = sorted(Path(landing.layout.tables.target.path, "_delta_log").glob("*.json"))
    lines = (json.loads(line) for file in files for line in file.read_text().splitlines())
    return [line["commitInfo"].get("operation") for line in lines if "commitInfo" in line]
