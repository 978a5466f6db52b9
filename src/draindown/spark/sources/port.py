"""The port of slice readers: how Spark reads what a slice pins. Readers are listed in `registry`,
by kind of source.

A reader knows units and bytes, not the contract: what a text or a row means is said in
`spark.contract`, by format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from draindown.base.errors import DraindownError
from draindown.config.landing import FlowSpec
from draindown.sources.port import Failure
from draindown.sources.slices import Unit
from draindown.spark.sources.place import Block, BlockOrigin, Offset


@dataclass(frozen=True)
class Read:
    """Records that one plan reads. `header`: the line that names their cells, of a delimited
    format. `shape`: of rows that `value` has as JSON, the type that they had in their file, as DDL.
    `many`: whether they are so many that a look at the first of them pays.

    `frame` has PLACE and either `value`, the text of a record, or, of a format with types of its
    own, `_row` (a struct of its columns), `_size` (bytes of its texts) and, if it has columns that
    the contract lacks, `_more`, a struct of them.
    """

    frame: DataFrame
    header: str | None = None
    shape: str | None = None
    many: bool = False

    @property
    def typed(self) -> bool:
        """Whether the records are rows with types of their own."""
        return "_row" in self.frame.columns


class SliceReader(Protocol):
    """How the units of a slice become records."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of the session while a batch reads."""

    def read(
        self, spark: SparkSession, flow: FlowSpec, units: Sequence[Unit], spool: str
    ) -> list[Read]:
        """Return the records of units, one entry per plan; an empty frame without units.

        `spool`: directory for copies that are read in place of units until the batch is done.
        """

    def name(self, unit: str) -> str:
        """Return the name of a unit from its spelling in PLACE."""

    def offsets(self, blocks: Sequence[Block]) -> list[Offset]:
        """Return the offset of every block that was read."""

    def failure(self, error: BaseException) -> Failure | None:
        """Return why reading failed, if the error says that it is the source's; else None."""


class Input(Protocol):
    """What one batch reads."""

    @property
    def number(self) -> int:
        """Number of the slice; 0 if it is none."""

    @property
    def noun(self) -> str:
        """What a unit is called, in the singular."""

    @property
    def units(self) -> Sequence[Unit]:
        """The units that it reads; empty if it is no slice."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of the session while the batch reads."""

    def read(self, spark: SparkSession, flow: FlowSpec, spool: str) -> list[Read]:
        """Return the records, one entry per plan."""

    def alone(self, unit: Unit) -> Input:
        """Return the input of one unit."""

    def name(self, unit: str) -> str:
        """As `SliceReader.name`."""

    def origins(self, blocks: Sequence[Block]) -> list[BlockOrigin]:
        """Return the origin of every block that was read."""

    def refuse_miscounted(self, blocks: Sequence[Block]) -> None:
        """Refuse units that gave other numbers of records than they must. Raises as
        `Source.refuse_miscounted`.
        """

    def failed(self, error: BaseException) -> DraindownError | None:
        """Return the error for people, if an engine's error says that the source failed; else
        None.
        """

    @property
    def by_name(self) -> bool:
        """Whether a person can leave units out one by one."""

    def leaving_out(self, units: Iterable[str]) -> str:
        """Return the command that leaves units out of the batch."""
