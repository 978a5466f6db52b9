"""Opening a flow: what is brought to its end before anything else, and what is refused, by what a
command needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.base.errors import TerminalError, TransientError
from draindown.config.landing import FlowSpec
from draindown.flow import generations, release_intent
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.lease.holder import holder
from draindown.lease.lease import Lease
from draindown.ledger.rows import BatchRow
from draindown.recovery import rebuild, reset
from draindown.recovery.opening import Needs, OpenFlow, open_flow
from draindown.runs.request import Request
from tests.flowfiles import AT, count_as_spark, drained, restore
from tests.tables.test_rebuilds import begin, read_all, swap

STEPS = ["tombstones", "moved", "decided", "ledger", "named"]


@dataclass
class Engine:
    """An engine that notes what is asked of it, and gives a table its bounds as Spark would."""

    asked: list[str] = field(default_factory=list)

    def hold(self, lease: Lease) -> None:
        lease.check()
        self.asked.append("hold")

    def restore_properties(self, layout: FlowHome, flow: FlowSpec, source: str) -> None:
        self.asked.append("properties")
        said = {delta.BOUNDED: ",".join(flow.target.keys)}
        if rows_by := Table(source).properties.get(delta.ROWS_BY):
            said[delta.ROWS_BY] = rows_by
        DeltaTable(layout.tables.target.path).alter.set_table_properties(
            said, raise_if_not_exists=False
        )


def opened(asked: Request, needs: Needs, **more: Any) -> OpenFlow:
    with open_flow(asked.spec, "f", needs, owner="me", run_id="r", **more) as flow:
        assert holder(asked.layout) is not None
        return flow


def swapped(root: Path) -> Request:
    """A flow whose rebuild was killed right after its swap."""
    asked = drained(root)
    swap(asked, read_all(asked, begin(asked)))
    return asked


def code_of(act: Any) -> str:
    with pytest.raises(TerminalError) as caught:
        act()
    return caught.value.code


def test_a_swap_is_finished_by_all_that_need_more_than_the_lease(tmp_path: Path) -> None:
    asked, told = swapped(tmp_path), list[str]()
    assert opened(asked, Needs.LEASE, reached=told.append).finished is None
    assert (generations.generation(asked.layout), told) == (1, [])
    flow = opened(asked, Needs.FINISHED, reached=told.append)
    assert (flow.finished and flow.finished.generation, flow.generation, told) == (2, 0, STEPS)
    assert (generations.generation(asked.layout), rebuild.unfinished(asked.layout)) == (2, None)
    assert opened(asked, Needs.RESUMED).generation == 2
    assert holder(asked.layout) is None


@pytest.mark.parametrize("first", [Needs.FINISHED, Needs.SETTLED, Needs.RESUMED])
def test_a_rebuilt_table_gets_its_bounds_at_the_first_opening_with_an_engine(
    tmp_path: Path, first: Needs
) -> None:
    asked, engine = swapped(tmp_path), Engine()
    assert opened(asked, first).finished  # by a command that starts none
    opened(asked, Needs.LEASE, engine=engine)
    assert engine.asked == ["hold"]
    for _ in range(2):
        opened(asked, first, engine=engine)
    assert engine.asked == ["hold", "hold", "properties", "hold"]


def test_a_rebuilt_table_says_what_its_rows_go_by_before_a_batch_compares_with_them(
    tmp_path: Path,
) -> None:
    """A batch by other keys would leave the rows of these keys beside its own."""
    asked, engine = drained(tmp_path), Engine()
    staged = read_all(asked, begin(asked))
    for path, keys in (
        (asked.layout.tables.target.path, "old"),
        (staged.layout.tables.target.path, "new"),
    ):
        properties = {delta.ROWS_BY: keys, delta.BOUNDED: "id"}
        DeltaTable(path).alter.set_table_properties(properties, raise_if_not_exists=False)
    swap(asked, staged)
    assert asked.layout.tables.target.properties[delta.ROWS_BY] == "old", "the crash came between"
    opened(asked, Needs.RESUMED, engine=engine)
    assert asked.layout.tables.target.properties[delta.ROWS_BY] == "new"
    opened(asked, Needs.RESUMED, engine=engine)
    assert engine.asked == ["hold", "properties", "hold"]
    aside = reset.plan(asked, table_aside=True)
    reset.begin(asked, aside, by="me", accept_missing=False)
    DeltaTable.create(asked.layout.tables.target.path, schema=pa.schema([("id", pa.string())]))
    opened(asked, Needs.FINISHED, engine=engine)
    assert engine.asked[3:] == ["hold"], "the table that was made since is no rebuilt one"


def test_a_table_that_was_restored_to_before_its_rebuild_keeps_what_its_rows_go_by(
    tmp_path: Path,
) -> None:
    asked, engine = drained(tmp_path), Engine()
    layout, staged = asked.layout, read_all(asked, begin(asked))
    for path, keys in (
        (layout.tables.target.path, "old"),
        (staged.layout.tables.target.path, "new"),
    ):
        properties = {delta.ROWS_BY: keys, delta.BOUNDED: "id"}
        DeltaTable(path).alter.set_table_properties(properties, raise_if_not_exists=False)
    before = layout.tables.target.version
    swap(asked, staged)
    opened(asked, Needs.FINISHED, engine=engine)
    assert layout.tables.target.properties[delta.ROWS_BY] == "new"
    DeltaTable(layout.tables.target.path).alter.set_table_properties(
        {delta.ROWS_BY: "old"}, raise_if_not_exists=False
    )
    restore(asked, before)  # Spark's brings the properties of that version, too
    opened(asked, Needs.FINISHED, engine=engine)
    assert layout.tables.target.properties[delta.ROWS_BY] == "old", (
        "rows of other keys would be taken for theirs"
    )


def test_a_table_that_was_never_rebuilt_keeps_the_bounds_its_owner_gave_it(tmp_path: Path) -> None:
    asked, engine = drained(tmp_path), Engine()
    opened(asked, Needs.RESUMED, engine=engine)
    assert engine.asked == ["hold"]


@pytest.mark.parametrize("way", ["rebuild", "reset"])
def test_a_release_whose_batch_does_not_add_up_shuts_no_way_out(tmp_path: Path, way: str) -> None:
    asked = drained(tmp_path)
    layout, app = asked.layout, asked.layout.app_id(1, "rows", "release")
    release_intent.note(layout, release_intent.Pending(app, 0, "bad", ("q1",)))
    row = BatchRow(
        "p",
        "f",
        1,
        0,
        run_id="bad",
        kind="release",
        records=1,
        inserted=2,
        changed_at=AT,
        started_at=AT,
    )
    wrong = CommitProperties(
        custom_metadata={"userMetadata": row.as_metadata()},
        app_transactions=[Transaction(app, row.batch)],
    )
    write_deltalake(
        layout.tables.target.path,
        layout.tables.target.query("select * from t limit 1"),
        mode="append",
        commit_properties=wrong,
    )
    count_as_spark(layout.tables.target.path)
    assert code_of(lambda: opened(asked, Needs.RESUMED)) == "ledger-does-not-add-up"
    if way == "reset":
        opened(asked, Needs.FINISHED)
        reset.begin(asked, reset.plan(asked), by="me", accept_missing=False)
        assert opened(asked, Needs.RESUMED).generation == 2
    else:
        assert opened(asked, Needs.SETTLED).layout == layout
        assert release_intent.pending(layout) is None
        assert code_of(lambda: opened(asked, Needs.RESUMED)) == "ledger-does-not-add-up", (
            "no batch follows it"
        )


def test_what_puts_a_damaged_flow_right_opens_it_and_what_decides_about_rows_does_not(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    max(Path(asked.layout.tables.ledger.path, "_delta_log").glob("*.json")).write_bytes(b"")
    for needs in (Needs.LEASE, Needs.FINISHED):
        assert opened(asked, needs).layout == asked.layout
    for needs in (Needs.SETTLED, Needs.RESUMED):
        assert code_of(lambda needs=needs: opened(asked, needs)) == "table-damaged"
    assert holder(asked.layout) is None


def test_batches_alone_need_a_table_that_has_what_the_checkpoint_is_done_with(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    restore(asked, 1)
    assert opened(asked, Needs.SETTLED).generation == 0
    assert code_of(lambda: opened(asked, Needs.RESUMED)) == "table-behind-checkpoint"


def test_a_lease_that_is_lost_while_a_crash_is_made_good_ends_the_opening(tmp_path: Path) -> None:
    asked, told = swapped(tmp_path), list[str]()

    def reached(step: str) -> None:
        told.append(step)
        if step == "moved":
            Path(asked.layout.lease, "driver.lock").unlink()

    with pytest.raises(TransientError) as caught:
        opened(asked, Needs.RESUMED, reached=reached)
    assert (caught.value.code, told) == ("lease-lost", STEPS[:2])
    assert opened(asked, Needs.RESUMED).generation == 2
