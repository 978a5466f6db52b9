"""Times that Spark reads as something else, at any depth of a value: as nanoseconds, or an instant
that is none.

Nanoseconds are cut to microseconds: by Spark, which has them as numbers, or by Arrow for files that
are copied: they may have thousands of columns, which Spark would have to list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructType, TimestampType

from draindown.spark.sql import literal, quoted

Leaf = Callable[[str, pa.DataType, DataType], str | None]


def moments(
    value: str, written: pa.DataType, held: DataType, form: str = "parquet", depth: int = 0
) -> str | None:
    """Return a SQL expression of a value with its times as they are in the file, to microseconds;
    None if it has none.

    `value`: SQL expression. `written`: the type in the file. `held`: the type as which Spark reads
    it. `form`: the format of the file.
    """
    one = f"n{depth}"
    if isinstance(held, ArrayType) and hasattr(written, "value_type"):
        inner = moments(one, written.value_type, held.elementType, form, depth + 1)
        return inner and f"transform({value}, {one} -> {inner})"
    if isinstance(held, MapType) and kinds.is_map(written):
        keys = moments(one, written.key_type, held.keyType, form, depth + 1) or one
        items = moments(one, written.item_type, held.valueType, form, depth + 1) or one
        both = f"transform(map_keys({value}), {one} -> {keys}), transform(map_values({value}), {one} -> {items})"
        return f"map_from_arrays({both})" if keys != one or items != one else None
    if isinstance(held, StructType) and kinds.is_struct(written):
        return _struct(value, written, held, form, depth)
    return _LEAVES[form](value, written, held) if kinds.is_timestamp(written) else None


def _struct(
    value: str, written: pa.DataType, held: StructType, form: str, depth: int
) -> str | None:
    own = {f.name: f.type for f in (written.field(at) for at in range(written.num_fields))}
    parts = {one.name: f"{value}.{quoted(one.name)}" for one in held}
    found = {
        one.name: moments(parts[one.name], own[one.name], one.dataType, form, depth + 1)
        for one in held
    }
    if not any(found.values()):
        return None
    fields = ", ".join(f"{literal(name)}, {found[name] or part}" for name, part in parts.items())
    return f"if({value} is null, null, named_struct({fields}))"


def _of_parquet(value: str, written: pa.DataType, held: DataType) -> str | None:
    return _moment(value, has_zone=written.tz is not None) if isinstance(held, LongType) else None


def _of_orc(value: str, written: pa.DataType, held: DataType) -> str | None:
    """Return what the clocks showed: Spark takes it for an instant in the zone of its JVM, which is
    UTC.
    """
    if written.tz is not None or not isinstance(held, TimestampType):
        return None
    return f"timestampadd(MICROSECOND, unix_micros({value}), timestamp_ntz'1970-01-01 00:00:00')"


_LEAVES: Mapping[str, Leaf] = {"parquet": _of_parquet, "orc": _of_orc}


def _moment(value: str, *, has_zone: bool) -> str:
    # the next lower microsecond; the nanoseconds are not subtracted first, which overflows for the
    # least of all
    micros = f"({value} div 1000 - int({value} < 0 and pmod({value}, 1000) > 0))"
    if has_zone:
        return f"timestamp_micros({micros})"
    since = f"make_dt_interval(0, 0, 0, cast({micros} as decimal(20,0)) / 1000000)"
    return f"timestamp_ntz'1970-01-01 00:00:00' + {since}"


def is_nanoseconds(kind: pa.DataType) -> bool:
    """Return whether a type is that of times in nanoseconds."""
    return bool(kinds.is_timestamp(kind)) and kind.unit == "ns"


def in_micros(kind: pa.DataType) -> pa.DataType:
    """Return the type of what `cut` makes of values of a type."""
    inner = [
        one.with_type(in_micros(one.type))
        for one in (kind.field(at) for at in range(kind.num_fields))
    ]
    if is_nanoseconds(kind):
        return pa.timestamp("us", kind.tz)
    if kinds.is_struct(kind):
        return pa.struct(inner)
    if kinds.is_map(kind):
        return pa.map_(*inner[0].type)
    return pa.list_(inner[0]) if inner and inner[0].type != kind.value_type else kind


def cut(values: pa.Array) -> pa.Array:
    """Return values with their nanoseconds as microseconds: the earlier one, before 1970 too, as
    `moments` does.
    """
    kind, wanted = values.type, in_micros(values.type)
    if wanted == kind:
        return values
    if is_nanoseconds(kind):
        micros, rest = _divided(values)
        return pc.subtract(micros, pc.less(rest, 0).cast(pa.int64())).cast(wanted)
    if kinds.is_struct(kind):
        parts = [cut(values.field(at)) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=values.is_null())
    if kinds.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        offsets, pairs = _flat(values.cast(pa.list_(entries)))
        return pa.MapArray.from_arrays(
            offsets, pairs.field(0), pairs.field(1), type=wanted, mask=values.is_null()
        )
    offsets, items = _flat(values)
    return pa.ListArray.from_arrays(
        offsets.cast(pa.int32()), items, type=wanted, mask=values.is_null()
    )


def _flat(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return where each list begins, and the items of all, cut."""
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    return pa.concat_arrays([pa.array([0], lengths.type), pc.cumulative_sum(lengths)]), cut(
        values.flatten()
    )


def _divided(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    nanos = values.cast(pa.int64())
    micros = pc.divide(nanos, 1000)  # towards zero
    return micros, pc.subtract(nanos, pc.multiply(micros, 1000))


def cut_names(rows: pa.RecordBatch, names: Sequence[str]) -> list[list[str]]:
    """Return per row which of these columns have a time with more than microseconds there."""
    found: list[list[str]] = [[] for _ in range(rows.num_rows)]
    for name in (one for one in names if is_nanoseconds(rows.schema.field(one).type)):
        _, rest = _divided(rows.column(name))
        for at in pc.indices_nonzero(pc.fill_null(rest, 0)).to_pylist():
            found[at].append(name)
    return found
