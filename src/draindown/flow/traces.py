"""What a start of a drain left in the lake although it left no report, as on a full disk."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
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
            there is none.
        own: whether it planned that batch, or pinned input: files of these are younger than the
            start.
        spoke: whether Spark, or the driver, wrote to its log.
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
        batches = sum(row.attempt == start for row in ledger_table.of_run(layout, run_id))
    except UNREADABLE:
        batches = 0
    in_flight, written = None, list[datetime]()
    with suppress(DraindownError, *UNREADABLE):
        generation = generations.generation(layout)
        checkpoint, intake = (
            Checkpoint(layout.checkpoint(generation)),
            layout.tables.intake(generation),
        )
        in_flight = checkpoint.in_flight
        if in_flight is not None and (planned := checkpoint.planned_at(in_flight)) is not None:
            written.append(planned)
        if intake.exists and (pinned := intake.log.commit(intake.version)) is not None:
            written.append(pinned.modified)
    own = began is not None and any(moment >= began for moment in written)
    return Traces(batches, in_flight, own, _spoke(log))


def _spoke(log: Path) -> bool:
    """Return whether the log has a line besides the headings by which the task names its
    command.
    """
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return any(line.strip() and not line.startswith(_HEADING) for line in lines)
    except OSError:
        return False
