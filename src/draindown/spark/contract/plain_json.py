"""Lines of JSON that say what the contract expects: read by one parse into the types of the
contract.

`json_records` reads a map of texts from any line, twice where the contract has decimals. Here a
regular expression proves that a line has fields of the contract alone, each at most once, in the
order of the batch's first lines, and values whose parse can only give what the cast of their text
gives. Such a line is plain unless a value is not of its type after all, and is parsed once. Every
other line is left to `json_records`, whose results decide what is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import and_

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.config.landing import FlowSpec
from draindown.flow.schema_drift import Known
from draindown.spark.contract import text_values
from draindown.spark.contract.casting import session_zone
from draindown.spark.contract.json_text import BAD, STRICT, Fields
from draindown.spark.sql import literal

PLAIN = "_plain"
"""Whether a line is plain: a column of frames that `PlainLines.found` returned."""
_PARSED = "_parsed"
_SAMPLE = 200
_LONGEST = 64 * 1024
"""Bytes of a line that the driver looks at."""
_LEAST = 0.9
"""Share of the sample that must be plain. A line that is not costs the regular expression beside
the map.
"""
_MOST = 200
"""Most columns. Java matches each field within the match of the field before it; 200 fields fit its
stack.
"""
# Quantifiers are possessive, so that Java gives up a line at the first place that does not match.
_TEXT = r'"[^"\\]*+(?:\\(?:[^u]|u[^dD])[^"\\]*+)*+"'
"""Without escapes of surrogates, which may be no Unicode text. What JSON doesn't allow is left to
the parser.
"""
_WHOLE = "-?[0-9]++"
_DAY = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]"
_CLOCK = r"[T ][0-9][0-9]:[0-9][0-9]:[0-9][0-9](?:\.[0-9]{1,6}+)?+"
_OFFSET = "(?:Z|[+-][0-9][0-9]:[0-9][0-9])"
_YEARS = "(?!0000|0001|9999)"
"""An offset may move what is shown in the first or last year into another."""
_PATTERNS: Mapping[str, str] = {
    **dict.fromkeys(text_values.INTEGRAL, _WHOLE),
    **dict.fromkeys(text_values.FINITE, "[-+.0-9eE]++"),
    "boolean": "true|false",
    "date": f'"{_YEARS}{_DAY}"',
    "timestamp_ntz": f'"{_YEARS}{_DAY}{_CLOCK}"',
}
_PARSED_AS = {
    "tinyint": "int",
    "float": "double",
    **dict.fromkeys(("binary", *text_values.TIMES), "string"),
}
"""Types that are cast from another. Of a tinyint 200 Jackson makes -56; a float is the cast of a
double's text.
"""


class PlainLines:
    """How plain lines of a flow are read.

    `names`: the order of fields. `texts`: columns that are written as text. `zone`: of times
    without an offset. `blank`: what stands behind each colon and comma. `complete`: whether a plain
    line has every column.
    """

    def __init__(
        self,
        flow: FlowSpec,
        names: Sequence[str],
        texts: Collection[str],
        zone: str,
        blank: str,
        *,
        complete: bool,
    ) -> None:
        self._flow, self._texts, self._zone = flow, frozenset(texts), zone
        lacking = "" if complete else "?+"
        fields = [
            f'(?:"{re.escape(name)}":{blank}(?:{self._pattern(name)}|null)(?:,{blank})?+){lacking}'
            for name in names
        ]
        self.pattern = rf"\{{{''.join(fields)}\}}"
        """Of a whole line. Commas too few or too many are left to the parser."""
        kinds = {name: column.type for name, column in flow.columns.items()}
        parsed = {
            name: "string" if name in texts else _PARSED_AS.get(kind, kind)
            for name, kind in kinds.items()
        }
        self._fields = Fields({**parsed, BAD: "string"})

    @classmethod
    def of(cls, lines: DataFrame, flow: FlowSpec, known: Known) -> PlainLines | None:
        """Return how to read plain lines; None if a column has no plain form, or a sample has too
        few such lines.
        """
        if not 0 < len(flow.columns) <= _MOST or not all(
            _is_plain(flow, name) for name in flow.columns
        ):
            return None
        first = lines.select(
            F.when(F.octet_length("value") <= _LONGEST, F.col("value")).alias("value")
        ).limit(_SAMPLE)
        try:
            sample = [row["value"] for row in first.collect()]
        except (PySparkException, Py4JError):  # told by the batch, which reads these lines too
            return None
        return cls.like(sample, flow, known, session_zone(lines.sparkSession))

    @classmethod
    def like(
        cls, sample: Sequence[str | None], flow: FlowSpec, known: Known, zone: str
    ) -> PlainLines | None:
        """Return how to read lines that are like those of a sample; None if too few of these are
        plain.
        """
        objects = [one for one in map(_object, sample) if one is not None]
        if not objects:
            return None
        first = max(objects, key=len)
        names = dict.fromkeys([*(name for name in first if name in flow.columns), *flow.columns])
        texts = {name for one in objects for name, value in one.items() if isinstance(value, str)}
        blank = " " if any(line and '": ' in line for line in sample) else ""
        # a column that a line lacks is drift to report
        found = cls(
            flow, list(names), texts & flow.columns.keys(), zone, blank, complete=known.all_records
        )
        plain = sum(bool(line and re.fullmatch(found.pattern, line)) for line in sample)
        return found if plain >= _LEAST * len(sample) else None

    def found(self, frame: DataFrame) -> DataFrame:
        """Return a frame of lines, `value`, with PLAIN and the columns `cells`."""
        whole = literal(rf"\A{self.pattern}\z")
        is_alike = F.expr(f"value rlike {whole}")
        frame = frame.withColumn(
            _PARSED, F.when(is_alike, self._fields.parsed(F.col("value"), STRICT))
        )
        values = {
            _cell(at): F.expr(self._value(name)) for at, name in enumerate(self._flow.columns)
        }
        frame = frame.withColumns(values)
        return frame.withColumn(PLAIN, F.coalesce(reduce(and_, self._proof()), F.lit(False)))

    def values(self) -> dict[str, Column]:
        """Return the value of each column in a plain line, of the column's type."""
        return {name: F.col(_cell(at)) for at, name in enumerate(self._flow.columns)}

    @property
    def cells(self) -> list[str]:
        """The columns of a frame that `values` reads from."""
        return [_cell(at) for at in range(len(self._flow.columns))]

    def _is_text(self, name: str) -> bool:
        """Whether a column may have any text, which is cast as in every other line."""
        kind = self._flow.columns[name].type
        return kind in ("string", "binary") or (
            name in self._texts and kind not in text_values.TIMES
        )

    def _pattern(self, name: str) -> str:
        """Return the pattern of a value that is not null."""
        kind = self._flow.columns[name].type
        if self._is_text(name):
            return _TEXT
        if kind.startswith("decimal"):
            return _decimal(kind)
        # without an offset, a time may be none in a zone whose clocks change
        if kind == "timestamp":
            offset = f"{_OFFSET}?" if text_values.one_moment(self._zone) else _OFFSET
            return f'"{_YEARS}{_DAY}{_CLOCK}{offset}"'
        return _PATTERNS[kind]

    def _value(self, name: str) -> str:
        """Return a SQL expression of the value of a column; NULL where it is not certain."""
        kind, parsed = self._flow.columns[name].type, self._fields.of(_PARSED, name)
        if kind in text_values.TIMES:
            return f"try_cast({parsed} as {kind})"
        if self._is_text(name):
            return text_values.from_text(parsed, kind, self._zone)
        if kind in text_values.FINITE:  # a whole number that would be rounded is none
            # the double's text, not the double: it may lie beyond the middle of two floats where
            # the double lies on it
            number = f"cast(cast({parsed} as string) as float)" if kind == "float" else parsed
            return f"if(abs({parsed}) < {text_values.WHOLE_BELOW[kind]}, {number} + cast(0.0 as {kind}), null)"
        return f"try_cast({parsed} as tinyint)" if kind == "tinyint" else parsed

    def _proof(self) -> list[Column]:
        """Return the conditions under which a line that the pattern matches is plain: it is JSON of
        such values.
        """
        values = [
            (_cell(at), self._fields.of(_PARSED, name))
            for at, name in enumerate(self._flow.columns)
        ]
        cast = [F.expr(f"{cell} is not null or {parsed} is null") for cell, parsed in values]
        return [
            F.col(_PARSED).isNotNull(),
            F.expr(f"{self._fields.of(_PARSED, BAD)} is null"),
            *cast,
        ]


def _cell(at: int) -> str:
    return f"_p{at}"


def _is_plain(flow: FlowSpec, name: str) -> bool:
    """Return whether a column may have a plain form. A name that JSON has to escape has none."""
    kind = flow.columns[name].type
    is_known = (
        kind in _PATTERNS or kind in ("string", "binary", "timestamp") or kind.startswith("decimal")
    )
    return is_known and flow.written(name) is None and not {'"', "\\"} & set(name)


def _decimal(kind: str) -> str:
    """Return the pattern of numbers that a decimal type holds unrounded, without an exponent."""
    scale = text_values.scale_of(kind)
    return rf"{_WHOLE}(?:\.[0-9]{{1,{scale}}}+)?+" if scale else _WHOLE


def _object(line: str | None) -> dict[str, object] | None:
    try:
        found = json.loads(line or "")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
