"""A version of a Delta table in portions of files: each row once, whatever was deleted, appended or
compacted since.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from draindown.spark.targets.table_files import TableFiles


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table that is empty as of version 1, has 38 rows as of version 6, and lost some of these
    since.
    """
    path = str(tmp_path_factory.mktemp("files") / "t")
    spark.sql(f"create table delta.`{path}` (id bigint, p string) using delta partitioned by (p)")
    spark.sql(
        f"alter table delta.`{path}` set tblproperties ('delta.enableDeletionVectors' = 'true')"
    )
    for at in range(4):
        some = (
            spark.range(at * 10, at * 10 + 10)
            .selectExpr("id", "concat('p ', id % 2) as p")
            .coalesce(1)
        )
        some.write.format("delta").mode("append").save(path)
    spark.sql(f"delete from delta.`{path}` where id in (3, 25)")
    spark.sql(f"delete from delta.`{path}` where id > 30")
    return path


@pytest.mark.full
@pytest.mark.parametrize("rows", [1, 10, 25, 1_000])
def test_portions_have_each_row_of_the_version_once(
    spark: SparkSession, table: str, rows: int
) -> None:
    assert TableFiles(spark, table, 1, rows).portion(0).count() == 0
    files = TableFiles(spark, table, 6, rows)
    found = [[row.id for row in files.portion(at).collect()] for at in range(files.portions)]
    assert sorted(id_ for portion in found for id_ in portion) == [
        at for at in range(40) if at not in (3, 25)
    ]
    assert all(len(portion) <= max(rows, 5) for portion in found)
    assert files.portions == {1: 8, 10: 4, 25: 2, 1_000: 1}[rows]
