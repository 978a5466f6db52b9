"""Schemas of Delta tables: which columns a table has otherwise than its spec says."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import StructField, StructType

from draindown.spec.names import START_AT


def differences(held: StructType, schema: StructType) -> Iterator[str]:
    """Yield, in words, each column of `schema` that the table has with another type or in other case.

    Nullability is ignored at every depth: Spark derives it from the plan of a batch, and plans differ.
    """
    kinds, spelled = {f.name: f.dataType for f in nullable(held)}, {name.lower(): name for name in held.names}
    for name, kind in ((f.name, f.dataType) for f in nullable(schema)):
        if kinds.get(name, kind) != kind:
            yield f"column {name} is {kinds[name].simpleString()} in the table and {kind.simpleString()} in the spec"
        elif name not in kinds and name.lower() in spelled:
            yield f"column {name} is spelled {spelled[name.lower()]} in the table"


def other_form(held: StructType, schema: StructType) -> Iterator[str]:
    """Yield, in words, that one of both is the schema of a history and the other is not."""
    if (START_AT in held.names) != (START_AT in schema.names):
        has, says = ("a history", "single rows") if START_AT in held.names else ("single rows", "a history")
        yield f"the table holds {has}, the spec says {says} (stored_as_scd_type)"


def nullable(schema: StructType) -> StructType:
    """Return the schema with every field nullable, nested ones too, and without the metadata of its columns."""
    return StructType([StructField(field.name, field.dataType) for field in schema.toNullable()])
