"""Drivers on a standalone Spark cluster of two workers: what they write, and what becomes of it
when a part is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
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
from draindown.config.models import PipelineSpec
from scripts.spark_cluster import SparkCluster, blind_to
from tests.faults import deployment
from tests.kafka.cluster import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
_PATIENCE = 600
ROWS = 400
_KEYED = ("keyed",)
_EVERY = ("keyed", "events", "topic", "hourly")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers, for tests that leave both alive."""
    found = SparkCluster(tmp_path_factory.mktemp("cluster"))
    yield found.start()
    found.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[SparkCluster]:
    """A cluster of the test's own, which it starts."""
    found = SparkCluster(tmp_path / "cluster")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster.start(tmp_path_factory.mktemp("broker"))
    yield started
    started.broker.stop()


_STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_driver_is_left() -> Iterator[None]:
    """End drivers that a test which failed left at their gate."""
    yield
    while _STARTED:
        if (driver := _STARTED.pop()).poll() is None:
            killed(driver)


class Project:
    """A pipeline of some flows of one input, and drivers that run it: keyed, appended, from a
    topic, and windows.

    `transform`: the module that the keyed flow's rows go through, with a function `changed`.
    `GATED` notes that a task reached it, and waits for `go`. `broker`: has the topic.
    """

    def __init__(
        self,
        home: Path,
        *flows: str,
        transform: str = "",
        broker: Cluster | None = None,
        **source: object,
    ) -> None:
        self.home, self.gate, self._broker = home, home / "gate", broker
        for place in (self.gate, home / "landing", home / "jobs" / "transforms"):
            place.mkdir(parents=True)
        files = {"files": str(home / "landing" / "*.json"), "format": "json"} | source
        columns = {
            "id": "string not null",
            "seq": "int not null",
            "at": "timestamp not null",
            "a": "int",
        }
        keyed = {
            "source": files,
            "columns": columns,
            "target": {"keys": ["id"], "sequence_by": ["seq"]},
        }
        window = {"time": "at", "size": "1 hour", "measures": {"n": "count(*)", "total": "sum(a)"}}
        known: dict[str, Any] = {
            "keyed": keyed | ({"transform": "own.changed"} if transform else {}),
            "events": {"source": files, "columns": columns, "target": {}},
            "hourly": {"source": {"table": "events"}, "window": window},
        }
        if broker is not None:
            self._topic = broker.new_name()
            broker.create(self._topic, 2)
            kafka = {"topics": [self._topic], "bootstrap_servers": broker.address}
            known["topic"] = keyed | {"source": {"kafka": kafka, "format": "json"}}
        (home / "jobs" / "transforms" / "own.py").write_text(transform.format(gate=self.gate))
        document = {
            "pipeline": "p",
            "lake": str(home / "lake"),
            "flows": {name: known[name] for name in flows},
        }
        (deployment.lay_out(home) / "p.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        self.spec = PipelineSpec.model_validate(document)

    def deliver(self, files: int = 1) -> list[dict[str, Any]]:
        """Write files of changes of 50 keys, and send them. Return all rows that were ever
        delivered.
        """
        start = len(list((self.home / "landing").iterdir()))
        for number in range(start, start + files):
            rows = [
                {
                    "id": f"k{n % 50}",
                    "seq": number * ROWS + n,
                    "at": f"2026-01-01T{n % 24:02}:30:00Z",
                    "a": n,
                }
                for n in range(ROWS)
            ]
            path = self.home / "landing" / f"{number:03}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (number + 1, number + 1))
            if self._broker is not None:
                sent = (
                    {"value": json.dumps(row).encode(), "partition": row["seq"] % 2} for row in rows
                )
                self._broker.send(self._topic, sent)
        paths = sorted((self.home / "landing").iterdir())
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def start(self, master: str, **environ: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "draindown.cli",
            "--root",
            str(self.home),
            "run",
            "p",
            "--json",
        ]
        driver = subprocess.Popen(
            command,
            env=os.environ | {"DRAINDOWN_MASTER": master, "SPARK_LOCAL_IP": "127.0.0.1"} | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        _STARTED.append(driver)
        return driver

    def run(self, master: str, **environ: str) -> tuple[int, dict[str, Any]]:
        return ended(self.start(master, **environ))

    def refused(self, master: str, **environ: str) -> tuple[int, str, dict[str, Any]]:
        """Run what must fail. Return its exit code, and its error's code and all of it; the lake
        has no table then.
        """
        exit_code, card = self.run(master, **environ)
        error = error_of(card)
        assert not self.spec.layout("keyed").tables.target.exists, error
        return exit_code, error["code"], error

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.spec.layout(table).tables.target.rows("select * from t")

    def hold(self, delivered: list[dict[str, Any]]) -> None:
        """Compare the tables with a fold in plain Python. Audit what records land in, whose ledger
        has each once.
        """
        newest = {row["id"]: row for row in sorted(delivered, key=lambda row: row["seq"])}
        expected = {"events": delivered} | {
            name: list(newest.values()) for name in ("keyed", "topic")
        }
        for name in expected.keys() & self.spec.flows.keys():
            kept = Counter((row["id"], row["seq"], row["a"]) for row in self.rows(name))
            assert kept == Counter((row["id"], row["seq"], row["a"]) for row in expected[name]), (
                name
            )
            found = audit(self.spec, name, root=self.home)
            assert found.residues == [] and found.unlooked == [], name
            ledger = self.spec.layout(name).tables.ledger.rows("select sum(records) as n from t")
            assert ledger == [{"n": len(delivered)}], name
        if "hourly" in self.spec.flows:
            hours: dict[int, list[int]] = {}
            for row in delivered:
                hours.setdefault(int(row["at"][11:13]), []).append(row["a"])
            windows = {
                row["window_start"].hour: (row["n"], row["total"]) for row in self.rows("hourly")
            }
            assert windows == {hour: (len(values), sum(values)) for hour, values in hours.items()}

    def at_gate(self) -> set[str]:
        """Return the process ids of the Python workers that wait at the gate."""
        return {path.name for path in self.gate.glob("waits-*")}

    def go(self) -> None:
        (self.gate / "go").touch()


GATED = """\
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


def changed(df):
    return df.withColumn("a", F.udf(_wait, "int")("a"))
"""
LARGE = """\
from pyspark.sql import functions as F


def changed(df):
    return df.withColumn("a", F.expr("a + size(array_repeat(a, 900000000)) % 1"))
"""
OTHER_PYTHON = """\
#!/bin/sh
exec {python} -c '
import runpy, sys
import pyspark.daemon, pyspark.worker
sys.version_info = (3, 9, 0, "final", 0)
runpy.run_module("pyspark.daemon", run_name="__main__")
' "$@"
"""
"""What another Python is to Spark: the version that a worker compares with that of the driver."""


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """Wait for a run. Return its exit code and what it printed as JSON."""
    out, err = process.communicate(timeout=_PATIENCE)
    try:
        return process.returncode, json.loads(out)
    except ValueError:
        pytest.fail(f"exit {process.returncode}: {out[-2000:]}\n{err[-4000:]}")


def killed(driver: subprocess.Popen[str]) -> None:
    """Kill a driver with its JVM, and wait."""
    for one in (*psutil.Process(driver.pid).children(recursive=True), driver):
        one.kill()
    driver.communicate()


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


def test_flows_of_every_kind_are_right_and_reports_name_the_executors(
    tmp_path: Path, cluster: SparkCluster, broker: Cluster
) -> None:
    project = Project(tmp_path / "p", *_EVERY, broker=broker)
    for _ in range(2):
        delivered = project.deliver()
        code, card = project.run(cluster.address)
        assert code == Exit.DONE, card
        project.hold(delivered)
    with_spark = [
        report
        for report in card["reports"]
        if report["step"] == "drain" and report["drain"]["batches"]
    ]
    assert [report["flow"] for report in with_spark] == list(_EVERY)
    assert {report["cluster"] for report in with_spark} == {
        f"{cluster.address}, 2 executors, 2 cores, 1.0 GB each"
    }
    # 2 GiB of executors' heap, not that of the driver
    assert "heap 2.0 GB / 8" in with_spark[0]["drain"]["bound"]
    assert not list(Path(project.spec.layout("keyed").home).glob("probe-*"))


def test_the_dag_s_operators_submit_to_the_cluster_of_the_connection(
    tmp_path: Path, cluster: SparkCluster, broker: Cluster
) -> None:
    project = Project(tmp_path / "p", *_EVERY, broker=broker)
    delivered = project.deliver()
    connection = json.dumps({"conn_type": "spark", "host": cluster.address})
    settings = {"AIRFLOW_CONN_SPARK_DEFAULT": connection, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = deployment.run_once(project.home, "p", **settings)
    assert done.returncode == 0, done.stdout[-6000:]
    project.hold(delivered)
    for flow in _EVERY:
        (report,) = Path(project.spec.layout(flow).home).glob("reports/*/drain@*.json")
        assert json.loads(report.read_text())["cluster"].startswith(
            f"{cluster.address}, 2 executors"
        ), flow


def test_an_executor_that_is_killed_within_a_batch_costs_no_row(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    project, delivered, driver = _at_gate(tmp_path, cluster)
    (waiting, *_) = project.at_gate()
    worker = psutil.Process(int(waiting.removeprefix("waits-")))
    (executor,) = [one for one in cluster.executors() if one in worker.parents()]
    executor.kill()
    until(lambda: len(cluster.executors()) == 2 and executor not in cluster.executors(), driver)
    _goes_on(project, driver, delivered)


def test_a_driver_that_is_killed_within_a_batch_leaves_nothing_of_it_and_the_next_one_does_it(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    project, delivered, driver = _at_gate(tmp_path, cluster)
    killed(driver)
    assert not project.spec.layout("keyed").tables.target.exists
    _goes_on(project, project.start(cluster.address), delivered)


@pytest.mark.parametrize("lost", ["worker", "master"])
def test_a_part_of_the_cluster_that_is_lost_within_a_batch_costs_no_row(
    tmp_path: Path, own: SparkCluster, lost: str
) -> None:
    project, delivered, driver = _at_gate(tmp_path, own.start())
    if lost == "worker":
        own.kill_worker()
        until(lambda: len(own.executors()) == 1, driver)
    else:
        own.kill_master()
    _goes_on(project, driver, delivered)


def _at_gate(
    tmp_path: Path, cluster: SparkCluster
) -> tuple[Project, list[dict[str, Any]], subprocess.Popen[str]]:
    """Return a project, what was delivered, and a driver of which a task is within the first of two
    batches.
    """
    project = Project(tmp_path / "p", *_KEYED, transform=GATED, max_files_per_trigger=1)
    delivered = project.deliver(2)
    driver = project.start(cluster.address)
    until(project.at_gate, driver)
    return project, delivered, driver


def _goes_on(
    project: Project, driver: subprocess.Popen[str], delivered: list[dict[str, Any]]
) -> None:
    """Open the gate. The driver drains both batches to their end."""
    project.go()
    code, card = ended(driver)
    assert code == Exit.DONE, card
    project.hold(delivered)
    (drain,) = [report for report in card["reports"] if report["step"] == "drain"]
    assert drain["outcome"] == "done" and len(drain["drain"]["batches"]) == 2


@pytest.mark.parametrize(
    ("hidden", "code"), [("lake", "lake-not-shared"), ("landing", "landing-not-shared")]
)
def test_workers_that_do_not_see_what_the_driver_sees_are_refused_before_anything_is_read(
    tmp_path: Path, own: SparkCluster, cluster: SparkCluster, hidden: str, code: str
) -> None:
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("this user may not mount")
    project = Project(tmp_path / "p", *_KEYED)
    delivered, place = project.deliver(), project.home / hidden
    place.mkdir(exist_ok=True)
    exit_code, found, error = project.refused(own.start(under=blind_to(place)).address)
    assert (exit_code, found) == (Exit.NEEDS_PERSON, code), error
    assert str(place) in str(error["next"]) and error["changed"] == "nothing"
    assert project.run(cluster.address)[0] == Exit.DONE
    project.hold(delivered)


def test_workers_of_another_user_are_refused_and_the_error_says_whose_the_lake_is(
    own: SparkCluster,
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root may start a process of another user")
    with tempfile.TemporaryDirectory(
        dir="/var/tmp"
    ) as home:  # pytest's own directories are closed to others
        own.home, project = Path(home, "cluster"), Project(Path(home, "p"), *_KEYED)
        project.deliver()
        own.home.mkdir()
        for place in (Path(home), own.home):
            place.chmod(0o777)
        own.start(under=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"))
        exit_code, found, error = project.refused(own.address)
        own.stop()
    assert (exit_code, found) == (Exit.NEEDS_PERSON, "lake-not-shared"), error
    assert "is root's and closed to others" in error["found"], error


def test_what_executors_lack_is_named_and_nothing_is_changed(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    project = Project(tmp_path / "p", *_KEYED, transform=GATED)
    project.go()
    delivered = project.deliver()
    found = project.refused(cluster.address, DRAINDOWN_EXECUTOR_JARS="/nonexistent")
    assert found[:2] == (Exit.NEEDS_PERSON, "executors-lack-jars"), found
    other = tmp_path / "python"
    other.write_text(OTHER_PYTHON.format(python=sys.executable))
    other.chmod(0o755)
    for python, said in (("/nonexistent/python", "/nonexistent/python"), (str(other), "3.9")):
        found = project.refused(cluster.address, PYSPARK_PYTHON=python)
        assert (
            found[:2] == (Exit.NEEDS_PERSON, "executors-lack-python") and said in found[2]["found"]
        ), found
    found = project.refused("spark://127.0.0.1:1")
    assert found[:2] == (Exit.TRY_AGAIN, "cluster-gone"), found
    assert project.run(cluster.address)[0] == Exit.DONE
    project.hold(delivered)


def test_rows_that_no_executor_s_memory_holds_end_the_step_by_name(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    project = Project(tmp_path / "p", *_KEYED, transform=LARGE)
    delivered = project.deliver()
    exit_code, found, error = project.refused(cluster.address)
    assert (exit_code, found) == (Exit.NEEDS_PERSON, "out-of-memory"), error
    assert "executors of" in error["tried"] and "spark.executor.memory" in str(error["next"]), error
    (project.home / "jobs" / "transforms" / "own.py").write_text(
        "def changed(df):\n    return df\n"
    )
    assert project.run(cluster.address)[0] == Exit.DONE
    project.hold(delivered)


def test_a_cluster_without_room_for_an_executor_is_waited_for_and_then_named(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    project = Project(tmp_path / "p", *_KEYED)
    project.deliver()
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.executor.memory 8g\n")
    given = {"SPARK_CONF_DIR": str(conf), "DRAINDOWN_EXECUTOR_WAIT": "5 seconds"}
    exit_code, found, error = project.refused(cluster.address, **given)
    assert (exit_code, found) == (Exit.TRY_AGAIN, "no-executors") and "8192 MiB" in error[
        "found"
    ], error
