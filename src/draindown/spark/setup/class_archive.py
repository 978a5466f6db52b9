"""Build the class-data-sharing archive (AppCDS), with which the JVM of a job starts faster.

`python -m draindown.spark.setup.class_archive` writes it where `launch.settings.class_archive`
looks, and verifies that a job's JVM uses it. It is valid for one Java build and one class path,
that of `launch.settings.spark_submit`; any other JVM ignores it. It saves a third of the wall time
of a run of 1,000 rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.config.loader import find, load
from draindown.config.models import PipelineSpec
from draindown.config.project import rooted
from draindown.config.scaffold import init
from draindown.launch import jvm
from draindown.launch import settings as spark_settings
from draindown.runs.request import Request
from draindown.spark.checks.check import check
from draindown.spark.runs.compaction import compact
from draindown.spark.runs.drain import drain

_MASTER = "local[2]"
_NAME = "exercise"
_WINDOWS = """\
  hours:
    source: {table: exercise}
    window: {time: updated_at, size: 1 hour, group_by: [status], measures: {orders: count(*), amount: sum(amount)}}
"""


def make(target: Path | None = None) -> Path:
    """Run `exercise` under spark-submit, and archive the classes that it loaded. The file is
    replaced atomically.

    Raises subprocess.CalledProcessError with the output in `.stdout`, and TerminalError
    `class-archive-foreign` if a job's JVM ignores the archive.
    """
    archive = target or spark_settings.class_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=archive.parent) as scratch:
        fresh = Path(scratch) / archive.name
        submit = [str(spark_settings.spark_submit()), "--master", _MASTER]
        for name, value in spark_settings.settings(
            _MASTER, size="small", archive=f"-XX:ArchiveClassesAtExit={fresh}"
        ).items():
            submit += ["--conf", f"{name}={value}"]
        command = [*submit, __file__, "exercise", scratch]
        env = os.environ | spark_settings.spark_python()
        subprocess.run(
            command,
            check=True,
            text=True,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        with fresh.open("rb") as written:
            os.fsync(written.fileno())  # a JVM does not start with a truncated archive
        if (found := jvm.tried(fresh)) in ("ignored", "fatal"):
            raise TerminalError(
                "class-archive-foreign",
                tried="start a JVM with the class archive just made",
                found=f"it takes no class from it ({found}); jobs run without, only slower",
                changed=f"nothing; an older {archive.name} is as it was",
                next="unset SPARK_CONF_DIR, and again"
                if "SPARK_CONF_DIR" in os.environ
                else "draindown doctor PIPELINE",
            )
        fresh.replace(archive)
    return archive


def exercise(spark: SparkSession, scratch: Path) -> None:
    """Drain, check and compact what `init` writes, and a table derived from it, so that a job's
    classes are loaded.

    Three drains of each: into a new table, a MERGE by copy-on-write, a MERGE with deletion vectors.
    """
    root = scratch / "project"
    init(root, _NAME)
    with find(_NAME, root).open("a") as file:
        file.write(_WINDOWS)
    spec = rooted(load(find(_NAME, root), {}), root)
    landed = next((root / "landing" / _NAME).iterdir())
    for day, run in enumerate(("new", "copied", "marked"), 1):
        if run != "new":
            later = landed.with_name(f"{run}{landed.suffix}")  # which the pipeline's glob matches
            later.write_text(landed.read_text().replace("2026-01-01", f"2026-01-{day:02}"))
        way = _marking(spec) if run == "marked" else spec
        for flow in way.graph.order:
            request = Request(spec=way, flow=flow, step="drain", run_id=run, root=str(root))
            drain(request, spark)
            check(request.model_copy(update={"step": "check"}), spark)
    compact(request.model_copy(update={"flow": _NAME, "step": "compact", "force": True}), spark)


def _marking(spec: PipelineSpec) -> PipelineSpec:
    """Return the pipeline with copy-on-write off, as for large tables."""
    flows = {
        name: flow.model_copy(
            update={"maintenance": flow.maintenance.model_copy(update={"copy_on_write": 0})}
        )
        for name, flow in spec.flows.items()
    }
    return spec.model_copy(update={"flows": flows})


def main(arguments: list[str]) -> int:
    """Build the archive; inside spark-submit (`exercise SCRATCH`), run the exercise."""
    if arguments[:1] == ["exercise"]:
        exercise(SparkSession.builder.getOrCreate(), Path(arguments[1]))
        return 0
    try:
        print(make())
    except subprocess.CalledProcessError as error:
        print(error.stdout, file=sys.stderr)
        return 1
    except (TerminalError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
