"""Refused rows: counted, filtered, decided once, and shown so that no terminal or spreadsheet obeys them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from draindown.base.errors import TerminalError
from draindown.base.formatting import printable
from draindown.cli.output import as_csv
from draindown.flow import quarantine
from draindown.flow.quarantine import Filter
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog
from tests.flowfiles import REFUSED

AT = datetime(2026, 1, 1, tzinfo=UTC)


def refused(identity: str, **more: Any) -> dict[str, Any]:
    row = {
        "quarantine_id": identity,
        "file": "/in/a.json",
        "position": 1,
        "raw": "{",
        "raw_bytes": None,
        "raw_length": 1,
    }
    why = {"reason": "malformed", "field": None, "detail": None, "generation": 1, "batch": 0, "kind": "source"}
    return row | why | {"run_id": "r1", "first_seen": AT, "refused_at": AT} | more


ROWS = [
    refused("aa1", position=1),
    refused("aa2", position=2, reason="type", field="n", refused_at=AT + timedelta(seconds=1)),
    refused("bb3", position=3, run_id="it's", raw="\x1b[2J", raw_bytes=b"\x1b[2J\xff"),
]


@pytest.fixture
def layout(tmp_path: Path) -> FlowLayout:
    found = FlowLayout(str(tmp_path), "p", "f", "f")
    delta.append(found.quarantine, pa.Table.from_pylist(ROWS, REFUSED))
    return found


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["quarantine_id"] for row in rows]


def test_nothing_refused_is_no_error(tmp_path: Path) -> None:
    empty = FlowLayout(str(tmp_path), "p", "f", "f")
    assert quarantine.counts(empty).as_dict() == {
        "refused": 0,
        "released": 0,
        "discarded": 0,
        "open": 0,
        "by_reason": {},
    }
    assert quarantine.listed(empty, Filter()) == []
    assert quarantine.identified(empty, Filter()) == []


def test_open_is_refused_less_released_less_discarded(layout: FlowLayout) -> None:
    quarantine.resolve(layout, ["aa1"], "released", by="me")
    quarantine.discard(layout, ["bb3"], by="me")
    counts = quarantine.counts(layout)
    assert (counts.refused, counts.released, counts.discarded, counts.open) == (3, 1, 1, 1)
    assert counts.by_reason == {"type": 1}


def test_a_row_is_decided_once(layout: FlowLayout) -> None:
    assert quarantine.discard(layout, ["aa1", "aa1"], by="me") == 1
    assert quarantine.resolve(layout, ["aa1"], "released", by="you") == 0
    assert quarantine.counts(layout).as_dict() | {"by_reason": {}} == {
        "refused": 3,
        "released": 0,
        "discarded": 1,
        "open": 2,
        "by_reason": {},
    }


def test_originals_stay_as_they_were(layout: FlowLayout) -> None:
    before = TableLog(layout.quarantine).query("select * from t order by quarantine_id").to_pylist()
    quarantine.discard(layout, ["aa1"], by="me", note="old")
    assert TableLog(layout.quarantine).query("select * from t order by quarantine_id").to_pylist() == before
    (decision,) = TableLog(layout.resolutions).query("select * from t").to_pylist()
    assert (decision["action"], decision["by"], decision["note"]) == ("discarded", "me", "old")


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (Filter(), ["aa1", "bb3", "aa2"]),
        (Filter(reason="type"), ["aa2"]),
        (Filter(run_id="it's"), ["bb3"]),
        (Filter(ids=("aa",)), ["aa1", "aa2"]),
        (Filter(reason="' or 1=1 --"), []),
        (Filter(state="discarded"), []),
        (Filter(reason="type", run_id="it's"), []),
    ],
)
def test_filters(layout: FlowLayout, which: Filter, expected: list[str]) -> None:
    assert ids(quarantine.listed(layout, which)) == expected


def test_states(layout: FlowLayout) -> None:
    quarantine.discard(layout, ["aa1"], by="me")
    assert ids(quarantine.listed(layout, Filter())) == ["bb3", "aa2"]
    assert ids(quarantine.listed(layout, Filter(state="discarded"))) == ["aa1"]
    assert ids(quarantine.listed(layout, Filter(state=None))) == ["aa1", "bb3", "aa2"]
    assert len(quarantine.listed(layout, Filter(state=None), limit=2)) == 2


def test_a_replay_gets_no_row_that_was_decided_since_it_was_chosen(layout: FlowLayout) -> None:
    quarantine.resolve(layout, ["aa1"], "released", by="me", run_id="r2")
    quarantine.discard(layout, ["bb3"], by="me")
    assert ids(quarantine.whole(layout, ["aa1", "aa2", "bb3"])) == ["aa2"]


@pytest.mark.parametrize("wanted", ["aa", "zz"])
def test_an_ambiguous_or_unknown_id_is_refused(layout: FlowLayout, wanted: str) -> None:
    with pytest.raises(TerminalError) as caught:
        quarantine.identified(layout, Filter(ids=(wanted,)))
    assert caught.value.code == "unknown-quarantine-id"


def test_bytes_that_are_no_text_come_as_base64(layout: FlowLayout) -> None:
    (row,) = quarantine.listed(layout, Filter(ids=("bb3",)))
    assert row["raw_bytes"] == "G1sySv8="


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\tb\r\n", "a\\tb\\r\\n"),
        ("\u202eevil", "\\u202eevil"),
        ("\x00\x9b", "\\x00\\x9b"),
        ("é→", "é→"),
    ],
)
def test_control_characters_are_encoded(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_cut_text_says_so() -> None:
    assert printable("a" * 50, 10) == "aaaaaaa..."


@pytest.mark.parametrize("cell", ["=cmd|' /C calc'!A0", "+1", "-1", "@x", "\t=1", " =1"])
def test_no_cell_of_a_csv_is_a_formula(cell: str) -> None:
    line = as_csv([{"raw": cell}], ["raw"]).splitlines()[1].lstrip('"')
    assert line.startswith("'")


def test_numbers_in_csv_stay_numbers() -> None:
    assert as_csv([{"n": -1, "s": None}], ["n", "s"]) == "n,s\n-1,\n"
