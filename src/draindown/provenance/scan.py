"""Find the records with certain keys in what batches read, and in what waits to be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from draindown.base.clock import EPOCH
from draindown.base.formatting import count
from draindown.config.landing import FlowSpec
from draindown.flow import generations, quarantine
from draindown.flow.quarantine import Filter
from draindown.lake.home import FlowHome
from draindown.lake.table import literal, rows
from draindown.ledger import inputs
from draindown.ledger.rows import WITHDRAW, BatchRow, Place
from draindown.provenance.readers import reader_of
from draindown.provenance.records import Names, Record, Values, json_values, needles_of
from draindown.sources import intake
from draindown.sources.intake import LOG, record_id
from draindown.sources.slices import Unit

Progress = Callable[[str], None]
"""Called with the name of each unit before it is read."""
_TELLING = 4  # characters of a text that is looked for in records which can't be read
_MANY = 1000  # names, or ids, in a list of a query
WAITING: Place = (0, "waiting", 0)
"""In the place of a batch: no batch has read the unit."""


@dataclass(frozen=True)
class Found:
    """A record with one of the keys, or whose text may hold one. `key`: None if its own can't be
    read.

    `place`: the batch that read it. `refused`: its row of the quarantine, with the state; None if
    it was accepted.
    """

    place: Place
    unit: Unit
    record: Record
    key: Values | None
    refused: Mapping[str, Any] | None = None


class Scan:
    """Looks into the input of one flow. `gone` collects what could not be read."""

    def __init__(self, flow: FlowSpec, layout: FlowHome, root: Path, progress: Progress) -> None:
        self._flow, self._layout, self._root, self._progress = flow, layout, root, progress
        self._reader = reader_of(flow, layout)
        self.gone: dict[str, None] = {}

    @property
    def _live(self) -> int:
        return generations.generation(self._layout)

    def ranges(self, batches: Iterable[BatchRow]) -> dict[Place, list[str]]:
        """Return the ranges that batches read, as `unit:from-until`."""
        return {
            place: [f"{one.unit}:{one.start}-{one.until}" for one in read]
            for place, read in self._inputs({row.place: row for row in batches}).items()
        }

    def in_batches(
        self, batches: Sequence[BatchRow], names: Names, wanted: Mapping[Place, Collection[Values]]
    ) -> list[Found]:
        """Return the records with the keys `wanted` of each batch: values of `names`, which the
        contract has.
        """
        by_place = {row.place: row for row in batches}
        pieces = self._pieces(by_place)
        readers: dict[tuple[str, int, int, str], list[Place]] = defaultdict(list)
        units: dict[tuple[str, int, int, str], Unit] = {}
        for place, read in pieces.items():
            for unit in read:
                key = unit.name, unit.start, unit.until, unit.log
                readers[key].append(place)
                units[key] = unit
        found: list[Found] = []
        for key, places in readers.items():
            keys = {one for place in places for one in wanted[place]}
            ends = [end for place in places if (end := by_place[place].finished_at)]
            for hit in self._in_unit(units[key], names, keys, max(ends, default=None)):
                by = (place for place in places if hit.key is None or hit.key in wanted[place])
                found += [replace(hit, place=place) for place in by]
        found += self._released(batches, names, wanted)
        return self._judged(found)

    def at(self, unit: str, positions: Collection[int]) -> list[Found]:
        """Return the records at positions of a unit, from the newest slice that has each, of the
        newest generation.
        """
        left, found = set(positions), dict[int, Found]()
        for number in _intakes(self._layout, range(self._live, 0, -1)):
            wanted = frozenset(left)
            held = intake.of_units(self._layout, number, [unit])
            for piece in (_with_log(one) for part in held for one in part.units):
                own = [at for at in wanted if piece.start <= at < piece.until + (not piece.log)]
                if not own:
                    continue
                left.difference_update(own)
                near = replace(
                    piece, start=max(piece.start, min(own)), until=min(piece.until, max(own) + 1)
                )
                if not self._is_gone(near):
                    found |= {
                        record.position: Found(WAITING, piece, record, None)
                        for record in self._records(near, ())
                        if record.position in wanted
                    }
        return self._judged(list(found.values()))

    @property
    def of_waiting(self) -> str:
        """In words, what is known of input that waits, where `waiting` finds no record."""
        return self._reader.of_waiting

    def waiting(self, first: int, names: Names, keys: Collection[Values]) -> list[Found]:
        """Return the records with these keys in slices of the live generation from `first` on, and
        in no slice yet.
        """
        pinned = (
            _with_log(unit)
            for one in intake.slices(self._layout, self._live, first)
            for unit in one.units
        )
        new = self._reader.waiting(self._root)
        return [
            hit
            for units in (pinned, new)
            for unit in units
            for hit in self._in_unit(unit, names, keys)
        ]

    def _in_unit(
        self, unit: Unit, names: Names, keys: Collection[Values], read_at: datetime | None = None
    ) -> Iterator[Found]:
        if self._is_gone(unit, read_at):
            return
        needles, texts = needles_of(self._flow, names, keys), _texts(keys)
        for record in self._records(unit, needles):
            key = record.read(names)
            if key in keys or (key is None and any(text in record.raw for text in texts)):
                yield Found(WAITING, unit, record, key)

    def _records(self, unit: Unit, needles: Collection[bytes]) -> Iterator[Record]:
        self._progress(unit.name)
        return self._reader.records(unit, needles)

    def _is_gone(self, unit: Unit, read_at: datetime | None = None) -> bool:
        """Return whether a unit can't be read, and note why. `read_at`: when a batch read it last:
        it went later.
        """
        why = self._reader.gone(unit)
        if why:
            since = f"; a batch read it last at {read_at:%Y-%m-%d %H:%M} UTC" if read_at else ""
            self.gone[f"{why}{since}"] = None
        return bool(why)

    def _inputs(self, batches: Mapping[Place, BatchRow]) -> dict[Place, list[inputs.Input]]:
        where = f"where {inputs.among(batches)}" if len(batches) <= _MANY else ""
        found = inputs.by_batch(self._layout, where)
        for place, row in batches.items():
            if row.inputs and place not in found:
                what = (
                    f"the inputs of batch {row.batch} of generation {row.generation}: the table "
                    f"{self._layout.tables.inputs.path}"
                )
                self.gone[f"{what} has none of its {count(row.inputs, 'input')}"] = None
        return {place: read for place, read in found.items() if place in batches}

    def _pieces(self, batches: Mapping[Place, BatchRow]) -> dict[Place, list[Unit]]:
        """Return the units that batches read, with what the intake knows of them."""
        read = self._inputs(batches)
        names = {one.unit for some in read.values() for one in some}
        known: dict[tuple[str, str], list[tuple[int, Unit]]] = defaultdict(list)
        few = len(names) <= _MANY
        for number in _intakes(self._layout, sorted({place[0] for place in read})):
            for one in (
                intake.of_units(self._layout, number, names)
                if few
                else intake.slices(self._layout, number)
            ):
                for unit in one.units:
                    known[self._layout.tables.intake(number).path, unit.name].append(
                        (one.number, unit)
                    )
        return {
            place: [
                _piece(
                    one,
                    known[self._layout.tables.intake(place[0]).path, one.unit],
                    batches[place].slice,
                    batches[place],
                )
                for one in some
            ]
            for place, some in read.items()
        }

    def _released(
        self, batches: Sequence[BatchRow], names: Names, wanted: Mapping[Place, Collection[Values]]
    ) -> Iterator[Found]:
        """Yield records of batches that released quarantined rows: they are read where they were
        refused.
        """
        by_run: dict[str, list[Place]] = defaultdict(list)
        for row in batches:
            if row.kind == "release":
                by_run[row.run_id].append(row.place)
        if not by_run:
            return
        released = quarantine.released(self._layout)
        for some in _chunks([id for id, run in released.items() if run in by_run]):
            origins: dict[str, dict[int, str]] = defaultdict(dict)
            hits = []
            for one in _refused(self._layout, some):
                if one["kind"] == WITHDRAW:
                    hits.append((one["quarantine_id"], self._withdrawn(one)))
                else:
                    origins[one["origin"]["input"]][one["origin"]["position"]] = one[
                        "quarantine_id"
                    ]
            hits += [
                (ids[hit.record.position], hit)
                for unit, ids in origins.items()
                for hit in self.at(unit, ids)
            ]
            for id, hit in hits:
                key = hit.record.read(names)
                by = (place for place in by_run[released[id]] if key in wanted[place])
                yield from (replace(hit, place=place, key=key, refused=None) for place in by)

    def _withdrawn(self, row: Mapping[str, Any]) -> Found:
        """Return a row that the gate withdrew as a record: it goes back as it was, past its
        input.
        """
        origin, read = row["origin"], partial(json_values, self._flow, row["raw"])
        unit = Unit(origin["input"], 0, 0, 0, 0, None, EPOCH, {})
        return Found(WAITING, unit, Record(origin["position"], row["raw"].encode(), read), None)

    def _judged(self, found: Sequence[Found]) -> list[Found]:
        """Return records with the row of the quarantine, where they were refused. Unreadable ones
        count so only.
        """
        refused: dict[str, Mapping[str, Any]] = {}
        for some in _chunks([_id(one) for one in found]):
            refused |= {row["quarantine_id"]: row for row in _refused(self._layout, some)}
        judged = []
        for one in found:
            row = refused.get(_id(one))
            mine = row and (row["generation"], row["kind"], row["batch"]) == one.place
            if one.place[1] != "release" and row and (mine or row["state"] != "released"):
                judged.append(replace(one, refused=row))
            elif one.key is not None or one.place == WAITING:
                judged.append(one)
        return judged


def _intakes(layout: FlowHome, numbers: Iterable[int]) -> list[int]:
    """Return one generation of each intake, in order: they may share one."""
    return list({layout.tables.intake(number).path: number for number in numbers}.values())


def is_about(found: Found, key: Values) -> bool:
    """Return whether a record has a key, or can't be read and its text may hold it."""
    return found.key == key or (
        found.key is None and any(text in found.record.raw for text in _texts([key]))
    )


def _id(one: Found) -> str:
    return record_id(one.unit.name, one.record.position, one.unit.log)


def _refused(layout: FlowHome, ids: Sequence[str]) -> list[dict[str, Any]]:
    listed = ", ".join(map(literal, ids))
    names = "quarantine_id, origin, raw, reason, field, detail, generation, kind, batch, state"
    return (
        rows(
            quarantine.query(layout, names, Filter(state=None), "", f"quarantine_id in ({listed})")
        )
        if ids
        else []
    )


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[at : at + _MANY] for at in range(0, len(ids), _MANY))


def _texts(keys: Collection[Values]) -> list[bytes]:
    """Return texts that a record holds which can't be read and may be of one of these keys."""
    texts = {
        value for key in keys for value in key if isinstance(value, str) and len(value) >= _TELLING
    }
    return [text.encode() for text in texts] if len(texts) <= _MANY // 10 else []


def _piece(
    read: inputs.Input, known: Sequence[tuple[int, Unit]], number: int, batch: BatchRow
) -> Unit:
    """Return a range that a batch read as the unit that its slice pinned; without one, as far as it
    is known.
    """
    fits = [
        (at, unit) for at, unit in known if unit.start <= read.start and read.until <= unit.until
    ]
    chosen = next((unit for at, unit in fits if at == number), None) or (
        fits[-1][1] if fits else None
    )
    if chosen is None:
        at = batch.finished_at or EPOCH
        return Unit(read.unit, read.start, read.until, read.bytes, read.bytes, read.records, at, {})
    return replace(_with_log(chosen), start=read.start, until=read.until)


def _with_log(unit: Unit) -> Unit:
    return replace(unit, log=str(unit.row.get(LOG) or ""))
