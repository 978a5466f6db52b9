"""The `source` of a flow: one model per kind, told apart by the key that only this kind has."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from string import punctuation
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from draindown.config.base import Problem, refuse
from draindown.config.column_types import check_separators
from draindown.config.dialect import BACKSLASH, Dialect
from draindown.config.formats import FORMATS
from draindown.config.kafka import KafkaSource
from draindown.config.names import local_path
from draindown.config.source import (
    LONGEST_RECORD,
    DecimalSeparator,
    RecordBytes,
    SourceSpec,
    ThousandsSeparator,
    Zone,
)
from draindown.config.units import Duration, Size

_NEVER = "none"
OF_CSV = ("header", "delimiter", "quote", "escape", "null_marker")
"""Keys of a source of files that count for format csv only."""
_NAMES = {"type": "string", "enum": list(FORMATS)}


def _known_format(name: object) -> str:
    if not isinstance(name, str) or name not in FORMATS:
        *names, last = (repr(known) for known in FORMATS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})
    return name


MOST_FILES = 2000
"""The most files of one batch. Each file costs Spark a task or a part of one, however small it
is.
"""


class FilesSource(SourceSpec):
    """Files that land in a directory. Each file is read once."""

    kind = "files"
    counts_from = 1
    raw_files = True

    files: str = Field(
        min_length=1,
        description="Glob of the files to read, absolute or relative to the project root. Local paths only.",
        examples=["landing/flights/*.json.gz"],
    )
    format: Annotated[str, BeforeValidator(_known_format), WithJsonSchema(_NAMES)] = Field(
        description="How the files are written. json: one object per line; text: one column, `value: string`.",
    )
    max_bytes_per_trigger: Size | None = Field(
        default=None,
        description="Upper bound of one batch, in unpacked bytes; at least one file is taken. Absent: sized to memory.",
        examples=["256mb"],
    )
    max_files_per_trigger: int | None = Field(
        default=None,
        ge=1,
        description="Upper bound of one batch, by number of files.",
        examples=[100],
    )
    min_file_age: Duration = Field(
        default=0,
        description="A file changed less than this ago is left for the next run. For writers that don't rename.",
        examples=["30 seconds"],
    )
    max_record_bytes: RecordBytes = LONGEST_RECORD
    header: bool = Field(
        default=True, description="csv: the first line of each file names its columns."
    )
    delimiter: str = Field(
        default=",",
        min_length=1,
        max_length=1,
        description="csv: the character between cells.",
        examples=[";"],
    )
    multiline: bool = Field(
        default=False,
        description="json: a file is one array of records, or objects over several lines; absent: one object per line.",
    )
    quote: str = Field(
        default='"',
        min_length=1,
        max_length=4,
        description="csv: the character around cells; none: cells are never quoted.",
        examples=["'", "none"],
    )
    escape: str | None = Field(
        default=None,
        min_length=1,
        max_length=2,
        description="csv: a backslash, if quotes within a quoted cell have one before them. Absent: they are doubled.",
        examples=["\\"],
    )
    null_marker: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="csv: a cell without quotes that reads so is NULL, and an empty one is an empty text.",
        examples=["\\N"],
    )
    timezone: Zone = "UTC"
    decimal_separator: DecimalSeparator = None
    thousands_separator: ThousandsSeparator = None

    @property
    def separators(self) -> tuple[str | None, str | None]:
        """What separates fractions and thousands."""
        return self.decimal_separator, self.thousands_separator

    @property
    def dialect(self) -> Dialect:
        """How cells are written."""
        quote = None if self.quote == _NEVER else self.quote
        return Dialect(self.delimiter, quote, self.escape, self.null_marker or "")

    @property
    def has_header(self) -> bool:
        """Whether the first line of each file names its cells."""
        return self.form.delimited and self.header

    @property
    def documents(self) -> bool:
        """Whether a file is a document of records, and not one line each."""
        return self.multiline

    @property
    def most_units(self) -> tuple[int | None, str]:
        """The most files of one batch, and the setting that says so."""
        if self.max_files_per_trigger is None:
            return MOST_FILES, ""
        most = min(self.max_files_per_trigger, MOST_FILES)
        return most, f"max_files_per_trigger: {most}"

    @field_validator("files")
    @classmethod
    def _local(cls, value: str) -> str:
        return local_path(value)

    @field_validator("delimiter")
    @classmethod
    def _usable_delimiter(cls, value: str) -> str:
        # Spark reads a backslash as an escape, and no cell could hold the other characters
        if value in '"\r\n\x00\\' or value.isalnum():
            raise ValueError(f"{value!r} can't separate cells")
        return value

    @field_validator("quote")
    @classmethod
    def _usable_quote(cls, value: str) -> str:
        if value == _NEVER or (len(value) == 1 and value in punctuation and value != BACKSLASH):
            return value
        raise ValueError(
            f"{value!r} can't stand around cells; write one character such as \", or none"
        )

    @field_validator("escape")
    @classmethod
    def _usable_escape(cls, value: str | None) -> str | None:
        if value is None or set(value) == {
            BACKSLASH
        }:  # two: YAML takes them as they are between single quotes
            return value and BACKSLASH
        raise ValueError(
            f"{value!r} can't stand before a quote; write '\\', or leave it out where quotes are doubled"
        )

    @model_validator(mode="after")
    def _combination(self) -> FilesSource:
        check_separators(*self.separators)
        problems: list[Problem] = []
        if self.max_bytes_per_trigger is not None and self.max_files_per_trigger is not None:
            problems.append(
                (("max_files_per_trigger",), "excludes max_bytes_per_trigger: keep one of the two")
            )
        if self.multiline and not FORMATS[self.format].json_columns:
            instead = (
                "; a csv has records over several lines without it" if self.form.delimited else ""
            )
            problems.append(
                (("multiline",), f"counts for format json only, not for {self.format}{instead}")
            )
        if not FORMATS[self.format].delimited:
            reason = f"counts for format csv only, not for {self.format}"
            changed = [
                name
                for name in OF_CSV
                if getattr(self, name) != type(self).model_fields[name].default
            ]
            problems += [((name,), reason) for name in changed]
        problems += self._dialect_problems()
        refuse(problems)
        return self

    def _dialect_problems(self) -> Iterator[Problem]:
        dialect = self.dialect
        if dialect.quote == dialect.delimiter:
            yield ("quote",), f"{self.quote!r} is the delimiter"
        if dialect.escape and dialect.quote is None:
            yield ("escape",), "stands before quotes, and quote: none says that there are none"
        if found := set(dialect.null) & {dialect.delimiter, dialect.quote, "\r", "\n"}:
            yield ("null_marker",), f"no cell without quotes can hold {min(map(str, found))!r}"


SOURCES: MutableMapping[str, type[SourceSpec]] = {
    one.kind: one for one in (FilesSource, KafkaSource)
}
"""The model of each kind of source. What it does is in `sources.registry`, how Spark reads it in
`spark.sources`.
"""


def kind_of(value: object) -> str | None:
    """Return the kind that the mapping of a source is of: the one key of SOURCES that it has; None
    without one.
    """
    named = [kind for kind in SOURCES if isinstance(value, dict) and kind in value]
    return named[0] if len(named) == 1 else None


class _OfAnyKind:
    """Validates a source by the model of its kind, whose errors it passes on as one error,
    `source`.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        whole = core_schema.no_info_plain_validator_function(_validated)
        whole["serialization"] = core_schema.simple_ser_schema("any")
        return whole

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(one.__pydantic_core_schema__) for one in SOURCES.values()]}


def _validated(value: Any) -> SourceSpec:
    if isinstance(value, SourceSpec):
        return value
    kind = kind_of(value)
    if kind is None:
        kinds = ", ".join(SOURCES)
        text = f"must say where the input comes from, by exactly one of {kinds}, or of a derived flow `table`"
        raise PydanticCustomError("source_kind", text)
    try:
        return SOURCES[kind].model_validate(value)
    except ValidationError as error:
        raise PydanticCustomError(
            "source", "{text}", {"text": str(error), "error": error}
        ) from None


AnySource = Annotated[SourceSpec, _OfAnyKind]
"""The source of a flow, of any registered kind."""
