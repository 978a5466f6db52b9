"""Drills before anything is struck: which faults there are, and what a scratch copy is made of."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.config import scaffold
from draindown.config.loader import load
from draindown.config.models import PipelineSpec
from draindown.config.project import rooted
from draindown.config.sinks import FlowSink
from draindown.drill import baseline, faults, injections, process
from draindown.drill.faults import ALL, FAULTS, Conditions
from draindown.drill.material import BATCHES
from draindown.drill.result import Drill, Result
from draindown.drill.sandbox import Project, Scratch, prepare
from draindown.sources.files.listing import list_source
from draindown.sources.kafka.bounds import within
from draindown.sources.kafka.client import Sample, Seen
from draindown.sources.kafka.offsets import Available, Span

ROOT = Path(__file__).parents[2]
KEYED = Conditions(keyed=True, batches=3, changes=True, raw=True)


def _spec(root: Path, **source: Any) -> PipelineSpec:
    files = {"files": "in/*", "format": "json", "min_file_age": 0} | source
    flow = {
        "source": files,
        "columns": {"id": "string not null", "n": "int not null", "$x": "string"},
        "rules": {"dear": "n > 0 and id not like '$$x$'"},
        "target": {"keys": ["id"], "sequence_by": ["n"]},
        "max_batches": 1,
        "max_duration": 5,
    }
    return PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(root / "lake"), "flows": {"f": flow, "g": flow}}
    )


def _landed(root: Path, *contents: bytes, suffix: str = "") -> None:
    (root / "in").mkdir()
    for number, content in enumerate(contents):
        path = root / "in" / f"{number} %20.json{suffix}"
        path.write_bytes(content)
        os.utime(path, (100 - number, 100 - number))


def _prepared(
    root: Path, *contents: bytes, most: int = 30, size: int = 10**6, **source: Any
) -> Scratch:
    _landed(root, *contents, suffix=source.pop("suffix", ""))
    return prepare(
        root / "s" / "f", _spec(root, **source), "f", root, max_files=most, max_bytes=size
    )


def _delivered(scratch: Scratch) -> list[Path]:
    """What a copy's drain would list, oldest first."""
    copy = scratch.project("copy")
    source = copy.spec.flow("f").source
    return [Path(file.path) for file in list_source(source, copy.root, now()).files]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_says_what_it_does_and_can_be_done(fault: faults.Fault) -> None:
    assert fault.does.endswith(".") and fault.proof and fault.holds
    assert bool(fault.step) == fault.name.startswith("kill-")
    assert fault.name in injections._ACTS or fault.step
    assert fault in faults.chosen(ALL, KEYED)


def test_every_step_that_kills_is_one_that_strike_knows() -> None:
    told = set(
        re.findall(
            r'(?:reached|SideWrite)\("(\w+)"',
            "".join(p.read_text() for p in (ROOT / "src/draindown/spark").rglob("*.py")),
        )
    )
    known = told | {"data", "commit", "committed", "time"}
    assert {fault.step for fault in FAULTS if fault.step} <= known


def test_a_drill_of_all_leaves_out_what_cannot_happen() -> None:
    left_out = {f.name for f in FAULTS} - {
        f.name for f in faults.chosen(ALL, Conditions(False, 1, changes=False))
    }
    assert left_out == {"kill-after-raw", "kill-after-tombstones", "kill-while-writing", "stop"}


@pytest.mark.parametrize(
    ("name", "code"), [("stop", "fault-does-not-apply"), ("kill-after-merg", "unknown-fault")]
)
def test_a_fault_that_is_named_must_be_one_that_can_happen(name: str, code: str) -> None:
    with pytest.raises(TerminalError) as raised:
        faults.chosen(name, Conditions(True, 1, changes=True))
    assert raised.value.code == code
    assert code != "unknown-fault" or "'kill-after-merge'" in raised.value.found


def test_a_copy_is_a_project_whose_pipeline_reads_copies_and_writes_its_own_lake(
    tmp_path: Path,
) -> None:
    (tmp_path / "jobs" / "transforms").mkdir(parents=True)
    scratch = _prepared(tmp_path, b'{"n": 1}\n', b"{}\n", b"[]\n", b"\n")
    copy = scratch.project("copy")
    again = rooted(load(copy.root / "dags" / "pipelines" / "p.yaml", {}), copy.root)
    assert again == copy.spec and list(again.flows) == ["f"]
    flow, mine = again.flow("f"), _spec(tmp_path).flow("f")
    assert (flow.columns, flow.rules, flow.target) == (mine.columns, mine.rules, mine.target)
    assert (flow.max_batches, flow.max_duration, flow.source.min_file_age) == (None, None, 0)
    assert Path(again.lake) == copy.root / "lake" and not Path(again.lake).exists()
    assert (copy.root / "jobs" / "transforms").samefile(tmp_path / "jobs" / "transforms")
    copies = [Path(file.path) for file in list_source(flow.source, copy.root, now()).files]
    assert [copied.name for copied in copies] == [f"{n} %20.json" for n in (3, 2, 1, 0)]
    assert not any(
        copied.is_relative_to(tmp_path / "in") or copied.is_symlink() for copied in copies
    )


@pytest.mark.parametrize("files", [3, 4, 5, 6, 11, 30, 99])
def test_there_are_at_least_three_batches(tmp_path: Path, files: int) -> None:
    scratch = _prepared(tmp_path, *[b"{}\n"] * files, most=100, max_bytes_per_trigger="1gb")
    source = scratch.spec.flow("f").source
    assert source.max_bytes_per_trigger is None and source.max_files_per_trigger
    assert -(-files // source.max_files_per_trigger) >= BATCHES


def test_the_oldest_files_are_taken_up_to_both_bounds_and_one_at_least(tmp_path: Path) -> None:
    scratch = _prepared(tmp_path, *[b"x" * 10] * 8, most=6, size=45)
    assert [Path(path).name[0] for path in scratch.material.read] == ["7", "6", "5", "4"]
    large = prepare(tmp_path / "other", _spec(tmp_path), "f", tmp_path, max_files=6, max_bytes=5)
    assert [Path(path).name[0] for path in large.material.read] == ["7"]


@pytest.mark.parametrize("zipped", [False, True])
def test_lines_of_few_files_are_dealt_out_in_their_order(tmp_path: Path, zipped: bool) -> None:
    lines = [b'{"n": %d}\n' % n for n in range(7)] + [b"torn"]
    content = b"".join(lines)
    scratch = _prepared(
        tmp_path, gzip.compress(content) if zipped else content, suffix=".gz" if zipped else ""
    )
    files = _delivered(scratch)
    parts = [gzip.decompress(file.read_bytes()) if zipped else file.read_bytes() for file in files]
    assert len(parts) == 3 and all(parts) and b"".join(parts) == content
    assert {file.name for file in files} == {"0 %20.json" + (".gz" if zipped else "")}
    assert not any(file.is_symlink() for file in files)


def test_each_part_of_a_csv_file_has_its_header(tmp_path: Path) -> None:
    files = _delivered(_prepared(tmp_path, b"id,n\na,1\nb,2\nc,3\n", format="csv"))
    assert [file.read_bytes() for file in files] == [b"id,n\na,1\n", b"id,n\nb,2\n", b"id,n\nc,3\n"]


@pytest.mark.parametrize(
    ("content", "source"),
    [
        (b"PAR1", {"format": "parquet"}),
        (b"{}\n", {}),
        (gzip.compress(b"{}\n" * 9)[:-9], {"suffix": ".gz"}),
        (gzip.compress(b"{}\n" * 10**6), {"suffix": ".gz"}),
        (b"[{},\n{},\n{},\n{}]\n", {"multiline": True}),
        (b'id,n\na,"1\n2"\nb,"3\n4"\n', {"format": "csv"}),
    ],
    ids=["no text", "one line", "torn", "a bomb", "an array", "cells with line ends"],
)
def test_what_cannot_be_dealt_out_is_delivered_again(
    tmp_path: Path, content: bytes, source: dict[str, Any]
) -> None:
    files = _delivered(_prepared(tmp_path, content, **source))
    assert len(files) == 3 and {file.read_bytes() for file in files} == {content}


def test_copies_that_the_disk_has_no_room_for_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "draindown.drill.copied_files.shutil.disk_usage", lambda _: SimpleNamespace(free=29)
    )
    with pytest.raises(TerminalError, match=r"30 B.*29 B left; see --scratch"):
        _prepared(tmp_path, b"x" * 10)
    assert not list(tmp_path.rglob("source/*/*"))


def test_the_middle_batch_that_changes_rows_is_struck() -> None:
    changes = [0, 1, 0, 0, 1, 1, 0]
    ledger = [
        {"table_version": at, "inserted": some, "updated": 0, "deleted": 0}
        for at, some in enumerate(changes)
    ]
    assert (
        baseline._middle(ledger) == 5
        and baseline._middle(ledger[2:4]) == 1
        and baseline._middle(ledger[:3]) == 2
    )


def test_what_the_audit_of_a_copy_could_not_look_at_is_said() -> None:
    held = Result("f", "kill", "batch 1", "dead", unlooked=("keys that a transform makes",))
    text = str(Drill("p", "/s", (held, held)))
    assert text.count("not looked at  f: keys that a transform makes") == 1


def test_a_source_without_files_can_not_be_drilled(tmp_path: Path) -> None:
    with pytest.raises(TerminalError) as raised:
        _prepared(tmp_path)
    assert raised.value.code == "nothing-to-drill"


def test_a_process_that_is_killed_at_its_mark_has_fired(tmp_path: Path) -> None:
    script = "import os, pathlib, signal; pathlib.Path('fired').write_text(str(os.getpid()))"
    with process.running(
        ["-c", f"{script}; os.kill(os.getpid(), signal.SIGKILL)"],
        cwd=tmp_path,
        log=tmp_path / "log",
    ) as driver:
        assert process.wait_for_fault(tmp_path, driver, 30) == driver.pid
        assert process.code_of(driver, 30) == -signal.SIGKILL
        assert process.gone(driver.pid)


def test_a_mark_that_is_not_yet_written_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "fired").touch()
    script = "import pathlib, time; pathlib.Path('fired').write_text('41'); time.sleep(600)"
    with process.running(["-c", script], cwd=tmp_path, log=tmp_path / "log") as driver:
        assert process.wait_for_fault(tmp_path, driver, 30) == 41


def test_a_process_that_ends_by_itself_has_not(tmp_path: Path) -> None:
    with process.running(["-c", ""], cwd=tmp_path, log=tmp_path / "log") as driver:
        assert process.wait_for_fault(tmp_path, driver, 30) is None


def test_nothing_that_a_process_started_outlives_its_block(tmp_path: Path) -> None:
    script = "import pathlib, subprocess, time; child = subprocess.Popen(['sleep', '600'])"
    script += "; pathlib.Path('fired').write_text(str(child.pid)); time.sleep(600)"
    with process.running(["-c", script], cwd=tmp_path, log=tmp_path / "log") as driver:
        child = process.wait_for_fault(tmp_path, driver, 30)
        assert child and not process.gone(child, 0)
        process.signal_group(driver, signal.SIGSTOP)
        assert process.frozen(child)
    assert process.gone(child)


@pytest.mark.parametrize(
    ("out", "err"),
    [
        (
            '{\n "exit": 75, "reports": [{"error": null}, {"error": {"code": "lease-held"}}]\n}\n',
            "",
        ),
        ("", 'a note with {braces}\n{\n "error": {\n  "code": "lease-held"\n }\n}\n'),
    ],
)
def test_the_error_of_a_command_is_found_where_commands_say_it(out: str, err: str) -> None:
    assert process.Ended(75, 1.0, out, err).error == {"code": "lease-held"}
    assert process.Ended(1, 1.0, "", "Traceback {").error == {}


def test_a_fault_that_is_not_proven_to_have_fired_did_not_hold() -> None:
    shy = Result("f", "stop", "batch 1 of 3, read", fired="")
    fine = Result(
        "f",
        "zombie",
        "batch 1 of 3, read",
        fired="seen",
        commands=("draindown run p",),
        recovery=61.0,
    )
    assert fine.held and not shy.held
    assert Drill("p", "/s", (fine,)).held
    assert not Drill("p", "/s", (fine, shy)).held and not Drill("p", "/s", ()).held
    assert not Drill("p", "/s", (fine,), wrong=("lake: changed",)).held
    text = str(Drill("p", "/s", (fine, shy)))
    assert "1 of 2 held" in text and "not proven" in text and "1 min 1 s" in text


def _typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_without_a_fault_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _typed(capsys, "drill")
    assert code == 0 and all(fault.name in out for fault in FAULTS)
    code, out, _ = _typed(capsys, "drill", "--list", "--json")
    assert [one["name"] for one in json.loads(out)] == [fault.name for fault in FAULTS]
    assert code == 0 and json.loads(out)[0]["proof"]


@pytest.mark.parametrize(
    ("words", "code", "found"),
    [
        (("stop",), 2, "draindown drill stop TARGET"),
        (("kill-it", "orders"), 78, "unknown-fault"),
        (("stop", "orders/x"), 78, "unknown-flow"),
        (("stop", "orders", "--scratch", "jobs"), 78, "scratch-in-use"),
        (("stop", "orders", "--scratch", "landing/orders/deep"), 78, "scratch-in-use"),
        (("stop", "orders", "--scratch", "lake/deep"), 78, "scratch-in-use"),
        (("stop", "orders", "--scratch", "."), 78, "scratch-in-use"),
    ],
)
def test_what_can_not_be_drilled_is_refused_before_anything_is_copied(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    found: str,
) -> None:
    monkeypatch.delenv("DRAINDOWN_LAKE", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    scaffold.init(tmp_path / "shop", "orders")
    monkeypatch.chdir(tmp_path / "shop")
    ended, _, err = _typed(capsys, "drill", *words)
    assert ended == code and found in err
    assert not any((tmp_path / "tmp").iterdir())
    assert (tmp_path / "shop" / "landing" / "orders" / "2026-01-01.json").is_file()
    assert not (tmp_path / "shop" / "lake").exists()


def test_the_documents_name_every_fault_and_no_other() -> None:
    section = (
        (ROOT / "docs" / "cli.md")
        .read_text()
        .split("| fault | what is done")[1]
        .split("| option |")[0]
    )
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == [
        fault.name for fault in FAULTS
    ]


def test_a_process_is_alive_until_its_last_thread_is_gone() -> None:
    """A killed process may be a zombie whose other threads still end, and hold its locks until
    then.
    """
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('up', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        try:
            assert child.stdout and child.stdout.readline() == b"up\n"
            stat = Path(f"/proc/{child.pid}/stat")
            assert process._becomes(
                lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 30
            )
            assert process.alive(child.pid) and not process.gone(child.pid, 0.1)
            assert not process.frozen(child.pid, 0.1)
        finally:
            process.end(child.pid)
        assert process.gone(child.pid)


TOPIC = {
    "kafka": {"topics": ["t"], "bootstrap_servers": "h:1", "starting_offsets": "latest"},
    "format": "json",
}


class _Brokers:
    """A client of brokers with one topic of two partitions."""

    ends: ClassVar = [(0, 900), (50, 150)]

    def __init__(self, source: object) -> None:
        assert source

    def look(self) -> Seen:
        return Seen(tuple(Available("t", at, "x", *ends) for at, ends in enumerate(self.ends)), {})

    def sample(self, spans: Sequence[Span]) -> Sample:
        return Sample({}, 100.0 if any(span.size for span in spans) else None)


def _of_topic(root: Path, monkeypatch: pytest.MonkeyPatch, **bounds: int) -> Scratch:
    monkeypatch.setattr("draindown.drill.topic_ends.Client", _Brokers)
    flow = {"source": TOPIC, "columns": {"n": "int"}, "target": {}}
    spec = PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(root / "lake"), "flows": {"f": flow}}
    )
    return prepare(
        root / "s" / "f", spec, "f", root, **({"max_files": 30, "max_bytes": 10**6} | bounds)
    )


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ({}, {"t/0": (0, 900), "t/1": (50, 150)}),
        ({"max_bytes": 20_000}, {"t/0": (720, 900), "t/1": (130, 150)}),
        ({"max_bytes": 1}, {"t/0": (897, 900), "t/1": (150, 150)}),
    ],
    ids=["all", "so many bytes", "a record per batch at least"],
)
def test_copies_of_a_topic_read_its_newest_records_and_no_later_ones(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bounds: dict[str, int],
    wanted: dict[str, tuple[int, int]],
) -> None:
    scratch = _of_topic(tmp_path, monkeypatch, **bounds)
    source = scratch.spec.flow("f").source
    records = sum(until - start for start, until in wanted.values())
    assert (source.kafka.starting_offsets, source.most_units[0]) == (
        "earliest",
        -(-records // BATCHES),
    )  # type: ignore[attr-defined]
    copy = scratch.project("copy")
    more = Seen(tuple(Available("t", at, "x", 0, 2000) for at in range(3)), {})
    seen = within(more, copy.layout)
    assert {
        f"{one.topic}/{one.partition}": (one.beginning, one.end) for one in seen.partitions
    } == wanted
    assert within(more, scratch.copy(copy, "second").layout) == seen, (
        "copies of copies read the same"
    )
    assert within(more, _spec(tmp_path).layout("f")) == more, "the flow itself reads on"


def test_a_copy_whose_lake_is_drained_anew_is_as_confined_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = _of_topic(tmp_path, monkeypatch)
    more, looks = Seen(tuple(Available("t", at, "x", 0, 2000) for at in range(3)), {}), []

    def killed(_: Any, project: Project, __: Any) -> tuple[int, str]:
        looks.append(within(more, project.layout))
        return (0, "") if len(looks) == 1 else (-9, "killed")

    monkeypatch.setattr(injections, "_killed", killed)
    monkeypatch.setattr(injections, "batches_done", lambda _: 0)
    control = SimpleNamespace(differences=lambda _: [])
    baseline: Any = SimpleNamespace(
        scratch=scratch, times=1, seed=1, batches=3, seconds=1.0, control=control
    )
    found = injections._at_random(
        baseline, next(one for one in FAULTS if one.name == "kill-at-random")
    )
    assert found.fired and not found.wrong
    assert looks == [looks[0]] * 2 and looks[0] != more
    Path(found.project.layout.bounds.path).unlink()
    with pytest.raises(TerminalError) as raised:
        within(more, found.project.layout)
    assert raised.value.code == "state-damaged"


def test_a_topic_without_records_is_nothing_to_drill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Brokers, "ends", [(7, 7)])
    with pytest.raises(TerminalError) as raised:
        _of_topic(tmp_path, monkeypatch)
    assert raised.value.code == "nothing-to-drill"


def test_copies_send_nothing_to_the_sinks_of_the_flow(tmp_path: Path) -> None:
    _landed(tmp_path, b'{"id": "1", "n": 1}\n')
    spec = _spec(tmp_path)
    sink = FlowSink.model_validate({"postgres": {"url": "${secret:URL}", "table": "t"}})
    flow = spec.flow("f").model_copy(update={"sinks": {"a": sink}})
    sending = spec.model_copy(update={"flows": {"f": flow}})
    copied = prepare(tmp_path / "s" / "f", sending, "f", tmp_path, max_files=1, max_bytes=10**6)
    assert sending.flow("f").sinks and copied.spec.flow("f").sinks == {}
