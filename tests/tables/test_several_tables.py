"""Several tables as one source, also of other pipelines: slices, what is idle, what is red, what
each home keeps.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.base.errors import TerminalError, TransientError
from draindown.cli.program import main
from draindown.config import loader
from draindown.config.models import PipelineSpec
from draindown.config.neighbours import Writer
from draindown.doctor.examination import examine
from draindown.gate import published
from draindown.lake.home import FlowHome
from draindown.ledger.rows import Swap
from draindown.planning import compaction
from draindown.planning.plan import plan
from draindown.recovery import rebuild, replay
from draindown.runs.request import Again, Request
from draindown.sources import intake
from draindown.sources.batch_size import Bound
from draindown.sources.port import Look
from draindown.sources.tables import readers, registered
from draindown.sources.tables import source as tables
from draindown.sources.tables.registered import Reader
from draindown.sources.tables.source import Tables, part_way
from draindown.sources.tables.upstream import FEED
from tests.ageing import age

BOUND = Bound(2**30, None, "bucketed by key")
NOW = datetime(2026, 5, 1, tzinfo=UTC)
SQL = (
    "select o.customer_id, count(*) as n from orders o join customers c on "
    "o.customer_id = c.id group by o.customer_id"
)


def landing(key: str) -> dict[str, Any]:
    columns, target = {key: "bigint not null", "n": "int"}, {"keys": [key], "sequence_by": [key]}
    return {"source": {"files": "x/*", "format": "json"}, "columns": columns, "target": target}


class Shop:
    """Flow `d` of pipeline `shop` over `orders` of the same pipeline and `customers` of pipeline
    `crm`.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.pipelines = root, root / "dags" / "pipelines"
        self.pipelines.mkdir(parents=True)
        self.declare("crm", customers=landing("id"))
        self.declare("shop", orders=landing("customer_id"), d=self.derived())

    @staticmethod
    def derived(**more: Any) -> dict[str, Any]:
        own = {"table": "customers", "keys": {"customer_id": "id"}}
        return {
            "source": {"tables": ["orders", own]},
            "query": {"keys": ["customer_id"], "sql": SQL},
            **more,
        }

    def declare(self, pipeline: str, **flows: Any) -> None:
        said = {"pipeline": pipeline, "lake": str(self.root / "lake"), "flows": flows}
        (self.pipelines / f"{pipeline}.yaml").write_text(yaml.safe_dump(said, sort_keys=False))

    def spec(self, pipeline: str = "shop") -> PipelineSpec:
        return loader.load_alone(self.pipelines / f"{pipeline}.yaml", self.root, {})

    def request(self, pipeline: str, flow: str) -> Request:
        made = Request(
            spec=self.spec(pipeline), flow=flow, step="plan", run_id="r", root=str(self.root)
        )
        return Request.decode(made.encode())

    @property
    def layout(self) -> FlowHome:
        return self.spec().layout("d")

    def home(self, table: str) -> FlowHome:
        return self.spec("crm" if table == "customers" else "shop").layout(table)

    @property
    def source(self) -> Tables:
        return Tables(self.request("shop", "d").declared.source, self.layout, Path("/"), "r")  # type: ignore[arg-type]

    def write(
        self, table: str, rows: Sequence[int], *, mode: Any = "append", note: str | None = None
    ) -> None:
        path, key = (
            self.home(table).tables.target.path,
            "id" if table == "customers" else "customer_id",
        )
        made = None if DeltaTable.is_deltatable(path) else {FEED: "true"}
        properties = CommitProperties(custom_metadata={"userMetadata": note}) if note else None
        write_deltalake(
            path,
            pa.table({key: pa.array(rows, pa.int64())}),
            mode=mode,
            configuration=made,
            commit_properties=properties,
        )

    def publish(self, *names: str) -> None:
        for name in names or ("orders", "customers"):
            log = self.home(name).tables.target
            pointer = published.Published(
                version=log.version,
                table_id=log.id,
                changed_at=None,
                at=NOW,
                run_id="r",
                rows=0,
                committed_ms=None,
            )
            published.publish(self.home(name), pointer)

    def filled(self) -> None:
        self.write("orders", [1, 2, 3])
        self.write("customers", [1, 2])
        self.publish()
        assert len(self.pin()) == 1

    def look(self, now: datetime = NOW) -> Look:
        return self.source.look(self.layout, 1, intake.newest(self.layout, 1) + 1, now)

    def pin(self, now: datetime = NOW) -> list[dict[str, tuple[Any, ...]]]:
        """Pin what is new. Of each slice the ranges by table: fill, start, until, rows, bucket,
        buckets.
        """
        before = intake.newest(self.layout, 1)
        self.source.pin(1, now).take(BOUND)
        own = ("fill", "start", "until", "rows", "bucket", "buckets")
        return [
            {Path(unit.name).name: tuple(unit.row[name] for name in own) for unit in one.units}
            for one in intake.slices(self.layout, 1, before + 1)
        ]

    def reader(self, table: str) -> Reader:
        (found,) = registered.readers(self.home(table))
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_all_tables_are_waited_for_each_by_name(shop: Shop) -> None:
    assert [one.subject for one in shop.look().findings] == ["table orders", "table crm/customers"]
    shop.write("orders", [1])
    shop.publish("orders")
    (finding,) = shop.look().findings
    assert (finding.subject, finding.next) == (
        "table crm/customers",
        "draindown run crm/customers",
    )
    assert "of pipeline crm" in finding.detail and shop.pin() == []


def test_a_slice_holds_the_versions_of_each_table(shop: Shop) -> None:
    shop.write("orders", [1, 2, 3])
    shop.write("customers", [1, 2])
    shop.publish()
    found = shop.look()
    assert found.units == 2 and found.forecast(BOUND).slices == 1
    assert shop.pin() == [{"orders": (True, -1, 0, 3, 0, 1), "customers": (True, -1, 0, 2, 0, 1)}]
    assert shop.look().units == 0 and shop.pin() == []
    shop.write("customers", [3])
    shop.publish()
    found = shop.look()
    assert found.reasons == ["1 commit of table crm/customers since version 0, 1 row changed"]
    assert shop.pin() == [{"orders": (False, 0, 0, 0, 0, 1), "customers": (False, 0, 1, 1, 0, 1)}]
    shop.write("orders", [4])
    shop.write("orders", [5])
    shop.write("customers", [4])
    shop.publish()
    assert len(shop.look().reasons) == 2 and shop.look().units == 3
    assert shop.pin() == [{"orders": (False, 0, 2, 2, 0, 1), "customers": (False, 1, 2, 1, 0, 1)}]


def test_it_is_idle_while_no_table_has_a_changed_row(shop: Shop) -> None:
    shop.filled()
    shop.write("orders", [])
    DeltaTable(shop.home("customers").tables.target.path).optimize.compact()
    shop.publish()
    assert shop.look().units == 0 and shop.look().reasons == [] and shop.pin() == []
    shop.write("customers", [7])
    shop.publish()
    (piece,) = shop.pin()
    assert piece["orders"][1:4] == (0, 1, 0), "read at the newest version, although nothing changed"


def test_a_table_whose_old_version_is_outrun_takes_the_others_along(shop: Shop) -> None:
    shop.filled()
    shop.write("customers", [])
    shop.publish()
    later = datetime.now(UTC) + timedelta(days=31)
    (reason,) = shop.look(later).reasons
    assert (
        reason.startswith("version 0 of table crm/customers is more than 30 days old")
        and shop.look().units == 0
    )
    assert shop.pin(later) == [
        {"orders": (False, 0, 0, 0, 0, 1), "customers": (False, 0, 1, 0, 0, 1)}
    ]
    assert shop.look(later).units == 0 and shop.pin(later) == []


def _without_metrics(table: str) -> None:
    """Rewrite the newest commit as of an engine that writes no metrics."""
    commit = sorted(Path(table, "_delta_log").glob("*.json"))[-1]
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get("commitInfo", {}).pop("operationMetrics", None)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize("counts", [True, False], ids=["with", "without"])
@pytest.mark.parametrize("inserts", [True, False], ids=["inserts", "deletes"])
def test_a_merge_of_another_engine_is_a_change_with_metrics_of_its_own_or_without(
    shop: Shop, *, counts: bool, inserts: bool
) -> None:
    shop.filled()
    path = shop.home("customers").tables.target.path
    merge = DeltaTable(path).merge(
        pa.table({"id": pa.array([9 if inserts else 2], pa.int64())}), "s.id = t.id", "s", "t"
    )
    (merge.when_not_matched_insert_all() if inserts else merge.when_matched_delete()).execute()
    if not counts:
        _without_metrics(path)
    shop.write("orders", [4])
    shop.publish()
    assert len(shop.look().reasons) == 2
    (piece,) = shop.pin()
    assert piece["customers"][1:4] == (0, 1, 1), "not only read"
    (pinned,) = intake.slices(shop.layout, 1, 2)
    changes = {Path(unit.name).name: unit.row["changes"] for unit in pinned.units}
    assert changes == {"orders": False, "customers": not (counts and inserts)}


def test_buckets_count_the_rows_of_all_tables_and_a_range_that_died_is_completed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS", 2)
    shop.write("orders", [1, 2, 3])
    shop.write("customers", [1, 2])
    shop.publish()
    assert shop.look().forecast(BOUND).slices == 3
    pinning = shop.source.pin(1, NOW)
    pinning._left = pinning._left[:1]  # as a kill after the first commit
    pinning.take(BOUND)
    assert part_way(shop.layout, 1, 1) == (1, 3)
    shop.write("customers", [9])
    shop.publish()
    assert shop.pin() == [
        {"orders": (True, -1, 0, 3, 1, 3), "customers": (True, -1, 0, 2, 1, 3)},
        {"orders": (True, -1, 0, 3, 2, 3), "customers": (True, -1, 0, 2, 2, 3)},
        {"orders": (False, 0, 0, 0, 0, 1), "customers": (False, 0, 1, 1, 0, 1)},
    ]
    assert part_way(shop.layout, 1, 3) is None


def test_a_replay_waits_for_the_other_buckets_and_names_no_files(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS", 2)
    shop.write("orders", [1, 2, 3])
    shop.write("customers", [1])
    shop.publish()
    assert len(shop.pin()) == 2
    always = Again(since=datetime(2020, 1, 1, tzinfo=UTC), until=datetime(2030, 1, 1, tzinfo=UTC))
    for done, code in ((0, "range-unfinished"), (1, None)):
        properties = CommitProperties(
            app_transactions=[Transaction(shop.layout.app_id(1, "rows"), done)]
        )
        write_deltalake(
            shop.layout.tables.target.path,
            pa.table({"n": [1]}),
            mode="append",
            commit_properties=properties,
        )
        asked = shop.request("shop", "d").model_copy(update={"replay": always})
        if code is None:
            replay.find(asked)
            continue
        with pytest.raises(TransientError) as early:
            replay.find(asked)
        assert early.value.code == code and early.value.next[0].startswith("draindown run shop/d ")
    named = shop.request("shop", "d").model_copy(
        update={"replay": Again(units=(shop.home("orders").tables.target.path,))}
    )
    with pytest.raises(TerminalError) as error:
        replay.find(named)
    assert error.value.code == "bad-range" and "--from" in error.value.next[0]


def test_a_rebuild_over_nothing_published_is_refused_before_it_begins(shop: Shop) -> None:
    shop.filled()
    shutil.rmtree(shop.home("customers").tables.target.path)
    shop.write("customers", [1])
    with pytest.raises(TerminalError) as error:
        rebuild.plan(shop.request("shop", "d"))
    assert (error.value.code, error.value.next) == (
        "nothing-to-rebuild",
        ("draindown run crm/customers",),
    )
    assert "has published nothing yet" in error.value.found


@pytest.mark.parametrize("table", ["orders", "customers"])
def test_all_is_compared_again_where_one_table_was_rebuilt(shop: Shop, table: str) -> None:
    shop.filled()
    shop.write(
        table, [1, 2, 3, 4], mode="overwrite", note=Swap("p", table, 2, 1, 4, "r").as_metadata()
    )
    shop.publish(table)
    (piece,) = shop.pin()
    assert all(one[:2] == (True, -1) for one in piece.values()) and piece[table][2] == 1


@pytest.mark.parametrize("table", ["orders", "customers"])
@pytest.mark.parametrize("what", ["overwritten", "restored", "recreated", "gone"])
def test_a_table_that_cant_be_followed_is_red_by_name(
    shop: Shop, table: str, what: str, tmp_path: Path
) -> None:
    shop.filled()
    path = Path(shop.home(table).tables.target.path)
    match what:
        case "overwritten":
            shop.write(table, [9], mode="overwrite")
            shop.publish(table)
        case "restored":
            shop.write(table, [4])
            DeltaTable(str(path)).restore(0)
            shop.publish(table)
        case "recreated" | "gone":
            path.rename(tmp_path / "aside")
            if what == "recreated":
                shop.write(table, [1])
    for attempt in (shop.look, shop.pin):
        with pytest.raises(TerminalError) as error:
            attempt()
        assert error.value.code == "source-replaced" and f"/{table}: " in error.value.found
        assert error.value.next[0].startswith("draindown reset shop/d")


def test_another_set_of_tables_is_another_derivation(shop: Shop) -> None:
    shop.filled()
    batch = CommitProperties(app_transactions=[Transaction(shop.layout.app_id(1, "rows"), 0)])
    write_deltalake(
        shop.layout.tables.target.path, pa.table({"customer_id": [1]}), commit_properties=batch
    )
    counts = "select customer_id, count(*) as n from orders group by customer_id"
    other = {"source": {"table": "orders"}, "query": {"keys": ["customer_id"], "sql": counts}}
    shop.declare("shop", orders=landing("customer_id"), d=other)
    with pytest.raises(TerminalError) as error:
        shop.look()
    assert error.value.code == "derivation-changed"
    turned = shop.derived()
    turned["source"]["tables"].reverse()
    shop.declare("shop", orders=landing("customer_id"), d=turned)
    assert shop.look().units == 0, "the order of the tables means nothing"


def test_each_home_keeps_what_the_reader_needs_of_its_table(shop: Shop) -> None:
    shop.filled()
    for table in ("orders", "customers"):
        assert shop.reader(table) == Reader(
            "shop", "d", shop.home(table).tables.target.id, 0, snapshot=True
        )
    shop.source.read_up_to(1, 2)
    assert {shop.reader(table).snapshot for table in ("orders", "customers")} == {False}
    shop.write("orders", [4])
    shop.publish("orders")
    shop.pin()
    assert (shop.reader("orders").version, shop.reader("orders").snapshot) == (0, False)
    assert (shop.reader("customers").version, shop.reader("customers").snapshot) == (0, True), (
        "its rows are read"
    )
    shop.source.read_up_to(1, 3)
    assert (shop.reader("orders").version, shop.reader("customers").snapshot) == (1, False)


def test_the_rows_of_a_table_that_was_only_compacted_are_asked_for(shop: Shop) -> None:
    shop.filled()
    shop.source.read_up_to(1, 2)
    shop.write("customers", [])
    DeltaTable(shop.home("customers").tables.target.path).optimize.compact()
    shop.write("orders", [4])
    shop.publish()
    (piece,) = shop.pin()
    version = shop.home("customers").tables.target.version
    assert piece["customers"][1:4] == (0, version, 0) and version > 0
    assert shop.reader("customers").snapshot and not shop.reader("orders").snapshot
    shop.source.read_up_to(1, 3)
    assert (shop.reader("customers").version, shop.reader("customers").snapshot) == (version, False)


def test_a_rebuild_has_documents_of_its_own(shop: Shop) -> None:
    shop.filled()
    shop.source.read_up_to(1, 2)
    shop.write("orders", [4])
    shop.publish()
    live, staged = shop.source, replace(shop.layout, staged=2)
    shop.layout.rebuild.write({"generation": 2})
    beside = Tables(live._source, staged, Path("/"), "r")
    beside.pin(2, NOW).take(BOUND)
    home = shop.home("orders")
    assert {(one.staged, one.version, one.snapshot) for one in registered.readers(home)} == {
        (0, 0, False),
        (2, 1, True),
    }
    shop.pin()
    live.read_up_to(1, 3)
    assert {(one.staged, one.version, one.snapshot) for one in registered.readers(home)} == {
        (0, 1, False),
        (2, 1, True),
    }
    beside.read_up_to(2, 2)
    assert (2, 1, False) in {
        (one.staged, one.version, one.snapshot) for one in registered.readers(home)
    }
    shop.layout.rebuild.delete()
    assert shop.reader("orders").staged == 0, "it was aborted, or swapped in"
    registered.forget(home, "shop", "d")
    assert not list(Path(home.readers).glob("*"))


def test_old_files_of_a_table_without_changes_stay_while_a_slice_reads_it(shop: Shop) -> None:
    shop.filled()
    shop.source.read_up_to(1, 2)
    shop.write("orders", [4])
    shop.publish("orders")
    shop.pin()
    shop.write("customers", [])
    DeltaTable(shop.home("customers").tables.target.path).optimize.compact()
    shop.write("customers", [])
    shop.publish()
    age(shop.home("customers").tables.target.path, days=8)
    assert "shop/d has yet to read" in compaction.kept_back(shop.home("customers"), 7 * 86_400)
    shop.source.read_up_to(1, 3)
    assert compaction.kept_back(shop.home("customers"), 7 * 86_400) == ""


def test_the_flow_of_the_other_pipeline_owes_the_feed_and_statistics(shop: Shop) -> None:
    request = shop.request("crm", "customers")
    assert list(map(str, readers.readers(request))) == ["shop/d"]
    write_deltalake(shop.home("customers").tables.target.path, pa.table({"id": [1]}))
    DeltaTable(shop.home("customers").tables.target.path).alter.set_table_properties(
        {"delta.dataSkippingStatsColumns": "n"}
    )
    owed = readers.owed(request, shop.home("customers").tables.target)
    assert owed[FEED] == "true" and owed["delta.dataSkippingStatsColumns"] == "n,id"
    (shop.root / "x").mkdir()
    assert "the table lacks its change feed" in plan(request, NOW)[0].reasons["drain"]


def symptoms(shop: Shop, pipeline: str, flow: str) -> dict[str, Any]:
    return {one.code: one for one in examine(shop.request(pipeline, flow)).symptoms}


def test_doctor_knows_readers_of_other_pipelines(shop: Shop) -> None:
    shop.write("customers", [1])
    shop.publish("customers")
    assert examine(shop.request("crm", "customers")).looked["readers"] == "shop/d has not begun"
    shop.write("orders", [1])
    shop.publish("orders")
    shop.pin()
    assert "reader-undeclared" not in symptoms(shop, "crm", "customers")
    shop.declare("shop", orders=landing("customer_id"))
    found = symptoms(shop, "crm", "customers")["reader-undeclared"]
    assert found.next == "draindown compact crm/customers --drop-reader shop/d --yes"
    (shop.pipelines / "shop.yaml").write_text("pipeline: shop\nflows: [")
    assert "reader-undeclared" not in symptoms(shop, "crm", "customers"), (
        "nobody knows what a broken file reads"
    )


def test_a_reader_of_another_pipeline_is_forgotten_once_its_file_says_so(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.filled()
    words = [
        "--root",
        str(shop.root),
        "compact",
        "crm/customers",
        "--drop-reader",
        "shop/d",
        "--yes",
    ]
    assert main(words) == 78 and "reader-declared" in capsys.readouterr().err
    (shop.pipelines / "shop.yaml").write_text("pipeline: shop\nflows: [")
    assert main(words) == 78 and "can't be loaded" in capsys.readouterr().err
    shop.declare("shop", orders=landing("customer_id"))
    assert main(words) == 0 and registered.readers(shop.home("customers")) == []


def test_doctor_of_the_reader_says_what_it_waits_for(shop: Shop) -> None:
    shop.write("orders", [1])
    shop.publish("orders")
    found = symptoms(shop, "shop", "d")["source-waiting"]
    assert found.next == "draindown run crm/customers"


def test_the_oldest_change_of_any_table_tells_how_long_it_waits(shop: Shop) -> None:
    shop.filled()
    shop.write("orders", [4])
    age(shop.home("orders").tables.target.path, days=3)
    shop.write("customers", [4])
    shop.publish()
    oldest = shop.look().oldest
    assert oldest is not None and datetime.fromtimestamp(oldest, UTC) < datetime.now(
        UTC
    ) - timedelta(days=2)


def test_another_project_directory_holds_no_table_of_this_one(shop: Shop, tmp_path: Path) -> None:
    shutil.copytree(shop.pipelines, tmp_path / "elsewhere")
    found = loader.load_alone(tmp_path / "elsewhere" / "shop.yaml", shop.root, {})
    assert found.neighbours.writers == {
        "customers": Writer(pipeline="crm", flow="customers", keys=("id",))
    }, "a file elsewhere reads what the project writes"
    with pytest.raises(TerminalError) as error:
        loader.load_alone(tmp_path / "elsewhere" / "shop.yaml", tmp_path / "other", {})
    assert "no flow of this project writes table 'customers'" in error.value.found


def test_rebuild_and_replay_of_a_derived_flow_print_what_they_would_do(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.filled()
    shop.write("orders", [4, 5, 6])
    shop.publish("orders")
    root = ["--root", str(shop.root)]
    assert main([*root, "rebuild", "shop/d"]) == 2
    said = capsys.readouterr().err
    assert (
        "in 1 batch\n" in said
        and "rows         one per customer_id;" in said
        and "gone         nothing" in said
    )
    assert "columns: those that the query gives" in said or "it is made anew" in said
    monkeypatch.setattr("draindown.flow.checkpoint.Checkpoint.first_unread", 2)
    assert main([*root, "replay", "shop/d", "--from", "2026-04-30", "--to", "2026-05-02"]) == 2
    said = capsys.readouterr().err
    assert (
        "what 1 batch touched" in said
        and "computed again, from the sources as the newest batch read them" in said
    )
