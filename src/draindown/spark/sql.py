"""Expressions that users write, evaluated so that an error on a row is NULL for that row."""

from __future__ import annotations

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn


def try_eval(spark: SparkSession, expression: str) -> Column:
    """The SQL expression, NULL where it fails (bad cast, index, division, pattern).

    Catalyst's own TryEval does it per row and inside generated code; `coalesce` or `try_*` around an ANSI cast don't.
    tests/spark/test_engine.py pins this behaviour.
    """
    jvm = spark._jvm
    convert = jvm.org.apache.spark.sql.classic.ExpressionUtils  # type: ignore[union-attr]
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(  # type: ignore[union-attr]
        convert.expression(F.expr(expression)._jc)
    )
    return ClassicColumn(convert.column(tried))


def quoted(name: str) -> str:
    """A column name as Spark SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Text as a SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
