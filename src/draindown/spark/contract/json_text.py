"""The text of JSON: escapes that stand for no Unicode text, and the text of a field's value, for
columns of type `json` and for nested ones, whose leaves are cast from it.

`from_json` does not return that text: a number passes through a double, and a string loses its
quotes. Therefore strings and numbers are marked in the line before it is parsed, numbers as
strings, and the marks are removed from the field's text. The result has no blanks between tokens;
keys keep their order and numbers their spelling; strings have only the escapes that JSON requires.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from draindown.spark.sql import literal, quoted

BAD = secrets.token_hex(8)
"""The column of corrupt records, which Spark by default gives a name that a field may have."""
STRICT = {
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "columnNameOfCorruptRecord": BAD,
}
"""Options of `from_json`: JSON alone."""
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]"
_HALF = r"\\u[dD][89a-fA-F]"
_NUMBER = "-?[0-9][-+.0-9eE]*"


def has_half_pair(line: str) -> Column:
    """Return whether a line of JSON has a surrogate that is not one of a pair, which Spark would
    make a `?`.

    `line`: SQL expression. What has no such escape is not looked at again. Escaped backslashes and
    whole pairs give way to blanks, so that nothing joins across them.
    """
    any_escape, *either = (
        f"contains({line}, {literal(chr(92) + start)})" for start in ("u", "ud", "uD")
    )
    escapes = f"{any_escape} and ({' or '.join(either)})"
    plain = f"replace({line}, {literal(chr(92) * 2)}, '  ')"
    rest = f"regexp_replace({plain}, {literal(_PAIR)}, ' ')"
    # a branch, not an operand of AND: see text_values
    return F.expr(f"if({escapes}, {rest} rlike {literal(_HALF)}, false)")


class Marks:
    """Marks for strings and numbers of JSON text: `string` and `number`, of one length."""

    def __init__(self) -> None:
        mark = secrets.token_hex(8)  # random for each plan, so that no input contains it
        self.string, self.number = f"{mark}s", f"{mark}n"
        self._backslash, self._quote = f"{mark}b", f"{mark}q"

    def marked(self, line: str) -> str:
        """Return a SQL expression of the line with each string marked and each number as a marked
        string.

        Escaped quotes are replaced, then the line is split at quotes: every second part is inside a
        string. A regular expression that matches whole strings would recurse in Java and overflow
        the stack on long ones.
        """
        unescaped = f"replace({line}, {literal(chr(92) * 2)}, '{self._backslash}')"
        unescaped = f"replace({unescaped}, {literal(chr(92) + chr(34))}, '{self._quote}')"
        outside = f"""regexp_replace(part, '{_NUMBER}', '"{self.number}$0"')"""
        part = f"if(at % 2 = 0, {outside}, concat('{self.string}', part))"
        joined = f"""array_join(transform(split({unescaped}, '"'), (part, at) -> {part}), '"')"""
        escaped = f"replace({joined}, '{self._quote}', {literal(chr(92) + chr(34))})"
        return f"replace({escaped}, '{self._backslash}', {literal(chr(92) * 2)})"


class Fields:
    """Fields of an object with types of their own, parsed as one struct.

    Its parts are named by place: fields may differ in case only, and Spark takes such parts of a
    struct for one.
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds, self._at = kinds, {name: at for at, name in enumerate(kinds)}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def __contains__(self, name: str) -> bool:
        return name in self._at

    def parsed(self, line: Column, options: dict[str, str]) -> Column:
        """Return the struct."""
        schema = ", ".join(f"{quoted(name)} {kind}" for name, kind in self._kinds.items())
        parts = ", ".join(f"f{at}: {kind}" for at, kind in enumerate(self._kinds.values()))
        return F.from_json(line, schema, options).cast(f"struct<{parts}>")

    def of(self, parsed: str, name: str) -> str:
        """Return a SQL expression of a field. `parsed`: name of the column with the struct."""
        return f"{parsed}.f{self._at[name]}"


class JsonText:
    """Columns of a line as JSON text: `parsed` returns a struct to keep in the frame, from which
    the others read.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names, self.marks = names, Marks()
        self._fields = Fields({self.marks.string + name: "string" for name in names})

    def parsed(self, line: str, options: dict[str, str]) -> Column:
        """Return the marked fields as a struct. `line`: SQL expression of the line."""
        return self._fields.parsed(F.expr(self.marks.marked(line)), options)

    def marked(self, parsed: str, name: str) -> str:
        """Return a SQL expression of a column's marked JSON. `parsed`: name of the column with the
        struct.
        """
        return self._fields.of(parsed, self.marks.string + name)

    def spelled(self, parsed: str, name: str) -> str:
        """Return a SQL expression of a column's string or number as it is spelled; NULL for any
        other value.
        """
        text, marks = self.marked(parsed, name), (self.marks.string, self.marks.number)
        is_marked = " or ".join(f"startswith({text}, '{mark}')" for mark in marks)
        return f"if({is_marked}, substring({text}, {len(marks[0]) + 1}), null)"

    def of(self, parsed: str, name: str) -> Column:
        """Return the JSON text of a column; NULL for JSON null. `parsed`: name of the column with
        the struct.
        """
        text, string, number = self.marked(parsed, name), self.marks.string, self.marks.number
        spelled = rf"\"{number}([-+.0-9eE]*)\""
        bare = f"substring({text}, {len(string) + 1})"  # both marks are of one length
        array = f"to_json(array({bare}))"
        nested = f"""regexp_replace(replace({text}, '"{string}', '"'), {literal(spelled)}, '$1')"""
        return F.expr(
            f"case when startswith({text}, '{string}') then substring({array}, 2, length({array}) - 2) "
            f"when startswith({text}, '{number}') then {bare} else {nested} end"
        )
