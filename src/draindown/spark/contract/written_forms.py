"""Text that says a date, a time or a number in a form of its own, rewritten as the text that Spark
casts.

A text of another form becomes NULL, so that its row is refused: nothing is guessed. What a form
leaves open (the 31st of June, a local time that clocks skip) is decided by the cast, as for every
other text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from draindown.config.landing import FlowSpec, Written
from draindown.config.time_patterns import Part, parse
from draindown.spark.contract.casting import PAIR, is_pair
from draindown.spark.contract.record_frame import Records
from draindown.spark.sql import literal

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DIGITS = {1: "[0-9]{1,2}", 2: "[0-9]{2}", 4: "[0-9]{4}"}
_HOURS_OF_TWELVE = {1: "0?[1-9]|1[0-2]", 2: "0[1-9]|1[0-2]"}
_OFFSETS = {1: "Z|[+-][0-9]{2}(?:[0-9]{2})?", 2: "Z|[+-][0-9]{4}", 3: "Z|[+-][0-9]{2}:[0-9]{2}"}
_MIDNIGHT = {("h", 1): "12", ("h", 2): "12", ("a", 1): "[aA][mM]"}


def rewritten(flow: FlowSpec, records: Records) -> dict[str, Column]:
    """Return, by the name of its cell (`_t0`, `_t1` ...), the text to cast of each column whose
    text has a form.

    A cell that is no text (of Parquet, or a number of JSON) is not rewritten: it needs no form.
    """
    found = {}
    for i, (name, column) in enumerate(flow.columns.items()):
        written = flow.written(name)
        text = _text(records.frame, f"_t{i}") if written else None
        if written and text:
            found[f"_t{i}"] = F.expr(canonical(text, written, column.type))
    return found


def _text(frame: DataFrame, cell: str) -> str | None:
    held = frame.schema[cell].dataType
    return f"{cell}.{PAIR[0]}" if is_pair(held) else cell if isinstance(held, StringType) else None


def canonical(text: str, written: Written, kind: str) -> str:
    """Return the SQL of the text that Spark casts to `kind`; NULL if `text`, an expression, has no
    such form.
    """
    trimmed = f"trim({text})"
    if written.pattern is None:
        return _number(trimmed, written)
    form = _Form.of(parse(written.pattern), kind)
    return f"if({trimmed} rlike {literal(form.regex)}, {form.result(trimmed)}, null)"


def _number(text: str, written: Written) -> str:
    grouped = (
        f"[0-9]{{1,3}}(?:{_exactly(written.thousands)}[0-9]{{3}})+|" if written.thousands else ""
    )
    regex = (
        rf"\A[+-]?(?:{grouped}[0-9]*)(?:{_exactly(written.decimal)}[0-9]*)?(?:[eE][+-]?[0-9]+)?\z"
    )
    plain = f"translate({text}, {literal(written.decimal + (written.thousands or ''))}, '.')"
    return f"if({text} rlike {literal(regex)}, {plain}, null)"


def _exactly(text: str) -> str:
    return "".join(f"\\{char}" if char.isascii() and not char.isalnum() else char for char in text)


@dataclass(frozen=True)
class _Form:
    """A pattern as a Java regular expression, and the number of the group of each letter."""

    regex: str
    groups: dict[str, int]
    parts: dict[str, Part]

    @classmethod
    def of(cls, parts: tuple[Part, ...], kind: str) -> _Form:
        regex, groups = "", dict[str, int]()
        for part in parts:
            if not part.letter:
                regex += _exactly(part.text)
            elif (
                kind == "date" and part.letter not in "yMd"
            ):  # a day holds no time of day but its first instant
                zeros = "0{1,2}" if part.open_ended else f"0{{{part.width}}}"
                regex += _MIDNIGHT.get((part.letter, part.width), zeros)
            else:
                regex += f"({_matched(part)})"
                groups[part.letter] = len(groups) + 1
        return cls(rf"\A{regex}\z", groups, {part.letter: part for part in parts if part.letter})

    def result(self, text: str) -> str:
        """Return the SQL expression of the canonical text, of a `text` that the expression
        matches.
        """
        pieces = list(self._pieces(text))
        joined = [
            f"regexp_replace({text}, {literal(self.regex)}, {literal(one)})"
            for one in pieces
            if one[:1] != "("
        ]
        plain = iter(joined)
        return f"concat({', '.join(one if one[:1] == '(' else next(plain) for one in pieces)})"

    def _pieces(self, text: str) -> Iterator[str]:
        """Yield replacements, and expressions in parentheses for what is no copy of the text."""
        year = "20" * (self.parts["y"].width == 2) + f"${self.groups['y']}-"
        if self.parts["M"].width == 3:
            yield year
            yield f"(lpad(array_position(array({', '.join(map(literal, _MONTHS))}), {self._group(text, 'M')}), 2, '0'))"
            year = ""
        else:
            year += f"${self.groups['M']}"
        day = f"{year}-${self.groups['d']}"
        if not {"H", "h"} & self.groups.keys():
            yield day
            return
        if "h" in self.groups:
            yield f"{day} "
            later = f"if({self._group(text, 'a')} in ('PM', 'pm', 'Pm', 'pM'), 12, 0)"
            yield f"(cast(cast({self._group(text, 'h')} as int) % 12 + {later} as string))"
            day = ""
        else:
            day += f" ${self.groups['H']}"
        clock = "".join(f":${self.groups[one]}" if one in self.groups else ":00" for one in "ms")
        clock += f".${self.groups['S']}" if "S" in self.groups else ""
        offset = next((f"${self.groups[one]}" for one in "XZ" if one in self.groups), "")
        yield day + clock + offset

    def _group(self, text: str, letter: str) -> str:
        return f"regexp_extract({text}, {literal(self.regex)}, {self.groups[letter]})"


def _matched(part: Part) -> str:
    match part.letter:
        case "M" if part.width == 3:
            return "|".join(_MONTHS)
        case "h":
            return _HOURS_OF_TWELVE[part.width]
        case "S":
            return f"[0-9]{{{part.width}}}"
        case "a":
            return "[aApP][mM]"
        case "X":
            return _OFFSETS[part.width]
        case "Z":
            return _OFFSETS[2].removeprefix("Z|")
    return _DIGITS[part.width]
