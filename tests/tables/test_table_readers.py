"""Readers of a table: what each must still read, what maintenance keeps for it, and how one is told
of and let go.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.config.models import PipelineSpec
from draindown.doctor.examination import examine
from draindown.flow import generations
from draindown.lake.table import Table
from draindown.planning import compaction
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.batch_size import Bound
from draindown.sources.tables import readers, registered
from draindown.sources.tables import source as tables
from draindown.sources.tables.registered import Reader
from draindown.spark.runs import rebuild
from tests.ageing import age
from tests.tables.test_table_source import Project

WEEK = 7 * 86_400


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def reader(project: Project) -> Reader:
    """The one reader of the table."""
    (found,) = registered.readers(project.upstream)
    return found


def kept(project: Project) -> str:
    return compaction.kept_back(project.upstream, WEEK)


def request(project: Project, flow: str = "t", spec: PipelineSpec | None = None) -> Request:
    return Request(spec=spec or project.spec, flow=flow, step="plan", run_id="r", root="/")


def test_a_reader_registers_before_it_pins(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write([1])
    version = project.publish()

    def crash(*_: Any) -> None:
        raise OSError("no space left on device")

    pinning = project.source.pin(1, datetime.now(UTC))
    monkeypatch.setattr(intake, "append", crash)
    with pytest.raises(OSError, match="no space"):
        pinning.take(Bound(1, None, ""))
    assert reader(project) == Reader(
        "p", "d", project.upstream.tables.target.id, version, snapshot=True
    )


def test_what_a_reader_needs_moves_once_it_has_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write([1])
    first = project.publish()
    project.pin()
    project.source.read_up_to(1, 1)
    assert (reader(project).version, reader(project).snapshot) == (first, True), (
        "nothing is read yet"
    )
    project.source.read_up_to(1, 2)
    assert (reader(project).version, reader(project).snapshot) == (first, False)

    monkeypatch.setattr(tables, "ROWS", 2)
    project.write([2, 3, 4])
    second = project.publish()
    project.pin()
    assert reader(project).version == first, "pinned, not read"
    project.source.read_up_to(1, 3)
    assert reader(project).version == first, "one of two buckets"
    project.source.read_up_to(1, 4)
    assert reader(project).version == second


@pytest.mark.parametrize("buckets", [1, 2])
def test_a_rebuild_that_took_the_place_of_its_table_keeps_no_older_files(
    project: Project, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    """No run need follow while the source is quiet: what the rebuild read is written down with the
    swap.
    """
    project.write([1])
    project.publish()
    project.pin()
    commit(project, 1, 0)
    rebuild._read_up_to(request(project, "d"))
    assert (reader(project).version, reader(project).snapshot) == (0, False)
    project.write([2])
    newest = project.publish()
    monkeypatch.setattr(tables, "ROWS", 2 // buckets)
    staged = project.layout.beside(2)
    generations.name_live(project.layout, 1)
    generations.begin_staged(staged, generations.Card(2, 1, "2026", "me", rebuilt=True))
    staged.rebuild.write({"generation": 2})
    tables.Tables(project.source._source, staged, Path("/"), "r").pin(2, datetime.now(UTC)).take(
        Bound(1, None, "")
    )
    assert len(list(intake.slices(staged, 2))) == buckets
    age(project.upstream.tables.target.path, days=8)
    assert {
        one.staged: (one.version, one.snapshot) for one in registered.readers(project.upstream)
    } == {
        0: (0, False),
        2: (newest, True),
    }
    rebuild._read_up_to(request(project, "d"))
    assert "p/d has yet to read" in kept(project), (
        "the live table is as it was, and reads from there if this one fails"
    )

    commit(project, 2, buckets - 1)
    generations.take_place(staged)
    staged.rebuild.delete()
    assert (reader(project).staged, reader(project).version) == (
        0,
        0,
    ) and "p/d has yet to read" in kept(project)
    rebuild._read_up_to(request(project, "d"))
    assert (reader(project).version, reader(project).snapshot) == (newest, False) and kept(
        project
    ) == ""


def commit(project: Project, generation: int, batch: int) -> None:
    """Write the table of flow `d` as a batch or a swap does: with its transaction."""
    done = CommitProperties(
        app_transactions=[Transaction(project.layout.app_id(generation, "rows"), batch)]
    )
    write_deltalake(
        project.layout.tables.target.path,
        pa.table({"id": [1]}),
        mode="overwrite",
        commit_properties=done,
    )


def test_a_reset_at_the_same_version_needs_its_rows_again(project: Project) -> None:
    project.write([1])
    project.publish()
    project.pin()
    project.source.read_up_to(1, 2)
    assert not reader(project).snapshot
    project.source.pin(2, datetime.now(UTC))
    assert reader(project).snapshot


def test_old_files_stay_while_a_reader_needs_them_and_a_reader_that_is_gone_too_long_is_let_go(
    project: Project,
) -> None:
    project.write([1])
    project.publish()
    project.pin()
    project.source.read_up_to(1, 2)
    project.write([2])
    project.publish()  # so that the published version itself needs no old files
    assert kept(project) == ""
    age(project.upstream.tables.target.path, days=8)
    assert "p/d has yet to read" in kept(project)
    age(project.upstream.tables.target.path, days=51)
    assert "p/d has yet to read" in kept(project)
    age(project.upstream.tables.target.path, days=1)
    assert kept(project) == "", "60 days"


def test_what_changed_no_row_is_waited_for_by_a_fill_alone(project: Project) -> None:
    project.write([1])
    project.publish()
    project.pin()
    project.upstream.tables.target.table.optimize.compact()
    project.write([1, 2])
    project.upstream.tables.target.table.optimize.compact()
    project.publish()
    age(project.upstream.tables.target.path, days=8)
    assert "p/d" in kept(project), "a fill that is pinned reads the files of its version"
    at = project.upstream.tables.target
    registered.advance(project.upstream, Reader("p", "d", at.id, at.version - 1))
    assert at.commits(1)[0].operation == "OPTIMIZE" and kept(project) == ""


def test_a_reader_of_an_earlier_table_holds_nothing(project: Project) -> None:
    project.write([1])
    project.publish()
    registered.register(project.upstream, Reader("p", "d", "another", 0, snapshot=True))
    project.write([2])
    project.publish()
    age(project.upstream.tables.target.path, days=8)
    assert kept(project) == "" and registered.waiting(project.upstream)[0].since is None
    project.pin()
    assert reader(project).table_id == project.upstream.tables.target.id


def symptoms(project: Project, flow: str = "t", spec: PipelineSpec | None = None) -> dict[str, str]:
    return {one.code: one.level for one in examine(request(project, flow, spec)).symptoms}


def test_doctor_lists_readers_and_names_one_that_is_behind(project: Project) -> None:
    project.write([1])
    project.publish()
    looked = examine(request(project)).looked
    assert looked["readers"] == "p/d has not begun"
    project.pin()
    project.source.read_up_to(1, 2)
    assert examine(request(project)).looked["readers"] == "p/d from version 0 on"
    project.write([2])
    project.publish()
    assert not symptoms(project).keys() & {"reader-behind", "reader-gone"}
    age(project.upstream.tables.target.path, days=31)
    found = examine(request(project))
    assert "behind" in found.looked["readers"]
    (one,) = [one for one in found.symptoms if one.code == "reader-behind"]
    assert (one.level, one.next) == ("note", "draindown run p/d")
    age(project.upstream.tables.target.path, days=30)
    assert symptoms(project)["reader-gone"] == "wrong"


def test_doctor_says_what_a_derived_flow_has_yet_to_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "source-waiting" in symptoms(project, "d")
    monkeypatch.setattr(tables, "ROWS", 2)
    project.write([1, 2, 3])
    project.publish()
    project.pin()
    looked = examine(request(project, "d")).looked["source"]
    assert looked == "2 slices pinned; 2 slices pinned and yet to be processed"
    monkeypatch.setattr("draindown.flow.checkpoint.Checkpoint.first_unread", 2)
    assert (
        "1 of 2 buckets of a range of versions done"
        in examine(request(project, "d")).looked["source"]
    )


def test_doctor_names_a_table_without_the_feed_that_its_readers_need(project: Project) -> None:
    project.write([1], feed=False)
    project.publish()
    assert symptoms(project)["feed-off"] == "note"


@pytest.mark.parametrize("feed", [True, False])
def test_the_log_of_a_table_with_readers_is_kept_for_90_days_or_longer(
    project: Project, feed: bool
) -> None:
    """The first reader comes to a table without a feed, whose log `maintenance.retain` may have
    made longer.
    """
    for number, (kept_for, owed) in enumerate(((30, True), (100, False), (None, True))):
        path, has = (
            f"{project.upstream.tables.target.path}{number}",
            {readers.FEED: "true"} if feed else {},
        )
        has |= {readers.RETENTION: f"interval {kept_for} days"} if kept_for else {}
        write_deltalake(path, pa.table({"id": [1]}), configuration=has)
        found = readers.owed(request(project), Table(path))
        wanted = {} if feed else {readers.FEED: "true"}
        assert found == wanted | ({readers.RETENTION: "interval 90 days"} if owed else {}), kept_for


@pytest.fixture
def typed(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Type a command in a project whose pipeline `p` has flow `t`, and flow `d` if it is
    declared.
    """
    pipelines = tmp_path / "dags" / "pipelines"
    pipelines.mkdir(parents=True)

    def type_(*words: str, declared: bool = False) -> tuple[int, Any]:
        said = json.loads(project.spec.model_dump_json(include={"pipeline", "lake"}))
        flows: dict[str, Any] = {
            "t": {
                "source": {"files": "landing/*", "format": "json"},
                "columns": {"id": "bigint not null"},
            }
        }
        if declared:
            flows["d"] = {
                "source": {"table": "t"},
                "query": {"keys": ["id"], "sql": "select id from t group by id"},
            }
        (pipelines / "p.yaml").write_text(yaml.safe_dump(said | {"flows": flows}))
        code = main(["--root", str(tmp_path), *words, "--json"])
        said = capsys.readouterr()
        return code, None if code == 2 else json.loads(said.out or said.err)

    return type_


def test_a_reader_that_left_the_project_is_named_and_dropped_by_a_command(
    project: Project, typed: Any
) -> None:
    project.write([1])
    project.publish()
    project.pin()
    _, healths = typed("doctor", "p/t")
    (one,) = [one for one in healths[0]["symptoms"] if one["code"] == "reader-undeclared"]
    command, root, _, *words = one["next"].split()
    assert (command, root, words) == (
        "draindown",
        "--root",
        ["compact", "p/t", "--drop-reader", "d", "--yes"],
    )
    assert typed("compact", "p/t", "--drop-reader", "d")[0] == 2 and registered.readers(
        project.upstream
    )
    assert typed(*words)[0] == 0 and registered.readers(project.upstream) == []
    code, error = typed(*words)
    assert (code, error["error"]["code"]) == (78, "no-reader")


def test_a_declared_reader_is_not_dropped(project: Project, typed: Any) -> None:
    project.write([1])
    project.publish()
    project.pin()
    code, error = typed("compact", "p/t", "--drop-reader", "d", "--yes", declared=True)
    assert (code, error["error"]["code"]) == (78, "reader-declared") and registered.readers(
        project.upstream
    )


def test_a_torn_document_keeps_old_files_is_named_and_the_reader_writes_it_anew(
    project: Project,
) -> None:
    project.write([1])
    project.publish()
    path = Path(project.upstream.readers) / "p.d.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 2, "pipel')
    assert "p.d.json is torn" in kept(project) and symptoms(project)["state-damaged"] == "wrong"
    with pytest.raises(TerminalError) as caught:
        project.pin()
    assert caught.value.code == "state-damaged"
    path.rename(path.with_suffix(".damaged"))
    project.pin()
    assert reader(project).snapshot


def test_each_age_is_told_from_the_oldest_change_that_was_not_read(project: Project) -> None:
    project.write([1])
    project.publish()
    project.pin()
    project.source.read_up_to(1, 2)
    project.write([2])
    age(project.upstream.tables.target.path, days=5)
    project.write([3])
    (one,) = registered.waiting(project.upstream)
    assert timedelta(days=4, hours=23) < one.age(datetime.now(UTC)) < timedelta(days=5, hours=1)
