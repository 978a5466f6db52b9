"""What is lost is refused, and a reset begins a generation that nothing was ever written under."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.audit.recount import audit
from draindown.base.errors import TerminalError, TransientError
from draindown.cli.recovery import _plan_text
from draindown.doctor.examination import examine
from draindown.doctor.model import Desk
from draindown.doctor.tables import look_at_memory
from draindown.flow import discards, generations, resume, withdrawals
from draindown.flow.checkpoint import Checkpoint
from draindown.lake import delta
from draindown.lake.fenced import FencedDocument
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.planning import plan as planner
from draindown.recovery import opening, rebuild
from draindown.recovery import replay as replay_plan
from draindown.recovery import reset as reset_plan
from draindown.runs import report, store
from draindown.runs.request import Again, Request
from draindown.sources.files import catalog, parked
from draindown.sources.port import given_up
from draindown.sources.registry import source_of
from tests.flowfiles import (
    AT,
    REFUSED,
    commit,
    drained,
    foreign,
    request,
    restore,
    rows_read,
    table_of,
    take_in,
)
from tests.flowfiles import checkpoint as write_checkpoint

ALWAYS = Again(since=datetime(2000, 1, 1, tzinfo=UTC), until=datetime(2100, 1, 1, tzinfo=UTC))
MICROSECOND = timedelta(microseconds=1)


def reset(
    asked: Request, *, accept_missing: bool = False, table_aside: bool = False
) -> reset_plan.ResetPlan:
    plan = reset_plan.plan(asked, table_aside=table_aside)
    reset_plan.begin(asked, plan, by="me", accept_missing=accept_missing)
    return plan


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(TerminalError) as caught:
        act()
    assert caught.value.next
    return caught.value.code


def _older_copy(asked: Request) -> None:
    (Path(asked.layout.tables.target.path) / f"_delta_log/{2:020}.json").unlink()


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (lambda asked: shutil.rmtree(asked.layout.tables.target.path), "is gone"),
        (_older_copy, "ends at batch 0"),
        (lambda asked: restore(asked, 1), "restored version 1"),
    ],
)
def test_a_table_behind_its_checkpoint_is_refused(
    tmp_path: Path, lose: Callable[[Request], None], words: str
) -> None:
    asked = drained(tmp_path)
    assert resume.resume(asked.layout) == 1
    lose(asked)
    for act in (lambda: resume.resume(asked.layout), lambda: planner.plan(asked, AT)):
        with pytest.raises(TerminalError) as caught:
            act()
        assert caught.value.code == "table-behind-checkpoint"
        assert words in caught.value.found
        assert caught.value.next[0] == "draindown reset p/f"
    reset(asked)
    assert resume.resume(asked.layout) == 2


def _intake_without_its_last_cut(asked: Request) -> None:
    (Path(asked.layout.tables.intake(1).path) / f"_delta_log/{2:020}.json").unlink()


def _new_intake(asked: Request) -> None:
    shutil.rmtree(asked.layout.tables.intake(1).path)
    take_in(asked, heap_bytes=1024**3, now=AT)


@pytest.mark.parametrize(
    ("lose", "code"),
    [
        (
            lambda asked: shutil.rmtree(asked.layout.tables.intake(1).path),
            "intake-behind-checkpoint",
        ),
        (_intake_without_its_last_cut, "intake-behind-checkpoint"),
        (_new_intake, "intake-replaced"),
    ],
)
def test_another_intake_than_the_checkpoint_reads_is_refused(
    tmp_path: Path, lose: Callable[[Request], None], code: str
) -> None:
    asked = drained(tmp_path)
    lose(asked)
    (tmp_path / "in/2.json").write_text('{"id": "2", "n": 1}\n')
    for act in (
        lambda: resume.resume(asked.layout),
        lambda: planner.plan(asked, AT),
        lambda: planner.backlog(asked, AT),
    ):
        assert code_of(act) == code
    reset(asked)
    assert resume.resume(asked.layout) == 2
    take_in(asked, heap_bytes=1024**3, now=AT)
    assert planner.backlog(asked, AT).units == 3  # all of them, and the new one


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.full
@pytest.mark.parametrize("damage", [_empty, _half])
@pytest.mark.parametrize(
    "name", ["table", "intake", "ledger", "tombstones", "quarantine", "resolutions"]
)
def test_a_torn_table_is_refused_and_put_aside(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    asked = drained(tmp_path)
    path = table_of(asked.layout, name)
    for _ in range(2):
        if name not in ("table", "intake", "ledger"):
            delta.append(
                Table(path),
                pa.table({"quarantine_id": ["q"], "action": ["discard"], "generation": [1]}),
            )
    newest = max(Path(path, "_delta_log").glob("*.json"))
    damage(newest)
    for act in (lambda: resume.resume(asked.layout), lambda: planner.plan(asked, AT)):
        with pytest.raises(TerminalError) as caught:
            act()
        assert caught.value.code == "table-damaged"
        assert path in caught.value.found
        assert caught.value.next[0].startswith("draindown reset p/f ")
    assert reset(asked).damaged == (path,)
    assert not Table(path).exists
    assert list(Path(asked.layout.aside(2)).rglob(newest.name))
    if name == "ledger":
        return  # these commits were made without the numbers that heal it
    assert resume.resume(asked.layout) == 2
    take_in(asked, heap_bytes=1024**3, now=AT)
    assert planner.backlog(asked, AT).units == 2


def _gone(file: Path) -> None:
    file.unlink()


def _garbled(file: Path) -> None:
    raw = file.read_bytes()
    file.write_bytes(raw[:4] + bytes(255 - byte for byte in raw[4:-8]) + raw[-8:])


@pytest.mark.full
@pytest.mark.parametrize("damage", [_empty, _half, _gone, _garbled])
@pytest.mark.parametrize("name", ["table", "intake", "ledger", "tombstones", "quarantine"])
def test_a_torn_data_file_is_named_and_a_reset_puts_its_table_aside(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """Its log is whole, so nothing looks torn until the file is read. The reset that doctor names
    must help too.
    """
    asked = drained(tmp_path)
    path = table_of(asked.layout, name)
    if name in ("tombstones", "quarantine"):
        delta.append(
            Table(path),
            pa.table({"quarantine_id": ["q"], "action": ["discard"], "generation": [1]}),
        )
    torn = sorted(Path(path).glob("*.parquet"))[-1]
    damage(torn)
    if name in ("ledger", "intake"):
        with pytest.raises(TerminalError) as caught:
            Table(path).rows("select * from t")
        assert caught.value.code == "table-damaged"
        assert torn.name in caught.value.found and path in caught.value.found
    wrong = [one for one in examine(asked).symptoms if one.level == "wrong"]
    assert {one.next.partition("   #")[0] for one in wrong} == {"draindown reset p/f"}
    assert all(torn.name in one.found for one in wrong)
    assert len(wrong) == 1
    assert reset(asked).damaged == (path,)
    assert not Table(path).exists
    assert [
        file.name
        for file in Path(asked.layout.aside(2)).rglob("*.parquet")
        if file.name == torn.name
    ] == ([] if damage is _gone else [torn.name])
    if name != "ledger":  # these commits were made without the numbers that heal it
        assert resume.resume(asked.layout) == 2


def test_nothing_goes_on_with_a_torn_ledger(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    # of a single one a query may not need a row
    for file in Path(asked.layout.tables.ledger.path).glob("*.parquet"):
        _half(file)
    for act in (lambda: resume.resume(asked.layout), lambda: planner.plan(asked, AT)):
        with pytest.raises(TerminalError) as caught:
            act()
        assert caught.value.code == "table-damaged"
        assert asked.layout.tables.ledger.path in caught.value.found
        assert caught.value.next[0].startswith("draindown doctor")


@pytest.mark.parametrize(
    ("name", "counts"), [("tombstones", {"deleted": 1}), ("quarantine", {"quarantined": 1})]
)
def test_a_side_table_that_lost_its_newest_batch_is_refused(
    tmp_path: Path, name: str, counts: dict[str, int]
) -> None:
    asked, app = drained(tmp_path), FlowHome("", "p", "f", "f").app_id(1, name)
    delta.append(Table(table_of(asked.layout, name)), pa.table({"n": [1]}), app=(app, 1))
    commit(asked, 2, **counts)
    assert code_of(lambda: planner.plan(asked, AT)) == "table-damaged"
    delta.append(Table(table_of(asked.layout, name)), pa.table({"n": [1]}), app=(app, 2))
    assert planner.plan(asked, AT)


def test_a_cut_that_is_planned_and_lost_is_refused(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    write_checkpoint(asked, 1, offsets=3, commits=2)
    assert code_of(lambda: resume.resume(asked.layout)) == "intake-behind-checkpoint"


def test_a_touched_file_is_read_again_once_its_intake_is_lost(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    os.utime(tmp_path / "in/0.json", (1, 1))
    take_in(asked, heap_bytes=1024**3, now=AT)
    assert [event.state for event in parked.events(asked.layout)] == ["touched"]
    shutil.rmtree(asked.layout.tables.intake(1).path)
    assert take_in(asked, heap_bytes=1024**3, now=AT).units == 2


@pytest.mark.parametrize(
    "lose", [Path.unlink, lambda path: path.write_text("changed, and longer than before")]
)
def test_a_file_that_waits_and_is_lost_can_be_given_up(
    tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    asked = drained(tmp_path, keyed=False)
    lost = tmp_path / "in/2.json"
    lost.write_text('{"id": "2", "n": 1}\n')
    take_in(asked, heap_bytes=1024**3, now=AT)
    lose(lost)
    take_in(asked, heap_bytes=1024**3, now=AT)
    give_up = partial(discards.discard_input, source_of(asked), asked.layout)
    for _ in range(2):
        give_up([str(lost)], by="me", note="lost by the sender", at=AT)
    assert generations.without(asked.layout, 1) == {str(lost)}
    newest = parked.latest(asked.layout)[str(lost)]
    assert (newest.state, newest.by, newest.note) == ("discarded", "me", "lost by the sender")
    assert (take_in(asked, heap_bytes=1024**3, now=AT).kept_out, resume.resume(asked.layout)) == (
        0,
        1,
    )
    assert code_of(lambda: reset_plan.undo(asked, by="me")) == "nothing-to-undo"
    read = str(tmp_path / "in/1.json")
    assert code_of(lambda: give_up([str(lost), read], by="me", note="", at=AT)) == "not-parked"
    # and now it is too late for the third, although the checkpoint doesn't know yet
    commit(asked, 2)
    assert code_of(lambda: give_up([str(lost)], by="me", note="", at=AT)) == "not-parked"


def test_what_was_given_up_unread_is_left_out_of_every_later_generation(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    fresh = tmp_path / "in/9.json"
    fresh.write_text('{"id": "9", "n": 1}\n')
    take_in(asked, heap_bytes=1024**3, now=AT)
    discards.discard_input(source_of(asked), asked.layout, [str(fresh)], by="me", note="", at=AT)
    for expected in (2, 3):
        found = reset(asked)
        assert (found.missing, found.units) == ((), 2)
        assert generations.without(asked.layout, expected) == {str(fresh)}
        write_checkpoint(asked, expected, offsets=1, commits=1)  # else the same reset goes on
    fresh.unlink()
    assert reset_plan.plan(asked).missing == ()


@pytest.mark.parametrize("back", [False, True])
def test_a_file_that_was_read_is_not_given_up_with_its_later_bytes(
    tmp_path: Path, back: bool
) -> None:
    asked = drained(tmp_path)
    path = tmp_path / "in/0.json"
    read = path.read_text()
    path.write_text('{"id": "0", "n": 2}\n{"id": "9", "n": 2}\n')
    take_in(asked, heap_bytes=1024**3, now=AT)
    discards.discard_input(
        source_of(asked), asked.layout, [str(path)], by="me", note="came again as 9.json", at=AT
    )
    assert reset(asked, accept_missing=True).missing == (str(path),)
    write_checkpoint(asked, 2, offsets=1, commits=1)
    if back:
        path.write_text(read)
    found = rebuild.plan(asked)
    assert given_up(source_of(asked)) == set() and found.units == 2
    assert found.missing == (() if back else (str(path),))
    assert back or code_of(lambda: rebuild.refuse_incomplete(asked, found)) == "rebuild-input-gone"


@pytest.mark.parametrize("touched", [False, True])
def test_a_file_stays_given_up_whatever_lies_at_its_path_later(
    tmp_path: Path, touched: bool
) -> None:
    asked = drained(tmp_path)
    path = tmp_path / "in/2.json"
    path.write_text('{"id": "2", "n": 1}\n')
    take_in(asked, heap_bytes=1024**3, now=AT)
    if touched:
        os.utime(path, (1, 1))
        take_in(asked, heap_bytes=1024**3, now=AT)
    discards.discard_input(source_of(asked), asked.layout, [str(path)], by="me", note="", at=AT)
    events = len(parked.events(asked.layout))
    take_in(asked, heap_bytes=1024**3, now=AT)
    assert len(parked.events(asked.layout)) == events
    os.utime(path, (2, 2))
    take_in(asked, heap_bytes=1024**3, now=AT)
    path.write_text("other bytes, and longer than before")
    take_in(asked, heap_bytes=1024**3, now=AT)
    assert given_up(source_of(asked)) == {str(path)}
    assert reset(asked).units == 2


def test_a_restore_that_takes_no_batch_back_is_no_loss(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    foreign(asked)
    restore(asked, 2)
    assert resume.resume(asked.layout) == 1
    commit(asked, 2, recorded=False)
    restore(asked, 4)  # the batch that it takes back is not in the ledger yet
    assert resume.behind(asked.layout, Checkpoint(asked.layout.checkpoint(1)), 1)


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ((1, 2), None),  # the second undoes the first
        ((1, 1, 2), None),
        ((0, 1, 2), None),
        ((1, 2, 1, 5), None),  # the rows of version 5 are those of version 2
        (
            (2, 1),
            "version 5 of the table {} restored version 1, before the newest batch in version 2",
        ),
        (
            (1, 2, 1),
            "version 6 of the table {} restored version 1, before the newest batch in version 2",
        ),
        (
            (1, 2, 4),
            "version 4 of the table {} restored version 1, before the newest batch in version 2",
        ),
        (
            (1, 2, 1, 5, 0),
            "version 8 of the table {} restored version 0, before the newest batch in version 2",
        ),
    ],
)
def test_a_restore_that_a_later_one_undid_is_no_loss(
    tmp_path: Path, versions: Sequence[int], found: str | None
) -> None:
    """Somebody's own write is version 3, the RESTOREs follow."""
    asked = drained(tmp_path)
    foreign(asked)
    for version in versions:
        restore(asked, version)
    checkpoint = Checkpoint(asked.layout.checkpoint(1))
    assert resume.behind(asked.layout, checkpoint, 1) == (
        found and found.format(asked.layout.tables.target.path)
    )


def test_a_restore_of_a_version_before_every_batch_is_undone_too(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    for version, code in (
        (0, "table-behind-checkpoint"),
        (2, None),
        (3, "table-behind-checkpoint"),
        (2, None),
    ):
        restore(asked, version)
        if code:
            assert code_of(lambda: resume.resume(asked.layout)) == code
            assert code_of(lambda: planner.plan(asked, AT)) == code
        else:
            assert resume.resume(asked.layout) == 1 and planner.plan(asked, AT)


def test_a_batch_goes_on_after_a_restore_was_undone_and_can_be_taken_back_itself(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    for version in (1, 2):
        restore(asked, version)
    commit(asked, 2, recorded=False)  # version 5
    write_checkpoint(asked, 1, offsets=3, commits=3)
    behind = partial(resume.behind, asked.layout)
    assert behind(Checkpoint(asked.layout.checkpoint(1)), 1) is None
    restore(asked, 4)
    assert "restored version 4, before the newest batch in version 5" in str(
        behind(Checkpoint(asked.layout.checkpoint(1)), 1)
    )
    restore(asked, 5)
    assert behind(Checkpoint(asked.layout.checkpoint(1)), 1) is None


def test_the_audit_of_a_later_generation_counts_batches_that_a_restore_brought_back(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    for version in (1, 2):
        restore(asked, version)
    reset(asked)
    found = audit(asked.spec, "f", root=tmp_path)
    assert "row-count" not in {residue.kind for residue in found.residues}


def test_reset_and_undo(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    plan = reset(asked)
    assert (plan.previous, plan.generation, plan.slices, plan.units, plan.target) == (
        1,
        2,
        2,
        2,
        "filled",
    )
    assert (plan.missing, plan.holds_previous) == ((), True)
    assert generations.generation(asked.layout) == 2
    assert planner.backlog(asked, AT).units == 2
    assert reset(asked).generation == 2
    assert reset_plan.undo(asked, by="me") == 1
    assert generations.generation(asked.layout) == 1
    assert reset(asked).generation == 3  # never the same again
    write_checkpoint(asked, 3, offsets=1, commits=0)
    assert reset_plan.undoable(asked.layout) == 1
    commit(asked, 0, generation=3)
    assert code_of(lambda: reset_plan.undo(asked, by="me")) == "generation-has-batches"
    assert reset(asked).generation == 4


def test_an_undo_leaves_out_what_was_given_up_since(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    reset(asked)
    new = tmp_path / "in/new.json"
    new.write_text('{"id": "9", "n": 1}\n')
    take_in(asked, heap_bytes=1024**3, now=AT)
    discards.discard_input(source_of(asked), asked.layout, [str(new)], by="me", note="", at=AT)
    assert generations.without(asked.layout, 2) == {str(new)} and not generations.without(
        asked.layout, 1
    )
    assert reset_plan.undo(asked, by="me") == 1
    assert generations.without(asked.layout, 1) == {str(new)}
    assert generations.generation(asked.layout) == 1


@pytest.mark.parametrize("steps", range(4))
def test_an_undo_that_lost_its_lease_writes_nothing_more(tmp_path: Path, steps: int) -> None:
    asked, calls = drained(tmp_path), list[int]()
    reset(asked)

    def check() -> None:
        calls.append(1)
        if len(calls) > steps:
            raise TransientError("lease-lost", tried="t", found="f", next="n")

    if steps == 3:
        assert reset_plan.undo(asked, by="me", check=check) == 1
        return
    with pytest.raises(TransientError):
        reset_plan.undo(asked, by="me", check=check)
    assert generations.generation(asked.layout) == 2 and len(calls) == steps + 1


def test_a_damaged_checkpoint_is_named_before_what_it_says_of_the_intake(tmp_path: Path) -> None:
    """A copy of the intake from before would not help: the checkpoint has to be put back, or given
    up, first.
    """
    asked = drained(tmp_path)
    (Path(asked.layout.checkpoint(1)) / "metadata").unlink()
    _new_intake(asked)
    assert code_of(lambda: planner.look(asked, AT)) == "checkpoint-without-metadata"


def test_a_reset_that_is_typed_twice_names_the_generation_that_its_undo_returns_to(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    assert reset(asked).kept == 1
    again = reset_plan.plan(asked)
    assert (again.previous, again.generation, again.kept) == (2, 2, 1)
    Path(asked.layout.generation.path).write_text("{")
    assert reset_plan.plan(asked).kept is None


def _torn(asked: Request) -> str:
    """The newest commit of the tombstones, as a power cut leaves it; returns the table's path."""
    path = asked.layout.tables.tombstones.path
    for _ in range(2):
        delta.append(Table(path), pa.table({"generation": [1]}))
    _empty(max(Path(path, "_delta_log").glob("*.json")))
    return path


def test_no_generation_goes_on_without_a_table_that_a_reset_put_aside(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    path = _torn(asked)
    assert reset(asked).damaged == (path,)
    with pytest.raises(TerminalError) as caught:
        reset_plan.undo(asked, by="me")
    assert (caught.value.code, path in caught.value.found) == ("nothing-to-undo", True)
    assert resume.resume(asked.layout) == 2


def refuse_writes(patch: pytest.MonkeyPatch, document: FencedDocument) -> None:
    """From now on the disk is full where this document is written."""
    right = FencedDocument.write

    def write(written: FencedDocument, content: Mapping[str, Any]) -> None:
        if written == document:
            raise OSError("no space")
        right(written, content)

    patch.setattr(FencedDocument, "write", write)


def test_a_reset_that_died_half_way_is_done_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = drained(tmp_path)
    path = _torn(asked)
    with monkeypatch.context() as full, pytest.raises(OSError, match="no space"):
        refuse_writes(full, asked.layout.generation)
        reset(asked)
    assert (generations.generation(asked.layout), Table(path).exists) == (1, False)
    for act in (lambda: resume.resume(asked.layout), lambda: planner.plan(asked, AT)):
        with pytest.raises(TerminalError) as caught:
            act()
        assert (caught.value.code, path in caught.value.found) == ("reset-unfinished", True)
        assert caught.value.next[0] == "draindown reset p/f"
    assert [one.code for one in examine(asked).symptoms if one.level == "wrong"] == [
        "reset-unfinished"
    ]
    assert reset(asked).generation == 2
    assert resume.resume(asked.layout) == 2


def test_a_table_that_was_put_back_after_half_a_reset_is_missed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reset would end where the table appends and holds rows again."""
    asked, copy = drained(tmp_path, keyed=False), tmp_path / "copy"
    shutil.copytree(asked.layout.tables.target.path, copy)
    _half(max(Path(asked.layout.tables.target.path, "_delta_log").glob("*.json")))
    with monkeypatch.context() as full, pytest.raises(OSError, match="no space"):
        refuse_writes(full, asked.layout.generation)
        reset(asked)
    assert code_of(lambda: resume.resume(asked.layout)) == "reset-unfinished"
    shutil.copytree(copy, asked.layout.tables.target.path)
    assert resume.resume(asked.layout) == 1
    assert not [one.code for one in examine(asked).symptoms if one.level == "wrong"]


def test_another_table_in_the_place_of_one_put_aside_does_not_count(tmp_path: Path) -> None:
    """As where the file that names the generation was put back from before the reset."""
    asked = drained(tmp_path)
    path = _torn(asked)
    reset(asked)
    delta.append(Table(path), pa.table({"generation": [2]}))
    assert resume.resume(asked.layout) == 2
    asked.layout.generation.write({"generation": 1, "cards": {}})
    assert code_of(lambda: resume.resume(asked.layout)) == "reset-unfinished"


def test_a_torn_name_of_the_generation_is_no_half_a_reset(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    _torn(asked)
    reset(asked)
    write_checkpoint(asked, 2, offsets=0, commits=0)
    asked.layout.generation.write({"cards": {}})
    assert {one.code for one in examine(asked).symptoms if one.level == "wrong"} == {
        "generation-damaged"
    }


def test_a_table_that_stands_says_that_a_withdrawal_never_left_it(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    _refused(asked, 0, kind="withdraw")
    _empty(max(Path(asked.layout.tables.ledger.path, "_delta_log").glob("*.json")))
    assert reset(asked).damaged == (asked.layout.tables.ledger.path,)
    assert withdrawals.unfinished(asked.layout) == [(1, 0)]
    assert opening.unsettled(asked.layout) == ["a withdrawal was cut short"]


def _refused(asked: Request, batch: int, kind: str = "drain", run_id: str = "r") -> None:
    row = {
        "quarantine_id": f"{kind} {batch}",
        "generation": 1,
        "batch": batch,
        "kind": kind,
        "run_id": run_id,
    }
    app = (asked.layout.app_id(1, "quarantine", kind), batch)
    delta.append(asked.layout.tables.quarantine, pa.Table.from_pylist([row], REFUSED), app=app)


def _kept(asked: Request) -> set[str]:
    found = asked.layout.tables.quarantine.query("select quarantine_id as id from t").to_pylist()
    return {row["id"] for row in found}


@pytest.mark.parametrize("table_aside", [False, True])
def test_a_new_generation_forgets_what_a_batch_refused_that_was_never_done(
    tmp_path: Path, table_aside: bool
) -> None:
    asked = drained(tmp_path)
    for batch in (0, 1, 2):
        _refused(asked, batch)
    _refused(asked, 5, kind="withdraw")
    reset(asked, table_aside=table_aside)
    assert _kept(asked) == {"drain 0", "drain 1", "withdraw 5"}


def test_a_reset_forgets_before_the_table_goes_that_says_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = drained(tmp_path)
    commit(asked, 2, recorded=False, inputs=0)  # the ledger gets its row from the table
    for batch in (1, 2, 3):
        _refused(asked, batch)

    def full(path: Path, _to: Path) -> Path:
        raise OSError(f"no space for {path}")

    with monkeypatch.context() as dying, pytest.raises(OSError, match="no space"):
        dying.setattr(Path, "rename", full)
        reset(asked, table_aside=True)
    assert asked.layout.tables.target.exists and generations.generation(asked.layout) == 1
    assert _kept(asked) == {"drain 1", "drain 2"}
    reset(asked, table_aside=True)
    assert _kept(asked) == {"drain 1", "drain 2"}


@pytest.mark.parametrize(
    "lose", [shutil.rmtree, lambda path: _empty(max(Path(path, "_delta_log").glob("*.json")))]
)
def test_a_table_that_can_t_say_what_was_done_has_no_refused_row_forgotten(
    tmp_path: Path, lose: Callable[[str], object]
) -> None:
    asked = drained(tmp_path)
    commit(asked, 2, recorded=False)  # nobody knows of it once the table is gone
    _refused(asked, 2)
    lose(asked.layout.tables.target.path)
    reset(asked, table_aside=True)
    assert _kept(asked) == {"drain 2"}


@pytest.mark.parametrize(
    "lost", [shutil.rmtree, lambda path: (Path(path) / f"_delta_log/{2:020}.json").unlink()]
)
def test_what_the_ledger_knows_was_done_although_the_table_forgot_it(
    tmp_path: Path, lost: Callable[[str], object]
) -> None:
    asked = drained(tmp_path)
    for batch in (0, 1, 2):
        _refused(asked, batch)
    _refused(asked, 1, kind="replay:x", run_id="never did one")
    lost(asked.layout.tables.target.path)
    discards.forget_unfinished(asked.layout, 1)
    assert _kept(asked) == {"drain 0", "drain 1"}


def test_what_people_took_out_stays_out_where_nothing_is_left_to_say_that_they_did(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    _refused(asked, 0, kind="withdraw")
    assert withdrawals.unfinished(asked.layout) == [(1, 0)]
    for path in (asked.layout.tables.target.path, asked.layout.tables.ledger.path):
        _empty(max(Path(path, "_delta_log").glob("*.json")))
    assert len(reset(asked).damaged) == 2
    assert withdrawals.unfinished(asked.layout) == []
    assert _kept(asked) == {"withdraw 0"}


def test_undo_without_a_reset_is_refused(tmp_path: Path) -> None:
    assert code_of(lambda: reset_plan.undo(drained(tmp_path), by="me")) == "nothing-to-undo"


@pytest.mark.parametrize("content", ["", "[]", '{"generation": "x"}', None])
def test_reset_heals_a_damaged_name_of_the_generation(tmp_path: Path, content: str | None) -> None:
    asked = drained(tmp_path)
    reset(asked)
    write_checkpoint(asked, 2, offsets=0, commits=0)
    newest = Path(asked.layout.generation.path)
    shutil.rmtree(newest.parent)
    if content is not None:
        newest.parent.mkdir()
        newest.write_text(content)
    assert code_of(lambda: generations.generation(asked.layout)) == "generation-damaged"
    plan = reset(asked)
    assert (plan.previous, plan.generation) == (None, 3)
    assert generations.generation(asked.layout) == 3
    assert code_of(lambda: reset_plan.undo(asked, by="me")) == "nothing-to-undo"


def test_a_new_generation_is_one_the_table_never_saw(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    commit(asked, 0, generation=2, recorded=False)  # all but the table forgot it
    assert reset_plan.plan(asked).generation == 3


def test_missing_input_is_named_and_left_out_once_accepted(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    (tmp_path / "in/0.json").unlink()
    (tmp_path / "in/1.json").write_text("other bytes")
    with pytest.raises(TerminalError) as caught:
        reset(asked)
    assert caught.value.code == "reset-input-gone"
    assert "2 files" in caught.value.found
    assert "0.json" in caught.value.found
    assert generations.generation(asked.layout) == 1
    reset(asked, accept_missing=True)
    assert {Path(path).name for path in generations.without(asked.layout, 2)} == {
        "0.json",
        "1.json",
    }
    assert generations.without(asked.layout, 1) == frozenset()


def test_an_append_table_with_rows_is_not_reset(tmp_path: Path) -> None:
    asked = drained(tmp_path, keyed=False)
    assert code_of(lambda: reset_plan.plan(asked)) == "reset-would-double"
    shutil.rmtree(asked.layout.tables.target.path)
    assert reset_plan.plan(asked).target == "absent"


def test_an_append_table_is_put_aside_where_no_rebuild_can_read_what_belongs_to_it(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path, keyed=False)
    path = _torn(asked)
    for refused in (reset, lambda asked: replay_plan.settle(asked.layout, by="me")):
        with pytest.raises(TerminalError) as caught:
            refused(asked)
        assert [line for line in caught.value.next if line.startswith("draindown reset p/f ")]
    with pytest.raises(TerminalError) as caught:
        reset(asked)
    assert caught.value.next[-1].startswith("draindown reset p/f --table-aside ")
    plan = reset(asked, table_aside=True)
    assert (plan.damaged, plan.target, plan.holds_previous) == ((path,), "absent", False)
    assert resume.resume(asked.layout) == 2


def test_a_table_put_aside_is_filled_anew(tmp_path: Path) -> None:
    asked = drained(tmp_path, keyed=False)
    commit(asked, 2, recorded=False)  # a crash came before the ledger
    plan = reset(asked, table_aside=True)
    assert (plan.damaged, plan.target, plan.holds_previous) == ((), "absent", False)
    assert not asked.layout.tables.target.exists
    (aside,) = Path(asked.layout.aside(2)).glob("*/*")
    assert DeltaTable(str(aside)).to_pyarrow_table().num_rows == 3
    assert [row.batch for row in ledger_table.recent(asked.layout, 9)] == [0, 1, 2]
    assert code_of(lambda: reset_plan.undo(asked, by="me")) == "nothing-to-undo"
    assert resume.resume(asked.layout) == 2


def _remembering(root: Path) -> Request:
    """A flow whose batches hid an event."""
    asked = drained(root)
    commit(asked, 2, inputs=0, form="history", applied=1, opened=1, hidden=1)
    delta.append(
        asked.layout.tables.hidden,
        pa.table({"id": ["h"]}),
        app=(asked.layout.app_id(1, "hidden"), 2),
    )
    return asked


@pytest.mark.parametrize("lose", ["aside", "gone", "torn"])
def test_the_hidden_events_of_a_history_go_with_its_table(tmp_path: Path, lose: str) -> None:
    asked = _remembering(tmp_path)
    if lose == "gone":
        shutil.rmtree(asked.layout.tables.target.path)
    if lose == "torn":
        _half(max(Path(asked.layout.tables.target.path, "_delta_log").glob("*.json")))
    plan = reset(asked, table_aside=lose == "aside")
    assert (
        plan.hidden_aside and "hidden events" in (told := _plan_text(plan)) and "no --undo" in told
    )
    assert code_of(lambda: reset_plan.undo(asked, by="me")) == "nothing-to-undo"
    assert not asked.layout.tables.target.exists and not asked.layout.tables.hidden.exists
    assert Table(f"{asked.layout.aside(2)}/hidden_events/f").row_count == 1
    desk = Desk(asked.layout, memory="hidden", generation=2)
    look_at_memory(desk)
    assert not desk.symptoms, "none of the new generation is missing"
    commit(asked, 0, generation=2, form="history", applied=1, opened=1, hidden=1)
    look_at_memory(again := Desk(asked.layout, memory="hidden", generation=2))
    assert [one.code for one in again.symptoms] == ["hidden-missing"]


def test_hidden_events_stay_where_their_table_does(tmp_path: Path) -> None:
    asked = _remembering(tmp_path)
    assert not reset(asked).hidden_aside
    assert asked.layout.tables.hidden.row_count == 1


def test_a_reset_that_died_between_a_table_and_its_hidden_events_puts_aside_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, rename = _remembering(tmp_path), Path.rename

    def full(path: Path, to: Path) -> Path:
        if str(path) == asked.layout.tables.hidden.path:
            raise OSError("no space")
        return rename(path, to)

    with monkeypatch.context() as dying, pytest.raises(OSError, match="no space"):
        dying.setattr(Path, "rename", full)
        reset(asked, table_aside=True)
    assert (asked.layout.tables.target.exists, asked.layout.tables.hidden.exists) == (
        False,
        True,
    )
    assert code_of(lambda: resume.resume(asked.layout)) == "reset-unfinished"
    reset(asked)  # as the error says
    assert not asked.layout.tables.hidden.exists


def test_a_table_is_not_filled_anew_without_files_that_a_lost_intake_forgot(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    shutil.rmtree(asked.layout.tables.intake(1).path)
    assert reset_plan.plan(asked).forgotten == 0  # their rows stay
    with pytest.raises(TerminalError) as caught:
        reset(asked, table_aside=True)
    assert (caught.value.code, "2 files that a run has read" in caught.value.found) == (
        "reset-input-gone",
        True,
    )
    assert caught.value.next[-1].startswith(
        "draindown reset p/f --table-aside --accept-missing --yes "
    )
    assert asked.layout.tables.target.exists
    assert reset(asked, table_aside=True, accept_missing=True).generation == 2


def test_a_flow_that_never_ran_has_nothing_to_reset(tmp_path: Path) -> None:
    assert code_of(lambda: reset_plan.plan(request(tmp_path))) == "nothing-to-reset"


def test_a_replay_is_pinned_and_its_id_follows_from_what_was_asked(tmp_path: Path) -> None:
    asked = drained(tmp_path).model_copy(update={"replay": ALWAYS})
    found = replay_plan.find(asked)
    assert ([part.batch for part in found.parts], found.begun, found.done) == ([0, 1], False, 0)
    assert not Path(asked.layout.replays).exists()
    replay_plan.pin(asked, found)
    (tmp_path / "in/late.json").write_text('{"id": "x", "n": 1}\n')
    pinned = replay_plan.find(asked)
    assert (pinned.id, pinned.begun, pinned.parts) == (found.id, True, found.parts)
    assert [replay.id for replay in replay_plan.unfinished(asked.layout)] == [found.id]
    other = asked.model_copy(update={"replay": Again(units=(str(tmp_path / "in/1.json"),))})
    one = replay_plan.find(other)
    assert ([part.batch for part in one.parts], one.parts[0].slice.number) == (
        [2],
        2,
    )  # a number that no other replay has
    assert one.id != found.id
    reset(asked)
    assert replay_plan.unfinished(asked.layout) == []
    assert replay_plan.find(asked).waiting == 2


@pytest.mark.parametrize(
    ("since", "until", "files"),
    [
        (AT, AT + MICROSECOND, 2),  # the beginning counts
        (AT - MICROSECOND, AT, 0),  # the end doesn't
        (AT + MICROSECOND, AT + timedelta(days=1), 0),
        (
            AT.astimezone(timezone(timedelta(hours=5))),
            AT.astimezone(timezone(timedelta(hours=-5))) + MICROSECOND,
            2,
        ),
        (datetime(1900, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), 0),
    ],
)
def test_a_replay_by_time_reads_what_was_first_seen_then_alone(
    tmp_path: Path, since: datetime, until: datetime, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = drained(tmp_path).model_copy(update={"replay": Again(since=since, until=until)})
    read = rows_read(monkeypatch)
    assert replay_plan.find(asked).units == files
    assert sum(read) == files + 1  # and the ledger's newest batch of a replay


def test_a_replay_of_a_file_reads_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = drained(tmp_path).model_copy(update={"replay": Again(units=("in/1.json",))})
    read = rows_read(monkeypatch)
    assert replay_plan.find(asked).units == 1
    assert sum(read) == 1 + 1


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (Again(), "bad-range"),
        (Again(since=AT), "bad-range"),
        (Again(since=AT, until=AT), "bad-range"),
        (Again(since=AT, until=datetime(2027, 1, 1, tzinfo=UTC), units=("x",)), "bad-range"),
        (Again(units=("in/never.json",)), "not-taken-in"),
    ],
)
def test_a_replay_of_nothing_is_refused(tmp_path: Path, asked: Again, code: str) -> None:
    request = drained(tmp_path).model_copy(update={"replay": asked})
    assert code_of(lambda: replay_plan.find(request)) == code


def test_the_plan_of_a_replay_says_what_is_left(tmp_path: Path) -> None:
    asked = drained(tmp_path).model_copy(update={"replay": ALWAYS})
    commit(asked, 2, bytes=20, seconds=4.0)  # what the forecast knows
    part = planner.plan_replay(asked)[0]
    assert (part.drain, part.check, part.compact) == (True, True, True)
    assert (part.backlog.units, part.batches) == (2, 2)
    size = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
    # a start, and both files at the pace of all so far
    assert part.seconds == round(12 + 4.0 / (size + 20) * size, 1)
    found = replay_plan.find(asked)
    assert part.replay == f"{found.id}: {found.asked}"
    replay_plan.pin(asked, found)
    for batch, words in zip(found.parts, ("1 batch done before", "is done already"), strict=True):
        _replayed(asked, found, batch.batch)
        part = planner.plan_replay(asked)[0]
        assert words in part.reasons["drain"]
    assert (part.drain, part.check, part.batches) == (False, True, 0)  # nothing was published yet
    assert planner.planned(asked).outcome == "done"
    (tmp_path / "in/2.json").write_text('{"id": "2", "n": 1}\n')
    take_in(asked, heap_bytes=1024**3, now=AT)
    # it is pinned
    assert "1 file first seen then" not in planner.plan_replay(asked)[0].reasons["drain"]
    again = asked.model_copy(
        update={"replay": ALWAYS.model_copy(update={"again": True}), "run_id": "another"}
    )
    assert "1 file first seen then wait" in planner.plan_replay(again)[0].reasons["drain"]


def _replayed(asked: Request, found: replay_plan.Replay, batch: int) -> None:
    """Commit a batch of a replay, without a row."""
    known = Transaction(asked.layout.app_id(1, "rows", found.kind), batch)
    empty = DeltaTable(asked.layout.tables.target.path).to_pyarrow_table().slice(0, 0)
    done = CommitProperties(app_transactions=[known])
    write_deltalake(asked.layout.tables.target.path, empty, mode="append", commit_properties=done)


def test_a_replay_once_more_is_not_done_twice_by_one_run(tmp_path: Path) -> None:
    """A drain is retried after its replay was over, as where its driver died in the check that
    followed.
    """
    base = drained(tmp_path)

    def asks(run: str, *, more: bool = True) -> Request:
        return base.model_copy(
            update={"replay": ALWAYS.model_copy(update={"again": more}), "run_id": run}
        )

    def planned(run: str) -> Request:
        plan = asks(run).model_copy(update={"step": "plan", "start": report.new_start()})
        store.write(plan.layout, report.of(plan, AT, "done"))
        return plan

    def done(asked: Request, batches: int = 2) -> str:
        found = replay_plan.find(asked)
        replay_plan.pin(asked, found)
        for part in found.left[:batches]:
            _replayed(asked, found, part.batch)
        return found.id

    first = done(asks("r1", more=False))
    planned("r2")
    second = done(asks("r2"))
    assert (second, replay_plan.find(asks("r2")).id) == (f"{first}-2", second)
    assert not replay_plan.find(asks("r2")).left, "its retry"
    third = done(asks("r3"), batches=1)
    assert third == f"{first}-3"
    assert [one.id for one in replay_plan.unfinished(base.layout)] == [third]
    assert done(asks("r4")) == third, "another run goes on with what is unfinished"
    for run in ("r3", "r4"):
        assert (replay_plan.find(asks(run)).id, replay_plan.find(asks(run)).left) == (third, ())
    assert replay_plan.find(planned("r2")).id == f"{first}-4", (
        "a run that is planned again asks anew"
    )
    assert replay_plan.find(asks("r2")).left
    path = Path(base.layout.replays, f"{first}.json")
    document = json.loads(path.read_text())
    assert document.pop("requesters") == ["r1"]
    path.write_text(json.dumps(document))
    assert not replay_plan.find(asks("r1", more=False)).left, "of a version that did not note it"
    assert replay_plan.find(asks("r1")).left


def test_a_replay_refuses_append_tables_and_lost_files(tmp_path: Path) -> None:
    (tmp_path / "keyed").mkdir()
    (tmp_path / "append").mkdir()
    appending = drained(tmp_path / "append", keyed=False).model_copy(update={"replay": ALWAYS})
    assert code_of(lambda: replay_plan.find(appending)) == "replay-would-double"
    asked = drained(tmp_path / "keyed").model_copy(update={"replay": ALWAYS})
    (tmp_path / "keyed/in/1.json").write_text("{}")
    found = replay_plan.find(asked)
    with pytest.raises(TerminalError) as caught:
        replay_plan.refuse_gone(source_of(asked), asked.layout, found.left)
    assert (caught.value.code, "1.json" in caught.value.found) == ("replay-input-gone", True)


def test_only_drained_files_are_replayed(tmp_path: Path) -> None:
    asked = drained(tmp_path).model_copy(update={"replay": ALWAYS})
    write_checkpoint(asked, 1, offsets=2, commits=1)
    (Path(asked.layout.checkpoint(1)) / "commits/1").unlink()
    found = replay_plan.find(asked)
    assert (found.units, found.waiting) == (1, 1)
    assert catalog.last_slice(asked.layout) == 2


def test_cards_survive_as_json(tmp_path: Path) -> None:
    layout = FlowHome(str(tmp_path), "p", "f", "f")
    card = {
        "generation": 2,
        "previous": 1,
        "at": "2026-01-01T00:00:00+00:00",
        "by": "me",
        "without": ["x"],
    }
    layout.generation.write({"generation": 2, "cards": {"2": card}})
    assert generations.card(layout, 2) == generations.Card(2, 1, card["at"], "me", ("x",))  # type: ignore[arg-type]
    assert generations.card(layout, 1) is None
    assert json.loads(Path(layout.generation.path).read_text())["generation"] == 2
