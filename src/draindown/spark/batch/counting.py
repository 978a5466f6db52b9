"""Count a batch's rows in one pass over its persisted frame, and compare the counts with the
intake.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType, TimestampType

from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow
from draindown.sources.slices import Unit
from draindown.spark.batch.model import Batch, Counted
from draindown.spark.contract import transforms
from draindown.spark.contract.parsing import WHY
from draindown.spark.sql import quoted
from draindown.spark.targets import partitioning
from draindown.spark.targets.pruning import measures, pruning, text_safe


def count_batch(parsed: DataFrame, frame: DataFrame, batch: Batch) -> Counted:
    """Count the persisted rows by unit, block and reason, and compute the file-skipping predicates,
    in one pass.

    `parsed` is the frame before the transform; `frame` is the frame after it.
    """
    goal = batch.writer.flow.target
    computed = _computed(parsed, frame, batch)
    held = partitioning.proven(batch.writer.target, computed)
    exact = [
        name for name in computed if name in goal.keys or name in held
    ]  # a key is the same in all rows of a key
    good = F.col(WHY).isNull() & ~F.col("_blank")
    most = batch.tuning.named_values
    extra = measures(frame, exact, goal.keys, good, most)
    if goal.sequence_by:
        extra.append(F.max(F.when(good, _sequence(frame, goal.sequence_by[0]))).alias("_s"))
    drifted = [
        F.count("_drift").alias("marked"),
        F.count(F.when(good, F.col("_rescued_data"))).alias("unknown"),
    ]
    groups = (
        frame.groupBy("_unit", "_block", "_blank", F.col(f"{WHY}.reason"), F.col(f"{WHY}.field"))
        .agg(F.count("*").alias("n"), F.min("_id").alias("smallest"), *drifted, *extra)
        .collect()
    )
    last = newest_sequence(groups) if goal.sequence_by else None
    return Counted(groups, pruning(groups, frame.schema, exact, goal.keys, most), last, computed)


def _computed(parsed: DataFrame, frame: DataFrame, batch: Batch) -> dict[str, str]:
    """Return a hash of how each partition column is computed, of those that the keys alone
    decide.
    """
    flow, found = batch.writer.flow, {}
    for name in text_safe(frame.schema, flow.target.partition_by):
        how = transforms.computed_from(frame, name, set(flow.target.keys), parsed)
        if how is not None:  # by the zone, in which times have their days
            said = json.dumps(
                [frame.schema[name].dataType.simpleString(), flow.source.timezone, how]
            )
            found[name] = hashlib.sha256(said.encode()).hexdigest()[:16]
    return found


def ledger_row(batch: Batch, counted: Counted) -> BatchRow:
    """Return the batch's ledger row with the counts of its input. The outcome of accepted rows is
    added later.
    """
    return batch.ledger_row(
        "land",
        slice=batch.input.number,
        inputs=len({unit.name for unit in batch.input.units}),
        bytes=sum(unit.bytes for unit in batch.input.units),
        records=counted.rows(lambda group: not group["_blank"]),
        reasons=counted.reasons,
        quarantined=sum(counted.reasons.values()),
        max_sequence=counted.max_sequence,
    )


def inputs(batch: Batch, counted: Counted) -> list[Input]:
    """Return what the batch read of each unit: the range that was pinned, with the records that
    Spark found there.

    Of a unit that the slice holds in several ranges: from the start of the first to the end of the
    last.
    """
    records: Counter[str] = Counter()
    for group in counted.groups:
        records[batch.input.name(group["_unit"])] += 0 if group["_blank"] else group["n"]
    ranges: dict[str, list[Unit]] = {}
    for unit in batch.input.units:
        ranges.setdefault(unit.name, []).append(unit)
    return [
        Input(
            name,
            min(x.start for x in some),
            max(x.until for x in some),
            sum(x.bytes for x in some),
            records[name],
        )
        for name, some in ranges.items()
    ]


def _sequence(frame: DataFrame, name: str) -> Column:
    """Return a struct of a row's sequence as `value`, which sorts, and as `text`. As text, 9 would
    be more than 10.
    """
    column, kind = F.col(quoted(name)), frame.schema[name].dataType
    text = column.cast("string")
    # microseconds, because Python datetimes end with the year 9999, and PySpark converts them to
    # local time, which repeats an hour when clocks go back
    value = (
        F.unix_micros(column)
        if isinstance(kind, TimestampType)
        else column
        if isinstance(kind, NumericType)
        else text
    )
    return F.struct(value.alias("value"), text.alias("text"))


def newest_sequence(groups: Sequence[Row]) -> str | None:
    """Return the greatest sequence among a batch's groups, as text. Compared by value. None if no
    group has one.
    """
    found = [group["_s"] for group in groups if group["_s"] is not None]
    return str(max(found, key=lambda one: one["value"])["text"]) if found else None
