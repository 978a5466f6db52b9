"""Raw records with all columns of the contract, in DuckDB: what audits that compare whole rows of a
table begin with.

Refused records are ignored. Transforms are not run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from draindown.audit.keys import MOST, duck_type
from draindown.audit.keys import zone_of as duck_zone
from draindown.audit.model import Collector, Residue
from draindown.base.duck import connect
from draindown.base.formatting import count
from draindown.config.certain import condition
from draindown.config.landing import FlowSpec
from draindown.lake.table import identifier

_TABLES, _ROWS = ("raw", "withheld"), 100_000


def unfolded(flow: FlowSpec) -> str | None:
    """Return why raw records can't be folded by the audit, or None if they can."""
    odd = [
        f"{name} ({column.type})"
        for name, column in flow.columns.items()
        if duck_type(column.type) is None
    ]
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


class RecordRecount:
    """Takes raw records and withheld ones, as text, and casts them to the types of the contract.

    `names`: the columns that it reads of raw records: those of the contract. `expected`: what each
    kind of residue contradicts.
    """

    def __init__(self, flow: FlowSpec, temporary: Path, expected: Mapping[str, str]) -> None:
        self._flow, self._expected = flow, expected
        self.names = list(flow.columns)
        self._types = {name: duck_type(column.type) for name, column in flow.columns.items()}
        self._db = connect(temporary, duck_zone(flow.source.timezone))
        if unfolded(flow) is None:
            declared = ", ".join(f"{identifier(name)} {kind}" for name, kind in self._types.items())
            for name in _TABLES:
                self._db.execute(f"create table {name} ({declared}, _bad boolean, _early boolean)")
        self._excused = ""
        self._pending = defaultdict[tuple[str, tuple[str, ...]], list[pa.Table]](list)

    def add(
        self, name: str, columns: Sequence[pa.Array | pa.ChunkedArray], later: Sequence[str] = ()
    ) -> None:
        """Add records to `raw` or `withheld`, as columns in the order of `names`.

        `later`: columns that were not there when the records were read: the table has no value of
        theirs in them.
        """
        rows, key = pa.table(list(columns), names=self.names), (name, tuple(later))
        pending = self._pending[key]
        if pending and pending[0].schema != rows.schema:
            self._insert(*key)
        pending.append(rows)
        if sum(map(len, pending)) >= _ROWS:
            self._insert(*key)

    def before(self, columns: Sequence[str]) -> Collector:
        """Return what takes records that were read before these columns were there."""
        return _Early(self, columns)

    def accept(self, images: Iterable[pa.Table]) -> int:
        """Load the keys whose rows accepted commits changed, and return their number: these are not
        judged.
        """
        keys = self._flow.target.keys
        found = [rows.select(keys) for rows in images]
        if not found:
            return 0
        self._db.register("incoming", pa.concat_tables(found, promote_options="permissive"))
        self._db.execute("create or replace temp table accepted as select distinct * from incoming")
        self._db.unregister("incoming")
        self._excused = f"anti join accepted using ({self._keys})"
        ((number,),) = self._db.execute("select count(*) from accepted").fetchall()
        return int(number)

    def _insert(self, table: str, later: tuple[str, ...]) -> None:
        pending = self._pending[table, later]
        if not pending:
            return
        self._db.register("incoming", pa.concat_tables(pending).combine_chunks())
        pending.clear()
        casts, lost = [], []
        for name, kind in self._types.items():
            casts.append(f"try_cast({identifier(name)} as {kind}) as {identifier(name)}")
            lost.append(
                f"({identifier(name)} is not null and try_cast({identifier(name)} as {kind}) is null)"
            )
        early = " or ".join(f"{identifier(name)} is not null" for name in later) or "false"
        self._db.execute(
            f"insert into {table} select {', '.join(casts)}, {' or '.join(lost)}, {early} from incoming"
        )
        self._db.unregister("incoming")

    def _insert_all(self) -> None:
        for key in list(self._pending):
            self._insert(*key)
        self._db.execute("set timezone = 'UTC'")

    def uncast(self) -> int:
        """Return how many raw and withheld records have a value that DuckDB can't cast to the
        column's type.
        """
        return self._number("_bad")

    def early(self) -> int:
        """Return how many raw records have a value in a column that was not there when they were
        read.
        """
        return self._number("_early")

    def _number(self, of: str) -> int:
        both = f"select {of} from raw union all select {of} from withheld"
        found = self._db.execute(f"select count(*) from ({both}) where {of}").fetchone()
        return int(found[0]) if found else 0

    @property
    def _unjudged(self) -> str:
        """The SQL of the keys that can't be folded: of records with values that can't be cast, or
        that came early.
        """
        return " union ".join(
            f"select {self._keys} from {name} where _bad or _early" for name in _TABLES
        )

    @property
    def _keys(self) -> str:
        return ", ".join(map(identifier, self._flow.target.keys))

    @property
    def _at(self) -> str:
        """The sequence of a record as one value."""
        order = list(map(identifier, self._flow.target.sequence_by))
        return (
            order[0]
            if len(order) == 1
            else f"struct_pack({', '.join(f'{name} := {name}' for name in order)})"
        )

    @property
    def _gone(self) -> str:
        """Whether a record deletes its key."""
        said = self._flow.target.apply_as_deletes
        kinds = {name: column.stored for name, column in self._flow.columns.items()}
        return f"coalesce({condition(said, kinds) if said else 'false'}, false)"

    @property
    def _withheld(self) -> str:
        """Whether a record of `s` is withheld: the same sequence and content."""
        same = " and ".join(
            f"x.{identifier(n)} is not distinct from s.{identifier(n)}" for n in self.names
        )
        return f"exists (select 1 from withheld x where {same})"

    def _few(self, kind: str, sql: str, found: str = "") -> Iterator[Residue]:
        rows = self._db.execute(
            f"select columns(*)::varchar from ({sql}) {self._excused} order by all limit {MOST}"
        ).fetchall()
        for *key, said in rows:
            named = zip(self._flow.target.keys, key, strict=True)
            where = ", ".join(f"{name}={value}" for name, value in named)
            yield Residue(
                kind,
                where,
                self._expected[kind],
                found or str(said),
                f"beginning at {said}" if found else "",
            )
        if len(rows) == MOST:
            yield Residue(kind, "all keys", "0", count(len(rows)), f"the first {MOST} are listed")


@dataclass(frozen=True)
class _Early:
    """Takes raw records that were read before the columns `later` were there."""

    recount: RecordRecount
    later: Sequence[str]

    @property
    def names(self) -> Sequence[str]:
        """The columns that it needs."""
        return self.recount.names

    def add(self, name: str, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Add rows of `raw`."""
        self.recount.add(name, columns, self.later)

    def before(self, columns: Sequence[str]) -> Collector:
        """Return what takes records that were read before these columns were there."""
        return self.recount.before(columns)
