"""The audit of a history: the rows by themselves, and all raw events folded anew in DuckDB against them.

The fold is written here once more, without code of the drain. Refused records are ignored. Transforms are not run, so
that of a flow with one only the rows by themselves are judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from draindown.audit.keys import MOST, duck_type
from draindown.audit.keys import zone_of as duck_zone
from draindown.audit.model import Residue
from draindown.base.duck import connect
from draindown.base.formatting import count
from draindown.lake.table_log import TableLog, identifier
from draindown.spec.certain import condition
from draindown.spec.landing import FlowSpec
from draindown.spec.names import END_AT, START_AT, is_own

_START, _END = identifier(START_AT), identifier(END_AT)
_TABLES, _ROWS = ("raw", "withheld"), 100_000
_EXPECTED = {
    "double-open": "at most 1 row without an end",
    "row-without-time": "an end after its start",
    "overlapping-rows": "a row that ends before the next begins",
    "row-not-joined": "rows that differ in a tracked column",
    "row-lost": "a row as the fold has it",
    "row-from-nowhere": "no such row",
}
"""What each kind of residue contradicts."""


def unfolded(flow: FlowSpec) -> str | None:
    """Return why raw records can't be folded by the audit, or None if they can."""
    odd = [f"{name} ({column.type})" for name, column in flow.columns.items() if duck_type(column.type) is None]
    types = {name: column.stored for name, column in flow.columns.items()}
    said = flow.target.apply_as_deletes
    if flow.transform:
        return f"the fold of raw records: transform {flow.transform} is not run"
    if odd:
        return f"the fold of raw records: this audit can't compare {', '.join(odd)}"
    if flow.deletes_by_null:
        return "the fold of raw records: records without a value delete their keys"
    if said is not None and condition(said, types) is None:
        return f"the fold of raw records: whether `{said}` holds is not certain outside Spark"
    return None


class HistoryRecount:
    """Compares the rows of a history with each other, and with the fold of raw events.

    `names`: the columns that it reads of raw records, as text: those of the contract.
    """

    def __init__(self, flow: FlowSpec, temporary: Path) -> None:
        part = flow.target.history
        assert part is not None, "the kind of the target is history"
        self._part, self._flow = part, flow
        self.names = list(flow.columns)
        self._types = {name: duck_type(column.type) for name, column in flow.columns.items()}
        self._db = connect(temporary, duck_zone(flow.source.timezone))
        if unfolded(flow) is None:
            declared = ", ".join(f"{identifier(name)} {kind}" for name, kind in self._types.items())
            for name in _TABLES:
                self._db.execute(f"create table {name} ({declared}, _bad boolean)")
        self._pending: dict[str, list[pa.Table]] = {name: [] for name in _TABLES}

    def add(self, name: str, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Add records to `raw` or `withheld`, as columns in the order of `names`."""
        rows, pending = pa.table(list(columns), names=self.names), self._pending[name]
        if pending and pending[0].schema != rows.schema:
            self._insert(name)
        pending.append(rows)
        if sum(map(len, pending)) >= _ROWS:
            self._insert(name)

    def _insert(self, table: str) -> None:
        pending = self._pending[table]
        if not pending:
            return
        self._db.register("incoming", pa.concat_tables(pending).combine_chunks())
        pending.clear()
        casts, lost = [], []
        for name, kind in self._types.items():
            casts.append(f"try_cast({identifier(name)} as {kind}) as {identifier(name)}")
            lost.append(f"({identifier(name)} is not null and try_cast({identifier(name)} as {kind}) is null)")
        self._db.execute(f"insert into {table} select {', '.join(casts)}, {' or '.join(lost)} from incoming")
        self._db.unregister("incoming")

    def rows(self, table: TableLog) -> Iterator[Residue]:
        """Load the rows of the table, and yield a residue for each that the other rows of its key contradict."""
        self._order = [name for name in table.column_types if name in self._flow.columns]
        chosen = ", ".join([*map(identifier, self._order), _START, _END])
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
        # NULL = NULL: these values are compared as values
        same = [f"lead({identifier(name)}) {by} is not distinct from {identifier(name)}" for name in self._tracked]
        yield from self._few(
            "row-not-joined",
            f"""select {keys}, {_START}
            from held qualify {" and ".join([f"lead({_START}) {by} = {_END}", *same])}""",
        )

    def fold(self) -> Iterator[Residue]:
        """Yield a residue for each row of the fold that the table lacks, and for each of the table that is not in it.

        Keys of which a value can't be cast by DuckDB are left out; see `uncast`.
        """
        for name in _TABLES:
            self._insert(name)
        self._db.execute("set timezone = 'UTC'")
        others = [name for name in self._order if name not in self._part.scope_keys]
        columns = ", ".join([*map(identifier, self._part.scope_keys), _START, _END, *map(identifier, others)])
        self._db.execute(f"create or replace temp table folded as {self._folded(others)}")
        bad = " union ".join(f"select {self._keys} from {name} where _bad" for name in _TABLES)
        judged = f"anti join ({bad}) using ({self._keys})"
        for kind, left, right in (("row-lost", "folded", "held"), ("row-from-nowhere", "held", "folded")):
            sql = f"""select {self._keys}, {_START} from (
                select {columns} from {left} except all select {columns} from {right}) {judged}"""
            yield from self._few(kind, sql, "none" if left == "folded" else "a row")

    def uncast(self) -> int:
        """Return how many raw and withheld records have a value that DuckDB can't cast to the column's type."""
        both = "select _bad from raw union all select _bad from withheld"
        found = self._db.execute(f"select count(*) from ({both}) where _bad").fetchone()
        return int(found[0]) if found else 0

    @property
    def _keys(self) -> str:
        return ", ".join(map(identifier, self._part.scope_keys))

    @property
    def _tracked(self) -> list[str]:
        return self._part.tracked([name for name in self.names if not is_own(name)])

    def _folded(self, others: Sequence[str]) -> str:
        """Return the SQL of the fold: per key and sequence one event, then one row per run of them."""
        keys, order = self._keys, list(map(identifier, self._part.sequence_by))
        packed = ", ".join(f"{name} := {name}" for name in order)
        at = order[0] if len(order) == 1 else f"struct_pack({packed})"
        gone = condition(self._part.apply_as_deletes, self._kinds) if self._part.apply_as_deletes else "false"
        content = [f"{identifier(name)} desc nulls last" for name in others if name not in self._part.sequence_by]
        chosen = ", ".join(["_gone desc", *content])
        new = " or ".join(f"{identifier(n)} is distinct from lag({identifier(n)}) over w" for n in self._tracked)
        withheld = " and ".join(f"x.{identifier(n)} is not distinct from s.{identifier(n)}" for n in self.names)
        last = ", ".join(f"arg_max_null({identifier(name)}, _at) as {identifier(name)}" for name in others)
        return f"""
            with events as (select *, {at} as _at, coalesce({gone}, false) as _gone from raw),
            single as (select distinct on ({keys}, _at) * from events order by {keys}, _at, {chosen}),
            left_in as (select s.* from single s where _gone or not exists (select 1 from withheld x where {withheld})),
            marked as (select *, lead(_at) over w as _next, _gone or coalesce(lag(_gone) over w, true)
                or coalesce({new or "false"}, false) as _begins
                from left_in window w as (partition by {keys} order by _at)),
            runs as (select *, count(*) filter (_begins) over (partition by {keys} order by _at) as _run from marked)
            select {keys}, min(_at) as {_START}, arg_max_null(_next, _at) as {_END}, {last}
            from runs where not _gone group by {keys}, _run"""

    @property
    def _kinds(self) -> dict[str, str]:
        return {name: column.stored for name, column in self._flow.columns.items()}

    def _few(self, kind: str, sql: str, found: str = "") -> Iterator[Residue]:
        rows = self._db.execute(f"select columns(*)::varchar from ({sql}) order by all limit {MOST}").fetchall()
        for *key, said in rows:
            named = zip(self._part.scope_keys, key, strict=True)
            where = ", ".join(f"{name}={value}" for name, value in named)
            yield Residue(kind, where, _EXPECTED[kind], found or str(said), f"beginning at {said}" if found else "")
        if len(rows) == MOST:
            yield Residue(kind, "all keys", "0", count(len(rows)), f"the first {MOST} are listed")
