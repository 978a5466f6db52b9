"""Records of JSON lines: one object per line."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from draindown.config.landing import FlowSpec
from draindown.flow.schema_drift import Known
from draindown.spark.contract import drift_marks, json_text
from draindown.spark.contract.casting import pair, session_zone
from draindown.spark.contract.containers import in_field, is_beyond_double
from draindown.spark.contract.json_decimals import COLUMN as EXACT
from draindown.spark.contract.json_decimals import JsonDecimals
from draindown.spark.contract.json_text import STRICT, Fields, JsonText
from draindown.spark.contract.nested_json import NestedJson
from draindown.spark.contract.plain_json import PLAIN, PlainLines
from draindown.spark.contract.record_frame import Records, finish, of_lines
from draindown.spark.contract.text_values import widened
from draindown.spark.sources.port import Read
from draindown.spark.sql import literal, try_eval

_STRICT_SQL = f"map({', '.join(literal(part) for option in STRICT.items() for part in option)})"
_TWICE = "_more and size(array_distinct(map_keys(_m))) < size(_m)"
_HALF_PAIR = "half of a surrogate pair, which is no Unicode text"


class JsonRecords:
    """The reader of JSON lines."""

    def records(self, read: Read, flow: FlowSpec, known: Known) -> Records:
        """Return the objects of the lines."""
        plain = PlainLines.of(read.frame, flow, known) if read.many else None
        return json_records(read.frame, flow, known, plain=plain)


def json_records(
    lines: DataFrame,
    flow: FlowSpec,
    known: Known,
    *,
    base64: bool = False,
    plain: PlainLines | None = None,
) -> Records:
    """Records of lines that hold an object each, its fields as text.

    `base64`: whether the bytes of nested values are written in base64. `plain`: how lines are read
    that need no more.
    """
    frame = of_lines(lines, flow)
    if plain is not None:
        frame = plain.found(frame)
        frame = frame.withColumn("value", F.when(~F.col(PLAIN), F.col("value")))
    frame = _with_fields(frame)
    nested = _Nested(lines.sparkSession, flow, base64=base64)
    if nested.texts.names:
        frame = frame.withColumn("_json", nested.texts.parsed("value", STRICT))
    frame = frame.withColumn("_within", nested.unnamed())
    frame = frame.withColumn(
        "_nested", F.expr("nullif(flatten(_within), cast(array() as array<string>))")
    )
    names = [literal(name) for name in flow.columns]
    named = " + ".join(f"int(map_contains_key(_m, {name}))" for name in names)
    frame = frame.withColumn("_more", F.expr(f"size(_m) > {named}"))
    unknown = F.when(F.col("_more") | F.col("_nested").isNotNull(), F.expr(_unknown(names, nested)))
    decimals = [name for name, one in flow.columns.items() if one.type.startswith("decimal")]
    exact = JsonDecimals({name: widened(flow.columns[name].type) for name in decimals})
    if exact:
        frame = exact.parsed(frame, f"_m is null or {_TWICE}", STRICT)
    written = [
        name for name in flow.columns if (form := flow.written(name)) and form.pattern is None
    ]
    numbers = Fields(dict.fromkeys(written, "variant"))
    if numbers:
        frame = frame.withColumn("_kinds", numbers.parsed(F.col("value"), STRICT))

    own = {"_json": nested.texts.names, EXACT: exact, "_kinds": numbers}
    kept = ["_m", *(name for name, columns in own.items() if columns)]
    kept += [PLAIN, *plain.cells] if plain is not None else []
    marks = drift_marks.of_map(flow, known, nested=nested.has_structs)
    return Records(
        finish(frame, _broken(plain), unknown, marks, *kept),
        partial(_cell, flow, nested, exact),
        F.col("_raw"),
        F.octet_length("_raw"),
        is_text=partial(_is_text, numbers),
        plain={} if plain is None else plain.values(),
    )


def _with_fields(frame: DataFrame) -> DataFrame:
    """Add `_m`: the fields of the JSON object in `value` as a map of texts; NULL if the value is
    anything else.

    Spark ignores what follows a complete value: a second object on a line would vanish. So the line
    is parsed as the first item of a list whose second no line can hold, and must leave that one
    intact.
    """
    mark = secrets.token_hex(8)
    wrapped = F.concat(F.lit("["), F.col("value"), F.lit(f',{{"{mark}":""}}]'))
    frame = frame.withColumn("_a", F.from_json(wrapped, "array<map<string,string>>", STRICT))
    return frame.withColumn(
        "_m", F.expr(f"if(size(_a) = 2 and get(_a, 1)['{mark}'] = '', _a[0], null)")
    )


def _broken(plain: PlainLines | None) -> Column:
    """Return why a line is no record, or NULL."""
    is_plain = F.lit(False) if plain is None else F.col(PLAIN)
    broken = F.when(F.col("_m").isNull() & ~is_plain, F.lit("not one JSON object"))
    broken = broken.when(F.expr(_TWICE), F.lit("a key stands twice"))
    return broken.when(json_text.has_half_pair("value"), F.lit(_HALF_PAIR))


def _cell(flow: FlowSpec, nested: _Nested, exact: JsonDecimals, name: str) -> Column:
    """Return a column's cell: its text, or what `pair` makes of the text and an exact value."""
    text, column = f"_m[{literal(name)}]", flow.columns[name]
    if column.type == "json":
        return nested.texts.of("_json", name)
    if column.is_nested:
        return pair(F.expr(text), nested.value(name))
    if name in exact:
        return pair(F.expr(text), F.expr(exact.of(name)))
    if column.type in (
        "string",
        "binary",
    ):  # to all other types the text of an object or array can't be cast
        other = in_field("_raw", name, text, _STRICT_SQL) | is_beyond_double(
            "_raw", name, text, _STRICT_SQL
        )
        return pair(F.expr(text), F.when(~other, F.expr(text)))
    return F.expr(text)


def _is_text(numbers: Fields, name: str) -> Column:
    """Return whether a field is text, for columns in which a number and its text are read
    differently.
    """
    if name not in numbers:
        return F.lit(True)
    return F.schema_of_variant(F.expr(numbers.of("_kinds", name))) == "STRING"


class _Nested:
    """The nested columns of a line, and those of type `json`."""

    def __init__(self, spark: SparkSession, flow: FlowSpec, *, base64: bool) -> None:
        kinds = {name: column.type for name, column in flow.columns.items() if column.is_nested}
        self._spark, self._kinds = (
            spark,
            {name: DataType.fromDDL(kind) for name, kind in kinds.items()},
        )
        self.structs = [name for name, kind in kinds.items() if "struct<" in kind]
        self.texts = JsonText(
            [
                name
                for name, column in flow.columns.items()
                if column.type == "json" or name in kinds
            ]
        )
        # a field within a struct that has no value says nothing of its type, unless any field is
        # refused
        self._json = NestedJson(
            self.texts.marks, session_zone(spark), base64, nulls=flow.drift.new_columns == "fail"
        )

    @property
    def has_structs(self) -> bool:
        """Whether a column has structs, which may lack a name for a field."""
        return bool(self.structs)

    def value(self, name: str) -> Column:
        """Return the value of a nested column; NULL if it has none of its type."""
        return try_eval(
            self._spark, self._json.value(self.texts.marked("_json", name), self._kinds[name])
        )

    def unnamed(self) -> Column:
        """Return the paths of fields that structs do not name: an array for each of `structs`; NULL
        without structs.
        """
        found = [self._unnamed(name) for name in self.structs]
        return F.array(*found) if found else F.lit(None).cast("array<array<string>>")

    def _unnamed(self, name: str) -> Column:
        paths = self._json.unnamed(self.texts.marked("_json", name), self._kinds[name], name)
        return F.coalesce(try_eval(self._spark, paths), F.array().cast("array<string>"))


def _unknown(names: Sequence[str], nested: _Nested) -> str:
    """Return the JSON of fields without a name in the contract; a column with such a field within
    is kept whole.
    """
    kept = [f"not array_contains(array({', '.join(names)}), k)"]
    # not by a path's beginning: a field's name may have points, and be the beginning of another's
    kept += [
        f"k = {literal(name)} and size(_within[{at}]) > 0" for at, name in enumerate(nested.structs)
    ]
    return f"to_json(map_filter(_m, (k, v) -> {' or '.join(kept)}))"
