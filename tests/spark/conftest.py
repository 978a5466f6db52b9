"""One session for all Spark tests, and lakes to write to. Jars: `$DRAINDOWN_JARS` or where set-up put them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.lake.table_log import TableLog
from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.sources.files import parked as files_parked
from draindown.spark.job.main import attempt
from draindown.spark.runs.drain import drain
from draindown.spark.session import session
from draindown.spec.models import PipelineSpec


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with Delta, short-run settings and two cores; it ends with the tests."""
    started = session("draindown-tests", master="local[2]", short=True)
    yield started
    started.stop()


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """The path of an empty lake."""
    return str(tmp_path / "lake")


class Landing:
    """A project of one flow: files to land, drains to run, and everything the flow wrote, read without Spark."""

    def __init__(self, spark: SparkSession, root: Path, flow: Mapping[str, Any]) -> None:
        self.spark, self.root, self.runs = spark, root, 0
        self.files = root / "landing"
        self.files.mkdir(parents=True)
        source = {"files": "landing/*", **flow["source"]}
        document = {"pipeline": "p", "lake": str(root / "lake"), "flows": {"f": {**flow, "source": source}}}
        self.spec = PipelineSpec.model_validate(document)
        self.layout = self.spec.layout("f")

    def land(self, name: str, content: bytes) -> Path:
        """Write a file and return it."""
        path = self.files / name
        path.write_bytes(content)
        return path

    def write_pipeline(self) -> None:
        """Write dags/pipelines/p.yaml, for commands as people type them."""
        home = self.root / "dags" / "pipelines"
        home.mkdir(parents=True, exist_ok=True)
        (home / "p.yaml").write_text(self.spec.model_dump_json(exclude_defaults=True))

    def drain(self, **hooks: Any) -> tuple[StepReport, Exit]:
        """Drain once as a job does: the report and the exit code."""
        self.runs += 1
        request = Request(spec=self.spec, flow="f", step="drain", run_id=f"run {self.runs}", root=str(self.root))
        return attempt(request, lambda stop: drain(request, self.spark, stop=stop, progress=lambda line: None, **hooks))

    def rows(self, sql: str = "select * from t") -> list[dict[str, Any]]:
        """A query over the target, `t`."""
        return TableLog(self.layout.table).query(sql).to_pylist()

    def refused(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Quarantined rows by file name and position."""
        if not TableLog(self.layout.quarantine).exists:
            return {}
        rows = TableLog(self.layout.quarantine).query("select * from t").to_pylist()
        found = {(Path(row["file"]).name, row["position"]): row for row in rows}
        assert len(found) == len(rows), "a record is in quarantine twice"
        return found

    def parked(self) -> dict[str, str]:
        """Reason of each file that is parked now, by name."""
        return {Path(event.path).name: event.reason for event in files_parked.open_files(self.layout)}

    def sums(self) -> dict[str, int]:
        """The ledger's sums, after holding them against each other and against the tables."""
        names = (
            "lines",
            "blank",
            "records",
            "applied",
            "superseded",
            "duplicate",
            "quarantined",
            "inserted",
            "deleted",
        )
        what = ", ".join(f"cast(coalesce(sum({name}), 0) as bigint) as {name}" for name in names)
        sums: dict[str, int] = TableLog(self.layout.ledger).query(f"select {what} from t").to_pylist()[0]
        assert sums["lines"] == sums["records"] + sums["blank"]
        fates = ("applied", "superseded", "duplicate", "quarantined")
        assert sums["records"] == sum(sums[name] for name in fates), sums
        assert sums["quarantined"] == len(self.refused())
        assert sums["inserted"] - sums["deleted"] == len(self.rows("select 1 from t"))
        return sums


@pytest.fixture(scope="session")
def landing(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, Any]], Landing]:
    """Makes a project of one flow in a directory of its own."""
    return lambda flow: Landing(spark, tmp_path_factory.mktemp("project"), flow)
