"""The audit of raw records in the lake: what each batch read is counted again, and every record has
its place.

Plain Python reads the records, DuckDB counts and compares. What is not in the lake any more is
named, never judged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from draindown.audit.accepted import rows_by_origin
from draindown.audit.cells import CellReader
from draindown.audit.context import AuditContext, kind_of, of_source, where_of
from draindown.audit.definitions import Definitions
from draindown.audit.envelope import Fields, fields_of
from draindown.audit.files import raw_residues
from draindown.audit.keys import MOST
from draindown.audit.model import Collector, Residue
from draindown.audit.origins import id_of
from draindown.audit.pinned import Piece
from draindown.audit.raw import RawRecord
from draindown.base.clock import EPOCH
from draindown.base.duck import connect
from draindown.base.formatting import count
from draindown.base.ranges import Range, common, holds, joined, minus
from draindown.lake.table import identifier, stream
from draindown.ledger.rows import BatchRow

_Log = tuple[str, str]
"""A unit, and what tells it from a later one of its name."""
_ORIGIN, _CHANGED_AT = identifier("_origin"), identifier("_changed_at")
_LOGS, _RUNS, _AGAIN = (
    ("stamp", "input", "log"),
    ("stamp", "run"),
    ("run", "input", "position", "nth", "log"),
)
_RANGES = ("input", "log", "start", "until")
_TEXT = ("input", "log", "run")
_WITHIN = """asof join {ranges} x on r.input = x.input and r.log = x.log and r.position >= x.start
    where r.position < x.until"""
_COUNTED = """select n, count(*) from (select distinct input, log, position from raw) r
    asof join pieces x on r.input = x.input and r.log = x.log and r.position >= x.start where r.position < x.until
    group by n"""
_DOUBLED = "select input, position, count(*) from raw group by input, log, position having count(*) > 1 order by all"
_ROWS = """
    create table rows as select input, position, log from placed anti join runs using (stamp)
        left join (select distinct * from logs) using (stamp, input)
    union all select r.input, r.position, log from
        (select *, dense_rank() over (partition by run, input, position order by stamp) as nth
         from placed join runs using (stamp)) r left join again using (run, input, position, nth)"""
_MISPLACED = f"""
    with wanted as (select input, log, position, count(*) filter (held) as n
          from (select distinct * from raw) group by all),
    found as (select input, log, position, count(*) as n from rows group by all),
    r as (select input, log, position, coalesce(wanted.n, 0) as wanted, coalesce(found.n, 0) as found
          from wanted full join found using (input, log, position) where wanted is distinct from found)
    select r.input, r.position, r.wanted, r.found from r {_WITHIN.format(ranges="sure")}"""
_TWICE = """select input, position, count(*) from rows where log is not null
    group by input, log, position having count(*) > 1"""
_OUTSIDE = f"""
    select input, position, count(*) from rows anti join
        (select distinct r.input, r.log, r.position from rows r {_WITHIN.format(ranges="accounted")})
        using (input, log, position)
    group by all"""


def _judged(sql: str) -> str:
    """Return the SQL of the first places that no accepted commit changed rows of."""
    return f"""select * from ({sql}) o anti join accepted x
        on o.input is not distinct from x.input and o.position is not distinct from x.position
        order by all limit {MOST}"""


class Records:
    """The raw records of the ranges that batches read, as far as the lake has them.

    `whole`: whether it has them all. Records are read once, when this is made.
    """

    def __init__(
        self,
        context: AuditContext,
        pieces: Sequence[Piece],
        keys: Collector | None,
        temporary: Path,
    ) -> None:
        self._context, self._pieces, self._keys = context, pieces, keys
        self._accounted = _by_log((piece.log_key, piece.range) for piece in pieces)
        self._read_by = {
            generation: _by_log(
                (piece.log_key, piece.range)
                for piece in pieces
                if piece.batch.generation == generation
            )
            for generation in {piece.batch.generation for piece in pieces}
        }
        self._logs: dict[str, list[_Log]] = defaultdict(list)
        for log in self._accounted:
            self._logs[log[0]].append(log)
        kept = _kept(context)
        self._sure = {
            log: common(ranges, kept.get(log, [])) for log, ranges in self._accounted.items()
        }
        self._unsure = {
            log: minus(ranges, kept.get(log, [])) for log, ranges in self._accounted.items()
        }
        self.whole = (
            not any(self._unsure.values()) and not context.lost and not context.refused_since
        )
        self._db = connect(temporary)
        self._db.execute(
            "create table raw (input varchar, log varchar, position bigint, held boolean)"
        )
        self._read()
        self._recount()

    def _read(self) -> None:
        """Read all records within the ranges: their places, the keys of those that the table has,
        refused bytes.
        """
        first = {r["quarantine_id"]: r for r in self._context.refused if kind_of(r) != "release"}
        held_again = set(self._context.released) | {
            id for id, row in first.items() if self._was_accepted_before(row)
        }
        places_refused = {
            (row["origin"]["input"], row["origin"]["position"]) for row in first.values()
        }
        left = set(first)
        fields_of_record = fields_of(self._context.flow, self._keys.names) if self._keys else None
        cells, definitions = (
            CellReader(self._context.flow, (), self._context.judged),
            Definitions(self._context),
        )
        for block in self._blocks():
            places: list[tuple[Any, ...]] = []
            fields = defaultdict[tuple[str, ...], list[list[str | None]]](list)
            for record in block:
                log, position = (record["input"], record["log"]), record["position"]
                if not holds(self._sure.get(log, []), position):
                    continue
                id = id_of(*log, position) if (log[0], position) in places_refused else ""
                held = id not in first or id in held_again
                places.append((*log, position, held))
                if id in left:
                    left.discard(id)
                    kept = RawRecord(position, record["value"] or b"")
                    self._context.residues += raw_residues(log[0], kept, first[id])
                if held and fields_of_record is not None:
                    fields[definitions.later(log[0], position)] += self._fields(
                        fields_of_record, record
                    )
                if held and record["value"] is not None:
                    self._judge(cells, record)
            self._add(places, fields)
        for row in (first[id] for id in sorted(left)):
            unit, position = row["origin"]["input"], row["origin"]["position"]
            if self._must_have(row["quarantine_id"], unit, position):
                self._context.expect(
                    "quarantine-beyond-file", f"{unit}:{position}", "a raw record", "none"
                )

    def _must_have(self, id: str, unit: str, position: int) -> bool:
        """Whether a quarantined row must have a raw record: not if it may be of a range or log that is
        not looked at.
        """
        logs, mine = self._logs[unit], self._logs_of(id, unit, position)
        if not mine and len(logs) < self._context.logs.get(unit, 1):
            return False
        return any(holds(self._sure[log], position) for log in mine or logs)

    def _logs_of(self, id: str, unit: str, position: int) -> list[_Log]:
        """Return the log of a quarantined row, if a batch read from it."""
        return [log for log in self._logs[unit] if id_of(*log, position) == id]

    def _blocks(self) -> Iterator[list[dict[str, Any]]]:
        log = self._context.layout.tables.raw
        if not any(self._sure.values()):
            return
        names = (
            'input, log, position, value, key, headers, cast("timestamp" as varchar) as "timestamp"'
        )
        for block in stream(log.table, f"select {names} from t where part = 'records'"):
            yield block.to_pylist()

    def _add(
        self,
        places: Sequence[tuple[Any, ...]],
        fields: Mapping[tuple[str, ...], Sequence[Sequence[str | None]]],
    ) -> None:
        if places:
            unit, log, position, held = (pa.array(column) for column in zip(*places, strict=True))
            self._insert(
                "raw", pa.table({"input": unit, "log": log, "position": position, "held": held})
            )
        if self._keys is None:
            return
        for later, some in fields.items():
            if some:  # none if no record of the block can be read
                columns = [pa.array(column, pa.string()) for column in zip(*some, strict=True)]
                self._keys.before(later).add("raw", columns)

    def _insert(self, name: str, rows: pa.Table) -> None:
        self._db.register("incoming", rows)
        self._db.execute(f"insert into {name} select * from incoming")
        self._db.unregister("incoming")

    def _judge(self, cells: CellReader, record: Mapping[str, Any]) -> None:
        """Add a residue for each cell of an accepted record that is no value of its column's
        type.
        """
        with suppress(ValueError):  # it can't be read, which is said where its keys are
            for why in cells.wrong(record["value"]):
                if len(self._context.residues) < MOST:
                    where = f"{record['input']}:{record['position']}"
                    self._context.residues.append(
                        Residue("accepted-of-no-type", where, "refused", "accepted", why[:200])
                    )

    def _fields(self, read: Fields, record: Mapping[str, Any]) -> Iterator[list[str | None]]:
        try:
            yield read(record)
        except ValueError as error:
            where = f"{record['input']}:{record['position']}"
            if len(self._context.residues) < MOST:
                self._context.residues.append(
                    Residue("accepted-unreadable", where, "refused", "accepted", str(error)[:200])
                )

    def _was_accepted_before(self, row: Mapping[str, Any]) -> bool:
        """Whether the record was refused only when it was read again: the first read put it into
        the table.
        """
        if kind_of(row) == "replay":
            return True
        unit, position, since = (
            row["origin"]["input"],
            row["origin"]["position"],
            self._context.refused_since,
        )
        logs = self._logs_of(row["quarantine_id"], unit, position)
        earlier = [
            self._read_by.get(number, {}) for number in range(max(1, since), row["generation"])
        ]
        return any(holds(read.get(log, []), position) for read in earlier for log in logs)

    def _recount(self) -> None:
        """Compare the number of records of each batch and unit with its inputs; no record is there
        twice.
        """
        context = self._context
        counted = self._counted()
        records, looked = sum(batch.records for batch in of_source(context)), 0
        for (place, unit), some in _by_input(self._pieces).items():
            said = next(
                (one.records for one in context.inputs.get(place, []) if one.unit == unit), 0
            )
            if all(not minus([piece.range], self._sure[piece.log_key]) for _, piece in some):
                looked += said
                found, where = (
                    sum(counted.get(at, 0) for at, _ in some),
                    f"{where_of(some[0][1].batch)}, {unit}",
                )
                context.expect(
                    "recount-records", where, found, said, "raw records against the inputs"
                )
        for unit, position, times in self._db.execute(_DOUBLED).fetchmany(MOST):
            context.expect("raw-double", f"{unit}:{position}", 1, times, "raw records of one place")
        found_all = self._db.execute("select count(*) from raw").fetchone() or (0,)
        context.seen["raw records"] = int(found_all[0])
        if looked < records:
            context.unlooked.append(
                f"{count(records - looked)} of {count(records, 'record')}: the lake has no raw records of these, and "
                "the source is not asked; compared are their ranges and numbers"
            )

    def _counted(self) -> dict[int, int]:
        """Return the number of records by the index of a piece. Pieces of one generation don't
        overlap.
        """
        found: dict[int, int] = {}
        for generation in {piece.batch.generation for piece in self._pieces}:
            some = [(n, p) for n, p in enumerate(self._pieces) if p.batch.generation == generation]
            columns = zip(*[(n, p.unit, p.log, p.start, p.until) for n, p in some], strict=True)
            names = ("n", "input", "log", "start", "until")
            self._db.register(
                "pieces", pa.table(dict(zip(names, map(pa.array, columns), strict=True)))
            )
            found |= dict(self._db.execute(_COUNTED).fetchall())
            self._db.unregister("pieces")
        return found

    def settle_rows(self) -> None:
        """Compare the origins of an append table's rows with the records that were not refused, one
        by one.

        A row's `_changed_at` is that of its batch, and a batch reads one log of each unit.
        """
        self._db.execute("create table placed (input varchar, position bigint, stamp bigint)")
        table = self._context.layout.tables.target
        place = f"{_ORIGIN}['input'] as input, {_ORIGIN}['position'] as position"
        chosen = f"{place}, cast({_CHANGED_AT} as bigint) as stamp"
        for block in stream(table.table, f"select {chosen} from t"):
            self._insert("placed", pa.Table.from_batches([block]))
        replays = [one for one in self._context.batches if one.kind == "release"]
        again = self._replayed()
        strange = {
            (unit, log): [(at, at + 1)]
            for _, unit, at, _, log in again
            if (unit, log) not in self._accounted
        }
        self._register("logs", _LOGS, [(_stamp(one.batch), *one.log_key) for one in self._pieces])
        self._register("runs", _RUNS, [(_stamp(one), one.run_id) for one in replays])
        self._register("again", _AGAIN, again)
        for name, ranges in (("accounted", self._accounted | strange), ("sure", self._sure)):
            self._register(
                name, _RANGES, [(*log, *one) for log, some in ranges.items() for one in some]
            )
        self._db.execute(_ROWS)
        said, expect = (
            "records that weren't refused against rows of their origin",
            self._context.expect,
        )
        accepted = rows_by_origin(self._context)
        units, positions = zip(*accepted, strict=True) if accepted else ((), ())
        places = {
            "input": pa.array(units, pa.string()),
            "position": pa.array(positions, pa.int64()),
        }
        self._db.register("accepted", pa.table(places))
        for unit, position, wanted, found in self._db.execute(_judged(_MISPLACED)).fetchall():
            if found < wanted or not wanted:  # others are there twice
                expect(
                    "lost-record" if wanted else "origin-from-nowhere",
                    f"{unit}:{position}",
                    wanted,
                    found,
                    said,
                )
        for unit, position, found in self._db.execute(_judged(_TWICE)).fetchall():
            expect("double-origin", f"{unit}:{position}", 1, found, "rows of one record")
        said = "rows of an origin that their batch didn't read"
        for unit, position, found in self._db.execute(_judged(_OUTSIDE)).fetchall():
            expect("origin-from-nowhere", f"{unit}:{position}", 0, found, said)

    def _replayed(self) -> list[tuple[str, str, int, int, str]]:
        """Return run, unit, position, number and log of the quarantined rows that replays released.

        Rows of one run and place are numbered: each is of a batch of its own. A row of a log that
        no batch read has its id for it.
        """
        found, seen = [], Counter[tuple[str, str, int]]()
        places = {row["quarantine_id"]: row["origin"] for row in self._context.refused}
        for id, run in self._context.released.items():
            if run and id in places:
                unit, position = places[id]["input"], places[id]["position"]
                seen[run, unit, position] += 1
                ((_, log),) = self._logs_of(id, unit, position) or [(unit, id)]
                found.append((run, unit, position, seen[run, unit, position], log))
        return found

    def _register(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        schema = pa.schema(
            [(column, pa.string() if column in _TEXT else pa.int64()) for column in columns]
        )
        self._db.register(
            name,
            pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema),
        )


def _kept(context: AuditContext) -> dict[_Log, list[Range]]:
    """Return the ranges that the lake says it has, by log."""
    said = context.layout.tables.raw.rows(
        """select input, log, "from", until from t where part = 'ranges'"""
    )
    return _by_log(((row["input"], row["log"]), (row["from"], row["until"])) for row in said)


def _by_log(ranges: Iterable[tuple[_Log, Range]]) -> dict[_Log, list[Range]]:
    found: dict[_Log, list[Range]] = defaultdict(list)
    for log, one in ranges:
        found[log].append(one)
    return {log: joined(some) for log, some in found.items()}


def _stamp(batch: BatchRow) -> int | None:
    """Return `_changed_at` of a batch's rows, in microseconds."""
    return (
        None
        if batch.changed_at is None
        else (batch.changed_at - EPOCH) // timedelta(microseconds=1)
    )


def _by_input(pieces: Iterable[Piece]) -> dict[tuple[Any, str], list[tuple[int, Piece]]]:
    found: dict[tuple[Any, str], list[tuple[int, Piece]]] = defaultdict(list)
    for number, piece in enumerate(pieces):
        found[piece.batch.place, piece.unit].append((number, piece))
    return found
