"""Name the group and the column that Spark can't compute: a division by zero, a sum beyond its
type, a failed cast.

Spark's error names no row. So the keys are halved by their hash until one that fails is left.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.base.errors import said
from draindown.base.formatting import printable
from draindown.processors.stream import FAILED
from draindown.spark.sql import quoted

ERRORS = (PySparkException, Py4JJavaError)
_NAMED = re.compile(re.escape(FAILED) + r" ([^\n]*)")
"""How the fold of a processor says which key it can't fold, and why."""
_STATE = re.compile(r"SQLSTATE: 22[0-9A-Z]{3}|java\.lang\.ArithmeticException|" + re.escape(FAILED))
"""SQLSTATE class 22 is `data exception`: an error of a value, not of the query or the machine."""
_SAID = re.compile(
    r"\[[A-Z0-9_.]+\] [^\n]*?(?= SQLSTATE|\n|$)|java\.lang\.ArithmeticException: [^\n]*"
)
_MOST_BITS, _SECONDS = 30, 120


@dataclass(frozen=True)
class Failing:
    """A group that can't be computed. `key`: values by name; empty if it was not found. `columns`:
    those that fail.
    """

    key: Mapping[str, object]
    columns: Sequence[str]

    def __str__(self) -> str:
        group = ", ".join(f"{name} {printable(str(value), 60)}" for name, value in self.key.items())
        return f"{', '.join(self.columns) or 'the query'} of {f'group {group}' if group else 'a group'}"


def is_of_data(error: BaseException) -> bool:
    """Return whether an error of Spark is about a value of the input."""
    return _STATE.search(said(error)) is not None


def named(error: BaseException) -> str | None:
    """Return which group can't be computed and why, of an error that says so itself; None of
    others.
    """
    found = _NAMED.search(said(error))
    return found and found[1][:600]


def reason(error: BaseException) -> str:
    """Return the sentence in which Spark says what can't be computed."""
    found = _SAID.search(said(error))
    return found[0][:300] if found else type(error).__name__


def failing(
    result: Callable[[Column], DataFrame],
    keys: Sequence[str],
    rows: DataFrame,
    names: Sequence[str],
) -> Failing:
    """Find a group that fails. `result`: the query over the rows of the keys that a condition on
    `names` admits.

    `keys`: the result's key columns. `rows`: rows of a source with the columns `names`, which hold
    their keys.
    """
    mark = F.xxhash64(*map(F.col, names))
    part, key = _halved(result, mark, rows, names)
    found = result(part)
    columns = [
        name
        for name in found.columns
        if name not in keys and _fails(found.select(*map(quoted, (*keys, name))))
    ]
    return Failing(dict(zip(keys, key, strict=True)) if key else {}, columns)


def _halved(
    result: Callable[[Column], DataFrame], mark: Column, rows: DataFrame, names: Sequence[str]
) -> tuple[Column, Sequence[object]]:
    """Return the condition for a part of the keys that fails, and its key, as text, if it is
    one.
    """
    part, rest, until = F.lit(True), 0, time.monotonic() + _SECONDS
    texts = [
        F.col(name).cast("string").alias(name) for name in names
    ]  # Python has no years beyond 9999
    for bits in range(_MOST_BITS):
        left = rows.where(part).select(*names).distinct().limit(2).select(*texts).collect()
        if len(left) == 1:
            return part, list(left[0])
        if not left or time.monotonic() > until:
            break
        halves = [F.pmod(mark, F.lit(2 ** (bits + 1))) == half for half in (rest, rest + 2**bits)]
        first = _fails(result(halves[0]))
        part, rest = (halves[0], rest) if first else (halves[1], rest + 2**bits)
    return part, []


def _fails(frame: DataFrame) -> bool:
    try:
        frame.write.format("noop").mode("overwrite").save()
    except ERRORS as error:
        return is_of_data(error)
    return False
