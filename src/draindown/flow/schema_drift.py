"""What a flow's input had that its contract doesn't name, and what it lacked: told once, each with its first file.

A small JSON file, written under the flow's lease by the batch that sees something first, before that batch changes the
table: a retry finds it there and tells the same.
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
from draindown.spec.formats import Format
from draindown.spec.models import FlowSpec
from draindown.spec.names import RESERVED_COLUMNS, is_column_name

MOST_REMEMBERED = 500
"""Names that are remembered of one flow; beyond, only that there are more."""
MOST_ADDED = 200
"""Columns that `drift.new: add` gives a table, and unknown fields of a record beyond which it is left alone."""
LONGEST = 255
"""Characters of a field's name that are looked at and shown."""
SHOWN = 200
"""Characters of a field's value that are looked at, to tell its type."""
ADDABLE = "[A-Za-z][A-Za-z0-9_-]{0,126}"
"""Names, as a whole, that become columns; for other letters, engines don't agree which of them differ by case alone."""
Kind = Literal["new-field", "new-column", "many-fields", "missing-column"]
_TOLD = 10
_FOR_EVER = "9999-01-01T00:00Z"


@dataclass(frozen=True)
class Sighting:
    """Something that was seen for the first time: in which file, at which record, and in how many of its batch.

    `type`: what the values look like. `with_it`: columns that the file lacks, one of which may bear this name now.
    `at`: when the file was first seen, ISO 8601.
    """

    kind: Kind
    name: str
    generation: int
    batch_kind: str
    batch: int
    run_id: str
    at: str
    file: str = ""
    position: int | None = None
    rows: int = 0
    type: str = "string"
    with_it: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, str]:
        """What is told once only: a name in each role."""
        return self.kind, self.name

    @property
    def place(self) -> Place:
        """The batch that saw it."""
        return self.generation, self.batch_kind, self.batch

    @property
    def where(self) -> str:
        """File and record, or the file where no record has it."""
        return self.file if self.position is None else f"{self.file}:{self.position}"


@dataclass(frozen=True)
class Known:
    """Names that need no telling any more: unknown fields, and columns that files lack.

    `all_records`: whether every record must say which columns it lacks, not only one that has a new field.
    """

    fields: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    all_records: bool = False


def seen(layout: FlowLayout) -> list[Sighting]:
    """Everything remembered of a flow, oldest first; nothing where the file is missing or torn (it is told again)."""
    try:
        content = read_json(layout.drift)
        return [Sighting(**(row | {"with_it": tuple(row["with_it"])})) for row in (content or {})["seen"]]
    except (ValueError, KeyError, TypeError):
        return []


def remember(layout: FlowLayout, sightings: Iterable[Sighting]) -> None:
    """Write down what was not seen before; nothing twice, however often a batch is tried. Call it under the lease."""
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
    """What a batch need not look for again. `columns`: those of the table, which takes fields of these names."""
    new, missing = flow.drift.new, flow.drift.missing
    remembered = seen(layout)
    fields = {one.name for one in remembered if one.kind == "new-field"}
    if new == "refuse":
        fields = set()
    elif new == "add":
        held = {name.lower() for name in (*flow.columns, *RESERVED_COLUMNS)}
        fields = {name for name in fields if not re.fullmatch(ADDABLE, name) or name.lower() in held} | set(columns)
    lacking = {one.name for one in remembered if one.kind == "missing-column"} if missing == "accept" else set()
    return Known(frozenset(fields - set(flow.columns)), frozenset(lacking), missing == "refuse")


def unnamed(layout: FlowLayout, flow: FlowSpec) -> list[Sighting]:
    """The remembered fields that the contract still doesn't name, and columns that files lacked; oldest first."""
    return [one for one in seen(layout) if not (one.kind in ("new-field", "new-column") and one.name in flow.columns)]


def findings(layout: FlowLayout, flow: FlowSpec, run_id: str, batches: Collection[Place] = ()) -> list[Finding]:
    """What one run has to tell: what it saw first, or what the batches it went through did (it may be a retry)."""
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
    """What was seen, and what may be done about it."""
    where = f"first in {one.where}"
    listed = f"draindown report {layout.pipeline} --flow {layout.flow} --drift"
    match one.kind:
        case "new-field":
            return f"kept in _rescued, {_records(one)}; {where}", _name_it(layout, flow, one)
        case "new-column":
            then = f"name it in columns of flow {layout.flow} to give it rules and `not null`"
            return f"a string column now, {_records(one)}; {where}", then
        case "missing-column":
            held = flow.columns.get(one.name)
            becomes = "NULL there" if held is None or held.nullable else "so its records are refused"
            return f"no record of {one.file} has it, {becomes}", "ask who sends the files"
    if one.name:
        many = f"more than {MOST_ADDED} unknown fields in {count(one.rows, 'record')}, all left in _rescued"
        return f"{many}; {where}", listed
    return f"more than {MOST_REMEMBERED} names that the contract lacks; no more are remembered; {where}", listed


def _records(one: Sighting) -> str:
    renamed = f"; renamed? {', '.join(one.with_it[:3])} is gone there" if one.with_it else ""
    return f"{count(one.rows, 'record')}, like {one.type}{renamed}"


def _name_it(layout: FlowLayout, flow: FlowSpec, one: Sighting) -> str:
    twin = next((name for name in flow.columns if name.lower() == one.name.lower()), None)
    if twin is not None or not is_column_name(one.name):
        return f"it can't be a column {f'beside {twin}' if twin else 'by this name'}: rename it at the source"
    named = shlex.quote(f"{one.name}: {one.type}")  # a sender's text: no shell may run it
    add = f"add {named} to columns of flow {layout.flow}"
    if not flow.target.kind.idempotent:
        return f"{add}; rows so far keep it in _rescued"
    again = f"draindown replay {layout.pipeline} --flow {layout.flow} --from {one.at} --to {_FOR_EVER} --yes"
    return f"{add}, run, then fill older rows: {again}"


def likely(texts: Iterable[str | None], form: Format) -> str:
    """The narrowest column type that some values, as text, look like; `string` without any.

    `form`: the source's format. Of a nested value in a columnar file the text doesn't tell the type: `struct<...>`.
    """
    given = [text.strip() for text in texts if text is not None]
    if form.nested and any(map(_is_nested, given)):
        return "json" if form.json_columns else "array<...>" if given[0].startswith("[") else "struct<...>"
    return next((kind for kind, fits in _LIKE if given and all(map(fits, given))), "string")


def _is_nested(text: str) -> bool:
    """Whether a text is, or begins as, a JSON object or array: of a long value only the beginning is known."""
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
