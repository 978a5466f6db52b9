"""Compare a Delta table's metadata at two versions: columns by identity, partitioning, constraints,
properties.

With column mapping, a column's identity is its physical name; without it, the name. Delta gives the
columns that a table has already their names as physical names when it enables column mapping.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deltalake import DeltaTable

from draindown.lake.table import Table

_MODE = "delta.columnMapping.mode"
_LARGEST_ID = "delta.columnMapping.maxColumnId"
_ID, _PHYSICAL = "delta.columnMapping.id", "delta.columnMapping.physicalName"
_MADE = "col-"
"""Beginning of the physical names that Delta gives columns which are added to a table with column
mapping.
"""
_CONSTRAINT = "delta.constraints."
_APPEND_ONLY = "delta.appendOnly"
_NO_MEANING = (
    _ID,
    _PHYSICAL,
    "delta.columnMapping.nested.ids",
    "delta.typeChanges",
    "delta.invariants",
)
"""Keys of a column's metadata with Delta's prefix that do not change its values; changes of type
are compared.
"""
_OWN = (
    "draindown.",
    "delta.columnMapping.",
    "delta.dataSkippingStatsColumns",
    "delta.enableChangeDataFeed",
)
_OWN_TOO = (
    "delta.logRetentionDuration",
    "delta.deletedFileRetentionDuration",
    "delta.enableExpiredLogCleanup",
)


@dataclass(frozen=True)
class Alteration:
    """One difference of a table's metadata.

    `column`: the column's name; empty for the table. `undo`: what takes it back, without `ALTER
    TABLE ...`; empty if no such statement does. `harmless`: rows are written and read as before.
    `restricts`: Delta refuses some writes.
    """

    column: str
    found: str
    undo: str = ""
    harmless: bool = False
    restricts: bool = False

    @property
    def is_append_only(self) -> bool:
        """Whether the table takes no updates and deletes any more."""
        return self.restricts and _APPEND_ONLY in self.undo


@dataclass(frozen=True)
class Shape:
    """The metadata of a table at one version. `fields` are those of Delta's JSON."""

    fields: list[dict[str, Any]]
    id: str = ""
    partitions: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, log: Table) -> Shape:
        """Return the metadata of an existing table."""
        return cls(log.fields, log.id, tuple(log.partition_columns), log.properties)

    @classmethod
    def at(cls, path: str, version: int) -> Shape:
        """Return the metadata of a table at an earlier version, whatever features it required then.

        Raises deltalake's DeltaError if the log no longer has the version.
        """
        table = DeltaTable(path, version=version)
        metadata = table.metadata()
        fields = json.loads(table.schema().to_json())["fields"]
        partitions = tuple(metadata.partition_columns)
        return cls(fields, str(metadata.id), partitions, dict(metadata.configuration))

    @property
    def is_mapped(self) -> bool:
        """Whether columns have physical names."""
        return self.properties.get(_MODE, "none") != "none"


@dataclass(frozen=True)
class _Node:
    """A column, or a field within one. `path` has names, dotted."""

    path: str
    name: str
    kind: str
    nullable: bool
    metadata: Mapping[str, Any]


def alterations(before: Shape, now: Shape) -> list[Alteration]:
    """Return the differences between two versions of a table."""
    if before.id != now.id:
        return [Alteration("", "the table was replaced: it has another table id")]
    mapped = now.is_mapped or not before.is_mapped
    old, new = _nodes(before, mapped=mapped), _nodes(now, mapped=mapped)
    found = [*_lost(old, new), *_changed(old, new), *_added(old, new)]
    partitions = [_renamed(name, old, new) for name in before.partitions]
    if partitions != list(now.partitions):
        was, is_now = (
            ", ".join(before.partitions) or "nothing",
            ", ".join(now.partitions) or "nothing",
        )
        found.append(Alteration("", f"the table is partitioned by {is_now}, it was by {was}"))
    return [*found, *_properties(before.properties, now.properties)]


def beside(shape: Shape) -> list[Alteration]:
    """Return what another engine did to a table beside the target: draindown maps no columns and
    restricts none.
    """
    found = [
        _restriction(name, value)
        for name, value in shape.properties.items()
        if _restricts(name, value)
    ]
    for identity, node in _nodes(shape, mapped=True).items():
        physical = identity[-1]
        if physical.startswith(_MADE):
            found.append(Alteration(node.path, f"column {node.path} was added"))
        elif physical != node.name:
            undo = f"RENAME COLUMN {_quoted(node.path)} TO {_quoted(physical)}"
            found.append(
                Alteration(node.path, f"column {physical} was renamed to {node.path}", undo)
            )
        found += [
            Alteration(node.path, f"column {node.path} has {key}")
            for key in _meanings(node.metadata)
        ]
    ids = sum(_ID in node.metadata for node in _nodes(shape, mapped=True).values())
    if shape.is_mapped and not found and int(shape.properties.get(_LARGEST_ID, 0)) > ids:
        found.append(Alteration("", "a column was dropped"))
    return found


def _nodes(shape: Shape, *, mapped: bool) -> dict[tuple[str, ...], _Node]:
    """Return all columns and fields by the identities on the way to them."""
    return dict(_walk(shape.fields, (), "", mapped=mapped))


def _walk(
    fields: list[dict[str, Any]], parent: tuple[str, ...], path: str, *, mapped: bool
) -> Iterator[tuple[tuple[str, ...], _Node]]:
    for column in fields:
        metadata = column.get("metadata") or {}
        name = str(column["name"])
        identity = (*parent, str(metadata.get(_PHYSICAL, name)) if mapped else name)
        full = f"{path}.{name}" if path else name
        yield (
            identity,
            _Node(full, name, _kind(column["type"]), bool(column.get("nullable", True)), metadata),
        )
        yield from _within(column["type"], identity, full, mapped=mapped)


def _within(
    kind: Any, identity: tuple[str, ...], path: str, *, mapped: bool
) -> Iterator[tuple[tuple[str, ...], _Node]]:
    """Yield the fields within a type."""
    if not isinstance(kind, dict):
        return
    if kind["type"] == "struct":
        yield from _walk(kind["fields"], identity, path, mapped=mapped)
        return
    for part, of_part, contains_null in _PARTS.get(kind["type"], ()):
        inner, full = kind[of_part], f"{path}.{part}"
        nullable = bool(kind.get(contains_null, True)) if contains_null else False
        yield (*identity, part), _Node(full, part, _kind(inner), nullable, {})
        yield from _within(inner, (*identity, part), full, mapped=mapped)


_PARTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "array": (("element", "elementType", "containsNull"),),
    "map": (("key", "keyType", ""), ("value", "valueType", "valueContainsNull")),
}


def _kind(kind: Any) -> str:
    return str(kind["type"]) if isinstance(kind, dict) else str(kind)


_Nodes = Mapping[tuple[str, ...], _Node]


def _lost(old: _Nodes, new: _Nodes) -> Iterator[Alteration]:
    """Yield the columns that are gone. Fields of a column that is gone go without saying."""
    names = {node.path for node in new.values()}
    for identity, node in old.items():
        if identity in new or (len(identity) > 1 and identity[:-1] not in new):
            continue
        again = node.path in names
        yield Alteration(node.path, f"column {node.path} was dropped" + " and added again" * again)


def _changed(old: _Nodes, new: _Nodes) -> Iterator[Alteration]:
    names = {node.path for node in new.values()}
    for identity, was in old.items():
        node = new.get(identity)
        if node is None:
            continue
        if node.name != was.name:
            undo = f"RENAME COLUMN {_quoted(node.path)} TO {_quoted(was.name)}"
            renamed = f"column {was.path} was renamed to {node.path}"
            yield Alteration(was.path, renamed, "" if was.path in names else undo)
        if node.kind != was.kind:
            yield Alteration(was.path, f"column {was.path} is {node.kind}, it was {was.kind}")
        if was.nullable and not node.nullable:
            undo = f"ALTER COLUMN {_quoted(node.path)} DROP NOT NULL"
            yield Alteration(was.path, f"column {was.path} is NOT NULL now", undo)
        yield from _described_otherwise(was, node)


def _described_otherwise(was: _Node, node: _Node) -> Iterator[Alteration]:
    """Yield what the column's metadata has otherwise: what computes or compares values, then
    comments and defaults.
    """
    before, after = _meanings(was.metadata), _meanings(node.metadata)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield Alteration(
                was.path, f"column {was.path} has {key} {after.get(key)}, it had {before.get(key)}"
            )
    both = {**was.metadata, **node.metadata}
    for key in sorted(set(both) - set(_meanings(both)) - {_ID, _PHYSICAL}):
        if was.metadata.get(key) != node.metadata.get(key):
            yield Alteration(was.path, f"column {was.path}: {key} changed", harmless=True)


def _meanings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a column's metadata that change its values: generated, identity,
    CHAR(n), collations.
    """
    return {
        key: value
        for key, value in metadata.items()
        if key.startswith(("delta.", "__")) and key not in _NO_MEANING
    }


def _added(old: _Nodes, new: _Nodes) -> Iterator[Alteration]:
    for identity, node in new.items():
        if identity in old or (len(identity) > 1 and identity[:-1] not in old):
            continue
        if len(identity) > 1:
            yield Alteration(
                node.path,
                f"column {node.path} was added within a column",
                f"DROP COLUMN {node.path}",
            )
        elif not node.nullable:
            yield Alteration(
                node.path,
                f"column {node.path} was added, NOT NULL",
                f"DROP COLUMN {_quoted(node.path)}",
            )
        else:
            yield Alteration(node.path, f"column {node.path} was added", harmless=True)


def _renamed(name: str, old: _Nodes, new: _Nodes) -> str:
    """Return the name that a column has now."""
    for identity, node in old.items():
        if node.path == name and identity in new:
            return new[identity].path
    return name


def _properties(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Alteration]:
    for name in sorted(before.keys() | now.keys()):
        value = now.get(name)
        if before.get(name) == value or name.startswith(_OWN) or name in _OWN_TOO:
            continue
        if value is not None and _restricts(name, value):
            yield replace(_restriction(name, value), harmless=True)
        else:
            yield Alteration(
                "", f"property {name} is {value}, it was {before.get(name)}", harmless=True
            )


def is_append_only(properties: Mapping[str, str]) -> bool:
    """Return whether a table takes no updates and deletes."""
    return properties.get(_APPEND_ONLY, "").lower() == "true"


def _restricts(name: str, value: str) -> bool:
    return name.startswith(_CONSTRAINT) or is_append_only({name: value})


def _restriction(name: str, value: str) -> Alteration:
    if name == _APPEND_ONLY:
        return Alteration(
            "",
            "the table is append-only",
            f"UNSET TBLPROPERTIES ('{_APPEND_ONLY}')",
            restricts=True,
        )
    constraint = name.removeprefix(_CONSTRAINT)
    undo = f"DROP CONSTRAINT {_quoted(constraint)}"
    return Alteration("", f"constraint {constraint} requires {value}", undo, restricts=True)


def _quoted(path: str) -> str:
    return ".".join(f"`{part}`" for part in path.split("."))
