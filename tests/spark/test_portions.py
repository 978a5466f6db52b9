"""Much input goes into the table portion by portion, and what each batch weighs sizes the next ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark import StorageLevel
from pyspark.sql import SparkSession

from draindown import sizing, tables
from draindown.spark.drain import drain
from draindown.spark.gauge import Gauge
from draindown.spark.session import configured
from tests.landing import Landing


def test_much_input_is_drained_by_portions_that_are_sized_by_what_came_before(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_FLOOR": 250, "_CEILING": 250, "_TELLING": 100}.items():
        monkeypatch.setattr(sizing, name, value)
    landing = Landing(tmp_path)
    sent = [f"{number}-{i}" for number in range(7) for i in range(6)]
    for at in range(0, len(sent), 6):
        landing.deliver(*[json.dumps({"id": key, "seq": 1, "a": 1}) for key in sent[at : at + 6]])

    first = drain(landing.request(max_batches=1), spark, progress=lambda line: None)
    assert (first.outcome, tables.version(landing.layout.intake)) == ("bounded", 1)  # nothing was cut in vain
    assert first.drain is not None
    assert (first.drain.before.files, first.drain.after.files) == (7, 6)
    assert first.drain.bound.endswith("stopped by max_batches: 1")
    said: list[str] = []
    rest = drain(landing.request(), spark, progress=said.append)

    assert rest.drain is not None
    more = [line.partition(" (")[0] for line in said if " more, " in line]
    assert more == ["4 batches more, sized to memory: 250 B", "1 batch more, sized to memory: 250 B"]
    assert rest.drain.bound.startswith("sized to memory: 250 B")
    assert (rest.outcome, rest.drain.after.files, len(rest.drain.batches), len(landing.ledger())) == ("done", 0, 6, 7)
    loads = sizing.loads(landing.layout)
    assert len(loads) == 7
    for load in loads:
        assert 150 < load.raw_bytes <= 250
        assert load.kept_bytes > load.raw_bytes
        assert 0 <= load.gc_seconds < load.seconds
    assert drain(landing.request(), spark, progress=said.append).outcome == "idle"
    assert Counter(row["id"] for row in landing.read(landing.layout.table)) == dict.fromkeys(sent, 1)


def test_what_delta_keeps_of_a_table_is_no_part_of_a_batch(tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "t")
    spark.range(10).write.format("delta").save(path)
    assert spark.read.format("delta").load(path).where("id > 3").count() == 6
    names = [str(one.name()) for one in spark.sparkContext._jsc.sc().getRDDStorageInfo()]
    assert any(name.startswith("Delta Table State") for name in names), names
    gauge = Gauge(spark)
    gauge.beside(lambda step: None)("read")
    assert gauge.load(1, 2) is None

    rows = spark.range(1000).persist()
    assert rows.count() == 1000
    gauge.beside(lambda step: None)("read")
    rows.unpersist()
    load = gauge.load(1, 2)
    assert load is not None
    assert (load.raw_bytes, load.heap_bytes, load.spilled_bytes) == (1, 2, 0)
    assert 1000 < load.kept_bytes < 100_000


def test_what_sorts_put_on_disk_is_part_of_a_batchs_spill(tmp_path: Path, spark: SparkSession) -> None:
    rows = spark.range(0, 1000, 1, 1).selectExpr("id % 2 as key", "id", "repeat(id, 20) as text")
    last = "last_value(text) over (partition by key order by id rows between unbounded preceding and current row)"
    little = {"windowExec.buffer.in.memory.threshold": "100", "windowExec.buffer.spill.threshold": "200"}

    def spilled() -> int:
        gauge = Gauge(spark)
        kept = rows.selectExpr("*", f"{last} as held", "count(*) over (partition by key) as n").persist()
        assert kept.count() == 1000
        gauge.beside(lambda step: None)("read")
        kept.unpersist()
        load = gauge.load(1, 2)
        assert load is not None
        return load.spilled_bytes

    assert spilled() == 0
    with configured(spark, {f"spark.sql.{name}": value for name, value in little.items()}):
        assert spilled() > 1000
    assert spilled() == 0, "of this batch, not of the one before"


def test_rows_that_lie_on_disk_are_spilled(spark: SparkSession) -> None:
    gauge = Gauge(spark)
    rows = spark.range(1000).persist(StorageLevel.DISK_ONLY)
    assert rows.count() == 1000
    gauge.beside(lambda step: None)("read")
    rows.unpersist()
    load = gauge.load(1, 2)
    assert load is not None
    assert load.spilled_bytes == load.kept_bytes > 1000
