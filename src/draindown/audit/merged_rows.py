"""The audit of rows that are merged column by column: all raw records folded anew in DuckDB, column
by column.

The fold is written here once more, without code of the drain. Refused records are ignored.
Transforms are not run, so that of a flow with one only the rows by themselves are judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from draindown.audit.model import Residue
from draindown.audit.record_tables import RecordRecount
from draindown.config.landing import FlowSpec
from draindown.config.partial import SEQUENCES
from draindown.lake.table import Table, identifier, literal

_EXPECTED = {
    "double-key": "1 row",
    "row-lost": "a row as the fold of each column has it",
    "row-from-nowhere": "no such row",
    "delete-forgotten": "the newest delete in the tombstones",
    "delete-from-nowhere": "no such tombstone",
}


class MergedRecount(RecordRecount):
    """Compares the rows of a table with the fold of each column over raw records, and its
    tombstones with deletes.
    """

    def __init__(self, flow: FlowSpec, temporary: Path) -> None:
        super().__init__(flow, temporary, _EXPECTED)
        part = flow.target.partial
        assert part is not None, "the kind of the target is partial"
        self._partial = part.columns(self.names)

    def rows(self, table: Table) -> Iterator[Residue]:
        """Load the rows of the table, and yield a residue for each key that it has more than
        once.
        """
        self._order = [name for name in table.column_types if name in self._flow.columns]
        made = [name for name in self._flow.target.keys if name not in self._order]
        at = f"list_extract(map_extract({identifier(SEQUENCES)}, {{}}), 1)"
        written = [f"{at.format(literal(name))} as {_at(name)}" for name in self._partial]
        chosen = ", ".join([*map(identifier, (*made, *self._order)), *written])
        self._db.register("held", table.query(f"select {chosen} from t"))
        keys = self._keys
        sql = f"select {keys}, count(*)::varchar || ' rows' from held group by {keys} having count(*) > 1"
        yield from self._few("double-key", sql)

    def deletes(self, tombstones: Table, where: str) -> None:
        """Load the newest tombstone of each key. `where`: SQL that leaves out those of an
        unfinished batch, or "".
        """
        names = ", ".join(map(identifier, self._flow.target.essential))
        self._db.register("tombstones", tombstones.query(f"select {names} from t{where}"))

    def fold(self) -> Iterator[Residue]:
        """Yield a residue for each row of the fold that the table lacks, and for each of the table
        that is not in it.

        The same for deletes and tombstones. Keys of which a value can't be cast by DuckDB, or was
        read too early, are left out; see `uncast` and `early`.
        """
        self._insert_all()
        keys = self._keys
        self._db.execute(f"create or replace temp table folded as {self._folded()}")
        self._db.execute(
            f"""create or replace temp table killed as
            select {keys}, max({self._at}) as _at from raw where {self._gone} group by {keys}"""
        )
        buried = (
            f"select {keys}, max({self._at}) as _at from tombstones group by {keys}"
            if self._has_deletes
            else ""
        )
        none = f"select {keys}, _at from killed where false"
        self._db.execute(f"create or replace temp table buried as {buried or none}")
        columns = ", ".join([*map(identifier, self._order), *map(_at, self._partial)])
        for kind, left, right, chosen in (
            ("row-lost", "folded", "held", columns),
            ("row-from-nowhere", "held", "folded", columns),
            ("delete-forgotten", "killed", "buried", f"{keys}, _at"),
            ("delete-from-nowhere", "buried", "killed", f"{keys}, _at"),
        ):
            at = self._at if left in ("folded", "held") else "_at"
            sql = f"""select {keys}, {at} as _said from (
                select {chosen} from {left} except all select {chosen} from {right}) anti join ({self._unjudged})
                using ({keys})"""
            yield from self._few(kind, sql)

    @property
    def _has_deletes(self) -> bool:
        found = self._db.execute(
            "select count(*) from duckdb_views() where view_name = 'tombstones'"
        ).fetchone()
        return bool(found and found[0])

    def _folded(self) -> str:
        """Return the SQL of the fold: per key the newest record that no delete reaches, and each
        column by itself.
        """
        keys, partial = self._keys, list(map(identifier, self._partial))
        whole = [
            identifier(name)
            for name in self._order
            if name not in (*self._partial, *self._flow.target.keys)
        ]
        content = "".join(f", {name} desc nulls last" for name in whole)
        newest = [
            f"arg_max({name}, struct_pack(a := _at, v := {name})) filter ({name} is not null) as {name}"
            for name in partial
        ]
        when = [
            f"max(_at) filter ({identifier(name)} is not null) as {_at(name)}"
            for name in self._partial
        ]
        own = ", ".join([*map(identifier, self._flow.target.keys), *whole])
        return f"""
            with events as (select *, {self._at} as _at, {self._gone} as _gone from raw),
            counting as (select *, max(_at) filter (_gone) over (partition by {keys}) as _cut from events s
                where _gone or not {self._withheld}),
            alive as (select * from counting where not _gone and (_cut is null or _at > _cut)),
            newest as (select distinct on ({keys}) {own} from alive order by {keys}, _at desc{content}),
            columns as (select {", ".join([keys, *newest, *when])} from alive group by {keys})
            select * from newest join columns using ({keys})"""


def _at(name: str) -> str:
    return identifier(f"_at_{name}")
