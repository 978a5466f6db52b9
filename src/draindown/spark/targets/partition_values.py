"""Which texts a partition can't be named by: Delta would store them as another value, or no
directory can bear them.

The partition of a row is a directory `column=value`, in which Hadoop writes some characters as `%`
and two digits.
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""What Spark names the partition of NULL. The text itself is read as NULL, too (SPARK-19887)."""
_LONGEST = 255
"""Bytes of a file's name."""
_ESCAPED = "[\\x01-\\x1f\\x7f\"#%'*/:=?\\\\{\\[\\]^]"


def unstorable(name: str, value: Column) -> Column:
    """Return whether a text of partition column `name` would not be the text that is read back."""
    return stored_as_null(value) | unnameable(name, value)


def stored_as_null(value: Column) -> Column:
    """Return whether Delta would store a text as NULL in a partition column."""
    return value.isin("", HIVE_NULL)


def unnameable(name: str, value: Column) -> Column:
    """Return whether no directory can be named by a text of partition column `name`: too long, or
    it holds a NUL.
    """
    return _is_long(name, value) | _has_nul(value)


def reasons(name: str, value: Column) -> dict[str, Column]:
    """Return by reason, in words, whether `unstorable` is true for it."""
    return {
        "an empty string, which Delta stores as NULL": value == "",
        f"{HIVE_NULL}, which Delta stores as NULL": value == HIVE_NULL,
        "a text longer than a directory's name can be": _is_long(name, value),
        "a NUL character, which no directory's name can hold": _has_nul(value),
    }


def _is_long(name: str, value: Column) -> Column:
    room = _LONGEST - len(re.sub(_ESCAPED, "%00", name).encode()) - 1
    # a look at each character only where three bytes for each may be too many
    escaped = F.octet_length(F.regexp_replace(value, F.lit(_ESCAPED), F.lit("%00")))
    return (F.octet_length(value) > room // 3) & (escaped > room)


def _has_nul(value: Column) -> Column:
    return F.contains(value, F.lit("\x00"))
