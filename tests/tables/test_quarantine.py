"""Refused rows: counted, filtered, decided once, and shown so that no terminal or spreadsheet obeys
them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from draindown.base.errors import TerminalError
from draindown.base.formatting import printable
from draindown.flow import quarantine
from draindown.flow.quarantine import Filter
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.lake.table import rows
from tests.flowfiles import REFUSED, rows_read

AT = datetime(2026, 1, 1, tzinfo=UTC)


def refused(identity: str, position: int = 1, **more: Any) -> dict[str, Any]:
    row = {
        "origin": {"input": "/in/a.json", "position": position},
        "quarantine_id": identity,
        "raw": "{",
        "raw_bytes": None,
        "raw_length": 1,
    }
    why = {
        "reason": "malformed",
        "field": None,
        "detail": None,
        "generation": 1,
        "batch": 0,
        "kind": "drain",
    }
    return row | why | {"run_id": "r1", "first_seen": AT, "quarantined_at": AT} | more


ROWS = [
    refused("aa1", position=1),
    refused("aa2", position=2, reason="type", field="n", quarantined_at=AT + timedelta(seconds=1)),
    refused("bb3", position=3, run_id="it's", raw="\x1b[2J", raw_bytes=b"\x1b[2J\xff"),
]


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    found = FlowHome(str(tmp_path), "p", "f", "f")
    delta.append(found.tables.quarantine, pa.Table.from_pylist(ROWS, REFUSED))
    return found


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["quarantine_id"] for row in rows]


def test_nothing_refused_is_no_error(tmp_path: Path) -> None:
    empty = FlowHome(str(tmp_path), "p", "f", "f")
    assert quarantine.counts(empty).as_dict() == {
        "quarantined": 0,
        "released": 0,
        "discarded": 0,
        "open": 0,
        "by_reason": {},
    }
    assert quarantine.listed(empty, Filter()) == []
    assert quarantine.identified(empty, Filter()) == []


def test_open_is_refused_less_released_less_discarded(layout: FlowHome) -> None:
    quarantine.resolve(layout, ["aa1"], "released", by="me")
    quarantine.discard(layout, ["bb3"], by="me")
    counts = quarantine.counts(layout)
    assert (counts.refused, counts.released, counts.discarded, counts.open) == (3, 1, 1, 1)
    assert counts.by_reason == {"type": 1}


def test_a_row_is_decided_once(layout: FlowHome) -> None:
    assert quarantine.discard(layout, ["aa1", "aa1"], by="me") == 1
    assert quarantine.resolve(layout, ["aa1"], "released", by="you") == 0
    assert quarantine.counts(layout).as_dict() | {"by_reason": {}} == {
        "quarantined": 3,
        "released": 0,
        "discarded": 1,
        "open": 2,
        "by_reason": {},
    }


def test_originals_stay_as_they_were(layout: FlowHome) -> None:
    before = layout.tables.quarantine.query("select * from t order by quarantine_id").to_pylist()
    quarantine.discard(layout, ["aa1"], by="me", note="old")
    assert (
        layout.tables.quarantine.query("select * from t order by quarantine_id").to_pylist()
        == before
    )
    (decision,) = layout.tables.resolutions.query("select * from t").to_pylist()
    assert (decision["action"], decision["by"], decision["note"]) == ("discarded", "me", "old")


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (Filter(), ["aa1", "bb3", "aa2"]),
        (Filter(reason="type"), ["aa2"]),
        (Filter(reason="type:n"), ["aa2"]),  # as cards name it
        (Filter(reason="type:m"), []),
        (Filter(reason="malformed"), ["aa1", "bb3"]),
        (Filter(run_id="it's"), ["bb3"]),
        (Filter(ids=("aa",)), ["aa1", "aa2"]),
        (Filter(reason="' or 1=1 --"), []),
        (Filter(state="discarded"), []),
        (Filter(reason="type", run_id="it's"), []),
    ],
)
def test_filters(layout: FlowHome, which: Filter, expected: list[str]) -> None:
    assert ids(quarantine.listed(layout, which)) == expected


def test_states(layout: FlowHome) -> None:
    quarantine.discard(layout, ["aa1"], by="me")
    assert ids(quarantine.listed(layout, Filter())) == ["bb3", "aa2"]
    assert ids(quarantine.listed(layout, Filter(state="discarded"))) == ["aa1"]
    assert ids(quarantine.listed(layout, Filter(state=None))) == ["aa1", "bb3", "aa2"]
    assert len(quarantine.listed(layout, Filter(state=None), limit=2)) == 2


def test_a_replay_gets_no_row_that_was_decided_since_it_was_chosen(layout: FlowHome) -> None:
    quarantine.resolve(layout, ["aa1"], "released", by="me", run_id="r2")
    quarantine.discard(layout, ["bb3"], by="me")
    assert ids(quarantine.whole(layout, ["aa1", "aa2", "bb3"])) == ["aa2"]


@pytest.fixture
def many(layout: FlowHome) -> FlowHome:
    rows = [
        refused(f"cc{n:04}", position=n, raw=str(n), quarantined_at=AT + timedelta(hours=n))
        for n in range(300)
    ]
    delta.append(layout.tables.quarantine, pa.Table.from_pylist(rows, REFUSED))
    quarantine.discard(layout, [f"cc{n:04}" for n in range(0, 300, 2)], by="me")
    return layout


@pytest.mark.parametrize(
    ("look", "most"),
    [
        # one of each: the ids and the rows
        (lambda layout: quarantine.listed(layout, Filter(), 5), 10),
        (lambda layout: quarantine.listed(layout, Filter(state="discarded"), 5), 10),
        (lambda layout: quarantine.listed(layout, Filter(ids=("cc0007",), state=None), 2), 2),
        # a row per reason and state
        (quarantine.counts, 3),
        (lambda layout: quarantine.identified(layout, Filter(ids=("cc0007",))), 1),
        (lambda layout: quarantine.identified(layout, Filter(reason="type")), 1),
        (lambda layout: quarantine.whole(layout, ["cc0007", "cc0008"]), 1),
        # decisions about it, and the newest time of any
        (lambda layout: quarantine.discard(layout, ["cc0007"], by="me"), 1),
        (lambda layout: quarantine.reopen(layout, ["cc0008"], by="me", note="n"), 2),
        (lambda layout: quarantine.read_again(layout, ["cc0008"], by="me", run_id="r"), 2),
        (lambda layout: quarantine.let_through(layout, ["cc0008"], by="me", note="n"), 2),
        (lambda layout: quarantine.released(layout, ["cc0008"]), 1),
        (lambda layout: quarantine.release_again(layout, by="me", note="n"), 0),
        (lambda layout: quarantine.released_from(layout, without_kind="withdraw"), 0),
    ],
)
def test_only_what_is_asked_for_leaves_the_tables(
    many: FlowHome,
    look: Callable[[FlowHome], object],
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = rows_read(monkeypatch)
    look(many)
    assert len(read) > 0 and sum(read) <= most


def test_a_limit_keeps_the_oldest(many: FlowHome) -> None:
    assert ids(quarantine.listed(many, Filter(), 4)) == ["aa1", "bb3", "aa2", "cc0001"]
    assert ids(quarantine.listed(many, Filter(run_id="no such run"), 4)) == []
    every = ids(quarantine.listed(many, Filter(state=None)))
    assert len(every) == 303
    assert ids(quarantine.listed(many, Filter(state=None), 100_000)) == every


def test_decisions_about_more_rows_than_a_query_lists(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "_MANY", 1)
    assert quarantine.discard(layout, ["aa2", "bb3"], by="me") == 2
    assert quarantine.discard(layout, ["aa1", "aa2", "bb3"], by="me") == 1
    assert quarantine.reopen(layout, ["aa1", "aa2"], by="me", note="n") == 2
    assert ids(quarantine.whole(layout, ["aa2", "bb3", "aa1"])) == ["aa2", "aa1"]


def test_a_reset_that_is_undone_releases_by_the_runs_that_had(layout: FlowHome) -> None:
    quarantine.release(layout, ["aa1"], by="me", run_id="r1")
    quarantine.release(layout, ["aa2"], by="me", run_id="r2")
    quarantine.read_again(layout, ["bb3"], by="me", run_id="r3")
    quarantine.reopen(layout, ["aa1", "aa2", "bb3"], by="me", note="a reset")
    quarantine.discard(layout, ["aa2"], by="me")  # someone decided since
    assert quarantine.release_again(layout, by="me", note="another") == 0
    assert quarantine.release_again(layout, by="me", note="a reset") == 2
    assert quarantine.released(layout) == {"aa1": "r1", "bb3": ""}
    assert quarantine.release_again(layout, by="me", note="a reset") == 0


def test_times_come_as_pyarrow_gives_them(layout: FlowHome) -> None:
    found = layout.tables.quarantine.query("select *, cast(null as timestamp) as never from t")
    assert rows(found) == found.to_pylist()


def test_an_id_of_another_reason_is_known_and_not_chosen(layout: FlowHome) -> None:
    assert quarantine.identified(layout, Filter(ids=("bb3",), reason="no such")) == []
    assert quarantine.identified(layout, Filter(ids=("bb3",))) == ["bb3"]


@pytest.mark.parametrize("wanted", ["aa", "zz"])
def test_an_ambiguous_or_unknown_id_is_refused(layout: FlowHome, wanted: str) -> None:
    with pytest.raises(TerminalError) as caught:
        quarantine.identified(layout, Filter(ids=(wanted,)))
    assert caught.value.code == "unknown-quarantine-id"


def test_bytes_that_are_no_text_come_as_base64(layout: FlowHome) -> None:
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
