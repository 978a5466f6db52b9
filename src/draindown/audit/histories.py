"""The audit of a history: the rows by themselves, and all raw events folded anew in DuckDB against
them.

The fold is written here once more, without code of the drain. Refused records are ignored.
Transforms are not run, so that of a flow with one only the rows by themselves are judged, by what
the newest batch wrote down that it tracks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from draindown.audit.model import Residue
from draindown.audit.record_tables import RecordRecount
from draindown.config.landing import FlowSpec
from draindown.config.names import END_AT, START_AT, is_own
from draindown.lake.table import Table, identifier

_START, _END = identifier(START_AT), identifier(END_AT)
_EXPECTED = {
    "double-open": "at most 1 row without an end",
    "row-without-time": "an end after its start",
    "overlapping-rows": "a row that ends before the next begins",
    "row-not-joined": "rows that differ in a tracked column",
    "row-lost": "a row as the fold has it",
    "row-from-nowhere": "no such row",
}
"""What each kind of residue contradicts."""


class HistoryRecount(RecordRecount):
    """Compares the rows of a history with each other, and with the fold of raw events.

    `told`: the columns that the newest batch says it tracked, which a transform may have made; None
    if none says so.
    """

    def __init__(self, flow: FlowSpec, temporary: Path, told: Sequence[str] | None) -> None:
        super().__init__(flow, temporary, _EXPECTED)
        part = flow.target.history
        assert part is not None, "the kind of the target is history"
        self._part, self._told = part, told

    def rows(self, table: Table) -> Iterator[Residue]:
        """Load the rows of the table, and yield a residue for each that the other rows of its key
        contradict.
        """
        names, tracked = list(table.column_types), self._told or ()
        self._order = [name for name in names if name in self._flow.columns]
        some = {*self._order, *self._part.scope_keys, *tracked}
        chosen = ", ".join([*(identifier(name) for name in names if name in some), _START, _END])
        self._db.register("held", table.query(f"select {chosen} from t"))
        keys, by = self._keys, f"over (partition by {self._keys} order by {_START})"
        yield from self._few(
            "double-open",
            f"""select {keys}, count(*)
            from held where {_END} is null group by {keys} having count(*) > 1""",
        )
        yield from self._few(
            "row-without-time",
            f"""select {keys}, {_START}
            from held where {_END} <= {_START}""",
        )
        yield from self._few(
            "overlapping-rows",
            f"""select {keys}, {_START}
            from held qualify lead({_START}) {by} < {_END} or ({_END} is null and lead({_START}) {by} is not null)
            or lead({_START}) {by} = {_START}""",
        )
        if self._told is None or not {*tracked} <= {*names}:
            return
        # NULL = NULL: these values are compared as values
        same = [
            f"lead({identifier(name)}) {by} is not distinct from {identifier(name)}"
            for name in tracked
        ]
        yield from self._few(
            "row-not-joined",
            f"""select {keys}, {_START}
            from held qualify {" and ".join([f"lead({_START}) {by} = {_END}", *same])}""",
        )

    def fold(self) -> Iterator[Residue]:
        """Yield a residue for each row of the fold that the table lacks, and for each of the table
        that is not in it.

        Keys of which a value can't be cast by DuckDB, or was read too early, are left out; see
        `uncast` and `early`.
        """
        self._insert_all()
        others = [name for name in self._order if name not in self._part.scope_keys]
        columns = ", ".join(
            [*map(identifier, self._part.scope_keys), _START, _END, *map(identifier, others)]
        )
        self._db.execute(f"create or replace temp table folded as {self._folded(others)}")
        judged = f"anti join ({self._unjudged}) using ({self._keys})"
        for kind, left, right in (
            ("row-lost", "folded", "held"),
            ("row-from-nowhere", "held", "folded"),
        ):
            sql = f"""select {self._keys}, {_START} from (
                select {columns} from {left} except all select {columns} from {right}) {judged}"""
            yield from self._few(kind, sql, "none" if left == "folded" else "a row")

    @property
    def _tracked(self) -> list[str]:
        return self._part.tracked([name for name in self.names if not is_own(name)])

    def _folded(self, others: Sequence[str]) -> str:
        """Return the SQL of the fold: per key and sequence one event, then one row per run of
        them.
        """
        keys = self._keys
        content = [
            f"{identifier(name)} desc nulls last"
            for name in others
            if name not in self._part.sequence_by
        ]
        chosen = ", ".join(["_gone desc", *content])
        new = " or ".join(
            f"{identifier(n)} is distinct from lag({identifier(n)}) over w" for n in self._tracked
        )
        last = ", ".join(
            f"arg_max_null({identifier(name)}, _at) as {identifier(name)}" for name in others
        )
        return f"""
            with events as (select *, {self._at} as _at, {self._gone} as _gone from raw),
            single as (select distinct on ({keys}, _at) * from events order by {keys}, _at, {chosen}),
            left_in as (select s.* from single s where _gone or not {self._withheld}),
            marked as (select *, lead(_at) over w as _next, _gone or coalesce(lag(_gone) over w, true)
                or coalesce({new or "false"}, false) as _begins
                from left_in window w as (partition by {keys} order by _at)),
            runs as (select *, count(*) filter (_begins) over (partition by {keys} order by _at) as _run from marked)
            select {keys}, min(_at) as {_START}, arg_max_null(_next, _at) as {_END}, {last}
            from runs where not _gone group by {keys}, _run"""
