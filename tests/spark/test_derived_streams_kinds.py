"""Every kind of derived table through real streams: random histories, and replay, rebuild and reset
in between.

Histories lie side by side in one lake, each with keys of its own. Flows run in random order,
divided into few keys a batch or not at all, and some drains die. A model in plain Python and DuckDB
say what the tables should be.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.gate import published
from draindown.ledger import table as ledger_table
from draindown.recovery import reset
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.request import Again
from draindown.sources.tables import followed
from draindown.sources.tables import source as tables
from draindown.sources.tables.upstream import changes_rows
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_input import replay
from tests.folding import fold
from tests.landing import Injected
from tests.spark.test_derived_flow import FLIGHTS, START, Chain
from tests.spark.test_processed import CODE, write

HISTORIES, TOGETHER = 50, 25
_TOGETHER = [("joined", "looked", "statuses"), ("visits", "newest", "worst"), ("baskets",)]
_ROWS = (150, tables.ROWS)
"""Rows that one batch compares: changes are several batches, or one."""
_GAP, _LOW, _HIGH = timedelta(minutes=10), timedelta(minutes=-10), timedelta(minutes=30)
_STEPS = ("begun", "read", "inputs", "remembered", "merged", "recorded")
GATES = {
    "source": {"files": "gates/*", "format": "json"},
    "columns": {
        "id": "int not null",
        "seq": "int not null",
        "op": "string",
        "carrier": "string",
        "at": "timestamp",
        "temp": "int",
    },
    "target": {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"},
}
_PAST = {
    "keys": ["id"],
    "sequence_by": ["seq"],
    "track_history": ["temp"],
    "apply_as_deletes": "op = 'd'",
}
PAST = GATES | {"target": _PAST | {"stored_as_scd_type": 2}}
_BESIDE: dict[str, tuple[str, Any]] = {
    "statuses": ("events", FLIGHTS | {"target": {}}),
    "told": ("gate_events", GATES | {"target": {}}),
    "recalled": ("past", PAST),
}
"""Landing flows of the same files that a kind reads besides flights and gates."""


def _asks(history: str) -> Any:
    """Each flight with the gate of its delay, as a history has it at the flight's sequence."""
    part = {
        "table": history,
        "on": {"delay": "id"},
        "columns": {"temp": "temp", "carrier": "by"},
        "as_of": "seq",
    }
    return _ONE | {"lookup": part}


_ONE = {"source": {"table": "flights"}}
KINDS: dict[str, Any] = {
    "joined": _ONE
    | {
        "join": {
            "table": "gates",
            "on": ["carrier"],
            "interval": {"left": "at", "right": "at", "between": ["-10 minutes", "30 minutes"]},
            "how": "left_outer",
            "columns": {"id": "gate", "at": "seen", "temp": "temp"},
        },
    },
    "looked": _ONE | {"lookup": {"table": "gates", "on": {"delay": "id"}, "columns": ["temp"]}},
    "visits": _ONE
    | {
        "session": {
            "time": "at",
            "gap": "10 minutes",
            "group_by": ["carrier"],
            "measures": {"n": "count(*)", "delay": "sum(delay)"},
        }
    },
    "newest": _ONE | {"deduplicate": {"keys": ["carrier"], "sequence_by": ["at"], "keep": "last"}},
    "worst": _ONE | {"top": {"group_by": ["carrier"], "order_by": ["delay desc"], "rows": 2}},
    "baskets": _ONE
    | {
        "processor": {
            "class": "shop.Basket",
            "group_by": ["carrier"],
            "order_by": ["at"],
            "gap": "10 minutes",
            "columns": {"n": "bigint", "sum": "bigint"},
            "state": {"n": "bigint", "last": "array<bigint>"},
        }
    },
    "statuses": {
        "source": {"table": "events"},
        "target": {
            "keys": ["id"],
            "sequence_by": ["seq"],
            "stored_as_scd_type": 2,
            "track_history": ["carrier", "delay"],
            "apply_as_deletes": "op = 'd'",
        },
    },
    "told": {"source": {"table": "gate_events"}, "target": _PAST | {"stored_as_scd_type": 2}},
    "asked": _asks("told"),
    "recalled": _asks("past"),
}
_COLUMNS = {
    "joined": "id, gate, delay, temp",
    "looked": "id, delay, temp, gates_found",
    "visits": "carrier, session_start, session_end, n, delay",
    "newest": "carrier, id",
    "worst": "carrier, position, id",
    "baskets": 'carrier, session_start, position, n, "sum"',
    "statuses": 'id, "__START_AT", "__END_AT", seq, carrier, delay',
    "told": 'id, "__START_AT", "__END_AT", seq, carrier, temp',
    "asked": "id, delay, temp, by, told_found",
    "recalled": "id, delay, temp, by, past_found",
}
Row = dict[str, Any]
Found = Counter[tuple[Any, ...]]


class World(Chain):
    """Landing flows of flights and gates, with all events of the flights beside, and derived flows
    over them.
    """

    def __init__(self, home: Path, spark: SparkSession, *kinds: str) -> None:
        beside = dict(_BESIDE[kind] for kind in kinds if kind in _BESIDE)
        super().__init__(
            home, spark, **{"gates": GATES, **beside}, **{one: KINDS[one] for one in kinds}
        )
        self.kinds, self.landing = kinds, ("flights", "gates", *beside)
        (home / "gates").mkdir()
        write(home, CODE)
        self.events: dict[str, list[Row]] = {"flights": [], "gates": []}
        self.held: tuple[list[Row], list[Row]] = ([], [])
        self.newest: dict[str, dict[int, Row]] = {"flights": {}, "gates": {}}

    def land(self, flights: Sequence[Row], gates: Sequence[Row]) -> None:
        """Deliver rows of both, and note what the landing tables hold then."""
        self.deliver(*flights)
        (self.home / "gates" / f"{self.files:03}.json").write_text(
            "".join(json.dumps(row) + "\n" for row in gates)
        )
        for table, rows in (("flights", flights), ("gates", gates)):
            self.events[table] += rows
            for row in rows:
                known = self.newest[table].get(row["id"])
                if known is None or row["seq"] > known["seq"]:
                    self.newest[table][row["id"]] = row

    def gate(
        self, number: int, minutes: int | None, carrier: str | None = "AA", **more: Any
    ) -> Row:
        found = self.row(number, minutes, carrier, **more)
        del found["delay"]
        return {"temp": number % 7, **found}

    def begin(self) -> None:
        """Land what was delivered, and fill. Feeds are on from the end of the first drains."""
        for _ in range(2):
            self.run(*self.landing)
        self.run(*self.kinds)

    def expected(self, kind: str) -> Found:
        """The rows of a table, by plain Python."""
        flights, gates = (
            [row | {"at": _time(row["at"])} for row in own.values() if row.get("op") != "d"]
            for own in (self.newest["flights"], self.newest["gates"])
        )
        return _MODELS[kind](
            flights, gates, self.events["flights" if kind == "statuses" else "gates"]
        )

    def found(self, kind: str) -> Found:
        rows = self.layout(kind).tables.target.rows(f"select {_COLUMNS[kind]} from t")
        return Counter(tuple(row.values()) for row in rows)

    def hold(self, *kinds: str) -> None:
        """Compare tables with the model and with DuckDB, and their ledgers with both accounts."""
        for kind in kinds or self.kinds:
            assert self.found(kind) == self.expected(kind), kind
            proof = self.proof(kind)
            assert proof.holds, (kind, proof)
            rows = [
                row for row in ledger_table.recent(self.layout(kind), 10_000) if row.kind == "drain"
            ]
            assert len({(row.generation, row.batch) for row in rows}) == len(rows)
            for row in rows:
                assert row.records == row.used + row.unused + row.late
                assert (
                    row.recomputed
                    == row.inserted + row.updated + row.deleted + row.unchanged + row.empty
                )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _joined(flights: Sequence[Row], gates: Sequence[Row], _: Sequence[Row]) -> Found:
    found: Found = Counter()
    for one in flights:
        near = [
            other
            for other in gates
            if one["carrier"] is not None and one["carrier"] == other["carrier"]
        ]
        matches = [other for other in near if _in_reach(one["at"], other["at"])]
        found.update((one["id"], other["id"], one["delay"], other["temp"]) for other in matches)
        if not matches:
            found[one["id"], None, one["delay"], None] += 1
    return found


def _in_reach(at: datetime | None, seen: datetime | None) -> bool:
    return at is not None and seen is not None and _LOW <= seen - at <= _HIGH


def _looked(flights: Sequence[Row], gates: Sequence[Row], _: Sequence[Row]) -> Found:
    by_id = {row["id"]: row["temp"] for row in gates}
    return Counter(
        (row["id"], row["delay"], by_id.get(row["delay"]), row["delay"] in by_id) for row in flights
    )


def _visits(flights: Sequence[Row], _gates: Sequence[Row], _: Sequence[Row]) -> Found:
    found: Found = Counter()
    for carrier, own in _by_carrier(flights):
        runs: list[list[Row]] = []
        for row in sorted((row for row in own if row["at"] is not None), key=lambda row: row["at"]):
            if not runs or row["at"] - runs[-1][-1]["at"] > _GAP:
                runs.append([])
            runs[-1].append(row)
        for run in runs:
            known = [row["delay"] for row in run if row["delay"] is not None]
            total = sum(known) if known else None
            found[carrier, run[0]["at"], run[-1]["at"] + _GAP, len(run), total] += 1
    return found


def _baskets(flights: Sequence[Row], _gates: Sequence[Row], _: Sequence[Row]) -> Found:
    """Every second row of a run gives one, with the sum of it and the row before; the run's end
    gives one more.
    """
    found: Found = Counter()
    for carrier, own in _by_carrier(flights):
        rows = sorted(
            (row for row in own if row["at"] is not None),
            key=lambda row: (
                row["at"],
                *((not known, value) for known, value in [_known(row["delay"], 0)]),
                row["id"],
            ),
        )
        runs: list[list[Row]] = []
        for row in rows:
            if not runs or row["at"] - runs[-1][-1]["at"] > _GAP:
                runs.append([])
            runs[-1].append(row)
        for run in runs:
            numbers = [row["delay"] for row in run]
            made = [
                (at, sum(one or 0 for one in numbers[at - 2 : at]))
                for at in range(2, len(run) + 1, 2)
            ]
            made.append((-len(run), numbers[-1]))
            found.update((carrier, run[0]["at"], at, *row) for at, row in enumerate(made, 1))
    return found


def _newest(flights: Sequence[Row], _gates: Sequence[Row], _: Sequence[Row]) -> Found:
    """The greatest time, then the greatest of the other columns by name: delay, id. NULL loses."""

    def rank(row: Row) -> tuple[Any, ...]:
        return (*_known(row["at"], START), *_known(row["delay"], 0), row["id"])

    return Counter((carrier, max(own, key=rank)["id"]) for carrier, own in _by_carrier(flights))


def _worst(flights: Sequence[Row], _gates: Sequence[Row], _: Sequence[Row]) -> Found:
    """The greatest delays, then the least of the other columns by name: at, id. NULL comes last."""

    def rank(row: Row) -> tuple[Any, ...]:
        return (
            row["delay"] is None,
            -(row["delay"] or 0),
            row["at"] is None,
            row["at"] or START,
            row["id"],
        )

    found: Found = Counter()
    for carrier, own in _by_carrier(flights):
        found.update(
            (carrier, at, row["id"]) for at, row in enumerate(sorted(own, key=rank)[:2], 1)
        )
    return found


def _statuses(_flights: Sequence[Row], _gates: Sequence[Row], events: Sequence[Row]) -> Found:
    known = [{"op": None, **row} for row in events]
    rows = fold(known, ["id"], ["seq"], ["carrier", "delay"], lambda event: event["op"] == "d")
    return Counter(
        (
            row["id"],
            row["start"][0],
            row["end"][0] if row["end"] else None,
            row["seq"],
            row["carrier"],
            row["delay"],
        )
        for row in rows
    )


def _told(_flights: Sequence[Row], _gates: Sequence[Row], events: Sequence[Row]) -> Found:
    rows = [(row, row["start"][0], row["end"] and row["end"][0]) for row in _history(events)]
    return Counter(
        (row["id"], start, end, row["seq"], row["carrier"], row["temp"]) for row, start, end in rows
    )


def _asked(flights: Sequence[Row], _gates: Sequence[Row], events: Sequence[Row]) -> Found:
    found, past = Counter[tuple[Any, ...]](), list(_history(events))
    for one in flights:
        then = [row for row in past if row["id"] == one["delay"] and row["start"] <= (one["seq"],)]
        then = [row for row in then if row["end"] is None or (one["seq"],) < row["end"]]
        assert len(then) <= 1
        values = (then[0]["temp"], then[0]["carrier"], True) if then else (None, None, False)
        found[one["id"], one["delay"], *values] += 1
    return found


def _history(events: Sequence[Row]) -> Sequence[Row]:
    return fold(
        [{"op": None, **row} for row in events],
        ["id"],
        ["seq"],
        ["temp"],
        lambda event: event["op"] == "d",
    )


def _by_carrier(rows: Sequence[Row]) -> list[tuple[str | None, list[Row]]]:
    return [
        (one, [row for row in rows if row["carrier"] == one])
        for one in {row["carrier"] for row in rows}
    ]


def _known(value: Any, otherwise: Any) -> tuple[bool, Any]:
    return value is not None, otherwise if value is None else value


_MODELS: dict[str, Callable[[Sequence[Row], Sequence[Row], Sequence[Row]], Found]] = {
    "joined": _joined,
    "looked": _looked,
    "visits": _visits,
    "baskets": _baskets,
    "newest": _newest,
    "worst": _worst,
    "statuses": _statuses,
    "told": _told,
    "asked": _asked,
    "recalled": _asked,
}


class History:
    """What happens to the keys of one history: rows that come late, change, move to other times and
    keys, and go.
    """

    def __init__(self, it: World, number: int, seed: int) -> None:
        self._it, self._number, self._draw = it, number, Random(seed)

    def rows(self, most: int) -> tuple[list[Row], list[Row]]:
        return [self._flight() for _ in range(most)], [self._gate() for _ in range(most // 2)]

    def _flight(self) -> Row:
        found = self._it.row(*self._place(12), delay=self._draw.choice((None, 0, 1, 2, 5, 9)))
        return self._fated(found)

    def _gate(self) -> Row:
        number, minutes, carrier = self._place(4)
        return self._fated(
            self._it.gate(number % 10 if self._draw.random() < 0.5 else number, minutes, carrier)
        )

    def _place(self, most: int) -> tuple[int, int | None, str | None]:
        draw = self._draw
        minutes = draw.choice(
            (None, 0, 10, 11, 40, 41, draw.randint(-60, 60), draw.randint(-4000, 4000))
        )
        carrier = draw.choice((None, f"{self._number}a", f"{self._number}a", f"{self._number}b"))
        return self._number * 100 + draw.randrange(most), minutes, carrier

    def _fated(self, row: Row) -> Row:
        return row | {"op": "d"} if self._draw.random() < 0.15 else row


def _change(it: World, histories: Sequence[History], draw: Random, most: int) -> None:
    """Deliver changes of all histories in any order, some a file later, and perhaps a file a second
    time.
    """
    flights, gates = it.held
    for one in histories:
        some, others = one.rows(most)
        flights, gates = flights + some, gates + others
    for rows in (flights, gates):
        draw.shuffle(rows)
    some, few = len(flights) // 6, len(gates) // 6
    it.held = flights[:some], gates[:few]
    it.land(flights[some:], gates[few:])
    if draw.random() < 0.5:
        known = draw.choice(sorted((it.home / "landing").iterdir()))
        shutil.copy(known, known.with_name(f"again-{it.files:03}.json"))


def _died(it: World, kind: str, step: str) -> bool:
    """Drain a flow, and die at a step of its first batch; False if it had nothing to do."""
    left = [step]

    def dying(name: str) -> None:
        if left and name == left[0]:
            left.clear()
            raise Injected(name)

    try:
        it.drain(kind, reached=dying)
    except Injected:
        return True
    assert left, "the drain went on after its death"
    return False


GROUPS = [
    ("joined", "looked", "statuses"),
    ("visits", "newest", "worst"),
    ("told", "asked", "recalled"),
    ("baskets",),
]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, HISTORIES, TOGETHER))
@pytest.mark.parametrize("kinds", GROUPS, ids="-".join)
def test_all_kinds_equal_their_queries_after_any_history(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    kinds: tuple[str, ...],
    first: int,
) -> None:
    draw, it = Random(first), World(tmp_path / "project", spark, *kinds)
    histories = [History(it, number, number) for number in range(first, first + TOGETHER)]
    monkeypatch.setattr(tables, "ROWS", _ROWS[first // TOGETHER])
    _change(it, histories, draw, 4)
    it.begin()
    it.hold()
    deaths = 0
    for _ in range(2):
        _change(it, histories, draw, 3)
        flows = [*it.landing, *it.kinds]
        for flow in draw.sample(flows, len(flows)):
            if flow in it.kinds and draw.random() < 0.5:
                deaths += _died(it, flow, draw.choice(_STEPS))
            it.run(flow)
    if not deaths:  # a kind by itself may have had nothing to do each time
        _change(it, histories, draw, 3)
        it.run(*it.landing)
        deaths += any(_died(it, kind, "merged") for kind in it.kinds)
    it.run()
    it.hold()
    assert deaths and not any(it.waits(flow) for flow in it.spec.flows)
    rows = {kind: ledger_table.recent(it.layout(kind), 10_000) for kind in it.kinds}
    assert all(
        len(own) > 1 and sum(row.updated + row.deleted for row in own) for own in rows.values()
    )


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kinds", [("joined", "statuses", "baskets")], ids="-".join)
def test_quiet_tables_are_followed_by_batches_without_rows(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    it = World(tmp_path / "project", spark, *kinds)
    _change(it, [History(it, number, number) for number in range(4)], Random(1), 4)
    it.begin()
    it.land([], [])
    it.run(*it.landing)
    assert not any(it.waits(kind) for kind in it.kinds), "no row changed"
    before = {kind: it.layout(kind).tables.target.version for kind in it.kinds}
    monkeypatch.setattr(followed, "RENEWED", timedelta(0))
    assert all(it.waits(kind) for kind in it.kinds)
    it.run(*it.kinds)
    it.hold()
    assert not any(it.waits(kind) for kind in it.kinds), (
        "they have the newest versions, however old"
    )
    for kind in it.kinds:
        (newest,) = ledger_table.recent(it.layout(kind), 1)
        (commit,) = it.layout(kind).tables.target.commits_since(before[kind])
        assert (newest.records, newest.recomputed, newest.applied, newest.table_version) == (
            0,
            0,
            0,
            commit.version,
        )
        assert not changes_rows(commit), "who reads this table has nothing to read"
        pointer = published.published(it.layout(kind))
        assert pointer is not None and pointer.version == commit.version


_HURT = {
    "joined": "update {t} set temp = 99 where id % 2 = 1",
    "looked": "update {t} set temp = 99 where id % 2 = 1",
    "visits": "update {t} set n = 99 where carrier = '1a'",
    "baskets": "update {t} set n = 99 where carrier = '1a'",
    "newest": "update {t} set noise = 'x' where carrier = '1a'",
    "worst": "update {t} set noise = 'x' where carrier = '1a'",
    "recalled": "update {t} set temp = 99 where id % 2 = 1",
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "whole"), [("joined", False), *((one, True) for one in _HURT)])
def test_a_hurt_table_is_put_right_by_replay_rebuild_and_reset(
    tmp_path: Path, spark: SparkSession, kind: str, whole: bool
) -> None:
    it, draw = World(tmp_path / "project", spark, kind), Random(3)
    history = History(it, 1, 3)
    _change(it, [history], draw, 20)
    it.begin()
    _change(it, [history], draw, 8)
    it.run(*it.landing, kind)
    it.hold()

    def hurt() -> None:
        table = f"delta.`{it.layout(kind).tables.target.path}`"
        spark.sql(_HURT[kind].format(t=table))
        spark.sql(f"delete from {table} where carrier is null")
        assert not it.proven(kind)

    hurt()
    everything = Again(since=datetime(2020, 1, 1, tzinfo=UTC), until=now())
    request = it.request(kind).model_copy(update={"replay": everything})
    assert replay(request, spark, progress=lambda line: None).outcome == "done"
    it.hold()
    hurt()
    assert rebuild(it.request(kind), spark, progress=lambda line: None).outcome == "done"
    it.hold()
    if not whole:
        return
    hurt()
    found = reset.plan(it.request(kind))
    with open_flow(it.spec, kind, Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(it.request(kind), found, by="me", accept_missing=False)
    it.run(kind)
    it.hold()
    newest = ledger_table.recent(it.layout(kind), 1)[0]
    assert newest.generation == 3 and newest.inserted and newest.updated + newest.deleted, (
        "it repaired the table"
    )
    _change(it, [history], draw, 8)
    it.run(*it.landing, kind)
    it.hold()
    assert not it.waits(kind)
