"""What commands cost: logs opened, existence checks, documents read, listings and rows read, as
exact numbers.

On an object store each of them is a request or several: what no timing on a local disk would show.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.cli.program import main
from draindown.config.sources import FilesSource
from draindown.flow import quarantine, resume
from draindown.flow.state import FlowState
from draindown.gate.published import Published, publish
from draindown.lake import delta
from draindown.lake import table as lake_table
from draindown.lake.local_store import LocalStore
from draindown.lake.table import Table
from draindown.planning.plan import backlog, plan
from draindown.recovery.replay import settle
from draindown.runs import report, store
from draindown.runs.request import STEPS, Request
from draindown.sources.batch_size import bound_for
from draindown.sources.files import listing, parked
from draindown.sources.registry import source_of
from tests.flowfiles import AT, checkpoint, commit, drained, places, table_of, take_in

IDENTITY = "_draindown/lake.json"
OFFSETS = "generations/0001/checkpoint/offsets/1"
TABLES = (
    "table",
    "tombstones",
    "quarantine",
    "ledger",
    "inputs",
    "intake",
    "parked",
    "resolutions",
)
UNMADE = ("hidden", "snapshots", "raw", "late", "late_decisions")
"""A table that the flow does not have, which those who open TABLES look for."""


@dataclass
class Costs:
    """How often each table's log was opened and looked for, each document read, and how many rows
    of each table; how often was listed. Documents go by their paths under the flow's home.
    """

    opened: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    documents: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    listings: int = 0

    def clear(self) -> None:
        self.opened.clear()
        self.checked.clear()
        self.documents.clear()
        self.rows.clear()
        self.listings = 0


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    """A drained flow that has one of everything: nothing new at its source, all of it published."""
    found = drained(tmp_path)
    layout, flow = found.layout, found.flow_spec
    lines = ["pipeline: p", f"lake: {tmp_path}/lake", "flows:", "  f:"]
    lines += [f"    source: {{files: {flow.source.files}, format: json, max_files_per_trigger: 1}}"]
    lines += [
        "    columns: {id: string not null, n: int not null}",
        "    target: {keys: [id], sequence_by: [n]}",
    ]
    (tmp_path / "dags/pipelines").mkdir(parents=True)
    (tmp_path / "dags/pipelines/p.yaml").write_text("\n".join(lines))
    place = {"origin": places(1, 2, 3), "raw": ["{"] * 3, "raw_bytes": pa.nulls(3, pa.binary())}
    why = {
        "quarantine_id": ["q1", "q2", "q3"],
        "reason": ["type"] * 3,
        "field": ["n"] * 3,
        "detail": ["x"] * 3,
    }
    run = {
        "raw_length": [1] * 3,
        "generation": [1] * 3,
        "batch": [0] * 3,
        "kind": ["drain"] * 3,
        "run_id": ["r"] * 3,
    }
    times = {name: [AT] * 3 for name in ("arrived_at", "first_seen", "quarantined_at")}
    times |= {"envelope": pa.nulls(3, pa.string())}
    write_deltalake(layout.tables.quarantine.path, pa.table(why | place | run | times))
    remember(found, 1)
    quarantine.discard(layout, ["q1"], by="me")
    parked.record(layout, [parked.Event("/gone.json", 1, 1, "parked", reason="torn")], AT)
    table = layout.tables.target
    pointer = {
        "version": table.version,
        "table_id": table.id,
        "rows": 2,
        "changed_at": AT,
        "at": AT,
        "run_id": "r",
    }
    publish(layout, Published.model_validate(pointer))
    for step in STEPS[:3]:
        store.write(layout, report.of(found.model_copy(update={"step": step}), AT, "done"))
    return found


def remember(asked: Request, batch: int) -> None:
    """Tombstones of a batch."""
    of = {"generation": [1], "batch": [batch], "kind": ["drain"], "_changed_at": [AT]}
    known = CommitProperties(
        app_transactions=[Transaction(asked.layout.app_id(1, "tombstones"), batch)]
    )
    deleted = pa.table({"id": ["9"], "n": [1], **of})
    write_deltalake(
        asked.layout.tables.tombstones.path, deleted, mode="append", commit_properties=known
    )


@pytest.fixture
def costs(asked: Request, monkeypatch: pytest.MonkeyPatch) -> Costs:
    found, query, list_source = Costs(), Table.query, listing.list_source
    read = LocalStore.read

    def name(path: str) -> str:
        return next(
            (one for one in (*TABLES, *UNMADE) if table_of(asked.layout, one) == path), path
        )

    class Counting(deltalake.DeltaTable):
        def __init__(self, path: Any, *given: Any, **more: Any) -> None:
            found.opened[name(str(path))] += 1
            super().__init__(path, *given, **more)

        @staticmethod
        def is_deltatable(path: Any, *given: Any) -> bool:
            found.checked[name(str(path))] += 1
            return deltalake.DeltaTable.is_deltatable(path, *given)

    def counted(log: Table, sql: str, *beside: Any) -> pa.Table:
        rows = query(log, sql, *beside)
        found.rows[name(log.path)] += rows.num_rows
        return rows

    def noted(kept: LocalStore, key: str) -> tuple[bytes, str] | None:
        found.documents[
            key.removeprefix(f"{asked.layout.home}/").removeprefix(f"{asked.layout.lake}/")
        ] += 1
        return read(kept, key)

    def listed(source: FilesSource, root: Path, now: datetime) -> listing.Listing:
        found.listings += 1
        return list_source(source, root, now)

    for module in (lake_table, delta):
        monkeypatch.setattr(module, "DeltaTable", Counting)
    monkeypatch.setattr(Table, "query", counted)
    monkeypatch.setattr(LocalStore, "read", noted)
    monkeypatch.setattr(listing, "list_source", listed)
    return found


@pytest.mark.parametrize(
    ("command", "tables", "rows", "listings"),
    [
        ("plan p", TABLES, {"ledger": 4, "intake": 2, "parked": 1}, 1),
        ("status p", TABLES, {"ledger": 2, "intake": 2, "parked": 1, "quarantine": 2}, 1),
        ("doctor p", TABLES, {"ledger": 9, "quarantine": 2, "parked": 1}, 0),
        ("report p", ("ledger",), {"ledger": 2}, 0),
        ("report p --list", ("ledger",), {"ledger": 2}, 0),
        ("quarantine list p", ("quarantine", "resolutions"), {"quarantine": 6}, 0),
        ("input list p", ("parked",), {"parked": 1}, 0),
    ],
)
def test_what_only_looks_opens_each_log_once(
    asked: Request,
    costs: Costs,
    command: str,
    tables: tuple[str, ...],
    rows: dict[str, int],
    listings: int,
) -> None:
    main(["--root", asked.root, *command.split()])
    assert costs.opened == dict.fromkeys(tables, 1)
    assert costs.checked == dict.fromkeys((*tables, *UNMADE) if tables == TABLES else tables, 1)
    assert costs.rows == rows
    assert costs.listings == listings


@pytest.mark.parametrize(
    ("command", "again"),
    [
        ("plan p", {OFFSETS: 2, IDENTITY: 2}),
        ("status p", {}),
        ("doctor p", {OFFSETS: 2, "lease/epochs/0000000000.json": 2}),
        ("report p", {}),
        ("report p --list", {}),
        ("quarantine list p", {}),
        ("input list p", {}),
    ],
)
def test_what_only_looks_reads_each_document_once(
    asked: Request, costs: Costs, command: str, again: dict[str, int]
) -> None:
    """All but the end of the newest batch, which `generations.refuse_lost` reads after the tables,
    and the lease, which others take and release meanwhile. The identity of a lake never changes.
    """
    main(["--root", asked.root, *command.split()])
    assert {key: times for key, times in costs.documents.items() if times > 1} == again


@pytest.mark.full
def test_a_plan_reads_no_more_rows_when_the_ledger_grows(asked: Request, costs: Costs) -> None:
    for number in range(100, 142):  # with the two that are there more than the plan looks at
        commit(asked, number)
    costs.clear()
    main(["--root", asked.root, "plan", "p"])
    assert costs.rows["ledger"] == 2 + 40


def test_an_opening_under_the_lease_opens_each_log_once_and_its_own_writes_again(
    asked: Request, costs: Costs
) -> None:
    state = FlowState.of(asked.layout)
    settle(state, by="me")
    assert resume.resume(state) == 1
    assert costs.opened == dict.fromkeys(TABLES, 1)
    batch(asked, recorded=False)
    costs.clear()
    assert resume.resume(asked.layout) == 1
    assert costs.opened == dict.fromkeys(TABLES, 1) | {
        "ledger": 2
    }  # the batch that it lacked is added


def test_an_intake_opens_each_log_once(asked: Request, costs: Costs) -> None:
    take_in(asked, heap_bytes=1024**3, now=AT)
    assert costs.opened == {"intake": 1, "parked": 1}
    assert costs.listings == 1


def test_a_drain_takes_over_what_the_plan_has_listed(asked: Request, costs: Costs) -> None:
    source = source_of(asked)
    part, _ = plan(asked, AT, source)
    (Path(asked.root) / "in/late.json").write_text("{}")
    with closing(source.pin(1, AT)) as pinning:
        assert not pinning.take(bound_for(asked.flow_spec.source, 1024**3))
        assert (part.backlog.units, pinning.taken.units, costs.listings) == (0, 0, 1)
        assert backlog(asked, AT, source).units == 0
    assert costs.listings == 1
    assert take_in(asked, heap_bytes=1024**3, now=AT).units == 1  # another source lists again
    assert costs.listings == 2


def test_a_view_stays_as_it_was_and_a_home_does_not(asked: Request) -> None:
    state = FlowState.of(asked.layout)
    before = state.tables.target.version
    commit(asked, 2)
    assert [one.tables.target.version for one in (state, asked.layout)] == [
        before,
        before + 1,
    ]
    assert (state.newest_batch, FlowState.of(asked.layout).newest_batch) == (1, 2)


@pytest.mark.parametrize("at", range(len(TABLES)))
def test_a_drain_at_work_loses_nothing_in_the_eyes_of_who_looks(
    asked: Request, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Whichever log is opened next when a batch is made: its deletes, its commit, and its cut seem
    to be there.
    """
    state, opened = FlowState.of(asked.layout), list[str]()

    class Racing(deltalake.DeltaTable):
        def __init__(self, path: Any, *given: Any, **more: Any) -> None:
            opened.append(str(path))
            if len(opened) == at + 1:
                batch(asked)
            super().__init__(path, *given, **more)

    monkeypatch.setattr(lake_table, "DeltaTable", Racing)
    state.refuse_damage()
    state.refuse_other_intake()
    state.refuse_behind()
    assert (state.newest_batch, len(opened) > len(TABLES)) == (2 if at <= 1 else 1, True)


def batch(asked: Request, *, recorded: bool = True) -> None:
    """A batch that a drain at work makes meanwhile: with a delete, in the order of its writes."""
    number = 1 + (asked.layout.tables.target.last(asked.layout.app_id(1, "rows")) or 0)
    (Path(asked.root) / f"in/{number}.json").write_text("{}")
    take_in(asked, heap_bytes=1024**3, now=AT)
    checkpoint(asked, 1, offsets=number + 1, commits=number)
    remember(asked, number)
    commit(asked, number, recorded=recorded, tombstoned=1, records=2)
    checkpoint(asked, 1, offsets=number + 1, commits=number + 1)
