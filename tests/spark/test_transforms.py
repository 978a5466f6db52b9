"""A transform is held to columns of its own row, to answers that a replay gives again, and to names of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError
from draindown.spark.contract.parsing import KEPT
from draindown.spark.contract.transforms import apply
from tests.landing import Landing

Transform = Callable[[DataFrame], DataFrame]


@pytest.fixture(scope="module")
def given(spark: SparkSession) -> DataFrame:
    """Parsed rows as a transform gets them, and beside them a view `other` to ask."""
    spark.range(3).createOrReplaceTempView("other")
    return spark.createDataFrame([], "id string, n int").select("*", *(F.lit("").alias(name) for name in KEPT))


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
    ],
)
def test_names_that_are_taken_are_refused(given: DataFrame, transform: Transform, named: str) -> None:
    error = refusal(given, transform)
    assert error.code == "transform-bad-names"
    assert f"column {named} " in error.found


def test_a_column_of_what_is_never_null_may_be_added_and_stays(spark: SparkSession, tmp_path: Path) -> None:
    """The nested fields of a column that is added to a table are nullable, those of a struct of literals are not."""
    landing = Landing(tmp_path, transform="own.made")
    added = "{'one': F.struct(F.lit(1).alias('x')), 'all': F.array(F.struct(F.lit(2).alias('y')))}"
    for batch, made in enumerate(("{}", added, added)):
        landing.transform("own", f"def made(df):\n    return df.withColumns({made})\n")
        landing.deliver(f'{{"id": "k{batch}", "seq": {batch}}}')
        assert landing.apply(spark).outcome == "done"
    found = {row["id"]: (row["one"], row["all"]) for row in landing.rows()}
    assert found == {"k0": (None, None), "k1": ({"x": 1}, [{"y": 2}]), "k2": ({"x": 1}, [{"y": 2}])}
