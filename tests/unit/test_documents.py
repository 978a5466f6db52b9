"""Documents carry their format, and one of another is refused by name, whoever reads it."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from draindown.base.errors import TerminalError
from draindown.base.exits import Exit, exit_for
from draindown.flow import generations, proven, release_intent, schema_drift
from draindown.gate import published, waivers
from draindown.lake import delta, formats
from draindown.lake.commits import Commit
from draindown.lake.home import FlowHome
from draindown.lease import holder
from draindown.lease.shared import Epochs
from draindown.ledger.rows import BatchRow, Swap, adds_up, from_commit, swap_of
from draindown.planning import compaction
from draindown.recovery import rebuild, replay, reset
from draindown.runs import store
from draindown.runs.request import Request
from draindown.sources import batch_size
from draindown.sources.tables import registered
from tests.flowfiles import request


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    return FlowHome(str(tmp_path / "lake"), "p", "f", "t")


READERS: dict[str, tuple[Callable[[FlowHome], str], Callable[[FlowHome], object]]] = {
    "generation": (lambda at: at.generation.path, generations.generation),
    "cards": (lambda at: at.generation.path, generations.cards),
    "damaged generation": (lambda at: at.generation.path, generations.generation_if_told),
    "rebuild": (lambda at: at.rebuild.path, rebuild.unfinished),
    "released": (lambda at: at.replaying.path, release_intent.pending),
    "replay": (lambda at: f"{at.replays}/r.json", lambda at: replay._pinned(at, "r")),
    "published": (lambda at: f"{at.published}/0000000001.json", published.published),
    "waivers": (lambda at: f"{at.waivers}/0000000001.json", waivers.waivers),
    "proof": (lambda at: at.proven.path, proven.newest),
    "reader": (lambda at: f"{at.readers}/q.g.json", registered.readers),
    "vacuumed": (lambda at: at.vacuumed.path, compaction.vacuumed),
    "loads": (lambda at: at.loads.path, batch_size.loads),
    "drift": (lambda at: at.drift.path, schema_drift.seen),
    "owner": (lambda at: f"{at.lease}/owner.json", holder.local_card),
    "unfenced": (lambda at: f"{at.lease}/unfenced.json", holder.unfenced),
    "epoch": (
        lambda at: f"{at.lease}/epochs/0000000001.json",
        lambda at: Epochs(f"{at.lease}/epochs", 1.0).card(1),
    ),
    "report": (
        lambda at: at.start("r", "drain").report.path,
        lambda at: store.read(at, "r", "drain"),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_document_of_another_format_is_refused_by_name(layout: FlowHome, name: str) -> None:
    path_of, read = READERS[name]
    path = Path(path_of(layout))
    path.parent.mkdir(parents=True)
    for other in (3, 0, "2", True, None, [2]):
        path.write_text(json.dumps({"format": other, "generation": 7}))
        before = path.read_bytes()
        with pytest.raises(TerminalError) as caught:
            read(layout)
        assert (caught.value.code, str(path) in caught.value.found) == ("format-unknown", True)
        assert exit_for(caught.value) == Exit.NEEDS_PERSON
        assert shlex.split(caught.value.next[0], comments=True) == [
            "pip",
            "install",
            "--upgrade",
            "draindown",
        ]
        assert path.read_bytes() == before


def test_a_lake_of_format_1_is_refused_with_what_a_new_one_loses(layout: FlowHome) -> None:
    path = Path(layout.drift.path)
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 1, "seen": []}')
    ours = layout.tables.ledger
    delta.append(ours, pa.table({"id": [1]}))
    DeltaTable(ours.path).alter.set_table_properties(
        {formats.PROPERTY: "1"}, raise_if_not_exists=False
    )
    row = json.loads(BatchRow("p", "f", 1, 0, "r").as_metadata())
    row["draindown"]["format"] = 1
    swap = json.loads(Swap("p", "f", 2, 1, 1, "r").as_metadata())
    del swap["draindown_rebuilt"]["format"]
    for act in (
        layout.drift.read,
        lambda: ours.version,
        lambda: from_commit(Commit(0, 0, user_metadata=json.dumps(row))),
        lambda: adds_up(Commit(0, 0, user_metadata=json.dumps(row))),
    ):
        with pytest.raises(TerminalError) as caught:
            act()
        assert caught.value.code == "format-unknown"
        anew, lost = caught.value.next
        assert "another `lake`" in anew and "waivers" in lost
    with pytest.raises(TerminalError) as caught:
        swap_of(Commit(0, 0, user_metadata=json.dumps(swap)))
    assert caught.value.code == "format-unknown"


def test_a_document_says_its_format_and_is_read_without_it(layout: FlowHome) -> None:
    layout.drift.write({"seen": []})
    assert json.loads(Path(layout.drift.path).read_text()) == {"format": 2, "seen": []}
    assert layout.drift.read() == {"seen": []}
    layout.drift.delete()
    assert layout.drift.read() is None


@pytest.mark.parametrize("content", ["", "{", "[]", "5", '{"seen": []}'])
def test_what_is_no_document_is_torn_and_of_no_format(layout: FlowHome, content: str) -> None:
    Path(layout.waivers).mkdir(parents=True)
    Path(layout.waivers, "0000000001.json").write_text(content)
    with pytest.raises(TerminalError) as caught:
        waivers.waivers(layout)
    assert caught.value.code == "state-damaged"


def test_a_document_is_written_only_where_nobody_was_quicker(layout: FlowHome) -> None:
    assert layout.drift.create({"n": 1})
    assert not layout.drift.create({"n": 2})
    assert layout.drift.read() == {"n": 1}


def test_a_view_reads_a_document_once_and_again_what_it_wrote(layout: FlowHome) -> None:
    view = layout.view()
    assert not view.drift.exists
    layout.drift.write({"n": 1})
    assert (view.drift.read(), layout.drift.read()) == (None, {"n": 1})
    view.drift.write({"n": 2})
    layout.drift.write({"n": 3})
    assert view.drift.read() == {"n": 3}, "what it wrote is read again, once"
    layout.drift.delete()
    assert view.drift.read() == {"n": 3}
    found = view.drift.read()
    assert found is not None
    found["n"] = 4
    assert view.drift.read() == {"n": 3}, "what a caller changes stays its own"


def test_a_reset_does_not_write_over_a_generation_of_another_format(tmp_path: Path) -> None:
    asked = request(tmp_path)
    delta.create(asked.layout.tables.intake(1), pa.schema([("slice", pa.int64())]))
    path = Path(asked.layout.generation.path)
    path.parent.mkdir()
    path.write_text(json.dumps({"format": 3, "generation": 7}))
    with pytest.raises(TerminalError) as caught:
        reset.plan(asked)
    assert caught.value.code == "format-unknown"


def test_a_request_of_another_format_is_refused_by_name_whatever_is_in_it(tmp_path: Path) -> None:
    def packed(content: Any) -> str:
        return base64.urlsafe_b64encode(zlib.compress(json.dumps(content).encode())).decode()

    asked = request(tmp_path)
    assert Request.decode(asked.encode()) == asked
    for content, code in (
        ({"format": 3, "new": "field"}, "format-unknown"),
        (asked.model_dump(mode="json") | {"format": 3}, "format-unknown"),
        ({"spec": {}}, "bad-request"),
        ([1], "bad-request"),
    ):
        with pytest.raises(TerminalError) as caught:
            Request.decode(packed(content))
        assert caught.value.code == code


def test_a_table_of_ours_says_its_format_and_one_of_another_is_refused(layout: FlowHome) -> None:
    delta.append(layout.tables.ledger, pa.table({"id": [1]}))
    assert layout.tables.ledger.properties["draindown.format"] == "2"
    DeltaTable(layout.tables.ledger.path).alter.set_table_properties(
        {"draindown.format": "3"}, raise_if_not_exists=False
    )
    for act in (
        lambda: layout.tables.ledger.version,
        lambda: layout.tables.ledger.query("select 1 from t"),
        lambda: layout.tables.ledger.damage,
        lambda: delta.append(layout.tables.ledger, pa.table({"id": [2]})),
    ):
        with pytest.raises(TerminalError) as caught:
            act()
        assert (caught.value.code, layout.tables.ledger.path in caught.value.found) == (
            "format-unknown",
            True,
        )
    assert DeltaTable(layout.tables.ledger.path).version() == 2
