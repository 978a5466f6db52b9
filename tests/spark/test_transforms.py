"""A transform is held to columns of its own row, to answers that a replay gives again, and to names
of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.audit.recount import audit
from draindown.base.errors import TerminalError
from draindown.base.exits import Exit
from draindown.config import scaffold
from draindown.config.landing import FlowSpec
from draindown.config.loader import load as load_pipeline
from draindown.spark.contract.parsing import KEPT
from draindown.spark.contract.transforms import apply, load
from draindown.spark.runs import replay_rows
from tests.landing import Landing

Transform = Callable[[DataFrame], DataFrame]


@pytest.fixture(scope="module")
def given(spark: SparkSession) -> DataFrame:
    """Parsed rows as a transform gets them, and beside them a view `other` to ask."""
    spark.range(3).createOrReplaceTempView("other")
    return spark.createDataFrame([], "id string, n int").select(
        "*", *(F.lit("").alias(name) for name in KEPT)
    )


def refusal(given: DataFrame, transform: Transform) -> TerminalError:
    with pytest.raises(TerminalError) as caught:
        apply(given, transform, "m.f")
    return caught.value


def test_columns_may_be_added_renamed_and_computed(given: DataFrame) -> None:
    made = apply(given, lambda d: d.withColumn("m", d.n + 1).withColumnRenamed("n", "k"), "m.f")
    assert set(made.columns) == {"id", "k", "m", *KEPT}


@pytest.mark.parametrize(
    "expression",
    [
        "(select max(id) from other)",
        "n + (select max(o.id) from other o where o.id = n)",
        "exists (select 1 from other)",
        "n in (select id from other)",
    ],
)
def test_asking_another_table_is_refused(given: DataFrame, expression: str) -> None:
    error = refusal(given, lambda d: d.withColumn("m", F.expr(expression)))
    assert error.code == "transform-not-columns"
    assert "subquery" in error.found


@pytest.mark.parametrize(
    "expression",
    [
        "aes_encrypt(id, '0000111122223333')",
        "reflect('java.util.UUID', 'randomUUID')",
        "shuffle(array(n, 2))",
        "monotonically_increasing_id()",
        "spark_partition_id()",
        "input_file_name()",
        "current_user()",
        "session_user()",
        "user()",
        "version()",
        "now()",
        "current_date()",
        "current_timestamp()",
        "localtimestamp()",
        "uuid()",
        "rand()",
        "random(7)",
        "uniform(1, 10)",
        "randstr(3)",
    ],
)
def test_what_a_replay_answers_otherwise_is_refused(given: DataFrame, expression: str) -> None:
    error = refusal(given, lambda d: d.withColumn("m", F.expr(expression)))
    assert error.code == "transform-unstable"


def test_names_that_only_look_like_theirs_are_not(given: DataFrame) -> None:
    def conversion(value):  # without types, from which Spark would infer another kind of function
        return value

    made = apply(given, lambda d: d.withColumn("m", F.udf(conversion)("id")), "m.f")
    assert "m" in made.columns


@pytest.mark.parametrize(
    ("transform", "named"),
    [
        (lambda d: d.withColumn("_file", F.lit("x")), "_file"),
        (lambda d: d.withColumn("_changed_at", F.lit("x")), "_changed_at"),
        (lambda d: d.select("*", F.lit(1).alias("n")), "n"),
        (lambda d: d.select("*", F.lit(1).alias("ID")), "id"),
        (lambda d: d.select("*", F.lit(1).alias("_ROW")), "_row"),
        (lambda d: d.select("*", F.expr("id + 1")), "(id + 1)"),
        (lambda d: d.withColumn("s", F.struct(F.lit(1).alias("net total"))), "s.net total"),
    ],
)
def test_names_that_no_table_has_or_draindown_has_are_refused(
    given: DataFrame, transform: Transform, named: str
) -> None:
    error = refusal(given, transform)
    assert error.code == "transform-bad-names"
    assert f"column {named}" in error.found


@pytest.mark.full
def test_a_column_of_what_is_never_null_may_be_added_and_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The nested fields of a column that is added to a table are nullable, those of a struct of
    literals are not.
    """
    landing = Landing(tmp_path, transform="own.made")
    added = "{'one': F.struct(F.lit(1).alias('x')), 'all': F.array(F.struct(F.lit(2).alias('y')))}"
    for batch, made in enumerate(("{}", added, added)):
        landing.transform("own", f"def made(df):\n    return df.withColumns({made})\n")
        landing.deliver(f'{{"id": "k{batch}", "seq": {batch}}}')
        assert landing.apply(spark).outcome == "done"
    found = {row["id"]: (row["one"], row["all"]) for row in landing.rows()}
    assert found == {"k0": (None, None), "k1": ({"x": 1}, [{"y": 2}]), "k2": ({"x": 1}, [{"y": 2}])}


def test_the_example_of_a_new_project_is_one(spark: SparkSession, tmp_path: Path) -> None:
    scaffold.init(tmp_path, "orders")
    file = tmp_path / "dags" / "pipelines" / "orders.yaml"
    file.write_text(file.read_text().replace("# transform: ", "transform: "))
    flow = load_pipeline(file, {}).flows["orders"]
    assert isinstance(flow, FlowSpec) and flow.transform == "orders.tidy"
    names = ", ".join(
        f"cast(null as {column.stored}) as {name}" for name, column in flow.columns.items()
    )
    given = spark.sql(f"select {names}").select("*", *(F.lit("").alias(name) for name in KEPT))
    made = apply(given, load(str(tmp_path), flow.transform), flow.transform)
    assert set(made.columns) == {*flow.columns, "order_day", "is_large", *KEPT}


BOOKED = """
def booked(df):
    df = df.withColumn("text", F.trim("b"))
    df = df.withColumn("day", F.to_date("text", "yyyy/M/d")).withColumn("half", F.lit(10) / F.col("a"))
    return df.withColumn("later", F.date_add("day", 1)).drop("text")
"""


def test_a_udf_may_call_the_functions_of_its_module(spark: SparkSession, tmp_path: Path) -> None:
    """Python workers, on this machine or on a cluster's, can't import the module."""
    landing = Landing(tmp_path, target={}, transform="own.made")
    source = "def half(value):\n    return value // 2\n\n\ndef made(df):\n"
    landing.transform(
        "own", source + "    return df.withColumn('a', F.udf(lambda v: half(v), 'int')('a'))\n"
    )
    landing.deliver('{"id": "a", "seq": 1, "a": 8}')
    landing.apply(spark)
    assert [row["a"] for row in landing.rows("a")] == [4]


@pytest.mark.full
@pytest.mark.parametrize(
    "target",
    [
        pytest.param({}, id="append", marks=pytest.mark.long),
        pytest.param({"keys": ["id"], "sequence_by": ["seq"]}, id="keyed"),
    ],
)
def test_a_row_that_the_transform_can_not_take_is_refused_alone(
    spark: SparkSession, tmp_path: Path, target: dict[str, Any]
) -> None:
    landing = Landing(tmp_path, spark, transform="own.booked", target=target)
    landing.transform("own", BOOKED)
    bad = [
        '{"id": "k2", "seq": 2, "a": 5, "b": "2016/13/45"}',
        '{"id": "k3", "seq": 3, "a": 0, "b": "2016/1/2"}',
    ]
    null, broken = '{"id": "k4", "seq": 4}', '{"id": "k5", "seq": "x"}'
    landing.deliver(
        '{"id": "k1", "seq": 1, "a": 5, "b": " 2016/3/4 "}', bad[0], "", bad[1], null, broken
    )
    report, code = landing.attempt()
    assert (report.outcome, code) == ("done", 0)
    found = {row["id"]: (row["day"], row["half"], row["later"]) for row in landing.rows()}
    assert found == {"k1": (date(2016, 3, 4), 2.0, date(2016, 3, 5)), "k4": (None, None, None)}
    kept = landing.layout.tables.quarantine.rows("select * from t order by origin.position")
    told = [(row["origin"]["position"], row["reason"], row["field"], row["raw"]) for row in kept]
    assert told == [
        (2, "transform", "day", bad[0]),
        (4, "transform", "half", bad[1]),
        (6, "type", "seq", broken),
    ]
    assert [row["detail"] for row in kept[:2]] == [
        "it fails on b = 2016/13/45",
        "it fails on a = 0",
    ]
    assert audit(landing.spec, "f", root=tmp_path).clean
    # once the transform is mended, they are let through
    landing.transform(
        "own",
        BOOKED.replace("to_date(", "try_to_timestamp(F.col(")
        .replace('", "yyyy', '"), F.lit("yyyy')
        .replace('d"))', 'd")).cast("date"))'),
    )
    ids = tuple(row["quarantine_id"] for row in kept[:1])
    assert replay_rows.replay(landing.request("again", quarantine_ids=ids), spark).outcome == "done"
    assert {row["id"] for row in landing.rows(where="day is null")} == {"k2", "k4"}
    assert audit(landing.spec, "f", root=tmp_path).clean


@pytest.mark.full
def test_the_values_that_a_transform_fails_on_are_shown_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = {
        "id": "string not null",
        "net": "decimal(38,18)",
        "box": "struct<n: decimal(5,2)>",
        "no": "decimal(9,2)",
    }
    landing = Landing(tmp_path, spark, columns=columns, transform="own.made", target={})
    landing.transform(
        "own",
        "def made(df):\n    return df.withColumn('x', F.lit(1) / (F.col('net') + F.col('box.n') + F.col('no')))\n",
    )
    landing.deliver('{"id": "a", "net": 0, "box": {"n": "0.50"}, "no": "-0.50"}')
    landing.attempt()
    (kept,) = landing.layout.tables.quarantine.rows("select detail from t")
    assert kept["detail"] == 'it fails on net = 0.000000000000000000, box = {"n":0.50}, no = -0.50'
    landing.transform(
        "own",
        "@F.udf('int')\ndef bad(net):\n    return 1 // 0\n\ndef made(df):\n    return df.withColumn('x', bad('net'))\n",
    )
    landing.deliver('{"id": "b", "net": 0}')
    report, _ = landing.attempt()
    assert report.error is not None and report.error["code"] == "transform-failed"
    assert str(report.error["found"]).endswith("column x, first on net = 0.000000000000000000")


@pytest.mark.full
def test_python_code_that_fails_ends_as_the_transform_that_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = Landing(tmp_path, spark, transform="own.made")
    landing.transform(
        "own",
        "import datetime\n\n\n"
        "@F.udf('date')\n"
        "def day(text):\n"
        "    return datetime.datetime.strptime(text, '%Y/%m/%d').date()\n\n\n"
        "def made(df):\n    return df.withColumn('m', F.col('seq') + 1).withColumn('day', day('b'))\n",
    )
    landing.deliver(*(f'{{"id": "k{i}", "seq": {i}, "b": "2016/1/{i}"}}' for i in range(1, 40)))
    report, code = landing.attempt()
    assert (
        code == Exit.NEEDS_PERSON
        and report.error is not None
        and report.error["code"] == "transform-failed"
    )
    found = str(report.error["found"])
    assert f"{tmp_path}/jobs/transforms/own.py:9 in made" in found and "column day" in found, found
    assert "b = 2016/1/" in found and int(found.rpartition("2016/1/")[2]) > 31
    assert not Path(landing.layout.tables.target.path).exists()


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def made(df):\n    x = 1\n    return df.withColumn('m', F.col('nowhere'))\n", 6),
        ("def made(df)\n", 4),
        ("import nothing_there\n", 4),
    ],
)
def test_a_function_or_module_that_fails_is_named(
    spark: SparkSession, tmp_path: Path, source: str, line: int
) -> None:
    landing = Landing(tmp_path, spark, transform="own.made")
    landing.transform("own", source)
    landing.deliver('{"id": "k", "seq": 1}')
    report, code = landing.attempt()
    assert (
        code == Exit.NEEDS_PERSON
        and report.error is not None
        and report.error["code"] == "transform-failed"
    )
    assert f"own.py:{line}" in str(report.error["found"])
