"""A step without a report is at work, died, or never began; each is told apart and says what to
type.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from draindown.base import clock
from draindown.base.errors import TransientError
from draindown.cli.program import main
from draindown.config.lease import LeaseSpec
from draindown.flow import at_work
from draindown.lake.documents import Document
from draindown.lease import holder as lease_holder
from draindown.recovery.opening import lease_of
from draindown.runs import report, starts, store, unfinished
from draindown.runs.driver_log import DriverLog
from draindown.runs.report import Backlog, PlanPart
from draindown.runs.request import Request, Step, new_start
from tests.flowfiles import AT, commit, drained, request

WANTED = PlanPart(backlog=Backlog(units=1), drain=True, check=True, compact=True)


def planned(asked: Request) -> report.StepReport:
    """The plan of a run that needs all steps, left behind."""
    done = report.of(asked.model_copy(update={"step": "plan"}), clock.now(), "done", plan=WANTED)
    store.write(asked.layout, done)
    return done


def look(asked: Request) -> unfinished.Unfinished:
    found = at_work.of_reports(lambda _: asked.layout, [planned(asked)])
    assert len(found) == 1
    return found[0]


def died(asked: Request) -> int:
    """A driver of the step that says it is at work and is killed; returns its process id."""
    script = (
        "import sys, time\nfrom draindown.flow import at_work\nfrom draindown.runs.request import Request\n"
        "with at_work.at_work(Request.decode(sys.argv[1])):\n print('at work', flush=True)\n time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, asked.encode()], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "at work\n"
        assert look(asked).state == "at work" and str(process.pid) in look(asked).who
        process.send_signal(signal.SIGKILL)
    return process.pid


def test_a_step_that_nobody_began_is_told(tmp_path: Path) -> None:
    found = look(request(tmp_path))
    assert (found.step, found.state) == ("drain", "not begun")
    assert str(found) == "drain has not begun" and found.next[0].startswith("draindown run ")


def test_a_spark_that_never_came_up_is_told_from_a_step_that_nobody_began(tmp_path: Path) -> None:
    asked = request(tmp_path)
    path = Path(asked.layout.start(asked.run_id, "drain").log)
    path.parent.mkdir(parents=True)
    path.write_text("== spark-submit\n")
    found = look(asked)
    assert found.state == "no Spark" and any(str(path) in command for command in found.next)


def test_a_drain_whose_report_could_not_be_written_is_not_called_one_that_never_began(
    tmp_path: Path,
) -> None:
    """As on a full disk: its note is gone as after every end in order, its log and its batches are
    there.
    """
    asked = drained(tmp_path)
    asked = asked.model_copy(update={"start": new_start()})
    with (
        at_work.at_work(asked),
        DriverLog.of(asked.layout, asked.run_id, "drain", asked.start) as log,
    ):
        log.write("x")
    assert look(asked).state == "no report", (
        "the batches are those of other starts, and its log shows that it came up"
    )
    commit(asked, 2, run_id=asked.run_id, attempt=asked.start)
    found = look(asked)
    assert (found.state, found.batches) == ("not written", 1)
    assert str(found) == "drain ended, and its report could not be written; 1 batch of it committed"
    assert found.next[0] == "draindown run p/f   # goes on after the last whole batch"
    # and the run is cleared: planned again since
    store.write(asked.layout, report.of(asked, AT, "done"))
    found = look(asked)
    assert (found.state, found.log) == ("not begun", "")


def test_a_step_at_work_says_who_and_for_how_long_and_leaves_no_note(tmp_path: Path) -> None:
    asked = request(tmp_path)
    with at_work.at_work(asked):
        found = look(asked)
        assert (
            found.state == "at work"
            and found.seconds is not None
            and str(os.getpid()) in str(found)
        )
        assert found.next[0].startswith("draindown report ") and found.run_id in found.next[0]
    assert look(asked).state == "not begun"


def test_a_driver_that_was_killed_is_told_with_what_it_committed(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    pid = died(asked)
    found = look(asked)
    assert (found.state, found.batches) == ("died", 2)
    assert f"process {pid} " in str(found) and "or more after it began" in str(found)
    assert found.next[0].startswith(f"draindown run {asked.spec.pipeline}")
    assert at_work.left(asked.layout, asked.spec.pipeline, asked.run_id, "drain") == found


def test_the_next_start_takes_the_note_over(tmp_path: Path) -> None:
    asked = request(tmp_path)
    died(asked)
    with at_work.at_work(asked):
        assert (
            look(asked).state == "at work"
            and at_work.left(asked.layout, "p", asked.run_id, "drain") is None
        )
    assert look(asked).state == "not begun"


def test_each_start_has_a_note_and_a_log_of_its_own(tmp_path: Path) -> None:
    first = request(tmp_path)
    second = first.model_copy(update={"start": new_start()})
    for asked in (first, second):
        with DriverLog.of(asked.layout, asked.run_id, "drain", asked.start) as log:
            log.write(asked.start)
    dead = died(first)
    assert look(first).log == first.layout.start(first.run_id, "drain", first.start).log
    with at_work.at_work(second):
        found = look(first)
        assert (found.state, found.log) == (
            "at work",
            second.layout.start(first.run_id, "drain", second.start).log,
        )
        kept = Path(first.layout.start(first.run_id, "drain", first.start).at_work)
        assert str(dead) in kept.read_text()
    assert not kept.exists() and look(first).state == "no report"


def test_a_start_beside_one_at_work_leaves_its_note_alone(tmp_path: Path) -> None:
    asked = request(tmp_path)
    with at_work.at_work(asked):
        with at_work.at_work(asked):
            pass
        assert look(asked).state == "at work"


def test_a_driver_on_another_host_is_at_work_as_long_as_it_holds_the_lease(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    note = {"pid": 1, "host": "elsewhere", "at": AT.isoformat()}
    Document(asked.layout.start(asked.run_id, "drain").at_work).write(note)
    with lease_of(asked.layout, LeaseSpec(), owner="me", run_id=asked.run_id):
        assert look(asked).state == "at work"
    assert look(asked).state == "died"


def test_a_shared_lease_says_at_work_while_its_heartbeat_is_fresh_and_only_of_other_hosts(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    path = asked.layout.start(asked.run_id, "drain").at_work
    terms = LeaseSpec(mode="shared", duration=600)
    with lease_of(asked.layout, terms, owner="me", run_id=asked.run_id):
        Document(path).write({"pid": 1, "host": socket.gethostname(), "at": AT.isoformat()})
        assert look(asked).state == "at work", "its JVM may outlive its Python"
        with mock.patch.object(lease_holder, "is_locked", lambda _: False):  # as a kill leaves it
            assert look(asked).state == "died"
            Document(path).write({"pid": 1, "host": "elsewhere", "at": AT.isoformat()})
            assert look(asked).state == "at work"
            for beat in Path(asked.layout.lease, "epochs").glob("*.beat"):
                os.utime(beat, (0, 0))
            holder = lease_holder.holder(asked.layout, patient=False)
            assert holder is not None and holder.is_stale and "stale" in str(holder)
            assert look(asked).state == "died"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"at": 3}', '{"at": "then"}'])
def test_a_torn_note_is_a_driver_that_died(tmp_path: Path, content: str) -> None:
    asked = request(tmp_path)
    path = Path(asked.layout.start(asked.run_id, "drain").at_work)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    found = look(asked)
    assert (found.state, found.seconds) == ("died", None) and str(found)


def test_a_lake_that_takes_no_note_does_not_end_the_step(tmp_path: Path) -> None:
    asked = request(tmp_path)
    Path(asked.spec.lake).write_text("no directory")
    with at_work.at_work(asked):
        pass


def test_a_run_that_only_has_a_driver_log_is_not_the_last_that_left_reports(tmp_path: Path) -> None:
    asked = request(tmp_path)
    planned(asked)
    with DriverLog.of(asked.layout, "a plan of gate withdraw", "drain") as log:
        log.write("x")
    assert store.runs(asked.layout) == [asked.run_id]


def project(asked: Request) -> None:
    """The request's pipeline as a file that commands find."""
    home = Path(asked.root) / "dags" / "pipelines"
    home.mkdir(parents=True)
    (home / "p.yaml").write_text(
        json.dumps(asked.spec.model_dump(mode="json", exclude_defaults=True))
    )


def reported(asked: Request, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["--root", asked.root, "report", asked.spec.pipeline, *words])
    return code, " ".join(capsys.readouterr().out.split())


def test_a_run_that_met_another_at_work_does_not_hide_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = drained(tmp_path)  # two batches of run r
    project(asked)
    other = asked.model_copy(update={"run_id": "other"})
    error = TransientError("lease-held", tried="t", found="f").as_dict()
    store.write(asked.layout, report.of(other, clock.now(), "failed", error=error))
    with lease_of(asked.layout, LeaseSpec(), owner="me", run_id=asked.run_id):
        code, said = reported(asked, capsys)
        assert code == 0 and said.startswith("FAILED p/f drain: lease-held")
        assert f"AT WORK p/f me (run {asked.run_id}, process {os.getpid()} on " in said
        assert "2 batches of it committed so far, 2 records" in said
        assert f"next: draindown --root {tmp_path} report p/f --run {asked.run_id}" in said
    assert "AT WORK" not in reported(asked, capsys)[1]


def test_a_run_at_work_that_left_no_report_yet_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = request(tmp_path)
    project(asked)
    with at_work.at_work(asked):
        code, said = reported(asked, capsys, "--run", asked.run_id)
        assert (
            code == 0 and "AT WORK p/f drain is at work since" in said and str(os.getpid()) in said
        )
    assert reported(asked, capsys, "--run", asked.run_id)[0] == 78


@pytest.mark.parametrize("step", ["check", "compact"])
def test_a_step_at_work_without_a_drain_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step: Step
) -> None:
    """What `lease-held` says to type while a compaction holds the lease."""
    asked = request(tmp_path).model_copy(update={"step": step})
    project(asked)
    with at_work.at_work(asked):
        code, said = reported(asked, capsys, "--run", asked.run_id)
    assert code == 0 and f"AT WORK p/f {step} is at work since" in said


def test_report_and_its_list_say_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = drained(tmp_path)
    commit(asked, 2)
    planned(asked)
    died(asked)
    project(asked)
    for words in (["--run", asked.run_id], ["--list"]):
        code = main(["--root", str(tmp_path), "report", asked.spec.pipeline, *words])
        said = " ".join(capsys.readouterr().out.split())
        assert code == 0 and "DIED" in said and "or more after it began" in said


def test_a_replay_that_was_killed_goes_on_with_the_replay(tmp_path: Path) -> None:
    command = "draindown replay p/f --file /in/a --yes"
    asked = request(tmp_path, command=command)
    died(asked)
    assert look(asked).next[0].startswith(f"{command} ")


def test_a_start_that_died_without_a_batch_is_among_the_starts(tmp_path: Path) -> None:
    asked = request(tmp_path)
    died(asked)
    second = asked.model_copy(update={"start": new_start()})
    with (
        DriverLog.of(asked.layout, asked.run_id, "drain", asked.start) as log,
        at_work.at_work(second),
    ):
        log.write("came up")
        store.write(asked.layout, report.of(second, clock.now(), "idle"))
    listed = [
        (one.step, one.start, one.outcome) for one in starts.listed(asked.layout, asked.run_id)
    ]
    assert [one for one in listed if one[0] == "drain"] == [
        ("drain", asked.start, "no report"),
        ("drain", second.start, "idle"),
    ]


def test_what_a_dead_driver_committed_is_unknown_where_the_ledger_is_torn(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    died(asked)
    for log in Path(asked.layout.tables.ledger.path, "_delta_log").iterdir():
        log.write_text("{")
    found = at_work.look(asked.layout, "p", asked.run_id, "drain")
    assert (found.state, found.batches) == ("died", None) and "can't be read" in str(found)
