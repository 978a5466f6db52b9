"""The `source` of a flow."""

from __future__ import annotations

import re
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import (
    BeforeValidator,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

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


class FilesSource(Model):
    """Files that land in a directory. Each file is read once."""

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
    def form(self) -> Format:
        """The properties of the format."""
        return FORMATS[self.format]

    @property
    def has_header(self) -> bool:
        """Whether the first line of each file names its cells."""
        return self.form.delimited and self.header

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
