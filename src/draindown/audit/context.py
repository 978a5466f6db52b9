"""The context of one audit: the rows loaded from the flow's tables, and the residues found so
far.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from draindown.audit.model import Residue
from draindown.config.landing import FlowSpec
from draindown.gate.acceptance import Acceptance
from draindown.lake.commits import Commit
from draindown.lake.home import FlowHome
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow, Place, from_commit

Progress = Callable[[int, int, str], None]
"""Called before each raw file with the number of files read, the total, and the name of the
file.
"""


@dataclass
class AuditContext:
    """The rows loaded from the flow's tables, and the residues found so far.

    `batches`: ledger rows, without those in `lost`; `inputs`: what each batch read, by unit;
    `lost`: batches of older generations whose rows the table no longer holds; `hides_restore`: the
    table's log was cleaned of commits between generations, one of which may be a RESTORE that took
    batches back; `files`: intake rows; `refused`: quarantine rows without those that the gate
    withdrew; `withdrawn`: the latter; `released`: quarantine id to the run that released the row
    ("" for a row that was read again); `unlooked`: what could not be checked, and why; `seen`: how
    many of each thing were checked; `unfinished`: generation and number of a batch that crashed
    before its commit; `accepted_before`: ids of quarantined rows that an earlier generation accepted;
    `refused_since`, `inputs_since`: the oldest generation whose quarantined rows, and whose inputs, are
    there; `without`: by generation, the files that it did not read again; `logs`: how many logs of
    a unit's name were read by any generation, each of which has positions of its own; `judged`: the
    columns in which each accepted record has a value of their type, or none; `accepted`: the
    acceptances of foreign commits whose change the table has, with the images of their rows.
    """

    flow: FlowSpec
    layout: FlowHome
    root: Path
    progress: Progress
    batches: list[BatchRow] = field(default_factory=list)
    inputs: dict[Place, list[Input]] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    withdrawn: list[dict[str, Any]] = field(default_factory=list)
    released: dict[str, str] = field(default_factory=dict)
    residues: list[Residue] = field(default_factory=list)
    unlooked: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    unfinished: tuple[int, int] | None = None
    lost: list[BatchRow] = field(default_factory=list)
    hides_restore: bool = False
    inputs_since: int = 0
    accepted_before: set[str] = field(default_factory=set)
    refused_since: int = 0
    without: dict[int, frozenset[str]] = field(default_factory=dict)
    logs: dict[str, int] = field(default_factory=dict)
    judged: list[str] = field(default_factory=list)
    accepted: Sequence[tuple[Acceptance, pa.Table]] = ()

    def expect_once(self, kind: str, where: str, unit: str, found: int, detail: str = "") -> None:
        """Add a residue if something stands more often at a position of a unit than the unit had
        logs.
        """
        self.expect(kind, where, self.logs.get(unit, 1), max(found, self.logs.get(unit, 1)), detail)

    def expect(
        self, kind: str, where: str, expected: object, found: object, detail: str = ""
    ) -> None:
        """Add a residue if `expected` and `found` differ."""
        if expected != found:
            self.residues.append(Residue(kind, where, str(expected), str(found), detail))


def of_source(context: AuditContext) -> list[BatchRow]:
    """Batches that read the source through a checkpoint: no replays."""
    return [batch for batch in context.batches if batch.kind == "drain"]


def where_of(batch: BatchRow) -> str:
    """A batch in words, for `Residue.where`."""
    return f"generation {batch.generation}, {batch.kind} batch {batch.batch}"


def differences(true: BatchRow, said: BatchRow) -> dict[str, tuple[object, object]]:
    """Return the columns in which a ledger row differs from its commit: name to (value in the
    commit, in the row).
    """
    # the table stores times with another precision; every count must be equal
    skipped = {"started_at", "finished_at", "seconds", "reasons"}
    pairs = {
        f.name: (getattr(true, f.name), getattr(said, f.name))
        for f in fields(BatchRow)
        if f.name not in skipped
    }
    pairs["reasons"] = (
        json.dumps(dict(sorted(true.reasons.items()))),
        json.dumps(dict(sorted(said.reasons.items()))),
    )
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def kind_of(row: Mapping[str, Any]) -> str:
    """Where a quarantined row came from: `source`, a `replay` of files or of the `quarantine`, or
    the `gate`.
    """
    kind = (row.get("kind") or "drain").partition(":")[0]
    return kind if kind in ("drain", "replay", "withdraw") else "release"


def is_commit_of(commit: Commit | None, batch: BatchRow) -> bool:
    """Whether an entry of the target's history is the commit of that batch."""
    written = from_commit(commit) if commit else None
    return written is not None and written.place == batch.place
