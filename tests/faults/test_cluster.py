"""Drivers on a standalone Spark cluster of two workers: what they write, and what becomes of it when a part is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from draindown.audit.recount import audit
from draindown.base.exits import Exit
from draindown.lake.table_log import TableLog
from draindown.spec.models import PipelineSpec
from scripts.spark_cluster import SparkCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
_PATIENCE = 600
FILES, ROWS = 2, 400


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    found = SparkCluster(tmp_path / "cluster")
    yield found
    found.stop()


class Project:
    """A pipeline with a keyed flow, an append flow and a window over that, and a driver that runs it on the cluster.

    `gated`: a transform in Python notes that a task reached it, and waits for `go`.
    """

    def __init__(self, home: Path, *, gated: bool = False) -> None:
        self.home, self.gate = home, home / "gate"
        for place in (self.gate, home / "landing", home / "dags" / "pipelines", home / "jobs" / "transforms"):
            place.mkdir(parents=True)
        source = {"files": str(home / "landing" / "*.json"), "format": "json", "max_files_per_trigger": 1}
        columns = {"id": "string not null", "seq": "int not null", "at": "timestamp not null", "a": "int"}
        keyed = {"source": source, "columns": columns, "target": {"keys": ["id"], "sequence_by": ["seq"]}}
        events = {"source": source, "columns": columns, "target": {}}
        if gated:
            keyed["transform"] = "gates.waits"
            events["target"] = {}
            (home / "jobs" / "transforms" / "gates.py").write_text(_GATES.format(gate=str(self.gate)))
        window = {"time": "at", "size": "1 hour", "measures": {"n": "count(*)", "total": "sum(a)"}}
        hourly = {"source": {"table": "events"}, "window": window}
        flows: dict[str, Any] = {"keyed": keyed} | ({} if gated else {"events": events, "hourly": hourly})
        document = {"pipeline": "p", "lake": str(home / "lake"), "flows": flows}
        (home / "dags" / "pipelines" / "p.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        self.spec = PipelineSpec.model_validate(document)

    def deliver(self, files: int = FILES) -> list[dict[str, Any]]:
        """Write files of changes of 50 keys. Return all rows that were ever delivered."""
        start = len(list((self.home / "landing").iterdir()))
        for number in range(start, start + files):
            rows = [
                {"id": f"k{n % 50}", "seq": number * ROWS + n, "at": f"2026-01-01T{n % 24:02}:30:00Z", "a": n}
                for n in range(ROWS)
            ]
            path = self.home / "landing" / f"{number:03}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (number + 1, number + 1))
        paths = sorted((self.home / "landing").iterdir())
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def start(self, master: str, **environ: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "draindown.cli", "--root", str(self.home), "run", "p", "--json"]
        return subprocess.Popen(
            command,
            env=os.environ | {"DRAINDOWN_MASTER": master, "SPARK_LOCAL_IP": "127.0.0.1"} | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, master: str, **environ: str) -> tuple[int, dict[str, Any]]:
        return ended(self.start(master, **environ))

    def rows(self, table: str) -> list[dict[str, Any]]:
        return TableLog(self.spec.layout(table).table).rows("select * from t")

    def hold(self, delivered: list[dict[str, Any]]) -> None:
        """Compare the tables with a fold in plain Python, and audit each landing flow."""
        newest = {row["id"]: row for row in sorted(delivered, key=lambda row: row["seq"])}
        assert {(row["id"], row["seq"], row["a"]) for row in self.rows("keyed")} == {
            (row["id"], row["seq"], row["a"]) for row in newest.values()
        }
        assert not audit(self.spec, "keyed", root=self.home).residues
        if "events" in self.spec.flows:
            kept = Counter((row["id"], row["seq"], row["a"]) for row in self.rows("events"))
            assert kept == Counter((row["id"], row["seq"], row["a"]) for row in delivered)
            assert not audit(self.spec, "events", root=self.home).residues
            hours: dict[int, list[int]] = {}
            for row in delivered:
                hours.setdefault(int(row["at"][11:13]), []).append(row["a"])
            found = {row["window_start"].hour: (row["n"], row["total"]) for row in self.rows("hourly")}
            assert found == {hour: (len(values), sum(values)) for hour, values in hours.items()}

    def at_gate(self) -> set[str]:
        """Return the process ids of the Python workers that wait at the gate."""
        return {path.name for path in self.gate.glob("waits-*")}

    def go(self) -> None:
        (self.gate / "go").touch()


_GATES = """\
import os
import time

from pyspark.sql import functions as F

GATE = "{gate}"


def _passes(value):
    return value


def _wait(value):
    open(os.path.join(GATE, f"waits-{{os.getpid()}}"), "w").close()
    while not os.path.exists(os.path.join(GATE, "go")):
        time.sleep(0.05)
    return _passes(value)


def waits(df):
    return df.withColumn("a", F.udf(_wait, "int")("a"))
"""


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """Wait for a run. Return its exit code and what it printed as JSON."""
    out, err = process.communicate(timeout=_PATIENCE)
    try:
        return process.returncode, json.loads(out)
    except ValueError:
        pytest.fail(f"exit {process.returncode}: {out[-2000:]}\n{err[-4000:]}")


def until(there: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for a condition that a running driver brings about."""
    end = time.monotonic() + _PATIENCE
    while not there():
        assert process.poll() is None, f"the run ended first: {process.communicate()[1][-4000:]}"
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def error_of(card: Mapping[str, Any]) -> dict[str, Any]:
    (found,) = [report["error"] for report in card["reports"] if report["error"]]
    return dict(found)


def test_keyed_append_and_derived_flows_are_right_and_reports_name_the_executors(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    project = Project(tmp_path / "p")
    cluster.start()
    for _ in range(2):
        delivered = project.deliver()
        code, card = project.run(cluster.address)
        assert code == Exit.DONE
        project.hold(delivered)
    with_spark = [report for report in card["reports"] if report["step"] == "drain" and report["drain"]["batches"]]
    assert [report["flow"] for report in with_spark] == ["keyed", "events", "hourly"]
    assert {report["cluster"] for report in with_spark} == {f"{cluster.address}, 2 executors, 2 cores, 1.0 GB each"}
    # 2 GiB of executors' heap, not that of the driver
    assert "heap 2.0 GB / 8" in with_spark[0]["drain"]["bound"]
    assert not list(Path(project.spec.layout("keyed").home).glob("probe-*"))


@pytest.mark.parametrize("lost", ["executor", "worker", "master", "driver"])
def test_a_part_of_the_cluster_that_is_lost_within_a_batch_costs_no_row(
    tmp_path: Path, cluster: SparkCluster, lost: str
) -> None:
    project = Project(tmp_path / "p", gated=True)
    delivered = project.deliver()
    cluster.start()
    driver = project.start(cluster.address)
    until(project.at_gate, driver)
    _lose(lost, cluster, driver, project)
    project.go()
    code, card = ended(driver) if lost != "driver" else project.run(cluster.address)
    assert code == Exit.DONE
    project.hold(delivered)
    (drain,) = [report for report in card["reports"] if report["step"] == "drain"]
    assert drain["outcome"] == "done"


def _lose(lost: str, cluster: SparkCluster, driver: subprocess.Popen[str], project: Project) -> None:
    if lost == "executor":
        (waiting, *_) = project.at_gate()
        worker = psutil.Process(int(waiting.removeprefix("waits-")))
        (executor,) = [one for one in cluster.executors() if one in worker.parents()]
        executor.kill()
        executor.wait()
        until(lambda: len(cluster.executors()) == 2 and executor not in cluster.executors(), driver)
    elif lost == "worker":
        (waiting, *_) = project.at_gate()
        cluster.kill_worker()
        until(lambda: len(cluster.executors()) == 1, driver)
        assert waiting
    elif lost == "master":
        cluster.kill_master()
    else:
        for one in (*psutil.Process(driver.pid).children(recursive=True), driver):
            one.kill()
        driver.communicate()
        assert not TableLog(project.spec.layout("keyed").table).exists


@pytest.mark.parametrize(("blind_to", "code"), [("lake", "lake-not-shared"), ("landing", "landing-not-shared")])
def test_workers_that_do_not_see_what_the_driver_sees_are_refused_before_anything_is_read(
    tmp_path: Path, cluster: SparkCluster, blind_to: str, code: str
) -> None:
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("this user may not mount")
    project = Project(tmp_path / "p", gated=True)
    project.go()
    delivered = project.deliver()
    hidden = project.home / blind_to
    hidden.mkdir(exist_ok=True)
    cluster.start(blind_to=hidden)
    exit_code, card = project.run(cluster.address)
    assert exit_code == Exit.NEEDS_PERSON
    error = error_of(card)
    assert error["code"] == code and str(hidden) in str(error["next"]), error
    assert not TableLog(project.spec.layout("keyed").table).exists
    cluster.stop()
    seeing = SparkCluster(tmp_path / "seeing").start()
    try:
        assert project.run(seeing.address)[0] == Exit.DONE
    finally:
        seeing.stop()
    project.hold(delivered)


def test_what_executors_lack_is_named_and_nothing_is_changed(tmp_path: Path, cluster: SparkCluster) -> None:
    project = Project(tmp_path / "p", gated=True)
    project.go()
    delivered = project.deliver()
    cluster.start()
    code, card = project.run(cluster.address, DRAINDOWN_EXECUTOR_JARS="/nonexistent")
    assert (code, error_of(card)["code"]) == (Exit.NEEDS_PERSON, "executors-lack-jars")
    code, card = project.run(cluster.address, PYSPARK_PYTHON="/nonexistent/python")
    assert (code, error_of(card)["code"]) == (Exit.NEEDS_PERSON, "executors-lack-python"), error_of(card)
    code, card = project.run("spark://127.0.0.1:1")
    assert (code, error_of(card)["code"]) == (Exit.TRY_AGAIN, "cluster-gone")
    assert not TableLog(project.spec.layout("keyed").table).exists
    assert project.run(cluster.address)[0] == Exit.DONE
    project.hold(delivered)


def test_a_cluster_without_room_for_an_executor_is_waited_for_and_then_named(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    project = Project(tmp_path / "p")
    project.deliver()
    cluster.start(1)
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.executor.memory 8g\n")
    code, card = project.run(cluster.address, SPARK_CONF_DIR=str(conf), DRAINDOWN_EXECUTOR_WAIT="5 seconds")
    error = error_of(card)
    assert (code, error["code"]) == (Exit.TRY_AGAIN, "no-executors")
    assert "8192 MiB" in error["found"]
