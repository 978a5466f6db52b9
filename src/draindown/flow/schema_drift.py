"""Schema drift: fields and columns that the contract does not name or the input lacks. Each is reported once.

The state is a small JSON document. The batch that sees something first writes it under the flow's lease, before it
changes the table. A retry finds it there and reports the same.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Literal

from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.lake.documents import read_json, write_json
from draindown.lake.layout import FlowLayout
from draindown.ledger.rows import Place
from draindown.spec.derived import DerivedFlow
from draindown.spec.formats import Format
from draindown.spec.landing import FlowSpec
from draindown.spec.names import RESERVED_COLUMNS, caseless, is_column_name, renamed

MOST_REMEMBERED = 500
"""Maximum number of names remembered per flow. Beyond it, only the fact that there are more is remembered."""
MOST_ADDED = 200
"""Maximum number of columns that `drift.new: add` adds to a table.

If a record has more unknown fields than this, none of them becomes a column.
"""
LONGEST = 255
"""Characters of a field's name that are examined and shown."""
SHOWN = 200
"""Characters of a field's value that are examined to infer its type."""
ADDABLE = "[A-Za-z][A-Za-z0-9_-]{0,126}"
"""Names that may become columns, as a full match. For other letters, engines disagree on which differ only by case."""
Kind = Literal["new-field", "new-column", "many-fields", "missing-column"]
_TOLD = 10
_FOR_EVER = "9999-01-01T00:00Z"


@dataclass(frozen=True)
class Sighting:
    """The first sighting of a name: the unit, the record, and how many records of the batch have it.

    `type`: type inferred from the values. `with_it`: columns that the unit lacks; the field may be one of them,
    renamed. `at`: when the unit was first seen, ISO 8601.
    """

    kind: Kind
    name: str
    generation: int
    batch_kind: str
    batch: int
    run_id: str
    at: str
    unit: str = ""
    position: int | None = None
    rows: int = 0
    type: str = "string"
    with_it: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, str]:
        """Key of the finding, which is reported once per key: kind and name."""
        return self.kind, self.name

    @property
    def place(self) -> Place:
        """The batch that saw it."""
        return self.generation, self.batch_kind, self.batch

    @property
    def where(self) -> str:
        """Unit and record; the unit alone if no record has the field."""
        return self.unit if self.position is None else f"{self.unit}:{self.position}"


@dataclass(frozen=True)
class Known:
    """Names that need not be reported again: unknown fields, and columns that units lack.

    `all_records`: whether every record must list the columns it lacks, not only records with a new field.
    """

    fields: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    all_records: bool = False


def seen(layout: FlowLayout) -> list[Sighting]:
    """Return everything remembered of a flow, oldest first; nothing if the document is missing or torn."""
    try:
        content = read_json(layout.drift)
        return [Sighting(**(row | {"with_it": tuple(row["with_it"])})) for row in (content or {})["seen"]]
    except (ValueError, KeyError, TypeError):
        return []


def remember(layout: FlowLayout, sightings: Iterable[Sighting]) -> None:
    """Store sightings that are new. Idempotent, so a retried batch adds nothing. Call it under the lease."""
    known = seen(layout)
    have = {one.identity for one in known}
    fresh = [one for one in sightings if one.identity not in have]
    if not fresh:
        return
    room = MOST_REMEMBERED - len(known)
    kept = fresh[: max(room, 0)]
    if len(kept) < len(fresh) and ("many-fields", "") not in have:
        kept.append(Sighting(**(vars(fresh[len(kept)]) | {"kind": "many-fields", "name": "", "rows": 0})))
    if kept:
        write_json(layout.drift, {"seen": [asdict(one) for one in [*known, *kept]]})


def known(layout: FlowLayout, flow: FlowSpec, columns: Collection[str]) -> Known:
    """Return the names that a batch need not look for again. `columns`: columns of the table that take fields."""
    new, missing = flow.drift.new, flow.drift.missing
    remembered = seen(layout)
    fields = {one.name for one in remembered if one.kind == "new-field"}
    if new == "refuse":
        fields = set()
    elif new == "add":
        held = {name.lower() for name in (*flow.columns, *RESERVED_COLUMNS)}
        fields = {name for name in fields if not re.fullmatch(ADDABLE, name) or name.lower() in held} | set(columns)
    lacking = {one.name for one in remembered if one.kind == "missing-column"} if missing == "accept" else set()
    return Known(frozenset(fields - set(flow.as_recorded.columns)), frozenset(lacking), missing == "refuse")


def unnamed(layout: FlowLayout, flow: FlowSpec | DerivedFlow) -> list[Sighting]:
    """Return remembered fields that the contract still does not name, and columns that units lacked; oldest first."""
    if isinstance(flow, DerivedFlow):
        return []  # its columns follow from its query
    return [
        one
        for one in seen(layout)
        if not (one.kind in ("new-field", "new-column") and one.name in flow.as_recorded.columns)
    ]


def findings(
    layout: FlowLayout, flow: FlowSpec | DerivedFlow, run_id: str, batches: Collection[Place] = ()
) -> list[Finding]:
    """Return the drift findings of one run: what it or `batches` saw first (the run may be a retry)."""
    if isinstance(flow, DerivedFlow):
        return []  # its columns follow from its query
    mine = [one for one in seen(layout) if one.run_id == run_id or one.place in batches]
    told = [_finding(layout, flow, one) for one in mine[:_TOLD]]
    if len(mine) > _TOLD:
        command = f"draindown report {layout.pipeline} --flow {layout.flow} --drift"
        rest = f"{count(len(mine) - _TOLD)} more that the contract doesn't name or that files lack"
        told.append(Finding(kind="many-fields", subject=layout.flow, detail=rest, next=command))
    return told


def _finding(layout: FlowLayout, flow: FlowSpec, one: Sighting) -> Finding:
    detail, then = _told(layout, flow, one)
    return Finding(kind=one.kind, subject=one.name or layout.flow, detail=detail, next=then)


def _told(layout: FlowLayout, flow: FlowSpec, one: Sighting) -> tuple[str, str]:
    """Return what was seen and what can be done about it."""
    where = f"first in {one.where}"
    listed = f"draindown report {layout.pipeline} --flow {layout.flow} --drift"
    match one.kind:
        case "new-field":
            return f"kept in _rescued, {_records(one)}; {where}", _name_it(layout, flow, one)
        case "new-column":
            then = f"name it in columns of flow {layout.flow} to give it rules and `not null`"
            return f"a string column now, {_records(one)}; {where}", then
        case "missing-column":
            held = flow.as_recorded.columns.get(one.name)
            becomes = "NULL there" if held is None or held.nullable else "so its records are refused"
            return f"no record of {one.unit} has it, {becomes}", "ask who sends the files"
    if one.name:
        many = f"more than {MOST_ADDED} unknown fields in {count(one.rows, 'record')}, all left in _rescued"
        return f"{many}; {where}", listed
    return f"more than {MOST_REMEMBERED} names that the contract lacks; no more are remembered; {where}", listed


def _records(one: Sighting) -> str:
    renamed = f"; renamed? {', '.join(one.with_it[:3])} is gone there" if one.with_it else ""
    return f"{count(one.rows, 'record')}, like {one.type}{renamed}"


def _name_it(layout: FlowLayout, flow: FlowSpec, one: Sighting) -> str:
    holders = [(field, name) for name, field in flow.fields.items() if "struct<" in flow.columns[name].type]
    within = [(field, name) for field, name in holders if one.name.startswith(f"{field}.")]
    if within:
        _, column = max(within, key=lambda held: len(held[0]))
        again = f"draindown rebuild {layout.pipeline} --flow {layout.flow}"
        return f"name it in the type of column {column} of flow {layout.flow}, then {again}; till then _rescued has it"
    twin = next((name for name in flow.columns if caseless(name) == caseless(one.name)), None)
    if twin is not None or not is_column_name(one.name):
        taken = [name for name in flow.columns if name not in one.with_it]  # a column that is gone may be this field
        way = renamed(one.name, taken).removeprefix("; ") or "rename it at the source"
        return f"it can't be a column {f'beside {twin}' if twin else 'by this name'}: {way}"
    named = shlex.quote(f"{one.name}: {one.type}")  # untrusted input: quoted so that no shell runs it
    add = f"add {named} to columns of flow {layout.flow}"
    if not flow.target.kind.idempotent:
        return f"{add}; rows so far keep it in _rescued"
    again = f"draindown replay {layout.pipeline} --flow {layout.flow} --from {one.at} --to {_FOR_EVER} --yes"
    return f"{add}, run, then fill older rows: {again}"


def likely(texts: Iterable[str | None], form: Format) -> str:
    """Return the narrowest column type that fits all values, given as text; `string` if there is no value.

    `form`: the source's format. The text of a nested value in a columnar format does not tell its type: `struct<...>`.
    """
    given = [text.strip() for text in texts if text is not None]
    if form.nested and any(map(_is_nested, given)):
        return "json" if form.json_columns else "array<...>" if given[0].startswith("[") else "struct<...>"
    return next((kind for kind, fits in _LIKE if given and all(map(fits, given))), "string")


def _is_nested(text: str) -> bool:
    """Return whether a text is a JSON object or array, or a truncated one. Only the start of a long value is kept."""
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
    ("double", lambda text: bool(re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?", text))),
    ("date", lambda text: _is_time(text, date.fromisoformat)),
    ("timestamp", lambda text: _is_time(text, datetime.fromisoformat)),
)
