"""Decimals of JSON lines, exactly: as text, a number of JSON has passed through a double.

`from_json` reads them, and computes with any exponent and any number of digits (see
`text_values.is_short`). A line that may have such a one is read by the spelling of its fields
instead, so that it alone is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.spark.contract.json_text import Fields, JsonText
from draindown.spark.contract.text_values import is_short, rounded_decimal
from draindown.spark.sql import literal

COLUMN = "_exact"
_SPELLED = "_spelled"
_LOST = """('0.0', '-0.0', '"Infinity"', '"-Infinity"', 'Infinity', '-Infinity')"""
"""Texts of which the double shows nothing of the number's exponent."""
_LONG_EXPONENT = r"[0-9.][eE][+-]?0*[1-9][0-9]{3,}\s*[,}]"
"""In a line: a number in an object, or little else."""


class JsonDecimals:
    """The decimals of a line by name of their field. `kinds`: their types."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds, self._fields, self._texts = kinds, Fields(kinds), JsonText(kinds)

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def __contains__(self, name: str) -> bool:
        return name in self._kinds

    def parsed(self, frame: DataFrame, broken: str, options: dict[str, str]) -> DataFrame:
        """Return the frame with COLUMN, a struct; NULL where the line is no record.

        The frame has the line as `value`, and its fields as texts in the map `_m`. `broken`: SQL
        condition that it is no record. A field that stands twice must be broken: only one of its
        texts is looked at.
        """
        odd = F.expr(f"not ({broken}) and {self._is_odd()}")
        frame = frame.withColumn(_SPELLED, F.when(odd, self._texts.parsed("value", options)))
        slowly = F.struct(
            *[self._slowly(name).alias(f"f{at}") for at, name in enumerate(self._kinds)]
        )
        quickly = self._fields.parsed(F.col("value"), options)
        found = F.when(F.col(_SPELLED).isNotNull(), slowly).when(~F.expr(broken), quickly)
        return frame.withColumn(COLUMN, found)

    def of(self, name: str) -> str:
        """Return a SQL expression of a field."""
        return self._fields.of(COLUMN, name)

    def _is_odd(self) -> str:
        """Return the condition that the text of a field, or of the number that it was, may be too
        long for Java.
        """
        texts = ", ".join(f"_m[{literal(name)}]" for name in self._kinds)
        hidden = f"if(t in {_LOST}, value rlike {literal(_LONG_EXPONENT)}, false)"
        return f"exists(array({texts}), t -> if({is_short('t')}, {hidden}, t is not null))"

    def _slowly(self, name: str) -> Column:
        text = self._texts.spelled(_SPELLED, name)
        # a lambda, which Spark interprets: the code of what is seldom needed would be part of a
        # method that is big
        return F.expr(
            f"element_at(transform(array({text}), t -> {rounded_decimal('t', self._kinds[name])}), 1)"
        )
