"""What `why` tells of records of histories and of merged rows, over random keys against plain
loops.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from draindown.base.clock import EPOCH
from draindown.config.landing import FlowSpec
from draindown.config.partial import SEQUENCES
from draindown.provenance import events, merged
from draindown.provenance.deletes import deletes_of
from draindown.provenance.fates import Contents, Ends
from draindown.provenance.model import Trace
from draindown.provenance.records import Names, Record, Values
from draindown.provenance.scan import Found
from draindown.sources.slices import Unit
from tests.folding import Row, _content, fold
from tests.merging import merge

_NAMES = ("id", "seq", "op", "a", "b")
_COLUMNS = {
    "id": "string not null",
    "seq": "int not null",
    "op": "string",
    "a": "int",
    "b": "string",
}
_FLOW = FlowSpec.model_validate(
    {
        "source": {"files": "landing/*", "format": "json"},
        "columns": _COLUMNS,
        "target": {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"},
    }
)
_UNIT = Unit("f", 0, 0, 0, 0, None, EPOCH, {})
_BATCH = (1, "drain", 0)


def _found(position: int, record: Row) -> Found:
    def read(names: Names) -> Values:
        return tuple(record[name] for name in names)

    return Found(_BATCH, _UNIT, Record(position, json.dumps(record).encode(), read), ("k",))


def _records(draw: Random) -> list[Row]:
    found = [
        {
            "id": "k",
            "seq": draw.randrange(7),
            "op": "d" if draw.random() < 0.15 else None,
            "a": draw.choice((None, 1, 2)),
            "b": draw.choice((None, "x", "y")),
        }
        for _ in range(draw.randint(1, 12))
    ]
    return [*found, *found[: draw.randrange(3)]]


def _is_delete(record: Row) -> bool:
    return bool(record["op"] == "d")


def _judged(
    judge: Any, records: Sequence[Row], row: Row | None, dead: int | None
) -> dict[int, tuple[str, str]]:
    how = Contents(("seq",), ("a", "b"), judge)
    ends = Ends(row, _BATCH, {} if dead is None else {_BATCH: (dead,)}, ())
    known = [(_found(at, record), (record["seq"],)) for at, record in enumerate(records)]
    return {one.record.position: (fate, why) for one, fate, why, _ in judge(known, how, ends)}


@pytest.mark.parametrize("seed", range(4))
def test_each_event_of_a_row_has_its_place_there(seed: int) -> None:
    draw = Random(seed)
    for _ in range(500):
        records = _records(draw)
        by: dict[int, list[Row]] = {}
        for record in records:
            by.setdefault(record["seq"], []).append(record)
        counting = {
            at: next((one for one in same if _is_delete(one)), max(same, key=_content))
            for at, same in by.items()
        }
        rows = [
            {**row, "__START_AT": row["start"][0], "__END_AT": row["end"] and row["end"][0]}
            for row in fold(records, ["id"], ["seq"], ["a"], _is_delete)
        ]
        hidden = [
            {**one, "_delete": _is_delete(one), "_changed_at": at} for at, one in counting.items()
        ]
        for row in rows:
            start, end = row["__START_AT"], row["__END_AT"]
            judge = events.Judge(
                events.Events.of(rows, hidden, ("seq",)), deletes_of(_FLOW), only=True
            )
            told = _judged(judge, records, row, None)
            within = [
                at
                for at, one in enumerate(records)
                if start <= one["seq"] and (end is None or one["seq"] <= end)
            ]
            assert sorted(told) == within
            for seq in {records[at]["seq"] for at in within}:
                own = [at for at in within if records[at]["seq"] == seq]
                (won,) = [at for at in own if told[at][0] in ("applied", "deleted")]
                assert records[won] == counting[seq] or (
                    _is_delete(records[won]) and _is_delete(counting[seq])
                )
                what = (
                    "begins the row"
                    if seq == start
                    else "ends the row"
                    if seq == end
                    else "in the row"
                )
                assert told[won][1] == f"seq {seq}: {what}" and (
                    told[won][0] == "deleted"
                ) == _is_delete(records[won])
                for at in own:
                    same = records[at] == records[won] or (
                        _is_delete(records[at]) and _is_delete(records[won])
                    )
                    assert at == won or told[at][0] == ("duplicate" if same else "superseded")


@pytest.mark.parametrize("seed", range(4))
def test_each_value_of_a_merged_row_is_of_a_record(seed: int) -> None:
    draw = Random(seed)
    for _ in range(500):
        records = _records(draw)
        dead = max((one["seq"] for one in records if _is_delete(one)), default=None)
        found = merge(records, ["id"], ["seq"], [], ["op", "a", "b"], _is_delete)
        row = (
            None
            if not found
            else {**found[0][0], SEQUENCES: [(name, at) for name, (at,) in found[0][1].items()]}
        )
        told = _judged(merged.Judge(("op", "a", "b"), deletes_of(_FLOW)), records, row, dead)
        gave: dict[str, Any] = {}
        for at, (fate, why) in told.items():
            if fate == "applied":
                for name in why.partition(": ")[2].removesuffix(" of the row").split(", "):
                    gave[name] = records[at][name]
            assert (fate == "deleted") <= (_is_delete(records[at]) and records[at]["seq"] == dead)
        held = (
            {}
            if row is None
            else {name: row[name] for name in ("a", "b", "seq") if row[name] is not None}
        )
        assert gave == held
        assert sum(fate == "deleted" for fate, _ in told.values()) == (dead is not None)


def test_the_command_of_a_key_is_one_that_a_shell_passes_on() -> None:
    key = {"id": "a b'; rm", "at": datetime(2026, 3, 1, tzinfo=UTC), "g": None, "n": 3}
    command = Trace("p", "f", "t", key, "deleted", "").command
    assert shlex.split(command) == [
        *(
            "draindown",
            "why",
            "p/t",
            "--key",
            "id=a b'; rm",
            "--key",
            "at=2026-03-01T00:00:00+00:00",
        ),
        *("--key", "g is null", "--key", "n=3"),
    ]
