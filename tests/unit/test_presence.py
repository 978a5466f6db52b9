"""A lake is begun on purpose: one that moved, is not mounted or was exchanged is refused before
anything is written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.config.loader import find, load
from draindown.config.project import rooted
from draindown.doctor.examination import examine
from draindown.drill import process
from draindown.lake import identity, lake_records
from draindown.lake.presence import PIN, Answer, Found, Lake, answer
from draindown.pages import overview
from draindown.planning.plan import planned
from draindown.runs.request import Request

Printed = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAINDOWN_LAKE", "DRAINDOWN_LANDING", PIN):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """What `init` writes, whose lake was begun by a plan that found files."""
    assert main(["init", str(tmp_path / "shop")]) == 0
    _plan(tmp_path / "shop")
    capsys.readouterr()
    return tmp_path / "shop"


@pytest.fixture
def typed(project: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    def type_(*words: str, root: Path = project) -> tuple[int, str, str]:
        code = main(["--root", str(root), *words])
        out, err = capsys.readouterr()
        return code, out, err

    return type_


def _request(root: Path) -> Request:
    spec = rooted(load(find("orders", root), os.environ), root)
    return Request(spec=spec, flow="orders", step="plan", run_id="r", root=str(root), owner="me")


def _plan(root: Path) -> Lake:
    planned(_request(root))
    return _lake(root)


def _lake(root: Path) -> Lake:
    return Lake.look(_request(root).spec.lake, root, "orders")


def _id(root: Path) -> str:
    own = _lake(root).own
    assert own is not None
    return own.id


A, B, NONE = "a", "b", frozenset[str]()


@pytest.mark.parametrize(
    ("found", "own", "known", "used", "pins", "wanted"),
    [
        ("nothing", "", "", (), NONE, "begin"),
        ("nothing", "", A, (), NONE, "absent"),
        ("nothing", "", A, ("/x",), NONE, "absent"),
        ("nothing", "", "", ("/x",), NONE, "elsewhere"),
        ("nothing", "", "", (), {A}, "absent"),
        ("nothing", "", A, (), {A}, "absent"),
        ("unmarked", "", "", (), NONE, "begin"),
        ("unmarked", "", "", ("/x",), NONE, "begin"),
        ("unmarked", "", A, (), NONE, "unmarked"),
        ("unmarked", "", "", (), {A}, "unmarked"),
        ("lake", A, "", (), NONE, "open"),
        ("lake", A, A, (), NONE, "open"),
        ("lake", A, "", ("/x",), NONE, "open"),
        ("lake", B, A, (), NONE, "another"),
        ("lake", A, A, (), {A, B}, "open"),
        ("lake", A, A, (), {B}, "not pinned"),
        ("lake", A, "", (), {B}, "not pinned"),
        ("lake", B, A, (), {B}, "open"),
    ],
)
def test_a_lake_is_opened_or_begun_by_what_is_on_record(
    found: Found, own: str, known: str, used: tuple[str, ...], pins: frozenset[str], wanted: Answer
) -> None:
    assert answer(found, own, known, used, pins) == wanted


def test_the_first_plan_begins_the_lake_and_puts_it_on_record(project: Path) -> None:
    lake = _lake(project)
    assert lake.own is not None and lake.known == lake.own.id and lake.answer == "open"
    assert (project / ".draindown" / ".gitignore").read_text() == "*\n"
    assert Path(identity.identity_of(lake.path).path).stat().st_mode & 0o044, (
        "readers of the lake may read it"
    )
    assert _plan(project).own == lake.own


def test_a_crash_before_the_record_leaves_a_lake_that_goes_on(project: Path) -> None:
    own = _id(project)
    shutil.rmtree(project / ".draindown")  # the identity is written first
    assert _plan(project).known == own


def test_a_crash_before_the_identity_leaves_a_lake_that_is_begun(project: Path) -> None:
    shutil.rmtree(project / ".draindown")
    shutil.rmtree(project / "lake")
    (project / "lake" / "_draindown").mkdir(parents=True)
    assert _plan(project).answer == "open"


def test_a_lake_of_an_older_version_gets_an_identity(project: Path) -> None:
    shutil.rmtree(project / ".draindown")
    (project / "lake/_draindown/lake.json").unlink()
    assert _plan(project).answer == "open" and _id(project)


def test_of_concurrent_first_runs_one_identity_counts(tmp_path: Path) -> None:
    first = identity.begin(str(tmp_path / "lake"), "one")
    assert identity.begin(str(tmp_path / "lake"), "other") == first


def _remove(root: Path) -> None:
    (root / "lake").rename(root.parent / "away")


def _unmount(root: Path) -> None:
    _remove(root)
    (root / "lake").mkdir()
    (root / "lake" / "lost+found").mkdir()


def _exchange(root: Path) -> None:
    _remove(root)
    identity.begin(str(root / "lake"), "another project")


def _lose_identity(root: Path) -> None:
    (root / "lake/_draindown/lake.json").unlink()


def _rename_in_the_file(root: Path) -> None:
    file = root / "dags/pipelines/orders.yaml"
    file.write_text(file.read_text().replace("${DRAINDOWN_LAKE:-lake}", "lakes"))


HARMS = (_remove, _unmount, _exchange, _lose_identity, _rename_in_the_file)
_REST = [pytest.param(harm, marks=pytest.mark.full) for harm in HARMS[2:]]


@pytest.mark.parametrize("harm", [*HARMS[:2], *_REST])
def test_every_command_refuses_a_missing_lake_and_writes_nothing(
    project: Path, typed: Printed, harm: Callable[[Path], None]
) -> None:
    harm(project)
    before = _files(project)
    for words in (
        ("plan", "orders"),
        ("run", "orders"),
        ("compact", "orders"),
        ("audit", "orders"),
        ("report", "orders"),
        ("reset", "orders", "--yes"),
        ("rebuild", "orders", "--yes"),
        ("gate", "show", "orders"),
        ("quarantine", "list", "orders"),
        ("why", "orders", "--key", "A-1"),
        ("status", "orders"),
        ("status",),
        ("audit",),
    ):
        code, out, err = typed(*words)
        assert code == 78 and "lake-missing" in out + err, words
    health = examine(_request(project))
    assert health.exit == 1 and [one.code for one in health.symptoms] == ["lake-missing"]
    _, out, _ = typed("status", "--json")
    assert json.loads(out)[0]["error"]["code"] == "lake-missing"
    assert "lake-missing" in overview.flows(project / "dags/pipelines", project)[0].problem
    assert _files(project) == before, "nothing was written"


def test_a_plan_of_a_missing_lake_leaves_no_report(project: Path) -> None:
    _remove(project)
    with pytest.raises(TerminalError) as error:
        planned(_request(project))
    assert error.value.code == "lake-missing" and not (project / "lake").exists()


def _files(root: Path) -> dict[str, Any]:
    return {str(path): path.stat().st_mtime_ns for path in root.parent.rglob("*")}


@pytest.mark.parametrize("harm", [*HARMS[:2], *_REST])
def test_the_printed_command_begins_or_accepts_the_lake_on_purpose(
    project: Path, typed: Printed, harm: Callable[[Path], None]
) -> None:
    own = _id(project)
    harm(project)
    code, out, err = typed("init", "--lake", "orders")
    assert code == 2 and "add --yes" in err and _lake(project).answer not in ("open", "begin")
    code, out, _ = typed("init", "--lake", "orders", "--yes", "--json")
    accepted = json.loads(out)["id"]
    assert code == 0 and accepted == _id(project)
    assert (accepted == own) == (harm is _lose_identity)
    assert typed("plan", "orders")[0] == 0 and _plan(project).known == accepted


@pytest.mark.parametrize("other", ["a", "returns", "zebra"])
def test_a_lake_that_was_accepted_is_that_of_every_pipeline_of_its_path(
    project: Path, other: str
) -> None:
    """Records are kept in files whose names are hashes: which one is first must not matter."""
    place = _lake(project).path
    for pipeline in (other, f"{other}-old"):
        lake_records.remember(project, lake_records.Record(place, _id(project), pipeline))
    shutil.rmtree(project / "lake")
    accepted = _lake(project).accept("me")
    assert _lake(project).answer == "open"
    assert {record.id for record in lake_records.records(project) if record.lake == place} == {
        accepted.id
    }


def test_a_lake_that_moved_with_its_path_goes_on(project: Path) -> None:
    own = _id(project)
    _rename_in_the_file(project)
    (project / "lake").rename(project / "lakes")
    assert _plan(project).known == own
    shutil.rmtree(project / "lakes")
    assert _lake(project).answer == "absent", "it is on record at both paths"


def test_another_project_and_another_pipeline_use_the_lake(
    project: Path, tmp_path: Path, typed: Printed
) -> None:
    shutil.copytree(project, tmp_path / "web", ignore=shutil.ignore_patterns("lake", ".draindown"))
    (tmp_path / "web" / "lake").symlink_to(project / "lake")
    assert _plan(tmp_path / "web").known == _id(project)
    assert typed("init", "--name", "returns")[0] == 0 and typed("plan", "returns")[0] == 0
    _remove(project)
    assert typed("plan", "returns")[0] == 78, "the path is on record, whichever pipeline used it"


@pytest.mark.parametrize("harm", [*HARMS[:2], *_REST])
def test_an_id_in_the_environment_stands_for_a_record(
    project: Path, typed: Printed, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None]
) -> None:
    """As where a project's directory does not outlive a run."""
    monkeypatch.setenv(PIN, f"other, {_id(project)}")
    assert typed("plan", "orders")[0] == 0
    shutil.rmtree(project / ".draindown")
    harm(project)
    code, _, err = typed("plan", "orders")
    assert code == 78 and "lake-missing" in err and PIN in err


def test_a_lake_is_begun_with_the_id_that_the_environment_requires(
    project: Path, typed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    _remove(project)
    monkeypatch.setenv(PIN, "production")
    assert typed("init", "--lake", "orders", "--yes")[0] == 0 and _id(project) == "production"
    monkeypatch.setenv(PIN, "other")
    code, _, err = typed("init", "--lake", "orders", "--yes")
    assert code == 78 and f"export {PIN}=production" in err
    assert PIN not in process._environ(), "copies of a drill have lakes of their own"


def test_a_torn_identity_is_named_and_leads_back(project: Path, typed: Printed) -> None:
    own, file = _id(project), project / "lake/_draindown/lake.json"
    file.write_text('{"format"')
    code, _, err = typed("run", "orders")
    assert code == 78 and "state-damaged" in err and f"mv {file} {file}.damaged" in err
    file.rename(f"{file}.damaged")
    assert typed("run", "orders")[0] == 78
    assert typed("init", "--lake", "orders", "--yes")[0] == 0 and _id(project) == own


def test_a_project_that_keeps_no_record_gets_a_note(project: Path) -> None:
    own = _id(project)
    shutil.rmtree(project / ".draindown")
    (project / ".draindown").write_text("")  # as root, no mode keeps this user from writing
    assert _plan(project).known == ""
    notes = {
        one.code: one.next for one in examine(_request(project)).symptoms if one.level == "note"
    }
    assert f"export {PIN}={own}" in notes["lake-not-on-record"]


def test_a_directory_that_is_no_project_keeps_no_record(tmp_path: Path) -> None:
    for name in ("one", "other"):
        Lake.look(str(tmp_path / name), tmp_path, "p").enter("me")
    assert not (tmp_path / ".draindown").exists()
