"""Times in nanoseconds, which Spark reads from Parquet as numbers, at any depth of a value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructType

from draindown.spark.sql import literal, quoted


def moments(value: str, written: pa.DataType, held: DataType, depth: int = 0) -> str | None:
    """Return a SQL expression of a value with its nanoseconds as times, cut to microseconds; None if it has none.

    `value`: SQL expression. `written`: the type in the file. `held`: the type as which Spark reads it.
    """
    one = f"n{depth}"
    if kinds.is_timestamp(written) and isinstance(held, LongType):
        return _moment(value, has_zone=written.tz is not None)
    if isinstance(held, ArrayType) and hasattr(written, "value_type"):
        inner = moments(one, written.value_type, held.elementType, depth + 1)
        return inner and f"transform({value}, {one} -> {inner})"
    if isinstance(held, MapType) and kinds.is_map(written):
        keys = moments(one, written.key_type, held.keyType, depth + 1) or one
        items = moments(one, written.item_type, held.valueType, depth + 1) or one
        both = f"transform(map_keys({value}), {one} -> {keys}), transform(map_values({value}), {one} -> {items})"
        return f"map_from_arrays({both})" if keys != one or items != one else None
    if isinstance(held, StructType) and kinds.is_struct(written):
        return _struct(value, written, held, depth)
    return None


def _struct(value: str, written: pa.DataType, held: StructType, depth: int) -> str | None:
    own = {f.name: f.type for f in (written.field(at) for at in range(written.num_fields))}
    parts = {one.name: f"{value}.{quoted(one.name)}" for one in held}
    found = {one.name: moments(parts[one.name], own[one.name], one.dataType, depth + 1) for one in held}
    if not any(found.values()):
        return None
    fields = ", ".join(f"{literal(name)}, {found[name] or part}" for name, part in parts.items())
    return f"if({value} is null, null, named_struct({fields}))"


def _moment(value: str, *, has_zone: bool) -> str:
    # the next lower microsecond; the nanoseconds are not subtracted first, which overflows for the least of all
    micros = f"({value} div 1000 - int({value} < 0 and pmod({value}, 1000) > 0))"
    if has_zone:
        return f"timestamp_micros({micros})"
    since = f"make_dt_interval(0, 0, 0, cast({micros} as decimal(20,0)) / 1000000)"
    return f"timestamp_ntz'1970-01-01 00:00:00' + {since}"
