"""SQL helpers: evaluate users' expressions so that an error on a row gives NULL, quote names and
literals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from draindown.config.column_types import UNSTORED

_SUMMED = 32
"""At most so many terms are added one by one: the code of many is too long for the JIT compiler."""
_GLOB = re.compile(r"([\[\]{}*?\\])")
CHANGED_AT = "_changed_at"
"""Column of a target and of tables beside it: stamp of the batch that last changed the row; rises
batch by batch.
"""
ARRIVED_AT = "_arrived_at"
"""Column of the target: when the record's unit arrived, the earlier of first seen and the source's
own time.
"""
ORIGIN = "_origin"
"""Column of an append target: struct of `unit` and `position`, where the record came from."""
STAMPS = (CHANGED_AT, ARRIVED_AT, ORIGIN)
"""Columns of a target that describe a row's history. They are no content: they decide no tie and no
comparison.
"""


def try_eval(spark: SparkSession, expression: str) -> Column:
    """Return the SQL expression as a column that is NULL for rows on which it fails (cast, index,
    division, pattern).

    Catalyst's TryEval catches the error per row, also inside generated code. `coalesce` or a
    `try_*` function around an ANSI cast does not. tests/spark/test_engine.py pins this behaviour.
    """
    return tried(spark, F.expr(expression))


def tried(spark: SparkSession, value: Column) -> Column:
    """Return a column that is NULL for rows on which `value` fails."""
    jvm = spark._jvm
    convert = jvm.org.apache.spark.sql.classic.ExpressionUtils  # type: ignore[union-attr]
    guarded = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(  # type: ignore[union-attr]
        convert.expression(value._jc)
    )
    return ClassicColumn(convert.column(guarded))


def origin(unit: Column, position: Column) -> Column:
    """Return the struct that identifies a record: the unit that it came from, and its position
    there.
    """
    return F.struct(unit.alias("input"), position.cast("bigint").alias("position"))


def ddl(kind: DataType) -> str:
    """Return a type as SQL DDL. Spark's own spelling has no quotes around the names of fields."""
    match kind:
        case ArrayType():
            return f"array<{ddl(kind.elementType)}>"
        case MapType():
            return f"map<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
        case StructType():
            return f"struct<{', '.join(f'{quoted(field.name)}: {ddl(field.dataType)}' for field in kind)}>"
        case _:
            return kind.simpleString()


def hadoop_path(path: str) -> str:
    """Return a local path as a Hadoop path, with glob characters escaped."""
    return "file://" + _GLOB.sub(r"\\\1", path)


def unstored(kind: DataType, path: str = "") -> Iterator[str]:
    """Yield the paths of columns of a schema, and of fields within them, whose names no table can
    have.
    """
    match kind:
        case StructType():
            for field in kind:
                here = f"{path}.{field.name}" if path else field.name
                yield from [here] if UNSTORED & set(field.name) else unstored(field.dataType, here)
        case ArrayType():
            yield from unstored(kind.elementType, path)
        case MapType():
            yield from (*unstored(kind.keyType, path), *unstored(kind.valueType, path))


def quoted(name: str) -> str:
    """Return a column name quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return text as a SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def bytes_of(texts: Sequence[str]) -> str:
    """Return the bytes of a row in these strings and binaries (SQL expressions), as a SQL
    expression of a bigint.
    """
    sizes = [f"coalesce(octet_length({text}), 0)" for text in texts]
    if len(sizes) <= _SUMMED:
        return " + ".join(["0L", *sizes])
    return f"aggregate(array({', '.join(sizes)}), 0L, (sum, size) -> sum + size)"
