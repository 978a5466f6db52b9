"""Where rows of a table that records are written to came from, and what became of keys that it
lacks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from draindown.audit.keys import made_by, unusable
from draindown.config.landing import FlowSpec
from draindown.flow import generations, quarantine, withdrawals
from draindown.flow.quarantine import Filter
from draindown.lake.home import FlowHome
from draindown.lake.table import literal, rows
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import WITHDRAW, BatchRow
from draindown.ledger.rows import Place as BatchPlace
from draindown.provenance import fates
from draindown.provenance.fates import Contents, Ends
from draindown.provenance.judges import JUDGES
from draindown.provenance.judging import Asked, of_key
from draindown.provenance.model import Absent, Batch, Place, State, Trace
from draindown.provenance.records import Names, Values, json_values, plain
from draindown.provenance.scan import Found, Progress, Scan, is_about
from draindown.sources.slices import unread_after

_ORIGIN, _CHANGED_AT = "_origin", "_changed_at"
Row = Mapping[str, Any]


class LandedTable:
    """The table of a landing flow, asked for rows and keys. Reads the lake and the raw input,
    changes nothing.
    """

    def __init__(self, flow: FlowSpec, layout: FlowHome, root: Path, progress: Progress) -> None:
        self._flow, self._layout, self._root, self._progress = flow, layout, root, progress
        self._keys: Names = tuple(flow.target.keys)
        self._judging = JUDGES.get(flow.target.kind.name)

    def rows(self, found: Sequence[Row], *, every: bool = False) -> list[Trace]:
        """Trace rows of the table, which have all of its columns.

        `every`: with the records of each key in every batch; otherwise in the one that wrote the
        row.
        """
        stamps = [row.get(_CHANGED_AT) for row in found]  # a row of another writer may have none
        batches = ledger_table.by_stamp(self._layout, {at for at in stamps if at})
        by_row = [batches.get(at) if at else None for at in stamps]
        return self._keyed(found, by_row, every) if self._keys else self._appended(found, by_row)

    def _appended(self, found: Sequence[Row], by_row: Sequence[BatchRow | None]) -> list[Trace]:
        scan, wanted = self._scan(), defaultdict[str, set[int]](set)
        for row in found:
            wanted[row[_ORIGIN]["input"]].add(row[_ORIGIN]["position"])
        at = {
            (one.unit.name, one.record.position): one
            for unit, some in wanted.items()
            for one in scan.at(unit, some)
        }
        traces = []
        for row, batch in zip(found, by_row, strict=True):
            unit, position = row[_ORIGIN]["input"], row[_ORIGIN]["position"]
            hit = at.get((unit, position))
            records = (
                [
                    Place(
                        unit,
                        position,
                        hit.record.raw.decode("utf-8", "backslashreplace"),
                        "applied",
                    )
                ]
                if hit
                else []
            )
            gone = (
                ()
                if hit
                else [why for why in scan.gone if unit in why]
                or [f"{unit}:{position}: no record is there now"]
            )
            traces.append(self._trace({_ORIGIN: f"{unit}:{position}"}, row, batch, records, gone))
        return traces

    def _keyed(
        self, found: Sequence[Row], by_row: Sequence[BatchRow | None], every: bool
    ) -> list[Trace]:
        shows_all, every = every, every or self._judging is not None
        keys = [tuple(row[name] for name in self._keys) for row in found]
        hidden = unusable(self._flow, self._root)
        read = ledger_table.with_records(self._layout) if every else [one for one in by_row if one]
        batches = {row.place: row for row in read if row.kind != WITHDRAW}
        wanted: dict[BatchPlace, set[Values]] = {
            place: set(keys) if every else set() for place in batches
        }
        if not every:
            for key, by in zip(keys, by_row, strict=True):
                if by is not None and by.place in wanted:
                    wanted[by.place].add(key)
        scan = self._scan()
        hits = [] if hidden else scan.in_batches(list(batches.values()), self._keys, wanted)
        ranges = scan.ranges(one for one in by_row if one)
        traces = []
        for key, row, batch in zip(keys, found, by_row, strict=True):
            ends = Ends(
                row,
                batch.place if batch else None,
                self._deletes(key) if every else {},
                self._withheld(key) if every else (),
            )
            own = [hit for hit in hits if is_about(hit, key)]
            records = fates.places(own, batches, self._contents(key, row, every=shows_all), ends)
            gone = [*scan.gone, *([hidden] if hidden else [])]
            told = {name: row[name] for name in self._flow.target.row_keys}
            traces.append(
                self._trace(
                    told, row, batch, records, gone, ranges.get(batch.place, ()) if batch else ()
                )
            )
        return traces

    def _trace(
        self,
        key: Row,
        row: Row,
        batch: BatchRow | None,
        records: Sequence[Place],
        gone: Sequence[str],
        read: Sequence[str] = (),
    ) -> Trace:
        said = self._won(records, batch) if self._judging is None else self._judging.said(records)
        stamp = row.get(_CHANGED_AT)
        missing = (
            [] if batch or stamp is None else [f"no batch of the ledger has its stamp {stamp}"]
        )
        told = None if batch is None else Batch.of(batch, read)
        return self._new(
            key, "landed", said, row=row, batch=told, records=records, gone=[*missing, *gone]
        )

    def _won(self, records: Sequence[Place], batch: BatchRow | None) -> str:
        won = next(
            (one for one in records if one.fate == "applied" and self._is_of(one, batch)), None
        )
        said = (
            f"the record at {won.input}:{won.position}"
            if won
            else "the record behind it is not among what can be read"
        )
        lost = sum(
            one.fate in ("superseded", "duplicate") and self._is_of(one, batch) for one in records
        )
        return said + (f"; {lost} lost against it in its batch" if lost else "")

    @staticmethod
    def _is_of(place: Place, batch: BatchRow | None) -> bool:
        return place.batch is None or (batch is not None and place.batch == Batch.of(batch))

    def absent(self, key: Row) -> Trace:
        """Trace a key that the table lacks: values of its key columns, or `_origin` of a table
        without keys.

        All input that batches read is looked at, and what waits.
        """
        return self._absent_key(key) if self._keys else self._absent_origin(str(key[_ORIGIN]))

    def _absent_origin(self, origin: str) -> Trace:
        unit, _, position = origin.rpartition(":")
        scan, key = self._scan(), {_ORIGIN: origin}
        found = scan.at(unit, [int(position)]) if position.isdecimal() else []
        records = [fates.at_origin(one) for one in found]
        if any(one.fate == "quarantined" for one in records):
            return self._new(
                key, "quarantined", records[0].why, records=records, next=self._refused_next(found)
            )
        if records:
            run = f"draindown run {self._layout.pipeline}/{self._layout.flow}"
            return self._new(
                key, "waiting", "its record is in no batch yet", records=records, next=[run]
            )
        state: Absent = "unknown" if scan.gone else "never-seen"
        said = (
            "what it was read from can't be read any more"
            if scan.gone
            else "no record was ever read there"
        )
        return self._new(key, state, said, gone=list(scan.gone))

    def _absent_key(self, key: Row) -> Trace:
        values: Values = tuple(key[name] for name in self._keys)
        scan, hidden = self._scan(), unusable(self._flow, self._root)
        batches = {
            row.place: row
            for row in ledger_table.with_records(self._layout)
            if row.kind != WITHDRAW
        }
        hits: list[Found] = []
        if hidden is None:
            hits = scan.in_batches(
                list(batches.values()), self._keys, {place: {values} for place in batches}
            )
            hits += scan.waiting(self._unread(), self._keys, {values})
        withdrawn, deletes = self._withdrawn(values), self._deletes(values)
        withheld = [sequence for sequence, state, _ in withdrawn if state != "released"]
        places = fates.places(
            hits, batches, self._contents(values, None), Ends(None, None, deletes, withheld)
        )
        gone = [*scan.gone, *([hidden] if hidden else [])]
        state, said, then = self._verdict(
            values, places, deletes, withdrawn, hits, gone, scan.of_waiting
        )
        by = (
            max(deletes, key=lambda place: deletes[place], default=None)
            if state == "deleted"
            else None
        )
        batch = batches.get(by) if by else None
        return self._new(
            key,
            state,
            said,
            batch=Batch.of(batch) if batch else None,
            records=places,
            gone=gone,
            next=then,
        )

    def _verdict(
        self,
        values: Values,
        places: Sequence[Place],
        deletes: Mapping[BatchPlace, Values],
        withdrawn: Sequence[tuple[Values, str, str]],
        hits: Sequence[Found],
        gone: Sequence[str],
        of_waiting: str,
    ) -> tuple[Absent, str, list[str]]:
        pipeline, flow = self._layout.pipeline, self._layout.flow
        order = tuple(self._flow.target.sequence_by)
        out = [one for one in withdrawn if one[1] != "released"]
        if out and (not deletes or max(one[0] for one in out) >= max(deletes.values())):
            sequence, state, why = max(out)
            shown = fates.shown(order, sequence)
            what = f"the gate withdrew its row with {shown}, {why}; it is {state}"
            return (
                "withdrawn",
                what,
                [f"draindown quarantine list {pipeline}/{flow} --id {why.rpartition('; id ')[2]}"],
            )
        if any(one.fate == "waiting" for one in places):
            return (
                "waiting",
                "a record with the key waits for a run",
                [f"draindown run {pipeline}/{flow}"],
            )
        if deletes:
            place, sequence = max(deletes.items(), key=lambda one: one[1])
            what = f"batch {place[2]} of generation {place[0]} deleted it at {fates.shown(order, sequence)}"
            return "deleted", what, []
        if any(one.fate == "quarantined" for one in places):
            number = sum(one.fate == "quarantined" for one in places)
            sure = any(one.refused and one.key == values for one in hits)
            what = (
                "has the key"
                if sure
                else "may have the key: its text holds it, and it can't be read"
            )
            return (
                "quarantined",
                f"each of {number} that were quarantined {what}",
                self._refused_next(hits),
            )
        if places and of_key(self._flow, self._layout.tables.target.path, values):
            return "superseded", "its records are in other rows of the key: none begins there", []
        if places:
            audit = f"draindown audit {pipeline}/{flow}   # whether the table lost rows"
            return (
                "superseded",
                "its records were accepted, and the table has none of them",
                [audit],
            )
        if gone:
            return "unknown", "it is not in what can still be read", []
        return "never-seen", f"no record with the key was read; {of_waiting}", []

    def _refused_next(self, found: Sequence[Found]) -> list[str]:
        ids = [one.refused["quarantine_id"][:12] for one in found if one.refused]
        return [
            f"draindown quarantine list {self._layout.pipeline}/{self._layout.flow} --id {id}"
            for id in ids[:3]
        ]

    def _new(self, key: Row, state: State, said: str, **more: Any) -> Trace:
        layout = self._layout
        return Trace(layout.pipeline, layout.flow, layout.table_name, key, state, said, **more)

    def _scan(self) -> Scan:
        return Scan(self._flow, self._layout, self._root, self._progress)

    def _unread(self) -> int:
        generation = generations.generation(self._layout)
        return unread_after(
            self._layout.tables.target.last(self._layout.app_id(generation, "rows"))
        )

    def _contents(self, key: Values, row: Row | None, *, every: bool = True) -> Contents:
        order: Names = tuple(self._flow.target.sequence_by)
        made = made_by(self._flow.transform, self._root) if self._flow.transform else set()
        known = [] if made is None else [name for name in plain(self._flow) if name not in made]
        content = tuple(name for name in known if row is None or name in row)
        judging = self._judging
        judge = (
            None
            if judging is None
            else judging.judge(Asked(self._flow, self._layout, key, row, every))
        )
        return Contents(order, content, judge)

    def _deletes(self, key: Values) -> dict[BatchPlace, Values]:
        """Return at which sequence each batch deleted a key."""
        order, memory = self._flow.target.sequence_by, self._flow.target.kind.memory
        return {
            (row["_generation"], row["_kind"], row["_batch"]): tuple(row[name] for name in order)
            for row in (
                of_key(self._flow, self._layout.tables.memory(memory).path, key) if memory else ()
            )
            if row.get("_delete", True)  # of hidden events some are no deletes
        }

    def _withheld(self, key: Values) -> list[Values]:
        return [sequence for sequence, state, _ in self._withdrawn(key) if state != "released"]

    def _withdrawn(self, key: Values) -> list[tuple[Values, str, str]]:
        """Return the rows of a key that the gate withdrew: sequence, state, and why with the id."""
        return [
            (sequence, state, why)
            for own, sequence, state, why in self._all_withdrawn
            if own == key
        ]

    @cached_property
    def _all_withdrawn(self) -> list[tuple[Values, Values, str, str]]:
        """Each withdrawn row: key, sequence, state, and why with its id."""
        keys, order = self._keys, self._flow.target.sequence_by
        if not withdrawals.ever(self._layout) or not {*keys, *order} <= self._flow.columns.keys():
            return []
        names = "quarantine_id, raw, reason, state"
        found = quarantine.query(
            self._layout, names, Filter(state=None), "", f"kind = {literal(WITHDRAW)}"
        )
        told = []
        for row in rows(found):
            values = json_values(self._flow, row["raw"], (*keys, *order))
            if values is not None:
                why = f"{row['reason']}; id {row['quarantine_id'][:12]}"
                told.append((values[: len(keys)], values[len(keys) :], row["state"], why))
        return told
