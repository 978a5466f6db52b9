"""What is known of where a row came from, and its form for people and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from draindown.base.formatting import count, printable, value_text
from draindown.ledger.rows import BatchRow

Found = Literal["landed", "derived", "foreign"]
Absent = Literal[
    "deleted",
    "moved",
    "withdrawn",
    "quarantined",
    "waiting",
    "superseded",
    "left-out",
    "never-seen",
    "unknown",
]
State = Found | Absent
Fate = Literal[
    "applied",
    "deleted",
    "superseded",
    "duplicate",
    "quarantined",
    "waiting",
    "withdrawn",
    "unclear",
]
_SHOWN_RAW = 200  # characters
_SHOWN_RANGES = 5


@dataclass(frozen=True)
class Batch:
    """A batch of the ledger. `finished_at`: ISO 8601. `read`: the ranges that it read, as
    `input:from-until`.
    """

    generation: int
    kind: str
    number: int
    run_id: str
    slice: int
    finished_at: str
    table_version: int
    read: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: BatchRow, read: Sequence[str] = ()) -> Batch:
        """Return the batch of a ledger row."""
        at = row.finished_at.isoformat() if row.finished_at else ""
        return cls(
            row.generation,
            row.kind,
            row.batch,
            row.run_id,
            row.slice,
            at,
            row.table_version,
            tuple(read),
        )

    def __str__(self) -> str:
        kind = "" if self.kind == "drain" else f"{self.kind} "
        return f"{kind}batch {self.number} of generation {self.generation}"


@dataclass(frozen=True)
class Place:
    """A record with the key: where it is in the input, its text, and what became of it. `why`: in
    words.
    """

    input: str
    position: int
    raw: str
    fate: Fate
    why: str = ""
    batch: Batch | None = None


@dataclass(frozen=True)
class Trace:
    """Where a row of a table came from, or why the table has none with the key.

    Attributes:
        key: its key by column.
        state: `landed` or `derived` if the table has the row, `foreign` if a commit of another
            writer wrote it or changed it since; else what became of the key, as far as it is known.
        said: the same in a sentence.
        row: the row; None if the table has none.
        batch: the batch that wrote the row; None if it is not known, or there is no row.
        records: of a landed table, the records with the key, of the batch or of all.
        sources: of a derived table, the rows behind the row, each with what is behind it; the first
            ones only. Of a key that the table lacks, also the rows that were behind it earlier.
        number: how many source rows count in the row, by source table.
        counts, why: of a source row, whether it counts in the row above it, and why it does not.
        gone: what could not be read, and since when.
        next: commands that help.
    """

    pipeline: str
    flow: str
    table: str
    key: Mapping[str, Any]
    state: State
    said: str
    row: Mapping[str, Any] | None = None
    batch: Batch | None = None
    records: Sequence[Place] = ()
    sources: Sequence[Trace] = ()
    number: Mapping[str, int] = field(default_factory=dict)
    counts: bool = True
    why: str = ""
    gone: Sequence[str] = ()
    next: Sequence[str] = ()

    @property
    def command(self) -> str:
        """The command that asks for the key."""
        keys = (f"--key {shlex.quote(_given(name, value))}" for name, value in self.key.items())
        return f"draindown why {self.pipeline}/{self.table} {' '.join(keys)}"

    def as_dict(self) -> dict[str, Any]:
        """Return the trace as a JSON-ready dictionary."""
        flat = {
            name: _json(value)
            for name, value in self.__dict__.items()
            if name not in ("batch", "records", "sources")
        }
        flat["batch"] = None if self.batch is None else asdict(self.batch)
        flat["records"] = [asdict(one) for one in self.records]
        flat["sources"] = [one.as_dict() for one in self.sources]
        return flat

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        key = ", ".join(f"{name} {printable(shown(value), 80)}" for name, value in self.key.items())
        yield f"{self.pipeline}/{self.table}  {key}  {self.state}"
        yield f"  {printable(self.said)}{f' (does not count: {self.why})' if not self.counts else ''}"
        if self.batch is not None:
            yield from _batch_lines(self.batch)
        for place in self.records:
            yield from _place_lines(place, self.batch)
        for table, number in self.number.items():
            yield f"  from    {count(number, 'row')} of {table}"
        for one in self.sources:
            yield from (f"    {line}" for line in one._lines())
        yield from (f"  gone    {printable(text)}" for text in self.gone)
        yield from (f"  next    {text}" for text in self.next)


def _batch_lines(batch: Batch) -> Iterator[str]:
    yield f"  batch   {batch}, run {printable(batch.run_id)}, {batch.finished_at}, table version {batch.table_version}"
    for text in batch.read[:_SHOWN_RANGES]:
        yield f"  read    {printable(text)}"
    if len(batch.read) > _SHOWN_RANGES:
        yield f"          and {count(len(batch.read) - _SHOWN_RANGES, 'range')} more"


def _place_lines(place: Place, of: Batch | None) -> Iterator[str]:
    other = (
        ""
        if place.batch is None or (of is not None and str(place.batch) == str(of))
        else f" by {place.batch}"
    )
    why = f": {printable(place.why, 200)}" if place.why else ""
    yield f"  record  {printable(f'{place.input}:{place.position}')}  {place.fate}{other}{why}"
    yield f"          {printable(place.raw, _SHOWN_RAW)}"


def _given(name: str, value: Any) -> str:
    return f"{name} is null" if value is None else f"{name}={shown(value)}"


def shown(value: Any) -> str:
    """Return a value as text for people."""
    return (
        "NULL"
        if value is None
        else value.isoformat()
        if isinstance(value, datetime)
        else value_text(value)
    )


def _json(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case Mapping():
            return {str(name): _json(one) for name, one in value.items()}
        case list() | tuple():
            return [_json(one) for one in value]
    return value
