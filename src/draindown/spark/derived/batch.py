"""The input of a derive batch: versions of its source tables, pinned before they are read, and a
share of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from draindown.base.findings import Finding
from draindown.config.derived import DerivedFlow
from draindown.spark.derived.scope import WHOLE, Bucket
from draindown.spark.targets.batch import BaseBatch


@dataclass(frozen=True)
class Versions:
    """The versions of one source table that a batch reads, pinned before it reads them.

    Attributes:
        path: the table.
        start: the version that is consumed; None for a fill, which compares all rows.
        until: the last version whose changes touch keys.
        rows: rows that the commits between changed, as their log says; None if it is not known.
        bytes: the bucket's share of the bytes that the commits added.
        changes: whether rows were updated or deleted.
        read_at: the version at which rows are read, `until` unless the batch is a replay; None for
            `until`.
        unit: the name of the table in the intake; empty for its path.
    """

    path: str
    start: int | None
    until: int
    rows: int | None = None
    bytes: int = 0
    changes: bool = True
    read_at: int | None = None
    unit: str = ""

    @property
    def at(self) -> int:
        """The version at which rows are read."""
        return self.until if self.read_at is None else self.read_at

    @property
    def is_only_read(self) -> bool:
        """Whether nothing changed, as where a table was only compacted."""
        return self.start is not None and (self.rows == 0 or self.start == self.until)

    @property
    def pinned(self) -> tuple[int, int]:
        """The versions (start, until], as the intake pins them: a fill begins before the first
        one.
        """
        return -1 if self.start is None else self.start, self.until


@dataclass(frozen=True)
class TableSlice:
    """What one batch reads.

    Attributes:
        number: the slice's number in its intake.
        tables: the versions of each source, in the order of the flow.
        bucket: the share of the keys that the batch recomputes.
        decided: numbers of decisions about late rows: those up to the first counted in earlier
            batches, those up to the second count in this one.
    """

    number: int
    tables: Sequence[Versions]
    bucket: Bucket = WHOLE
    decided: tuple[int, int] = (0, 0)

    @property
    def is_fill(self) -> bool:
        """Whether all rows are compared."""
        return any(one.start is None for one in self.tables)

    @property
    def rows(self) -> int:
        """Rows of all sources that changed."""
        return sum(one.rows or 0 for one in self.tables)


@dataclass(frozen=True, kw_only=True)
class DeriveBatch(BaseBatch):
    """The input, identity and hooks of one batch of a derived flow.

    `verify`: called before the sources are read. Raises if one is another table than the pinned
    one. `places`: file, line and column of the flow's expressions, by their path in it. `note`:
    takes what a person should know.
    """

    flow: DerivedFlow
    slice: TableSlice
    note: Callable[[Finding], None] = lambda _: None
    verify: Callable[[], None] = lambda: None
    places: Mapping[str, str] = field(default_factory=dict)
