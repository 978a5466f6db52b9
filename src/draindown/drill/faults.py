"""The list of faults: what each one does, what proves that it happened, and what must hold
afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.config.names import near

ALL = "all"
"""Stands for all faults that apply to the flow."""


@dataclass(frozen=True)
class Conditions:
    """What decides whether a fault applies.

    `keyed`: the flow has keys; `batches`: number of batches; `changes`: the batch under the fault
    changes rows; `raw`: the flow keeps raw records.
    """

    keyed: bool
    batches: int
    changes: bool
    raw: bool = False


@dataclass(frozen=True)
class Fault:
    """One fault.

    `does`, `proof` and `holds` are sentences. `step`: where the driver is killed, see
    `spark.job.fault_driver`. It applies only to flows with keys if `keyed`, to those that keep raw
    records if `raw`, to batches that change rows if `changes`, and from `batches` batches on.
    """

    name: str
    does: str
    proof: str
    holds: str
    step: str = ""
    keyed: bool = False
    changes: bool = False
    batches: int = 1
    raw: bool = False

    def hindrance(self, conditions: Conditions) -> str:
        """Return why the fault does not apply; empty if it does."""
        if self.keyed and not conditions.keyed:
            return "the flow has no keys, so it remembers no deletes"
        if self.raw and not conditions.raw:
            return "the flow keeps no raw records"
        if self.changes and not conditions.changes:
            return "the batch to be struck changes no row"
        if conditions.batches < self.batches:
            return f"it takes {count(self.batches, 'batch', 'batches')}, and the input makes {conditions.batches}"
        return ""


_DIED = "the driver left a mark there and ended by signal 9, and so did its JVM"
_SAME = "after a plain run everything equals the control"
FAULTS = (
    Fault(
        "kill-after-intake",
        "Kill the driver when input is taken in and none is read.",
        _DIED,
        _SAME,
        "intake",
    ),
    Fault(
        "kill-before-read",
        "Kill it when a batch is planned and nothing of it is read.",
        _DIED,
        _SAME,
        "begun",
    ),
    Fault(
        "kill-after-read",
        "Kill it when a batch is read and nothing is written.",
        _DIED,
        _SAME,
        "read",
    ),
    Fault(
        "kill-after-raw",
        "Kill it when the batch's raw records are kept.",
        _DIED,
        _SAME,
        "kept",
        raw=True,
    ),
    Fault(
        "kill-after-quarantine",
        "Kill it when the batch's quarantined rows are written.",
        _DIED,
        _SAME,
        "quarantined",
    ),
    Fault(
        "kill-after-tombstones",
        "Kill it when the batch's deletes are remembered, before the MERGE.",
        _DIED,
        _SAME,
        "remembered",
        keyed=True,
    ),
    Fault(
        "kill-while-writing",
        "Kill it when the batch's first data file appears, before any commit.",
        _DIED,
        _SAME,
        "data",
        changes=True,
    ),
    Fault(
        "kill-in-merge",
        "Kill it when the commit's file appears in the table's log.",
        _DIED,
        _SAME,
        "commit",
    ),
    Fault(
        "kill-after-merge",
        "Kill it when the table has the batch and the ledger has not.",
        _DIED,
        _SAME,
        "merged",
    ),
    Fault(
        "kill-after-ledger",
        "Kill it when only the checkpoint lacks the batch.",
        _DIED,
        _SAME,
        "recorded",
    ),
    Fault(
        "kill-between-batches",
        "Kill it when the checkpoint has the batch done, as the next begins.",
        _DIED,
        _SAME,
        "committed",
    ),
    Fault(
        "kill-at-random",
        "Kill it at random times, several in a row.",
        "each driver left a mark while it drained and ended by signal 9",
        _SAME,
        step="time",
    ),
    Fault(
        "stop",
        "Tell it to end (SIGTERM) while it reads a batch.",
        "it exits 0 after that batch, its outcome is `stopped`, and later batches are not begun",
        _SAME,
        batches=2,
    ),
    Fault(
        "two-drivers",
        "Start a second run while the first is in the middle of a batch.",
        "the second exits 75 with `lease-held`",
        "the second changed no file but its own reports, the first ends well, and everything equals the control",
    ),
    Fault(
        "zombie",
        "Freeze the driver just before its MERGE, start another run, wake the first.",
        "the kernel says that its JVM is stopped; the other run exits 75 with `lease-held`",
        "the other run changed nothing, no batch is committed twice, and everything equals the control",
    ),
    Fault(
        "delete-commit",
        "Remove what the checkpoint says of its last batch being done.",
        "the file is gone before the run, and the run writes it again",
        "the batch runs again and changes no version of the table; everything equals the control",
    ),
    Fault(
        "lose-checkpoint",
        "Take the whole checkpoint away.",
        "the next run exits 78 with `checkpoint-missing`, and changes nothing",
        "after `reset` (an append table: after the copy is put back) and a run, the tables equal the control's",
    ),
    Fault(
        "compact-beside-drain",
        "Start `compact --force` while the driver is in the middle of a batch, and again when it has ended.",
        "the first compaction exits 75 with `lease-held`, the second exits 0",
        "compaction changes no row; everything equals the control",
    ),
)


def chosen(name: str, conditions: Conditions) -> list[Fault]:
    """Return the fault of that name, or for `ALL` every fault that applies.

    Raises TerminalError `unknown-fault`, or `fault-does-not-apply` if the named fault doesn't.
    """
    if name == ALL:
        return [fault for fault in FAULTS if not fault.hindrance(conditions)]
    fault = named(name)
    hindrance = fault.hindrance(conditions)
    if hindrance:
        raise TerminalError(
            "fault-does-not-apply",
            tried=f"drill {name}",
            found=hindrance,
            next="draindown drill all PIPELINE",
        )
    return [fault]


def named(name: str) -> Fault:
    """Return the fault of that name. Raises TerminalError `unknown-fault`, which lists all
    names.
    """
    found = next((fault for fault in FAULTS if fault.name == name), None)
    if found is None:
        names = [ALL, *(fault.name for fault in FAULTS)]
        raise TerminalError(
            "unknown-fault",
            tried=f"find fault {name!r}",
            found=f"there are {', '.join(names)}{near(name, names)}",
            next="draindown drill --list",
        )
    return found
