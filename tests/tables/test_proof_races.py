"""What happens to the tables while a proof reads them: VACUUM, clean-up of a log, a drain. Without
Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.flow import proven
from draindown.lake.table import Table
from draindown.ledger.rows import BatchRow
from draindown.proof import compare, pinned
from draindown.sources.tables.upstream import FEED
from tests.tables.test_table_source import LANDING, NOW, Project

FLOWS = {
    "t": LANDING | {"columns": {"id": "bigint not null", "at": "timestamp"}},
    "d": {
        "source": {"table": "t"},
        "window": {"time": "at", "size": "1 hour", "measures": {"c": "count(*)"}},
    },
}


class Hourly(Project):
    """A project whose flow `d` counts rows by hour; a row's number is its hour."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        document = {"pipeline": "p", "lake": str(home / "lake"), "flows": FLOWS}
        self.home, self.spec, self.batches = home, PipelineSpec.model_validate(document), 0
        path = home / "dags" / "pipelines" / "p.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document))

    def write(self, rows: Any, **_: Any) -> None:
        found = [{"id": hour, "at": NOW + timedelta(hours=hour)} for hour in rows]
        made = (
            None if DeltaTable.is_deltatable(self.upstream.tables.target.path) else {FEED: "true"}
        )
        write_deltalake(
            self.upstream.tables.target.path,
            pa.Table.from_pylist(found),
            mode="append",
            configuration=made,
        )

    def derive(self, *hours: int) -> None:
        """Publish rows and do what a drain does with them."""
        self.write(hours)
        self.publish()
        self.pin()
        at = [row["id"] for row in self.upstream.tables.target.rows("select id from t")]
        start = [NOW + timedelta(hours=hour) for hour in Counter(at)]
        rows = {"window_start": start, "window_end": [one + timedelta(hours=1) for one in start]}
        row = BatchRow("p", "d", 1, self.batches, slice=self.batches + 1, run_id="r", inserted=1)
        stamped = replace(row, changed_at=NOW, started_at=NOW, finished_at=NOW)
        done = CommitProperties(
            app_transactions=[Transaction(self.layout.app_id(1, "rows"), self.batches)],
            custom_metadata={"userMetadata": stamped.as_metadata()},
        )
        table = pa.table(rows | {"c": list(Counter(at).values())})
        write_deltalake(
            self.layout.tables.target.path, table, mode="overwrite", commit_properties=done
        )
        self.batches += 1

    def vacuum(self, path: str) -> None:
        """Remove the files that a table has."""
        for file in Table(path).table.file_uris():
            Path(file).unlink()

    def prove(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
        """The exit code of `audit`, and its certificate or error."""
        capsys.readouterr()
        code = main(["--root", str(self.home), "audit", "p/d", "--json"])
        out = capsys.readouterr()
        return code, json.loads(out.out)["flows"][0] if code < 2 else json.loads(out.err)["error"]


@pytest.fixture
def it(tmp_path: Path) -> Hourly:
    found = Hourly(tmp_path)
    found.derive(1, 1, 2)
    return found


def during(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have `act` happen once the tables were found whole, and before they are read."""
    real = compare.prove

    def prove(*of: Any) -> Any:
        act()
        return real(*of)

    monkeypatch.setattr(compare, "prove", prove)


@pytest.mark.parametrize("when", ["before", "while"])
@pytest.mark.parametrize(("table", "helps"), [("t", "run p/d "), ("d", "doctor p/d ")])
def test_files_that_go_before_or_while_a_proof_reads_them_are_named(
    it: Hourly,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    table: str,
    helps: str,
) -> None:
    assert it.prove(capsys)[0] == 0
    path = it.spec.layout(table).tables.target.path
    if when == "before":
        it.vacuum(path)
    else:
        during(monkeypatch, lambda: it.vacuum(path))
    code, error = it.prove(capsys)
    assert (code, error["code"], error["changed"]) == (78, "history-gone", "nothing")
    assert f"of table {table} at version 0" in error["found"] and helps in error["next"][0]


def test_a_table_that_another_query_computed_is_not_proven(
    it: Hourly, capsys: pytest.CaptureFixture[str]
) -> None:
    path = it.home / "dags" / "pipelines" / "p.yaml"
    path.write_text(path.read_text().replace("count(*)", "count(at)"))
    code, error = it.prove(capsys)
    assert (code, error["code"], error["changed"]) == (78, "derivation-changed", "nothing")
    assert error["tried"] == "prove flow d of pipeline p" and "reset p/d " in error["next"][0]


def test_a_sample_that_holds_does_not_hide_keys_that_differ(
    it: Hourly, capsys: pytest.CaptureFixture[str]
) -> None:
    done = DeltaTable(it.layout.tables.target.path)
    done.update({"c": "c + 1"}, predicate="c = 2")
    assert it.prove(capsys)[0] == 1
    main(["--root", str(it.home), "audit", "p/d", "--sample", "0.0001%"])
    kept = proven.newest(it.layout)
    assert kept is not None and not kept.holds and kept.share == 1
    assert main(["--root", str(it.home), "audit", "p/d", "--sample", "0.00001%"]) == 2
    done.update({"c": "c - 1"}, predicate="c = 3")
    main(["--root", str(it.home), "audit", "p/d", "--sample", "0.0001%"])
    kept = proven.newest(it.layout)
    assert kept is not None and kept.holds and kept.share < 1, "it is about another version"


def test_another_error_of_a_proof_stays_what_it_is(
    it: Hourly, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("out of temporary space")

    during(monkeypatch, fail)
    code, error = it.prove(capsys)
    assert (code, error["code"]) == (70, "unforeseen") and "temporary space" in error["found"]


def test_a_version_that_its_log_has_no_more_is_named(
    it: Hourly, capsys: pytest.CaptureFixture[str]
) -> None:
    it.write([3])
    it.publish()
    source = DeltaTable(it.upstream.tables.target.path)
    source.create_checkpoint()
    for version in range(source.version()):
        (Path(it.upstream.tables.target.path) / "_delta_log" / f"{version:020}.json").unlink()
    code, error = it.prove(capsys)
    assert (code, error["code"]) == (
        78,
        "history-gone",
    ) and "the log of table t at version 0" in error["found"]


def test_a_batch_that_is_committed_while_a_proof_opens_its_tables_is_not_in_it(
    it: Hourly, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = pinned.by_table, [lambda: it.derive(5)]

    def by_table(*of: Any) -> Any:
        while left:
            left.pop()()
        return real(*of)

    monkeypatch.setattr(pinned, "by_table", by_table)
    flow = it.spec.declared("d")
    assert isinstance(flow, DerivedFlow)
    found = pinned.pinned(it.layout, flow.source)
    assert it.layout.tables.target.version == 1 and not left
    assert (found.sources[0].version, found.table.version) == (0, 0)
    assert compare.prove(it.layout, flow, found.sources, found.table).holds
    found = pinned.pinned(it.layout, flow.source)
    assert (found.sources[0].version, found.table.version) == (1, 1)
    assert compare.prove(it.layout, flow, found.sources, found.table).holds


def test_what_the_error_says_to_type_helps(
    it: Hourly, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain that moved on, after which VACUUM removed what the proof was reading, is the run
    that is asked for.
    """
    table = DeltaTable(it.upstream.tables.target.path)

    def move_on() -> None:
        table.update_incremental()
        it.write([7])
        table.update_incremental()
        table.optimize.compact()
        it.publish()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    during(monkeypatch, move_on)
    code, error = it.prove(capsys)
    assert (code, error["code"]) == (78, "history-gone")
    monkeypatch.undo()
    with pytest.raises(TerminalError):
        pinned.pinned(it.layout, it.spec.declared("d").source)  # type: ignore[arg-type]
    it.derive(8)
    assert it.prove(capsys)[0] == 0
