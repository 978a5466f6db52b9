"""Schema drift: fields and columns that the contract does not name or the input lacks. Each is
reported once.

The state is a small JSON document. The batch that sees something first writes it under the flow's
lease, before it changes the table. A retry finds it there and reports the same.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from typing import Literal

from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.config.derived import DerivedFlow
from draindown.config.formats import Format
from draindown.config.landing import FlowSpec
from draindown.config.names import RESERVED_COLUMNS, caseless, is_column_name, renamed
from draindown.flow import renamed_fields
from draindown.lake.home import FlowHome
from draindown.ledger.rows import Place

MOST_REMEMBERED = 500
"""Maximum number of names remembered per flow. Beyond it, only the fact that there are more is
remembered.
"""
MOST_ADDED = 200
"""Maximum number of columns that `drift.new: add` adds to a table.

If a record has more unknown fields than this, none of them becomes a column.
"""
LONGEST = 255
"""Characters of a field's name that are examined and shown."""
SHOWN = 200
"""Characters of a field's value that are examined to infer its type."""
ADDABLE = "[A-Za-z][A-Za-z0-9_-]{0,126}"
"""Names that may become columns, as a full match. For other letters, engines disagree on which
differ only by case.
"""
NO_VALUE, EMPTY = "no value yet", "empty text"
"""Types of a field that is NULL, or NULL or an empty text, in all records so far. Its first value
is reported again.
"""
UNSEEN = ""
"""Type of a field whose values are not examined: one within a struct."""
Kind = Literal["new-field", "new-column", "many-fields", "missing-column"]
_TOLD = 10
_FOR_EVER = "9999-01-01T00:00Z"


@dataclass(frozen=True)
class Sighting:
    """The first sighting of a name: the input, the record, and how many records of the batch have
    it.

    `type`: type inferred from the values, NO_VALUE, EMPTY, or UNSEEN. `with_it`: fields of columns
    that the input lacks; the field may be one of them, renamed. `at`: when the input was first seen,
    ISO 8601.
    """

    kind: Kind
    name: str
    generation: int
    batch_kind: str
    batch: int
    run_id: str
    at: str
    input: str = ""
    position: int | None = None
    rows: int = 0
    type: str = "string"
    with_it: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, str]:
        """Key of the finding, which is reported once per key: kind and name."""
        return self.kind, self.name

    @property
    def has_value(self) -> bool:
        """Whether a record has a value of the field, as far as values are examined."""
        return self.type not in (NO_VALUE, EMPTY)

    @property
    def place(self) -> Place:
        """The batch that saw it."""
        return self.generation, self.batch_kind, self.batch

    @property
    def where(self) -> str:
        """Input and record; the input alone if no record has the field."""
        return self.input if self.position is None else f"{self.input}:{self.position}"


@dataclass(frozen=True)
class Known:
    """Names that need not be reported again: unknown fields, and columns that units lack.

    `all_records`: whether every record must list the columns it lacks, not only records with a new
    field. `null`, `empty`: unknown fields of type NO_VALUE and EMPTY, which are reported again once
    a record has a value.
    """

    fields: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    all_records: bool = False
    null: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()


def seen(layout: FlowHome) -> list[Sighting]:
    """Return everything remembered of a flow, oldest first; nothing if the document is missing or
    torn.
    """
    try:
        content = layout.drift.read()
        return [
            Sighting(**(row | {"with_it": tuple(row["with_it"])}))
            for row in (content or {})["seen"]
        ]
    except (ValueError, KeyError, TypeError):
        return []


def remember(layout: FlowHome, sightings: Iterable[Sighting]) -> None:
    """Store sightings that are new, and the first value of a field that had none, in place of the
    older sighting.

    Idempotent, so a retried batch adds nothing. Call it under the lease.
    """
    known, sightings = seen(layout), list(sightings)
    first_values = _first_values(known, sightings)
    if first_values:
        known = [first_values.get(one.identity, one) for one in known]
    have = {one.identity for one in known}
    fresh = [one for one in sightings if one.identity not in have]
    if not fresh and not first_values:
        return
    room = MOST_REMEMBERED - len(known)
    kept = fresh[: max(room, 0)]
    if len(kept) < len(fresh) and ("many-fields", "") not in have:
        kept.append(
            Sighting(**(vars(fresh[len(kept)]) | {"kind": "many-fields", "name": "", "rows": 0}))
        )
    if kept or first_values:
        layout.drift.write({"seen": [asdict(one) for one in [*known, *kept]]})


def _first_values(
    known: Iterable[Sighting], sightings: Iterable[Sighting]
) -> dict[tuple[str, str], Sighting]:
    """Return the sightings that take the place of known ones without a value."""
    by_identity = {one.identity: one for one in sightings}
    found: dict[tuple[str, str], Sighting] = {}
    for older in known:
        newer = by_identity.get(older.identity)
        if newer is None or older.has_value or newer.type in (NO_VALUE, older.type):
            continue
        # an empty text, which earlier records have, is no number and no date
        mixed = older.type == EMPTY and newer.type not in ("string", "json")
        found[older.identity] = replace(newer, type="string") if mixed else newer
    return found


def known(layout: FlowHome, flow: FlowSpec, columns: Collection[str]) -> Known:
    """Return the names that a batch need not look for again. `columns`: columns of the table that
    take fields.
    """
    new, missing = flow.drift.new_columns, flow.drift.missing_columns
    remembered = seen(layout)
    fields = {one.name for one in remembered if one.kind == "new-field"}
    if new == "fail":
        fields = set()
    elif new == "add":
        held = {name.lower() for name in (*flow.columns, *RESERVED_COLUMNS)}
        fields = {
            name for name in fields if not re.fullmatch(ADDABLE, name) or name.lower() in held
        } | set(columns)
    lacking = (
        {one.name for one in remembered if one.kind == "missing-column"}
        if missing == "allow"
        else set()
    )
    fields -= set(flow.as_recorded.columns)
    null, empty = (
        frozenset(
            one.name for one in remembered if one.type == kind and one.name in fields - set(columns)
        )
        for kind in (NO_VALUE, EMPTY)
    )
    return Known(
        frozenset(fields - null - empty), frozenset(lacking), missing == "fail", null, empty
    )


def unnamed(layout: FlowHome, flow: FlowSpec | DerivedFlow) -> list[Sighting]:
    """Return remembered fields that the contract still does not name, and columns that units
    lacked; oldest first.
    """
    if isinstance(flow, DerivedFlow):
        return []  # its columns follow from its query
    return [
        one
        for one in seen(layout)
        if not (one.kind in ("new-field", "new-column") and one.name in flow.as_recorded.columns)
    ]


def findings(
    layout: FlowHome, flow: FlowSpec | DerivedFlow, run_id: str, batches: Collection[Place] = ()
) -> list[Finding]:
    """Return the drift findings of one run: what it or `batches` saw first (the run may be a
    retry).
    """
    if isinstance(flow, DerivedFlow):
        return []  # its columns follow from its query
    mine = [one for one in seen(layout) if one.run_id == run_id or one.place in batches]
    told = [_finding(layout, flow, one, mine) for one in mine[:_TOLD]]
    if len(mine) > _TOLD:
        command = f"draindown report {layout.pipeline}/{layout.flow}"
        rest = f"{count(len(mine) - _TOLD)} more that the contract doesn't name or that files lack"
        told.append(Finding(kind="many-fields", subject=layout.flow, detail=rest, next=command))
    return told


def _finding(layout: FlowHome, flow: FlowSpec, one: Sighting, mine: Sequence[Sighting]) -> Finding:
    detail, then = _told(layout, flow, one, mine)
    return Finding(kind=one.kind, subject=one.name or layout.flow, detail=detail, next=then)


def _told(
    layout: FlowHome, flow: FlowSpec, one: Sighting, mine: Sequence[Sighting]
) -> tuple[str, str]:
    """Return what was seen and what can be done about it."""
    where = f"first in {one.where}"
    listed = f"draindown report {layout.pipeline}/{layout.flow}"
    match one.kind:
        case "new-field":
            kept = "kept in _rescued_data, " if one.type != NO_VALUE else ""
            return f"{kept}{_records(one)}; {where}", _step_for_field(
                layout, flow, one, _beside(one, mine)
            )
        case "new-column":
            then = f"name it in columns of flow {layout.flow} to give it rules and `not null`"
            return f"a string column now, {_records(one)}; {where}", then
        case "missing-column":
            held = flow.as_recorded.columns.get(one.name)
            becomes = (
                "NULL there" if held is None or held.nullable else "so its records are refused"
            )
            return f"no record of {one.input} has it, {becomes}", _ask_or_rename(flow, one, mine)
    if one.name:
        many = f"more than {MOST_ADDED} unknown fields in {count(one.rows, 'record')}, all left in _rescued_data"
        return f"{many}; {where}", listed
    return (
        f"more than {MOST_REMEMBERED} names that the contract lacks; no more are remembered; {where}",
        listed,
    )


def _beside(one: Sighting, mine: Iterable[Sighting]) -> list[str]:
    """Return the other fields that were new in the same unit."""
    same = [
        other
        for other in mine
        if (other.kind, other.input, other.place) == (one.kind, one.input, one.place)
    ]
    return [other.name for other in same if other.name != one.name]


def _renamed(
    flow: FlowSpec, one: Sighting, mine: Sequence[Sighting]
) -> renamed_fields.Renamed | None:
    kind = one.type if one.has_value else UNSEEN
    return renamed_fields.renamed(flow, one.name, kind, one.with_it, _beside(one, mine))


def _ask_or_rename(flow: FlowSpec, missing: Sighting, mine: Sequence[Sighting]) -> str:
    """Return the next step for a column that a unit lacks: the field that may be the column under a
    new name.
    """
    for one in mine:
        if one.kind == "new-field" and missing.name in one.with_it:
            found = _renamed(flow, one, mine)
            if found is not None and flow.fields[found.column] == missing.name:
                return f"it may be {shlex.quote(one.name)} now: see there"
    return "ask who sends the files"


def _records(one: Sighting) -> str:
    gone = f"; renamed? {', '.join(one.with_it[:3])} is gone there" if one.with_it else ""
    number = count(one.rows, "record")
    if one.type == NO_VALUE:
        return f"NULL in {number}{gone}"
    if one.type == EMPTY:
        return f"an empty text in {number}{gone}"
    return f"{number}, like {one.type}{gone}" if one.type else f"{number}{gone}"


def within(flow: FlowSpec, field: str) -> str | None:
    """Return the column whose structs lack a name for `field`; None for a field of the record
    itself.
    """
    holders = [
        (held, name) for name, held in flow.fields.items() if "struct<" in flow.columns[name].type
    ]
    around = [(held, name) for held, name in holders if field.startswith(f"{held}.")]
    return max(around, key=lambda one: len(one[0]))[1] if around else None


def _step_for_field(
    layout: FlowHome, flow: FlowSpec, sighting: Sighting, beside: Sequence[str]
) -> str:
    """Return the next step for a new field."""
    column = within(flow, sighting.name)
    if column is not None:
        again = f"draindown rebuild {layout.pipeline}/{layout.flow}"
        return (
            f"name it in the type of column {column} of flow {layout.flow}, then {again}; "
            f"till then _rescued_data has it"
        )
    kind = sighting.type if sighting.has_value else UNSEEN
    renamed = renamed_fields.renamed(flow, sighting.name, kind, sighting.with_it, beside)
    if renamed is None:
        return _add_it(layout, flow, sighting)
    name = renamed.column
    change = f"if it is {name} under a new name, {_change_from(layout, flow, sighting, name)}"
    if renamed.alike:
        return change
    return f"{change}; if it is another field, {_add_it(layout, flow, sighting)}"


def _change_from(layout: FlowHome, flow: FlowSpec, one: Sighting, column: str) -> str:
    """Return how to take a column from the field, and what brings back the rows that were read
    without the column.
    """
    entry = shlex.quote(renamed_fields.entry(flow, column, one.name))
    change = f"change the column to {entry} in columns of flow {layout.flow}, then "
    if not flow.columns[column].nullable or column in flow.target.essential:
        again = f"draindown quarantine release {layout.pipeline}/{layout.flow} --reason not_null:{column} --yes"
        return f"{change}take in the rows that were refused meanwhile: {again}"
    if not flow.target.kind.idempotent:
        return f"{change}run; {column} stays NULL in rows that were read meanwhile"
    return f"{change}run, and fill the rows that were read meanwhile: {_replay(layout, one)}"


def _add_it(layout: FlowHome, flow: FlowSpec, one: Sighting) -> str:
    if not one.has_value:
        return "nothing to do: its first value is reported with its type"
    twin = next((name for name in flow.columns if caseless(name) == caseless(one.name)), None)
    if twin is not None or not is_column_name(one.name):
        way = renamed(one.name, list(flow.columns)).removeprefix("; ") or "rename it at the source"
        return f"it can't be a column {f'beside {twin}' if twin else 'by this name'}: {way}"
    # untrusted input: quoted so that no shell runs it
    named = shlex.quote(f"{one.name}: {one.type}")
    add = f"add {named} to columns of flow {layout.flow}"
    if not flow.target.kind.idempotent:
        return f"{add}; rows so far keep it in _rescued_data"
    return f"{add}, run, then fill older rows: {_replay(layout, one)}"


def _replay(layout: FlowHome, one: Sighting) -> str:
    return (
        f"draindown replay {layout.pipeline}/{layout.flow} --from {one.at} --to {_FOR_EVER} --yes"
    )


def likely(texts: Iterable[str | None], form: Format) -> str:
    """Return the narrowest column type that fits all values, given as text; NO_VALUE or EMPTY if
    none has a value.

    `form`: the source's format. The text of a nested value in a columnar format does not tell its
    type: `struct<...>`.
    """
    given = [text.strip() for text in texts if text is not None]
    if not any(given):
        return EMPTY if given else NO_VALUE
    if form.nested and any(map(_is_nested, given)):
        return (
            "json"
            if form.json_columns
            else "array<...>"
            if given[0].startswith("[")
            else "struct<...>"
        )
    return next((kind for kind, fits in _LIKE if all(map(fits, given))), "string")


def _is_nested(text: str) -> bool:
    """Return whether a text is a JSON object or array, or a truncated one. Only the start of a long
    value is kept.
    """
    if not text.startswith(("{", "[")):
        return False
    try:
        return bool(json.loads(text) is not None)
    except ValueError:
        return len(text) >= SHOWN


def _is_whole(text: str, bits: int) -> bool:
    return bool(re.fullmatch(r"[+-]?[0-9]{1,19}", text)) and -(2**bits) <= int(text) < 2**bits


def _is_time(text: str, parse: Callable[[str], object]) -> bool:
    try:
        return bool(parse(text))
    except ValueError:
        return False


_LIKE: Sequence[tuple[str, Callable[[str], bool]]] = (
    ("boolean", lambda text: text in ("true", "false")),
    ("int", lambda text: _is_whole(text, 31)),
    ("bigint", lambda text: _is_whole(text, 63)),
    (
        "double",
        lambda text: bool(re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?", text)),
    ),
    ("date", lambda text: _is_time(text, date.fromisoformat)),
    ("timestamp", lambda text: _is_time(text, datetime.fromisoformat)),
)
