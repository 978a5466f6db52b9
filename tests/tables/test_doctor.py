"""Each thing that can be wrong is named by doctor, with the command that helps; what agrees is
not.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.base.clock import now
from draindown.config.lease import LeaseSpec
from draindown.config.target_kinds import DERIVED, UPSERT, TargetKind
from draindown.doctor.examination import examine, examine_setup
from draindown.doctor.model import Desk, Examination
from draindown.doctor.tables import look_at_memory
from draindown.gate import published as pointer
from draindown.gate import waivers
from draindown.lake.documents import Document
from draindown.lake.table import Table
from draindown.launch import jvm
from draindown.launch import settings as spark_settings
from draindown.lease.holder import Card
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.planning.plan import plan
from draindown.recovery.opening import Needs, lease_of, open_flow
from draindown.recovery.replay import find, pin
from draindown.runs import report, store
from draindown.runs.report import CheckPart, DrainPart, Expectation
from draindown.runs.request import Again, Request
from draindown.sources.files import parked
from tests.flowfiles import (
    AT,
    checkpoint,
    commit,
    drained,
    foreign,
    places,
    request,
    restore,
    take_in,
)

Damage = Callable[[Request], object]


def codes(health: Examination, level: str | None = None) -> set[str]:
    assert all(symptom.next for symptom in health.symptoms)
    assert all(symptom.code in str(health) for symptom in health.symptoms)
    return {symptom.code for symptom in health.symptoms if level in (None, symptom.level)}


def publish(
    asked: Request, version: int, *, table_id: str | None = None, committed_ms: int | None = None
) -> None:
    path = asked.layout.tables.target.path
    facts = {
        "version": version,
        "table_id": table_id or Table(path).id,
        "rows": 1,
        "changed_at": AT,
    }
    pointer.publish(
        asked.layout, pointer.Published(**facts, at=AT, run_id="r", committed_ms=committed_ms)
    )


def log(table: str, version: int) -> Path:
    return Path(table) / f"_delta_log/{version:020}.json"


def _vacuum_published(asked: Request) -> None:
    publish(asked, 2)
    DeltaTable(asked.layout.tables.target.path).optimize.compact()
    DeltaTable(asked.layout.tables.target.path).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )


def _deletes_without_memory(asked: Request) -> None:
    commit(asked, 2, deleted=1)
    checkpoint(asked, 1, offsets=3, commits=3)


def _refused_without_quarantine(asked: Request) -> None:
    commit(asked, 2, quarantined=1, reasons={"malformed": 1})
    checkpoint(asked, 1, offsets=3, commits=3)


def _ledger_twice(asked: Request) -> None:
    rows = asked.layout.tables.ledger.query("select * from t where batch = 1")
    write_deltalake(asked.layout.tables.ledger.path, rows, mode="append")


def _new_intake(asked: Request) -> None:
    home = Path(asked.layout.checkpoint(1)) / "offsets/1"
    home.write_text(home.read_text().replace(asked.layout.tables.intake(1).id, "another"))


def _unrecorded(asked: Request) -> None:
    DeltaTable(asked.layout.tables.ledger.path).delete("batch = 1")


def _gap(asked: Request) -> None:
    DeltaTable(asked.layout.tables.ledger.path).delete("batch = 0")
    for version in range(3, 103):  # more commits of other hands than anybody looks at
        log(asked.layout.tables.target.path, version).write_text(
            '{"commitInfo": {"timestamp": 0, "operation": "WRITE"}}'
        )
    assert asked.layout.tables.target.version == 102


WRONG: dict[str, tuple[Damage, str]] = {
    "checkpoint lost": (lambda a: shutil.rmtree(a.layout.checkpoint(1)), "checkpoint-missing"),
    "offsets torn": (
        lambda a: (Path(a.layout.checkpoint(1)) / "offsets/1").write_bytes(b""),
        "checkpoint-damaged",
    ),
    "no metadata": (
        lambda a: (Path(a.layout.checkpoint(1)) / "metadata").unlink(),
        "checkpoint-without-metadata",
    ),
    "generation torn": (lambda a: a.layout.generation.write({"cards": {}}), "generation-damaged"),
    "table dropped": (
        lambda a: shutil.rmtree(a.layout.tables.target.path),
        "table-behind-checkpoint",
    ),
    "older copy": (
        lambda a: log(a.layout.tables.target.path, 2).unlink(),
        "table-behind-checkpoint",
    ),
    "restored": (lambda a: restore(a, 1), "table-behind-checkpoint"),
    "log torn": (lambda a: log(a.layout.tables.target.path, 1).write_text("{"), "table-damaged"),
    "log empty": (lambda a: log(a.layout.tables.intake(1).path, 2).write_text(""), "table-damaged"),
    "data file gone": (
        lambda a: next(Path(a.layout.tables.target.path).glob("*.parquet")).unlink(),
        "table-files-gone",
    ),
    "landing gone": (lambda a: shutil.rmtree(Path(a.root) / "in"), "source-missing"),
    "foreign rows": (foreign, "foreign-commits"),
    "intake gone": (
        lambda a: shutil.rmtree(a.layout.tables.intake(1).path),
        "intake-behind-checkpoint",
    ),
    "intake replaced": (_new_intake, "intake-replaced"),
    "ledger ahead": (
        lambda a: log(a.layout.tables.target.path, 2).unlink(),
        "ledger-ahead-of-table",
    ),
    "ledger doubled": (_ledger_twice, "ledger-double-batch"),
    "ledger cut": (_gap, "ledger-row-missing"),
    "no tombstones": (_deletes_without_memory, "tombstones-missing"),
    "no quarantine": (_refused_without_quarantine, "quarantine-missing"),
    "published beyond": (lambda a: publish(a, 9), "published-ahead"),
    "published another": (lambda a: publish(a, 1, table_id="other"), "published-other-table"),
    "published then": (lambda a: publish(a, 1, committed_ms=1), "published-other-commit"),
    "published vacuumed": (_vacuum_published, "published-files-gone"),
}


@pytest.mark.parametrize(("damage", "code"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, damage: Damage, code: str) -> None:
    asked = drained(tmp_path)
    assert (examine(asked).exit, codes(examine(asked))) == (0, {"unpublished"})
    damage(asked)
    health = examine(asked)
    assert code in codes(health, "wrong")
    assert len({(one.code, one.found) for one in health.symptoms}) == len(health.symptoms), (
        "each is named once"
    )
    assert health.exit == 1
    assert json.loads(json.dumps(health.as_dict(), default=str))["healthy"] is False


@pytest.mark.parametrize("gone", ["log", "data"])
def test_a_ledger_that_cannot_be_read_is_what_is_to_be_restored(tmp_path: Path, gone: str) -> None:
    """Other parts read the ledger too: none of their tables is sent for to be restored."""
    asked = drained(tmp_path)
    if gone == "log":
        log(asked.layout.tables.ledger.path, asked.layout.tables.ledger.version).write_text("{")
    else:
        for file in Path(asked.layout.tables.ledger.path).glob("*.parquet"):
            file.unlink()
    health = examine(asked)
    wrong = [one for one in health.symptoms if one.level == "wrong"]
    restore = f"restore {asked.layout.tables.ledger.path} from a copy, as a whole"
    assert [(one.code, one.next) for one in wrong] == [
        ("table-damaged", f"draindown reset p/f   # or {restore}")
    ]


# as files have them, and as Kafka and tables have them
@pytest.mark.parametrize("own_intakes", [False, True])
@pytest.mark.parametrize("kind", [UPSERT, DERIVED], ids=str)
def test_only_tables_that_remember_deletes_miss_tombstones(
    tmp_path: Path, own_intakes: bool, kind: TargetKind
) -> None:
    asked = drained(tmp_path)
    _deletes_without_memory(asked)
    desk = Desk(replace(asked.layout, own_intakes=own_intakes), memory=kind.memory)
    look_at_memory(desk)
    assert [symptom.code for symptom in desk.symptoms] == (
        ["tombstones-missing"] if kind == UPSERT else []
    )


def test_a_history_misses_its_hidden_events(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    desk = Desk(asked.layout, memory="hidden")
    look_at_memory(desk)
    assert not desk.symptoms
    more = replace(
        ledger_table.recent(asked.layout, 1)[-1],
        batch=9,
        kind="replay",
        form="history",
        hidden=2,
    )
    ledger_table.record(asked.layout, [more])
    desk = Desk(asked.layout, memory="hidden")
    look_at_memory(desk)
    assert [symptom.code for symptom in desk.symptoms] == ["hidden-missing"]


def _pending(asked: Request) -> None:
    content = {
        "app": asked.layout.app_id(1, "rows"),
        "batch": 1,
        "run_id": "r",
        "ids": ["q"],
        "read_again": True,
    }
    asked.layout.replaying.write(content)


def _park(asked: Request) -> None:
    parked.record(asked.layout, [parked.Event("/x", 1, 1, "parked", reason="truncated")], AT)


def _begin_replay(asked: Request) -> None:
    again = asked.model_copy(update={"replay": Again(units=(str(Path(asked.root) / "in/0.json"),))})
    pin(again, find(again))


def _open_row(asked: Request) -> None:
    rows = pa.table(
        {"quarantine_id": ["q"], "reason": ["type"], "quarantined_at": [AT], "origin": places(1)}
    )
    write_deltalake(asked.layout.tables.quarantine.path, rows)


def _stale_card(asked: Request) -> None:
    Document(f"{asked.layout.lease}/owner.json").write(asdict(Card("me", "r", "here", 1, "then")))


def _in_flight(asked: Request) -> None:
    (Path(asked.root) / "in/2.json").write_text('{"id": "2", "n": 1}\n')
    take_in(asked, heap_bytes=1024**3, now=AT)
    checkpoint(asked, 1, offsets=3, commits=2)


NOTES: dict[str, tuple[Damage, str]] = {
    "in flight": (_in_flight, "batch-in-flight"),
    "older checkpoint": (lambda a: (commit(a, 2), commit(a, 3)), "checkpoint-older"),
    "unrecorded commit": (_unrecorded, "ledger-lacks-batch"),
    "parked": (_park, "parked-files"),
    "open rows": (_open_row, "quarantine-open"),
    "stale card": (_stale_card, "stale-owner-card"),
    "unpublished": (lambda a: publish(a, 1), "unpublished"),
    "half a replay": (_begin_replay, "replay-unfinished"),
    "unsettled": (_pending, "replay-unsettled"),
}


@pytest.mark.parametrize(("change", "code"), NOTES.values(), ids=NOTES)
def test_what_heals_by_itself_is_a_note(tmp_path: Path, change: Damage, code: str) -> None:
    asked = drained(tmp_path)
    change(asked)
    health = examine(asked)
    assert codes(health) | {"unpublished"} == {code, "unpublished"}  # no check ran
    assert (codes(health, "wrong"), health.exit) == (set(), 0)


def test_what_a_run_settles_is_a_reason_to_run(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    assert not plan(asked, AT)[0].drain
    _pending(asked)
    assert (
        plan(asked, AT)[0].reasons["drain"]
        == "1 row that the table holds, to be marked as released"
    )
    with lease_of(asked.layout, LeaseSpec(), owner="me", run_id="x"):
        assert not plan(asked, AT)[0].drain, "who holds the lease may be about to do it"
    with open_flow(asked.spec, "f", Needs.SETTLED, owner="me", run_id="r"):
        pass
    assert not plan(asked, AT)[0].drain


def test_the_command_of_a_second_replay_of_a_range_goes_on_with_it(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    units = (str(Path(asked.root) / "in/0.json"),)
    first, second = (
        asked.model_copy(update={"replay": Again(units=units, again=again), "run_id": run})
        for again, run in ((False, "r1"), (True, "r2"))
    )
    pin(first, find(first))
    done = CommitProperties(
        app_transactions=[Transaction(asked.layout.app_id(1, "rows", find(first).kind), 0)]
    )
    held = DeltaTable(asked.layout.tables.target.path).to_pyarrow_table()
    write_deltalake(
        asked.layout.tables.target.path, held.slice(0, 0), mode="append", commit_properties=done
    )
    assert not find(first).left
    pin(second, find(second))
    (symptom,) = (one for one in examine(asked).symptoms if one.code == "replay-unfinished")
    assert symptom.next == f"draindown replay p/f --file {units[0]} --again --yes"


def _failed(asked: Request, run: str, code: str, *, batches: int = 0) -> None:
    """What a drain leaves that failed, after so many batches of its own."""
    error = {"code": code, "found": "own.py:3 in tidy: ValueError"}
    done = [BatchRow("p", "f", 1, number, run).as_dict() for number in range(batches)]
    part = DrainPart(generation=1, batches=done)
    told = report.of(
        asked.model_copy(update={"run_id": run}), now(), "failed", error=error, drain=part
    )
    store.write(asked.layout, told)


def test_a_batch_that_fails_again_and_again_is_named(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    _in_flight(asked)
    _failed(asked, "a", "crash", batches=1)
    assert "batch-keeps-failing" not in codes(examine(asked))
    (one,) = (symptom for symptom in examine(asked).symptoms if symptom.code == "batch-in-flight")
    assert "batch 2 failed with crash" in one.found and one.next == "draindown report p/f --run a"
    _failed(asked, "b", "transform-failed")
    _failed(asked, "c", "lease-held")
    health = examine(asked)
    assert codes(health, "wrong") == {"batch-keeps-failing"} and "batch-in-flight" not in codes(
        health
    )
    (one,) = (symptom for symptom in health.symptoms if symptom.code == "batch-keeps-failing")
    assert "failed 2 times in a row, the last time with transform-failed: own.py:3" in one.found
    assert one.next.endswith("--run b")
    store.write(asked.layout, report.of(asked.model_copy(update={"run_id": "d"}), now(), "done"))
    assert "batch-keeps-failing" not in codes(examine(asked)), (
        "a drain that ended says that the batch is done"
    )


def refused(asked: Request, version: int) -> None:
    """What a check leaves that refused this version."""
    failing = Expectation(
        name="amount_known", success=False, scope="changed", unexpected=2, judged=3
    )
    part = CheckPart(version=version, changed_rows=3, expectations=[failing])
    checked = asked.model_copy(update={"step": "check"})
    store.write(
        asked.layout, report.of(checked, AT, "failed", error={"code": "gate-failed"}, check=part)
    )


@pytest.mark.parametrize("published", [None, 1])
def test_a_version_that_the_gate_refused_is_told(tmp_path: Path, published: int | None) -> None:
    asked = drained(tmp_path)
    if published is not None:
        publish(asked, published)
    refused(asked, asked.layout.tables.target.version)
    health = examine(asked)
    told = next(symptom for symptom in health.symptoms if symptom.code == "unpublished")
    assert (health.exit, told.level) == (0, "note")
    assert "was refused" in told.found and "amount_known" in told.found
    assert told.next == "draindown gate show p/f"
    assert "healthy, 1 note" in str(health)
    waivers.waive(
        asked.layout,
        "amount_known",
        by="ada",
        reason="known",
        known=["amount_known"],
        until_version=9,
    )
    told = next(symptom for symptom in examine(asked).symptoms if symptom.code == "unpublished")
    assert told.next.startswith("draindown run p/f ")


def test_a_verdict_on_an_older_version_is_told_as_that(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    refused(asked, asked.layout.tables.target.version - 1)
    told = next(symptom for symptom in examine(asked).symptoms if symptom.code == "unpublished")
    assert "is not judged yet, and version" in told.found and "amount_known" in told.found


def test_a_version_that_no_check_looked_at_is_told_with_the_run_that_judges_it(
    tmp_path: Path,
) -> None:
    told = next(one for one in examine(drained(tmp_path)).symptoms if one.code == "unpublished")
    assert told.found.startswith("nothing was published yet") and told.found.endswith(
        "is not judged yet"
    )
    assert told.next.startswith("draindown run p/f")


def test_batches_that_read_again_are_counted_with_the_others(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    source = len(asked.layout.tables.ledger.query("select * from t"))
    ledger_table.record(
        asked.layout, [BatchRow("p", "f", 1, 0, "again", kind="replay", changed_at=AT)]
    )
    told = examine(asked).looked["ledger"]
    assert told.startswith(f"{source + 1} batches ({source} of the source, 1 replayed"), told


def test_a_flow_that_never_ran_is_healthy(tmp_path: Path) -> None:
    health = examine(request(tmp_path))
    assert (health.exit, health.symptoms, health.unlooked) == (0, [], [])
    assert "healthy" in str(health)


def test_a_drain_at_work_is_not_taken_for_damage(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    shutil.rmtree(asked.layout.checkpoint(1))
    with lease_of(asked.layout, LeaseSpec(), owner="me", run_id="r"):
        assert codes(examine(asked)) == {"drain-at-work"}


def test_what_can_t_be_looked_at_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError("no")

    asked = drained(tmp_path)
    monkeypatch.setattr(pointer, "published", denied)
    health = examine(asked)
    assert (health.exit, health.symptoms, len(health.unlooked)) == (75, [], 1)
    assert "could not look" in str(health)


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jars as set-up leaves them, and a Java that starts no Spark: what a class archive is worth
    can't be told.
    """
    home = tmp_path / "jars"
    home.mkdir()
    java = tmp_path / "java/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'Some VM (17)'\n")
    java.chmod(0o755)
    (tmp_path / "classes.jsa").write_bytes(b"")
    lines = []
    for name in spark_settings.JARS:
        (home / f"{name}-4.4.0.jar").write_bytes(b"")
        empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        lines.append(f"io.delta:{name}:4.4.0 {empty} 0")
    (home / "jars.lock").write_text("# locked\n" + "\n".join(lines) + "\n")
    monkeypatch.setenv("DRAINDOWN_JARS", str(home))
    monkeypatch.setenv("DRAINDOWN_CLASS_ARCHIVE", str(tmp_path / "classes.jsa"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    assert spark_settings.jar_dir() == home
    return home


def test_a_master_that_nobody_listens_for_is_wrong(
    jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "tried", lambda archive: "taken")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"spark://127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("DRAINDOWN_MASTER", address)
        assert (examine_setup().exit, examine_setup().looked["master"]) == (0, address)
    assert codes(examine_setup(), "wrong") == {"cluster-gone"}


def test_set_up_is_verified(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (examine_setup().exit, codes(examine_setup())) == (75, set())
    archive = Path(os.environ["DRAINDOWN_CLASS_ARCHIVE"])
    assert "does not start" in examine_setup().unlooked[0]
    with monkeypatch.context() as patched:
        patched.setattr(jvm, "tried", lambda archive: "ignored")
        assert (examine_setup().exit, codes(examine_setup(), "note")) == (
            0,
            {"class-archive-foreign"},
        )
        patched.setattr(jvm, "tried", lambda archive: "fatal")
        assert codes(examine_setup(), "wrong") == {"class-archive-torn"}
        patched.setattr(jvm, "tried", lambda archive: "taken")
        assert (examine_setup().exit, codes(examine_setup())) == (0, set())
    archive.unlink()
    assert (examine_setup().exit, codes(examine_setup())) == (0, {"class-archive-missing"})
    (jars / "delta-storage-4.4.0.jar").write_bytes(b"other")
    assert codes(examine_setup(), "wrong") == {"jar-hash-mismatch"}
    lock = (jars / "jars.lock").read_text()
    (jars / "jars.lock").write_text(lock + "io.delta:delta-kernel 0123\n")
    assert codes(examine_setup(), "wrong") == {"jars-lock-invalid"}
    (jars / "jars.lock").unlink()
    assert codes(examine_setup(), "wrong") == {"jars-unverified"}
    (jars / "delta-storage-4.4.0.jar").unlink()
    assert codes(examine_setup(), "wrong") == {"jars-missing"}
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    archive.write_bytes(b"x")
    assert "java-missing" in codes(examine_setup(), "wrong")
