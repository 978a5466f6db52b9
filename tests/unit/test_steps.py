"""Which steps follow each other in one process, and what is left of each. Starts no JVM."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from draindown.base.errors import GateFailed, TransientError
from draindown.base.exits import Exit
from draindown.planning import compaction
from draindown.planning.compaction import Partition, TableWork, Work
from draindown.runs import report, step_lines, store
from draindown.runs.report import StepReport
from draindown.runs.request import STEPS, Request, Step
from draindown.sources.tables import readers
from draindown.spark.job import steps
from draindown.spark.limits import Stop
from tests.flowfiles import AT, request

REST: tuple[Step, ...] = ("check", "compact")
FAILS: dict[str, Any] = {
    "gate": GateFailed("gate-failed", tried="t", found="f"),
    "held": TransientError("lease-held", tried="t", found="f"),
    "lost": TransientError("lease-lost", tried="t", found="f"),
    "crash": RuntimeError("boom"),
}


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The steps that were done, in order. `ways` of a step: what it raises, or calls."""
    done: list[Request] = []

    def work(asked: Request, spark: object, stop: Stop) -> StepReport:
        done.append(asked)
        if (way := WAYS.get(asked.step)) is not None:
            if isinstance(way, Exception):
                raise way
            way(asked)
        return report.of(asked, AT, "done")

    WAYS.clear()
    monkeypatch.setattr(steps, "work", work)
    monkeypatch.setattr(compaction, "joins", lambda asked: True)
    return done


WAYS: dict[str, Any] = {}


def run(asked: Request) -> Exit:
    return steps.run(asked, lambda _: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("seed", range(60))
def test_steps_follow_while_each_ends_well_and_each_leaves_a_report_of_its_own(
    tmp_path: Path, did: list[Request], seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(seed)
    then = tuple(step for step in REST if chance.random() < 0.8)
    for step in ("drain", *REST):
        if chance.random() < 0.3:
            WAYS[step] = FAILS[chance.choice(list(FAILS))]
    asked = request(tmp_path, then=then)
    ways = ["drain", *then]
    ends = next((at for at, step in enumerate(ways) if step in WAYS), len(ways))
    code = run(asked)
    assert [one.step for one in did] == ways[: ends + 1]
    assert (code == Exit.DONE) == ("drain" not in WAYS), "the code is that of the first step alone"
    assert len({one.start for one in did}) == len(did)
    told = {one.step: store.read(asked.layout, asked.run_id, one.step, one.start) for one in did}
    for one in did:
        left = told[one.step]
        assert left is not None and (left.outcome == "failed") == (one.step in WAYS)
        if one.step == "drain":
            assert left.fused is None
        else:
            assert left.fused is not None and left.fused.drain == asked.start
            assert (left.fused.exit == Exit.DONE) == (left.outcome == "done")
    begun = [
        step for text in capsys.readouterr().out.splitlines() if (step := step_lines.begun(text))
    ]
    assert begun == [(one.step, one.start) for one in did[1:]]


def test_a_drain_whose_report_is_not_there_is_followed_by_nothing_and_prints_why(
    tmp_path: Path,
    did: list[Request],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "write", full)
    assert run(request(tmp_path, then=REST)) == Exit.NEEDS_PERSON
    assert [one.step for one in did] == ["drain"]
    said = [step_lines.error_of(text, "drain") for text in capsys.readouterr().out.splitlines()]
    assert [error["code"] for error in said if error] == ["disk-full"]


def test_old_reports_that_can_not_be_removed_fail_no_step(
    tmp_path: Path, did: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(store, "forget_old", denied)
    asked = request(tmp_path)
    assert run(asked) == Exit.DONE and store.read(asked.layout, asked.run_id, "drain")


def test_a_disk_that_is_full_after_the_drain_leaves_its_report_and_its_code(
    tmp_path: Path, did: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.write

    def full(layout: Any, told: StepReport) -> str:
        if told.step != "drain":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(layout, told)

    monkeypatch.setattr(store, "write", full)
    asked = request(tmp_path, then=REST)
    assert run(asked) == Exit.DONE
    assert [one.step for one in did] == ["drain", "check"]
    assert store.read(asked.layout, asked.run_id, "drain") and not store.read(
        asked.layout, asked.run_id, "check"
    )


@pytest.mark.parametrize(("within", "done"), [("drain", ["drain"]), ("check", ["drain", "check"])])
def test_after_a_signal_nothing_begins(
    tmp_path: Path, did: list[Request], within: str, done: list[str]
) -> None:
    WAYS[within] = lambda _: os.kill(os.getpid(), signal.SIGTERM)
    assert run(request(tmp_path, then=REST)) == Exit.DONE
    assert [one.step for one in did] == done


def test_a_compaction_that_can_not_be_weighed_is_left_to_its_task(
    tmp_path: Path, did: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(_: Request) -> bool:
        raise ValueError("a torn log")

    monkeypatch.setattr(compaction, "joins", torn)
    asked = request(tmp_path, then=REST)
    assert run(asked) == Exit.DONE and [one.step for one in did] == ["drain", "check"]
    assert (
        "a torn log" in Path(asked.layout.start(asked.run_id, "drain", asked.start).log).read_text()
    )


@pytest.mark.parametrize("files", [0, 1, 10, 400])
@pytest.mark.parametrize("read", [False, True])
def test_a_compaction_joins_where_it_is_due_and_nobody_waits_long(
    tmp_path: Path, files: int, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Partition((), files=files, small=files, bytes=files * 1_000_000, rows=files, deleted=0)
    due = Work((TableWork("f", "t", merge=(part,), purge=(part,)),)) if files else Work()
    monkeypatch.setattr(compaction, "work", lambda *_, **__: due)
    monkeypatch.setattr(readers, "readers", lambda _: ["one"] if read else [])
    assert compaction.joins(request(tmp_path)) == (0 < files < 60 or (bool(files) and not read))
    assert due.seconds >= files / 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "draindown: ",
        "draindown: {",
        "draindown: []",
        "draindown: 3",
        'draindown: {"step": "check", "outcome": "begun"}',
        'draindown: {"step": "rm", "start": "s", "outcome": "begun"}',
        'draindown: {"step": ["check"], "start": "s", "outcome": "begun"}',
        'draindown: {"step": "check", "start": "s", "outcome": "done"}',
        '{"step": "check", "start": "s", "outcome": "begun"}',
    ],
)
def test_what_a_job_prints_is_no_beginning(text: str) -> None:
    assert step_lines.begun(text) is None


def test_a_beginning_is_read_as_it_was_said() -> None:
    for step in STEPS:
        said = step_lines.line({"step": step, "start": "s", "outcome": "begun"})
        assert step_lines.begun(said + "\n") == (step, "s") and json.loads(
            said.removeprefix("draindown: ")
        )
