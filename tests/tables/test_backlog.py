"""What waits, and which steps a run needs, each with its reason."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st

from draindown.base.errors import TerminalError
from draindown.gate import published
from draindown.lake.table import Table
from draindown.ledger.rows import BatchRow
from draindown.ledger.table import record
from draindown.planning import compaction
from draindown.planning.plan import backlog, plan
from draindown.runs import report, store
from draindown.runs.report import DrainPart, StepReport
from draindown.runs.request import Request
from draindown.sources.files import catalog, parked
from draindown.sources.files.inspection import Verified
from tests.flowfiles import take_in
from tests.flowfiles import waiting as request

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def put(root: Path, *names: str, data: bytes = b'{"a":1}\n', age: float = 600) -> None:
    for name in names:
        path = root / "in" / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        os.utime(path, (NOW.timestamp() - age, NOW.timestamp() - age))


def take(asked: Request, minutes: int = 0) -> None:
    take_in(asked, heap_bytes=1024**3, now=NOW - timedelta(minutes=minutes))


def drained(asked: Request, *, offsets: int, commits: int) -> None:
    """A checkpoint as Spark leaves it, and an intake that has what it read."""
    while catalog.last_slice(asked.layout) < offsets:
        cut = 1 + catalog.last_slice(asked.layout)
        catalog.append_slice(asked.layout, [Verified(f"/read/{cut}", 8, 1)], NOW, cut)
    home = Path(asked.layout.checkpoint(1))
    for kind in ("offsets", "commits"):
        (home / kind).mkdir(parents=True, exist_ok=True)
    (home / "metadata").write_text('{"id":"x"}')
    for batch in range(offsets):
        end = {"reservoirVersion": batch + 2, "index": -1}
        (home / f"offsets/{batch}").write_text(f"v1\n{{}}\n{json.dumps(end)}")
    for batch in range(commits):
        (home / f"commits/{batch}").write_text("v1\n{}")
    done = Transaction(asked.layout.app_id(1, "rows"), commits - 1)
    # before anything is published or recorded: an empty commit that says which batches the target
    # holds
    nothing, held = (
        pa.table({"a": pa.array([], pa.int64())}),
        CommitProperties(app_transactions=[done]),
    )
    write_deltalake(asked.layout.tables.target.path, nothing, mode="append", commit_properties=held)


def batch(number: int, **more: Any) -> BatchRow:
    values = {
        "bytes": 1000,
        "seconds": 2.0,
        "records": 1,
        "tombstoned": 1,
        "table_version": number + 1,
    }
    return BatchRow(
        "p", "f", 1, number, "run-0", started_at=NOW, finished_at=NOW, **(values | more)
    )


def commit(asked: Request, row: BatchRow, rows: int = 1) -> None:
    """A batch in the target, as the engine commits it; what it inserted stands in metrics that only
    Spark writes.
    """
    properties = CommitProperties(custom_metadata={"userMetadata": row.as_metadata()})
    data = pa.table({"a": [row.batch] * rows})
    write_deltalake(
        asked.layout.tables.target.path, data, mode="append", commit_properties=properties
    )


def publish(asked: Request) -> None:
    path = asked.layout.tables.target.path
    facts = {
        "version": Table(path).version,
        "table_id": Table(path).id,
        "rows": 1,
        "changed_at": NOW,
    }
    published.publish(asked.layout, published.Published(**facts, at=NOW, run_id="run-0"))


def test_an_idle_flow_needs_nothing_and_says_so(tmp_path: Path) -> None:
    part, findings = plan(request(tmp_path), NOW)
    assert (part.drain, part.check, part.compact, part.batches, part.seconds) == (
        False,
        False,
        False,
        0,
        None,
    )
    assert part.backlog == report.Backlog()
    assert set(part.reasons) == {"drain", "check", "compact"}
    assert all(part.reasons.values())
    assert findings == []


def test_planning_writes_nothing(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json")
    before = sorted(tmp_path.rglob("*"))
    plan(asked, NOW)
    assert sorted(tmp_path.rglob("*")) == before


def test_new_files_wait_and_want_a_drain(tmp_path: Path) -> None:
    asked = request(tmp_path, max_files_per_trigger=2)
    put(tmp_path, "a.json", "b.json", "c.json")
    put(tmp_path, "old.json", age=3600)
    part, _ = plan(asked, NOW)
    assert (part.backlog.units, part.backlog.bytes, part.backlog.oldest_seconds) == (4, 32, 3600)
    assert (part.batches, part.drain, part.check, part.compact) == (2, True, True, True)
    assert "4 new files" in part.reasons["drain"]


def test_cuts_wait_until_their_batch_is_done(tmp_path: Path) -> None:
    asked = request(tmp_path, max_files_per_trigger=1)
    put(tmp_path, "a.json", "b.json", "c.json")
    take(asked, minutes=30)
    assert backlog(asked, NOW).units == 3
    assert backlog(asked, NOW).oldest_seconds == 1800
    put(tmp_path, "late.json", age=3600)
    take(asked, minutes=1)
    assert backlog(asked, NOW).oldest_seconds == 3600  # it waited before it was first seen
    drained(asked, offsets=2, commits=1)
    part, _ = plan(asked, NOW)
    assert (part.backlog.units, part.batches) == (3, 3)
    assert "batch 1 is in flight" in part.reasons["drain"]
    drained(asked, offsets=4, commits=4)
    part, _ = plan(asked, NOW)
    assert (part.backlog.units, part.drain) == (0, False)


def test_a_parked_file_is_in_every_plan_until_someone_decides(tmp_path: Path) -> None:
    asked = request(tmp_path)
    (tmp_path / "in" / "a.json.gz").write_bytes(b"no gzip")
    take(asked)
    part, _ = plan(asked, NOW)
    assert (part.backlog.units, part.parked, part.drain) == (0, 1, False)
    parked.discard(asked.layout, [str(tmp_path / "in" / "a.json.gz")], by="me", note="", now=NOW)
    assert plan(asked, NOW)[0].parked == 0


def test_gzip_is_forecast_by_what_it_unpacked_to_before(tmp_path: Path) -> None:
    asked = request(tmp_path, max_bytes_per_trigger=1_000_000)
    put(tmp_path, "a.json.gz", data=b'{"a":1}\n' * 100_000)
    take(asked)
    drained(asked, offsets=1, commits=1)
    put(tmp_path, *(f"{i}.json.gz" for i in range(4)), data=b'{"a":1}\n' * 100_000)
    assert plan(asked, NOW)[0].batches == 4


BOUNDS = st.one_of(
    st.builds(dict, max_files_per_trigger=st.integers(1, 6)),
    st.builds(dict, max_bytes_per_trigger=st.integers(1, 4000)),
    st.just({}),
)
FILES = st.lists(st.tuples(st.integers(0, 300), st.integers(600, 900)), max_size=12)


@settings(max_examples=12)
@given(bounds=BOUNDS, files=FILES, later=FILES)
def test_a_plan_says_as_many_batches_as_a_drain_makes(
    bounds: dict[str, int], files: list[tuple[int, int]], later: list[tuple[int, int]]
) -> None:
    """Before files are pinned and after, beside those that were drained, whatever bounds a
    batch.
    """
    with tempfile.TemporaryDirectory() as root:
        asked = request(Path(root), **bounds)
        made = 0
        for number, some in enumerate((files, later)):
            for at, (rows, age) in enumerate(some):
                put(Path(root), f"{number}-{at}.json", data=b'{"a":1}\n' * rows, age=age)
            before = plan(asked, NOW)[0]
            take(asked)
            after = plan(asked, NOW)[0]
            batches = catalog.last_slice(asked.layout) - made
            made += batches
            assert (
                (before.batches, before.drain)
                == (after.batches, after.drain)
                == (batches, batches > 0)
            )
            if made:
                drained(asked, offsets=made, commits=made)
            assert (plan(asked, NOW)[0].batches, plan(asked, NOW)[0].drain) == (0, False)


def test_seconds_follow_bytes_and_the_shortest_start_of_the_newest_drains(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json", data=b"x" * 3000)
    assert plan(asked, NOW)[0].seconds is None
    rows = [batch(0), batch(1)]
    record(asked.layout, rows)
    drained(asked, offsets=2, commits=2)
    assert plan(asked, NOW)[0].seconds == 18.0  # a start as it is without a report
    part = DrainPart(
        generation=1,
        before=report.Backlog(),
        after=report.Backlog(),
        batches=[r.as_dict() for r in rows],
    )
    times = {"started_at": NOW, "finished_at": NOW + timedelta(seconds=10)}
    done = StepReport(
        pipeline="p", flow="f", run_id="run-0", step="drain", outcome="done", drain=part, **times
    )
    store.write(asked.layout, done)
    assert plan(asked, NOW)[0].seconds == 6 + 6
    # one that failed says nothing of a start, and one that had more to do than others little
    failed = {"outcome": "failed", "finished_at": NOW + timedelta(seconds=5)}
    store.write(asked.layout, done.model_copy(update={"run_id": "run-1", **failed}))
    assert plan(asked, NOW)[0].seconds == 6 + 6
    store.write(
        asked.layout,
        done.model_copy(update={"run_id": "run-1", "finished_at": NOW + timedelta(hours=1)}),
    )
    assert plan(asked, NOW)[0].seconds == 6 + 6


def test_rows_above_the_published_version_want_a_check(tmp_path: Path) -> None:
    asked = request(tmp_path)
    commit(asked, batch(0))
    record(asked.layout, [batch(0)])
    drained(asked, offsets=1, commits=1)
    part, _ = plan(asked, NOW)
    assert (part.drain, part.check) == (False, True)
    assert "nothing yet" in part.reasons["check"]
    publish(asked)
    assert plan(asked, NOW)[0].check is False
    DeltaTable(asked.layout.tables.target.path).optimize.compact()
    DeltaTable(asked.layout.tables.target.path).vacuum(retention_hours=1000, dry_run=False)
    assert plan(asked, NOW)[0].check is False
    # someone's own hand
    write_deltalake(asked.layout.tables.target.path, pa.table({"a": [5]}), mode="append")
    assert plan(asked, NOW)[0].check is True


def test_a_ledger_that_lags_behind_wants_a_drain(tmp_path: Path) -> None:
    asked = request(tmp_path)
    commit(asked, batch(0))
    commit(asked, batch(1))
    record(asked.layout, [batch(0)])
    drained(asked, offsets=2, commits=2)
    part, _ = plan(asked, NOW)
    assert part.drain
    assert "lacks 1 batch" in part.reasons["drain"]


def test_many_small_files_want_compaction(tmp_path: Path) -> None:
    asked = request(tmp_path)
    for number in range(9):
        commit(asked, batch(number))
    record(asked.layout, [batch(number) for number in range(9)])
    drained(asked, offsets=9, commits=9)
    publish(asked)
    part, _ = plan(asked, NOW)
    assert (part.drain, part.check, part.compact) == (False, False, True)
    assert "9 small files" in part.reasons["compact"]
    assert (
        plan(request(tmp_path).model_copy(update={"force": True}), NOW)[0].reasons["compact"]
        == "asked for"
    )


def test_plan_and_maintenance_mean_the_same_work(tmp_path: Path) -> None:
    asked = request(tmp_path)
    drained(asked, offsets=1, commits=1)
    limit = asked.flow_spec.maintenance.target_file_size
    at = DeltaTable(asked.layout.tables.target.path)
    # above half of what is aimed at: a rewrite would save next to nothing
    actions = [
        AddAction(f"{n}.parquet", int(limit * 0.6), {}, 0, True, '{"numRecords":1}')
        for n in range(9)
    ]
    for action in actions:
        Path(asked.layout.tables.target.path, action.path).touch()
    at.create_write_transaction(actions, mode="append", schema=at.schema(), partition_by=[])
    assert not compaction.work(asked.layout, asked.flow_spec.maintenance)
    assert plan(asked, NOW)[0].compact is False


def test_deleted_rows_and_old_files_want_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(tmp_path)
    drained(asked, offsets=1, commits=1)
    purge = compaction.Partition((), files=2, small=0, bytes=1, rows=10, deleted=5)
    found = compaction.Work(
        (compaction.TableWork("table", asked.layout.tables.target.path, (), (purge,)),),
        (("ledger", "x"),),
    )
    monkeypatch.setattr(compaction, "work", lambda *_: found)
    part, _ = plan(asked, NOW)
    assert part.compact
    assert "50% deleted rows" in part.reasons["compact"]
    assert "old files to remove in ledger" in part.reasons["compact"]


def test_a_lost_checkpoint_stops_the_plan(tmp_path: Path) -> None:
    asked = request(tmp_path)
    commit(asked, batch(0))
    record(asked.layout, [batch(0)])
    with pytest.raises(TerminalError) as caught:
        plan(asked, NOW)
    assert caught.value.code == "checkpoint-missing"


def test_a_file_that_differs_is_shown_and_wants_a_drain(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json")
    take(asked)
    drained(asked, offsets=1, commits=1)
    put(tmp_path, "a.json", data=b'{"a":2}\n', age=1)
    part, findings = plan(asked, NOW)
    assert (part.drain, [f.kind for f in findings]) == (True, ["changed"])
    take(asked)
    part, findings = plan(asked, NOW)
    assert (part.drain, findings) == (False, [])


def test_an_idle_plan_imports_no_heavy_library(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json", "bad.json.gz")
    (tmp_path / "in/bad.json.gz").write_bytes(b"x")
    take(asked)
    drained(asked, offsets=1, commits=1)
    commit(asked, batch(0))
    record(asked.layout, [batch(0)])
    code = (
        "import sys; from datetime import UTC, datetime; from draindown.planning.plan import plan; "
        "from draindown.runs.request import Request; "
        "print(plan(Request.decode(sys.argv[1]), datetime.now(UTC))[0].drain, "
        "[m for m in ('pandas', 'duckdb', 'pyspark', 'airflow') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, asked.encode()], capture_output=True, text=True, check=True
    )
    assert found.stdout == "False []\n"
