"""The commands of recovery as they are typed: what they print, and how they exit."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.base.progress import StepHook
from draindown.cli.program import main
from draindown.flow import generations, quarantine
from draindown.lake import delta
from draindown.lake.documents import Document
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.pages import overview
from draindown.recovery import replay, swap
from draindown.runs import store
from draindown.runs.request import Request
from draindown.sources.files.source import Files
from tests.flowfiles import AT, REFUSED, drained, places, restore, rows_read, take_in


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    """A drained flow in a project of its own."""
    found = drained(tmp_path)
    flow = found.flow_spec
    lines = [
        "pipeline: p",
        f"lake: {tmp_path}/lake",
        "flows:",
        "  f:",
        f"    source: {{files: {flow.source.files}, format: json, max_files_per_trigger: 1}}",
        "    columns: {id: string not null, n: int not null}",
        "    target: {keys: [id], sequence_by: [n]}",
    ]
    (tmp_path / "dags/pipelines").mkdir(parents=True)
    (tmp_path / "dags/pipelines/p.yaml").write_text("\n".join(lines))
    return found


def run(asked: Request, *arguments: str) -> int:
    return main(["--root", asked.root, *arguments])


def test_doctor_names_the_loss_and_its_command(
    asked: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    restore(asked, 1)
    assert run(asked, "doctor", "p", "--json") == 1
    page, setup = json.loads(capsys.readouterr().out)
    wrong = {symptom["code"]: symptom["next"] for symptom in page["symptoms"]}
    assert wrong["table-behind-checkpoint"] == f"draindown --root {asked.root} reset p/f"
    assert setup["name"] == "set-up"
    assert run(asked, "doctor", "p") == 1
    assert "table-behind-checkpoint" in capsys.readouterr().out


def test_reset_prints_its_plan_and_needs_a_yes(
    asked: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(asked, "reset", "p") == 2
    said = capsys.readouterr().err
    assert "generation 1 -> 2" in said
    assert "2 files" in said
    assert generations.generation(asked.layout) == 1
    (Path(asked.root) / "in/0.json").unlink()
    assert run(asked, "reset", "p", "--yes") == 78
    assert "reset-input-gone" in capsys.readouterr().err
    assert run(asked, "reset", "p", "--accept-missing", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["generation"] == 2
    assert run(asked, "reset", "p", "--undo") == 2
    assert run(asked, "reset", "p", "--undo", "--yes") == 0
    assert generations.generation(asked.layout) == 1
    assert run(asked, "reset", "p", "--undo", "--yes") == 78


def test_replay_prints_its_plan_and_needs_a_yes(
    asked: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    times = ("--from", "2026-01-01", "--to", "2026-01-02T00:00Z")
    assert run(asked, "replay", "p", *times) == 2
    assert "2 files" in capsys.readouterr().err
    assert run(asked, "replay", "p", "--from", "2027-01-01", "--to", "2027-01-02") == 0
    assert "nothing to replay" in capsys.readouterr().out
    assert run(asked, "replay", "p", "--from", "noon", "--to", "2027-01-02") == 2
    assert run(asked, "replay", "p", "--from", "2026-01-01") == 78
    assert run(asked, "replay", "p", "--file", "never.json") == 78
    (Path(asked.root) / "in/0.json").unlink()
    assert run(asked, "replay", "p", *times, "--yes") == 78
    assert "replay-input-gone" in capsys.readouterr().err


def test_input_that_is_lost_is_listed_and_only_that_is_discarded(
    asked: Request, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(asked, "input", "list", "p", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run(asked, "input", "discard", "p") == 2  # says no input
    assert run(asked, "input", "discard", "p", "--range", "t/0:1-2") == 2  # says no note
    # says no --yes
    assert run(asked, "input", "discard", "p", "--range", "t/0:1-2", "--note", "r") == 2
    capsys.readouterr()
    words = ("input", "discard", "p", "--range", "t/0:1-2", "--note", "r", "--yes")
    assert run(asked, *words) == 78
    assert "not-lost" in capsys.readouterr().err
    taken: list[Any] = []
    perishable = SimpleNamespace(
        losses=lambda *_: {"t/0:1-2": "gone", "t/1:0-3": "gone"},
        accept_losses=lambda ranges, *at, **said: taken.append((list(ranges), at, said["note"])),
    )
    monkeypatch.setattr(Files, "perishable", perishable)
    assert run(asked, "input", "list", "p") == 0
    out = capsys.readouterr().out
    assert f'draindown --root {asked.root} input discard p/f --all --note "..." --yes' in out
    assert out.count("next: ") == 1 and "t/1:0-3" in out and "gone" in out
    assert run(asked, "input", "list", "p", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["kind"], one["input"]) for one in listed] == [
        ("range", "t/0:1-2"),
        ("range", "t/1:0-3"),
    ]
    assert run(asked, "input", "discard", "p", "--all", "--note", "retention", "--yes") == 0
    assert taken == [(["t/0:1-2", "t/1:0-3"], ({1: 3},), "retention")]
    assert "t/1:0-3" in capsys.readouterr().err


def _refused(asked: Request) -> None:
    """Two quarantined rows, of which a replay applied the first and died before it could say so."""
    rows = {
        "quarantine_id": ["q1", "q2"],
        "reason": ["type"] * 2,
        "field": ["n"] * 2,
        "detail": ["x"] * 2,
    }
    place = {"origin": places(1, 2), "raw": ["{"] * 2, "raw_bytes": pa.nulls(2, pa.binary())}
    run = {"raw_length": [1, 1], "generation": [1, 1], "batch": [0, 0], "kind": ["drain"] * 2}
    times = {
        "first_seen": [AT] * 2,
        "quarantined_at": [AT] * 2,
        "run_id": ["r"] * 2,
        "arrived_at": [AT] * 2,
    }
    times |= {"envelope": pa.nulls(2, pa.string())}
    write_deltalake(asked.layout.tables.quarantine.path, pa.table(rows | place | run | times))
    pending = {"app": asked.layout.app_id(1, "rows"), "batch": 1, "run_id": "r", "ids": ["q1"]}
    asked.layout.replaying.write(pending)


def _many_refused(asked: Request, number: int) -> None:
    row = dict.fromkeys(("raw", "detail", "run_id"), "x") | {"reason": "type", "kind": "drain"}
    row |= {"raw_length": 1, "batch": 0, "generation": 1, "first_seen": AT, "quarantined_at": AT}
    rows = [
        row | {"quarantine_id": f"q{n:04}", "origin": {"input": "x", "position": n}}
        for n in range(number)
    ]
    delta.append(asked.layout.tables.quarantine, pa.Table.from_pylist(rows, REFUSED))


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("list", "p", "--limit", "5"), 20),  # six ids, six rows, a sum, and what tells withdrawals
        (("list", "p", "--id", "q0007"), 10),
        (("discard", "p", "--id", "q0007", "--yes"), 20),
    ],
)
def test_commands_about_refused_rows_read_few(
    asked: Request, words: tuple[str, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _many_refused(asked, 300)
    read = rows_read(monkeypatch)
    assert run(asked, "quarantine", *words) == 0
    assert 0 < sum(read) <= most


def test_the_page_reads_few_refused_rows(asked: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    _many_refused(asked, 300)
    read = rows_read(monkeypatch)
    (view,) = overview.flows(Path(asked.root) / "dags/pipelines", Path(asked.root))
    assert (view.problem, dict(view.open_rows)) == ("", {"type": 300})
    assert sum(read) <= 5


def test_discard_settles_what_a_replay_applied(
    asked: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    _refused(asked)
    assert run(asked, "quarantine", "discard", "p", "--yes") == 0
    assert "discarded 1 row" in capsys.readouterr().out
    sums = quarantine.counts(asked.layout)
    assert (sums.released, sums.discarded, sums.open) == (1, 1, 0)


@pytest.mark.parametrize("read_again", [False, True])
def test_what_is_settled_is_not_looked_at_again(asked: Request, read_again: bool) -> None:
    _refused(asked)
    note = Path(asked.layout.replaying.path)
    pending = json.loads(note.read_text()) | {"read_again": read_again}
    Document(str(note)).write(pending | {"batch": 7})  # not applied yet
    assert replay.settle(asked.layout, by="me") == 0
    assert note.exists()
    for settled in (1, 0):  # a crash before the note went away repeats it
        Document(str(note)).write(pending)
        assert replay.settle(asked.layout, by="me") == settled
        assert not note.exists()
    assert quarantine.counts(asked.layout).released == 1


def test_who_wakes_while_it_settles_leaves_the_note_of_a_later_replay(asked: Request) -> None:
    _refused(asked)
    note, right = Path(asked.layout.replaying.path), quarantine.release
    later = json.loads(note.read_text()) | {"batch": 7, "ids": ["q2"]}

    def release(*given: Any, **more: Any) -> int:
        done = right(*given, **more)
        Document(str(note)).write(later)
        return done

    with mock.patch.object(quarantine, "release", release):
        assert replay.settle(asked.layout, by="me") == 1
    assert json.loads(note.read_text()) == later
    told: list[str] = []
    Document(str(note)).write(later | {"batch": 1})
    assert replay.settle(asked.layout, by="me", reached=told.append) == 1
    assert told == ["cleaned", "released"]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    "verb", ["quarantine discard p", "input retry p --file x", "reset p", "reset p --undo"]
)
def test_a_verb_that_lost_its_lease_while_it_finished_a_rebuild_changes_nothing(
    asked: Request, verb: str, told: bool
) -> None:
    _refused(asked)
    if "--undo" in verb:
        assert run(asked, "reset", "p", "--yes") == 0
    kept = (
        asked.layout.generation.path,
        asked.layout.tables.resolutions.path,
        asked.layout.tables.parked.path,
    )
    before = [
        Path(path).read_text() if Path(path).is_file() else Table(path).exists for path in kept
    ]

    def finish(layout: FlowHome, *, by: str, reached: StepHook) -> None:
        del by
        Path(layout.lease, "driver.lock").unlink()
        if told:
            reached("ledger")
            raise AssertionError("it must not get here")

    with mock.patch.object(swap, "finish", finish):
        assert run(asked, *verb.split(), "--yes") == 75
    assert [
        Path(path).read_text() if Path(path).is_file() else Table(path).exists for path in kept
    ] == before


def test_discard_gives_up_a_file_that_was_never_read(
    asked: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = Path(asked.root) / "in/2.json"
    lost.write_text('{"id": "2", "n": 1}\n')
    take_in(asked, heap_bytes=1024**3, now=AT)
    lost.unlink()
    discard = ("input", "discard", "p/f", "--file", str(lost))
    assert run(asked, *discard) == 2
    assert run(asked, *discard, "--yes") == 0
    assert generations.without(asked.layout, 1) == {str(lost)}
    assert run(asked, "doctor", "p") in (0, 1)
    assert "begun" not in capsys.readouterr().out
    assert run(asked, "input", "retry", "p", "--file", str(lost), "--yes") == 78


def test_compact_without_work_asks_for_no_jvm(
    asked: Request, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a JVM was asked for")

    monkeypatch.setattr("draindown.spark.session.session", started)
    assert run(asked, "compact", "p", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    [left] = told["reports"]
    assert (left["step"], left["outcome"], left["compact"]["evidence"]) == (
        "compact",
        "idle",
        "nothing to do",
    )
    kept = store.read(asked.layout, told["run_id"], "compact")
    assert kept is not None
    assert kept.outcome == "idle"
    assert run(asked, "compact", "p", "--force", "--json") != 0
    assert (
        "a JVM was asked for" in json.loads(capsys.readouterr().out)["reports"][0]["error"]["found"]
    )
