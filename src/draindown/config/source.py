"""What all kinds of sources of records have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, WithJsonSchema

from draindown.base.digests import Meaning
from draindown.config.base import Model
from draindown.config.column_types import DECIMAL_SCHEMA, THOUSANDS_SCHEMA
from draindown.config.dialect import Dialect
from draindown.config.formats import FORMATS, Format
from draindown.config.units import Size


def _known_zone(value: str) -> str:
    if re.fullmatch(r"[+-](0\d|1[0-4]):[0-5]\d", value):
        return value
    try:
        ZoneInfo(value)
    except (OSError, ValueError, LookupError):
        raise ValueError(
            f"{value!r} is no time zone; write a name such as Europe/Berlin, or +02:00"
        ) from None
    return value


FIELD = "field:"
"""Before the name of a field, where `from` names places beside the record too."""
DecimalSeparator = Annotated[
    str | None,
    WithJsonSchema(DECIMAL_SCHEMA),
    Field(description="What separates the fraction of all numbers that are text; absent: a point."),
]
ThousandsSeparator = Annotated[
    str | None,
    WithJsonSchema(THOUSANDS_SCHEMA),
    Field(
        description="What separates groups of three digits in all numbers that are text; absent: nothing."
    ),
]
RecordBytes = Annotated[Size, Field(description="A longer record is refused.", examples=["8mb"])]
LONGEST_RECORD = 8 * 1024**2
Zone = Annotated[
    str,
    AfterValidator(_known_zone),
    Field(
        min_length=1,
        description="Zone of timestamps that are written without one.",
        examples=["UTC", "America/New_York", "+02:00"],
    ),
]


class SourceSpec(Model):
    """What all kinds of sources of records have in common: how records are written, and how large a
    batch may be.
    """

    kind: ClassVar[str]
    """The key of the pipeline file that names a source of this kind, and its name in every
    registry.
    """
    own_intakes: ClassVar[bool] = False
    """Whether each generation has an intake of its own. Otherwise all generations share one."""
    begins_with_fill: ClassVar[bool] = False
    """Whether a generation begins with all that is there now. Otherwise it reads the slices again
    that were pinned.
    """

    counts_from: ClassVar[int] = 0
    """The position of the first record of a unit that starts at 0: 1 for files, whose records
    people count.
    """
    raw_files: ClassVar[bool] = False
    """Whether raw input is files, which an audit can read again by itself."""

    bytes_estimated: ClassVar[bool] = False
    """Whether the bytes of a unit are estimated from a few records: then they differ from look to
    look.
    """

    PLACES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """What a column may be taken `from` beside the record's text, each with the types that hold it.

    A place that ends with ":" is followed by a name.
    """

    # each kind declares these fields, in the order in which its reference lists them
    if TYPE_CHECKING:
        format: str
        max_bytes_per_trigger: int | None
        max_record_bytes: int
        delimiter: str
        quote: str
        escape: str | None
        null_marker: str | None
        timezone: str

    @property
    def separators(self) -> tuple[str | None, str | None]:
        """What separates fractions and thousands of numbers that are text, where a column doesn't
        say; None: unsaid.
        """
        return None, None

    def field_of(self, name: str, taken_from: str | None) -> str | None:
        """Return the field of a record that holds the column `name`; None if it has a place beside
        the record.
        """
        if taken_from is None:
            return name
        if not self.PLACES:
            return taken_from
        return taken_from.removeprefix(FIELD) if taken_from.startswith(FIELD) else None

    @property
    def form(self) -> Format:
        """The properties of the format."""
        return FORMATS[self.format]

    @property
    def dialect(self) -> Dialect:
        """How the cells of a delimited format are written."""
        return Dialect()

    @property
    def has_header(self) -> bool:
        """Whether a line of each unit names the cells of its records."""
        return False

    @property
    def documents(self) -> bool:
        """Whether a unit is a document of records, which don't end with their line."""
        return False

    def meaning(self) -> Meaning:
        """Return what decides which rows a record becomes, in the words of a rebuild's digest.

        Not where the input is, nor how much of it a batch takes. A kind that has more to say adds
        it.
        """
        dialect, (decimal, thousands) = self.dialect, self.separators
        return {
            "kind": self.kind,
            "format": self.format,
            "max_record_bytes": self.max_record_bytes,
            "timezone": self.timezone,
            "header": self.has_header,
            "multiline": self.documents,
            "delimiter": dialect.delimiter,
            "quote": dialect.quote,
            "escape": dialect.escape,
            "null_marker": dialect.null,
            "decimal_separator": decimal,
            "thousands_separator": thousands,
        }

    @property
    def place(self) -> str:
        """Where the input comes from, as the pipeline file has it."""
        return str(getattr(self, self.kind))

    @property
    def raw_for(self) -> int | None:
        """How long raw records stay in the lake, in seconds; None if none are kept."""
        return None

    @property
    def most_units(self) -> tuple[int | None, str]:
        """The most units of a batch, or records of a log (None: any number), and the setting that
        says so, in words.
        """
        return None, ""
