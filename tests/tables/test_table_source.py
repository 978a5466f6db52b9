"""A table as a source: what waits by its log alone, slices of versions and buckets, and what can't
be followed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.flow import generations, resume
from draindown.gate import published
from draindown.lake.delta import BOUNDED
from draindown.lake.home import FlowHome
from draindown.ledger.rows import Swap
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.batch_size import Bound
from draindown.sources.port import Look
from draindown.sources.tables import readers, registered
from draindown.sources.tables import source as tables
from draindown.sources.tables.source import Tables, part_way
from draindown.sources.tables.upstream import FEED
from draindown.spark.checks import check
from tests import flowfiles

BOUND = Bound(2**30, None, "bucketed by key")
NOW = datetime(2026, 5, 1, tzinfo=UTC)
LANDING = {
    "source": {"files": "landing/*", "format": "json"},
    "columns": {"id": "bigint not null", "n": "int"},
    "target": {"keys": ["id"], "sequence_by": ["id"]},
}
PER = {"keys": ["id"], "sql": "select id, count(*) c from t group by id"}


class Project:
    """A table `t` that flow `t` writes, and flow `d` that reads it. The table is written without
    Spark.
    """

    def __init__(self, home: Path, per: dict[str, Any] = PER, **others: Any) -> None:
        flows = {"t": LANDING, "d": {"source": {"table": "t"}, "query": per}, **others}
        self.spec = PipelineSpec.model_validate(
            {"pipeline": "p", "lake": str(home / "lake"), "flows": flows}
        )
        self.upstream = self.spec.layout("t")

    @property
    def layout(self) -> FlowHome:
        return self.spec.layout("d")

    @property
    def source(self) -> Tables:
        """A source that has not looked yet."""
        declared = self.spec.declared("d")
        return Tables(declared.source, self.layout, Path("/"), "r")  # type: ignore[arg-type]

    def write(
        self,
        rows: Sequence[int],
        *,
        feed: bool = True,
        mode: Any = "append",
        note: str | None = None,
    ) -> None:
        """Commit rows."""
        rows_ = pa.table({"id": pa.array(rows, pa.int64())})
        made = (
            None
            if DeltaTable.is_deltatable(self.upstream.tables.target.path) or not feed
            else {FEED: "true"}
        )
        properties = CommitProperties(custom_metadata={"userMetadata": note}) if note else None
        write_deltalake(
            self.upstream.tables.target.path,
            rows_,
            mode=mode,
            configuration=made,
            commit_properties=properties,
        )

    def publish(self) -> int:
        """Publish the newest version."""
        log = self.upstream.tables.target
        pointer = published.Published(
            version=log.version,
            table_id=log.id,
            changed_at=None,
            at=NOW,
            run_id="r",
            rows=0,
            committed_ms=None,
        )
        published.publish(self.upstream, pointer)
        return log.version

    def derived(self, batch: int = 0) -> None:
        """Commit a batch of the derived table, the first one."""
        once = CommitProperties(
            app_transactions=[Transaction(self.layout.app_id(1, "rows"), batch)]
        )
        write_deltalake(
            self.layout.tables.target.path,
            pa.table({"id": [1]}),
            mode="append",
            commit_properties=once,
        )

    def look(self, now: datetime = NOW) -> Look:
        first = intake.newest(self.layout, 1) + 1
        return self.source.look(self.layout, 1, first, now)

    def pin(self, now: datetime = NOW) -> list[dict[str, Any]]:
        """Pin what is new; the rows of the slices that this makes."""
        before = intake.newest(self.layout, 1)
        pinning = self.source.pin(1, now)
        assert pinning.take(BOUND) is False
        return [dict(one.units[0].row) for one in intake.slices(self.layout, 1, before + 1)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def _range(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["fill"], row["start"], row["until"], row["bucket"], row["buckets"]


def test_nothing_published_is_waited_for(project: Project) -> None:
    assert (project.look().units, project.look().findings[0].kind) == (0, "waiting")
    project.write([1])
    assert project.look().units == 0 and project.pin() == []


def test_a_table_without_a_feed_is_waited_for(project: Project) -> None:
    project.write([1], feed=False)
    project.publish()
    (finding,) = project.look().findings
    assert finding.next == "draindown run p/t" and project.look().units == 0


def test_a_fill_then_what_was_published(project: Project) -> None:
    project.write([1, 2])
    version = project.publish()
    (fill,) = project.pin()
    assert _range(fill) == (True, -1, version, 0, 1) and fill["rows"] == 2
    assert project.look().units == 0 and project.pin() == [], "pinned once"

    project.write([3])
    assert project.look().units == 0, "not published"
    project.write([4, 5])
    newest = project.publish()
    found = project.look()
    assert (
        found.units == 2 and "2 commits of table t since version 0, 3 rows changed" in found.reasons
    )
    (piece,) = project.pin()
    assert _range(piece) == (False, version, newest, 0, 1) and (
        piece["rows"],
        piece["changes"],
    ) == (3, False)


def test_commits_that_changed_no_row_are_no_input(project: Project) -> None:
    project.write([1, 2])
    project.publish()
    project.pin()
    project.write([])
    DeltaTable(project.upstream.tables.target.path).optimize.compact()
    project.publish()
    assert project.look().units == 0 and project.look().reasons == [] and project.pin() == []
    project.write([3])
    project.publish()
    (piece,) = project.pin()
    assert (piece["start"], piece["until"], piece["rows"]) == (
        0,
        project.upstream.tables.target.version,
        1,
    )


def _expire(table: str) -> None:
    """What Delta does with a checkpoint: the commits before the newest one leave the log."""
    DeltaTable(table).create_checkpoint()
    for commit in sorted(Path(table, "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()


def test_a_table_without_changed_rows_is_followed_past_the_cleanup_of_its_log(
    project: Project,
) -> None:
    project.write([1, 2])
    project.publish()
    project.pin()
    for _ in range(3):
        project.write([])  # as a batch of duplicates
    version, committed = project.publish(), datetime.now(UTC)
    assert project.look(committed + timedelta(days=29)).units == 0
    later = committed + timedelta(days=31)
    found = project.look(later)
    assert (found.units, found.forecast(BOUND).slices, found.oldest) == (1, 1, later.timestamp())
    assert found.reasons[0].startswith(
        "version 0 of table t is more than 30 days old: the flow goes on to version 3"
    )
    (row,) = project.pin(later)
    assert _range(row) == (False, 0, version, 0, 1) and (row["rows"], row["changes"]) == (0, False)
    assert project.look(later).units == 0 and project.pin(later) == [], "once, not with each look"
    project.source.read_up_to(1, 3)
    (reader,) = registered.readers(project.upstream)
    assert (reader.version, reader.snapshot) == (version, False)

    project.write([])
    project.publish()
    _expire(project.upstream.tables.target.path)
    assert project.look().units == 0, "the commits that are gone were read"
    project.write([3])
    project.publish()
    assert project.pin()[0]["rows"] == 1


def test_an_old_version_that_is_still_the_published_one_is_not_read_again(project: Project) -> None:
    project.write([1, 2])
    project.publish()
    project.pin()
    project.write([])
    assert project.look(datetime.now(UTC) + timedelta(days=365)).units == 0


def test_deletes_are_changes(project: Project) -> None:
    project.write([1, 2])
    project.publish()
    project.pin()
    DeltaTable(project.upstream.tables.target.path).delete("id = 1")
    project.publish()
    (piece,) = project.pin()
    assert piece["changes"] and piece["rows"] == 1


def test_many_rows_are_bucketed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS", 2)
    project.write([1, 2, 3, 4, 5])
    project.publish()
    assert project.look().forecast(BOUND).slices == 3
    rows = project.pin()
    assert [(row["bucket"], row["buckets"]) for row in rows] == [(0, 3), (1, 3), (2, 3)]
    assert [part_way(project.layout, 1, number) for number in (1, 2, 3, 4)] == [
        (1, 3),
        (2, 3),
        None,
        None,
    ]


def test_what_a_check_publishes_is_judged_by_the_version_that_it_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain that does the other buckets beside a check does not make the version whole that the
    check has.
    """
    monkeypatch.setattr(tables, "ROWS", 2)
    project.write([1, 2, 3, 4, 5])
    project.publish()
    assert len(project.pin()) == 3
    request = Request(spec=project.spec, flow="d", step="check", run_id="r", root="/")
    project.derived(0)
    first = published.unpublished(project.layout)
    project.derived(1)
    project.derived(2)
    whole = published.unpublished(project.layout)
    assert first is not None and whole is not None
    found = check._part_way(request, first)
    assert (
        found is not None
        and found.detail.startswith("1 of 3 buckets")
        and check._part_way(request, whole) is None
    )
    generations.name_live(project.layout, 2)  # a reset, whose first bucket is yet to be done
    found = check._part_way(request, first)
    assert found is not None and found.detail.startswith("no batch of this generation")


def test_a_range_whose_pinning_died_is_completed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS", 2)
    project.write([1, 2, 3, 4, 5])
    version = project.publish()
    pinning = project.source.pin(1, NOW)
    pinning._left = pinning._left[:1]  # as a kill after the first commit
    pinning.take(BOUND)
    project.write([6])
    newest = project.publish()
    assert project.look().units == 3, "two buckets, and the new commit"
    assert [_range(row) for row in project.pin()] == [
        (True, -1, version, 1, 3),
        (True, -1, version, 2, 3),
        (False, version, newest, 0, 1),
    ]


@pytest.mark.parametrize("rows", [[1, 2, 3], []], ids=["of rows", "to none"])
def test_a_rebuild_upstream_is_a_refill(project: Project, rows: list[int]) -> None:
    project.write([1, 2])
    project.publish()
    project.pin()
    project.write(rows, mode="overwrite", note=Swap("p", "t", 2, 1, len(rows), "r").as_metadata())
    version = project.publish()
    assert project.look().units == 1
    (piece,) = project.pin()
    assert _range(piece) == (True, -1, version, 0, 1)


@pytest.mark.parametrize(
    "what",
    ["overwritten", "emptied", "restored", "recreated", "shortened", "put back", "gone", "expired"],
)
def test_what_cant_be_followed_is_red(project: Project, what: str, tmp_path: Path) -> None:
    project.write([1, 2])
    path = Path(project.upstream.tables.target.path)
    shutil.copytree(path, tmp_path / "copy")
    project.write([3])
    project.publish()
    project.pin()
    match what:
        case "overwritten":
            project.write([9], mode="overwrite")
        case "emptied":
            project.write([], mode="overwrite")
        case "restored":
            project.write([4])
            DeltaTable(str(path)).restore(0)
        case "recreated" | "shortened" | "put back" | "gone":
            path.rename(tmp_path / "aside")
            if what in ("shortened", "put back"):
                (tmp_path / "copy").rename(path)
            if what == "put back":
                project.write([4])  # another version 1 than the one that was read
            if what == "recreated":
                project.write([1])
                project.write([2])
        case "expired":
            project.write([4])
            project.write([5])
            DeltaTable(str(path)).create_checkpoint()
            (path / "_delta_log" / f"{2:020d}.json").unlink()
    if what in ("overwritten", "emptied", "restored", "recreated", "expired"):
        project.publish()
    with pytest.raises(TerminalError) as error:
        project.look()
    assert (error.value.code, error.value.next[0].partition("   #")[0]) == (
        "source-replaced",
        "draindown reset p/d",
    )


def test_a_version_that_is_published_while_a_plan_looks_is_left_to_the_next_one(
    project: Project,
) -> None:
    project.write([1, 2])
    project.publish()
    project.pin()
    (unit,) = next(intake.slices(project.layout, 1, 1)).units
    (table,) = project.source.tables
    assert table.same(unit) == unit  # the log is open
    project.write([3])
    newest = project.publish()
    changes = table.changes(unit)
    assert (changes.rows, changes.lost) == (0, "") and table.since(
        unit, changes, NOW
    ).until == unit.until
    assert table.readable(unit) == unit.until
    assert project.look().units == 1 and project.pin()[0]["until"] == newest


def test_a_slice_that_another_driver_pins_while_a_log_is_open_is_of_the_same_table(
    project: Project,
) -> None:
    project.write([1, 2])
    project.publish()
    project.pin()
    (table,) = project.source.tables
    assert table.is_ready  # the log is open
    project.write([3])
    newest = project.publish()
    project.pin()
    (unit,) = next(intake.slices(project.layout, 1, 2)).units
    assert unit.until == newest and table.same(unit) == unit and not table.changes(unit).rows


def test_the_writing_flow_owes_feed_and_statistics_to_readers(project: Project) -> None:
    request = Request(spec=project.spec, flow="t", step="plan", run_id="r", root="/")
    assert (
        list(map(str, readers.readers(request))) == ["p/d"]
        and readers.lacking(request, project.upstream) == ""
    ), "no table yet"
    project.write([1], feed=False)
    log = project.upstream.tables.target
    assert set(readers.owed(request, log)) == {FEED, readers.RETENTION}
    assert "for p/d" in readers.lacking(request, project.upstream)
    DeltaTable(project.upstream.tables.target.path).alter.set_table_properties(
        {FEED: "true", BOUNDED: "n", readers.RETENTION: "interval 90 days"}
    )
    assert readers.owed(request, project.upstream.tables.target) == {BOUNDED: "n,id"}
    DeltaTable(project.upstream.tables.target.path).alter.set_table_properties({BOUNDED: "n,id"})
    assert readers.lacking(request, project.upstream) == ""
    assert readers.readers(request.model_copy(update={"flow": "d"})) == []


def test_another_derivation_is_red(project: Project, tmp_path: Path) -> None:
    project.write([1])
    project.publish()
    project.pin()
    project.derived()
    other = Project(tmp_path, PER | {"sql": "select id, count(*) + 1 c from t group by id"})
    with pytest.raises(TerminalError) as error:
        other.source.refuse_lost(other.layout, 1, 1)
    assert error.value.code == "derivation-changed"
    (pinned,) = intake.slices(project.layout, 1)
    with pytest.raises(
        TerminalError
    ) as error:  # a replay reads slices that were pinned for the query as it was
        other.source.refuse_changed(pinned.units)
    assert (
        error.value.code == "derivation-changed"
        and project.source.refuse_changed(pinned.units) is None
    )
    assert other.source.look(replace(other.layout), 2, 1, NOW).units == 1, "a new generation fills"


def _first_of(table: str) -> dict[str, Any]:
    """Flows `d` over table t or u, whose derivation does not name it, and `u`."""
    part = {"keys": ["id"], "sequence_by": ["n"]}
    return {"u": LANDING, "d": {"source": {"table": table}, "deduplicate": part}}


def test_another_table_under_the_same_derivation_is_told_from_one_that_was_made_anew(
    tmp_path: Path,
) -> None:
    right, wrong = Project(tmp_path, **_first_of("t")), Project(tmp_path, **_first_of("u"))
    digests = {it.spec.declared("d").source.derivation for it in (right, wrong)}  # type: ignore[union-attr]
    assert len(digests) == 1, "lakes have it"
    right.write([1, 2])
    right.publish()
    write_deltalake(
        wrong.spec.layout("u").tables.target.path,
        pa.table({"id": [7]}),
        configuration={FEED: "true"},
    )
    log = wrong.spec.layout("u").tables.target
    pointer = published.Published(
        version=0, table_id=log.id, changed_at=None, at=NOW, run_id="r", rows=0, committed_ms=None
    )
    published.publish(wrong.spec.layout("u"), pointer)
    (row,) = wrong.pin()
    assert row["input"] == "tables/u"
    assert right.source.is_void(right.layout, 1) and right.look().units == 1, (
        "no batch of it is in the table"
    )
    resume.forget_void(right.layout, 1, right.source)
    (row,) = right.pin()
    assert (row["input"], row["rows"]) == ("tables/t", 2)
    right.derived()
    (pinned,) = intake.slices(right.layout, 1)
    for refused in (wrong.look, lambda: wrong.source.refuse_changed(pinned.units)):
        with pytest.raises(TerminalError) as error:
            refused()
        assert error.value.code == "derivation-changed" and len(error.value.next) == 3
        assert error.value.found == "it was computed from t, and now its source is u"


def test_lost_decisions_are_named_with_both_ways_out(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write([1])
    project.publish()
    project.pin()
    pinned = next(intake.slices(project.layout, 1)).units[0].row
    shutil.rmtree(project.layout.tables.intake(1).path)
    intake.create(project.layout, 1, tables.OWN)
    own = {
        name: pinned[name]
        for name in ("input", "start", "until", "bytes", "unpacked", "records", "arrived_at")
    }
    own |= {name: pinned[name] for name in tables.OWN.names}
    intake.append(project.layout, 1, tables.OWN, [own | {"decided": 3}], NOW, 1)
    with pytest.raises(TerminalError) as error:
        project.look()
    assert (
        error.value.code == "source-replaced"
        and project.layout.tables.late_decisions.path in error.value.next[0]
    )
    assert error.value.next[1].startswith("draindown reset p/d")


FORMS = [
    "tables/t",
    "{lake}/tables/t",
    "/another/mount/lake/tables/t",
    "s3a://bucket/lake/tables/t",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("moved", [False, True], ids=["where it was", "copied"])
def test_a_lake_goes_on_wherever_it_lies_and_however_its_slices_name_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, moved: bool
) -> None:
    project = Project(tmp_path / "first")
    unit = form.format(lake=project.spec.lake)
    project.write([1, 2])
    project.publish()
    with monkeypatch.context() as earlier:
        earlier.setattr(tables, "table_unit", lambda _: unit)
        (fill,) = project.pin()
    assert fill["input"] == unit
    if moved:
        shutil.copytree(tmp_path / "first", tmp_path / "copy")
        shutil.rmtree(tmp_path / "first")
        project = Project(tmp_path / "copy")
    pinned = next(intake.slices(project.layout, 1, 1))
    project.source.refuse_changed(pinned.units)
    assert project.look().units == 0, "nothing is new"
    project.write([3])
    version = project.publish()
    (row,) = project.pin()
    assert (row["input"], *_range(row)) == ("tables/t", False, fill["until"], version, 0, 1)
    project.source.read_up_to(1, 3)
    (reader,) = registered.readers(project.upstream)
    assert reader.version == version
    assert (tmp_path / "first").exists() is not moved, "the original is not made again"


def test_a_copy_whose_table_was_made_anew_is_told_by_its_id(tmp_path: Path) -> None:
    project = Project(tmp_path / "first")
    project.write([1, 2])
    project.publish()
    project.pin()
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    copy = Project(tmp_path / "copy")
    shutil.rmtree(copy.upstream.tables.target.path)
    copy.write([1, 2])
    with pytest.raises(TerminalError) as error:
        copy.look()
    assert error.value.code == "source-replaced" and str(tmp_path / "copy") in error.value.found
    assert project.look().units == 0


def test_slices_of_another_query_are_void_until_a_batch_of_them_is_in_the_table(
    project: Project,
) -> None:
    project.write([1, 2])
    project.publish()
    project.pin()
    other = Project(
        Path(project.spec.lake).parent, PER | {"sql": "select id, max(id) c from t group by id"}
    )
    assert not project.source.is_void(project.layout, 1) and other.source.is_void(other.layout, 1)
    assert other.look().units == 1 and other.look().pinned.slices == 0, "a fill to be pinned"
    for path in (other.layout.checkpoint(1), other.layout.tables.intake(1).path):
        Path(path).mkdir(parents=True, exist_ok=True)
    resume.forget_void(other.layout, 1, other.source)
    assert (
        not Path(other.layout.tables.intake(1).path).exists()
        and not Path(other.layout.checkpoint(1)).exists()
    )
    (row,) = other.pin()
    assert row["fill"] and project.source.is_void(project.layout, 1)

    other.derived()
    assert not project.source.is_void(project.layout, 1)
    resume.forget_void(project.layout, 1, project.source)
    assert Path(project.layout.tables.intake(1).path).exists()
    with pytest.raises(TerminalError) as error:
        project.look()
    assert error.value.code == "derivation-changed"


class _Killed(BaseException):
    """What ends the process."""


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_a_drain_that_is_killed_while_it_forgets_void_slices_is_followed_by_one_that_goes_on(
    project: Project, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """`steps`: how many directories are moved, and then files removed, before the process ends."""
    project.write([1, 2])
    project.publish()
    project.pin()
    other = Project(
        Path(project.spec.lake).parent, PER | {"sql": "select id, max(id) c from t group by id"}
    )
    asked = Request(spec=other.spec, flow="d", step="drain", run_id="r", root="/")
    flowfiles.checkpoint(asked, 1, offsets=1, commits=0)
    assert resume.resume(other.layout) == 1
    left, rmtree, rename = iter(range(steps)), shutil.rmtree, Path.rename

    def step() -> None:
        if next(left, None) is None:
            raise _Killed

    def killed(path: str | Path) -> None:
        for file in sorted(one for one in Path(path).rglob("*") if one.is_file()):
            file.unlink()  # of a checkpoint `metadata` goes before the offsets
            step()
        rmtree(path)

    def moved(path: Path, target: Path) -> Path:
        step()
        return rename(path, target)

    with monkeypatch.context() as fault, pytest.raises(_Killed):
        fault.setattr(shutil, "rmtree", killed)
        fault.setattr(Path, "rename", moved)
        resume.forget_void(other.layout, 1, other.source)
    assert resume.resume(other.layout) == 1
    assert other.look().units == 1
    resume.forget_void(other.layout, 1, other.source)
    assert (
        not Path(other.layout.tables.intake(1).path).exists()
        and not Path(other.layout.checkpoint(1)).exists()
    )
    assert not Path(other.layout.forgotten(1)).exists()
    (row,) = other.pin()
    assert row["fill"] and project.source.is_void(project.layout, 1)
