"""Cast a cell to its column's type; NULL if it is not a value of that type. Nothing is guessed,
rounded or truncated.

Stricter than Spark's casts: infinity and NaN are not numbers, 4.7 is not an int, 1.005 is not a
decimal(10,2), a number is not a time, a time of day is not a timestamp, and neither is a local time
that a change of clocks skips or repeats. -0.0 becomes 0.0. The same rules hold for each value
within an array, a map or a struct.
"""

from __future__ import annotations

from functools import cache

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructType

from draindown.spark.contract import json_rows, text_values
from draindown.spark.contract.nested_json import of_text
from draindown.spark.contract.typed_values import from_value, is_nested
from draindown.spark.sql import try_eval

PAIR = ("_text", "_exact")
"""Fields of a cell that carries, beside its text, an exact value that the text does not determine:
a decimal that did not pass through a double, a string that is NULL if the text is that of a JSON
object or array, or a nested value."""


def typed(frame: DataFrame, cell: str, kind: str) -> Column:
    """Return the frame's column `cell` cast to the type `kind`."""
    held, wanted, spark = frame.schema[cell].dataType, _type_of(kind), frame.sparkSession
    if is_pair(held):
        return _exact(cell, kind, wanted)
    zone = session_zone(spark)
    if is_nested(wanted) and isinstance(held, StringType):
        return try_eval(spark, of_text(cell, wanted, zone))
    if is_nested(wanted):
        return try_eval(spark, from_value(cell, held, wanted, zone))
    # what an unread column holds, and text that is to stay text
    as_is = isinstance(held, StringType) and kind == "string"
    if as_is:
        return F.col(cell)
    if isinstance(held, StringType):
        return F.expr(text_values.from_text(cell, kind, zone))
    return F.expr(from_value(cell, held, wanted, zone))


def session_zone(spark: SparkSession) -> str:
    """Return the time zone in which times without a zone are read."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


def can_clash(frame: DataFrame, cell: str, kind: str) -> bool:
    """Return whether casting a cell that is not NULL may fail."""
    plain = not is_nested(_type_of(kind)) and kind not in (*text_values.FINITE, *text_values.TIMES)
    return not plain or frame.schema[cell].dataType != _type_of(kind)


def is_there(frame: DataFrame, cell: str) -> Column:
    """Return whether the record has a value in the cell, castable or not."""
    return F.col(f"{cell}.{PAIR[0]}" if is_pair(frame.schema[cell].dataType) else cell).isNotNull()


def text_of(frame: DataFrame, cell: str) -> Column:
    """Return the cell as text for people; NULL only if the record has none."""
    kind = frame.schema[cell].dataType
    if is_pair(kind):
        return F.col(f"{cell}.{PAIR[0]}")
    return F.to_json(cell, dict(json_rows.TIMES)) if is_nested(kind) else F.col(cell).cast("string")


def pair(text: Column, exact: Column) -> Column:
    """Return a cell with the fields of PAIR."""
    return F.struct(text.alias(PAIR[0]), exact.alias(PAIR[1]))


def is_pair(kind: DataType) -> bool:
    """Return whether cells of this type have the fields of PAIR."""
    return isinstance(kind, StructType) and tuple(kind.names) == PAIR


@cache
def _type_of(kind: str) -> DataType:
    return DataType.fromDDL(kind)


def _exact(cell: str, kind: str, wanted: DataType) -> Column:
    """Return the exact value; of a decimal, if the text is a number too."""
    text, exact = (f"{cell}.{part}" for part in PAIR)
    if is_nested(wanted):
        return F.col(exact)
    if kind in ("string", "binary"):
        return F.col(exact).cast(kind)
    blanks = f"{exact} is null and trim({text}) <> {text}"  # JSON's parser of decimals takes none
    number = (
        f"if({text_values.is_exact_decimal(text, kind)}, {text_values.narrowed(exact, kind)}, null)"
    )
    return F.expr(f"if({blanks}, {text_values.from_text(text, kind, 'UTC')}, {number})")
