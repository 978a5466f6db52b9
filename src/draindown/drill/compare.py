"""Compare the lake of a drill with a control lake, which drained the same input without a fault.

The tables are read with `deltalake` and compared as text in DuckDB. Commits are counted in the
files of the Delta log. No code of the drain is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import pyarrow as pa

from draindown.base.duck import connected
from draindown.base.formatting import count
from draindown.config.landing import FlowSpec
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, identifier

_STAMPS = ("_changed_at", "_arrived_at")
_REFUSED = (
    "quarantine_id",
    "origin",
    "reason",
    "field",
    "detail",
    "raw",
    "raw_bytes",
    "raw_length",
)
_RAW = ("part", "input", "log", "position", "from", "until", "key", "value", "headers", "timestamp")
_INPUT = ("batch", "slice", "inputs", "bytes", "records")
_COUNTS = (
    "quarantined",
    "late",
    "superseded",
    "duplicate",
    "inserted",
    "updated",
    "deleted",
    "tombstoned",
    "hidden",
    "applied",
)
_ROWS = ":rows"  # suffix of the transaction app id of the target's batches
Commit = tuple[str, int]
"""A Delta transaction (`txn` action): application id and version."""


class Control:
    """The lake of a drain without a fault, to compare others with."""

    def __init__(self, layout: FlowHome, flow: FlowSpec) -> None:
        self.layout, self._flow = layout, flow

    @cached_property
    def states(self) -> frozenset[str]:
        """Fingerprints of the table's versions. Readers may see only these: each is the state after
        a whole batch.
        """
        return frozenset(_states(self.layout.tables.target))

    @cached_property
    def commits(self) -> Counter[Commit]:
        """How many commits of each batch the table's log contains."""
        return commits(self.layout.tables.target)

    def differences(self, other: FlowHome, *, reset: bool = False) -> list[str]:
        """Return a sentence for each difference between this lake and another; empty if they are
        equal.

        `reset`: the other lake read its input again in a new generation, so fates and transaction
        ids may differ.
        """
        found = [*self._tables(other, reset), *self._ledger(other, reset)]
        torn = sum(state not in self.states for state in _states(other.tables.target))
        found += [f"table: {torn} of its versions are no state after a whole batch"] if torn else []
        made = commits(other.tables.target)
        found += [
            f"log: batch {number} of {app} is committed {n} times"
            for (app, number), n in made.items()
            if n > 1
        ]
        if not reset and set(made) != set(self.commits):
            found.append(
                f"log: {count(len(made), 'committed batch', 'committed batches')}, {len(self.commits)} in the control"
            )
        return found

    def _tables(self, other: FlowHome, reset: bool) -> Iterator[str]:
        goal, mine = self._flow.target, self.layout
        remembered = [
            *goal.keys,
            *goal.sequence_by,
            *(() if reset else ("_generation", "_batch", "_kind")),
        ]
        yield from _differing("table", _all(mine.tables.target), _all(other.tables.target))
        yield from _differing(
            "tombstones",
            _all(mine.tables.tombstones),
            _all(other.tables.tombstones),
            remembered,
        )
        hidden = [*remembered, "_delete"]  # of a reset other copies of the same events may be there
        yield from (
            _differing(
                "hidden events",
                _all(mine.tables.hidden),
                _all(other.tables.hidden),
                hidden,
            )
            if not reset
            else ()
        )
        yield from _differing("raw records", _all(mine.tables.raw), _all(other.tables.raw), _RAW)
        yield from _differing(
            "quarantine",
            _all(mine.tables.quarantine),
            _all(other.tables.quarantine),
            _REFUSED,
        )

    def _ledger(self, other: FlowHome, reset: bool) -> Iterator[str]:
        read = [name for name in _INPUT if name != "bytes" or not self._flow.source.bytes_estimated]
        names = read if reset else ["generation", "kind", *read, *_COUNTS, "reasons"]
        newest = "select * from t where generation = (select max(generation) from t)"
        recorded = other.tables.ledger
        theirs = recorded.query(newest) if reset and recorded.exists else _all(recorded)
        yield from _differing("ledger", _all(self.layout.tables.ledger), theirs, names)


def commits(table: Table) -> Counter[Commit]:
    """Return how many commits of each batch the log of a table contains."""
    found: Counter[Commit] = Counter()
    for number in table.log.commits():
        for action in table.log.actions(number):
            done = action.get("txn")
            if done and str(done["appId"]).endswith(_ROWS):
                found[done["appId"], int(done["version"])] += 1
    return found


def _all(table: Table) -> pa.Table | None:
    return table.query("select * from t") if table.exists else None


def _differing(
    what: str, mine: pa.Table | None, theirs: pa.Table | None, names: Sequence[str] | None = None
) -> Iterator[str]:
    """Yield a sentence if two tables differ as multisets of rows. A missing table counts as
    empty.
    """
    there = mine if mine is not None else theirs
    if there is None:
        return
    mine, theirs = (there.slice(0, 0) if one is None else one for one in (mine, theirs))
    columns = sorted(set(names or mine.column_names).difference(_STAMPS))
    if names is None and set(theirs.column_names) != set(mine.column_names):
        yield f"{what}: columns {', '.join(sorted(set(theirs.column_names) ^ set(mine.column_names)))} are not in both"
        return
    lacks, more = _except(mine, theirs, columns), _except(theirs, mine, columns)
    if lacks or more:
        yield f"{what}: {count(lacks, 'row')} of the control missing, {more:,} there that it doesn't have"


def _except(left: pa.Table, right: pa.Table, names: Iterable[str]) -> int:
    columns = ", ".join(f"{identifier(name)}::varchar" for name in names)
    with connected() as db:
        db.register("a", left)
        db.register("b", right)
        sql = f"select count(*) from (select {columns} from a except all select {columns} from b)"
        return int((db.execute(sql).fetchone() or (0,))[0])


def _states(table: Table) -> Iterator[str]:
    """Yield a fingerprint of each version's rows that does not depend on their order."""
    for version in range(table.version + 1) if table.exists else ():
        rows = table.at(version).query("select * from t")
        yield _fingerprint(rows)


def _fingerprint(rows: pa.Table) -> str:
    columns = ", ".join(
        f"{identifier(name)}::varchar"
        for name in sorted(set(rows.column_names).difference(_STAMPS))
    )
    with connected() as db:
        db.register("rows", rows)
        sql = f"select count(*), sum(hash(row({columns})))::varchar from rows"
        return str(db.execute(sql).fetchone())
