"""What a start of a drain left in the lake although it left no report, as on a full disk."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from draindown.base.errors import DraindownError
from draindown.flow import generations
from draindown.flow.checkpoint import Checkpoint
from draindown.lake.home import FlowHome
from draindown.lake.table import UNREADABLE
from draindown.ledger import table as ledger_table
from draindown.runs.request import begun_at

_HEADING = "== "


@dataclass(frozen=True)
class Traces:
    """The traces of a start.

    Attributes:
        batches: batches of it in the ledger; 0 if the ledger can't be read.
        in_flight: the batch that Spark planned and that has no commit, whoever planned it; None if
        there is none. own: whether it planned that batch, or pinned input: files of these are
        younger than the start. spoke: whether Spark, or the driver, wrote to its log.
    """

    batches: int
    in_flight: int | None
    own: bool
    spoke: bool

    @property
    def began(self) -> bool:
        """Whether the drain itself began."""
        return bool(self.batches) or self.own


def of_start(layout: FlowHome, run_id: str, start: str, log: Path) -> Traces:
    """Return the traces of a start of a drain whose driver log is `log`. An unreadable document
    leaves none.
    """
    began = begun_at(start)
    try:
        batches = sum(row.start == start for row in ledger_table.of_run(layout, run_id))
    except UNREADABLE:
        batches = 0
    in_flight, written = None, list[Path]()
    try:
        generation = generations.generation(layout)
        home, last = layout.checkpoint(generation), layout.tables.intake(generation)
        in_flight = Checkpoint(home).in_flight
        written += [Path(home, "offsets", str(in_flight))] if in_flight is not None else []
        written += (
            [Path(last.path, "_delta_log", f"{last.version:020}.json")] if last.exists else []
        )
    except (DraindownError, *UNREADABLE):
        pass
    own = began is not None and any(_is_younger(path, began) for path in written)
    return Traces(batches, in_flight, own, _spoke(log))


def _is_younger(path: Path, began: datetime) -> bool:
    return path.exists() and datetime.fromtimestamp(path.stat().st_mtime, UTC) >= began


def _spoke(log: Path) -> bool:
    """Return whether the log has a line besides the headings by which the task names its
    command.
    """
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return any(line.strip() and not line.startswith(_HEADING) for line in lines)
    except OSError:
        return False
