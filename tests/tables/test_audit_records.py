"""The audit of a flow that keeps raw records: every record has its place, and each falsehood is
found by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.audit.model import Audit
from draindown.audit.recount import audit
from draindown.base.ranges import common, holds, joined, minus
from draindown.flow.generations import Card, make_live
from draindown.flow.quarantine import RESOLUTIONS
from draindown.ledger import inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow
from draindown.runs.request import Request
from draindown.sources import intake, raw
from draindown.sources.kafka import accepted, positions
from draindown.sources.kafka.offsets import Loss, Span
from tests.flowfiles import AT, ORIGIN, REFUSED, about, stamp

SOURCE: dict[str, Any] = {"kafka": {"topics": ["t"], "bootstrap_servers": "h:1"}, "format": "json"}
_UNKEPT = {"kafka": SOURCE["kafka"] | {"keep_raw": False}}
SLICES = [[Span("t", 0, "x", 0, 4), Span("t", 1, "x", 7, 9)], [Span("t", 0, "x", 4, 6)]]
GARBAGE = b"\xff{"
COLUMNS = {
    "id": {"type": "string not null", "from": "key"},
    "at": {"type": "timestamp not null", "from": "timestamp"},
    "n": "int",
}
Place = tuple[str, int]


def at(position: int) -> Any:
    return AT + timedelta(minutes=position)


def stamp_of(batch: int) -> datetime:
    return AT + timedelta(microseconds=batch)


def appended(places: Sequence[tuple[Place, int]]) -> pa.Table:
    """Rows of an append table, of these places and batches."""
    origins = [{"input": unit, "position": position} for (unit, position), _ in places]
    stamps = pa.array([stamp_of(batch) for _, batch in places], pa.timestamp("us", "UTC"))
    n = pa.array([1] * len(origins), pa.int32())
    return pa.table({"n": n, "_origin": pa.array(origins, ORIGIN), "_changed_at": stamps})


@dataclass
class World:
    """A flow that drained two slices, every part of which a test may falsify before it is written.

    `records`: key and value by place. `target`: keys and the offset that won, or, of an append
    table, places, each with its batch where that is not the first that read it. `kept`: ranges of
    raw. `later`: raw records of the topic that came after, whose id is y: all ranges, or none.
    `refused_by`: the batch of each quarantined record. `generations`: that of each slice and its batch.
    `started`: when the batches began.
    """

    root: Path
    keyed: bool = False
    slices: list[list[Span]] = field(default_factory=lambda: [list(some) for some in SLICES])
    records: dict[Place, tuple[str, bytes | None]] = field(default_factory=dict)
    raw: dict[Place, tuple[str, bytes | None]] = field(default_factory=dict)
    kept: list[Span] = field(default_factory=lambda: [span for some in SLICES for span in some])
    refused: list[Place] = field(default_factory=lambda: [("t/0", 1)])
    target: list[Any] = field(default_factory=list)
    tombstones: list[tuple[str, int]] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    source: dict[str, Any] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=lambda: [1, 2])
    read: list[list[Input]] = field(default_factory=list)
    later: dict[Place, tuple[str, bytes | None]] = field(default_factory=dict)
    refused_by: list[int] = field(default_factory=lambda: [0])
    generations: list[int] = field(default_factory=lambda: [1, 1])
    started: list[datetime] = field(default_factory=lambda: [AT, AT])

    def __post_init__(self) -> None:
        last = None if self.keyed else b'{"n": 9}'
        first = {
            0: ("a", b'{"n": 1}'),
            1: ("x", GARBAGE),
            2: ("b", b'{"n": 2}'),
            3: ("a", b'{"n": 3}'),
        }
        self.records = {("t/0", position): one for position, one in first.items()}
        self.records |= {("t/1", 7): ("c", b'{"n": 1}'), ("t/1", 8): ("c", last)}
        self.records |= {("t/0", 4): ("b", b'{"n": 0}'), ("t/0", 5): ("d", b'{"n": 7}')}
        self.raw = dict(self.records)
        self.read = [
            [Input(s.unit, s.start, s.until, 100 * s.size, s.size) for s in some]
            for some in self.slices
        ]
        refused = {"quarantined": 1, "reasons": {"malformed": 1}}
        self.counts = [{"inserted": 5} | refused, {"inserted": 2}]
        self.target = [place for place in self.records if place not in self.refused]
        if self.keyed:
            self.target, self.tombstones = [("a", 3), ("b", 4), ("d", 5)], [("c", 8)]
            self.counts = [
                {"inserted": 2, "superseded": 2, "tombstoned": 1} | refused,
                {"inserted": 1, "updated": 1},
            ]

    def audit(self) -> Audit:
        """Write everything and audit it."""
        return audit(self.write().spec, "f", root=self.root)

    def write(self, **more: Any) -> Request:
        """Write everything. `more`: parts of the pipeline file."""
        target = {"keys": ["id"], "sequence_by": ["at"]} if self.keyed else {}
        asked = about(
            self.root,
            {"source": SOURCE | self.source, "columns": COLUMNS, "target": target},
            **more,
        )
        self.layout = asked.layout
        every: dict[Place, Span] = {}
        for at, spans in enumerate(self.slices):
            generation, nth = self._place(at)
            every = every if nth else {}
            # each slice has the positions of all partitions
            every = {place: replace(span, start=span.until) for place, span in every.items()}
            every |= {(span.topic, span.partition): span for span in spans}
            pinned = positions.rows(
                list(every.values()), record_bytes=100.0, oldest={}, now=AT, compacted=()
            )
            intake.append(self.layout, generation, positions.OWN, pinned, AT, nth + 1)
        if max(self.generations) > 1:
            make_live(self.layout, Card(max(self.generations), 1, AT.isoformat(), "me", ()))
        self._write_raw()
        refused = zip(self.refused, self.refused_by, strict=False)
        rows = pa.Table.from_pylist(
            [self._refused(place, batch) for place, batch in refused], REFUSED
        )
        write_deltalake(
            self.layout.tables.quarantine.path, rows, commit_properties=self._by("quarantine", 0)
        )
        for batch, (cut, some, counts) in enumerate(
            zip(self.cuts, self.read, self.counts, strict=True)
        ):
            self._commit(batch, cut, some, counts)
        if self.keyed:
            write_deltalake(self.layout.tables.tombstones.path, self._keyed(self.tombstones))
        return asked

    def _place(self, batch: int) -> tuple[int, int]:
        """Generation and number of the batch that is written as this one."""
        return self.generations[batch], self.generations[:batch].count(self.generations[batch])

    def _by(self, part: str, batch: int) -> CommitProperties:
        generation, nth = self._place(batch)
        return CommitProperties(
            app_transactions=[Transaction(self.layout.app_id(generation, part), nth)]
        )

    def _write_raw(self) -> None:
        raw.create(self.layout)
        common = {"day": AT.date(), "generation": 1, "batch": 0, "kind": "drain"}
        found = [
            {
                "part": raw.RECORDS,
                "input": unit,
                "position": position,
                "key": key.encode(),
                "value": value,
            }
            | {"timestamp": at(position), "arrived_at": at(position), "log": log}
            for log, records in (("x", self.raw), ("y", self.later))
            for (unit, position), (key, value) in records.items()
        ]
        spans = [
            *self.kept,
            *[span for some in self.slices for span in some if self.later and span.topic_id == "y"],
        ]
        found += [
            {
                "part": raw.RANGES,
                "input": s.unit,
                "log": s.topic_id,
                "from": s.start,
                "until": s.until,
            }
            for s in spans
        ]
        write_deltalake(
            self.layout.tables.raw.path,
            pa.Table.from_pylist([common | one for one in found], raw.SCHEMA),
            mode="append",
        )

    def _refused(self, place: Place, batch: int) -> dict[str, Any]:
        unit, position = place
        log = self.slices[batch][0].topic_id
        value = self.records[place][1] or b""
        return {
            "quarantine_id": sha256(f"{unit}\u0001{position}\u0001{log}".encode()).hexdigest(),
            "origin": {"input": unit, "position": position},
            "raw": value.decode("utf-8", "replace"),
            "raw_bytes": value,
            "raw_length": len(value),
            "reason": "malformed",
            "generation": self._place(batch)[0],
            "batch": self._place(batch)[1],
            "kind": "drain",
        }

    def _commit(self, batch: int, cut: int, read: list[Input], counts: dict[str, Any]) -> None:
        sums = {
            "bytes": sum(one.bytes for one in read),
            "records": sum(one.records for one in read),
        }
        row = BatchRow(
            "p", "f", *self._place(batch), "r", slice=cut, inputs=len(read), **sums, **counts
        )
        row = replace(
            row, changed_at=stamp_of(batch), started_at=self.started[batch], finished_at=AT
        )
        inputs.record(self.layout, row, read)
        last = batch == len(self.cuts) - 1
        if self.keyed:
            some = self._keyed(self.target if last else [])
        else:
            some = appended(
                [(place[:2], self._batch_of(*place)) for place in (self.target if last else [])]
            )
        write_deltalake(
            self.layout.tables.target.path,
            some,
            mode="append",
            commit_properties=self._by("rows", batch),
        )
        version = self.layout.tables.target.version
        stamp(
            Path(self.layout.tables.target.path), version, row, "MERGE" if self.keyed else "WRITE"
        )
        ledger_table.record(self.layout, [replace(row, table_version=version)])

    def _batch_of(self, unit: str, position: int, batch: int | None = None) -> int:
        read = [
            nth
            for nth, some in enumerate(self.slices)
            for s in some
            if s.unit == unit and s.start <= position < s.until
        ]
        return next(iter(read), 0) if batch is None else batch

    @staticmethod
    def _keyed(keys: list[tuple[str, int]]) -> pa.Table:
        times = pa.array([at(position) for _, position in keys], pa.timestamp("us", "UTC"))
        return pa.table({"id": pa.array([key for key, _ in keys], pa.string()), "at": times})


def kinds(found: Audit) -> list[str]:
    return sorted(one.kind for one in found.residues)


class _NoText(str):
    """A key that is no text on its topic."""

    def encode(self, *_: Any) -> bytes:
        return GARBAGE


def test_each_record_is_named_whose_key_cannot_be_read_even_if_none_can(tmp_path: Path) -> None:
    world = World(tmp_path, keyed=True)
    world.raw = {place: (_NoText(key), value) for place, (key, value) in world.raw.items()}
    assert kinds(world.audit()).count("accepted-unreadable") == len(world.raw) - len(world.refused)


@pytest.mark.parametrize("keyed", [False, True], ids=["append", "keyed"])
def test_a_flow_whose_records_all_have_their_place_is_clean(tmp_path: Path, keyed: bool) -> None:
    found = World(tmp_path, keyed=keyed).audit()
    assert found.residues == [] and found.unlooked == []
    assert found.seen["raw records"] == 8


Falsehood = Callable[[World], object]
APPENDED: dict[str, tuple[Falsehood, list[str]]] = {
    "row missing": (lambda w: w.target.remove(("t/0", 2)), ["lost-record", "row-count"]),
    "row doubled": (lambda w: w.target.append(("t/0", 2)), ["double-origin", "row-count"]),
    "row in place of another": (
        lambda w: w.target.__setitem__(0, ("t/0", 2)),
        ["double-origin", "lost-record"],
    ),
    "row of a quarantined record": (
        lambda w: w.target.append(("t/0", 1)),
        ["origin-from-nowhere", "row-count"],
    ),
    "row of no record": (
        lambda w: w.target.append(("t/1", 3)),
        ["origin-from-nowhere", "row-count"],
    ),
    "quarantined row gone": (lambda w: w.refused.clear(), ["lost-record", "quarantine-count"]),
    "quarantined row of another record": (
        lambda w: w.refused.__setitem__(0, ("t/0", 2)),
        ["lost-record", "origin-from-nowhere"],
    ),
    "quarantined row with other bytes": (
        lambda w: w.raw.update({("t/0", 1): ("x", b"\xfe{")}),
        ["quarantine-raw"],
    ),
    "raw record gone": (
        lambda w: w.raw.pop(("t/0", 2)),
        ["origin-from-nowhere", "recount-records"],
    ),
    "refused raw record gone": (
        lambda w: w.raw.pop(("t/0", 1)),
        ["quarantine-beyond-file", "recount-records"],
    ),
    "slice without a batch": (
        lambda w: w.cuts.__setitem__(1, 3),
        ["inputs-unit", "ledger-gap", "origin-from-nowhere"],
    ),
    "gap between slices": (
        lambda w: (
            w.slices[1].__setitem__(0, Span("t", 0, "x", 5, 6)),
            w.read[1].__setitem__(0, Input("t/0", 5, 6, 1, 1)),
        ),
        ["intake-gap", "ledger-fates", "origin-from-nowhere"],
    ),
    "fewer records than offsets": (
        lambda w: (
            w.read[1].__setitem__(0, Input("t/0", 4, 6, 100, 1)),
            w.counts[1].update(inserted=1),
        ),
        ["recount-records", "recount-records", "row-count"],
    ),
}
KEYED: dict[str, tuple[Falsehood, list[str]]] = {
    "key missing": (lambda w: w.target.remove(("d", 5)), ["lost-key", "row-count"]),
    "key doubled": (lambda w: w.target.append(("d", 5)), ["double-key", "row-count"]),
    "older row": (lambda w: w.target.__setitem__(0, ("a", 0)), ["old-sequence"]),
    "key of no record": (
        lambda w: w.target.__setitem__(0, ("z", 3)),
        ["key-from-nowhere", "lost-key"],
    ),
    "deleted key forgotten": (lambda w: w.tombstones.clear(), ["lost-key"]),
    # key and time are not in its value: it counts as accepted, and its key is missing
    "quarantined row gone": (lambda w: w.refused.clear(), ["lost-key", "quarantine-count"]),
}


@pytest.mark.parametrize("name", APPENDED)
def test_a_falsehood_about_an_append_table_is_found(tmp_path: Path, name: str) -> None:
    falsify, wanted = APPENDED[name]
    world = World(tmp_path)
    falsify(world)
    assert set(kinds(world.audit())) == set(wanted)


@pytest.mark.parametrize("name", KEYED)
def test_a_falsehood_about_a_keyed_table_is_found(tmp_path: Path, name: str) -> None:
    falsify, wanted = KEYED[name]
    world = World(tmp_path, keyed=True)
    falsify(world)
    assert kinds(world.audit()) == wanted


def test_what_the_lake_no_longer_has_is_named_and_all_else_is_judged(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.kept = [world.slices[1][0]]
    world.raw = {
        place: one for place, one in world.raw.items() if place in (("t/0", 4), ("t/0", 5))
    }
    world.target.remove(("t/0", 4))
    world.counts[1]["inserted"] = 1
    world.read[1][0] = replace(world.read[1][0])
    found = world.audit()
    assert {"lost-record", "ledger-fates"} == set(kinds(found))
    assert found.seen["raw records"] == 2
    (told,) = found.unlooked
    assert told.startswith("6 of 8 records: the lake has no raw records of these")


@pytest.mark.parametrize("keyed", [False, True], ids=["append", "keyed"])
def test_without_raw_records_nothing_is_said_of_them(tmp_path: Path, keyed: bool) -> None:
    world = World(tmp_path, keyed=keyed, source=_UNKEPT)
    world.kept, world.raw = [], {}
    found = world.audit()
    assert found.residues == [] and found.seen["raw records"] == 0
    assert any(told.startswith("8 of 8 records") for told in found.unlooked)
    assert keyed == any("keys in the table that no raw" in told for told in found.unlooked)


def test_a_gap_that_was_given_up_as_lost_is_none(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.slices[1] = [Span("t", 0, "x", 5, 6)]
    world.read[1] = [Input("t/0", 5, 6, 100, 1)]
    world.counts[1] = {"inserted": 1}
    world.target.remove(("t/0", 4))
    del world.raw["t/0", 4]
    world.kept[2] = Span("t", 0, "x", 5, 6)
    layout = about(tmp_path, {"source": SOURCE, "columns": COLUMNS, "target": {}}).layout
    accepted.accept(
        layout, [Loss("offsets-lost", Span("t", 0, "x", 4, 5), "")], by="me", note="aged out", at=AT
    )
    assert kinds(world.audit()) == []


def test_ranges_are_sets_of_positions() -> None:
    def positions_of(some: list[tuple[int, int]]) -> set[int]:
        return {n for start, until in some for n in range(start, until)}

    draws = [[(0, 4), (2, 6)], [(3, 3)], [], [(8, 9), (0, 1), (1, 2)], [(5, 7)], [(0, 10)]]
    for left in draws:
        for right in draws:
            one, other = joined(left), joined(right)
            assert positions_of(minus(one, other)) == positions_of(left) - positions_of(right)
            assert positions_of(common(one, other)) == positions_of(left) & positions_of(right)
            assert [n for n in range(11) if holds(one, n)] == sorted(positions_of(left))


def _created_again(root: Path) -> World:
    world = World(root)
    world.slices[1] = [Span("t", 0, "y", 0, 2)]
    world.read[1] = [Input("t/0", 0, 2, 200, 2)]
    world.counts[1] = {"inserted": 1, "quarantined": 1, "reasons": {"malformed": 1}}
    world.target = [("t/0", 0, 0), ("t/0", 0, 1), ("t/0", 2), ("t/0", 3), ("t/1", 7), ("t/1", 8)]
    for gone in (("t/0", 4), ("t/0", 5)):
        del world.raw[gone]
    world.kept.pop()
    world.refused_by = [0, 1]
    world.refused = [("t/0", 1), ("t/0", 1)]
    world.later = {("t/0", 0): ("z", b'{"n": 5}'), ("t/0", 1): ("x", GARBAGE)}
    return world


def test_a_topic_that_was_created_again_has_its_offsets_twice(tmp_path: Path) -> None:
    found = _created_again(tmp_path).audit()
    assert found.residues == [] and found.unlooked == [] and found.seen["raw records"] == 8


ONE_FOR_THE_OTHER: dict[str, tuple[Falsehood, list[str]]] = {
    "the old one twice, the new one lost": (
        lambda w: w.target.__setitem__(1, ("t/0", 0, 0)),
        ["double-origin", "lost-record"],
    ),
    "the new one twice, the old one lost": (
        lambda w: w.target.__setitem__(0, ("t/0", 0, 1)),
        ["double-origin", "lost-record"],
    ),
    "a refused one of the old topic in place of the new one": (
        lambda w: w.target.__setitem__(1, ("t/0", 1, 0)),
        ["lost-record", "origin-from-nowhere"],
    ),
    "an offset that the new topic does not have": (
        lambda w: w.target.__setitem__(2, ("t/0", 2, 1)),
        ["lost-record", "origin-from-nowhere"],
    ),
    "a row of no batch": (
        lambda w: w.target.__setitem__(1, ("t/0", 0, 7)),
        ["lost-record", "origin-from-nowhere"],
    ),
}


@pytest.mark.parametrize("name", ONE_FOR_THE_OTHER)
def test_a_row_of_one_topic_does_not_stand_for_that_of_the_other(tmp_path: Path, name: str) -> None:
    falsify, wanted = ONE_FOR_THE_OTHER[name]
    world = _created_again(tmp_path)
    falsify(world)
    assert kinds(world.audit()) == wanted


def test_without_raw_records_too_each_record_of_either_topic_is_there_once(tmp_path: Path) -> None:
    world = _created_again(tmp_path)
    world.source, world.kept, world.raw, world.later = _UNKEPT, [], {}, {}
    assert kinds(world.audit()) == []
    world = _created_again(tmp_path / "wrong")
    world.source, world.kept, world.raw, world.later = _UNKEPT, [], {}, {}
    world.target[3] = ("t/0", 2, 0)
    assert kinds(world.audit()) == ["double-origin"]


@pytest.mark.parametrize(
    ("batches", "wanted"), [((2, 3), []), ((2, 2), ["double-origin", "lost-record"])]
)
def test_a_replay_of_refused_rows_of_both_topics_appends_each_once(
    tmp_path: Path, batches: tuple[int, int], wanted: list[str]
) -> None:
    world = _created_again(tmp_path)
    asked = world.write()
    ids = [row["quarantine_id"] for row in asked.layout.tables.quarantine.rows("select * from t")]
    for nth, number in enumerate(batches):
        row = BatchRow("p", "f", 1, nth, "again", kind="release", records=1, inserted=1)
        row = replace(row, changed_at=stamp_of(2 + nth), started_at=AT, finished_at=AT)
        write_deltalake(
            asked.layout.tables.target.path, appended([(("t/0", 1), number)]), mode="append"
        )
        version = asked.layout.tables.target.version
        stamp(Path(asked.layout.tables.target.path), version, row, "WRITE")
        ledger_table.record(asked.layout, [replace(row, table_version=version)])
    decided = [
        {"quarantine_id": id, "action": "released", "at": AT, "by": "me", "run_id": "again"}
        for id in ids
    ]
    write_deltalake(
        asked.layout.tables.resolutions.path, pa.Table.from_pylist(decided, RESOLUTIONS)
    )
    assert kinds(audit(asked.spec, "f", root=world.root)) == wanted


def test_a_refused_record_of_the_topic_before_does_not_stand_for_that_of_the_new_one(
    tmp_path: Path,
) -> None:
    world = _created_again(tmp_path)
    world.refused_by = [0, 0]
    assert "lost-record" in kinds(world.audit())


def _reset_onto_another_topic(root: Path) -> World:
    """Generation 1 read the topic that was before, generation 2 that of today: each refused its
    record 1.
    """
    world = _created_again(root)
    world.keyed, world.generations, world.cuts = True, [1, 2], [1, 1]
    world.target, world.tombstones = [("a", 3), ("b", 2), ("z", 0)], [("c", 8)]
    for place in (("t/1", 8),):
        world.records[place] = world.raw[place] = ("c", None)
    refused = {"quarantined": 1, "reasons": {"malformed": 1}}
    world.counts = [
        {"inserted": 2, "superseded": 2, "tombstoned": 1} | refused,
        {"inserted": 1} | refused,
    ]
    return world


def test_after_a_reset_onto_a_topic_that_was_created_again_all_is_clean(tmp_path: Path) -> None:
    found = _reset_onto_another_topic(tmp_path).audit()
    assert found.residues == [] and found.unlooked == [] and found.seen["raw records"] == 8


@pytest.mark.parametrize(
    ("span", "excused"),
    [
        (Span("t", 0, "x", 0, 4), True),
        (Span("t", 0, "x", 2, 4), False),
        (Span("t", 0, "y", 0, 4), False),
        (Span("t", 1, "x", 0, 4), False),
    ],
    ids=["read again", "another range", "another topic", "another partition"],
)
def test_only_a_row_that_was_read_again_excuses_one_that_is_gone(
    tmp_path: Path, span: Span, excused: bool
) -> None:
    world = World(tmp_path, keyed=True)
    world.slices = [SLICES[0], [span]]
    world.read[1] = [Input(span.unit, span.start, span.until, 100, span.size)]
    world.generations, world.cuts = [1, 2], [1, 1]
    world.counts[1] = {"duplicate": span.size - 1, "quarantined": 1, "reasons": {"malformed": 1}}
    assert ("quarantine-count" in kinds(world.audit())) != excused
