"""How the newest run of a flow stands: the same answer in report, its list, the overview and on the
page.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from draindown.base.clock import now
from draindown.cli.program import main
from draindown.config.lease import LeaseSpec
from draindown.flow import at_work, standing
from draindown.lake.documents import Document
from draindown.pages import overview
from draindown.recovery import half_rebuilt
from draindown.recovery.opening import lease_of
from draindown.runs import report, store
from draindown.runs.driver_log import DriverLog
from draindown.runs.report import Backlog, DrainPart, PlanPart
from draindown.runs.request import Request, new_start
from draindown.spark.job import main as job
from tests.flowfiles import checkpoint, commit, drained, request

WANTED = PlanPart(backlog=Backlog(units=1), drain=True, check=True)
JVM_GONE = {
    "code": "jvm-gone",
    "tried": "t",
    "found": "f",
    "changed": "c",
    "next": ["draindown run p"],
}


def leave(asked: Request, step: str, outcome: str = "done", **more: Any) -> None:
    """The report of a start of a step that began after all others."""
    this = asked.model_copy(update={"step": step, "start": store.next_start(asked.layout)})
    store.write(asked.layout, report.of(this, now(), outcome, **more))  # type: ignore[arg-type]


def again(asked: Request, **more: Any) -> Request:
    """The next start of the request's step."""
    return asked.model_copy(update={"start": store.next_start(asked.layout), **more})


def die(asked: Request) -> None:
    """Leave the note that a driver leaves which is killed."""
    note = {"pid": 1, "host": "elsewhere", "at": now().isoformat(), "try": asked.try_number}
    Document(asked.layout.start(asked.run_id, asked.step, asked.start).at_work).write(note)


def project(asked: Request) -> None:
    """The request's pipeline as a file that commands find."""
    home = Path(asked.root) / "dags" / "pipelines"
    home.mkdir(parents=True)
    (home / "p.yaml").write_text(
        json.dumps(asked.spec.model_dump(mode="json", exclude_defaults=True))
    )


def nothing(asked: Request) -> None:
    del asked


def planned(asked: Request) -> None:
    leave(asked, "plan", plan=WANTED)


def failed(asked: Request) -> None:
    planned(asked)
    leave(asked, "drain", "failed", error=JVM_GONE)


def failed_then_died(asked: Request) -> None:
    failed(asked)
    die(again(asked, try_number=2))


def died_then_failed(asked: Request) -> None:
    planned(asked)
    die(again(asked))
    leave(asked, "drain", "failed", error=JVM_GONE)


def done(asked: Request) -> None:
    planned(asked)
    leave(asked, "drain", drain=DrainPart(generation=1))
    leave(asked, "check", check=report.CheckPart(version=2, published_before=1, published_after=2))


def replayed(asked: Request) -> None:
    leave(asked, "drain", drain=DrainPart(generation=1, replay="x", batches=[{"kind": "drain"}]))


def torn(asked: Request) -> None:
    planned(asked)
    for path in Path(asked.layout.run_reports(asked.run_id)).iterdir():
        path.write_text("{")


@pytest.mark.parametrize(
    ("facts", "works", "said"),
    [
        (planned, False, "UNFINISHED  p/f  drain has not begun"),
        (planned, True, "AT WORK  p/f  drain is at work since "),
        (nothing, True, "AT WORK  p/f  drain is at work since "),
        (failed, False, "FAILED  p/f  drain: jvm-gone"),
        (failed, True, "AT WORK  p/f  drain is at work since "),
        (failed_then_died, False, "DIED  p/f  drain was at work since "),
        (failed_then_died, True, "AT WORK  p/f  drain is at work since "),
        (died_then_failed, False, "FAILED  p/f  drain: jvm-gone"),
        (done, False, "OK  p/f  no batch; published version 2"),
        (replayed, False, "NOT CHECKED  p/f  replayed 0 files"),
        (torn, False, "FAILED  p/f  its reports can't be read"),
    ],
)
def test_report_its_list_status_and_the_page_say_the_same(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    facts: Callable[[Request], None],
    works: bool,
    said: str,
) -> None:
    asked = request(tmp_path, run_id="r1")
    project(asked)
    (tmp_path / "in").mkdir(exist_ok=True)
    facts(asked)
    with at_work.at_work(again(asked, try_number=2)) if works else nullcontext():
        (found,) = standing.newest(asked.layout, "p", 5)
        assert found.said.startswith(said)
        shown = []
        for words in ("report p", "report p --list", "report p --run r1", "status"):
            assert main(["--root", str(tmp_path), *words.split()]) == 0
            shown.append(capsys.readouterr().out)
        view = overview.flows(tmp_path / "dags" / "pipelines", tmp_path)[0].runs[0]
    flat = [" ".join(text.split()) for text in shown]
    assert all(" ".join(said.split()) in text for text in flat[:3])
    of_status = said.split()[0] if said.startswith("OK") else " ".join(said.split())
    assert of_status in flat[3]
    assert (view.mark, f"{view.mark}  p/f  {view.what}".startswith(said)) == (found.mark, True)
    if works:
        assert all("FAILED" not in text for text in flat) and "try 2, process" in flat[0]


def test_what_is_at_work_hides_no_earlier_error_and_names_no_command_that_would_disturb_it(
    tmp_path: Path,
) -> None:
    asked = request(tmp_path)
    failed(asked)
    with at_work.at_work(again(asked)):
        (found,) = standing.newest(asked.layout, "p", 5)
    assert "earlier      drain failed with jvm-gone at" in found.card
    assert (
        "draindown run p" not in found.card
        and "draindown report p --run r   # once it has ended" in found.card
    )


def test_a_run_at_work_without_a_report_is_the_newest(tmp_path: Path) -> None:
    """A rebuild or a replay from the command line has no plan."""
    asked = request(tmp_path, run_id="before")
    done(asked)
    with at_work.at_work(
        again(asked, run_id="rebuild: of f", command="draindown rebuild p/f --yes")
    ):
        first, second = standing.newest(asked.layout, "p", 5)
    assert (first.run_id, first.mark, second.run_id) == ("rebuild: of f", "AT WORK", "before")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, "rebuild-unfinished"),
        ({"previous": 7}, "rebuild-overtaken"),
        ({"contract": ""}, "rebuild-damaged"),
    ],
)
def test_a_rebuild_that_is_half_done_is_in_report_status_and_page_as_in_doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], code: str
) -> None:
    asked = drained(tmp_path)
    project(asked)
    done(asked)
    begun = {"generation": 2, "previous": 1, "at": "then", "by": "me", "contract": "c"}
    begun |= {"foreign": []}
    asked.layout.rebuild.write(begun | change)
    for words in (["report", "p"], ["status"], ["doctor"]):
        main(["--root", str(tmp_path), *words])
        assert code in capsys.readouterr().out, words
    view = overview.flows(tmp_path / "dags" / "pipelines", tmp_path)[0]
    assert view.rebuild is not None and view.rebuild.code == code
    with lease_of(asked.layout, LeaseSpec(), owner="me", run_id="x"):
        assert half_rebuilt.found(asked.layout) is None, "whoever holds the lease works on it"
    asked.layout.rebuild.delete()
    assert half_rebuilt.found(asked.layout) is None


def silent(asked: Request, *, said: str) -> Request:
    """A start whose driver log is there, and neither a note nor a report; `said`: what Spark wrote
    there.
    """
    planned(asked)
    this = asked.model_copy(update={"start": new_start()})
    with DriverLog.of(this.layout, this.run_id, "drain", this.start) as log:
        log.heading("spark-submit drain.py")
        if said:
            log.write(said)
    return this


def in_flight(asked: Request, began: datetime) -> None:
    """Batch 2 was planned at that time, and has no commit."""
    home = checkpoint(asked, 1, offsets=3, commits=2)
    os.utime(home / "offsets" / "2", (began.timestamp(), began.timestamp()))


@pytest.mark.parametrize(
    ("said", "planned_ago", "batches", "state", "text"),
    [
        (
            "",
            None,
            0,
            "no Spark",
            "drain has not begun: Spark did not start, or its task was ended before",
        ),
        ("", 3600, 0, "no Spark", "; batch 2 was in flight"),
        (
            "WARN",
            None,
            0,
            "no report",
            "drain left no report: its driver came up, and ended before it could write one",
        ),
        ("WARN", 3600, 0, "no report", "before it could write one; batch 2 was in flight"),
        (
            "WARN",
            0,
            0,
            "not written",
            "could not be written; 0 batches of it committed; batch 2 was in flight",
        ),
        (
            "",
            0,
            0,
            "not written",
            "could not be written; 0 batches of it committed; batch 2 was in flight",
        ),
        (
            "WARN",
            None,
            1,
            "not written",
            "its report could not be written; 1 batch of it committed",
        ),
    ],
)
def test_what_a_start_without_report_and_note_is_said_to_be_follows_from_what_it_left(
    tmp_path: Path, said: str, planned_ago: int | None, batches: int, state: str, text: str
) -> None:
    asked = drained(tmp_path)
    for path in Path(asked.layout.tables.intake(1).path, "_delta_log").iterdir():
        os.utime(path, (0, 0))
    this = silent(asked, said=said)
    if planned_ago is not None:
        in_flight(asked, datetime.now(UTC) + timedelta(seconds=5) - timedelta(seconds=planned_ago))
    for number in range(batches):
        commit(asked, 2 + number, attempt=this.start)
    found = at_work.look(asked.layout, "p", asked.run_id, "drain")
    assert (found.state, found.batches) == (state, batches) and text in str(found)
    (run,) = standing.newest(asked.layout, "p", 5)
    assert run.mark == "UNFINISHED" and text in run.said


def test_input_that_a_start_pinned_shows_that_it_began(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    this = silent(asked, said="")
    newest = max(Path(asked.layout.tables.intake(1).path, "_delta_log").glob("*.json"))
    later = (datetime.now(UTC) + timedelta(seconds=5)).timestamp()
    os.utime(newest, (later, later))
    found = at_work.look(asked.layout, "p", asked.run_id, "drain")
    assert (found.state, found.start, found.in_flight) == ("not written", this.start, None)


def test_the_note_keeps_room_for_a_report_and_gives_it_back(tmp_path: Path) -> None:
    asked = request(tmp_path)
    path = Path(asked.layout.start(asked.run_id, "drain", asked.start).at_work)
    with at_work.at_work(asked) as make_room:
        before = path.stat().st_size
        assert before > 100_000 and at_work.look(asked.layout, "p", "r", "drain").state == "at work"
        make_room()
        assert path.stat().st_size < 1_000 and json.loads(path.read_text())["run"] == "r"
        assert at_work.look(asked.layout, "p", "r", "drain").state == "at work"


@pytest.mark.parametrize("room", [True, False])
def test_a_report_on_a_full_disk_is_written_in_the_room_that_the_note_gives_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    asked = request(tmp_path)
    note, write = Path(asked.layout.start(asked.run_id, "drain", asked.start).at_work), store.write

    def full(*args: Any) -> str:
        if note.stat().st_size > 1_000 or not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*args)

    monkeypatch.setattr(store, "write", full)
    told, code = job.attempt(asked, lambda stop: report.of(asked, now(), "done"))
    assert ((told.error or {}).get("code"), code) == ((None, 0) if room else ("disk-full", 78))
    assert (store.read(asked.layout, asked.run_id, "drain") is not None) == room
