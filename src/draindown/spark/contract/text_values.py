"""The grammar of a scalar written as text: SQL expressions of its value, NULL where the text is not
of the type.

Spark's casts take more than a contract says: `yes` as true, `0x1p3` as 8.0, control characters
around a number, a whole number that a double rounds, `BST` as the zone of Bangladesh. The tests
here refuse these. They compare a few characters; regular expressions look only at texts that such a
comparison leaves undecided. What is seldom needed is a branch of `if`: Spark evaluates
subexpressions that repeat in an operand of AND or OR for every row, needed or not
(spark.sql.subexpressionElimination.skipForShortcutExpr is false), but not those within a branch.
"""

from __future__ import annotations

import re
from functools import cache

from draindown.spark.sql import literal

INTEGRAL = ("tinyint", "smallint", "int", "bigint")
FINITE = ("float", "double")
TIMES = ("date", "timestamp", "timestamp_ntz")
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_DIGITS = 38
_LONGEST_DECIMAL = 1000
"""Characters of a decimal's text, as Spark's JSON parser has it for numbers."""
_SHORT_EXPONENT = "[eE][+-]?0*[0-9]{1,3} *$"
WHOLE_BELOW = {"float": 2**24, "double": 2**53}
"""Whole numbers below these are exact in their type."""
_DAY = 86_400_000_000
_REGION = "[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)+ *$"
"""A region's name at the end of a time, as in `2024-07-01 12:00:00 Europe/Berlin`. It has a
slash.
"""
_FIRST, _LAST = "timestamp_micros(-62135596800000000)", "timestamp_micros(253402300799999999)"
"""The first and last moment of the years 1 to 9999. Readers in Python know no others."""


def from_text(text: str, kind: str, zone: str) -> str:
    """Return a SQL expression of type `kind`: the value that the SQL expression `text` writes, or
    NULL.

    `kind`: a scalar type. `zone`: the session's time zone, in which times without a zone are read.
    """
    if kind in ("string", "binary"):
        return f"cast({text} as {kind})"
    if kind == "boolean":
        return f"case lower(trim({text})) when 'true' then true when 'false' then false end"
    if kind in INTEGRAL:
        return f"if({_is_number(text, '0')}, try_cast({text} as {kind}), null)"
    if kind in FINITE:
        return _floating(text, kind)
    if _DECIMAL.fullmatch(kind):
        number = narrowed(_cast(text, widened(kind)), kind)
        return f"if({_is_decimal(text)} and {fits_scale(text, kind)}, {number}, null)"
    return _time(text, kind, zone)


@cache
def widened(kind: str) -> str:
    """Return `kind` with each decimal widened to the greatest scale that keeps its integral digits.

    Spark rounds a value to the scale of the requested type, so values are read with more digits to
    detect rounding. Digits beyond the widened scale are not detected.
    """
    return _DECIMAL.sub(lambda at: f"decimal({_DIGITS},{_DIGITS - int(at[1]) + int(at[2])})", kind)


def scale_of(kind: str) -> int:
    """Return how many digits a decimal type has behind the point."""
    found = _DECIMAL.fullmatch(kind)
    assert found is not None
    return int(found[2])


def narrowed(wide: str, kind: str) -> str:
    """Return a decimal of type `widened(kind)` as `kind`; NULL if that would round it."""
    if widened(kind) == kind:
        return wide
    return f"if({_cast(_cast(wide, kind), widened(kind))} = {wide}, {_cast(wide, kind)}, null)"


def is_exact_decimal(text: str, kind: str) -> str:
    """Return the condition that a text, which JSON's parser took for a decimal, is one: it takes
    even `1,5`.
    """
    return f"{_is_decimal(text)} and instr({text}, ',') = 0 and {fits_scale(text, kind)}"


def is_short(text: str) -> str:
    """Return the condition that a text has no more digits than a decimal may, and no more than
    three in its exponent.

    Java computes with all of them before Spark counts: minutes for `1e-99999999` or a million
    digits, and for `1e-999999999` an error that no TRY cast catches.
    """
    has_exponent = f"contains({text}, 'e') or contains({text}, 'E')"
    few = f"if({has_exponent}, {text} rlike {literal(_SHORT_EXPONENT)}, true)"
    return f"length({text}) <= {_LONGEST_DECIMAL} and {few}"


def rounded_decimal(text: str, kind: str) -> str:
    """Return the decimal that a text writes, rounded to the scale of its type; NULL if it is
    none.
    """
    return f"if({_is_decimal(text)}, {_cast(text, kind)}, null)"


def fits_scale(text: str, kind: str) -> str:
    """Return the condition that a number without an exponent has no more digits after the point
    than its type.

    This also detects digits beyond those of the widest decimal.
    """
    found = _DECIMAL.fullmatch(kind)
    if not found:
        return "true"
    few = f"instr({text}, '.') = 0 or length({text}) - instr({text}, '.') <= {found[2]}"
    return f"if({few}, true, not {text} rlike '[.][0-9]{{{found[2]}}}[0-9]*[1-9][0-9]*[ ]*$')"


def finite(value: str, kind: str) -> str:
    """Return a floating-point value, with 0.0 for -0.0; NULL if it is infinite or NaN."""
    return f"case when abs({value}) < double('Infinity') then {value} + cast(0.0 as {kind}) end"


def within_years(value: str, kind: str) -> str:
    """Return a date or time; NULL if it is not of the years 1 to 9999."""
    if kind == "timestamp":
        return f"if({value} between {_FIRST} and {_LAST}, {value}, null)"
    return f"if(year({value}) between 1 and 9999, {value}, null)"


def is_cut(text: str) -> str:
    """Return the condition that a time is written with more than microseconds, which a timestamp
    can't hold.
    """
    seventh = f"substring({text}, instr({text}, '.') + 7, 1) between '0' and '9'"
    return (
        f"if(instr({text}, '.') > 0 and {seventh}, {text} rlike '[.][0-9]{{6}}[0-9]*[1-9]', false)"
    )


def one_moment(zone: str) -> bool:
    """Return whether each local time of the zone is exactly one instant, because its clocks never
    change.
    """
    return zone.upper() in ("UTC", "GMT", "Z") or zone.startswith(("+", "-", "Etc/"))


def once(moment: str, local: str, zone: str) -> str:
    """Return the condition that `moment` is the only instant at which clocks in a zone show a local
    time.

    `moment`: Spark's reading of the local time, which is later where clocks skip it, and the
    earlier of two. `local`: the local time in microseconds, as if in UTC. `zone`: SQL expression.
    The other of two has the offset that the zone has a day later, by however much the clocks are
    set back.
    """
    micros = f"unix_micros({moment})"
    day_later = f"{micros} + {_DAY}"
    other = f"({day_later} + {local} - {_shown(f'timestamp_micros({day_later})', zone)})"
    is_other = f"{other} <> {micros} and {_shown(f'timestamp_micros({other})', zone)} = {local}"
    return f"({_shown(moment, zone)} = {local} and not ({is_other}))"


def local_micros(text: str) -> str:
    """Return a time that is written without a zone in microseconds, as if in UTC; NULL for any
    other text.

    Spark takes a zone only behind seconds, so these are added where they are missing.
    """
    casts = (
        f"try_cast(concat(rtrim({text}), '{missing}Z') as timestamp)"
        for missing in ("", ":00", ":00:00")
    )
    return f"unix_micros(coalesce({', '.join(casts)}))"


def _shown(moment: str, zone: str) -> str:
    """Return what clocks in a zone show at a moment, in microseconds, as if in UTC."""
    return f"unix_micros(from_utc_timestamp({moment}, {zone}))"


def _cast(text: str, kind: str) -> str:
    return f"try_cast({text} as {kind})"


def _is_number(text: str, least: str) -> str:
    """Return the condition that a text begins and ends as a number. Between them, Spark takes
    digits alone.

    `least`: the first of the characters up to 9 that may be the last. Only blanks may stand around
    the number.
    """
    return f"(ltrim({text}) between '+' and ':' and substring(rtrim({text}), -1, 1) between '{least}' and '9')"


def _is_decimal(text: str) -> str:
    """Return the condition that a text begins and ends as a number, is short, and has no digits of
    other scripts.
    """
    return (
        f"({_is_number(text, '.')} and octet_length({text}) = length({text}) and {is_short(text)})"
    )


def _floating(text: str, kind: str) -> str:
    """Return a finite number; NULL for a whole number, written without point and exponent, that
    would be rounded.
    """
    is_one = f"{_is_number(text, '.')} and not contains({text}, 'x') and not contains({text}, 'X')"  # Java's 0x1p3
    number = f"if({is_one}, {_cast(text, kind)}, null)"
    spelled = f"contains({text}, '.') or contains({text}, 'e') or contains({text}, 'E')"
    exact = f"abs({number}) < 9223372036854775808D and {_cast(number, 'bigint')} = {_cast(text, 'bigint')}"
    return (
        f"case when abs({number}) < {WHOLE_BELOW[kind]} then {number} + cast(0.0 as {kind}) "
        f"when abs({number}) < double('Infinity') and ({spelled} or {exact}) then {number} end"
    )


def _time(text: str, kind: str, zone: str) -> str:
    # otherwise Spark reads 12:30 as today, 19782 as a year, 2024-07 as the first of July
    dashes = [f"substring(ltrim({text}), {at}, 1)" for at in (5, 7, 8)]
    whole_date = f"{dashes[0]} = '-' and '-' in ({dashes[1]}, {dashes[2]})"
    rest = {"date": _is_bare_date, "timestamp_ntz": _has_no_zone}
    own = rest[kind](text) if kind in rest else _is_clear(text, zone)
    # compared as text, so that the time is parsed once: only the first and the last day of all need
    # a closer look
    inner = f"ltrim({text}) between '0001-01-02' and '9999-12-31'"
    years = f"if({inner}, true, {within_years(_cast(text, kind), kind)} is not null)"
    return f"if({whole_date}, if({own}, if({years}, {_cast(text, kind)}, null), null), null)"


def _ends_with_digit(text: str) -> str:
    return f"substring(rtrim({text}), -1, 1) between '0' and '9'"


def _is_bare_date(text: str) -> str:
    """Return the condition that nothing follows the day. Spark ignores anything after a blank or a
    T.
    """
    short = (
        f"length(trim({text})) <= 10 and instr(trim({text}), ' ') = 0 and instr({text}, 'T') = 0"
    )
    return f"{_ends_with_digit(text)} and {short}"


def _has_no_zone(text: str) -> str:
    """Return the condition that a time names no zone. Spark would cut it off. A date ends before
    its ninth place.
    """
    signs = f"instr({text}, '+') = 0 and instr(substring(ltrim({text}), 9), '-') = 0"
    return f"{_ends_with_digit(text)} and {signs} and instr({text}, '/') = 0 and instr({text}, 'GMT') = 0"


def _is_clear(text: str, zone: str) -> str:
    """Return the condition that a time means one moment: by its zone, or as clocks in the session's
    zone show it.

    Abbreviations are refused: Java takes `BST` for Bangladesh and `IST` for India. A region's name
    has its clocks.
    """
    by_letter = f"endswith(rtrim({text}), 'Z') and not endswith(rtrim({text}), 'NZ')"
    named = f"{text} rlike '[0-9 ](?:UTC|GMT|UT) *$'"
    known = f"if({_ends_with_digit(text)} or {by_letter} or instr({text}, '/') > 0, true, {named})"
    there = f"if(instr({text}, '/') = 0, true, {_apart(text, _is_clear_in_region('_t'))})"
    if one_moment(zone):
        return f"{known} and {there}"
    moment = _cast(text, "timestamp")
    here = (
        f"if({local_micros(text)} is null, true, {once(moment, local_micros(text), literal(zone))})"
    )
    return f"{known} and {there} and {here}"


def _is_clear_in_region(text: str) -> str:
    """Return the condition that a time, behind which a region may stand, is one that clocks there
    show once.
    """
    moment = _cast(text, "timestamp")
    region = f"nullif(trim(regexp_extract({text}, '{_REGION}', 0)), '')"
    bare = f"regexp_replace({text}, ' *{_REGION}', '')"
    behind = f"{text} rlike '[0-9.] *{_REGION}'"  # Spark takes control characters before it, too
    return f"if({behind}, if({moment} is null, false, {once(moment, local_micros(bare), region)}), false)"


def _apart(text: str, condition: str) -> str:
    """Return a condition on `_t`, which stands for a text, that Spark evaluates apart from the
    generated code.

    The JVM never compiles a method of more than 8,000 bytes of byte code, such as this condition
    alone would make the one of a whole stage: each row would be interpreted. Spark interprets
    functions with a lambda, and generates a method for each other column of the same projection.
    """
    return f"exists(array({text}), _t -> {condition})"
