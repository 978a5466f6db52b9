"""A table that requires a feature which an engine lacks is named by all commands, with what removes
the feature.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError

from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.doctor.examination import examine
from draindown.lake import features
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.planning.plan import plan
from draindown.runs.request import Request
from tests.flowfiles import AT, drained, require, table_of

OF_READERS = (
    *(
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    ),
    *(
        "typeWidening",
        "typeWidening-preview",
        "variantShredding",
        "vacuumProtocolCheck",
        "geospatial",
        "catalogManaged",
    ),
    *("redirection-reader-writer", "coordinatedCommits-preview", "aFeatureOfTomorrow"),
)
OF_WRITERS = (
    *(
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "generatedColumns",
        "invariants",
        "allowColumnDefaults",
    ),
    *(
        "checkpointProtection",
        "clustering",
        "collations",
        "domainMetadata",
        "icebergCompatV1",
        "icebergCompatV2",
    ),
    *(
        "identityColumns",
        "inCommitTimestamp",
        "materializePartitionColumns",
        "rowTracking",
        "aFeatureOfTomorrow",
    ),
)


def _query(path: str) -> None:
    builder = QueryBuilder().register("t", DeltaTable(path))
    pa.RecordBatchReader.from_stream(builder.execute("select * from t")).read_all()


def _append(path: str) -> None:
    write_deltalake(path, pa.table({"n": [2]}), mode="append")


def _works(work: Callable[[str], None], path: str) -> bool:
    try:
        work(path)
    except DeltaError as error:
        assert "nsupported" in str(error) or "catalog" in str(error)
        return False
    return True


@pytest.mark.parametrize("feature", OF_READERS)
def test_the_features_that_deltalake_reads_are_those_of_the_list(
    tmp_path: Path, feature: str
) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"n": [1]}))
    require(path, feature, of_readers=True)
    if _works(_query, path):
        assert Table(path).row_count == 1
        return
    with pytest.raises(features.Unsupported) as caught:
        Table(path).rows("select n from t")
    assert (caught.value.code, caught.value.names) == ("table-feature", (feature,))


@pytest.mark.parametrize("feature", [*OF_READERS, *OF_WRITERS])
def test_the_features_that_deltalake_writes_are_those_of_the_list(
    tmp_path: Path, feature: str
) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"n": [1]}))
    require(path, feature, of_readers=feature in OF_READERS[:-1])
    if feature in OF_READERS and not _works(_query, path):
        return
    refused = features.unwritable(DeltaTable(path).protocol(), beside=True)
    assert refused == ([] if _works(_append, path) else [feature])


@pytest.mark.parametrize("through", ["a commit", "a checkpoint"])
def test_a_feature_that_comes_after_the_table_was_opened_is_named(
    tmp_path: Path, through: str
) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"n": [1]}))
    log = Table(path)
    assert log.version == 0
    require(path, "typeWidening", of_readers=True)
    with pytest.raises(features.Unsupported):
        log.renew()
    require(path, "aFeatureOfTomorrow", of_readers=True)
    if through == "a checkpoint":
        commits = sorted((tmp_path / "t/_delta_log").glob("*.json"))
        protocol = json.loads(commits[-1].read_text().splitlines()[-1])["protocol"]
        rows = pa.Table.from_pylist([{"protocol": protocol}])
        pq.write_table(rows, commits[-1].with_suffix(".checkpoint.parquet"))
        for commit in commits:
            commit.unlink()
        (tmp_path / "t/_delta_log" / f"{3:020}.json").write_text('{"commitInfo":{}}\n')
    with pytest.raises(features.Unsupported) as caught:
        Table(path).rows("select n from t")
    assert set(caught.value.names) == {"typeWidening", "aFeatureOfTomorrow"}


def _project(root: Path, asked: Request) -> None:
    """Write the pipeline file, with a second flow that never ran."""
    flow = asked.spec.model_dump(mode="json", exclude_defaults=True)["flows"]["f"]
    other = {**flow, "target": {"table": "other"}}
    document = {"pipeline": "p", "lake": str(root / "lake"), "flows": {"f": flow, "other": other}}
    (root / "dags/pipelines").mkdir(parents=True)
    (root / "dags/pipelines/p.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


VERBS = {
    "plan": ["plan", "p/f"],
    "run": ["run", "p/f"],
    "why": ["why", "f", "--key", "0"],
    "audit": ["audit", "p/f"],
    "rebuild": ["rebuild", "p/f", "--yes"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_names_the_feature_and_what_removes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    asked = drained(tmp_path)
    _project(tmp_path, asked)
    require(asked.layout.tables.target.path, "typeWidening", of_readers=True)
    assert main(["--root", str(tmp_path), *VERBS[verb], "--json"]) == 78
    said = capsys.readouterr().err
    error = json.loads(said[said.index('{\n "error"') :])["error"]
    assert error["code"] == "table-feature" and "typeWidening" in error["found"]
    assert (
        f"ALTER TABLE delta.`{asked.layout.tables.target.path}` DROP FEATURE `typeWidening`"
        in error["next"][0]
    )


@pytest.mark.parametrize("verb", ["plan", "audit"])
def test_the_feature_of_one_table_hides_no_other_flow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    asked = drained(tmp_path)
    _project(tmp_path, asked)
    require(asked.layout.tables.target.path, "aFeatureOfTomorrow", of_readers=True)
    assert main(["--root", str(tmp_path), verb, "p"]) in (1, 78)
    said = capsys.readouterr().out
    assert "table-feature: " in said and "\np/other" in said


def test_doctor_names_the_feature_once(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    require(asked.layout.tables.target.path, "typeWidening", of_readers=True)
    wrong = [one for one in examine(asked).symptoms if one.level == "wrong"]
    assert [one.code for one in wrong] == ["table-feature"]
    assert "DROP FEATURE `typeWidening`" in wrong[0].next


@pytest.mark.parametrize("name", ["ledger", "inputs", "intake"])
@pytest.mark.parametrize("feature", ["clustering", "checkpointProtection"])
def test_a_table_that_deltalake_writes_is_refused_by_what_deltalake_lacks(
    tmp_path: Path, name: str, feature: str
) -> None:
    asked = drained(tmp_path)
    path = table_of(asked.layout, name)
    require(path, feature, of_readers=False)
    with pytest.raises(TerminalError) as caught:
        plan(asked, AT)
    assert (
        caught.value.code == "table-feature"
        and path in caught.value.found
        and feature in caught.value.found
    )
    statement = f"ALTER TABLE delta.`{path}` DROP FEATURE `checkpointProtection` TRUNCATE HISTORY"
    assert caught.value.next[0].startswith(statement) == (feature == "checkpointProtection")


@pytest.mark.parametrize(
    "feature", ["rowTracking", "clustering", "allowColumnDefaults", "checkpointProtection"]
)
def test_a_target_may_have_features_that_spark_writes(tmp_path: Path, feature: str) -> None:
    asked = drained(tmp_path)
    require(asked.layout.tables.target.path, feature, of_readers=False)
    assert plan(asked, AT)[0].drain is False
    require(asked.layout.tables.target.path, "aFeatureOfTomorrow", of_readers=False)
    with pytest.raises(TerminalError) as caught:
        plan(asked, AT)
    assert caught.value.code == "table-feature" and "Spark" in caught.value.found


@pytest.mark.parametrize("keyed", [True, False])
def test_a_reset_moves_a_table_with_such_a_feature_aside(tmp_path: Path, keyed: bool) -> None:
    asked = drained(tmp_path, keyed=keyed)
    _project(tmp_path, asked)
    require(asked.layout.tables.target.path, "variantShredding", of_readers=True)
    with pytest.raises(TerminalError) as caught:
        plan(asked, AT)
    command = caught.value.next[0].partition("   ")[0]
    assert command.startswith("draindown reset ")
    assert main(["--root", str(tmp_path), *command.split()[1:], "--yes"]) == 0
    assert not asked.layout.tables.target.exists
    assert plan(asked, AT)[0].backlog.units == 2


def test_a_stranger_table_is_not_blamed_on_a_feature(tmp_path: Path) -> None:
    path = FlowHome(str(tmp_path), "p", "f", "t").tables.target.path
    write_deltalake(path, pa.table({"n": [1]}))
    with pytest.raises(DeltaError):
        Table(path).rows("select x from t")
