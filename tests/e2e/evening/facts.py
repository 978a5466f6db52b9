"""What is so: tables, ledger, publication, lease and files of a pipeline, read without any code of
draindown.

Paths are those of docs/architecture.md, tables are read by `deltalake`, documents as JSON, locks by
the kernel.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.e2e.evening.orders import Orders

APPLIED = ("inserted", "updated", "deleted", "tombstoned")
FATES = ("applied", "superseded", "duplicate", "quarantined", "late")
SUMMED = ("inputs", "records", *FATES, *APPLIED)


def rows(path: Path, columns: str = "*", version: int | None = None) -> list[dict[str, Any]]:
    """Rows of a Delta table, of its newest version unless another is named; none where there is no
    table.
    """
    if not (path / "_delta_log").is_dir():
        return []
    table = DeltaTable(str(path), version=version)
    found = QueryBuilder().register("t", table).execute(f"select {columns} from t").read_all()
    return list(pa.table(found).to_pylist())


def sums(batches: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Sums of ledger rows, and how many they are."""
    batches = list(batches)
    return {"batches": len(batches)} | {name: sum(row[name] for row in batches) for name in SUMMED}


@dataclass(frozen=True)
class Facts:
    """A pipeline as it stands. `table`: live rows; `published`: the newest document of what is, {}
    before the first.

    `quarantine`: quarantined rows, `withdrawn` those that the gate took out of the table, `open_rows`
    the ids of those that nobody decided about; `parked`, `given_up`, `drained`: names of files;
    `publications`: versions published lately.
    """

    table: list[dict[str, Any]]
    ledger: list[dict[str, Any]]
    inputs: list[dict[str, Any]]
    quarantine: list[dict[str, Any]]
    withdrawn: list[dict[str, Any]]
    open_rows: set[str]
    published: dict[str, Any]
    parked: set[str]
    given_up: set[str]
    drained: set[str]
    version: int
    publications: list[int]
    raw: list[Path] = field(default_factory=list)

    def of_run(self, run_id: str) -> list[dict[str, Any]]:
        """The batches of a run."""
        return [row for row in self.ledger if row["run_id"] == run_id]

    def of_start(self, start: str) -> list[dict[str, Any]]:
        """The batches that one start of a step committed."""
        return [row for row in self.ledger if row["attempt"] == start]

    @property
    def waiting(self) -> set[str]:
        """Names of files that no batch has read and that are not parked."""
        return {path.name for path in self.raw} - self.drained - self.parked - self.given_up

    @property
    def unpublished(self) -> bool:
        """Whether a batch was committed after the published version."""
        return any(row["table_version"] > self.published.get("version", -1) for row in self.ledger)


def facts(orders: Orders) -> Facts:
    """Look at everything a pipeline keeps."""
    home, table = orders.lake / "_draindown" / orders.spec.pipeline / "f", _table(orders)
    refused = rows(orders.lake / "quarantine" / "f")
    decided = {row["quarantine_id"]: row["action"] for row in _in_order(rows(home / "resolutions"))}
    events = {Path(row["path"]).name: row["state"] for row in _in_order(rows(home / "parked"))}
    ledger = sorted(rows(orders.lake / "ledger" / "f"), key=lambda row: row["table_version"])
    cuts = {row["slice"] for row in ledger if row["kind"] == "drain"}
    publications = [
        json.loads(path.read_text()) for path in sorted((home / "published").glob("0*.json"))
    ]
    return Facts(
        table=rows(table),
        ledger=ledger,
        inputs=rows(orders.lake / "inputs" / "f"),
        quarantine=[row for row in refused if row["kind"] != "withdraw"],
        withdrawn=[row for row in refused if row["kind"] == "withdraw"],
        open_rows={
            row["quarantine_id"]
            for row in refused
            if decided.get(row["quarantine_id"]) in (None, "reopened")
        },
        published=publications[-1] if publications else {},
        parked={name for name, state in events.items() if state == "parked"},
        given_up={name for name, state in events.items() if state == "discarded"},
        drained={
            Path(row["input"]).name
            for row in rows(home / "intake", "input, slice")
            if row["slice"] in cuts
        },
        version=DeltaTable(str(table)).version() if (table / "_delta_log").is_dir() else -1,
        publications=[one["version"] for one in publications],
        raw=[_as_read(orders, path) for path in sorted(orders.landing.iterdir())],
    )


def changed_rows(
    orders: Orders, version: int, since: int | None, ledger: list[dict[str, Any]]
) -> int:
    """Rows of a version of the table that batches after version `since` changed."""
    before = [
        row["changed_at"] for row in ledger if since is not None and row["table_version"] <= since
    ]
    stamps = [row["_changed_at"] for row in rows(_table(orders), "_changed_at", version)]
    return sum(1 for stamp in stamps if not before or stamp > max(before))


def leaseholders(orders: Orders) -> list[str]:
    """Which halves of its lease are held by a process."""
    home = orders.lake / "_draindown" / orders.spec.pipeline / "f" / "lease"
    kinds: dict[str, Callable[[int, int], None]] = {"driver": fcntl.flock, "jvm": fcntl.lockf}
    return [kind for kind, lock in kinds.items() if not _is_free(home / f"{kind}.lock", lock)]


def closes(facts_: Facts) -> list[str]:
    """What does not add up in the ledger, by its own definition, and what stands in it twice."""
    wrong = []
    for row in facts_.ledger:
        if row["records"] != sum(row[fate] for fate in FATES):
            wrong.append(f"batch {row['batch']} of {row['origin']} does not add up")
        if row["applied"] != sum(row[name] for name in APPLIED):
            wrong.append(f"batch {row['batch']} of {row['origin']}: applied is not what was done")
    twice = Counter((row["generation"], row["kind"], row["batch"]) for row in facts_.ledger)
    return wrong + [f"{place} stands twice" for place, number in twice.items() if number > 1]


def _as_read(orders: Orders, path: Path) -> Path:
    """A file of the landing directory, or a copy of it from before it was changed."""
    original = orders.originals / path.name
    return original if original.exists() else path


def _table(orders: Orders) -> Path:
    return orders.lake / "tables" / "f"


def _in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: row["at"])


def _is_free(path: Path, lock: Callable[[int, int], None]) -> bool:
    if not path.exists():
        return True
    handle = os.open(path, os.O_RDONLY)
    try:
        lock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
