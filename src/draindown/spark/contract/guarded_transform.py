"""Apply a transform so that a row which it can't take is refused alone, with the column that fails.

Each output column becomes one expression over the transform's input, and is evaluated under
Catalyst's TryEval. That is slower, so it is done for a batch that failed without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from draindown.spark.contract.parsing import KEPT, WHY
from draindown.spark.contract.transforms import ROW, Transform, items, packed
from draindown.spark.sql import quoted, tried

SETTINGS: Mapping[str, str] = {"spark.sql.subexpressionElimination.enabled": "false"}
"""Session settings while the frame is evaluated: a common part of two columns is computed outside
of TryEval.
"""
REASON = "transform"
_SHOWN = 200
_LOOKED_AT = 1000


def apply_guarded(frame: DataFrame, transform: Transform) -> DataFrame | None:
    """Return what `transforms.apply` returns, with a reason on rows that fail; None if it can't be
    taken apart.

    `frame` has the raw text of every record.
    """
    given = _barrier(packed(frame))
    made = _collapsed(given, transform(given))
    if made is None:
        return None
    own = [one for one in made if one.name() != ROW]
    values = [_tried(given, one).alias(f"_g{i}") for i, one in enumerate(own)]
    whys = [_why(given, one).alias(f"_w{i}") for i, one in enumerate(own)]
    return _unpacked(frame, given.select(ROW, *values, *whys), [one.name() for one in own])


def _unpacked(frame: DataFrame, guarded: DataFrame, names: Sequence[str]) -> DataFrame:
    own = [F.col(f"_g{i}")[0].alias(name) for i, name in enumerate(names)]
    refused = F.lit(None).cast(frame.schema[WHY].dataType)
    for i in reversed(range(len(names))):
        why = F.struct(
            F.lit(REASON).alias("reason"),
            F.lit(names[i]).alias("field"),
            F.col(f"_w{i}").alias("detail"),
        )
        refused = F.when(F.col(f"_g{i}").isNull(), why).otherwise(refused)
    judged = F.coalesce(F.col(f"{ROW}.{WHY}"), F.when(~F.col(f"{ROW}._blank"), refused))
    kept = [
        judged.alias(WHY) if name == WHY else F.col(f"{ROW}.{name}")
        for name in KEPT
        if name in frame.columns
    ]
    return guarded.select(*own, *kept)


def _barrier(frame: DataFrame) -> DataFrame:
    """Return a frame of the same rows whose plan is a leaf: nothing below it is taken for a part of
    the transform.
    """
    session, rows = frame._jdf.sparkSession(), frame._jdf.queryExecution().toRdd()
    return ClassicDataFrame(
        session.internalCreateDataFrame(rows, frame._jdf.schema(), False), frame.sparkSession
    )


def _collapsed(given: DataFrame, result: DataFrame) -> list[Any] | None:
    """Return the named expressions of the one projection that the transform comes to; None if it is
    none.
    """
    catalyst = given.sparkSession._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
    plan = catalyst.analysis.EliminateSubqueryAliases.apply(result._jdf.queryExecution().analyzed())
    plan = catalyst.optimizer.CollapseProject.apply(plan, True)
    is_one = plan.getClass().getSimpleName() == "Project" and plan.child().children().isEmpty()
    return list(items(plan.projectList())) if is_one else None


def _value(named: Any) -> Any:
    """Return the expression of a named one."""
    return named.child() if named.getClass().getSimpleName() == "Alias" else named


def _tried(given: DataFrame, named: Any) -> Column:
    """Return an array of the value; NULL, other than for a value that is NULL, if the expression
    fails.
    """
    convert = given.sparkSession._jvm.org.apache.spark.sql.classic.ExpressionUtils  # type: ignore[union-attr]
    return tried(given.sparkSession, F.array(ClassicColumn(convert.column(_value(named)))))


def _why(given: DataFrame, named: Any) -> Column:
    """Return the columns that an expression reads, with their values, for people."""
    shown = [
        F.concat(
            F.lit(f"{name} = "),
            F.coalesce(F.substring(_text(given, name), 1, _SHOWN), F.lit("NULL")),
        )
        for name in sorted(_read(named), key=given.columns.index)
    ]
    return (
        F.concat(F.lit("it fails on "), F.concat_ws(", ", *shown)) if shown else F.lit("it fails")
    )


def _text(given: DataFrame, name: str) -> Column:
    """Return a column's values as text: nested ones as JSON, bytes in base64."""
    match given.schema[name].dataType:
        case ArrayType() | MapType() | StructType():
            return F.to_json(quoted(name))
        case BinaryType():
            return F.base64(quoted(name))
    return F.col(quoted(name)).cast("string")


def _read(named: Any) -> list[str]:
    """Return the columns that an expression reads."""
    found = (one.name() for one in items(_value(named).references().toSeq()))
    return [name for name in dict.fromkeys(found) if name != ROW]


def culprit(frame: DataFrame, transform: Transform) -> tuple[str, str]:
    """Return the first column on which the transform fails, and one row of its input as text; ""
    where not found.

    The row is looked for among _LOOKED_AT distinct ones, by halves.
    """
    given = _barrier(packed(frame))
    result = transform(given)
    for named in _collapsed(given, result) or []:
        name = named.name()
        if name == ROW or not _fails(result.select(quoted(name))):
            continue
        read = [quoted(one) for one in _read(named)]
        rows = given.select(*read).distinct().limit(_LOOKED_AT).collect() if read else []
        return name, _first_failing(given, transform, name, given.select(*read).schema, rows)
    return "", ""


def _first_failing(
    given: DataFrame, transform: Transform, name: str, schema: StructType, rows: Sequence[Row]
) -> str:
    def fails(some: Sequence[Row]) -> bool:
        held = given.sparkSession.createDataFrame(list(some), schema)
        missing = {
            f.name: F.lit(None).cast(f.dataType) for f in given.schema if f.name not in schema.names
        }
        return _fails(transform(held.withColumns(missing)).select(quoted(name)))

    if not rows or not fails(rows):
        return ""
    while len(rows) > 1:
        half = rows[: len(rows) // 2]
        rows = half if fails(half) else rows[len(rows) // 2 :]
    shown = given.sparkSession.createDataFrame(rows, schema).select(
        *[_text(given, name).alias(name) for name in schema.names]
    )
    values = (shown.first() or Row()).asDict()
    return ", ".join(
        f"{name} = {'NULL' if text is None else text[:_SHOWN]}" for name, text in values.items()
    )


def _fails(frame: DataFrame) -> bool:
    try:
        frame.write.format("noop").mode("overwrite").save()
    except (PySparkException, Py4JError):
        return True
    return False
