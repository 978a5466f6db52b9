"""A batch and its counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import Row

from draindown.spark.contract.transforms import Transform
from draindown.spark.sources.input import GivenRecords
from draindown.spark.sources.place import Block, BlockOrigin
from draindown.spark.sources.port import Input
from draindown.spark.targets.batch import BaseBatch
from draindown.spark.targets.delta_target import Held, Writer
from draindown.spark.targets.pruning import Pruning


@dataclass(frozen=True, kw_only=True)
class Batch(BaseBatch):
    """The input, identity and hooks of one batch of a landing flow. Attributes besides those of
    `BaseBatch`:

    Attributes:
        first_seen: when its input was pinned.
        input: what it reads.
        transform: the flow's transform; None if it has none.
        verify: called before the input is read, and again when all of it is read and nothing is
            written. Raises if input changed since it was pinned.
        keep_open: called with the origin of every record that a replay refuses again, before the
            target is written.
        releases: quarantine ids of withdrawn rows that this batch may restore.
        compared: called with the candidate rows of the target (None if it is empty) and their
            file-skipping predicates.
    """

    writer: Writer
    first_seen: datetime
    input: Input = field(default_factory=GivenRecords)
    transform: Transform | None = None
    verify: Callable[[], None] = lambda: None
    keep_open: Callable[[Sequence[tuple[str, int]]], None] = lambda _: None
    releases: Sequence[str] = ()
    compared: Callable[[Held | None, Pruning], None] = lambda *_: None

    @property
    def counted(self) -> int:
        """Records that the intake counted, blank lines included; 0 if the input is no slice."""
        return sum(unit.until - unit.start for unit in self.input.units)

    def origins(self, counted: Counted) -> list[BlockOrigin]:
        """Return the origin of every block that was read."""
        return self.input.origins(counted.blocks)


@dataclass(frozen=True)
class Counted:
    """The counts of a parsed batch, from one aggregation.

    `groups`: one row per unit, block, blank flag, reason and field, with the row count `n`, the
    smallest `_id`, and the number of rows with drift marks and of rows with unknown fields.
    `pruning`: file-skipping predicates for the target. `max_sequence`: the greatest sequence of the
    accepted rows, as text. `computed`: by partition column that the keys alone decide, how it is
    computed.
    """

    groups: Sequence[Row]
    pruning: Pruning
    max_sequence: str | None
    computed: Mapping[str, str] = field(default_factory=dict)

    def rows(self, wanted: Callable[[Row], bool]) -> int:
        """Return the row count of the groups for which `wanted` returns true."""
        return sum(group["n"] for group in self.groups if wanted(group))

    @property
    def accepted(self) -> int:
        """Rows that are neither blank nor refused."""
        return self.rows(lambda group: group["reason"] is None and not group["_blank"])

    def sum(self, name: str) -> int:
        """Return the sum of the column `name` over all groups."""
        return sum(group[name] for group in self.groups)

    @property
    def reasons(self) -> dict[str, int]:
        """Refused rows by reason, with the field if the reason concerns one (`type:dep_delay`)."""
        found: Counter[str] = Counter()
        for group in self.groups:
            if group["reason"] is not None:
                found[":".join(filter(None, (group["reason"], group["field"])))] += group["n"]
        return dict(sorted(found.items()))

    @property
    def blocks(self) -> list[Block]:
        """Every block that was read."""
        lines: Counter[tuple[str, int]] = Counter()
        smallest: dict[tuple[str, int], int] = {}
        for group in self.groups:
            block = (group["_unit"], group["_block"])
            lines[block] += group["n"]
            smallest[block] = min(smallest.get(block, group["smallest"]), group["smallest"])
        return [(*block, lines[block], smallest[block]) for block in lines]
