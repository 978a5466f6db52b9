"""Where a record came from and when it arrived, whether that is a literal or a join, and what the
tables keep of it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.sources.files import catalog
from draindown.spark.contract.origin import arrived, located
from draindown.spark.sources.place import ARRIVED, PLACE, BlockOrigin, micros
from draindown.spark.sql import ARRIVED_AT, ORIGIN

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


_KEPT = ("file", "block", "id")


def _named(number: int) -> str:
    return f"file:/{['', chr(0xFFFD), chr(0x1F600), 'a'][number % 4]}{number}"


@pytest.mark.parametrize(
    ("mtime", "arrival"),
    [
        (AT - timedelta(days=3), AT - timedelta(days=3)),
        (AT, AT),
        (AT + timedelta(microseconds=1), AT),
        (AT + timedelta(days=9000), AT),
        (datetime(1960, 1, 1, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC)),
    ],
    ids=["earlier", "same", "later", "far-later", "before-1970"],
)
def test_a_file_arrived_by_its_mtime_unless_that_is_later_than_it_was_seen(
    mtime: datetime, arrival: datetime
) -> None:
    assert catalog.arrival(micros(mtime) * 1000 + 999 * (mtime != AT), AT) == arrival


def test_an_mtime_at_the_end_of_time_is_later() -> None:
    assert catalog.arrival(2**63 - 1, AT) == AT
    assert micros(catalog.arrival(-(2**63), AT)) == -(2**63) // 1000


@pytest.mark.parametrize(
    "files", [*(pytest.param(files, marks=pytest.mark.long) for files in (1, 4)), 16, 17]
)
@pytest.mark.parametrize("same", [True, False], ids=["one arrival", "several"])
def test_every_record_gets_its_own(spark: SparkSession, files: int, same: bool) -> None:
    """Two blocks a file: up to 16 files are literals, more are a join. Texts are not sorted as
    UTF-16 sorts them.
    """
    blocks = [
        BlockOrigin(_named(f), b, 10 * b - f, f"/{f}", 0 if same else f)
        for f in range(files)
        for b in (0, 7)
    ]
    rows = [(one.spelled, one.block, n) for one in blocks for n in (3, 4)]
    frame = spark.createDataFrame(rows, "_unit string, _block long, _id long")
    keyed = frame.select(
        *PLACE, *(F.col(name).alias(kept) for name, kept in zip(PLACE, _KEPT, strict=True))
    )
    joins = (
        located(frame, blocks)
        ._jdf.queryExecution()
        .executedPlan()
        .toString()
        .count("BroadcastHashJoin")
    )
    assert joins == (len(blocks) > 32)
    found = (
        located(keyed, blocks)
        .select(*_KEPT, f"{ORIGIN}.*", F.unix_micros(ARRIVED_AT).alias("us"))
        .collect()
    )
    by_block = {(one.spelled, one.block): one for one in blocks}
    wanted = {
        (
            *row,
            by_block[row[:2]].unit,
            row[2] + by_block[row[:2]].offset,
            by_block[row[:2]].arrived_us,
        )
        for row in rows
    }
    assert {tuple(row) for row in found} == wanted
    assert len(found) == len(rows)
    alone = arrived(keyed, blocks).select(*_KEPT, F.unix_micros(ARRIVED_AT)).collect()
    assert sorted(tuple(row) for row in alone) == sorted((*row[:3], row[-1]) for row in wanted)


def test_no_record_needs_no_block(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "_unit string, _block long, _id long")
    for found in (located(frame, []), arrived(frame, [])):
        assert found.schema[ARRIVED_AT].dataType.simpleString() == "timestamp"
        assert found.collect() == []
    assert (
        located(frame, []).schema[ORIGIN].dataType.simpleString()
        == "struct<input:string,position:bigint>"
    )


def test_records_with_a_time_of_their_own_arrived_then(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("t/0", 0, 5, 11), ("t/0", 0, 6, 3)],
        f"_unit string, _block long, _id long, {ARRIVED} long",
    )
    blocks = [BlockOrigin("t/0", 0, 0, "t/0", 7)]
    found = located(frame, blocks)
    assert found.columns == [ORIGIN, ARRIVED_AT]
    rows = found.select(f"{ORIGIN}.*", F.unix_micros(ARRIVED_AT)).collect()
    assert sorted(tuple(row) for row in rows) == [("t/0", 5, 11), ("t/0", 6, 3)]
    alone = arrived(frame, blocks)
    assert alone.columns == [ARRIVED_AT]
    assert sorted(row[0] for row in alone.select(F.unix_micros(ARRIVED_AT)).collect()) == [3, 11]


def test_rows_that_have_their_arrival_keep_it(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(AT,)], f"{ARRIVED_AT} timestamp")
    assert arrived(frame, []) is frame
