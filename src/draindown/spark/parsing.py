"""The contract: records in, typed columns out, and for each refused record the first reason that holds.

Reasons, in the order they are looked for: `too_large`, `malformed`, then per column in contract order `type` before
`missing`, then `rule:<name>` in the order written. A row that deletes needs its keys and sequence only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.spark.evaluation import quoted, try_eval
from draindown.spark.reading import PLACE, union
from draindown.spark.records import Records
from draindown.spec import FlowSpec

WHY = "_why"
"""Struct(reason, field, detail) of a refused record; NULL for a good one."""

KEPT = ("_rescued", "_delete", "_blank", WHY, "_raw", *PLACE)
"""What `parse` adds to the contract's columns. `_raw` is kept for refused records only."""

_DETAIL = 200


def parse(spark: SparkSession, flow: FlowSpec, records: Sequence[Records], arrived_at: datetime) -> DataFrame:
    """Contract columns (typed, NULL where refused) plus KEPT, one row per record or blank line.

    `arrived_at` is when the batch's files were first seen: rules may use it, so that a replay judges alike.
    """
    return union(_judge(spark, flow, _typed(flow, part), arrived_at) for part in records)


def _typed(flow: FlowSpec, records: Records) -> DataFrame:
    cells = [records.cell(name).alias(f"_t{i}") for i, name in enumerate(flow.columns)]
    frame = records.frame.select("_raw", "_blank", "_broken", "_unknown", *PLACE, *cells)
    typed = [_cast(frame, f"_t{i}", column.type).alias(name) for i, (name, column) in enumerate(flow.columns.items())]
    return frame.select("*", *typed)


def _cast(frame: DataFrame, cell: str, kind: str) -> Column:
    """The cell as `kind`, NULL where it isn't one. Infinite and NaN are no numbers here; -0.0 is 0.0."""
    source = frame.schema[cell].dataType.simpleString()
    if source == kind:
        result = F.col(cell)
    elif "<" in kind:
        text = f"to_json({cell})" if "<" in source else cell
        result = try_eval(frame.sparkSession, f"from_json({text}, '{_in_string(kind)}', map('mode', 'FAILFAST'))")
    else:
        result = F.expr(f"try_cast({cell} as {kind})")
        if not _analyses(frame, result):
            result = F.expr(f"try_cast(cast({cell} as string) as {kind})")
    if kind in ("float", "double"):
        result = F.when(F.abs(result) < float("inf"), result + F.lit(0.0).cast(kind))
    return result


def _in_string(kind: str) -> str:
    return kind.replace("\\", "\\\\").replace("'", "\\'")


def _analyses(frame: DataFrame, column: Column) -> bool:
    try:
        frame.select(column)
    except AnalysisException:
        return False
    return True


def _judge(spark: SparkSession, flow: FlowSpec, typed: DataFrame, arrived_at: datetime) -> DataFrame:
    frame = typed.withColumn("_delete", _is_delete(spark, flow))
    if "arrived_at" not in flow.columns:
        frame = frame.withColumn("arrived_at", F.lit(arrived_at))
    why: Column | None = None
    for condition, reason, field, detail in _refusals(spark, flow):
        found = F.struct(
            F.lit(reason).alias("reason"), F.lit(field).cast("string").alias("field"), detail.alias("detail")
        )
        why = F.when(condition, found) if why is None else why.when(condition, found)
    assert why is not None
    frame = frame.withColumn(WHY, F.when(~F.col("_blank"), why))
    good = F.col(WHY).isNull() & ~F.col("_blank")
    return frame.select(
        *[F.when(good, F.col(quoted(name))).alias(name) for name in flow.columns],
        F.when(good, F.col("_unknown")).alias("_rescued"),
        "_delete",
        "_blank",
        WHY,
        F.when(F.col(WHY).isNotNull(), F.col("_raw")).alias("_raw"),
        *PLACE,
    )


def _is_delete(spark: SparkSession, flow: FlowSpec) -> Column:
    condition = flow.target.apply_as_deletes
    return F.coalesce(try_eval(spark, condition), F.lit(False)) if condition else F.lit(False)


def _essential(flow: FlowSpec) -> list[str]:
    return [*flow.target.keys, *flow.target.sequence_by]


def _refusals(spark: SparkSession, flow: FlowSpec) -> Iterator[tuple[Column, str, str | None, Column]]:
    """(condition, reason, field, detail) in the order the first one counts."""
    nothing = F.lit(None).cast("string")
    size = F.octet_length("_raw")
    limit = flow.source.max_record_bytes
    yield size > limit, "too_large", None, F.concat(size.cast("string"), F.lit(f" bytes; at most {limit}"))
    yield ~F.is_valid_utf8(F.col("_raw")), "malformed", None, F.lit("not valid UTF-8")
    yield F.col("_broken").isNotNull(), "malformed", None, F.col("_broken")
    essential = set(_essential(flow))
    for i, (name, column) in enumerate(flow.columns.items()):
        cell, value = F.col(f"_t{i}"), F.col(quoted(name))
        spared = F.lit(False) if name in essential else F.col("_delete")
        shown = F.concat(F.substring(cell.cast("string"), 1, _DETAIL), F.lit(f" is no {column.type}"))
        yield ~spared & cell.isNotNull() & value.isNull(), "type", name, shown
        if not column.nullable or name in essential:
            yield ~spared & value.isNull(), "missing", name, nothing
    for rule, expression in flow.rules.items():
        held = F.coalesce(try_eval(spark, expression), F.lit(False))
        yield ~F.col("_delete") & ~held, f"rule:{rule}", None, F.lit(expression)
