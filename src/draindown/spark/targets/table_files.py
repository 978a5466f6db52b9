"""One version of a Delta table in portions of whole files, so that all of them together read each
file once.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


class TableFiles:
    """A version of the table at `path`, divided anew into the same portions each time.

    A portion has files of about `rows` rows, deleted ones included, and at least one file. Files
    without statistics are a portion each. A table without files has one portion without rows.

    Spark's readers of Delta skip files by statistics of columns alone; that takes the table's log
    from Delta's JVM library. tests/spark/test_table_files.py pins what it returns.
    """

    def __init__(self, spark: SparkSession, path: str, version: int, rows: int) -> None:
        self._spark, self._jvm = spark, spark._jvm
        jvm: Any = self._jvm
        self._log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
        none = jvm.scala.Option.empty()
        self._snapshot = self._log.getSnapshotAt(version, none, none, False)
        self._ends = self._divided(rows)

    @property
    def portions(self) -> int:
        """How many portions there are, at least one."""
        return len(self._ends)

    def portion(self, number: int) -> DataFrame:
        """Return the rows of a portion, from 0."""
        jvm: Any = self._jvm
        within = F.col("path").between(*map(F.lit, self._ends[number]))
        files = self._snapshot.allFiles().filter(within._jc).collectAsList()
        listed = jvm.scala.jdk.javaapi.CollectionConverters.asScala(files).toSeq()
        return DataFrame(
            self._log.createDataFrame(self._snapshot, listed, False, jvm.scala.Option.empty()),
            self._spark,
        )

    def _divided(self, rows: int) -> list[tuple[str, str]]:
        """Return the first and the last path of each portion, in the order of paths."""
        files = DataFrame(self._snapshot.allFiles().toDF(), self._spark)
        number = F.get_json_object("stats", "$.numRecords").cast("bigint")
        listed = (
            files.select("path", F.coalesce(number, F.lit(rows)).alias("rows"))
            .orderBy("path")
            .collect()
        )
        ends, held = list[tuple[str, str]](), 0
        for path, number in listed:
            if ends and held + number <= rows:
                ends[-1], held = (ends[-1][0], path), held + number
            else:
                ends, held = [*ends, (path, path)], number
        return ends or [("", "")]
