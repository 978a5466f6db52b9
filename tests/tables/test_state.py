"""Small files of what is kept about a flow, torn or holding something else: told with what helps,
or made up for.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.doctor.examination import examine
from draindown.flow import release_intent
from draindown.flow.release_intent import Pending
from draindown.gate import published, waivers
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.planning import compaction
from draindown.recovery import rebuild, replay, reset
from draindown.recovery import swap as recovery_swap
from draindown.recovery.abort import abort
from draindown.runs.request import Request
from tests.flowfiles import checkpoint as write_checkpoint
from tests.flowfiles import drained
from tests.tables.test_rebuilds import begin, code_of, read_all, swap

TORN = {"empty": b"", "half": b'{"version": 3, "ta', "no object": b"[5]", "bytes": b"\xff\xfe"}
KEPT: dict[str, tuple[Callable[[FlowHome], str], Callable[[FlowHome], Any]]] = {
    "published": (lambda layout: f"{layout.published}/0000000001.json", published.published),
    "waivers": (lambda layout: f"{layout.waivers}/0000000001.json", waivers.waivers),
    "replaying": (
        lambda layout: layout.replaying.path,
        lambda layout: replay.settle(layout, by="me"),
    ),
    "replay": (lambda layout: f"{layout.replays}/0123456789ab.json", replay.unfinished),
}


def tear(path: str, content: bytes = b"") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
@pytest.mark.parametrize(("name", "look"), KEPT.values(), ids=KEPT)
def test_what_nothing_else_knows_is_an_error_whose_command_helps(
    tmp_path: Path,
    name: Callable[[FlowHome], str],
    look: Callable[[FlowHome], Any],
    content: bytes,
) -> None:
    asked = drained(tmp_path)
    path = name(asked.layout)
    tear(path, content)
    with pytest.raises(TerminalError) as caught:
        look(asked.layout)
    assert (caught.value.code, path in caught.value.found) == ("state-damaged", True)
    assert Path(path).read_bytes() == content
    *_, aside = caught.value.next
    subprocess.run(aside, shell=True, check=True)
    assert not look(asked.layout)


def test_doctor_and_the_command_line_say_which_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = drained(tmp_path)
    tear(asked.layout.replaying.path)
    (symptom,) = [one for one in examine(asked).symptoms if one.level == "wrong"]
    assert (symptom.code, symptom.part, asked.layout.replaying.path in symptom.found) == (
        "state-damaged",
        "replays",
        True,
    )
    assert f"mv {asked.layout.replaying}" in symptom.next
    (tmp_path / "dags/pipelines").mkdir(parents=True)
    lines = ["pipeline: p", f"lake: {tmp_path}/lake", "flows:", "  f:"]
    lines += [
        "    source: {files: in/*, format: json}",
        "    columns: {id: string not null, n: int not null}",
    ]
    lines += ["    target: {keys: [id], sequence_by: [n]}"]
    (tmp_path / "dags/pipelines/p.yaml").write_text("\n".join(lines))
    torn = f"{asked.layout.waivers}/0000000001.json"
    tear(torn)
    assert main(["--root", str(tmp_path), "gate", "show", "p"]) == 78
    said = capsys.readouterr().err
    assert "state-damaged" in said and f"mv {torn}" in said


def test_a_note_is_read_as_it_was_written_and_forgotten_only_as_itself(tmp_path: Path) -> None:
    layout = drained(tmp_path).layout
    app = layout.app_id(1, "rows")
    this, later = Pending(app, 1, "r", ("q1", "q2")), Pending(app, 2, "r", ("q1",), read_again=True)
    release_intent.note(layout, this)
    assert release_intent.pending(layout) == this
    assert (this.is_applied(layout), later.is_applied(layout)) == (True, False)
    release_intent.note(layout, later)
    release_intent.forget(layout, this)
    assert release_intent.pending(layout) == later
    release_intent.forget(layout, later)
    assert release_intent.pending(layout) is None


@pytest.mark.parametrize(("days", "due"), [(0, False), (2, True), (-365, True)])
def test_old_files_are_due_a_day_after_the_last_time_whatever_a_clock_said_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, due: bool
) -> None:
    layout: FlowHome = drained(tmp_path).layout
    compaction.remember_vacuumed(layout, "table", files=3, run_id="r")
    log: Any = SimpleNamespace(path="t", properties={}, has_expired_files=lambda hours: True)
    monkeypatch.setattr(compaction, "now", lambda: now() + timedelta(days=days, hours=1))
    assert list(compaction._expired(layout, [("table", log)], 1)) == (
        [("table", "t")] if due else []
    )


@pytest.mark.parametrize("known", [True, False])
def test_only_a_table_with_statistics_of_the_ends_is_written_apart_by_them(
    tmp_path: Path, known: bool
) -> None:
    """Rows that a lookup takes from a history have its columns, and files that nobody divided by
    them.
    """
    rows = pa.table(
        {"k": [1, 2], "__START_AT": [1, 1], "__END_AT": pa.array([None, 2], pa.int64())}
    )
    named = "k,__END_AT" if known else "k"
    for _ in range(2):
        write_deltalake(
            str(tmp_path),
            rows,
            mode="append",
            configuration={"delta.dataSkippingStatsColumns": named},
        )
    (found,) = compaction.partitions(Table(str(tmp_path)), 100)
    assert (found.apart, found.mixed) == (known, 2 if known else 0)


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
def test_when_old_files_were_removed_is_not_worth_an_error(tmp_path: Path, content: bytes) -> None:
    layout = drained(tmp_path).layout
    compaction.remember_vacuumed(layout, "table", files=3, run_id="r")
    assert compaction.vacuumed(layout)["table"]["files"] == 3
    for table in (b"5", b'{"at": "x"}'):
        tear(layout.vacuumed.path, b'{"format": 2, "tables": {"table": ' + table + b"}}")
        assert compaction.vacuumed(layout) == {}
    for other in (content, b'{"tables": {}}'):
        tear(layout.vacuumed.path, other)
        assert compaction.vacuumed(layout) == {}


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
def test_a_rebuild_whose_file_is_torn_can_be_aborted_and_begun_anew(
    tmp_path: Path, content: bytes
) -> None:
    asked = drained(tmp_path)
    tear(asked.layout.rebuild.path, content)  # a crash came before anything was staged
    assert rebuild.unfinished(asked.layout) is None
    begun = begin(asked)
    read_all(asked, begun, batches=1)
    tear(asked.layout.rebuild.path, content)
    found = rebuild.unfinished(asked.layout)
    assert found is not None
    assert (found.generation, found.previous, found.by, found.contract) == (
        begun.generation,
        1,
        "me",
        "",
    )
    assert code_of(lambda: rebuild.plan(asked)) == "rebuild-damaged"
    assert abort(asked.layout, lambda: None) == begun.generation
    assert not asked.layout.rebuild.exists
    assert begin(asked).generation > begun.generation


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
def test_a_swapped_rebuild_whose_file_is_torn_is_finished(tmp_path: Path, content: bytes) -> None:
    asked = drained(tmp_path)
    begun = begin(asked)
    swap(asked, read_all(asked, begun))
    tear(asked.layout.rebuild.path, content)
    found = recovery_swap.finish(asked.layout, by="me")
    assert found is not None and found.generation == begun.generation
    assert not asked.layout.rebuild.exists
    assert not _left(asked)


def _left(asked: Request) -> set[str]:
    """Codes of what a doctor finds wrong with the flow."""
    return {one.code for one in examine(asked).symptoms if one.level == "wrong"}


@pytest.mark.parametrize("content", [b"", b'{"cards": {"2": 5}}'], ids=["empty", "other"])
def test_a_swapped_rebuild_of_which_nothing_is_known_is_told(
    tmp_path: Path, content: bytes
) -> None:
    asked = drained(tmp_path)
    staged = read_all(asked, begin(asked))
    swap(asked, staged)
    tear(asked.layout.rebuild.path)
    tear(staged.layout.generation.path, content)
    with pytest.raises(TerminalError) as caught:
        recovery_swap.finish(asked.layout, by="me")
    assert (caught.value.code, staged.layout.generation.path in caught.value.next[0]) == (
        "rebuild-damaged",
        True,
    )
    assert "rebuild-damaged" in _left(asked)


def test_a_rebuild_whose_files_are_all_torn_can_be_aborted(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    staged = read_all(asked, begin(asked), batches=1)
    tear(asked.layout.rebuild.path)
    tear(staged.layout.generation.path)
    assert code_of(lambda: rebuild.plan(asked)) == "rebuild-damaged"
    assert abort(asked.layout, lambda: None) == 2
    assert rebuild.unfinished(asked.layout) is None
    assert not Path(staged.layout.staging).exists()


def test_a_torn_rebuild_is_found_below_a_later_generation_and_a_finished_one_is_not(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    swap(asked, read_all(asked, begin(asked)))
    assert recovery_swap.finish(asked.layout, by="me")
    tear(asked.layout.rebuild.path)
    assert rebuild.unfinished(asked.layout) is None  # what is left of it is its log
    begun = begin(asked)
    assert begun.generation == 3
    reset.begin(asked, reset.plan(asked), by="me", accept_missing=False)
    write_checkpoint(asked, 4, offsets=1, commits=1)
    tear(asked.layout.rebuild.path)
    found = rebuild.unfinished(asked.layout)
    assert found is not None and (found.generation, found.previous) == (3, 2)
    assert "rebuild-overtaken" in _left(asked)
    assert abort(asked.layout, lambda: None) == 3


def test_a_replay_that_was_moved_aside_is_fenced_all_the_same(tmp_path: Path) -> None:
    layout = drained(tmp_path).layout
    tear(f"{layout.replays}/0123456789ab.json.damaged")
    tear(f"{layout.replays}/ba9876543210-2.json")
    tear(f"{layout.replays}/.0123.json.x.tmp")
    assert replay.begun(layout) == [("replay:0123456789ab", None), ("replay:ba9876543210-2", None)]
