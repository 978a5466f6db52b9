"""Apply the contract: typed columns for good records, and for each quarantined record the first reason
that holds.

Reasons in order: `too_large`, `malformed`, then for each column of the contract `type` and
`missing`, then `rule:<name>` in the order of the pipeline file. A row that deletes needs only its
keys and sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from draindown.config.landing import FlowSpec, Written
from draindown.spark.contract import written_forms
from draindown.spark.contract.casting import can_clash, is_there, text_of, typed
from draindown.spark.contract.plain_json import PLAIN
from draindown.spark.contract.record_frame import Records
from draindown.spark.contract.text_values import is_cut, one_moment
from draindown.spark.sources.place import ARRIVED, CUT, ENVELOPE, FIRST_SEEN, PLACE, SHAPE, union
from draindown.spark.sql import literal, quoted, try_eval

WHY = "_why"
"""Struct(reason, field, detail) of a quarantined record; NULL for a good one."""
KEPT = (
    "_rescued_data",
    "_drift",
    "_delete",
    "_blank",
    WHY,
    "_raw",
    ENVELOPE,
    SHAPE,
    ARRIVED,
    *PLACE,
)
"""The columns that `parse` adds to those of the contract; ENVELOPE, SHAPE and ARRIVED only where
the records have them.

`_raw`, ENVELOPE and SHAPE are set if a record is refused, or may be later, or is kept raw.
"""
_DETAIL = 200
_MOMENTS = ("timestamp", "timestamp_ntz")
_TOO_EXACT = (
    " has more than microseconds, which a timestamp can't hold: the order of changes would be lost"
)


def parse(
    spark: SparkSession,
    flow: FlowSpec,
    records: Sequence[Records],
    arrived_at: datetime,
    *,
    all_raw: bool = False,
) -> DataFrame:
    """Return one row per record or blank line: the contract's columns (typed, NULL if refused) and
    KEPT.

    `arrived_at`: when the batch's input was first seen. Rules may use it instead of the clock, so
    that a replay gives the same result. Records with a FIRST_SEEN, or else an ARRIVED, of their own
    use that. `all_raw`: keep the raw text of every record, because any may be refused later.
    """
    all_kept = all_raw or flow.source.raw_for is not None or may_be_refused_later(flow)
    return union(_judge(spark, flow, _typed(flow, part), arrived_at, all_kept) for part in records)


def _typed(flow: FlowSpec, records: Records) -> Records:
    """Add each column's cell as `_t0`, `_t1` ..., and its typed value under the column's name."""
    cells = [records.cell(name).alias(f"_t{i}") for i, name in enumerate(flow.columns)]
    frame = records.frame.withColumns({f"_t{i}": cell for i, cell in enumerate(cells)})
    texts = written_forms.rewritten(flow, replace(records, frame=frame))
    frame = (
        frame.withColumns({f"{cell}w": text for cell, text in texts.items()}) if texts else frame
    )
    values = {
        name: _value(
            records, frame, f"_t{i}", f"_t{i}w" if f"_t{i}" in texts else "", name, column.stored
        )
        for i, (name, column) in enumerate(flow.columns.items())
    }
    for name, value in records.plain.items():
        values[name] = F.when(F.col(PLAIN), value).otherwise(values[name])
    return replace(records, frame=frame.withColumns(values))


def _value(
    records: Records, frame: DataFrame, cell: str, rewritten: str, name: str, kind: str
) -> Column:
    """Return a cell as a value of its column: `rewritten` names its text where that has a form of
    its own.
    """
    if not rewritten:
        return typed(frame, cell, kind)
    value = typed(frame, rewritten, kind)
    if records.is_text is None or kind.startswith(("date", "timestamp")):
        return value
    return F.when(records.is_text(name), value).otherwise(typed(frame, cell, kind))


def _judge(
    spark: SparkSession, flow: FlowSpec, records: Records, arrived_at: datetime, all_kept: bool
) -> DataFrame:
    frame = records.frame.withColumn("_delete", _is_delete(spark, flow, records))
    if "arrived_at" not in flow.columns:
        at = next((name for name in (FIRST_SEEN, ARRIVED) if name in frame.columns), None)
        frame = frame.withColumn("arrived_at", F.timestamp_micros(at) if at else F.lit(arrived_at))
    refusals = list(_refusals(spark, flow, records))
    code = F.when(F.lit(False), F.lit(0))
    for number, refusal in enumerate(refusals, 1):
        code = code.when(refusal.condition, F.lit(number))
    # first only the number of the reason: with a struct per reason the generated code is too long
    # for the JIT compiler
    frame = frame.withColumn("_code", F.when(~F.col("_blank"), code))
    refused = F.col("_code").isNotNull()
    good = ~refused & ~F.col("_blank")
    kept = F.lit(True) if all_kept else refused
    own = [F.when(kept, F.col(ENVELOPE)).alias(ENVELOPE)] if ENVELOPE in frame.columns else []
    own += [F.when(kept, records.shape).alias(SHAPE)] if records.shape is not None else []
    own += [F.col(ARRIVED)] if ARRIVED in frame.columns else []
    return frame.select(
        *[F.when(good, F.col(quoted(name))).alias(name) for name in flow.columns],
        # of a quarantined record too where it shows drift: the finding says what type the field looks
        # like
        F.when(good | F.col("_drift").isNotNull(), F.col("_unknown")).alias("_rescued_data"),
        "_drift",
        "_delete",
        "_blank",
        F.when(refused, _why(flow, frame, refusals)).alias(WHY),
        (records.raw if all_kept else F.when(refused, records.raw)).alias("_raw"),
        *own,
        *PLACE,
    )


def _why(flow: FlowSpec, frame: DataFrame, refusals: Sequence[_Refusal]) -> Column:
    # the optimizer fails on an array index that is always NULL
    code = F.coalesce(F.col("_code"), F.lit(1))

    def told(values: Sequence[str | None]) -> Column:
        return F.element_at(F.array(*[F.lit(value).cast("string") for value in values]), code)

    names = list(flow.columns)
    cells = F.array(*[text_of(frame, f"_t{i}") for i in range(len(names))])
    at = [1 + names.index(r.field) if r.reason == "type" and r.field else 1 for r in refusals]
    cell = F.element_at(cells, F.element_at(F.array(*[F.lit(i) for i in at]), code))
    reason = told([r.reason for r in refusals])
    static = told([r.detail for r in refusals])
    detail = F.when(F.lit(False), static)
    for number, refusal in enumerate(refusals, 1):
        if refusal.found is not None:
            detail = detail.when(code == number, refusal.found)
    detail = detail.when(
        reason == "type", F.concat(F.substring(cell, 1, _DETAIL), F.lit(" is no "), static)
    )
    return F.struct(
        reason.alias("reason"),
        told([r.field for r in refusals]).alias("field"),
        detail.otherwise(static).alias("detail"),
    )


def _called(kind: str, zone: str, written: Written | None) -> str:
    called = (
        kind
        if kind != "timestamp" or one_moment(zone)
        else f"{kind} that clocks in {zone} show once"
    )
    if written is None:
        return called
    number = f"1{written.thousands or ''}234{written.decimal}5"
    return f"{called} written {written.pattern or number}"


def may_be_refused_later(flow: FlowSpec) -> bool:
    """Whether a row that is good so far may still lose its key to the transform, or have no place
    in its partition.
    """
    goal = flow.target
    in_texts = any(
        name not in flow.columns or flow.columns[name].type == "string"
        for name in goal.partition_by
    )
    return in_texts or (bool(goal.essential) and flow.transform is not None)


def _is_delete(spark: SparkSession, flow: FlowSpec, records: Records) -> Column:
    condition = flow.target.apply_as_deletes
    asked = F.coalesce(try_eval(spark, condition), F.lit(False)) if condition else F.lit(False)
    if records.without_value is None:
        return asked
    return F.when(records.without_value, F.lit(flow.deletes_by_null)).otherwise(asked)


@dataclass(frozen=True)
class _Refusal:
    """A condition for refusing a record, with its reason. `detail` is fixed, `found` is computed
    from the record.
    """

    condition: Column
    reason: str
    field: str | None = None
    detail: str | None = None
    found: Column | None = None


def _more_than_micros(flow: FlowSpec, records: Records, cell: str, name: str) -> _Refusal:
    """Return the refusal of a sequence with nanoseconds: once cut, it could not tell which change
    is the newer.
    """
    frame, found = records.frame, F.lit(False)
    # a text with a form of its own has its fraction where the form says; rewritten, it is behind
    # the point
    text = f"{cell}w" if f"{cell}w" in frame.columns else cell
    if isinstance(frame.schema[cell].dataType, StringType):
        found = F.coalesce(F.expr(is_cut(text)), F.lit(False))
    elif CUT in frame.columns:  # it has the names of fields, not of columns
        found = F.expr(f"array_contains({CUT}, {literal(flow.fields.get(name, name))})")
    shown = F.concat(F.substring(text_of(frame, cell), 1, _DETAIL), F.lit(_TOO_EXACT))
    return _Refusal(found, "type", name, found=shown)


def _refusals(spark: SparkSession, flow: FlowSpec, records: Records) -> Iterator[_Refusal]:
    """Yield the refusals in order of precedence."""
    size, limit = records.size, flow.source.max_record_bytes
    shown = F.concat(size.cast("string"), F.lit(f" bytes; at most {limit}"))
    if records.without_value is not None and not flow.deletes_by_null:
        yield _Refusal(records.without_value, "null_value", detail="the record has no value")
    yield _Refusal(size > limit, "too_large", found=shown)
    if records.whole_text:
        yield _Refusal(~F.is_valid_utf8(F.col("_raw")), "malformed", detail="not valid UTF-8")
    yield _Refusal(F.col("_broken").isNotNull(), "malformed", found=F.col("_broken"))
    essential = flow.target.essential
    for i, (name, column) in enumerate(flow.columns.items()):
        value, spared = F.col(quoted(name)), F.lit(False) if name in essential else F.col("_delete")
        if can_clash(records.frame, f"_t{i}", column.stored):
            clash = ~spared & value.isNull() & is_there(records.frame, f"_t{i}")
            yield _Refusal(
                clash, "type", name, _called(column.type, flow.source.timezone, flow.written(name))
            )
        if not column.nullable or name in essential:
            yield _Refusal(~spared & value.isNull(), "not_null", name)
        if name in flow.target.sequence_by and column.type in _MOMENTS:
            yield _more_than_micros(flow, records, f"_t{i}", name)
    for rule, expression in flow.rules.items():
        held = F.coalesce(try_eval(spark, expression), F.lit(False))
        yield _Refusal(~F.col("_delete") & ~held, f"rule:{rule}", detail=expression)
