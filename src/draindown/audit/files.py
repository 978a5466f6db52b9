"""The audit of one raw file: recount its records, verify its hash, and compare its quarantined rows
with its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from draindown.audit import columnar, written
from draindown.audit.cells import CellReader, unlike
from draindown.audit.keys import MOST
from draindown.audit.model import Collector, Residue
from draindown.audit.raw import DocumentFile, FieldReader, RawRecord, TextFile, cells_of
from draindown.config.dialect import header_cells
from draindown.config.landing import FlowSpec
from draindown.sources import objects

_ROWS = 100_000
_KEPT_OF_LONG = 64 * 1024  # bytes
_BOM = b"\xef\xbb\xbf"
_UNSTORABLE = ("", "__HIVE_DEFAULT_PARTITION__")


@dataclass
class FileFacts:
    """The counts of one raw file.

    `lines` excludes the CSV header and treats a quoted line end as part of its record, as the
    ledger does. `physical`: physical lines and blank ones, which the intake counts; None if records
    are no lines. `accepted`: records that were not refused. `held`, `held_positions`,
    `held_squares`: number of records that the flow applied, released ones included, the sum of
    their positions, and that of the squares of these. `changed`: the file no longer has the hash
    that the intake recorded.
    """

    path: str
    lines: int = 0
    blank: int = 0
    accepted: int = 0
    held: int = 0
    held_positions: int = 0
    held_squares: int = 0
    changed: bool = False
    physical: tuple[int, int] | None = None
    residues: list[Residue] = field(default_factory=list)

    def hold(self, position: int) -> None:
        """Count a record that the flow applied."""
        self.held, self.held_positions = self.held + 1, self.held_positions + position
        self.held_squares += position * position

    @property
    def records(self) -> int:
        """The number of records: lines that are not blank."""
        return self.lines - self.blank


class Refusals:
    """Refused rows by file and position. A released row counts as accepted, because a replay
    applied it later.
    """

    def __init__(self, refused: Iterable[Mapping[str, Any]], released: set[str]) -> None:
        self._rows: dict[str, dict[int, Mapping[str, Any]]] = {}
        self._released = released
        for row in refused:
            self._rows.setdefault(row["origin"]["input"], {})[row["origin"]["position"]] = row

    def files(self) -> set[str]:
        """Return the paths of all files that have quarantined rows."""
        return set(self._rows)

    def of(self, path: str) -> dict[int, Mapping[str, Any]]:
        """Return the quarantined rows of one file, by position."""
        return self._rows.get(path, {})

    def is_released(self, row: Mapping[str, Any]) -> bool:
        """Return whether the row was replayed into the table."""
        return row["quarantine_id"] in self._released


def recount(
    taken: Mapping[str, Any],
    flow: FlowSpec,
    refusals: Refusals,
    keys: Collector | None,
    judged: Sequence[str] = (),
) -> FileFacts:
    """Recount one file, compare its quarantined rows with its bytes, and add columns of its accepted
    rows to `keys`.

    `taken`: its row of the intake, with the `place` that it is read from if that is not its path.
    `judged`: columns in which each accepted record must have a value of their type, or none.
    """
    path, place = taken["path"], _place(taken)
    if taken.get("sha256") and (found := objects.sha256_of(place)) != taken["sha256"]:
        detail = "the bytes are not those that were read: nothing in it can be recounted"
        return FileFacts(
            path,
            changed=True,
            residues=[Residue("file-changed", path, taken["sha256"], found, detail)],
        )
    if flow.source.form.columnar:
        return _columnar(path, place, flow, refusals, keys, judged)
    return _text(taken, flow, refusals, keys, judged)


def _place(taken: Mapping[str, Any]) -> str:
    return str(taken.get("place", taken["path"]))


def _text(
    taken: Mapping[str, Any],
    flow: FlowSpec,
    refusals: Refusals,
    keys: Collector | None,
    judged: Sequence[str],
) -> FileFacts:
    path, place, multiline = taken["path"], _place(taken), bool(taken.get("multiline"))
    facts = FileFacts(path)
    refused = dict(refusals.of(path))
    header = header_of(place, flow, multiline)
    is_repeated = repeats(header, flow)
    sink = _KeySink(path, flow, keys, header, facts.residues, judged)
    file = (
        None
        if flow.source.documents
        else TextFile(place, source=flow.source if multiline else None)
    )
    for record in file or DocumentFile(place):
        row = refused.pop(record.position, None)
        is_header = is_repeated(record.raw)
        if not record.raw.strip() or is_header:
            facts.blank += not is_header
            if row:
                what = "a header" if is_header else "blank"
                facts.residues.append(
                    Residue("quarantine-of-blank", f"{path}:{record.position}", "a record", what)
                )
            continue
        if row:
            facts.residues += raw_residues(path, record, row)
        else:
            facts.accepted += 1
        if row is None or refusals.is_released(row):
            sink.take(record)
            facts.hold(record.position)
        facts.lines += 1
    facts.lines += facts.blank
    facts.physical = (file.lines, file.blank) if file else None
    sink.flush()
    _beyond(facts, path, refused)
    return facts


def _beyond(facts: FileFacts, path: str, refused: Mapping[int, Any]) -> None:
    for position in refused:
        facts.residues.append(
            Residue(
                "quarantine-beyond-file",
                f"{path}:{position}",
                f"at most {facts.lines}",
                str(position),
            )
        )


def header_of(path: str, flow: FlowSpec, multiline: bool) -> bytes | None:
    """Return the header of a CSV file as the file has it; None if it has none."""
    if not flow.source.has_header:
        return None
    # the audit does not trust the header in the intake, it reads the file
    first = next(
        (r.raw for r in TextFile(path, source=flow.source if multiline else None) if r.raw.strip()),
        None,
    )
    # a first line that names no column of the contract is not a header, but a record that was
    # refused
    return (
        first
        if first is not None and set(names_in(first, flow)) & set(flow.fields.values())
        else None
    )


def repeats(header: bytes | None, flow: FlowSpec) -> Callable[[bytes], bool]:
    """Return what tells whether a record is the header, which may come again: it has the same
    cells.
    """
    if header is None:
        return lambda _: False
    names = header_cells(names_in(header, flow))
    # most records are told apart by one name: those whose bytes may be written otherwise are left
    # out
    plain = [name for name in names if name.isalnum() and "\ufffd" not in name]
    likely = max(plain, key=len, default="").encode()

    def is_repeated(raw: bytes) -> bool:
        return likely in raw and header_cells(names_in(raw.removeprefix(_BOM), flow)) == names

    return is_repeated


def names_in(header: bytes, flow: FlowSpec) -> list[str]:
    """Return the names of the cells under a header."""
    try:
        cells = cells_of(header.decode("utf-8", "replace").encode(), flow.source)
    except ValueError:
        return []
    return [(cell or "").strip() for cell in cells]


def raw_residues(path: str, record: RawRecord, row: Mapping[str, Any]) -> Iterator[Residue]:
    """Yield where a quarantined row has other bytes than the record that it is of."""
    where, raw = f"{path}:{record.position}", record.raw
    kept, length = row.get("raw_bytes"), row.get("raw_length")
    if kept is None:
        kept = (row["raw"] or "").encode("utf-8", "surrogatepass")
    if length is not None and length != len(raw):
        yield Residue(
            "quarantine-length", where, str(len(raw)), str(length), "bytes of the raw record"
        )
    # the quarantine keeps only the first 64 KiB of a long record
    same = raw.startswith(kept) if len(kept) >= _KEPT_OF_LONG else raw == kept
    if not same:
        there, here = (value[:60].decode("utf-8", "backslashreplace") for value in (raw, kept))
        yield Residue(
            "quarantine-raw", where, there, here, "raw text kept against the bytes in the file"
        )


class _KeySink:
    """Collects keys and sequences of accepted records, and adds them to a `KeyRecount` in blocks.

    Each cell of such a record must be a value of its column's type.
    """

    def __init__(
        self,
        path: str,
        flow: FlowSpec,
        keys: Collector | None,
        header: bytes | None,
        residues: list[Residue],
        judged: Sequence[str],
    ) -> None:
        self._path, self._keys, self._residues = path, keys, residues
        self._rows: list[list[str | None]] = []
        names = list(flow.fields.values())
        if header is not None:
            names = names_in(header, flow)
        self._partitions = _partition_texts(flow)
        self._read = FieldReader(flow, [*(keys.names if keys else []), *self._partitions], names)
        self._cells = CellReader(flow, names, judged)

    def take(self, record: RawRecord) -> None:
        """Add the keys of one record. One that cannot be read, or has a cell of another type,
        becomes a residue.
        """
        try:
            if self._keys is not None or self._partitions or self._read.suspects(record.raw):
                self._look_at(record, self._read(record.raw))
            for why in self._cells.wrong(record.raw):
                self._residue("accepted-of-no-type", record, why)
        except ValueError as error:
            self._residue("accepted-unreadable", record, str(error))
        if len(self._rows) >= _ROWS:
            self.flush()

    def _look_at(self, record: RawRecord, fields: list[str | None]) -> None:
        if self._keys is not None:
            self._rows.append(fields[: len(self._keys.names)])
        for name, value in zip(reversed(self._partitions), reversed(fields), strict=False):
            if value in _UNSTORABLE:
                self._residue(
                    "accepted-unstorable", record, f"{name} is {value!r}, which is stored as NULL"
                )

    def _residue(self, kind: str, record: RawRecord, why: str) -> None:
        if len(self._residues) < MOST:
            where = f"{self._path}:{record.position}"
            self._residues.append(Residue(kind, where, "refused", "accepted", why[:200]))

    def flush(self) -> None:
        """Add the collected rows to the `KeyRecount`."""
        if self._rows and self._keys is not None:
            self._keys.add(
                "raw", [pa.array(column, pa.string()) for column in zip(*self._rows, strict=True)]
            )
        self._rows = []


def _columnar(
    path: str,
    place: str,
    flow: FlowSpec,
    refusals: Refusals,
    keys: Collector | None,
    judged: Sequence[str],
) -> FileFacts:
    refused = refusals.of(path)
    out = {position for position, row in refused.items() if not refusals.is_released(row)}
    facts = FileFacts(path)
    if not objects.look(place).size:
        return facts
    blocks, present = columnar.blocks(place, flow.source.format)
    fields = {name: flow.fields[name] for name in (keys.names if keys else [])}
    cells = {name: flow.fields[name] for name in judged if flow.fields[name] in present}
    wanted = [field for field in fields.values() if field in present]
    texts = [
        name for name, kind in present.items() if _is_text(kind) and _is_kept_as_text(flow, name)
    ]
    partitions = [
        field
        for field in (flow.fields[name] for name in _partition_texts(flow))
        if field in present
    ]
    for block in blocks(list(dict.fromkeys([*wanted, *texts, *partitions, *cells.values()]))):
        first = facts.lines + 1
        facts.lines += block.num_rows
        for name in partitions:
            null = (
                first + at
                for at, value in enumerate(block.column(name).to_pylist())
                if value in _UNSTORABLE
            )
            facts.residues += _accepted(
                path, null, out, "accepted-unstorable", f"{name} is stored as NULL"
            )
        for name in texts:
            wrong = (first + at for at in _not_utf8(block.column(name)))
            facts.residues += _accepted(
                path, wrong, out, "accepted-unreadable", f"{name} is not UTF-8"
            )
        if (not keys and not cells) or not block.num_rows:
            continue
        mask = pa.array([first + i not in out for i in range(block.num_rows)])
        kept = block.filter(mask)
        rows = f"{path}:{first}-{facts.lines}"
        for name, own in cells.items():
            for why in unlike(flow.columns[name].type, kept.column(own)):
                facts.residues.append(
                    Residue("accepted-of-no-type", rows, "refused", "accepted", f"{name} {why}")
                )
        if keys:
            nothing = pa.nulls(kept.num_rows, pa.string())
            keys.add(
                "raw",
                [
                    _as_cast(flow, n, kept.column(f)) if f in wanted else nothing
                    for n, f in fields.items()
                ],
            )
    facts.accepted = facts.lines - sum(1 for position in refused if position <= facts.lines)
    kept_out = [position for position in out if position <= facts.lines]
    facts.held = facts.lines - len(kept_out)
    facts.held_positions = facts.lines * (facts.lines + 1) // 2 - sum(kept_out)
    squares = facts.lines * (facts.lines + 1) * (2 * facts.lines + 1) // 6
    facts.held_squares = squares - sum(position * position for position in kept_out)
    _beyond(facts, path, {position: 0 for position in refused if position > facts.lines})
    return facts


def _accepted(
    path: str, positions: Iterator[int], out: set[int], kind: str, why: str
) -> Iterator[Residue]:
    for position in islice((at for at in positions if at not in out), MOST):
        yield Residue(kind, f"{path}:{position}", "refused", "accepted", why)


def _partition_texts(flow: FlowSpec) -> list[str]:
    """Return the partition columns whose texts are those of the raw input, of a flow in which no
    row is a delete.
    """
    if flow.transform or flow.target.apply_as_deletes:
        return []
    return [
        name
        for name in flow.target.partition_by
        if name in flow.fields and flow.columns[name].type == "string"
    ]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_kept_as_text(flow: FlowSpec, name: str) -> bool:
    """Return whether a field of the file is stored as text: unless a column takes it as binary."""
    taken = {field: column for column, field in flow.fields.items()}
    return name not in taken or flow.columns[taken[name]].type != "binary"


def _not_utf8(column: pa.Array | pa.ChunkedArray) -> Iterator[int]:
    """Yield the places of texts that are not UTF-8, which pyarrow reads as they are."""
    as_bytes = column.cast(pa.large_binary())
    try:
        as_bytes.cast(pa.large_string())
    except pa.ArrowInvalid:
        for at, value in enumerate(as_bytes.to_pylist()):
            if value is not None and not _decodes(value):
                yield at


def _decodes(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _as_cast(flow: FlowSpec, name: str, found: Any) -> Any:
    """Return a column of a columnar file; if it is text with a form of its own, as text that casts
    to its type.
    """
    form = written.reader_of(flow, name)
    if form is None or not (pa.types.is_string(found.type) or pa.types.is_large_string(found.type)):
        return found
    return pa.array(
        [None if text is None else form(text) for text in found.to_pylist()], pa.string()
    )
