"""kill -9 between MERGE and ledger: the next start is right, tells what the killed one did; nobody
saw half of it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.cli.program import main
from draindown.pages import overview
from draindown.runs.report import StepReport
from draindown.runs.store import read
from draindown.spark.job.main import attempt
from draindown.spark.runs.drain import drain
from tests.faults import lakes
from tests.faults.lakes import Control
from tests.faults.reader import Reader
from tests.faults.trial import Trial, conclude
from tests.landing import Landing


def test_a_start_after_kill_is_right_and_tells_what_the_killed_one_committed(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    landing = lakes.lake(tmp_path / "lake", batches=2)
    landing.write_pipeline()
    trial = Trial("F4", "last batch of two, merged", "SIGKILL between MERGE and ledger")
    lakes.killed(trial, landing.home, ("merged", 1))
    again = _next_start(landing, spark, trial)
    assert lakes.against_oracle(landing) == [] and lakes.wrong(landing) == []
    _shown(landing, again, capsys)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nobody_sees_half_of_what_a_killed_start_and_the_next_write(
    tmp_path: Path, spark: SparkSession, control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    landing, beside = lakes.lake(tmp_path / "lake"), lakes.witness(tmp_path / "lake")
    landing.write_pipeline()
    trial = Trial("F4", "last batch, merged, alone", "SIGKILL between MERGE and ledger")
    with Reader(landing.layout.tables.target.path, beside.layout.tables.target.path) as reader:
        lakes.killed(trial, landing.home, ("merged", 2), beside=True)
        again = _next_start(landing, spark, trial)
        beside.drain(spark)
    lakes.hold(trial, landing, control, beside=True)
    lakes.read_whole(trial, reader, landing, control, beside=True)
    conclude(trial)
    _shown(landing, again, capsys)


def _next_start(landing: Landing, spark: SparkSession, trial: Trial) -> StepReport:
    """The same run is tried again."""
    assert read(landing.layout, "r", "drain") is None, "it left no report"
    recorded = landing.ledger()
    before = len(recorded)
    again = landing.request("r")
    report, code = attempt(
        again, lambda stop: drain(again, spark, stop=stop, progress=lambda _: None)
    )
    trial.ran(code, report.error, report.seconds)
    assert code == Exit.DONE and report.drain is not None and report.run is not None
    rows = landing.ledger()
    assert len(rows) == before + 1, "its last batch was not recorded"
    assert len({row["attempt"] for row in rows}) == 1 and again.start not in {
        r["attempt"] for r in rows
    }
    assert (report.drain.batches, report.drain.totals["records"]) == ([], 0)
    assert report.run.totals["records"] == sum(row["records"] for row in rows) > 0
    assert report.run.totals["applied"] == sum(row["applied"] for row in rows)
    return report


def _shown(landing: Landing, report: StepReport, capsys: pytest.CaptureFixture[str]) -> None:
    """What is typed and the page tell of both starts."""
    rows = landing.ledger()
    _, out = (
        capsys.readouterr(),
        main(["--root", str(landing.home), "report", "p", "--run", "r", "--json"]),
    )
    assert out == 0
    listed = json.loads(capsys.readouterr().out)["reports"]
    assert [(one["outcome"], one["start"]) for one in listed] == [
        ("no report", rows[0]["attempt"]),
        (report.outcome, report.start),
    ]
    assert listed[0]["totals"]["batches"] == len(rows)
    assert main(["--root", str(landing.home), "report", "p"]) == 0
    shown = capsys.readouterr().out
    assert (
        "no new input" not in shown
        and f"{len(rows)} batches by other starts" in shown
        and rows[0]["attempt"] in shown
    )
    page = overview.flows(landing.home / "dags" / "pipelines", landing.home)[0]
    assert [row["batch"] for row in page.ledger] == list(reversed(range(len(rows))))
