"""The gate over real tables: what is judged, what is published, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from pyspark.sql import SparkSession

from draindown.base.errors import GateFailed, TerminalError
from draindown.config.models import PipelineSpec
from draindown.gate import published as gate_published
from draindown.gate import refusal, waivers
from draindown.ledger.rows import BatchRow
from draindown.runs.report import CheckPart, Expectation
from draindown.runs.request import Request
from draindown.spark.checks import gx, result
from draindown.spark.checks.check import check, unpublished_rows
from draindown.spark.session import configured
from tests.ageing import age
from tests.flowfiles import count_as_spark

START = datetime(2026, 1, 1, tzinfo=UTC)
NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "status"}}
KNOWN = {
    "type": "expect_column_values_to_be_in_set",
    "kwargs": {"column": "status", "value_set": ["scheduled", "landed"]},
}
UNIQUE = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}}
AT_LEAST_TWO = {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 2}}


def test_a_detail_is_spelled_as_its_author_wrote_it() -> None:
    kwargs = {
        "column": "c",
        "regex": r"^\d+$",
        "max_value": 250000,
        "min_value": 2013,
        "value_set": ["a", 1],
    }
    detail = result.detail({"kwargs": kwargs}, 336074)
    assert (
        detail
        == r"wants regex='^\d+$', max_value=250,000, min_value=2013, value_set=['a', 1]; observed 336,074"
    )
    assert result.detail({"kwargs": kwargs}, 0.5).endswith("observed 0.5")


WAIVE, DAY = "draindown gate waive flights/flights", '--for "1 day" --note TEXT'


class Flow:
    """A flow's target that tests write batches to, and its gate."""

    def __init__(self, spark: SparkSession, lake: str) -> None:
        self.spark, self.batches, self.runs = spark, 0, 0
        self.spec = PipelineSpec.model_validate(
            {
                "pipeline": "flights",
                "lake": lake,
                "flows": {
                    "flights": {
                        "source": {"files": "landing/*.json", "format": "json"},
                        "columns": {
                            "id": "string not null",
                            "status": "string",
                            "at": "int not null",
                        },
                        "target": {"keys": ["id"], "sequence_by": ["at"]},
                    }
                },
            }
        )
        self.layout = self.spec.layout("flights")

    def metadata(self, *, inserted: int = 0, deleted: int = 0) -> str:
        self.batches += 1
        # of rows that a person released: the share of quarantined records is of input only
        row = BatchRow(
            "flights", "flights", generation=1, batch=self.batches, run_id="r", kind="release"
        )
        return replace(
            row, records=inserted + deleted, inserted=inserted, deleted=deleted
        ).as_metadata()

    def write(self, *rows: tuple[str, str | None]) -> datetime:
        """Append a batch as a drain does: one later `_changed_at`, the ledger row in its commit."""
        metadata = CommitProperties(
            custom_metadata={"userMetadata": self.metadata(inserted=len(rows))}
        )
        at = START + timedelta(minutes=self.batches)
        schema = pa.schema(
            [
                ("id", pa.string()),
                ("status", pa.string()),
                ("_changed_at", pa.timestamp("us", "UTC")),
            ]
        )
        table = pa.Table.from_pylist(
            [dict(zip(schema.names, (*row, at), strict=True)) for row in rows], schema
        )
        write_deltalake(
            self.layout.tables.target.path, table, mode="append", commit_properties=metadata
        )
        count_as_spark(self.layout.tables.target.path)
        return at

    def delete(self, key: str) -> None:
        """Delete a key as a drain does: by a MERGE with the ledger row in its commit."""
        conf = {"spark.databricks.delta.commitInfo.userMetadata": self.metadata(deleted=1)}
        with configured(self.spark, conf):
            self.spark.sql(
                f"MERGE INTO delta.`{self.layout.tables.target.path}` t USING (SELECT '{key}' AS id) s ON t.id = s.id "
                "WHEN MATCHED THEN DELETE"
            )

    def check(self, *expectations: dict[str, Any]) -> CheckPart:
        report = self.report(*expectations)
        assert report.check is not None
        return report.check

    def report(self, *expectations: dict[str, Any]) -> Any:
        self.runs += 1
        suite = (
            {"name": "flights", "expectations": list(expectations), "meta": {}}
            if expectations
            else None
        )
        facts = {
            "flow": "flights",
            "step": "check",
            "run_id": f"run {self.runs}",
            "root": "/",
            "start": "s",
        }
        return check(
            Request(spec=self.spec, suite=suite, **facts),
            self.spark,
        )

    def refused(self, *expectations: dict[str, Any]) -> list[Expectation]:
        """The failed expectations of a check that must refuse and must not publish."""
        before = gate_published.published(self.layout)
        with pytest.raises(refusal.Refused) as caught:
            self.check(*expectations)
        assert caught.value.code == "gate-failed"
        assert gate_published.published(self.layout) == before
        assert caught.value.part is not None
        return [e for e in caught.value.part.expectations if not e.success and not e.waived]


@pytest.fixture
def flow(spark: SparkSession, lake: str) -> Flow:
    return Flow(spark, lake)


def test_no_table_yet_is_idle(flow: Flow) -> None:
    report = flow.report(NOT_NULL)
    assert (report.outcome, report.check) == ("idle", None)


def test_where_rows_came_from_is_not_judged(flow: Flow) -> None:
    flow.write(("a", "scheduled"))
    more = "_arrived_at timestamp, _origin struct<input: string, position: bigint>"
    flow.spark.sql(f"ALTER TABLE delta.`{flow.layout.tables.target.path}` ADD COLUMNS ({more})")
    count = {"type": "expect_table_column_count_to_equal", "kwargs": {"value": 3}, "meta": {}}
    assert [e.success for e in flow.check(count).expectations] == [True]


def test_pass_publishes_version_and_newest_change(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    flow.write(("a", "scheduled"))
    at = flow.write(("b", "landed"), ("c", "landed"))
    part = flow.check(NOT_NULL, KNOWN, UNIQUE, AT_LEAST_TWO)
    pointer = gate_published.published(flow.layout)
    assert pointer is not None
    assert (pointer.version, pointer.changed_at, pointer.rows) == (1, at, 3)
    assert (part.published_before, part.published_after, part.changed_rows) == (None, 1, 3)
    assert [(e.success, e.scope) for e in part.expectations] == [
        (True, "changed"), (True, "changed"), (True, "table"), (True, "table"),
    ]  # fmt: skip
    assert list((tmp_path / "cwd").iterdir()) == []
    assert sorted(p.name for p in Path(flow.layout.validations("run 1", "s")).iterdir()) == [
        "index.html",
        "result.json",
    ]


def test_without_suite_everything_is_published(flow: Flow) -> None:
    flow.write(("a", None))
    assert flow.check().published_after == 0


def test_second_check_of_same_version_is_idle_without_a_verdict(flow: Flow) -> None:
    flow.write(("a", "landed"))
    flow.check(NOT_NULL)
    report = flow.report(NOT_NULL)
    assert report.outcome == "idle"
    assert report.check.published_after == 0
    assert not Path(flow.layout.validations("run 2", "s")).exists()


def test_published_bad_row_is_not_judged_again(flow: Flow) -> None:
    flow.write(("old", None))
    flow.check()
    flow.write(("new", "landed"))
    part = flow.check(NOT_NULL)
    assert (part.changed_rows, part.expectations[0].judged, part.published_after) == (1, 1, 1)


def test_scope_of_an_expectation_can_be_set_in_its_meta(flow: Flow) -> None:
    flow.write(("old", None))
    flow.check()
    flow.write(("new", "landed"))
    [failed] = flow.refused({**NOT_NULL, "meta": {"draindown": {"scope": "table"}}})
    assert (failed.scope, failed.judged, failed.unexpected) == ("table", 2, 1)


def test_bad_row_keeps_failing_until_its_expectation_is_waived(flow: Flow) -> None:
    flow.write(("good", "landed"))
    flow.check(KNOWN)
    flow.write(("bad", "<script>alert(1)</script>"))
    [failed] = flow.refused(KNOWN)
    assert failed.name == "expect_column_values_to_be_in_set:status"
    assert (failed.judged, failed.unexpected) == (1, 1)
    assert failed.sample == [{"id": "bad", "status": "<script>alert(1)</script>"}]
    flow.write(("fine", "landed"))
    [again] = flow.refused(KNOWN)
    assert (again.judged, again.unexpected) == (2, 1)
    waivers.waive(flow.layout, failed.name, by="ada", reason="known feed error")
    part = flow.check(KNOWN)
    assert part.published_after == 2
    assert part.expectations[0].waived
    flow.write(("later", "landed"))
    assert [e.success for e in flow.check(KNOWN).expectations] == [True]


def test_a_failure_that_only_warns_is_published_with_a_finding(flow: Flow) -> None:
    flow.write(("bad", "<b>?</b>"))
    report = flow.report(KNOWN | {"severity": "warning"}, UNIQUE | {"severity": "info"})
    part = report.check
    assert report.outcome == "done" and part.published_after == part.version == 0
    assert [e.success for e in part.expectations] == [False, True]
    (finding,) = [one for one in report.findings if one.kind == "expectation"]
    assert finding.subject == "expect_column_values_to_be_in_set:status"
    assert finding.detail.startswith("warning: 1 of 1 row, such as ")
    directory = Path(flow.layout.validations("run 1", "s"))
    assert json.loads((directory / "result.json").read_text())["verdict"] == "passed"
    assert '<b class="warning">warning</b>' in (directory / "index.html").read_text()
    flow.write(("worse", "<b>?</b>"))
    [failed] = [e for e in flow.refused(KNOWN | {"severity": "critical"}) if e.refuses]
    assert (failed.judged, failed.unexpected) == (1, 1), "what was published is not judged again"


def test_refusal_names_what_to_type_and_leaves_results(flow: Flow) -> None:
    flow.write(("bad", "<b>?</b>"))
    with pytest.raises(GateFailed) as caught:
        flow.check(KNOWN)
    assert caught.value.next == (
        "draindown gate show flights/flights",
        "draindown gate withdraw flights/flights expect_column_values_to_be_in_set:status",
        f"{WAIVE} expect_column_values_to_be_in_set:status {DAY}",
    )
    directory = Path(flow.layout.validations("run 1", "s"))
    assert str(directory / "index.html") in caught.value.changed
    assert json.loads((directory / "result.json").read_text())["verdict"] == "failed"
    page = (directory / "index.html").read_text()
    assert "<b>?</b>" not in page
    assert "&lt;b&gt;?&lt;/b&gt;" in page


@pytest.mark.full
def test_commit_by_other_hands_makes_every_row_judged(flow: Flow) -> None:
    flow.write(("old", None))
    flow.check()
    flow.write(("bad", None))
    assert [e.judged for e in flow.refused(NOT_NULL)] == [1]
    flow.spark.sql(
        f"UPDATE delta.`{flow.layout.tables.target.path}` SET status = 'landed' WHERE id = 'bad'"
    )
    assert [(e.judged, e.unexpected) for e in flow.refused(NOT_NULL)] == [(2, 1)]


@pytest.mark.full
@pytest.mark.parametrize("looked_up", [True, pytest.param(False, marks=pytest.mark.long)])
def test_uniqueness_is_judged_over_the_whole_table(flow: Flow, looked_up: bool) -> None:
    def published() -> None:
        pointer = gate_published.published(flow.layout)
        # as of so large a table that its other rows are not gone through again
        if looked_up and pointer is not None:
            gate_published.publish(flow.layout, pointer.model_copy(update={"rows": 10**7}))

    flow.write(("a", "landed"))
    flow.check(UNIQUE)
    assert _distinct(flow) == ("id any",)
    published()
    flow.write(("b", "landed"))
    assert flow.check(UNIQUE).expectations[0].judged == 2
    published()
    flow.write(("a", "landed"))
    [failed] = flow.refused(UNIQUE)
    assert (failed.scope, failed.judged, failed.unexpected) == ("table", 3, 2)
    flow.check()
    assert _distinct(flow) == (), "published unseen, so nothing is known"
    published()
    flow.write(("c", "landed"))
    assert [e.unexpected for e in flow.refused(UNIQUE)] == [2]


def _distinct(flow: Flow) -> tuple[str, ...]:
    pointer = gate_published.published(flow.layout)
    assert pointer is not None
    return pointer.distinct


@pytest.mark.full
def test_batch_of_deletes_only_is_judged_by_table_expectations(flow: Flow) -> None:
    flow.write(("a", "landed"), ("b", "landed"))
    flow.check(AT_LEAST_TWO)
    flow.delete("a")
    [failed] = flow.refused(AT_LEAST_TWO, NOT_NULL)
    assert failed.name == "expect_table_row_count_to_be_between"
    assert flow.check(NOT_NULL).published_after == 1


@pytest.mark.full
def test_what_cannot_be_judged_fails_alone(flow: Flow) -> None:
    flow.write(("a", "landed"))
    bad_regex = {
        "type": "expect_column_values_to_match_regex",
        "kwargs": {"column": "id", "regex": "("},
    }
    bad_scope = {**NOT_NULL, "meta": {"draindown": {"scope": "universe", "name": "misscoped"}}}
    failed = flow.refused(NOT_NULL, bad_regex, bad_scope)
    assert [e.name for e in failed] == ["expect_column_values_to_match_regex:id", "misscoped"]
    assert all(e.detail.startswith("could not be judged: ") for e in failed)


def test_a_suite_that_asks_for_what_is_not_there_is_to_be_corrected_unless_a_waiver_holds(
    flow: Flow,
) -> None:
    flow.write(("a", None))
    missing = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "statuss"}}
    unknown = {"type": "expect_the_moon", "kwargs": {}}
    with pytest.raises(TerminalError) as caught:
        flow.report(NOT_NULL, missing, unknown)
    assert caught.value.code == "bad-suite" and gate_published.published(flow.layout) is None
    first, second = caught.value.found.splitlines()
    assert "did you mean 'status'" in first and "expect_the_moon" in second
    assert "waive" not in str(caught.value)
    # a person's earlier word stands while it holds
    waivers.waive(
        flow.layout,
        "expect_the_moon",
        by="me",
        reason="then",
        until=datetime(2026, 1, 1, tzinfo=UTC),
    )
    with pytest.raises(TerminalError, match="expect_the_moon"):
        flow.report(NOT_NULL, unknown)
    for name in ("expect_column_values_to_not_be_null:statuss", "expect_the_moon"):
        waivers.waive(flow.layout, name, by="me", reason="until the suite is corrected")
    assert [e.name for e in flow.refused(NOT_NULL, missing, unknown)] == [
        "expect_column_values_to_not_be_null:status"
    ]


def test_an_argument_that_lacks_or_is_misspelt_is_to_be_corrected(flow: Flow) -> None:
    flow.write(("a", "landed"))
    lacking = {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "id"}}
    misspelt = {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "id", "mostyl": 1},
    }
    with pytest.raises(TerminalError) as caught:
        flow.report(lacking, misspelt)
    first, second = caught.value.found.splitlines()
    assert (
        caught.value.code == "bad-suite"
        and "'value_set' is required" in first
        and "'mostly'" in second
    )


def test_an_expectation_that_could_not_be_judged_is_not_offered_for_a_waiver(flow: Flow) -> None:
    flow.write(("a", None))
    no_set = {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "id", "value_set": 5},
    }
    with pytest.raises(refusal.Refused) as caught:
        flow.check(no_set)
    assert not any("waive" in command for command in caught.value.next)
    with pytest.raises(refusal.Refused) as caught:
        flow.check(no_set, NOT_NULL)
    assert [command for command in caught.value.next if "gate waive" in command] == [
        f"{WAIVE} expect_column_values_to_not_be_null:status {DAY}"
    ]


def test_samples_are_capped(flow: Flow) -> None:
    flow.write(*((f"k{n}", "x" * 1000) for n in range(100)))
    greedy = {**KNOWN, "kwargs": {**KNOWN["kwargs"], "result_format": "COMPLETE"}}
    [failed] = flow.refused(greedy)
    assert (failed.unexpected, len(failed.sample)) == (100, result.SAMPLE)
    assert max(len(str(value["status"])) for value in failed.sample) <= 200


def test_optimize_moves_the_pointer_without_a_verdict(flow: Flow) -> None:
    flow.write(("a", "landed"))
    flow.write(("b", "landed"))
    flow.check(NOT_NULL)
    flow.spark.sql(f"OPTIMIZE delta.`{flow.layout.tables.target.path}`")
    report = flow.report(NOT_NULL)
    assert (report.outcome, report.check.published_before, report.check.published_after) == (
        "idle",
        1,
        2,
    )
    at = flow.write(("c", "landed"))
    part = flow.check(NOT_NULL)
    pointer = gate_published.published(flow.layout)
    assert pointer is not None
    assert (part.changed_rows, pointer.changed_at) == (1, at)


def test_an_old_version_that_a_drain_overtook_is_judged_all_the_same(flow: Flow) -> None:
    flow.write(("a", "landed"))
    judged = gate_published.unpublished(flow.layout)
    flow.write(("b", "landed"))
    age(flow.layout.tables.target.path, days=8)
    flow.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert judged is not None
    assert unpublished_rows(flow.spark, flow.layout.tables.target.path, judged).changed_rows == 1


def test_another_table_in_its_place_is_judged_whole(flow: Flow) -> None:
    flow.write(("a", "landed"))
    flow.check(NOT_NULL)
    Path(flow.layout.tables.target.path).rename(f"{flow.layout.tables.target.path}-old")
    flow.write(("b", None))
    assert len(flow.refused(NOT_NULL)) == 1


@pytest.mark.parametrize(
    ("kind", "scope"),
    [
        ("expect_column_values_to_match_regex", "changed"),
        ("expect_column_pair_values_a_to_be_greater_than_b", "changed"),
        ("expect_select_column_values_to_be_unique_within_record", "changed"),
        ("expect_compound_columns_to_be_unique", "table"),
        ("expect_column_values_to_be_increasing", "table"),
        ("expect_column_value_z_scores_to_be_less_than", "table"),
        ("expect_column_mean_to_be_between", "table"),
        ("expect_column_values_to_be_of_type", "table"),
        ("expect_column_to_exist", "table"),
        ("unexpected_rows_expectation", "table"),
    ],
)
def test_scope_follows_from_the_kind_of_expectation(kind: str, scope: str) -> None:
    assert gx.scope_of({"type": kind}) == scope
