"""The `source` of a flow: one model per kind, told apart by the key that only this kind has."""

from __future__ import annotations

from collections.abc import MutableMapping
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

from draindown.spec.base import Problem, refuse
from draindown.spec.column_types import check_separators
from draindown.spec.formats import FORMATS
from draindown.spec.kafka import KafkaSource
from draindown.spec.names import local_path
from draindown.spec.source import LONGEST_RECORD, DecimalSeparator, RecordBytes, SourceSpec, ThousandsSeparator, Zone
from draindown.spec.units import Duration, Size

_NAMES = {"type": "string", "enum": list(FORMATS)}


def _known_format(name: object) -> str:
    if not isinstance(name, str) or name not in FORMATS:
        *names, last = (repr(known) for known in FORMATS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})
    return name


MOST_FILES = 2000
"""The most files of one batch. Each file costs Spark a task or a part of one, however small it is."""


class FilesSource(SourceSpec):
    """Files that land in a directory. Each file is read once."""

    kind = "files"
    counts_from = 1
    raw_files = True
    beside_rows = frozenset({"files", "max_bytes_per_trigger", "max_files_per_trigger"})

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
        default=None, ge=1, description="Upper bound of one batch, by number of files.", examples=[100]
    )
    settle: Duration = Field(
        default=0,
        description="A file changed less than this ago is left for the next run. For writers that don't rename.",
        examples=["30 seconds"],
    )
    max_record_bytes: RecordBytes = LONGEST_RECORD
    header: bool = Field(default=True, description="csv: the first line of each file names its columns.")
    delimiter: str = Field(
        default=",", min_length=1, max_length=1, description="csv: the character between cells.", examples=[";"]
    )
    multiline: bool = Field(
        default=False,
        description="json: a file is one array of records, or objects over several lines; absent: one object per line.",
    )
    timezone: Zone = "UTC"
    decimal_separator: DecimalSeparator = None
    thousands_separator: ThousandsSeparator = None

    @property
    def separators(self) -> tuple[str | None, str | None]:
        """What separates fractions and thousands."""
        return self.decimal_separator, self.thousands_separator

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

    @model_validator(mode="after")
    def _combination(self) -> FilesSource:
        check_separators(*self.separators)
        problems: list[Problem] = []
        if self.max_bytes_per_trigger is not None and self.max_files_per_trigger is not None:
            problems.append((("max_files_per_trigger",), "excludes max_bytes_per_trigger: keep one of the two"))
        if self.multiline and not FORMATS[self.format].json_columns:
            instead = "; a csv has records over several lines without it" if self.form.delimited else ""
            problems.append((("multiline",), f"counts for format json only, not for {self.format}{instead}"))
        if not FORMATS[self.format].delimited:
            changed = {"header": not self.header, "delimiter": self.delimiter != ","}
            reason = f"counts for format csv only, not for {self.format}"
            problems += [((name,), reason) for name, is_set in changed.items() if is_set]
        refuse(problems)
        return self


SOURCES: MutableMapping[str, type[SourceSpec]] = {one.kind: one for one in (FilesSource, KafkaSource)}
"""The model of each kind of source. What it does is in `sources.registry`, how Spark reads it in `spark.sources`."""


def kind_of(value: object) -> str | None:
    """Return the kind that the mapping of a source is of: the one key of SOURCES that it has; None without one."""
    named = [kind for kind in SOURCES if isinstance(value, dict) and kind in value]
    return named[0] if len(named) == 1 else None


class _OfAnyKind:
    """Validates a source by the model of its kind, whose errors it passes on as one error, `source`."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        whole = core_schema.no_info_plain_validator_function(_validated)
        whole["serialization"] = core_schema.simple_ser_schema("any")
        return whole

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(one.__pydantic_core_schema__) for one in SOURCES.values()]}


def _validated(value: Any) -> SourceSpec:
    if isinstance(value, SourceSpec):
        return value
    kind = kind_of(value)
    if kind is None:
        text = f"must say where the input comes from, by exactly one of {', '.join(SOURCES)}"
        raise PydanticCustomError("source_kind", text)
    try:
        return SOURCES[kind].model_validate(value)
    except ValidationError as error:
        raise PydanticCustomError("source", "{text}", {"text": str(error), "error": error}) from None


AnySource = Annotated[SourceSpec, _OfAnyKind]
"""The source of a flow, of any registered kind."""
