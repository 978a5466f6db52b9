"""A batch and what was counted in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, Row

from draindown.base.progress import Reached, untold
from draindown.ledger.rows import BatchKind
from draindown.spark.contract.transforms import Transform
from draindown.spark.sources.readers import InputFile
from draindown.spark.targets.delta_target import Held, Writer
from draindown.spark.targets.pruning import Pruning
from draindown.spark.tuning import TUNING, Tuning


@dataclass(frozen=True)
class Batch:
    """What one batch is made of: files, or for a replay `lines`.

    `first_seen`: when its files were taken in; `changed_at`: stamp of the rows it changes; `was_read`: called when
    everything is read and nothing written, raises if the files are no longer what they were; `keep_open`: told the
    `_id` of every line that a replay refuses again, before anything is written; `releases`: ids of withheld rows that
    this batch may bring back; `compared`: told the rows of the target among which the batch looks for its keys, None if
    there are none, and by what they were chosen; `tuning`: how its plans run; `reached`: told begun, read, quarantined,
    remembered, merged, recorded.
    """

    writer: Writer
    run_id: str
    first_seen: datetime
    changed_at: datetime
    started_at: datetime
    start: str = ""
    cut: int = 0
    files: Sequence[InputFile] = ()
    lines: Sequence[tuple[DataFrame, str | None]] = ()
    transform: Transform | None = None
    reached: Reached = untold
    was_read: Callable[[], None] = lambda: None
    keep_open: Callable[[Sequence[int]], None] = lambda _: None
    releases: Sequence[str] = ()
    compared: Callable[[Held | None, Pruning], None] = lambda *_: None
    tuning: Tuning = TUNING

    @property
    def counted(self) -> int:
        """Lines and records that the intake counted in the files; 0 for a replay of `lines`."""
        return sum(file.counted for file in self.files)

    @property
    def kind(self) -> BatchKind:
        """Where the rows come from, as the ledger says it."""
        kind = self.writer.kind.partition(":")[0]
        return "replay" if kind == "replay" else "source" if kind == "source" else "quarantine"


@dataclass(frozen=True)
class Counted:
    """What the one pass over a parsed batch found.

    `groups`: rows of PLACE, blank, reason, field, n, smallest id, how many are CSV headers, and how many have marks and
    unknown fields.
    """

    groups: Sequence[Row]
    pruning: Pruning
    max_sequence: str | None

    def rows(self, wanted: Callable[[Row], bool]) -> int:
        """How many lines are in the groups that `wanted` picks."""
        return sum(group["n"] for group in self.groups if wanted(group))

    @property
    def accepted(self) -> int:
        """How many rows are neither blank nor refused."""
        return self.rows(lambda group: group["reason"] is None and not group["_blank"])

    def sum(self, name: str) -> int:
        """The sum of a number that every group has."""
        return sum(group[name] for group in self.groups)

    @property
    def reasons(self) -> dict[str, int]:
        """Refused rows by reason, and by field where one is to blame (`type:dep_delay`)."""
        found: Counter[str] = Counter()
        for group in self.groups:
            if group["reason"] is not None:
                found[":".join(filter(None, (group["reason"], group["field"])))] += group["n"]
        return dict(sorted(found.items()))

    @property
    def blocks(self) -> list[tuple[str, int, int, int]]:
        """(file, block, lines, smallest id) of every block read."""
        lines: Counter[tuple[str, int]] = Counter()
        smallest: dict[tuple[str, int], int] = {}
        for group in self.groups:
            block = (group["_file"], group["_block"])
            lines[block] += group["n"]
            smallest[block] = min(smallest.get(block, group["smallest"]), group["smallest"])
        return [(*block, lines[block], smallest[block]) for block in lines]
