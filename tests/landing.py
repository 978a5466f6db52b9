"""A landing flow in a directory of its own: deliver files, drain them, and look at everything it
keeps.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.exits import Exit
from draindown.base.progress import StepHook
from draindown.config.models import PipelineSpec
from draindown.flow import drain_part, generations, schema_drift
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.ledger import inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow, Place
from draindown.runs import report
from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.sources import batch_size, intake
from draindown.sources.files import parked as files_parked
from draindown.sources.port import left_of
from draindown.sources.registry import source_of
from draindown.sources.slices import slice_of
from draindown.spark import session
from draindown.spark.job.main import attempt
from draindown.spark.runs.batches import batches_of
from draindown.spark.runs.drain import drain
from draindown.spark.tuning import TUNING, Tuning

COLUMNS = {
    "id": "string not null",
    "seq": "int not null",
    "op": "string",
    "a": "int",
    "b": "string",
    "part": "string",
    "region": "string",
}
KEYED = {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"}


class Injected(Exception):
    """A fault that a test asked for."""


class Landing:
    """Flow `f` of pipeline `p`, or another, under `home`, which is also the project root.

    `spark`: the session that `attempt` drains in.
    """

    def __init__(
        self, home: Path, spark: SparkSession | None = None, *, pipeline: str = "p", **flow: Any
    ) -> None:
        self.home, self.landing, self.delivered, self.spark, self.attempts = (
            home,
            home / "landing",
            0,
            spark,
            0,
        )
        self.landing.mkdir(parents=True, exist_ok=True)
        source = {"files": "landing/*", "format": "json"} | flow.pop("source", {})
        content = {"source": source, "columns": COLUMNS, "target": KEYED} | flow
        lease = content.pop("lease", {})
        self.document = {
            "pipeline": pipeline,
            "lake": str(home / "lake"),
            "lease": lease,
            "flows": {"f": content},
        }
        self.spec = PipelineSpec.model_validate(self.document)

    def copied(self, home: Path) -> Landing:
        """The same flow in another directory, with a lake as it stands now; what it has read stays
        where it is.
        """
        content = dict(self.document["flows"]["f"])
        source = content.pop("source")
        other = Landing(home, self.spark, pipeline=self.spec.pipeline, source=source, **content)
        shutil.copytree(self.home / "lake", home / "lake")
        return other

    @property
    def layout(self) -> FlowHome:
        return self.spec.layout("f")

    def request(self, run_id: str = "r", **more: Any) -> Request:
        return Request(
            spec=self.spec, flow="f", step="drain", run_id=run_id, root=str(self.home), **more
        )

    @property
    def declared(self) -> dict[str, Any]:
        """What its file says: all but the lease, which is in the project file."""
        return {key: value for key, value in self.document.items() if key != "lease"}

    def write_pipeline(self) -> None:
        """Write its file in dags/pipelines/, for commands that are typed."""
        path = self.home / "dags" / "pipelines" / f"{self.spec.pipeline}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(self.declared, sort_keys=False))
        if self.document.get("lease"):
            given = {"lease": self.document["lease"]}
            (self.home / "draindown.yaml").write_text(yaml.safe_dump(given))

    def transform(self, name: str, source: str) -> None:
        """Write jobs/transforms/<name>.py."""
        path = self.home / "jobs" / "transforms" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("from pyspark.sql import functions as F\n\n\n" + source)

    def deliver(self, *lines: str | bytes, name: str | None = None) -> Path:
        """Put a file into the landing directory, in one piece."""
        self.delivered += 1
        path = self.landing / (name or f"{self.delivered:03}.json")
        path.write_bytes(b"".join((x.encode() if isinstance(x, str) else x) + b"\n" for x in lines))
        return path

    def land(self, name: str, content: bytes) -> Path:
        """Put these bytes into the landing directory, in the place of what bore that name."""
        path = self.landing / name
        path.write_bytes(content)
        return path

    def attempt(self, **hooks: Any) -> tuple[StepReport, Exit]:
        """Drain as a job does: the report and the exit code, whatever happens."""
        request, spark = self._attempted()
        return attempt(
            request,
            lambda stop: drain(request, spark, stop=stop, progress=lambda line: None, **hooks),
        )

    def attempt_batches(self, *, reached: StepHook | None = None) -> tuple[StepReport, Exit]:
        """Do what `apply` does as a job does it: the report and the exit code, whatever happens."""
        request, spark = self._attempted()
        return attempt(request, lambda _: self.apply(spark, run_id=request.run_id, reached=reached))

    def _attempted(self) -> tuple[Request, SparkSession]:
        assert self.spark is not None
        self.attempts += 1
        return self.request(f"run {self.attempts}"), self.spark

    def drain(
        self, spark: SparkSession, *, fault: str | None = None, tuning: Tuning = TUNING, **more: Any
    ) -> StepReport:
        """Drain; with `fault`, the first batch that reaches that step dies there with Injected."""
        request, reached = self.request(**more), _dying_at(fault)
        return drain(request, spark, progress=lambda line: None, reached=reached, tuning=tuning)

    def apply(
        self,
        spark: SparkSession,
        *,
        fault: str | None = None,
        tuning: Tuning = TUNING,
        reached: StepHook | None = None,
        **more: Any,
    ) -> StepReport:
        """Pin what is new and run each batch that is not in the ledger, without lease, stream and
        checkpoint.

        For tests of what a batch does; it costs a third less than a drain, which can't follow it:
        it would miss the checkpoint.
        """
        request, started, layout = self.request(**more), now(), self.layout
        source, generation = source_of(request), generations.generation(layout)
        batches, rows = batches_of(request, source, generation, tuning=tuning), []
        ledger_table.heal(layout)
        with closing(source.pin(generation, started)) as pinning:
            pinning.take(
                batch_size.bound_now(layout, request.declared.source, session.heap_bytes(spark))
            )
            taken = pinning.taken
        for read in intake.slices(layout, generation, slice_of(self._newest_batch(generation)) + 1):
            left = replace(
                read,
                units=tuple(
                    left_of(source, read.but(generations.without(layout, generation)).units)
                ),
            )
            rows.append(
                batches.run(spark, read.number - slice_of(0), left, reached or _dying_at(fault))
            )
        part, refused = drain_part.part(request, generation, rows, kept_out=taken.kept_out)
        told = schema_drift.findings(
            layout, request.declared, request.run_id, {row.place for row in rows}
        )
        findings = [*refused, *taken.findings, *told, *batches.findings]
        if source.named:
            source.named.refuse_findings(findings)
        return report.of(
            request, started, "done" if rows else "idle", findings=findings, drain=part
        )

    def _newest_batch(self, generation: int) -> int:
        done = ledger_table.source_after(self.layout, -1)
        return max((row.batch for row in done if row.generation == generation), default=-1)

    def forget_last_batch(self) -> None:
        """Delete what the checkpoint says of its newest batch being done, and of one planned after
        it.
        """
        home = Path(self.layout.checkpoint(generations.generation(self.layout)))
        newest = max(int(path.name) for path in (home / "commits").iterdir() if path.name.isdigit())
        for path in (home / "commits" / str(newest), home / "offsets" / str(newest + 1)):
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            path.unlink(missing_ok=path.parent.name == "offsets")

    def rows(self, columns: str = "*", *, where: str = "true") -> list[dict[str, Any]]:
        return self.read(self.layout.tables.target.path, columns, where)

    def refused(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Quarantined rows by file name and position."""
        rows = self.quarantine()
        found = {_place(row): row for row in rows}
        assert len(found) == len(rows), "a record is in quarantine twice"
        return found

    def parked(self) -> dict[str, str]:
        """Reason of each file that is parked now, by name."""
        return {
            Path(event.path).name: event.reason for event in files_parked.open_files(self.layout)
        }

    def tombstones(self) -> list[dict[str, Any]]:
        return self.read(self.layout.tables.tombstones.path)

    def quarantine(self) -> list[dict[str, Any]]:
        return self.read(self.layout.tables.quarantine.path)

    def ledger(self) -> list[dict[str, Any]]:
        return sorted(
            self.read(self.layout.tables.ledger.path),
            key=lambda row: (row["table_version"], row["batch"]),
        )

    @staticmethod
    def read(path: str, columns: str = "*", where: str = "true") -> list[dict[str, Any]]:
        return Table(path).rows(f"select {columns} from t where {where}")

    def totals(self) -> Mapping[str, int]:
        """Sums over the ledger, after checking that every batch adds up and stands there once.

        `lines` are those that the inputs have, with the header of a CSV file and every line of a
        record; `blank` are lines that are no record.
        """
        rows, read = self.ledger(), inputs.by_batch(self.layout)
        assert len({(row["generation"], row["kind"], row["batch"]) for row in rows}) == len(rows)
        for row in rows:
            fates = (
                row["applied"]
                + row["superseded"]
                + row["duplicate"]
                + row["quarantined"]
                + row["late"]
            )
            assert row["records"] == fates, row
            inputs.conserve(BatchRow.from_dict(row), read.get(_key(row), [])) if row[
                "kind"
            ] in _READ else None
            assert (
                row["applied"]
                == row["inserted"] + row["updated"] + row["deleted"] + row["tombstoned"]
            ), row
        names = ("records", "quarantined", "superseded", "duplicate", "inserted", "updated")
        sums = {
            name: sum(row[name] for row in rows)
            for name in (*names, "deleted", "tombstoned", "applied", "inputs")
        }
        places = sum(one.until - one.start for row in rows for one in read.get(_key(row), []))
        return sums | {
            "lines": places,
            "blank": places - sum(row["records"] for row in rows if row["kind"] in _READ),
        }

    def sums(self) -> Mapping[str, int]:
        """The same, after holding them against the tables as well: of a flow whose input nobody
        decided about.
        """
        sums = self.totals()
        assert sums["quarantined"] == len(self.refused())
        assert sums["inserted"] - sums["deleted"] == len(self.rows("1"))
        return sums


_READ = ("drain", "replay")


def _key(row: Mapping[str, Any]) -> Place:
    return row["generation"], row["kind"], row["batch"]


def _place(row: Mapping[str, Any]) -> tuple[str, int]:
    return Path(row["origin"]["input"]).name, row["origin"]["position"]


def _dying_at(fault: str | None) -> Callable[[str], None]:
    def reached(step: str) -> None:
        if step == fault:
            raise Injected(step)

    return reached
