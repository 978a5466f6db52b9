"""The `source` of a flow: one model per kind, told apart by the key that only this kind has."""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from zoneinfo import ZoneInfo

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from draindown.spec.base import Model, Problem, refuse
from draindown.spec.formats import FORMATS, Format
from draindown.spec.names import local_path
from draindown.spec.units import Duration, Size

_NAMES = {"type": "string", "enum": list(FORMATS)}


def _known_format(name: object) -> str:
    if not isinstance(name, str) or name not in FORMATS:
        *names, last = (repr(known) for known in FORMATS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})
    return name


MOST_FILES = 2000
"""The most files of one batch. Each file costs Spark a task or a part of one, however small it is."""


class SourceSpec(Model):
    """What all kinds of sources of records have in common: how records are written, and how large a batch may be."""

    kind: ClassVar[str]
    """The key of the pipeline file that names a source of this kind, and its name in every registry."""
    own_intakes: ClassVar[bool] = False
    """Whether each generation has an intake of its own. Otherwise all generations share one."""

    counts_from: ClassVar[int] = 0
    """The position of the first record of a unit that starts at 0: 1 for files, whose records people count."""
    beside_rows: ClassVar[frozenset[str]] = frozenset({"max_bytes_per_trigger"})
    """The fields that don't change what a record becomes."""

    if TYPE_CHECKING:  # each kind declares these fields, in the order in which its reference lists them
        format: str
        max_bytes_per_trigger: int | None
        max_record_bytes: int
        delimiter: str
        timezone: str

    @property
    def form(self) -> Format:
        """The properties of the format."""
        return FORMATS[self.format]

    @property
    def has_header(self) -> bool:
        """Whether a line of each unit names the cells of its records."""
        return False

    @property
    def place(self) -> str:
        """Where the input comes from, as the pipeline file has it."""
        return str(getattr(self, self.kind))

    @property
    def most_units(self) -> tuple[int | None, str]:
        """The most units of one batch (None: any number), and the setting that says so, in words, if one does."""
        return None, ""


class FilesSource(SourceSpec):
    """Files that land in a directory. Each file is read once."""

    kind = "files"
    counts_from = 1
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
    max_record_bytes: Size = Field(default=8 * 1024**2, description="A longer record is refused.", examples=["8mb"])
    header: bool = Field(default=True, description="csv: the first line of each file names its columns.")
    delimiter: str = Field(
        default=",", min_length=1, max_length=1, description="csv: the character between cells.", examples=[";"]
    )
    timezone: str = Field(
        default="UTC",
        min_length=1,
        description="Zone of timestamps that are written without one.",
        examples=["UTC", "America/New_York", "+02:00"],
    )

    @property
    def has_header(self) -> bool:
        """Whether the first line of each file names its cells."""
        return self.form.delimited and self.header

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

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if re.fullmatch(r"[+-](0\d|1[0-4]):[0-5]\d", value):
            return value
        try:
            ZoneInfo(value)
        except (OSError, ValueError, LookupError):
            raise ValueError(f"{value!r} is no time zone; write a name such as Europe/Berlin, or +02:00") from None
        return value

    @model_validator(mode="after")
    def _combination(self) -> FilesSource:
        problems: list[Problem] = []
        if self.max_bytes_per_trigger is not None and self.max_files_per_trigger is not None:
            problems.append((("max_files_per_trigger",), "excludes max_bytes_per_trigger: keep one of the two"))
        if not FORMATS[self.format].delimited:
            changed = {"header": not self.header, "delimiter": self.delimiter != ","}
            reason = f"counts for format csv only, not for {self.format}"
            problems += [((name,), reason) for name, is_set in changed.items() if is_set]
        refuse(problems)
        return self


SOURCES: MutableMapping[str, type[SourceSpec]] = {FilesSource.kind: FilesSource}
"""The model of each kind of source. What it does is in `sources.registry`, how Spark reads it in `spark.sources`."""


class _OfAnyKind:
    """Validates a source by the model of its kind. Text without a known kind is judged as a source of files."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            _validated, handler.generate_schema(FilesSource), serialization=core_schema.simple_ser_schema("any")
        )


def _validated(value: Any, as_files: Callable[[Any], SourceSpec]) -> SourceSpec:
    if isinstance(value, SourceSpec):
        return value
    kind = next((kind for kind in SOURCES if isinstance(value, dict) and kind in value), FilesSource.kind)
    return as_files(value) if kind == FilesSource.kind else SOURCES[kind].model_validate(value)


AnySource = Annotated[SourceSpec, _OfAnyKind]
"""The source of a flow, of any registered kind."""
