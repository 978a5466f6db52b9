"""Schemas of Delta tables: which columns a table has otherwise than its spec says, and which have
statistics.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import StructField, StructType

from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.names import START_AT
from draindown.config.partial import IGNORE, SEQUENCES
from draindown.spark.sql import CHANGED_AT, ORIGIN, ddl


def differences(held: StructType, schema: StructType) -> Iterator[str]:
    """Yield, in words, each column of `schema` that the table has with another type or in other
    case.

    Nullability is ignored at every depth: Spark derives it from the plan of a batch, and plans
    differ.
    """
    kinds, spelled = (
        {f.name: f.dataType for f in nullable(held)},
        {name.lower(): name for name in held.names},
    )
    for name, kind in ((f.name, f.dataType) for f in nullable(schema)):
        if kinds.get(name, kind) != kind:
            yield f"column {name} is {kinds[name].simpleString()} in the table and {kind.simpleString()} in the spec"
        elif name not in kinds and name.lower() in spelled:
            yield f"column {name} is spelled {spelled[name.lower()]} in the table"


def other_form(held: StructType, schema: StructType) -> Iterator[str]:
    """Yield, in words, that one of both is the schema of a history, or of merged rows, and the
    other is not.

    Also that the table's rows were appended, and the spec has keys. That the table has keys, and
    the spec has none, is said by what the table goes by (`identity.differing`).
    """
    if ORIGIN in held.names and ORIGIN not in schema.names:
        yield "the table's rows were appended without keys, and the spec has keys"
    if (START_AT in held.names) != (START_AT in schema.names):
        has, says = (
            ("a history", "single rows") if START_AT in held.names else ("single rows", "a history")
        )
        yield f"the table holds {has}, the spec says {says} (stored_as_scd_type)"
    if (SEQUENCES in held.names) != (SEQUENCES in schema.names):
        merged = SEQUENCES in held.names
        has, says = ("columns merged one by one", "whole records")[:: 1 if merged else -1]
        yield f"the table holds {has}, the spec says {says} ({IGNORE})"


def nullable(schema: StructType) -> StructType:
    """Return the schema with every field nullable, nested ones too, and without the metadata of its
    columns.
    """
    return StructType([StructField(field.name, field.dataType) for field in schema.toNullable()])


def bounded(schema: StructType, flow: FlowSpec | DerivedFlow) -> str:
    """Return the value of `delta.dataSkippingStatsColumns`: keys, sequence and `_changed_at`.

    Empty if one of the names needs quotes, which the property does not support.
    """
    names = [*flow.target.statistics, CHANGED_AT]
    # Delta refuses to create a table that asks for statistics of a partition column or of a type
    # without min/max
    odd = {
        field.name
        for field in schema
        if any(kind in ddl(field.dataType) for kind in ("boolean", "binary"))
    }
    statistics = [
        name for name in names if name not in flow.target.partition_by and name not in odd
    ]
    return ",".join(dict.fromkeys(statistics)) if all(_is_bare(c) for c in statistics) else ""


def _is_bare(name: str) -> bool:
    """Return whether the name is a plain SQL identifier, which needs no quotes."""
    return name.isascii() and name.isidentifier()
