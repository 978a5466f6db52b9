"""The faults of the campaign, one case each. Numbers stay; a case is scored by what its trials
record.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A fault: what happens, how it is brought about, and what must hold all the same."""

    id: str
    fault: str
    injected: str
    must: str

    @property
    def about(self) -> tuple[str, ...]:
        """The packages that decide whether it holds. Its results are stale once these have
        changed.
        """
        return next(packages for cases, packages in _ABOUT.items() if self.id in cases.split())


_ONCE = "each record counted once, tables equal the control"
_DERIVED = "tables equal their queries in DuckDB, or red by name"
_SINKS = "table, databases, topics and ledger agree"
_MAINTAINED = "no row changes, no file is missed, time travel works"

_DRAIN = ("flow", "lake", "ledger", "recovery", "spark/batch", "spark/runs", "spark/targets")
_DRIVERS = ("lease", "recovery", "spark/job", "spark/runs")
_ABOUT = {
    "F1 F2 F3 F4 F5 F6 F7 F9 F17 F18 F20": _DRAIN,
    "F8 F10 F14 F15 F19": _DRIVERS,
    "F11 F12 F13": ("lease", "planning", "recovery", "spark/runs"),
    "F16": ("airflow", *_DRIVERS),
    "F21": ("sources/files", *_DRAIN),
    "F22 F23 F24 F25 F33 F34 F35 F36": ("sources/kafka", "spark/sources", *_DRAIN),
    "F27": ("base", "lease", *_DRAIN),
    "F28 F29 F30": ("flow", "sources/files", "spark/runs", "spark/sources"),
    "F31": ("spark/contract", "config", *_DRAIN),
    "F32": ("gate", "spark/checks"),
    "F37 F38": ("sources/tables", "spark/derived", *_DRAIN),
    "F39 F40 F41": ("lease", "sinks", *_DRAIN),
}

CASES = {
    case.id: case
    for case in (
        Case("F1", "driver dies after the offset log, before its batch", "SIGKILL of Python and JVM", _ONCE),
        Case("F2", "driver dies inside the MERGE", "SIGKILL when its first data file appears", _ONCE),
        Case("F3", "driver dies between quarantine, tombstones and MERGE", "SIGKILL after either write", _ONCE),
        Case("F4", "driver dies after the MERGE, before the ledger", "SIGKILL", _ONCE),
        Case("F5", "driver dies before the checkpoint's commit file", "SIGKILL; commit file deleted", "a no-op"),
        Case("F6", "driver dies at any time", "SIGKILL at random times, between batches, after the intake", _ONCE),
        Case("F7", "Python worker or task dies", "SIGKILL of the worker; a task that throws", _ONCE),
        Case("F8", "out of memory", "a value larger than the heap; SIGKILL of a JVM that grew", "red; retry right"),
        Case("F9", "commit written, answer lost", "SIGKILL at the commit; exception after it", "applied once"),
        Case("F10", "told to end", "SIGTERM, once and twice", "ends after its batch or at once; no JVM stays"),
        Case("F11", "OPTIMIZE beside MERGE", "compact under a drain, drain under compact, by hand", _MAINTAINED),
        Case("F12", "driver dies inside OPTIMIZE", "SIGKILL at a data file, at the commit", _MAINTAINED),
        Case("F13", "driver dies inside VACUUM, beside a reader", "SIGKILL after its start", _MAINTAINED),
        Case("F14", "two drivers at once", "drain, compact and reset beside a drain", "the second leaves with 75"),
        Case("F15", "old driver wakes after its retry", "SIGSTOP, retry, SIGCONT; locks removed", "no commit"),
        Case("F16", "Airflow restarted", "SIGKILL of some or all of its processes, SIGTERM; then a start", _ONCE),
        Case("F17", "checkpoint deleted", "rm -r", "refused, never skipped"),
        Case("F18", "table dropped, recreated or restored", "rm -r, RESTORE", "refused, never skipped"),
        Case("F19", "two drivers make or alter a table", "two processes from one barrier", "one table, no error"),
        Case("F20", "torn, empty or missing file in checkpoint or Delta log", "truncate, rm", "red or healed"),
        Case("F21", "disk full", "a full tmpfs under the lake or Spark's scratch files", "red; then right"),
        Case("F22", "Kafka deletes what no batch has read", "DeleteRecords, between runs, once pinned", "red by range"),
        Case("F23", "topic created again", "smaller and larger than what was read", "red, never taken for the old one"),
        Case("F24", "partitions added to a topic", "admin client, between runs", _ONCE),
        Case("F25", "aborted, repeated, deleted, mixed up", "transactions, copies, NULL values, disorder", _ONCE),
        Case("F27", "clock jumps; an hour repeats", "a day and a year ahead, then back; end of summer time", _ONCE),
        Case("F28", "file still being written", "a slow writer in place; rename as control", "complete, or red"),
        Case("F29", "file changed or deleted before its batch is repeated", "rewrite or rm after a crash", "red"),
        Case("F30", "odd modification times", "1970, 8 days ago, in 30 days, all equal", "all are read"),
        Case("F31", "schema drift", "columns added, dropped, retyped, in data and in the spec", "kept or red"),
        Case("F32", "gate fails or dies; next run writes meanwhile", "bad rows, exception, SIGKILL", "not published"),
        Case("F33", "driver dies in a batch of Kafka", "SIGKILL in any gap, raw records included", _ONCE),
        Case("F34", "broker dies in a batch", "SIGKILL of the broker, later a start", "try again; then right"),
        Case("F35", "broker stands still in a batch", "SIGSTOP of the broker for seconds", "late, and right"),
        Case("F36", "records that are none, huge, without a key", "garbage, 1 MB, NULL keys in a topic", _ONCE),
        Case("F37", "driver of a derived flow dies", "SIGKILL in each gap of its batch, again and again", _DERIVED),
        Case("F38", "table under a derived flow changes as a whole", "SQL, commands; between runs, in one", _DERIVED),
        Case("F39", "driver of a flow with four sinks dies", "SIGKILL in any gap, each sink's steps included", _SINKS),
        Case("F40", "driver of a flow with sinks stands still", "SIGSTOP in each gap, another host, SIGCONT", _SINKS),
        Case("F41", "server of a sink fails in a batch", "restart, SIGSTOP, another password", "by name; then right"),
    )
}  # fmt: skip

DECIDED = frozenset(("F8", "F17", "F18", "F20", "F22", "F23", "F29", "F38"))
"""Cases in which the next run can't know what is right: input or state is gone, or was changed by
other hands.

They end red, and a person types the command that the error names: 0.5. All other cases must score
1.
"""


def least(case: str) -> float:
    """Return the score that each trial of a case must reach."""
    return 0.5 if case in DECIDED else 1.0
