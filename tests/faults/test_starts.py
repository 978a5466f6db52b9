"""A try that is killed after it committed: what it did stands in the numbers and the card of whoever comes after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown import pages
from draindown.base.exits import Exit
from draindown.cli import main
from draindown.runs.store import read
from draindown.spark.job.main import attempt
from draindown.spark.runs.drain import drain
from tests.faults import lakes
from tests.faults.trial import Trial


@pytest.mark.timeout(300)
def test_what_a_killed_try_committed_is_told_by_the_next(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    landing = lakes.lake(tmp_path / "lake")
    landing.write_pipeline()
    lakes.killed(Trial("F01", "last batch", "kill -9 after its commit", ""), landing.home, ("merged", 2))
    assert read(landing.layout, "r", "drain") is None, "it left no report"
    recorded = landing.ledger()
    assert len(recorded) == 2, "nor did it record its last batch"
    again = landing.request("r")
    report, code = attempt(again, lambda stop: drain(again, spark, stop=stop, progress=lambda _: None))
    assert code == Exit.DONE and report.drain is not None and report.run is not None
    rows = landing.ledger()
    assert len(rows) == 3 and len({row["start"] for row in rows}) == 1 and again.start not in {r["start"] for r in rows}
    assert (report.drain.batches, report.drain.totals["records"]) == ([], 0)
    assert report.run.totals["records"] == sum(row["records"] for row in rows) > 0
    assert report.run.totals["applied"] == sum(row["applied"] for row in rows)
    _, out = capsys.readouterr(), main(["--root", str(landing.home), "report", "p", "--run", "r", "--json"])
    assert out == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["outcome"], one["start"]) for one in listed] == [
        ("no report", rows[0]["start"]),
        (report.outcome, again.start),
    ]
    assert listed[0]["totals"]["batches"] == 3
    assert main(["--root", str(landing.home), "report", "p"]) == 0
    shown = capsys.readouterr().out
    assert "no new input" not in shown and "3 batches by other starts" in shown and rows[0]["start"] in shown
    page = pages.flows(landing.home / "dags" / "pipelines", landing.home)[0]
    assert [row["batch"] for row in page.ledger] == [2, 1, 0]
