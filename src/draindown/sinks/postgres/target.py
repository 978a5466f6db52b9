"""The table that a sink sends to, as the catalog has it, and whether columns, keys and rights
fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draindown.base.errors import TerminalError
from draindown.sinks.port import SinkColumn
from draindown.sinks.postgres import types
from draindown.sinks.postgres.keys import UniqueIndex, indexes, merging_indexes, merging_type
from draindown.sinks.postgres.names import identifier
from draindown.sinks.postgres.types import PostgresType

if TYPE_CHECKING:
    import psycopg

_TABLE = """select c.oid, n.nspname, c.relname, c.relkind::text, has_table_privilege(c.oid, 'DELETE'),
        has_database_privilege(current_database(), 'TEMP'), has_schema_privilege(n.oid, 'CREATE'), current_user
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)"""
_COLUMNS = """select a.attname,
        case t.typnamespace when 'pg_catalog'::regnamespace then '' else t.typnamespace::regnamespace || '.' end
            || t.typname,
        a.atttypmod, format_type(a.atttypid, a.atttypmod),
        a.attnotnull and not a.atthasdef and a.attidentity = '', a.attgenerated <> '' or a.attidentity = 'a',
        format_type(a.atttypid, a.atttypmod) || coalesce((select format(' collate %%I.%%I', n.nspname, l.collname)
            from pg_collation l join pg_namespace n on n.oid = l.collnamespace
            where l.oid = a.attcollation and a.attcollation <> t.typcollation), ''),
        coalesce((select collisdeterministic from pg_collation where oid = a.attcollation), true),
        has_column_privilege(a.attrelid, a.attnum, 'SELECT'), has_column_privilege(a.attrelid, a.attnum, 'INSERT'),
        has_column_privilege(a.attrelid, a.attnum, 'UPDATE')
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = %s and a.attnum > 0 and not a.attisdropped"""
_RULES = """select rulename from pg_rewrite
    where ev_class = %s and ev_type in ('2', '3', '4') and ev_enabled in ('O', 'A') order by 1"""
# row-level BEFORE triggers, which may change a row or leave it out: bits 1 and 2 of tgtype
_TRIGGERS = """select distinct tgname from pg_trigger
    where not tgisinternal and tgenabled in ('O', 'A') and tgtype::int & 3 = 3
        and (tgrelid = %(table)s or tgrelid in (select relid from pg_partition_tree(%(table)s))) order by 1"""
_TABLES = ("r", "p")
_LONGEST = 63  # bytes of a name, as servers are built


@dataclass(frozen=True)
class TargetColumn:
    """A column of the target: its type, whether each row must give it a value, and whether none
    may.

    `declared`: type and collation, as DDL has them. `exact`: whether its collation tells all
    different texts apart.
    """

    type: PostgresType
    declared: str
    exact: bool
    required: bool
    computed: bool
    rights: Mapping[str, bool]


@dataclass(frozen=True)
class Target:
    """The table, its columns by name, its unique indexes, and what changes rows on their way.

    Attributes:
        rules: names of rules that rewrite INSERT, UPDATE or DELETE.
        triggers: names of row-level BEFORE triggers.
    """

    schema: str
    name: str
    kind: str
    user: str
    may_delete: bool
    may_stage: bool
    may_create: bool
    columns: Mapping[str, TargetColumn]
    indexes: tuple[UniqueIndex, ...]
    rules: tuple[str, ...]
    triggers: tuple[str, ...]
    place: str = field(compare=False)

    @property
    def text(self) -> str:
        """The quoted name, with its schema."""
        return f"{identifier(self.schema)}.{identifier(self.name)}"

    def check(self, columns: Sequence[SinkColumn]) -> None:
        """Compare with what is sent. Raises TerminalError `sink-unfit` or `sink-denied`."""
        problems, ddl = self._problems(columns)
        if problems:
            raise self._error(
                "sink-unfit",
                "; ".join(problems),
                ddl or ["draindown validate   # correct `columns`"],
            )
        rights = self._lacking(columns)
        if rights:
            grants = [
                f"GRANT {right} ON {self.text} TO {identifier(self.user)};" for right in rights
            ]
            raise self._error(
                "sink-denied", f"the user {self.user} lacks {', '.join(rights)}", grants
            )
        if not self.may_stage:
            grant = f"GRANT TEMPORARY ON DATABASE ... TO {identifier(self.user)};"
            raise self._error(
                "sink-denied", f"the user {self.user} may not make temporary tables", [grant]
            )

    def changed_by_trigger(self, key: str) -> TerminalError:
        """Return the error of a row that was sent and is not there under its key, or was deleted
        and is there.
        """
        found = f"key {key}: a trigger gave the row another key, or left it out: {', '.join(self.triggers)}"
        drops = [f"DROP TRIGGER {identifier(name)} ON {self.text};" for name in self.triggers]
        return self._error("sink-unfit", found, drops)

    def _problems(self, columns: Sequence[SinkColumn]) -> tuple[list[str], list[str]]:
        """Return what differs, and the DDL that would help."""
        if long := _too_long(columns):
            return long, []
        problems = [] if self.kind in _TABLES else [(f"{self.text} is no table", "")]
        for rule in self.rules:
            drop = f"DROP RULE {identifier(rule)} ON {self.text};"
            problems.append(
                (
                    f"the rule {rule} rewrites statements, and ON CONFLICT does not work with it",
                    drop,
                )
            )
        for column in columns:
            problems += self._of_column(column)
        sent = {column.name for column in columns}
        lacking = [
            name for name, found in self.columns.items() if found.required and name not in sent
        ]
        problems += [
            (f"{name}: NOT NULL without a default, and no column is sent to it", "")
            for name in lacking
        ]
        problems += self._of_keys([column.name for column in columns if column.key])
        return [problem for problem, _ in problems], [ddl for _, ddl in problems if ddl]

    def _of_column(self, column: SinkColumn) -> list[tuple[str, str]]:
        """Return what does not fit of a column, with the statement that helps, if one does."""
        name = identifier(column.name)
        if (found := self.columns.get(column.name)) is None:
            ddl = f"ALTER TABLE {self.text} ADD COLUMN {name} {types.usual(column)};"
            return [(f"no column {column.name}", ddl)]
        if found.computed:
            return [(f"{column.name}: the server computes it, so no value can be sent", "")]
        if (why := types.unfit(column, found.type)) is not None:
            return [(why, "")]
        if not column.key:
            return []
        if (why := merging_type(column, found.type)) is not None:
            return [(why, "")]
        if not found.exact:
            why = f"{column.name}: texts that differ may be equal in {found.declared}, so a key needs another collation"
            return [
                (
                    why,
                    f'ALTER TABLE {self.text} ALTER COLUMN {name} TYPE {found.type.text} COLLATE "C";',
                )
            ]
        return []

    def _of_keys(self, keys: Sequence[str]) -> list[tuple[str, str]]:
        """Return what the indexes do not do for the keys, with the statements that help."""
        if not keys:
            return [("no column is a key", "")]
        wanted = frozenset(keys)
        problems = list(merging_indexes(self.indexes, wanted))
        if not any(index.is_on(wanted) for index in self.indexes):
            listed = ", ".join(keys)
            ddl = f"CREATE UNIQUE INDEX ON {self.text} ({', '.join(map(identifier, keys))});"
            problems.append((f"no unique index on exactly ({listed})", ddl))
        return problems

    def _lacking(self, columns: Sequence[SinkColumn]) -> list[str]:
        sent = [self.columns[column.name] for column in columns]
        rights = [
            right
            for right in ("SELECT", "INSERT", "UPDATE")
            if not all(one.rights[right] for one in sent)
        ]
        return rights + ([] if self.may_delete else ["DELETE"])

    def _error(self, code: str, found: str, next: Sequence[str]) -> TerminalError:
        return TerminalError(
            code, tried=f"look at {self.place}", found=found, next=next, in_order=True
        )


def look(
    opened: psycopg.Connection[Any], table: str, place: str, columns: Sequence[SinkColumn] = ()
) -> Target:
    """Read the target's catalog. Raises TerminalError `sink-missing`, with the DDL for
    `columns`.
    """
    quoted = ".".join(identifier(part) for part in table.split("."))
    row = opened.execute(_TABLE, [quoted]).fetchone()
    if row is None:
        raise _missing(quoted, place, columns)
    oid, schema, name, kind, may_delete, may_stage, may_create, user = row
    found = {
        text: TargetColumn(
            PostgresType(base, modifier, form), declared, exact, required, computed, rights
        )
        for text, base, modifier, form, required, computed, declared, exact, *may in opened.execute(
            _COLUMNS, [oid]
        )
        for rights in [dict(zip(("SELECT", "INSERT", "UPDATE"), may, strict=True))]
    }
    rules = tuple(name for (name,) in opened.execute(_RULES, [oid]))
    triggers = tuple(name for (name,) in opened.execute(_TRIGGERS, {"table": oid}))
    unique = indexes(opened, oid)
    return Target(
        schema,
        name,
        kind,
        user,
        may_delete,
        may_stage,
        may_create,
        found,
        unique,
        rules,
        triggers,
        place,
    )


def _missing(table: str, place: str, columns: Sequence[SinkColumn]) -> TerminalError:
    keys, long = (
        ", ".join(identifier(column.name) for column in columns if column.key),
        _too_long(columns),
    )
    parts = [f"{identifier(column.name)} {types.usual(column)}" for column in columns]
    ddl = f"CREATE TABLE {table} ({', '.join([*parts, f'PRIMARY KEY ({keys})'])});"
    return TerminalError(
        "sink-missing",
        tried=f"look at {place}",
        found="; ".join([f"no table {table} that this user can see", *long]),
        next=[
            *([ddl] if keys and not long else []),
            "draindown validate   # or correct `table`, with its schema",
        ],
    )


def _too_long(columns: Sequence[SinkColumn]) -> list[str]:
    """Return what is wrong with names that the server would cut: it then has another column than
    the one it is sent.
    """
    names = [column.name for column in columns if len(column.name.encode()) > _LONGEST]
    return [
        f"{name}: Postgres has names of at most {_LONGEST} bytes; give it a shorter one in `columns`"
        for name in names
    ]
