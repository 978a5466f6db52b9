"""Raw records as rows: those of a batch's ranges are kept, and read again from the files that may
hold them.
"""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.sources import raw
from draindown.sources.slices import Unit
from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.sources.place import ARRIVED, ENVELOPE, ENVELOPE_FIELDS
from draindown.spark.sources.raw import read, rows

AT = datetime(2026, 1, 1, tzinfo=UTC)
DAY = date(2026, 1, 1)


def unit(partition: int, start: int, until: int, log: str = "x", kept: str = "") -> Unit:
    return Unit(f"t/{partition}", start, until, 0, 0, None, AT, {}, log=log, kept=kept)


def parsed(spark: SparkSession, places: list[tuple[str, int]]) -> DataFrame:
    """A batch's frame of records at places, as the contract leaves it."""
    frame = relation(spark, {"_unit": TEXT, "_id": NUMBER}, places)
    empty = F.expr(f"cast(null as {ENVELOPE_FIELDS})").alias(ENVELOPE)
    return frame.select("*", F.lit("v").alias("_raw"), F.lit(1).cast("long").alias(ARRIVED), empty)


def ranges(draw: random.Random, units: int) -> list[Unit]:
    """Ranges of as many partitions, some with two of which the second begins where a gap ends."""
    found = []
    for partition in range(units):
        start = draw.randrange(50)
        found.append(unit(partition, start, start + draw.randrange(1, 3)))
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    "units", [50, 51, *(pytest.param(units, marks=pytest.mark.long) for units in (1, 3000))]
)
def test_records_of_any_number_of_partitions_are_kept_and_read_again(
    spark: SparkSession, tmp_path: Path, units: int
) -> None:
    draw, layout = random.Random(units), FlowHome(str(tmp_path), "p", "f", "f")
    asked = ranges(draw, units)
    inside = [(one.name, at) for one in asked for at in range(one.start, one.until)]
    beside = [(one.name, one.until) for one in asked] + [("t/none", 1)]
    raw.create(layout)
    own = {"generation": F.lit(1), "batch": F.lit(0).cast("long"), "kind": F.lit("drain")}
    kept = rows(parsed(spark, inside + beside), asked, DAY).withColumns(own)
    kept.write.format("delta").mode("append").save(layout.tables.raw.path)
    held = layout.tables.raw.rows("select input, log, position from t where part = 'records'")
    assert sorted((row["input"], row["position"]) for row in held) == sorted(inside)
    assert {row["log"] for row in held} == {"x"}
    assert sum(one.until - one.start for one in raw.ranges(layout)) == len(inside)
    wanted = [Unit(**{**vars(one), "kept": layout.tables.raw.path}) for one in asked]
    found = read(spark, wanted).select("_unit", "_id", "value").collect()
    assert sorted((row["_unit"], row["_id"]) for row in found) == sorted(inside)
    other = [Unit(**{**vars(one), "log": "y"}) for one in wanted]
    assert read(spark, other).count() == 0, "records of the topic that was there before"


@pytest.mark.parametrize("units", [pytest.param(1, marks=pytest.mark.long), 60])
def test_files_that_hold_none_of_the_ranges_are_not_read(
    spark: SparkSession, tmp_path: Path, units: int
) -> None:
    layout = FlowHome(str(tmp_path), "p", "f", "f")
    raw.create(layout)
    for first in (0, 1000):
        records = [
            {
                "part": raw.RECORDS,
                "day": DAY,
                "input": f"t/{n}",
                "log": "x",
                "position": first + at,
                "value": b"v",
            }
            for n in range(units)
            for at in range(10)
        ]
        before = set(Path(layout.tables.raw.path).rglob("*.parquet"))
        delta.append(layout.tables.raw, pa.Table.from_pylist(records, schema=raw.SCHEMA))
        (written,) = set(Path(layout.tables.raw.path).rglob("*.parquet")) - before
    written.unlink()
    asked = [unit(n, 2, 5, kept=layout.tables.raw.path) for n in range(units)]
    assert read(spark, asked).count() == 3 * units
