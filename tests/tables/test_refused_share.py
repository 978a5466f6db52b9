"""The quarantined share of a lake: read off the ledger, the commits and what people decided; without
Spark.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from draindown.base.clock import now
from draindown.doctor.examination import examine
from draindown.flow import quarantine, quarantined_share
from draindown.gate import published
from draindown.lake import delta
from draindown.lake.table import Table
from draindown.ledger.table import source_after
from draindown.planning import plan
from draindown.runs import report, starts, store
from draindown.runs.report import CheckPart, Expectation
from draindown.runs.request import Request
from tests.flowfiles import AT as WHEN
from tests.flowfiles import REFUSED, commit, request, take_in


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    """A flow that has taken in two files, of 10 and of 100 records, and drained none."""
    found = request(tmp_path)
    (tmp_path / "in").mkdir()
    for number in (0, 1):
        (tmp_path / "in" / f"{number}.json").write_text("x\n" * 10 ** (number + 1))
    take_in(found, heap_bytes=1024**3, now=WHEN)
    return found


def drain(
    asked: Request, batch: int, refused: int, *, run: str = "r", recorded: bool = True, **more: int
) -> None:
    """A batch of the file of its number that refused so many records, and those rows in the
    quarantine.
    """
    records = 10 ** (batch + 1)
    kept = (
        {"inserted": 1, "superseded": records - refused - 1}
        if refused < records
        else {"inserted": 0}
    )
    counts = {"records": records, "quarantined": refused} | kept | more
    commit(
        asked,
        batch,
        recorded=recorded,
        run_id=run,
        reasons={"malformed": refused} if refused else {},
        **counts,
    )
    path = str(Path(asked.root, "in", f"{batch}.json"))
    rows = [_row(f"{batch}-{at}", path, at, batch, run) for at in range(1, refused + 1)]
    if rows:
        delta.append(asked.layout.tables.quarantine, pa.Table.from_pylist(rows, REFUSED))


def _row(id: str, path: str, position: int, batch: int, run: str) -> dict[str, object]:
    place = {
        "quarantine_id": id,
        "origin": {"input": path, "position": position},
        "batch": batch,
        "generation": 1,
    }
    why = {
        "raw": "[1,",
        "reason": "malformed",
        "detail": "not one JSON object",
        "kind": "drain",
        "run_id": run,
    }
    return place | why


def verdict(asked: Request) -> Expectation | None:
    state = published.unpublished(asked.layout)
    assert state is not None
    found = quarantined_share.judged(asked, state)
    assert len(found) <= 1
    return found[0] if found else None


def failed(asked: Request) -> bool:
    found = verdict(asked)
    assert (
        found is not None and found.name == published.QUARANTINED_SHARE and found.scope == "input"
    )
    return not found.success


def publish(asked: Request) -> None:
    state = published.unpublished(asked.layout)
    assert state is not None
    pointer = published.Published(
        version=state.version,
        table_id=state.table_id,
        changed_at=WHEN,
        at=now(),
        run_id="r",
        rows=1,
    )
    published.publish(asked.layout, pointer)


def test_the_first_refused_row_is_shown_with_what_helps(asked: Request) -> None:
    drain(asked, 0, 10)
    found = verdict(asked)
    assert found is not None and not found.success
    assert (found.judged, found.unexpected) == (10, 10)
    assert found.sample == [f"{asked.root}/in/0.json:1"]
    assert "100% of the records" in found.detail and "one object a line is wanted" in found.detail


def test_what_is_published_is_judged_no_more(asked: Request) -> None:
    drain(asked, 0, 10)
    publish(asked)
    drain(asked, 1, 0)
    found = verdict(asked)
    assert found is not None and found.success and (found.judged, found.unexpected) == (100, 0)
    publish(asked)
    assert verdict(asked) is None, "nothing came in since"


def test_good_input_that_comes_later_does_not_clear_it(asked: Request) -> None:
    drain(asked, 0, 10)
    drain(asked, 1, 0, run="later")
    assert failed(asked)


@pytest.mark.parametrize("decide", ["discard", "release"])
def test_it_clears_once_every_row_is_decided_about(asked: Request, decide: str) -> None:
    drain(asked, 0, 10)
    drain(asked, 1, 0, run="later")
    ids = [row["quarantine_id"] for row in quarantine.listed(asked.layout, quarantine.Filter())]
    for some, still_failed in ((ids[:9], True), (ids[9:], False)):
        if decide == "discard":
            quarantine.discard(asked.layout, some, by="ada")
        else:
            quarantine.release(asked.layout, some, by="ada", run_id="x")
        assert failed(asked) is still_failed
    quarantine.reopen(asked.layout, ids, by="ada", note="no")
    assert failed(asked)


def test_rows_of_a_newer_generation_stand_in_for_those_of_the_older(asked: Request) -> None:
    drain(asked, 0, 10)
    commit(asked, 0, generation=2, run_id="reset", records=10, quarantined=0, superseded=9)
    assert not failed(asked), "the corrected contract let them through"
    commit(asked, 1, generation=2, run_id="reset", records=100, quarantined=100, inserted=0,
           reasons={"malformed": 100})  # fmt: skip
    assert failed(asked)


def test_a_row_that_an_older_generation_refused_first_is_decided_about_in_the_newer(
    asked: Request,
) -> None:
    drain(asked, 0, 10)
    quarantine.discard(asked.layout, [f"0-{at}" for at in range(1, 11)], by="ada")
    again = {"records": 10, "quarantined": 10, "inserted": 0, "reasons": {"malformed": 10}}
    commit(asked, 0, generation=2, run_id="reset", **again)
    assert not failed(asked)


def test_a_batch_that_the_ledger_lacks_counts(asked: Request) -> None:
    drain(asked, 0, 0)
    drain(asked, 1, 100, recorded=False)
    assert [row.batch for row in source_after(asked.layout, -1)] == [0, 1]
    assert failed(asked)


def test_an_empty_commit_is_pending_and_has_changed_nothing(asked: Request) -> None:
    drain(asked, 1, 0)
    publish(asked)
    _refuse_all(asked)
    state = published.unpublished(asked.layout)
    assert state is not None and (state.pending, state.changed) == (True, False)
    assert failed(asked)
    assert published.carry(asked.layout) == published.published(asked.layout), (
        "compaction must not publish it"
    )
    assert state.version > (published.carry(asked.layout) or state).version


def _refuse_all(asked: Request) -> None:
    """Batch 0 refused everything: a commit without rows, as a drain leaves it."""
    from deltalake import CommitProperties, Transaction, write_deltalake

    from draindown.ledger.rows import BatchRow

    row = BatchRow(
        "p", "f", 1, 0, "r2", slice=1, records=10, quarantined=10, reasons={"malformed": 10}
    )
    known = CommitProperties(
        custom_metadata={"userMetadata": row.as_metadata()},
        app_transactions=[Transaction(asked.layout.app_id(1, "rows"), 0)],
    )
    nothing = asked.layout.tables.target.query("select * from t where false")
    write_deltalake(
        asked.layout.tables.target.path, nothing, mode="append", commit_properties=known
    )


def test_starts_that_left_no_report_are_listed_from_the_ledger(asked: Request) -> None:
    from draindown.runs import report, store

    lost = "2026-01-01T10-00-00.000000_abcd"
    drain(asked, 0, 0, attempt=lost)  # type: ignore[arg-type]
    later = asked.model_copy(update={"start": "2026-01-01T11-00-00.000000_abcd"})
    store.write(asked.layout, report.of(later, now(), "idle"))
    found = starts.listed(asked.layout, "r")
    assert [(one.start, one.outcome) for one in found] == [
        (lost, "no report"),
        (later.start, "idle"),
    ]
    assert found[0].totals["records"] == 10 and found[0].began is not None
    [newest] = starts.newest(asked.layout, "r")
    assert newest.run is not None and newest.run.totals["records"] == 10
    assert json.loads(json.dumps(found[0].as_dict()))["outcome"] == "no report"


def test_no_start_takes_the_report_of_another(asked: Request) -> None:
    from draindown.runs import report, store

    for outcome in ("done", "idle"):
        store.write(asked.layout, report.of(starts.afresh(asked), now(), outcome))  # type: ignore[arg-type]
    store.write(asked.layout, report.of(asked, now(), "failed"))
    told = store.starts(asked.layout, "r")
    assert [one.outcome for one in told] == ["done", "idle", "failed"]
    assert len({one.start for one in told}) == 3
    first = store.read(asked.layout, "r", "drain", asked.start)
    assert first is not None and first.outcome == "done"


def test_doctor_sends_to_a_run_once_what_was_refused_is_decided_about(asked: Request) -> None:
    drain(asked, 0, 10)
    drain(asked, 1, 0, run="later")
    state = published.unpublished(asked.layout)
    found = verdict(asked)
    assert state is not None and found is not None
    part = CheckPart(version=state.version, expectations=[found])
    checked = asked.model_copy(update={"step": "check"})
    store.write(
        asked.layout, report.of(checked, now(), "failed", error={"code": "gate-failed"}, check=part)
    )
    told = [one for one in examine(asked).symptoms if one.code == "unpublished"]
    assert [one.next for one in told] == ["draindown gate show p/f"]
    ids = [row["quarantine_id"] for row in quarantine.listed(asked.layout, quarantine.Filter())]
    quarantine.discard(asked.layout, ids, by="ada")
    (since,) = [one for one in examine(asked).symptoms if one.code == "unpublished"]
    assert since.next.startswith("draindown run p/f ")


def test_a_check_that_publishes_while_one_looks_publishes_nothing_that_is_not_there(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pointer is read before the table's log: else it could be past the end that was seen of
    the table.
    """
    commit(asked, 0)
    publish(asked)
    exists = Table.exists.func  # type: ignore[attr-defined]
    read = []

    def looked(log: Table) -> bool:
        found: bool = exists(log)
        if log.path == asked.layout.tables.target.path and not read:
            _ = read.append(1), log.version
            commit(asked, 1)
            publish(asked)
        return found

    monkeypatch.setattr(Table, "exists", property(looked))
    state = published.unpublished(asked.layout)
    assert read and state is not None and state.published is not None


def test_a_report_that_can_not_be_read_costs_a_forecast_and_no_plan(asked: Request) -> None:
    for row, text in (("r1", ""), ("r2", '{"format": 2}')):
        home = Path(asked.layout.run_reports(row))
        home.mkdir(parents=True)
        (home / "drain.json").write_text(text)
    assert plan.start_seconds(asked.layout, ["r1", "r2"]) > 0
