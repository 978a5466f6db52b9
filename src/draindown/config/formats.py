"""File formats, and what a pipeline file may ask of each. They are checked in `sources/files/`,
read in `spark/`.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """Properties of a format that other packages depend on. They ask for the property they need,
    never for the name.

    `columnar`: a file has a schema of its own, and its records no raw text; otherwise it holds
    lines of text. `delimited`: a record is cells between delimiters, and a header may name them.
    `named`: fields have names (of a delimited format by its header). `nested`: a field can hold a
    struct, an array or a map. `json_columns`: a column may be of type `json`. `whole_line`: the
    record is the single column `value`.
    """

    name: str
    columnar: bool = False
    delimited: bool = False
    named: bool = True
    nested: bool = True
    json_columns: bool = False
    whole_line: bool = False


FORMATS: MutableMapping[str, Format] = {
    one.name: one
    for one in (
        Format("json", json_columns=True),
        Format("csv", delimited=True, nested=False),
        Format("text", named=False, whole_line=True),
        Format("parquet", columnar=True),
        Format("orc", columnar=True),
    )
}
