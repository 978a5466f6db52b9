"""Records of JSON lines: one object per line."""

from __future__ import annotations

import secrets

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.flow.schema_drift import Known
from draindown.spark.contract import drift_marks, json_text
from draindown.spark.contract.casting import pair, widened
from draindown.spark.contract.containers import in_field
from draindown.spark.contract.json_text import JsonText
from draindown.spark.contract.record_frame import Records, finish, of_lines
from draindown.spark.sources.port import Read
from draindown.spark.sql import literal, quoted
from draindown.spec.models import FlowSpec

_STRICT_JSON = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_STRICT_SQL = f"map({', '.join(literal(part) for option in _STRICT_JSON.items() for part in option)})"
_HALF_PAIR = "half of a surrogate pair, which is no Unicode text"


class JsonRecords:
    """The reader of JSON lines."""

    def records(self, read: Read, flow: FlowSpec, known: Known) -> Records:
        """Return the objects of the lines."""
        return json_records(read.frame, flow, known)


def json_records(lines: DataFrame, flow: FlowSpec, known: Known) -> Records:
    """Records of lines that hold an object each, its fields as text."""
    # Spark ignores what follows a complete value: a second object on a line would vanish. So the line is parsed as the
    # first item of a list whose second no line can hold, and must leave that one intact.
    mark = secrets.token_hex(8)
    wrapped = F.concat(F.lit("["), F.col("value"), F.lit(f',{{"{mark}":""}}]'))
    frame = of_lines(lines, flow).withColumn("_a", F.from_json(wrapped, "array<map<string,string>>", _STRICT_JSON))
    frame = frame.withColumn("_m", F.expr(f"if(size(_a) = 2 and get(_a, 1)['{mark}'] = '', _a[0], null)"))
    names = [literal(name) for name in flow.columns]
    named = " + ".join(f"int(map_contains_key(_m, {name}))" for name in names)
    frame = frame.withColumn("_more", F.expr(f"size(_m) > {named}"))
    broken = F.when(F.col("_m").isNull(), F.lit("not one JSON object")).when(
        F.expr("_more and size(array_distinct(map_keys(_m))) < size(_m)"), F.lit("a key stands twice")
    )
    broken = broken.when(json_text.has_half_pair("value"), F.lit(_HALF_PAIR))
    unknown = F.when(
        F.col("_more"), F.expr(f"to_json(map_filter(_m, (k, v) -> not array_contains(array({', '.join(names)}), k)))")
    )
    texts = JsonText([name for name, column in flow.columns.items() if column.type == "json"])
    if texts.names:
        frame = frame.withColumn("_json", texts.parsed("value", _STRICT_JSON))
    exact = [name for name, column in flow.columns.items() if "decimal" in column.type]
    if exact:  # as text, a JSON number passes through a double
        schema = ", ".join(f"{quoted(name)} {widened(flow.columns[name].type)}" for name in exact)
        frame = frame.withColumn("_exact", F.from_json("value", schema, _STRICT_JSON))

    def cell(name: str) -> Column:
        text, kind = f"_m[{literal(name)}]", flow.columns[name].type
        if kind == "json":
            return texts.of("_json", name)
        if name in exact:
            return pair(F.expr(text), F.col(f"_exact.{quoted(name)}"))
        if kind in ("string", "binary"):  # to all other types the text of an object or array can't be cast
            return pair(F.expr(text), F.when(~in_field("_raw", name, text, _STRICT_SQL), F.expr(text)))
        return F.expr(text)

    numbers = [name for name in flow.columns if (form := flow.written(name)) and form.pattern is None]
    if numbers:
        schema = ", ".join(f"{quoted(name)} variant" for name in numbers)
        frame = frame.withColumn("_kinds", F.from_json("value", schema, _STRICT_JSON))

    def is_text(name: str) -> Column:
        return F.schema_of_variant(f"_kinds.{quoted(name)}") == "STRING" if name in numbers else F.lit(True)

    kept = ["_m", *(["_json"] if texts.names else []), *(["_exact"] if exact else []), *(["_kinds"] if numbers else [])]
    marks = drift_marks.of_map(flow, known)
    return Records(
        finish(frame, broken, unknown, marks, *kept), cell, F.col("_raw"), F.octet_length("_raw"), is_text=is_text
    )
