"""The table that a sink sends to, as the catalog has it, and whether columns, keys and rights fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draindown.base.errors import TerminalError
from draindown.sinks.port import SinkColumn
from draindown.sinks.postgres import types
from draindown.sinks.postgres.types import PostgresType

if TYPE_CHECKING:
    import psycopg

_TABLE = """select c.oid, n.nspname, c.relname, c.relkind::text, has_table_privilege(c.oid, 'DELETE'),
        has_database_privilege(current_database(), 'TEMP'), has_schema_privilege(n.oid, 'CREATE'), current_user
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)"""
_COLUMNS = """select a.attnum, a.attname, t.typname, a.atttypmod, format_type(a.atttypid, a.atttypmod),
        a.attnotnull and not a.atthasdef and a.attidentity = '', a.attgenerated <> '' or a.attidentity = 'a',
        format_type(a.atttypid, a.atttypmod) || coalesce((select format(' collate %%I.%%I', n.nspname, l.collname)
            from pg_collation l join pg_namespace n on n.oid = l.collnamespace
            where l.oid = a.attcollation and a.attcollation <> t.typcollation), ''),
        has_column_privilege(a.attrelid, a.attnum, 'SELECT'), has_column_privilege(a.attrelid, a.attnum, 'INSERT'),
        has_column_privilege(a.attrelid, a.attnum, 'UPDATE')
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = %s and a.attnum > 0 and not a.attisdropped"""
_UNIQUE = """select string_to_array(indkey::text, ' ')::int[], indnkeyatts from pg_index
    where indrelid = %s and indisunique and indisvalid and indimmediate and indpred is null and indexprs is null"""
_TABLES = ("r", "p")
_LONGEST = 63  # bytes of a name, as servers are built


@dataclass(frozen=True)
class TargetColumn:
    """A column of the target: its type, whether each row must give it a value, and whether none may.

    `declared`: type and collation, as DDL has them.
    """

    number: int
    type: PostgresType
    declared: str
    required: bool
    computed: bool
    rights: Mapping[str, bool]


@dataclass(frozen=True)
class Target:
    """The table, its columns by name, and the columns of its unique indexes."""

    schema: str
    name: str
    kind: str
    user: str
    may_delete: bool
    may_stage: bool
    may_create: bool
    columns: Mapping[str, TargetColumn]
    unique: frozenset[frozenset[int]]
    place: str = field(compare=False)

    @property
    def text(self) -> str:
        """The quoted name, with its schema."""
        return f"{identifier(self.schema)}.{identifier(self.name)}"

    def check(self, columns: Sequence[SinkColumn]) -> None:
        """Compare with what is sent. Raises TerminalError `sink-unfit` or `sink-denied`."""
        problems, ddl = self._problems(columns)
        if problems:
            raise self._error("sink-unfit", "; ".join(problems), ddl or ["draindown validate   # correct `columns`"])
        rights = self._lacking(columns)
        if rights:
            grants = [f"GRANT {right} ON {self.text} TO {identifier(self.user)};" for right in rights]
            raise self._error("sink-denied", f"the user {self.user} lacks {', '.join(rights)}", grants)
        if not self.may_stage:
            grant = f"GRANT TEMPORARY ON DATABASE ... TO {identifier(self.user)};"
            raise self._error("sink-denied", f"the user {self.user} may not make temporary tables", [grant])

    def _problems(self, columns: Sequence[SinkColumn]) -> tuple[list[str], list[str]]:
        """Return what differs, and the DDL that would help."""
        if long := _too_long(columns):
            return long, []
        problems, ddl, sent = [], [], {column.name for column in columns}
        if self.kind not in _TABLES:
            problems.append(f"{self.text} is no table")
        for column in columns:
            if (found := self.columns.get(column.name)) is None:
                problems.append(f"no column {column.name}")
                ddl.append(f"ALTER TABLE {self.text} ADD COLUMN {identifier(column.name)} {types.usual(column)};")
            elif found.computed:
                problems.append(f"{column.name}: the server computes it, so no value can be sent")
            elif (why := types.unfit(column, found.type)) is not None:
                problems.append(why)
            elif column.key and column.type == "string" and found.type.name == "uuid":
                problems.append(f"{column.name}: texts that differ may be one uuid, so a key needs a text column")
        lacking = [name for name, found in self.columns.items() if found.required and name not in sent]
        problems += [f"{name}: NOT NULL without a default, and no column is sent to it" for name in lacking]
        keys = [column.name for column in columns if column.key]
        numbers = {self.columns[name].number for name in keys if name in self.columns}
        if not keys:
            problems.append("no column is a key")
        elif len(numbers) < len(keys) or frozenset(numbers) not in self.unique:
            problems.append(f"no unique index on exactly ({', '.join(keys)})")
            ddl.append(f"CREATE UNIQUE INDEX ON {self.text} ({', '.join(map(identifier, keys))});")
        return problems, ddl

    def _lacking(self, columns: Sequence[SinkColumn]) -> list[str]:
        sent = [self.columns[column.name] for column in columns]
        rights = [right for right in ("SELECT", "INSERT", "UPDATE") if not all(one.rights[right] for one in sent)]
        return rights + ([] if self.may_delete else ["DELETE"])

    def _error(self, code: str, found: str, next: Sequence[str]) -> TerminalError:
        return TerminalError(code, tried=f"look at {self.place}", found=found, next=next, in_order=True)


def look(opened: psycopg.Connection[Any], table: str, place: str, columns: Sequence[SinkColumn] = ()) -> Target:
    """Read the target's catalog. Raises TerminalError `sink-missing`, with the DDL for `columns`."""
    quoted = ".".join(identifier(part) for part in table.split("."))
    row = opened.execute(_TABLE, [quoted]).fetchone()
    if row is None:
        raise _missing(quoted, place, columns)
    oid, schema, name, kind, may_delete, may_stage, may_create, user = row
    found = {
        text: TargetColumn(number, PostgresType(base, modifier, form), declared, required, computed, rights)
        for number, text, base, modifier, form, required, computed, declared, *may in opened.execute(_COLUMNS, [oid])
        for rights in [dict(zip(("SELECT", "INSERT", "UPDATE"), may, strict=True))]
    }
    unique = frozenset(frozenset(numbers[:count]) for numbers, count in opened.execute(_UNIQUE, [oid]))
    return Target(schema, name, kind, user, may_delete, may_stage, may_create, found, unique, place)


def identifier(name: str) -> str:
    """Return a name as a quoted identifier of Postgres."""
    return '"' + name.replace('"', '""') + '"'


def _missing(table: str, place: str, columns: Sequence[SinkColumn]) -> TerminalError:
    keys, long = ", ".join(identifier(column.name) for column in columns if column.key), _too_long(columns)
    parts = [f"{identifier(column.name)} {types.usual(column)}" for column in columns]
    ddl = f"CREATE TABLE {table} ({', '.join([*parts, f'PRIMARY KEY ({keys})'])});"
    return TerminalError(
        "sink-missing",
        tried=f"look at {place}",
        found="; ".join([f"no table {table} that this user can see", *long]),
        next=[*([ddl] if keys and not long else []), "draindown validate   # or correct `table`, with its schema"],
    )


def _too_long(columns: Sequence[SinkColumn]) -> list[str]:
    """Return what is wrong with names that the server would cut: it then has another column than the one it is sent."""
    names = [column.name for column in columns if len(column.name.encode()) > _LONGEST]
    return [
        f"{name}: Postgres has names of at most {_LONGEST} bytes; give it a shorter one in `columns`" for name in names
    ]
