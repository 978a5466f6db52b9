"""Engine behaviour that the drain relies on. A failure here means: read the release notes before
anything else.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.config.names import caseless
from draindown.lake.table import Table
from draindown.spark.contract.origin import located
from draindown.spark.contract.transforms import computed_from
from draindown.spark.runs import termination
from draindown.spark.session import configured
from draindown.spark.sources.files import FilesReader
from draindown.spark.sources.place import BlockOrigin
from draindown.spark.sources.readers import InputFile, local_path, read_text
from draindown.spark.sql import ORIGIN, try_eval

_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"


@pytest.mark.parametrize(
    ("expression", "good"),
    [
        ("cast(s as int)", {"1": 1, "x": None}),
        ("array(10, 20)[cast(s as int)]", {"1": 20, "7": None, "x": None}),
        ("element_at(array(10, 20), cast(s as int))", {"1": 10, "0": None}),
        ("'abc' rlike s", {"b": True, "(": None}),
        ("1 / cast(s as int)", {"1": 1.0, "0": None}),
        ("to_date(s)", {"not a date": None}),
        ("decode(unhex(s), 'utf-8')", {"41": "A"}),
        ("coalesce(cast(s as int), -1)", {"1": 1, "x": None}),
    ],
)
def test_try_eval_is_null_where_an_expression_fails(
    spark: SparkSession, expression: str, good: dict[str, object]
) -> None:
    frame = spark.createDataFrame([(key,) for key in good], "s string")
    for rows in (frame, frame.repartition(2).filter("s is not null")):  # folded and run
        found = rows.select("s", try_eval(spark, expression).alias("found")).collect()
        assert {row["s"]: row["found"] for row in found} == good


def test_names_are_one_where_java_compares_characters_as_one(spark: SparkSession) -> None:
    old = unicodedata.ucd_3_2_0  # of both Unicode versions, Java's and Python's
    known = [c for at in range(0x10000) if old.category(c := chr(at)) not in ("Cn", "Cs")]
    cased = [c for c in known if c.upper() != c or c.lower() != c]
    java = spark._jvm.java  # type: ignore[union-attr]
    # keeps the first of those that are equal
    found = java.util.TreeSet(java.lang.String.CASE_INSENSITIVE_ORDER)
    found.addAll(cased)
    ours = dict[str, str]()
    for character in cased:
        ours.setdefault(caseless(character), character)
    assert set(java.lang.String.join("", found)) == set(ours.values()) and len(ours) > 900
    frame = spark.sql("select 1 as `straße`, 2 as `strasse`, 3 as `k`, 4 as `\u212a`")
    assert frame.select("STRAßE", "STRASSE").first() == (1, 2)
    with pytest.raises(AnalysisException, match="AMBIGUOUS"):
        frame.select("K")


def test_write_of_a_known_transaction_is_dropped(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark.range(3).write.format("delta").save(path)

    def merge(start: int) -> int:
        source = spark.range(start, start + 2).alias("s")
        table = DeltaTable.forPath(spark, path).alias("t")
        done = table.merge(source, "t.id = s.id").whenNotMatchedInsertAll().execute()
        return len(done.collect()) if done is not None else 0

    with configured(spark, {_APP: "app", _VERSION: "4"}):
        assert merge(10) == 1
        version = Table(path).version
        assert merge(20) == 0  # other rows, same transaction: nothing, not even a commit
        spark.range(30, 31).write.format("delta").mode("append").save(path)
    assert Table(path).version == version
    assert Table(path).last("app") == 4
    assert spark.read.format("delta").load(path).count() == 5


def test_a_session_leaves_the_interrupt_to_its_process(spark: SparkSession) -> None:
    """PySpark's own handler would cancel all jobs, in the middle of a batch."""
    assert spark.range(1).count() == 1
    assert not getattr(signal.getsignal(signal.SIGINT), "__module__", "").startswith("pyspark")


def test_configured_puts_back_what_was_there(spark: SparkSession) -> None:
    spark.conf.set(_VERSION, "7")
    try:
        with pytest.raises(ZeroDivisionError), configured(spark, {_APP: "app", _VERSION: "8"}):
            assert (spark.conf.get(_APP), spark.conf.get(_VERSION)) == ("app", "8")
            raise ZeroDivisionError
        assert spark.conf.get(_APP, None) is None
        assert spark.conf.get(_VERSION) == "7"
    finally:
        spark.conf.unset(_VERSION)


def test_second_writer_of_a_transaction_fences_the_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A driver that lost its lease computes on, but can't commit: its successor has committed the
    same batch.
    """
    path = str(tmp_path / "t")
    spark.range(3).write.format("delta").save(path)
    gate = tmp_path / "gate"

    def overtake(rows: object) -> None:
        try:
            gate.touch(exist_ok=False)  # once, whichever task comes first
        except FileExistsError:
            return
        import deltalake
        import pyarrow as pa

        properties = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("app", 4)])
        deltalake.write_deltalake(
            path, pa.table({"id": [99]}), mode="append", commit_properties=properties
        )

    slow = F.udf(lambda value: overtake(value) or value, "long")
    source = spark.range(2, 5, numPartitions=1).select(slow("id").alias("id"))
    table = DeltaTable.forPath(spark, path).alias("t")
    merge = (
        table.merge(source.alias("s"), "t.id = s.id").whenMatchedDelete().whenNotMatchedInsertAll()
    )
    with (
        configured(spark, {_APP: "app", _VERSION: "4"}),
        pytest.raises((Py4JJavaError, Exception)) as caught,
    ):
        merge.execute()
    assert "CONCURRENT_TRANSACTION" in str(caught.value)
    assert gate.exists()
    assert sorted(row["id"] for row in spark.read.format("delta").load(path).collect()) == [
        0,
        1,
        2,
        99,
    ]


NAMES = [
    "plain.json",
    "two words.json",
    "50%.json",
    "a%20b.json",
    "[ab]{c,d}*?.json",
    "back\\slash.json",
    "häß é.json",  # composed and decomposed
    "飛行機\U0001f6eb.json",
    "a#b&c=d+e;f,g'h\"i|j.json",
    "~$(x)`y`^.json",
]


def _input(path: Path) -> InputFile:
    return InputFile(str(path), 0)


@pytest.mark.full
@pytest.mark.parametrize("split", [64, 1 << 20])
def test_records_are_numbered_whatever_the_split_and_the_name(
    spark: SparkSession, tmp_path: Path, split: int
) -> None:
    ends = ["\n", "\r\n", "\r"]
    expected = {}
    for at, name in enumerate(NAMES):
        lines = [f"{name} {n} {'x' * (n * 7 % 40)}" if n % 5 else "" for n in range(1, 60)]
        (tmp_path / name).write_bytes(
            ends[at % 3].join(lines).encode() + (b"" if at % 2 else ends[at % 3].encode())
        )
        expected |= {(str(tmp_path / name), n): line for n, line in enumerate(lines, 1)}
    files = [_input(tmp_path / name) for name in NAMES]
    with configured(
        spark,
        {"spark.sql.files.maxPartitionBytes": str(split), "spark.sql.files.openCostInBytes": "1"},
    ):
        frame = read_text(spark, files).persist()
        counts = (
            frame.groupBy("_unit", "_block")
            .agg(F.count("*").alias("n"), F.min("_id").alias("least"))
            .collect()
        )
        assert (len(counts) > len(NAMES)) == (split == 64)
        places = FilesReader().offsets(
            [(row["_unit"], row["_block"], row["n"], row["least"]) for row in counts]
        )
        blocks = [BlockOrigin(*place, local_path(place[0]), 0) for place in places]
        found = located(frame, blocks).select(f"{ORIGIN}.*", "value").collect()
        frame.unpersist()
    assert {(row["input"], row["position"]): row["value"] for row in found} == expected
    assert len(found) == len(expected)
    assert {local_path(row["_unit"]) for row in counts} == {file.path for file in files}


def test_commit_says_what_a_merge_did_and_why(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark.range(3).write.format("delta").save(path)
    note = json.dumps({"note": "ü" * 1000})
    with configured(spark, {"spark.databricks.delta.commitInfo.userMetadata": note}):
        table = DeltaTable.forPath(spark, path).alias("t")
        source = spark.range(2, 5).alias("s")
        table.merge(source, "t.id = s.id").whenMatchedDelete().whenNotMatchedInsertAll().execute()
    commit = Table(path).commits(1)[0]
    done = commit.metrics
    assert commit.user_metadata == note
    assert (
        done["numTargetRowsInserted"],
        done["numTargetRowsDeleted"],
        done["numTargetRowsUpdated"],
    ) == (
        "2",
        "1",
        "0",
    )


@pytest.mark.parametrize(
    ("expression", "provable"),
    [
        ("substring(id, 1, 1)", True),
        ("concat(id, region)", True),
        ("concat(id, other)", False),
        ("cast(seq as string)", False),
    ],
)
def test_plan_says_what_a_column_depends_on(
    spark: SparkSession, expression: str, provable: bool
) -> None:
    given = spark.createDataFrame([], "id string, region string, seq int, other string")
    made = given.withColumn("p", F.expr(expression))
    assert (computed_from(made, "p", {"id", "region"}, given) is not None) == provable
    later = made.withColumn("p", F.upper("p")).select("id", "region", "seq", "p")
    assert (computed_from(later, "p", {"id", "region"}, given) is not None) == provable


def test_keys_that_count_are_those_of_the_result(spark: SparkSession) -> None:
    """`A` and `a` become one key: what was computed of the old key may differ for the new one."""
    given = spark.createDataFrame([], "id string")
    before = given.withColumn("p", F.substring("id", 1, 1)).withColumn("id", F.lower("id"))
    after = given.withColumn("id", F.lower("id")).withColumn("p", F.substring("id", 1, 1))
    assert computed_from(before, "p", {"id"}, given) is None
    assert computed_from(after, "p", {"id"}, given) is not None
    assert computed_from(given, "id", {"id"}, given) == []


def test_how_a_column_is_computed_of_keys_is_told_apart(spark: SparkSession) -> None:
    given = spark.createDataFrame([], "id string, n int")

    def how(expression: Any, *, beside: str = "n") -> list[str] | None:
        made = (
            given.withColumn("x", F.expr(beside))
            .withColumn("b", F.crc32("id"))
            .withColumn("p", expression)
        )
        return computed_from(made, "p", {"id"}, given)

    by = [how(F.expr(text)) for text in ("b % 16", "b % 32", "pmod(b, 16)", "substring(id, 1, 2)")]
    assert len({json.dumps(one) for one in by}) == 4 and None not in by
    assert how(F.expr("b % 16")) == how(F.expr("b % 16"), beside="n + 1") == by[0]
    assert how(F.udf(lambda text: text[:1], "string")("id")) is None


def test_a_task_gets_a_class_as_it_was_sent_whatever_an_earlier_one_did_to_it(
    spark: SparkSession,
) -> None:
    class Kept:
        calls = 0

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            Kept.calls += 1
        yield pa.RecordBatch.from_pydict({"process": [os.getpid()], "calls": [Kept.calls]})

    rows = spark.range(1, numPartitions=1)
    found = [
        rows.mapInArrow(counted, "process bigint, calls bigint").collect()[0] for _ in range(4)
    ]
    assert len({row["process"] for row in found}) < len(found), "a worker did a task after another"
    assert [row["calls"] for row in found] == [1] * len(found)


def test_thread_of_a_query_lives_as_long_as_the_query_works(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What tells a query that goes on from one that died without a word."""
    go_on, lived = threading.Event(), []
    spark.range(1).write.format("delta").save(str(tmp_path / "source"))
    query = (
        spark.readStream.format("delta")
        .load(str(tmp_path / "source"))
        .writeStream.foreachBatch(lambda *_: go_on.wait())
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        lived = [
            termination._thread_lives(query),
            query.awaitTermination(1),
            termination._thread_lives(query),
        ]
    finally:
        go_on.set()
        query.awaitTermination()
    assert lived == [True, False, True]
    query._jsq.streamingQuery().queryExecutionThread().join(10_000)
    assert not termination._thread_lives(query)
