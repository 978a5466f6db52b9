"""Much input goes into the table portion by portion, and what each batch weighs sizes the next
ones.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from pyspark import StorageLevel
from pyspark.sql import SparkSession

from draindown.config.sources import FilesSource
from draindown.sources import batch_size
from draindown.sources.files import listing
from draindown.spark.runs.drain import drain
from draindown.spark.usage import ResourceUsage, persisted
from tests.landing import Landing


@pytest.mark.long
def test_much_input_is_drained_by_portions_that_are_sized_by_what_came_before(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_FLOOR": 250, "_CEILING": 250, "_TELLING": 100}.items():
        monkeypatch.setattr(batch_size, name, value)
    landing = Landing(tmp_path)
    sent = [f"{number}-{i}" for number in range(6) for i in range(6)]
    for at in range(0, len(sent), 6):
        landing.deliver(*[json.dumps({"id": key, "seq": 1, "a": 1}) for key in sent[at : at + 6]])

    first = drain(landing.request(max_batches=1), spark, progress=lambda line: None)
    assert (first.outcome, landing.layout.tables.intake(1).version) == (
        "stopped",
        1,
    )  # nothing was cut in vain
    assert first.drain is not None
    assert (first.drain.before.units, first.drain.after.units) == (6, 5)
    assert first.drain.bound.endswith("stopped by max_batches: 1")
    said: list[str] = []
    rest = drain(landing.request(), spark, progress=said.append)

    assert rest.drain is not None
    more = [line.partition(" (")[0] for line in said if " more, " in line]
    assert more == ["4 batches more, sized to memory: 250 B"]
    assert rest.drain.bound.startswith("sized to memory: 250 B")
    assert (
        rest.outcome,
        rest.drain.after.units,
        len(rest.drain.batches),
        len(landing.ledger()),
    ) == ("done", 0, 5, 6)
    loads = batch_size.loads(landing.layout)
    assert len(loads) == 6
    for load in loads:
        assert 150 < load.raw_bytes <= 250
        assert load.kept_bytes > load.raw_bytes
        assert 0 <= load.gc_seconds < load.seconds
    assert drain(landing.request(), spark, progress=said.append).outcome == "idle"
    assert Counter(
        row["id"] for row in landing.read(landing.layout.tables.target.path)
    ) == dict.fromkeys(sent, 1)


def forget_what_other_tests_persisted(spark: SparkSession) -> None:
    spark.catalog.clearCache()
    until = time.monotonic() + 60
    while persisted(spark).bytes:  # Spark removes blocks in the background
        assert time.monotonic() < until, "a test left an RDD persisted"
        time.sleep(0.02)


def test_what_delta_keeps_of_a_table_is_no_part_of_a_batch(
    tmp_path: Path, spark: SparkSession
) -> None:
    forget_what_other_tests_persisted(spark)
    path = str(tmp_path / "t")
    spark.range(10).write.format("delta").save(path)
    assert spark.read.format("delta").load(path).where("id > 3").count() == 6
    names = [str(one.name()) for one in spark.sparkContext._jsc.sc().getRDDStorageInfo()]
    assert any(name.startswith("Delta Table State") for name in names), names
    usage = ResourceUsage(spark)
    usage.beside(lambda step: None)("read")
    assert usage.load(1, 2) is None

    rows = spark.range(1000).persist()
    assert rows.count() == 1000
    usage.beside(lambda step: None)("read")
    rows.unpersist()
    load = usage.load(1, 2)
    assert load is not None
    assert (load.raw_bytes, load.heap_bytes, load.spilled_bytes) == (1, 2, 0)
    assert 1000 < load.kept_bytes < 100_000


def test_rows_that_lie_on_disk_are_spilled(spark: SparkSession) -> None:
    forget_what_other_tests_persisted(spark)
    usage = ResourceUsage(spark)
    rows = spark.range(1000).persist(StorageLevel.DISK_ONLY)
    assert rows.count() == 1000
    usage.beside(lambda step: None)("read")
    rows.unpersist()
    load = usage.load(1, 2)
    assert load is not None
    assert load.spilled_bytes == load.kept_bytes > 1000


@pytest.mark.full
def test_a_drain_lists_its_source_once_and_says_what_it_left_of_that(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = Landing(tmp_path)
    landing.deliver(json.dumps({"id": "a", "seq": 1, "op": "u"}))
    landing.deliver("\x00" * 100, name="no.json.gz")
    found: list[int] = []

    def listed(source: FilesSource, root: Path, now: datetime) -> listing.Listing:
        seen = list_source(source, root, now)
        found.append(len(seen.files))
        if len(found) == 1:
            landing.deliver(json.dumps({"id": "b", "seq": 1, "op": "u"}))
        return seen

    list_source = listing.list_source
    monkeypatch.setattr(listing, "list_source", listed)
    part = landing.drain(spark).drain
    assert part is not None
    assert found == [2]
    assert (part.before.units, part.kept_out, part.after.units) == (1, 1, 0)
