"""A rebuild without a JVM: its plan, what stops it, and all that follows the swap, killed at any
step.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.audit.recount import audit
from draindown.base.errors import TerminalError, TransientError
from draindown.cli.program import main
from draindown.doctor.examination import examine
from draindown.flow import discards, generations, quarantine, resume
from draindown.gate import published
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import Swap
from draindown.planning import plan
from draindown.recovery import losses, rebuild, reset
from draindown.recovery import swap as recovery_swap
from draindown.recovery.abort import abort
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.files import catalog
from draindown.sources.kafka import accepted, positions
from draindown.sources.kafka.offsets import Loss, Span
from draindown.sources.port import given_up
from draindown.sources.registry import source_of
from tests.flowfiles import (
    AT,
    REFUSED,
    about,
    clean_log,
    commit,
    count_as_spark,
    drained,
    foreign,
    request,
    restore,
    take_in,
)
from tests.flowfiles import checkpoint as write_checkpoint
from tests.tables.test_audit_records import SOURCE


def begin(asked: Request, *, accept_missing: bool = False) -> rebuild.Rebuild:
    return rebuild.begin(asked, by="me", accept_missing=accept_missing)


def read_all(asked: Request, begun: rebuild.Rebuild, batches: int = 2) -> Request:
    """Do what a drain into the staged tables does; returns its request."""
    staged = asked.model_copy(update={"staged": begun.generation})
    write_deltalake(
        staged.layout.tables.target.path,
        asked.layout.tables.target.query("select * from t limit 0"),
    )
    for batch in range(batches):
        commit(staged, batch, generation=begun.generation)
    write_checkpoint(asked, begun.generation, offsets=batches, commits=batches)
    return staged


def swap(asked: Request, staged: Request, **other: Any) -> int:
    """Do what `target.swap` does; returns the version."""
    said = replace(recovery_swap.swap(staged), **other)
    rows = staged.layout.tables.target.query("select * from t")
    known_as = CommitProperties(
        custom_metadata={"userMetadata": said.as_metadata()},
        app_transactions=[
            Transaction(asked.layout.app_id(said.generation, "rows"), said.batches - 1)
        ],
    )
    write_deltalake(
        asked.layout.tables.target.path, rows, mode="overwrite", commit_properties=known_as
    )
    count_as_spark(asked.layout.tables.target.path)
    return asked.layout.tables.target.version


def code_of(act: Any) -> str:
    with pytest.raises(TerminalError) as caught:
        act()
    assert caught.value.next
    return caught.value.code


def codes(asked: Request, level: str) -> set[str]:
    return {symptom.code for symptom in examine(asked).symptoms if symptom.level == level}


def test_the_plan_says_what_is_read_and_what_changes(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    found = rebuild.plan(asked)
    assert (found.previous, found.generation, found.state, found.slices, found.units) == (
        1,
        2,
        "new",
        2,
        2,
    )
    assert (found.missing, found.forgotten, found.changes) == ((), 0, ())
    assert found.table_bytes == sum(
        file.stat().st_size for file in Path(asked.layout.tables.target.path).glob("*.parquet")
    )
    flow = asked.flow_spec.model_dump(mode="json")
    flow["columns"] |= {"id": "bigint not null", "new": "string", "payload": "json"}
    flow["target"]["partition_by"] = ["new"]
    content = asked.spec.model_dump(mode="json") | {"flows": {"f": flow}}
    other = asked.model_copy(update={"spec": type(asked.spec).model_validate(content)})
    assert rebuild.plan(other).changes == (
        "partition_by: [] -> ['new']",
        "column id: string -> long",
        "column new: new, string",
        "column payload: new, string",
    )
    assert code_of(lambda: rebuild.plan(request(tmp_path / "other"))) == "nothing-to-rebuild"


def test_what_the_source_no_longer_holds_stops_it_until_someone_agrees(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    (tmp_path / "in/0.json").unlink()
    with pytest.raises(TerminalError) as caught:
        begin(asked)
    assert (caught.value.code, "0.json" in caught.value.found) == ("rebuild-input-gone", True)
    assert not asked.layout.rebuild.exists
    begun = begin(asked, accept_missing=True)
    staged = asked.layout.beside(begun.generation)
    assert {Path(path).name for path in generations.without(staged, 2)} == {"0.json"}
    assert rebuild.plan(asked).missing == ()  # agreed to, for this one
    (tmp_path / "in/1.json").unlink()
    assert code_of(lambda: begin(asked)) == "rebuild-input-gone"
    abort(asked.layout, lambda: None)
    shutil.rmtree(asked.layout.tables.intake(1).path)  # read once, and nobody knows what
    assert rebuild.plan(asked).forgotten == 2
    assert code_of(lambda: begin(asked)) == "rebuild-input-gone"


def test_what_is_given_up_while_a_rebuild_is_begun_is_left_out_of_it_or_refused(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    begun = begin(asked)
    names = [tmp_path / "in" / f"{number}.json" for number in (2, 3)]
    for path in names:
        path.write_text(f'{{"id": "{path.stem}", "n": 1}}\n')
    take_in(asked, heap_bytes=1024**3, now=AT)
    give_up = partial(
        discards.discard_input, source_of(asked), asked.layout, by="me", note="", at=AT
    )
    give_up([str(names[0])], reading=losses.reading(asked))
    assert rebuild.plan(asked).units == 3
    assert begin(asked) == begun
    staged = read_all(asked, begun, batches=4)
    assert (
        generations.without(staged.layout, 2)
        == generations.without(asked.layout, 1)
        == {str(names[0])}
    )
    with pytest.raises(TerminalError) as caught:
        give_up([str(names[1])], reading=losses.reading(asked))
    assert (caught.value.code, "--abort" in caught.value.next[0]) == ("not-parked", True)
    assert given_up(source_of(asked)) == {str(names[0])}
    abort(asked.layout, lambda: None)
    give_up([str(names[1])], reading=losses.reading(asked))
    assert given_up(source_of(asked)) == set(map(str, names))


def test_a_rebuild_goes_on_without_a_file_that_was_given_up_and_lost(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    begin(asked)
    path = tmp_path / "in/2.json"
    path.write_text('{"id": "2", "n": 1}\n')
    take_in(asked, heap_bytes=1024**3, now=AT)
    path.unlink()
    assert code_of(lambda: begin(asked)) == "rebuild-input-gone"
    discards.discard_input(source_of(asked), asked.layout, [str(path)], by="me", note="", at=AT)
    begin(asked)
    assert generations.without(asked.layout.beside(2), 2) == {str(path)}


def test_one_that_was_begun_goes_on_only_as_it_was_begun(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    begun = begin(asked)
    assert begin(asked) == begun
    assert (
        generations.generation(asked.layout),
        generations.generation(asked.layout.beside(2)),
    ) == (1, 2)
    assert (resume.resume(asked.layout), plan.plan(asked, AT)[0].drain) == (
        1,
        False,
    )  # the live one goes on
    assert codes(asked, "note") == {"rebuild-unfinished", "unpublished"}
    read_all(asked, begun, batches=1)
    found = rebuild.plan(asked)
    assert (found.state, found.slices, [Path(path).name for path in found.missing]) == (
        "begun",
        1,
        [],
    )
    flow = asked.flow_spec.model_copy(update={"max_batches": 7})
    bounded = asked.model_copy(
        update={"spec": asked.spec.model_copy(update={"flows": {"f": flow}})}
    )
    assert rebuild.plan(bounded).state == "begun"  # reads the same
    flow = asked.flow_spec.model_copy(update={"rules": {"sane": "n > 0"}})
    other = asked.model_copy(update={"spec": asked.spec.model_copy(update={"flows": {"f": flow}})})
    assert code_of(lambda: rebuild.plan(other)) == "rebuild-other-contract"
    reset.begin(asked, reset.plan(asked), by="me", accept_missing=False)
    assert generations.generation(asked.layout) == 3
    assert code_of(lambda: begin(asked)) == "rebuild-overtaken"
    assert "rebuild-overtaken" in codes(asked, "wrong")
    assert abort(asked.layout, lambda: None) == 2
    assert code_of(lambda: abort(asked.layout, lambda: None)) == "nothing-to-abort"
    assert begin(asked).generation == 4  # never the same again


def test_an_abort_that_lost_its_lease_writes_nothing(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    begun = begin(asked)
    note, staging = (
        Path(asked.layout.rebuild.path),
        Path(asked.layout.beside(begun.generation).staging).parent,
    )
    before = note.read_text(), sorted(staging.rglob("*"))

    def lost() -> None:
        raise TransientError("lease-lost", tried="t", found="f", next="n")

    with pytest.raises(TransientError):
        abort(asked.layout, lost)
    assert (note.read_text(), sorted(staging.rglob("*"))) == before


@pytest.mark.parametrize("removed", ["none", "quarantine", "table"])
def test_an_abort_that_was_cut_short_can_only_be_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    asked = drained(tmp_path)
    begun = begin(asked)
    staged = read_all(asked, begun, batches=1)
    refused(staged, ("r0", "0.json", begun.generation))

    def killed(path: Path) -> None:
        if removed != "none":
            rmtree(Path(staged.layout.staging) / removed)
        raise KeyboardInterrupt

    rmtree = shutil.rmtree
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            abort(asked.layout, lambda: None)
    assert code_of(lambda: begin(asked)) == "rebuild-damaged", (
        "half of its tables must not take the live ones' place"
    )
    assert "rebuild-damaged" in codes(asked, "wrong")
    assert abort(asked.layout, lambda: None) == begun.generation
    assert begin(asked).generation == begun.generation + 1


def test_a_torn_table_keeps_no_one_from_leaving_a_rebuild(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    begun = begin(asked)
    newest = max((Path(asked.layout.tables.target.path) / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:40])
    assert not rebuild.is_swapped(asked.layout, begun)
    assert abort(asked.layout, lambda: None) == begun.generation


def test_a_changed_transform_is_another_contract(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    home = tmp_path / "jobs/transforms"
    home.mkdir(parents=True)
    (home / "shared.py").write_text("FACTOR = 1\n")
    flow = asked.flow_spec.model_copy(update={"transform": "own.tidy"})
    asked = asked.model_copy(update={"spec": asked.spec.model_copy(update={"flows": {"f": flow}})})
    begin(asked)
    assert rebuild.plan(asked).state == "begun"
    (home / "shared.py").write_text("FACTOR = 2\n")
    assert code_of(lambda: rebuild.plan(asked)) == "rebuild-other-contract"


class Died(Exception):
    pass


def dying_at(step: str) -> Any:
    def reached(done: str) -> None:
        if done == step:
            raise Died(step)

    return reached


def refused(
    asked: Request, *rows: tuple[str, str, int], kind: str = "drain", batch: int = 0
) -> None:
    """Rows of the quarantine: id, file, generation."""
    columns = ("raw", "reason", "field", "detail", "run_id", "envelope")
    content = [
        {
            "quarantine_id": known_id,
            "origin": {"input": str(Path(asked.root, "in", file)), "position": 1},
            "arrived_at": AT,
            "raw_bytes": None,
            "raw_length": 1,
            "first_seen": AT,
            "generation": generation,
            "batch": batch,
            "kind": kind,
            "quarantined_at": AT,
            **dict.fromkeys(columns, "x"),
        }
        for known_id, file, generation in rows
    ]
    write_deltalake(
        asked.layout.tables.quarantine.path,
        pa.Table.from_pylist(content, schema=REFUSED),
        mode="append",
    )


def tombstones(path: str, *keys: Any) -> None:
    rows = {
        "id": list(keys),
        "n": pa.array([1] * len(keys), pa.int32()),
        "generation": [1] * len(keys),
    }
    write_deltalake(path, pa.table(rows))


def states(asked: Request) -> dict[str, str]:
    rows = quarantine.listed(asked.layout, quarantine.Filter(state=None))
    return {row["quarantine_id"]: f"{row['state']} {row['generation']}" for row in rows}


STEPS = ("tombstones", "moved", "decided", "ledger", "named")


def test_killed_at_any_step_after_the_swap_the_next_one_finishes(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    layout = asked.layout
    refused(
        asked,
        ("open-again", "0.json", 1),
        ("open-passes", "0.json", 1),
        ("discarded-again", "1.json", 1),
    )
    refused(
        asked,
        ("released-again", "0.json", 1),
        ("released-passes", "1.json", 1),
        ("gone", "9.json", 1),
    )
    refused(asked, ("cut-short", "1.json", 1), batch=7)
    refused(asked, ("withheld", "0.json", 1), kind="other")
    quarantine.discard(layout, ["discarded-again"], by="someone")
    quarantine.release(
        layout, ["released-again", "released-passes", "gone"], by="someone", run_id="replay"
    )
    tombstones(layout.tables.tombstones.path, "a", "b")
    begun = begin(asked)
    staged = read_all(asked, begun)
    refused(
        staged,
        ("open-again", "0.json", 2),
        ("discarded-again", "1.json", 2),
        ("released-again", "0.json", 2),
    )
    refused(staged, ("new", "0.json", 2), ("cut-short", "1.json", 2))
    tombstones(staged.layout.tables.tombstones.path, "c")
    before = states(asked)
    said = swap(asked, staged)

    assert states(asked) == before  # nothing is decided but by the swap's finish
    assert rebuild.plan(asked).state == "swapped"
    assert codes(asked, "note") >= {"rebuild-unsettled"}
    assert not {code for code in codes(asked, "wrong") if code != "drain-at-work"}
    assert "lacks 2 batches" in plan.plan(asked, AT)[0].reasons["drain"]
    assert code_of(lambda: audit(asked.spec, "f", root=tmp_path)) == "rebuild-unfinished"
    assert code_of(lambda: abort(layout, lambda: None)) == "rebuild-unfinished"
    for step in STEPS:
        with pytest.raises(Died):
            recovery_swap.finish(layout, by="me", reached=dying_at(step))
    assert recovery_swap.finish(layout, by="me") == begun
    assert recovery_swap.finish(layout, by="me") is None

    assert generations.generation(layout) == resume.resume(layout) == 2
    assert states(asked) == {
        "open-again": "open 1",
        "open-passes": "released 1",
        "discarded-again": "discarded 1",
        "released-again": "open 1",
        "released-passes": "released 1",
        "gone": "open 1",
        "cut-short": "open 2",
        "withheld": "open 1",
        "new": "open 2",
    }
    assert set(quarantine.released(layout).values()) == {""}
    assert layout.tables.tombstones.query("select id from t").to_pylist() == [{"id": "c"}]
    rows = ledger_table.recent(layout, 10)
    assert [(row.generation, row.batch) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert {row.table_version for row in rows if row.generation == 2} == {said}
    assert ledger_table.heal(layout) == []
    assert not plan.plan(asked, AT)[0].drain
    state = published.unpublished(layout)
    assert state is not None and (state.pending, state.since) == (True, None)
    assert not codes(asked, "wrong")
    left = {
        str(path.relative_to(staged.layout.staging))
        for path in Path(staged.layout.staging).rglob("*")
    }
    assert all(path.startswith(("table/_delta_log", "table")) for path in left)
    assert not list(Path(staged.layout.tables.target.path).glob("*.parquet"))
    assert code_of(lambda: reset.undo(asked, by="me")) == "generation-has-batches"


def test_a_quarantine_that_a_rebuild_makes_is_for_its_owner_alone(tmp_path: Path) -> None:
    asked, before = drained(tmp_path), os.umask(0o022)
    try:
        staged = read_all(asked, begin(asked))
        refused(staged, ("new", "0.json", 2))
        swap(asked, staged)
        recovery_swap.finish(asked.layout, by="me")
    finally:
        os.umask(before)
    assert states(asked) == {"new": "open 2"}
    assert Path(asked.layout.tables.quarantine.path).stat().st_mode & 0o777 == 0o700


def test_rows_of_a_topic_that_was_created_again_are_decided_by_what_the_rebuild_read(
    tmp_path: Path,
) -> None:
    asked = about(tmp_path, {"source": SOURCE, "columns": {"n": "int"}, "target": {}})
    layout, began = asked.layout, rebuild.Rebuild(2, 1, AT.isoformat(), "me", "")
    for generation, topic in ((1, "old"), (2, "new")):
        pinned = positions.rows(
            [Span("t", 0, topic, 0, 10)], record_bytes=1.0, oldest={}, now=AT, compacted=()
        )
        intake.append(layout, generation, positions.OWN, pinned, AT, 1)
    old, released, new = (
        {
            "quarantine_id": intake.record_id("t/0", at, log),
            "origin": {"input": "t/0", "position": at},
        }
        | {"kind": "drain", "raw": "x", "raw_length": 1, "generation": 1, "batch": 0}
        for log, at in (("old", 3), ("old", 4), ("new", 3))
    )
    write_deltalake(
        layout.tables.quarantine.path, pa.Table.from_pylist([old, released, new], schema=REFUSED)
    )
    quarantine.release(layout, [released["quarantine_id"]], by="someone", run_id="replay")
    recovery_swap._decide_again(layout, began, "me")
    assert quarantine.released(layout).keys() == {new["quarantine_id"]}
    # neither does a row of the old topic wait for the slice that reads its place in the new one
    records = {
        one["quarantine_id"]: ("t/0", one["origin"]["position"]) for one in (old, released, new)
    }
    assert discards.not_read(layout, 2, records) == {("t/0", 3)}
    del records[new["quarantine_id"]]
    assert discards.not_read(layout, 2, records) == set()


def test_a_refused_record_that_a_rebuild_could_not_read_stays_open(tmp_path: Path) -> None:
    asked = about(tmp_path, {"source": SOURCE, "columns": {"n": "int"}, "target": {}})
    layout, began = asked.layout, rebuild.Rebuild(2, 1, AT.isoformat(), "me", "")
    for generation in (1, 2):
        spans = [Span("t", number, "x", 0, 10) for number in (0, 1)]
        pinned = positions.rows(spans, record_bytes=1.0, oldest={}, now=AT, compacted=())
        intake.append(layout, generation, positions.OWN, pinned, AT, 1)
    rows = [
        {
            "quarantine_id": intake.record_id(unit, at, "x"),
            "origin": {"input": unit, "position": at},
        }
        | {"kind": "drain", "raw": "x", "raw_length": 1, "generation": 1, "batch": 0}
        for unit in ("t/0", "t/1")
        for at in range(10)
    ]
    write_deltalake(layout.tables.quarantine.path, pa.Table.from_pylist(rows, schema=REFUSED))
    quarantine.release(layout, [intake.record_id("t/0", 1, "x")], by="someone", run_id="replay")
    lost = [
        Loss("offsets-lost", Span("t", 0, "x", 0, 4), ""),
        Loss("records-absent", Span("t", 1, "x", 0, 10), ""),
        Loss("topic-recreated", Span("t", 1, "old", 3, 9), ""),
    ]
    accepted.accept(layout, lost, by="me", note="aged out", at=AT)
    recovery_swap._decide_again(layout, began, "me")
    read = {("t/0", at) for at in range(4, 10)} | {("t/1", at) for at in range(10)}
    assert quarantine.released(layout).keys() == {
        intake.record_id(unit, at, "x") for unit, at in read
    }


def test_audit_holds_the_ledger_against_the_log_of_the_rebuilt_table(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    foreign(asked)  # a rebuild takes away what other hands wrote
    assert {residue.kind for residue in audit(asked.spec, "f", root=tmp_path).residues} >= {
        "foreign-commit"
    }
    staged = read_all(asked, rebuild.begin(asked, by="me", accept_missing=False, drop_foreign=True))
    swap(asked, staged)
    recovery_swap.finish(asked.layout, by="me")
    assert not audit(asked.spec, "f", root=tmp_path).residues
    (tmp_path / "in/2.json").write_text('{"id": "2", "n": 1}\n')
    commit_next(asked)
    assert not audit(asked.spec, "f", root=tmp_path).residues

    log = Path(staged.layout.tables.target.path, "_delta_log", f"{1:020}.json")
    log.write_text(log.read_text().replace(r"\"inputs\":1", r"\"inputs\":2"))
    found = audit(asked.spec, "f", root=tmp_path).residues
    assert [(residue.kind, "batch 0" in residue.where) for residue in found] == [
        ("ledger-not-as-committed", True)
    ]
    shutil.rmtree(staged.layout.staging)
    page = audit(asked.spec, "f", root=tmp_path)
    assert page.clean
    assert any("log they were made in is gone" in reason for reason in page.unlooked)


def test_the_audit_of_a_rebuilt_table_stays_clean_once_its_log_is_cleaned(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    swap(asked, read_all(asked, begin(asked)))
    recovery_swap.finish(asked.layout, by="me")
    clean_log(asked)
    page = audit(asked.spec, "f", root=tmp_path)
    assert not page.residues
    assert any("2 batches of older generations" in reason for reason in page.unlooked)
    assert not any("row-count" in reason for reason in page.unlooked)


def test_a_swap_that_was_restored_away_counts_for_nothing_once_it_is_cleaned(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    said = swap(asked, read_all(asked, begin(asked)))
    recovery_swap.finish(asked.layout, by="me")
    restore(asked, said - 1)
    reset.begin(asked, reset.plan(asked), by="me", accept_missing=False)
    for batch in (0, 1):
        commit(asked, batch, generation=3, inserted=0, duplicate=1)
    clean_log(asked, since=said + 1)  # the RESTORE is still there
    page = audit(asked.spec, "f", root=tmp_path)
    assert not page.residues and not any("row-count" in reason for reason in page.unlooked)


def commit_next(asked: Request) -> None:
    from tests.flowfiles import take_in

    take_in(asked, heap_bytes=1024**3, now=AT)
    assert catalog.last_slice(asked.layout) == 3
    commit(asked, 2, generation=2)
    write_checkpoint(asked, 2, offsets=3, commits=3)


def test_a_swap_that_brought_other_rows_is_not_finished(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    staged = read_all(asked, begin(asked))
    swap(asked, staged, rows=3)
    for _ in range(2):
        assert (
            code_of(lambda: recovery_swap.finish(asked.layout, by="me")) == "ledger-does-not-add-up"
        )
    assert generations.generation(asked.layout) == 1


def test_rows_that_the_staged_ledger_does_not_know_are_not_swapped_in(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    staged = read_all(asked, begin(asked))
    foreign(staged)
    assert code_of(lambda: recovery_swap.swap(staged)) == "ledger-does-not-add-up"


def test_a_staged_table_that_lacks_a_cut_is_not_swapped_in(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    staged = read_all(asked, begin(asked), batches=1)
    assert code_of(lambda: recovery_swap.swap(staged)) == "rebuild-damaged"


def test_a_table_restored_to_before_the_swap_is_behind(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    staged = read_all(asked, begin(asked))
    said = swap(asked, staged)
    recovery_swap.finish(asked.layout, by="me")
    restore(asked, said - 1)
    assert code_of(lambda: resume.resume(asked.layout)) == "table-behind-checkpoint"


def test_the_memory_of_deletes_is_emptied_where_nothing_is_deleted_any_more(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    tombstones(asked.layout.tables.tombstones.path, 7)  # of a key type that is no longer
    staged = read_all(asked, begin(asked))
    swap(asked, staged)
    recovery_swap.finish(asked.layout, by="me")
    found = asked.layout.tables.tombstones.query("select * from t")
    assert (found.num_rows, found.schema.field("id").type) == (0, pa.string())


def test_the_command_prints_its_plan_and_needs_a_yes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = drained(tmp_path)
    (tmp_path / "dags/pipelines").mkdir(parents=True)
    lines = ["pipeline: p", f"lake: {tmp_path}/lake", "flows:", "  f:"]
    lines += ["    source: {files: in/*, format: json, max_files_per_trigger: 1}"]
    lines += [
        "    columns: {id: string not null, n: int not null}",
        "    target: {keys: [id], sequence_by: [n]}",
    ]
    (tmp_path / "dags/pipelines/p.yaml").write_text("\n".join(lines))

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["--root", str(tmp_path), "rebuild", "p", *arguments])
        said = capsys.readouterr()
        return code, said.err + said.out

    code, said = run()
    assert (code, "generation 1 -> 2" in said, "2 files" in said, "one per id, by n" in said) == (
        2,
        True,
        True,
        True,
    )
    assert not asked.layout.rebuild.exists
    (tmp_path / "in/0.json").unlink()
    code, said = run("--yes")
    assert (code, "rebuild-input-gone" in said, "--accept-missing" in said) == (78, True, True)
    assert run("--abort")[0] == 78
    begin(asked, accept_missing=True)
    code, said = run()
    assert (code, "begun before" in said) == (2, True)
    assert run("--abort")[0] == 2
    assert asked.layout.rebuild.read()
    code, said = run("--abort", "--yes")
    assert (code, "as it was" in said, asked.layout.rebuild.read()) == (0, True, None)


def test_a_swap_knows_its_commit() -> None:
    from draindown.lake.commits import Commit
    from draindown.ledger.rows import from_commit, swap_of

    said = Swap("p", "f", 2, 3, 4, "r")
    made = Commit(5, 0, user_metadata=said.as_metadata())
    assert (swap_of(made), from_commit(made)) == (said, None)
    for other in ("", "{}", "no json", "[]", '{"draindown_rebuilt": {"format": 2, "x": 1}}'):
        assert swap_of(Commit(5, 0, user_metadata=other)) is None
