"""Cast a cell to its column's type; NULL if it is not a value of that type. Nothing is guessed, rounded or truncated.

Stricter than Spark's casts: infinity and NaN are not numbers, 4.7 is not an int, 1.005 is not a decimal(10,2), a number
is not a time, a time of day is not a timestamp, and neither is a local time that a change of clocks skips or repeats.
-0.0 becomes 0.0.
"""

from __future__ import annotations

import re
import secrets
from functools import cache

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, DateType, MapType, StringType, StructType, TimestampType

from draindown.spark.contract import containers, json_rows
from draindown.spark.sql import literal, try_eval

PAIR = ("_text", "_exact")
"""Fields of a cell that carries, beside its text, an exact value that the text does not determine: a decimal that did
not pass through a double, or a string that is NULL if the text is that of a JSON object or array."""
_INTEGRAL = ("tinyint", "smallint", "int", "bigint")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_NUMBERS = (*_INTEGRAL, "float", "double", "decimal")
_FINITE = ("float", "double")
_TIMES_JSON = f"map({', '.join(literal(part) for option in json_rows.TIMES.items() for part in option)})"
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_DIGITS = 38
_OVERLAPS = (" + interval 1 hour", " + interval 30 minutes")


def typed(frame: DataFrame, cell: str, kind: str) -> Column:
    """Return the frame's column `cell` cast to the type `kind`."""
    held = frame.schema[cell].dataType
    if is_pair(held):
        result = _exact(frame.sparkSession, cell, kind)
    elif isinstance(held, StringType):
        result = _from_text(frame.sparkSession, cell, kind)
    elif held == _type_of(kind):
        result = F.col(cell)
    elif _is_nested(held) and "<" not in kind:
        result = F.lit(None).cast(kind)
    elif "<" in kind or _is_nested(held):
        result = _from_text(frame.sparkSession, f"to_json({cell}, {_TIMES_JSON})", kind)
    else:
        result = _from_value(frame.sparkSession, cell, held, kind)
    if kind in _FINITE:
        result = F.when(F.abs(result) < float("inf"), result + F.lit(0.0).cast(kind))
    return result


def can_clash(frame: DataFrame, cell: str, kind: str) -> bool:
    """Return whether casting a cell that is not NULL may fail."""
    return kind in _FINITE or frame.schema[cell].dataType != _type_of(kind)


def is_there(frame: DataFrame, cell: str) -> Column:
    """Return whether the record has a value in the cell, castable or not."""
    return F.col(f"{cell}.{PAIR[0]}" if is_pair(frame.schema[cell].dataType) else cell).isNotNull()


def text_of(frame: DataFrame, cell: str) -> Column:
    """Return the cell as text for people; NULL only if the record has none."""
    kind = frame.schema[cell].dataType
    if is_pair(kind):
        return F.col(f"{cell}.{PAIR[0]}")
    return F.to_json(cell, dict(json_rows.TIMES)) if _is_nested(kind) else F.col(cell).cast("string")


def pair(text: Column, exact: Column) -> Column:
    """Return a cell with the fields of PAIR."""
    return F.struct(text.alias(PAIR[0]), exact.alias(PAIR[1]))


def is_pair(kind: DataType) -> bool:
    """Return whether cells of this type have the fields of PAIR."""
    return isinstance(kind, StructType) and tuple(kind.names) == PAIR


@cache
def widened(kind: str) -> str:
    """Return `kind` with each decimal widened to the greatest scale that keeps its integral digits.

    Spark rounds a value to the scale of the requested type, so values are read with more digits to detect rounding.
    Digits beyond the widened scale are not detected.
    """
    return _DECIMAL.sub(lambda at: f"decimal({_DIGITS},{_DIGITS - int(at[1]) + int(at[2])})", kind)


def _narrowed(wide: Column, kind: str) -> Column:
    """Cast a value of type `widened(kind)` to `kind`; NULL if that would round it."""
    if widened(kind) == kind:
        return wide
    result = wide.try_cast(kind)
    same = [json_rows.comparable(value, _type_of(widened(kind))) for value in (result.cast(widened(kind)), wide)]
    return F.when(same[0] == same[1], result)


@cache
def _type_of(kind: str) -> DataType:
    return DataType.fromDDL(kind)


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, ArrayType | MapType | StructType)


def _exact(spark: SparkSession, cell: str, kind: str) -> Column:
    """Return the exact value if the text is a value of `kind` too: `from_json` takes even "1,5" for a decimal."""
    text, exact = (f"{cell}.{part}" for part in PAIR)
    if kind in ("string", "binary"):
        return F.col(exact).cast(kind)
    if "<" in kind:
        valid = _from_json(spark, text, widened(kind))
        return _narrowed(F.when(valid.isNotNull(), F.coalesce(F.col(exact), valid)), kind)
    is_number = _from_text(spark, text, "double").isNotNull() & _fits_scale(text, kind)
    return F.when(is_number, _narrowed(F.col(exact), kind))


def _fits_scale(text: str, kind: str) -> Column:
    """Return whether a number without an exponent has no more digits after the point than its type.

    This also detects digits beyond those of the widest decimal.
    """
    found = _DECIMAL.fullmatch(kind)
    if not found:
        return F.lit(True)
    few = f"instr({text}, '.') = 0 or length({text}) - instr({text}, '.') <= {found[2]}"
    return F.expr(f"{few} or not {text} rlike '[.][0-9]{{{found[2]}}}[0-9]*[1-9][0-9]*[ ]*$'")


def _from_text(spark: SparkSession, text: str, kind: str) -> Column:
    if "<" in kind:
        return _narrowed(_from_json(spark, text, widened(kind)), kind)
    result = F.expr(f"try_cast({text} as {widened(kind)})")
    if _DECIMAL.fullmatch(kind):
        return F.when(_fits_scale(text, kind), _narrowed(result, kind))
    if kind in _TIMES:  # otherwise Spark reads 12:30 as today, 19782 as a year, 2024-07 as the first of July
        dashes = [f"substring(ltrim({text}), {at}, 1)" for at in (5, 7, 8)]
        whole_date = f"{dashes[0]} = '-' and '-' in ({dashes[1]}, {dashes[2]})"
        more = _is_bare_date(text) if kind == "date" else _once(spark, text) if kind == _TIMES[1] else ""
        return F.when(F.expr(whole_date + more), result)
    if kind in _FINITE:  # otherwise Java's 1.5d and NaN are accepted
        return F.when(F.expr(f"substring(rtrim({text}), -1, 1) between '.' and '9'"), result)
    return result


def _is_bare_date(text: str) -> str:
    """Return the condition that nothing follows the day. Spark ignores anything after a blank or a T."""
    return f" and length(trim({text})) <= 10 and instr(trim({text}), ' ') = 0 and instr({text}, 'T') = 0"


def one_moment(zone: str) -> bool:
    """Return whether each local time of the zone is exactly one instant, because its clocks never change."""
    return zone.upper() in ("UTC", "GMT", "Z") or zone.startswith(("+", "-", "Etc/"))


def _once(spark: SparkSession, text: str) -> str:
    """Return the condition that the text names a zone, or a local time that occurs exactly once in the session's zone.

    Spark shifts a skipped local time by an hour, and takes the earlier of two. A text to which `Z` can be appended has
    a time and no zone. A date alone stands for its first instant.
    """
    bare = f"try_cast(concat(rtrim({text}), 'Z') as timestamp) is null"
    local = f"try_cast({text} as timestamp_ntz)"
    return f" and ({bare} or {_is_once(f'try_cast({text} as timestamp)', local)})" if _changes_clocks(spark) else ""


def _changes_clocks(spark: SparkSession) -> bool:
    return not one_moment(str(spark.conf.get("spark.sql.session.timeZone")))


def _is_once(moment: str, local: str) -> str:
    """Return the condition that `moment`, Spark's cast of `local`, is the only instant with that local time."""
    shown = [f"cast({moment}{later} as timestamp_ntz)" for later in ("", *_OVERLAPS)]
    return f"{shown[0]} = {local} and " + " and ".join(f"{again} <> {local}" for again in shown[1:])


def _from_json(spark: SparkSession, text: str, kind: str) -> Column:
    """Return a nested value parsed from JSON; NULL on a wrong type within it, a duplicate key, or trailing text.

    The text is parsed as the first item of an array whose last item is a random mark. If the mark is missing, text
    follows the value.
    """
    mark = secrets.token_hex(8)
    variant = f"""try_parse_json(concat('[', {text}, ',"{mark}"]'))"""
    whole = f"try_variant_get({variant}, '$[1]', 'string') = '{mark}'"
    options = "map('mode', 'FAILFAST', 'allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false')"
    value = try_eval(spark, f"from_json({text}, {literal(kind)}, {options})")
    return F.when(F.expr(whole), containers.without(value, _type_of(kind), F.expr(variant), "$[0]"))


def _from_value(spark: SparkSession, cell: str, held: DataType, kind: str) -> Column:
    source = held.typeName() if not isinstance(held, BinaryType) else "binary"
    family = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}.get(source, source)
    result = F.expr(f"try_cast({cell} as {kind})")
    back = result.cast(held) == F.col(cell)
    if kind == "string":
        result = F.col(cell).cast("string")
        return F.when(F.is_valid_utf8(result), result) if family in ("binary", "string") else result
    if family in _NUMBERS and (kind in _INTEGRAL or kind.startswith("decimal")):
        return F.when(back, result)
    if isinstance(held, TimestampType) and kind == "date":
        return F.when(back, result)
    if (family in _NUMBERS and kind.startswith(_NUMBERS)) or (isinstance(held, DateType) and kind in _TIMES):
        return result
    if source.startswith("timestamp") and kind in _TIMES[1:]:
        unsure = source == "timestamp_ntz" and kind == "timestamp" and _changes_clocks(spark)
        return F.when(F.expr(_is_once(f"cast({cell} as timestamp)", cell)), result) if unsure else result
    return F.expr(f"try_cast(cast({cell} as string) as {kind})") if kind not in _TIMES else F.lit(None).cast(kind)
