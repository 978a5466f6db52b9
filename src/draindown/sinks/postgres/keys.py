"""What makes two keys of the flow one row at the server: types, collations, operator classes, other
unique indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draindown.sinks.port import SinkColumn
from draindown.sinks.postgres.names import identifier
from draindown.sinks.postgres.types import PostgresType

if TYPE_CHECKING:
    import psycopg

# the arrays: key columns; those that its own collation or operator class compares; all that decide
# which rows clash
_INDEXES = """select n.nspname, c.relname, o.conname, t.nspname, r.relname,
        i.indrelid = %(table)s and i.indisunique and i.indisvalid and i.indimmediate and not i.indisexclusion
            and i.indpred is null and i.indexprs is null,
        i.indexprs is not null or i.indisexclusion,
        array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality k(attnum, n)
            join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum where k.n <= i.indnkeyatts),
        array(select a.attname::text
            from unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[])
                with ordinality k(attnum, class, coll, n)
            join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
            join pg_type y on y.oid = a.atttypid
            join pg_opclass s on s.oid = k.class
            left join pg_collation l on l.oid = k.coll
            where k.n <= i.indnkeyatts and not ((k.coll = a.attcollation
                or coalesce(l.collisdeterministic, true))
                and s.opcnamespace = 'pg_catalog'::regnamespace
                and (s.opcintype = y.oid or s.opcintype = 'text'::regtype and y.oid = 'varchar'::regtype))),
        array(select a.attname::text from pg_attribute a where a.attrelid = i.indrelid and a.attnum > 0 and (
            a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) or exists (select from pg_depend d
                where d.classid = 'pg_class'::regclass and d.objid = i.indexrelid and d.refobjid = i.indrelid
                and d.refobjsubid = a.attnum and not (a.attnum = any((i.indkey::int2[])[i.indnkeyatts:])))))
    from pg_index i
    join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
    join pg_class r on r.oid = i.indrelid join pg_namespace t on t.oid = r.relnamespace
    left join pg_constraint o on o.conindid = i.indexrelid and o.contype in ('p', 'u', 'x')
    where (i.indisunique or i.indisexclusion) and i.indislive
        and (i.indrelid = %(table)s or i.indrelid in (select relid from pg_partition_tree(%(table)s)))
    order by 1, 2"""


@dataclass(frozen=True)
class UniqueIndex:
    """An index that admits one row per value.

    Attributes:
        name: quoted, with its schema.
        drop: the statement that removes it.
        serves: whether ON CONFLICT on its columns finds it.
        computes: whether it compares expressions, or by other operators than equality.
        columns: its key columns.
        lax: those of them whose different values are equal by the index's own collation or operator
            class.
        used: every column that decides which rows clash.
    """

    name: str
    drop: str
    serves: bool
    computes: bool
    columns: frozenset[str]
    lax: frozenset[str]
    used: frozenset[str]

    def is_on(self, keys: frozenset[str]) -> bool:
        """Return whether it identifies rows by exactly these columns."""
        return self.serves and self.columns == keys and not self.lax

    def merges(self, keys: frozenset[str]) -> bool:
        """Return whether different values of `keys`, whatever the other columns are, may be one
        value to the index.
        """
        return self.used <= keys and (self.computes or self.columns < keys or bool(self.lax))


def indexes(opened: psycopg.Connection[Any], table: int) -> tuple[UniqueIndex, ...]:
    """Return the unique indexes and exclusion constraints of a table and its partitions. `table`:
    its oid.
    """
    return tuple(_index(*row) for row in opened.execute(_INDEXES, {"table": table}))


def _index(
    schema: str,
    name: str,
    constraint: str | None,
    of_schema: str,
    of: str,
    serves: bool,
    computes: bool,
    *columns: Any,
) -> UniqueIndex:
    text = f"{identifier(schema)}.{identifier(name)}"
    drop = f"DROP INDEX {text};"
    if constraint is not None:
        drop = f"ALTER TABLE {identifier(of_schema)}.{identifier(of)} DROP CONSTRAINT {identifier(constraint)};"
    return UniqueIndex(text, drop, serves, computes, *(frozenset(names) for names in columns))


def merging_type(column: SinkColumn, found: PostgresType) -> str | None:
    """Return why different values of a key column may be one value of the target's type; None if
    they can't.
    """
    if column.type != "string":
        return None
    if found.name == "uuid":
        return f"{column.name}: texts that differ may be one uuid, so a key needs a text column"
    if found.name in ("json", "jsonb"):
        return (
            f"{column.name}: texts that differ may be one JSON value, so a key needs a text column"
        )
    return None


def merging_indexes(
    found: Sequence[UniqueIndex], keys: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Yield why an index allows one row for keys that differ, with the statement that removes the
    index.
    """
    for index in found:
        if index.merges(keys):
            yield f"keys that differ may be one value to the unique index {index.name}", index.drop
