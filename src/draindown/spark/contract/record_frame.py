"""What every format's reader makes of a batch: records with named cells, the raw text, and whether
a record is broken.

A `Records` frame has `_blank` boolean (no record: nothing stands there, or a CSV header), `_broken`
string (why it is no record at all, or NULL), `_unknown` string (JSON of the fields the contract
doesn't name, or NULL), `_drift` (`drift_marks.MARKS`: news about fields and columns, or NULL),
PLACE, whichever of FIRST_SEEN, ARRIVED and ENVELOPE the lines had, and whatever `cell` and `raw`
read from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.config.landing import FlowSpec
from draindown.flow.schema_drift import Known
from draindown.spark.sources.place import ARRIVED, ENVELOPE, FIRST_SEEN, PLACE
from draindown.spark.sources.port import Read

_WHITE = " \\t\\r\\n\\u000B\\f"
NOTHING = "cast(null as string)"


@dataclass(frozen=True)
class Records:
    """A frame as the module describes it, and how to get at a named cell of it (typed, or text to
    be cast).

    `raw` is the record as it came; `whole_text` says that this is text, to be held against its
    encoding; `size` is how many bytes of text and binary it holds, to be held against the limit.
    `without_value` says whether a record has no text at all; None if each has one. `is_text` says
    whether a named cell is text, of a format that has numbers too; None if each is what it is of.
    `shape` is what the quarantine keeps beside `raw`; None if that says it all. `plain` has the
    value, of the type in the contract, that a record with `_plain` has of a column; it has no
    cells.
    """

    frame: DataFrame
    cell: Callable[[str], Column]
    raw: Column
    size: Column
    whole_text: bool = True
    without_value: Column | None = None
    is_text: Callable[[str], Column] | None = None
    shape: Column | None = None
    plain: Mapping[str, Column] = field(default_factory=dict)


class RecordReader(Protocol):
    """What the records of one format hold. Readers are listed in `records`; new ones are added
    there.
    """

    def records(self, read: Read, flow: FlowSpec, known: Known) -> Records:
        """Return the records of a frame, as a slice reader read it or as the quarantine kept them.

        `known`: fields and columns that are no news.
        """


def of_lines(lines: DataFrame, flow: FlowSpec) -> DataFrame:
    """Lines as `_raw`, and as `value` to be parsed: NULL for one that is too large, which would
    fill the heap.
    """
    # trimmed in front only: from behind it would walk through the whole line
    blank = F.expr(f"trim(LEADING '{_WHITE}' FROM value) = ''")
    blank = F.lit(False) if ENVELOPE in lines.columns else blank
    frame = lines.withColumns({"_blank": blank, "_raw": F.col("value")})
    fits = F.octet_length("value") <= flow.source.max_record_bytes
    return frame.withColumn("value", F.when(fits, F.col("value")))


def finish(
    frame: DataFrame, broken: Column, unknown: Column, drift: Column, *keep: str
) -> DataFrame:
    """The columns of a `Records` frame, and those that `keep` names for its cells."""
    marks = F.when(~F.col("_blank"), drift).alias("_drift")
    as_is = [
        "_raw",
        "_blank",
        *PLACE,
        *(name for name in frame.columns if name in (FIRST_SEEN, ARRIVED, ENVELOPE)),
    ]
    return frame.select(*as_is, broken.alias("_broken"), unknown.alias("_unknown"), marks, *keep)
