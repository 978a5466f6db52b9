"""What the other pipeline files of a project say about one pipeline. It travels with the request of
a step.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Reader(BaseModel):
    """A flow that reads a table. `columns`: those of the table by which it finds the rows that it
    needs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pipeline: str
    flow: str
    table: str
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.flow}"


class Writer(BaseModel):
    """The flow of another pipeline that writes a table. `keys`: those of the table, by which no two
    rows are the same; empty for one that is appended to.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pipeline: str
    flow: str
    keys: tuple[str, ...] = ()


class Neighbours(BaseModel):
    """The pipelines beside one.

    Attributes:
        writers: who writes each table of another pipeline that this one reads, by table.
        readers: the flows of other pipelines that read tables of this one.
        unreadable: pipelines whose files can't be loaded. Nobody knows what they read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    writers: dict[str, Writer] = Field(default_factory=dict)
    readers: tuple[Reader, ...] = ()
    unreadable: tuple[str, ...] = ()
