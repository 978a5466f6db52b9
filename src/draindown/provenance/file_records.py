"""Records of landing files, read again: lines of text, documents, rows of columnar files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from draindown.audit import columnar, written
from draindown.audit import files as audited
from draindown.audit.raw import DocumentFile, FieldReader, TextFile
from draindown.audit.values import zone_of
from draindown.base.clock import now
from draindown.base.formatting import value_text
from draindown.config.landing import FlowSpec
from draindown.config.sources import FilesSource
from draindown.lake.home import FlowHome
from draindown.lake.table import rows
from draindown.provenance.records import UNREADABLE, Names, Record, Typed, Values, holds
from draindown.sources import objects
from draindown.sources.files.listing import list_source
from draindown.sources.files.pinning import sort_out
from draindown.sources.files.recorded import PinnedFile, difference
from draindown.sources.moves import Moves
from draindown.sources.slices import Unit


class FileRecords:
    """Reads files as they lie. A file that has other bytes than were taken in is not read."""

    of_waiting = "none waits"

    def __init__(self, flow: FlowSpec, layout: FlowHome) -> None:
        self._flow, self._layout = flow, layout

    def gone(self, unit: Unit) -> str:
        """Return how a file differs from what was taken in."""
        unit = self._placed(unit)
        if "sha256" not in unit.row:
            return "" if objects.is_file(unit.name) else f"{unit.name}: is not there"
        found = difference(PinnedFile.of(unit))
        return f"{unit.name}: {found.detail}" if found else ""

    def records(self, unit: Unit, needles: Collection[bytes] = ()) -> Iterator[Record]:
        """Yield the records of a file. Blank lines and a header are none, and have positions all
        the same.
        """
        unit = self._placed(unit)
        return self._rows(unit) if self._flow.source.form.columnar else self._texts(unit, needles)

    def _placed(self, unit: Unit) -> Unit:
        """Return a file under the path that it has now."""
        return replace(unit, name=self._moves.place(unit.name))

    @cached_property
    def _moves(self) -> Moves:
        return Moves.of(self._layout)

    def waiting(self, root: Path) -> Iterator[Unit]:
        """Yield the files that were delivered and that no drain has looked at."""
        source = self._flow.source
        assert isinstance(source, FilesSource)
        at = now()
        for file in sort_out(self._layout, list_source(source, root, at)).new:
            yield Unit(file.path, 0, 0, file.size, file.size, None, at, {})

    def _texts(self, unit: Unit, needles: Collection[bytes]) -> Iterator[Record]:
        flow, multiline = self._flow, bool(unit.row.get("multiline"))
        header = audited.header_of(unit.name, flow, multiline)
        read = _TextReader(
            flow,
            audited.names_in(header, flow) if header is not None else list(flow.fields.values()),
        )
        is_repeated = audited.repeats(header, flow)
        plain = TextFile(unit.name, source=flow.source if multiline else None)
        for record in DocumentFile(unit.name) if flow.source.documents else plain:
            if record.raw.strip() and not is_repeated(record.raw) and holds(record.raw, needles):
                yield Record(record.position, record.raw, partial(read, record.raw))

    def _rows(self, unit: Unit) -> Iterator[Record]:
        if not objects.look(unit.name).size:
            return
        blocks, present = columnar.blocks(unit.name, self._flow.source.format)
        read, position = _RowReader(self._flow), 0
        for block in blocks(list(present)):
            for row in rows(
                block if isinstance(block, pa.Table) else pa.Table.from_batches([block])
            ):
                position += 1
                text = json.dumps(row, ensure_ascii=False, default=value_text)
                yield Record(position, text.encode("utf-8", "backslashreplace"), partial(read, row))


class _TextReader:
    """Reads columns of lines. `cells`: the names of cells of a delimited format."""

    def __init__(self, flow: FlowSpec, cells: Sequence[str]) -> None:
        self._flow, self._cells = flow, cells
        self._known: dict[Names, tuple[FieldReader, Typed]] = {}

    def __call__(self, raw: bytes, names: Names) -> Values | None:
        if names not in self._known:
            self._known[names] = (
                FieldReader(self._flow, names, self._cells),
                Typed(self._flow, names),
            )
        fields, typed = self._known[names]
        try:
            return typed(fields(raw))
        except UNREADABLE:
            return None


class _RowReader:
    """Reads columns of rows of a columnar file. Text is read as in other files; other values have
    their type.
    """

    def __init__(self, flow: FlowSpec) -> None:
        self._flow = flow
        self._zone = zone_of(flow.source.timezone)

    def __call__(self, row: Mapping[str, Any], names: Names) -> Values | None:
        try:
            return tuple(self._value(name, row.get(self._flow.fields[name])) for name in names)
        except UNREADABLE:
            return None

    def _value(self, name: str, cell: Any) -> Any:
        if cell == columnar.BEYOND:
            raise ValueError(f"{name} is {columnar.BEYOND.decode()}")
        if isinstance(cell, str):
            form = written.reader_of(self._flow, name)
            return Typed(self._flow, (name,))([form(cell) if form else cell])[0]
        if (
            isinstance(cell, datetime)
            and cell.tzinfo is None
            and self._flow.columns[name].type == "timestamp"
        ):
            return cell.replace(tzinfo=self._zone).astimezone(UTC)
        return cell
