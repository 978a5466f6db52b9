"""Late rows on disk, and decisions about them: which are in the source, what was decided, what counts from when."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.base.errors import TerminalError
from draindown.lake.layout import FlowLayout
from draindown.sources import intake
from draindown.sources.tables import late
from draindown.sources.tables.late import Place
from draindown.sources.tables.source import OWN

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LAYOUT = {"pipeline": "p", "flow": "d", "table_name": "d", "own_intakes": True}


def seen(number: int, piece: int, change: str = "came", generation: int = 1) -> dict[str, Any]:
    """A row of the table of late rows, as the batch of slice `piece` wrote it."""
    return {
        "late_id": f"{number:04x}",
        "origin": {"unit": "file", "position": number},
        "event_time": NOW,
        "arrived_at": NOW,
        "lateness": 100 + number,
        "window_start": NOW,
        "groups": "{}",
        "record": f'{{"id":{number}}}',
        "change": change,
        "slice": piece,
        "generation": generation,
    }


def pinned(layout: FlowLayout, number: int, *, fill: bool) -> None:
    own = {"table_id": "t", "derivation": "d", "fill": fill, "changes": False, "rows": 1, "bucket": 0, "buckets": 1}
    unit = {"unit": "t", "start": -1, "until": 1, "bytes": 1, "unpacked": 1, "records": None, "arrived_at": NOW}
    intake.append(layout, 1, OWN, [unit | own | {"decided_from": 0, "decided": 0}], NOW, number)


@pytest.fixture
def layout(tmp_path: Path) -> FlowLayout:
    found = FlowLayout(str(tmp_path / "lake"), **LAYOUT)  # type: ignore[arg-type]
    for number, fill in enumerate((True, False, True, False), 1):
        pinned(found, number, fill=fill)
    return found


def ids(place: Place, state: Any = "open") -> list[int]:
    return [row["origin"]["position"] for row in late.listed(place, state)]


def test_rows_that_are_in_the_source_since_the_newest_fill_are_listed(layout: FlowLayout) -> None:
    assert ids(Place(layout, 1, 5)) == [] and late.counts(Place(layout, 1, 5))["open"] == 0
    rows = [seen(1, 1), seen(2, 1), seen(2, 3), seen(3, 3), seen(3, 4, "went"), seen(4, 4), seen(5, 3, generation=2)]
    write_deltalake(layout.late, pa.Table.from_pylist(rows))
    assert ids(Place(layout, 1, 5)) == [4, 2], (
        "1 is gone since the fill of slice 3, 3 since slice 4; 5 is of another life"
    )
    assert ids(Place(layout, 1, 4)) == [3, 2], "slice 4 is yet to be read"
    assert ids(Place(layout, 1, 3)) == [2, 1], "the second fill, too"


def test_the_newest_decision_counts_and_the_first_to_apply_counts_from_then(layout: FlowLayout) -> None:
    write_deltalake(layout.late, pa.Table.from_pylist([seen(number, 3) for number in range(4)]))
    place = Place(layout, 1, 5)
    assert late.newest(layout) == 0 and late.applied(layout, 0, 9) == []
    rows = {row["origin"]["position"]: row for row in late.listed(place)}
    assert late.decide(place, [rows[0], rows[1]], "discarded", by="me", note="", at=NOW) == 1
    assert late.newest(layout) == 0, "nothing counts since"
    assert late.decide(place, [rows[1], rows[2]], "applied", by="me", note="", at=NOW) == 2
    assert late.decide(place, [rows[2], rows[3]], "applied", by="me", note="", at=NOW) == 3
    assert late.counts(place) == {"open": 0, "applied": 3, "discarded": 1} and ids(place, "discarded") == [0]
    assert late.newest(layout) == 3
    assert sorted(late.applied(layout, 0, 2)) == [("file", 1), ("file", 2)]
    assert late.applied(layout, 2, 3) == [("file", 3)], "2 counts since decision 2"


def test_an_id_names_one_row_that_can_be_decided_about_so(layout: FlowLayout) -> None:
    write_deltalake(layout.late, pa.Table.from_pylist([seen(0x10, 3), seen(0x11, 3)]))
    place = Place(layout, 1, 5)
    for start in ("001", "ff"):
        with pytest.raises(TerminalError) as error:
            late.chosen(place, [start], "applied")
        assert error.value.code == "unknown-late-row"
    (row,) = late.chosen(place, ["0011"], "applied")
    late.decide(place, [row], "discarded", by="me", note="", at=NOW)
    assert [one["late_id"] for one in late.chosen(place, [], "applied")] == ["0010"], "open ones"
    assert late.chosen(place, ["0011"], "applied") and len(late.listed(place, None)) == 2
    with pytest.raises(TerminalError):
        late.chosen(place, ["0011"], "discarded")
