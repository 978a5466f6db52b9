"""What others did to rows of a table: found, accepted, audited and explained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.audit.keys import KeyRecount
from draindown.audit.model import Audit
from draindown.audit.recount import audit
from draindown.base.errors import TerminalError
from draindown.base.exits import Exit
from draindown.cli.program import main
from draindown.config.models import PipelineSpec
from draindown.doctor.examination import examine
from draindown.flow import foreign, foreign_rows
from draindown.gate import acceptance, published
from draindown.gate.published import Published
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.recovery import rebuild
from tests.flowfiles import AT, ORIGIN, stamp
from tests.landed_lake import _SCHEMA, FLOW, LandedLake
from tests.tables.test_audit import World

PIPELINE = {"pipeline": "p", "lake": "lake", "flows": {"f": FLOW}}
RECORDS = [json.dumps({"id": str(number), "n": 5, "v": number}) for number in range(6)]


@pytest.fixture
def lake(tmp_path: Path) -> LandedLake:
    """A flow with one batch of six keys."""
    made = LandedLake(tmp_path)
    made.drain(RECORDS)
    return made


def table(lake: LandedLake) -> DeltaTable:
    return DeltaTable(lake.layout.tables.target.path)


def audited(lake: LandedLake) -> Audit:
    return audit(lake.spec, "f", root=lake.home)


def kinds(found: Audit) -> set[str]:
    return {residue.kind for residue in found.residues}


def wrong(lake: LandedLake) -> set[str]:
    return {symptom.code for symptom in examine(lake.request).symptoms if symptom.level == "wrong"}


def drain(lake: LandedLake, *records: dict[str, Any]) -> None:
    """Drain one file; its batch's commit counts rows as the MERGE of a drain does."""
    lake.drain([json.dumps(record) for record in records])
    log = lake.layout.tables.target
    row = BatchRow.from_dict(log.commits(1)[0].note["draindown"])
    stamp(Path(log.path), log.version, row, "MERGE")


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(lake: LandedLake, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in the flow's project; return its exit code and all that it printed."""

    def run(*words: str) -> tuple[int, str]:
        code = main(["--root", str(lake.home), *words])
        told = capsys.readouterr()
        return code, told.out + told.err

    return run


def publish(lake: LandedLake) -> Published:
    """Publish the newest version, as a check does."""
    state = published.unpublished(lake.layout)
    assert state is not None
    has = published.foreign(lake.layout, state)
    pointer = Published(
        version=state.version,
        table_id=state.table_id,
        committed_ms=state.committed_ms,
        changed_at=AT,
        at=AT,
        run_id="r",
        rows=1,
        foreign=has,
    )
    return published.publish(lake.layout, pointer)


def _insert(lake: LandedLake) -> None:
    rows = [{"id": "x", "n": 1, "v": 1}, {"id": "y", "n": 1, "v": 1}]
    write_deltalake(
        lake.layout.tables.target.path, pa.Table.from_pylist(rows, schema=_SCHEMA), mode="append"
    )


def _delete(lake: LandedLake) -> None:
    table(lake).delete("id in ('0', '1')")


def _older(lake: LandedLake) -> None:
    table(lake).update(predicate="id = '2'", updates={"n": "3"})


def _newer(lake: LandedLake) -> None:
    table(lake).update(predicate="id = '3'", updates={"n": "9"})


def _content(lake: LandedLake) -> None:
    table(lake).update(predicate="id = '4'", updates={"v": "99"})


CHANGES: dict[str, tuple[Callable[[LandedLake], None], tuple[int, int, int], set[str]]] = {
    "insert": (_insert, (2, 0, 0), {"row-count", "key-from-nowhere"}),
    "delete": (_delete, (0, 0, 2), {"row-count", "lost-key"}),
    "older": (_older, (0, 1, 0), {"old-sequence"}),
    "newer": (_newer, (0, 1, 0), {"sequence-from-nowhere"}),
    "content": (_content, (0, 1, 0), set()),
}


@pytest.mark.parametrize(("change", "rows", "residues"), CHANGES.values(), ids=CHANGES)
def test_an_accepted_commit_leaves_no_residue(
    lake: LandedLake,
    run: Run,
    change: Callable[[LandedLake], None],
    rows: tuple[int, int, int],
    residues: set[str],
) -> None:
    change(lake)
    version = table(lake).version()
    assert kinds(audited(lake)) == {"foreign-commit", *residues}
    plan = run("gate", "accept", "p", "--version", str(version))
    assert plan[0] == 2 and foreign.undecided(lake.layout, lake.spec.flow("f"))
    assert run("gate", "accept", "p", "--version", str(version), "--yes")[0] == 2, (
        "a reason is asked for"
    )
    assert (
        run("gate", "accept", "p", "--version", str(version), "--note", "by law", "--yes")[0] == 0
    )
    found = audited(lake)
    assert (kinds(found), found.clean) == (set(), True)
    (accepted,) = found.accepted
    assert (accepted.inserted, accepted.updated, accepted.deleted) == rows
    assert "by law" in str(found) and found.asdict()["accepted"][0]["reason"] == "by law"
    assert "foreign-commits" not in wrong(lake)
    assert "by law" in run("gate", "show", "p")[1]


def why(run: Run, *key: str) -> dict[str, Any]:
    """What `why` says of the one row with a key, or of the key that is not there."""
    code, told = run("why", "f", *[f"--key={one}" for one in key], "--json")
    assert code == 0, told
    found, _ = json.JSONDecoder().raw_decode(told[told.index("{") :])
    (row,) = found["rows"]
    return dict(row)


def test_why_names_the_commit_that_wrote_changed_or_deleted_a_row(
    lake: LandedLake, run: Run
) -> None:
    _insert(lake)
    _delete(lake)
    _older(lake)
    for key, state, version in (("x", "foreign", 1), ("0", "deleted", 2), ("2", "foreign", 3)):
        found = why(run, key)
        assert (found["state"], f"version {version} (" in found["said"]) == (state, True)
        assert "nobody has decided" in found["said"] and f"--version {version}" in found["next"][0]
    assert why(run, "5")["state"] == "landed"
    for version in (1, 2, 3):
        run("gate", "accept", "p", f"--version={version}", f"--note=because {version}", "--yes")
    for key, version in (("y", 1), ("1", 2), ("2", 3)):
        assert f"because {version}" in why(run, key)["said"]
    assert why(run, "5")["state"] == "landed" and audited(lake).clean


def test_a_commit_of_another_writer_stays_wrong_however_many_batches_follow(
    lake: LandedLake, run: Run
) -> None:
    publish(lake)
    _delete(lake)
    for key in ("0", "1"):
        lake.rows.pop(key)
    publish(lake)
    drain(lake, {"id": "9", "n": 1})
    pointer = publish(lake)
    assert pointer.foreign and [one.version for one in pointer.foreign.commits] == [1]
    assert "foreign-commits" in wrong(lake)
    (finding,) = foreign.findings(lake.layout, lake.spec.flow("f"))
    assert "version 1" in finding.subject and "2 rows deleted" in finding.detail
    # what an earlier draindown published does not say: the log is searched
    published.publish(lake.layout, pointer.model_copy(update={"foreign": None}))
    assert "foreign-commits" in wrong(lake)
    run("gate", "accept", "p", "--version=1", "--note=by law", "--yes")
    assert audited(lake).clean and "foreign-commits" not in wrong(lake)


def test_what_comes_after_an_accepted_commit_is_judged_as_ever(lake: LandedLake, run: Run) -> None:
    _delete(lake)
    run("gate", "accept", "p", "--version=1", "--note=by law", "--yes")
    for key in ("0", "1"):
        lake.rows.pop(key)
    drain(lake, {"id": "9", "n": 6, "v": 1})
    assert audited(lake).clean
    table(lake).delete("id = '9'")
    assert kinds(audited(lake)) == {"foreign-commit", "lost-key", "row-count"}


KEYS: dict[str, tuple[int | None, int | None, list[tuple[int, int]], set[str]]] = {
    "deleted": (5, None, [(5, -1)], set()),
    "deleted, newer input lost": (6, None, [(5, -1)], {"lost-key"}),
    "deleted, then inserted, then lost": (5, None, [(5, -1), (5, 1)], {"lost-key"}),
    "made older": (5, 3, [(5, -1), (3, 1)], set()),
    "made older, newer input lost": (6, 3, [(5, -1), (3, 1)], {"old-sequence"}),
    "made newer": (5, 9, [(5, -1), (9, 1)], set()),
    "made newer, and newer again": (5, 10, [(5, -1), (9, 1)], {"sequence-from-nowhere"}),
    "inserted": (None, 1, [(1, 1)], set()),
    "inserted, and newer": (None, 2, [(1, 1)], {"key-from-nowhere"}),
    "not accepted": (None, 1, [], {"key-from-nowhere"}),
}


@pytest.mark.parametrize(("raw", "held", "images", "residues"), KEYS.values(), ids=KEYS)
def test_an_acceptance_excuses_what_it_saw(
    tmp_path: Path,
    raw: int | None,
    held: int | None,
    images: list[tuple[int, int]],
    residues: set[str],
) -> None:
    """`raw`, `held`: sequences of one key; `images`: sequences and numbers, negative first, of one
    commit each pair.
    """
    recount = KeyRecount(PipelineSpec.model_validate(PIPELINE).flow("f"), tmp_path)
    for name, sequence in (("raw", raw), ("target", held)):
        if sequence is not None:
            recount.add(name, [pa.array(["k"]), pa.array([sequence])])
    split = [images] if len({sequence for sequence, _ in images}) > 1 else [[one] for one in images]
    recount.accept(
        pa.table(
            {"id": ["k"] * len(of), "n": [n for n, _ in of], "_rows": [rows for _, rows in of]}
        )
        for of in split
    )
    assert {residue.kind for residue in recount.compare(all_files=True)} == residues


def test_a_restore_to_before_it_decides(lake: LandedLake) -> None:
    publish(lake)
    _delete(lake)
    publish(lake)
    table(lake).restore(0)
    assert "foreign-commits" not in wrong(lake) and audited(lake).clean
    table(lake).restore(1)
    assert [one.version for one in foreign.undecided(lake.layout, lake.spec.flow("f"))] == [1]


def test_a_version_that_is_gone_is_not_compared(lake: LandedLake) -> None:
    _delete(lake)
    before = Table(lake.layout.tables.target.path, 0).files()[0]["path"]
    Path(lake.layout.tables.target.path, before).unlink()
    with pytest.raises(TerminalError) as refused:
        foreign_rows.changed_by(
            lake.layout, lake.spec.flow("f"), foreign.in_table(lake.layout).commits[0]
        )
    assert refused.value.code == "foreign-unreadable"


def test_an_acceptance_without_its_rows_is_damaged(lake: LandedLake, run: Run) -> None:
    _delete(lake)
    run("gate", "accept", "p", "--version=1", "--note=by law", "--yes")
    next(Path(lake.layout.foreign).glob("*.parquet")).write_bytes(b"torn")
    with pytest.raises(TerminalError) as damaged:
        audited(lake)
    assert damaged.value.code == "state-damaged"


@pytest.mark.parametrize("version", [0, 7])
def test_only_an_undecided_commit_is_accepted(lake: LandedLake, run: Run, version: int) -> None:
    _delete(lake)
    code, told = run("gate", "accept", "p", f"--version={version}", "--note=x", "--yes")
    assert "nothing-to-accept" in told and code != 0 and acceptance.acceptances(lake.layout) == []


def test_a_table_that_was_there_before_is_accepted_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of five rows are of keys that no input has, and one is newer than the input."""
    lake = LandedLake(tmp_path)
    rows = [{"id": str(number), "n": 7 if number == 2 else 1, "v": 0} for number in range(5)]
    old = pa.Table.from_pylist(rows, schema=_SCHEMA)
    write_deltalake(lake.layout.tables.target.path, old.slice(0, 3))
    write_deltalake(lake.layout.tables.target.path, old.slice(3), mode="append")
    # its commit writes all rows anew: with those of before, as a MERGE leaves them
    lake.drain(RECORDS[:3])
    log = lake.layout.tables.target
    merged = [{**row, "id": key} for key, row in lake.rows.items() if key != "2"]
    kept = [row for row in rows if int(row["id"]) >= 2]
    _rewrite(lake, log, [*merged, *kept])

    def run(*words: str) -> tuple[int, str]:
        code = main(["--root", str(tmp_path), *words])
        told = capsys.readouterr()
        return code, told.out + told.err

    assert {"foreign-commit", "key-from-nowhere", "sequence-from-nowhere", "row-count"} == kinds(
        audited(lake)
    )
    found = why(run, "4")
    assert (found["state"], "versions 0 to 1" in found["said"], found["batch"]) == (
        "foreign",
        True,
        None,
    )
    assert run("gate", "accept", "p", "--version=1", "--note=was there", "--yes")[0] == 0
    assert audited(lake).clean and "was there" in why(run, "4")["said"]
    plan = rebuild.plan(lake.request)
    assert (plan.foreign_rows, plan.foreign_deleted) == (3, 0), "two are dropped, one is made older"
    with pytest.raises(TerminalError) as refused:
        rebuild.begin(lake.request, by="me", accept_missing=False)
    assert refused.value.code == "rebuild-drops-rows" and rebuild.unfinished(lake.layout) is None
    code, told = run("rebuild", "p", "--yes")
    assert "rebuild-drops-rows" in told and "versions 0 to 1" in told and code == Exit.NEEDS_PERSON
    assert (
        rebuild.begin(lake.request, by="me", accept_missing=False, drop_foreign=True).generation
        == 2
    )


def _rewrite(lake: LandedLake, log: Table, rows: list[dict[str, Any]]) -> None:
    """Replace the rows of the newest commit, a batch's, which says the same of itself."""
    row = BatchRow.from_dict(log.commits(1)[0].note["draindown"])
    commit = Path(log.path, "_delta_log", f"{log.version:020}.json")
    commit.unlink()
    timed = [
        {**one, "at": None, "_changed_at": one.get("_changed_at"), "_arrived_at": None}
        for one in rows
    ]
    by = CommitProperties(app_transactions=[Transaction(lake.layout.app_id(1, "rows"), row.batch)])
    table = pa.Table.from_pylist(timed, schema=_SCHEMA)
    write_deltalake(log.path, table, mode="overwrite", commit_properties=by)
    counted = replace(row, inserted=0, updated=2, superseded=1)
    stamp(Path(log.path), log.version, counted, "MERGE")
    shutil.rmtree(lake.layout.tables.ledger.path)
    ledger_table.record(lake.layout, [replace(counted, table_version=log.version)])


@pytest.mark.parametrize(
    ("change", "written", "deleted"),
    [(_insert, 2, 0), (_delete, 0, 2), (_older, 1, 0), (_content, 1, 0)],
    ids=["insert", "delete", "older", "content"],
)
def test_a_rebuild_counts_what_it_undoes(
    lake: LandedLake, change: Callable[[LandedLake], None], written: int, deleted: int
) -> None:
    assert rebuild.plan(lake.request).foreign == ()
    change(lake)
    plan = rebuild.plan(lake.request)
    assert (plan.foreign_rows, plan.foreign_deleted) == (written, deleted)
    assert "version 1 (" in " ".join(plan.foreign)


def _alter_keys(lake: LandedLake) -> None:
    """Overwrite the table with another type of its key."""
    rows = pa.table({"id": [1, 2], "n": pa.array([1, 1], pa.int32())})
    write_deltalake(lake.layout.tables.target.path, rows, mode="overwrite", schema_mode="overwrite")


def _drop_keys(lake: LandedLake) -> None:
    """Overwrite the table without its key."""
    write_deltalake(
        lake.layout.tables.target.path,
        pa.table({"v": [1]}),
        mode="overwrite",
        schema_mode="overwrite",
    )


def test_a_rebuild_whose_rows_cannot_be_compared_asks_for_the_word_and_begins(
    lake: LandedLake,
) -> None:
    drain(lake, {"id": "a", "n": 5, "v": 1})
    _alter_keys(lake)
    plan = rebuild.plan(lake.request)
    assert (plan.foreign_rows, plan.foreign_deleted) == (None, None)
    with pytest.raises(TerminalError) as refused:
        rebuild.begin(lake.request, by="me", accept_missing=False)
    assert refused.value.code == "rebuild-drops-rows"
    assert (
        rebuild.begin(lake.request, by="me", accept_missing=False, drop_foreign=True).generation
        == 2
    )


def test_a_version_without_the_key_is_compared_all_the_same(lake: LandedLake) -> None:
    _drop_keys(lake)
    (commit,) = foreign.in_table(lake.layout).commits
    found = foreign_rows.changed_by(lake.layout, lake.spec.declared("f"), commit)
    assert (found.inserted, found.updated, found.deleted) != (0, 0, 0)


def test_what_others_commit_while_a_rebuild_runs_needs_a_word_of_its_own(lake: LandedLake) -> None:
    _insert(lake)
    begun = rebuild.begin(lake.request, by="me", accept_missing=False, drop_foreign=True)
    rebuild.refuse_later_foreign(lake.request, begun)
    _delete(lake)
    kept = rebuild.unfinished(lake.layout)
    assert kept == begun, "what the word was given for is kept"
    with pytest.raises(TerminalError) as refused:
        rebuild.refuse_later_foreign(lake.request, begun)
    assert refused.value.code == "rebuild-drops-rows"
    assert "version 2 (" in refused.value.found and "version 1 (" not in refused.value.found
    again = rebuild.begin(lake.request, by="me", accept_missing=False, drop_foreign=True)
    assert again.generation == begun.generation and rebuild.unfinished(lake.layout) == again
    rebuild.refuse_later_foreign(lake.request, again)


def test_an_accepted_commit_of_a_table_without_keys_leaves_no_residue(tmp_path: Path) -> None:
    """Rows that were deleted, changed, doubled, and one that names no record."""
    world = World(tmp_path, keyed=False)
    layout, flow = world.spec.layout("f"), world.spec.flow("f")
    assert world.audit().clean
    target, rows = (
        DeltaTable(layout.tables.target.path),
        layout.tables.target.query("select * from t"),
    )
    target.delete("id = 'd'")
    target.update({"n": "7"}, predicate="id = 'e'")
    write_deltalake(layout.tables.target.path, rows.slice(0, 1), mode="append")
    strange = rows.slice(0, 1).set_column(
        rows.column_names.index("_origin"), "_origin", pa.nulls(1, ORIGIN)
    )
    write_deltalake(layout.tables.target.path, strange, mode="append")
    found = audit(world.spec, "f", root=tmp_path)
    assert kinds(found) >= {
        "foreign-commit",
        "appended-records",
        "double-origin",
        "origin-from-nowhere",
    }
    undecided = foreign.undecided(layout, flow)
    assert [one.version for one in undecided] == [3, 4, 5, 6]
    for commit in undecided:
        acceptance.accept(
            layout, commit, foreign_rows.changed_by(layout, flow, commit), by="me", reason="so"
        )
    found = audit(world.spec, "f", root=tmp_path)
    assert [(one.inserted, one.updated, one.deleted) for one in found.accepted] == [
        *((0, 0, 2), (0, 1, 0)),
        *((1, 0, 0), (1, 0, 0)),
    ]
    assert found.residues == []
    DeltaTable(layout.tables.target.path).delete("id = 'b'")
    assert "appended-records" in kinds(audit(world.spec, "f", root=tmp_path)), (
        "what came later is judged"
    )
