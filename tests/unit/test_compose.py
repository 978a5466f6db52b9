"""docker-compose.yaml and docker/Dockerfile as files. They were not started here: no container
runtime is assumed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from draindown.base.errors import TerminalError

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yaml").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(:\?|:-)?([^}]*)\}")


def test_follows_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*command, ROOT / "docker-compose.yaml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_reference_is_defined() -> None:
    assert undefined(COMPOSE) == []


def undefined(compose: dict[str, Any]) -> list[str]:
    """What a service names and the file doesn't define: the specification's schema doesn't look."""
    services = compose["services"]
    problems = []
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            if other not in services:
                problems.append(f"{name}: depends_on {other}")
            elif how["condition"] == "service_healthy" and "healthcheck" not in services[other]:
                problems.append(f"{name}: waits for {other}, which has no healthcheck")
        problems += [
            f"{name}: network {n}"
            for n in service.get("networks", [])
            if n not in compose.get("networks", {})
        ]
        named = [
            volume.split(":")[0] for volume in service.get("volumes", []) if volume[0] not in "./$"
        ]
        problems += [f"{name}: volume {v}" for v in named if v not in compose.get("volumes", {})]
        problems += [
            f"{name}: secret {s}"
            for s in service.get("secrets", [])
            if s not in compose.get("secrets", {})
        ]
        numbers = [
            n
            for port in service.get("ports", [])
            for n in defaults(port).split(":")
            if "." not in n
        ]
        problems += [f"{name}: port {n}" for n in numbers if not 0 < int(n) < 65536]
    return problems


def defaults(text: str) -> str:
    """The text as Compose reads it where no variable is set."""
    return VARIABLE.sub(lambda match: match.group(3) if match.group(2) == ":-" else "", text)


def test_every_variable_is_documented_and_every_documented_one_is_used() -> None:
    documented = set(re.findall(r"^#   ([A-Z_]+)  +\S", TEXT, re.MULTILINE))
    used = {match.group(1) for match in VARIABLE.finditer(TEXT.split("\nname:")[1])}

    assert documented == used


def test_secrets_are_required_and_have_no_default() -> None:
    for match in VARIABLE.finditer(TEXT.split("\nname:")[1]):
        if re.search("PASSWORD|SECRET|KEY", match.group(1)):
            assert match.group(2) == ":?", f"{match.group(1)} must be required with a message"


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_bounded_and_stops_cleanly(name: str) -> None:
    service = SERVICES[name]

    assert service["stop_signal"] == "SIGINT"
    assert "mem_limit" in service
    assert re.search(r":[^:]*\d+\.\d+", service["image"]), "images are named with versions"
    assert "latest" not in service["image"]
    if service["restart"] != "no":
        assert "healthcheck" in service


def test_a_stop_is_sent_to_the_scheduler_alone_and_databases_are_asked_where_others_reach_them() -> (
    None
):
    """The image's init would send the signal to tasks too; a database that is being set up answers
    on its socket.
    """
    for name in ("airflow-apiserver", "airflow-scheduler", "airflow-dag-processor"):
        assert SERVICES[name]["environment"]["DUMB_INIT_SETSID"] == "0"
    for name in ("postgres", "database"):
        assert "pg_isready --host 127.0.0.1 " in SERVICES[name]["healthcheck"]["test"][1]


def test_ports_are_published_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_broker_is_optional_and_of_the_version_that_tests_run() -> None:
    broker, airflow = SERVICES["kafka"], SERVICES["airflow-scheduler"]["environment"]
    tested = re.search(
        r"kafka-server:(\d+\.\d+\.\d+) ", (ROOT / "broker.lock").read_text(encoding="utf-8")
    )
    advertised = dict(
        one.split("://") for one in broker["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(",")
    )

    assert broker["profiles"] == ["kafka"]
    assert tested and broker["image"].endswith(f":{tested[1]}")
    assert advertised["INSIDE"] == defaults(airflow["DRAINDOWN_KAFKA"])
    assert not [name for name, one in SERVICES.items() if "kafka" in one.get("depends_on", {})]


def test_image_and_lock_name_the_same_versions() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    image = SERVICES["airflow-apiserver"]["image"]

    assert f"FROM apache/airflow:{locked['apache-airflow']}-python3.11" in DOCKERFILE
    assert image.endswith(f"airflow{locked['apache-airflow']}-spark{locked['pyspark']}")


def test_everything_mounted_or_copied_exists() -> None:
    mounted = {
        v.split(":")[0]
        for s in SERVICES.values()
        for v in s.get("volumes", [])
        if v.startswith("./")
    }
    copied = {
        part
        for line in re.findall(r"^COPY \S+ (.+) \S+$", DOCKERFILE, re.MULTILINE)
        for part in line.split()
    }
    allowed = set(
        re.findall(
            r"^!(\S+)$", (ROOT / "docker" / "Dockerfile.dockerignore").read_text(), re.MULTILINE
        )
    )

    assert [path for path in mounted | copied if not (ROOT / path).exists()] == []
    assert copied == allowed


def test_airflow_on_this_machine_takes_the_dags_of_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import airflow_local

    ours = airflow_local.env({"DRAINDOWN_AIRFLOW_HOME": str(tmp_path)})
    assert ours["DRAINDOWN_LAKE"] == str(ROOT / "demo" / "lake")
    theirs = airflow_local.env(
        {"DRAINDOWN_AIRFLOW_HOME": str(tmp_path), "DRAINDOWN_ROOT": str(tmp_path / "shop")}
    )
    assert theirs["AIRFLOW__CORE__DAGS_FOLDER"] == str(tmp_path / "shop" / "dags")
    # the demo's are not for them
    assert not {"DRAINDOWN_LAKE", "DRAINDOWN_LANDING"} & theirs.keys()
    connection, cluster = (
        "AIRFLOW_CONN_SPARK_DEFAULT",
        '{"conn_type":"spark","host":"spark://head:7077"}',
    )
    assert "local[*]" in ours[connection]
    assert (
        airflow_local.env({"DRAINDOWN_AIRFLOW_HOME": str(tmp_path), connection: cluster})[
            connection
        ]
        == cluster
    )


def test_airflow_on_this_machine_shows_one_project_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import airflow_local

    monkeypatch.setenv("DRAINDOWN_AIRFLOW_HOME", str(tmp_path / "airflow"))
    asked: list[str] = []
    monkeypatch.setattr(airflow_local, "_await_health", asked.append)
    monkeypatch.setattr(airflow_local, "_running", lambda: 1)

    def up(project: str) -> str | None:
        monkeypatch.setenv("DRAINDOWN_ROOT", str(tmp_path / project))
        try:
            airflow_local.up()
        except TerminalError as error:
            return error.code
        return None

    assert up("shop") == "no-pipelines"
    for project in ("shop", "other"):
        (tmp_path / project / "dags" / "pipelines").mkdir(parents=True)
    assert up("shop") is None  # it was started before anyone wrote down for whom
    (tmp_path / "airflow" / "dags-folder").write_text(str(tmp_path / "shop" / "dags"))
    monkeypatch.setenv("DRAINDOWN_LAKE", "/some/lake")
    assert up("shop") is None
    assert "write to /some/lake" in capsys.readouterr().out
    assert up("other") == "another-project-served"
    # it was started with another port
    (tmp_path / "airflow" / "address").write_text("http://127.0.0.1:8081")
    assert up("shop") is None
    assert asked[-1] == "http://127.0.0.1:8081" and asked[-1] in capsys.readouterr().out


def test_what_runs_on_this_machine_is_asked_for_past_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import airflow_local

    for name in ("no_proxy", "NO_PROXY"):
        found = airflow_local.env(
            {"DRAINDOWN_AIRFLOW_HOME": str(tmp_path), name: "shop.example,localhost"}
        )
        assert found["no_proxy"] == found["NO_PROXY"] == "shop.example,localhost,127.0.0.1"
    answers = json.dumps(
        {name: {"status": "healthy"} for name in airflow_local._COMPONENTS}
    ).encode()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with answering(answers) as address:
        assert airflow_local.healthy(address)


@contextmanager
def answering(content: bytes) -> Iterator[str]:
    """The address of a server on loopback that answers each request with this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def waiting(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with these arguments. One that just began may not show them yet: it is awaited."""
    code = "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_airflow_is_known_to_run_by_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import airflow_local

    monkeypatch.setenv("DRAINDOWN_AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")  # no `ps`
    assert airflow_local._running() is None
    for words, is_airflow in (
        (["scripts/airflow_local.py", airflow_local._SERVE], True),
        (["another.py"], False),
    ):
        with waiting(*words) as process:
            (tmp_path / "airflow.pid").write_text(str(process.pid))
            assert airflow_local._running() == (process.pid if is_airflow else None)
        assert airflow_local._running() is None


def test_a_demo_that_failed_is_compared_again_though_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import demo
    import demo_run

    class Run(demo_run.DemoRun):
        has_work = through_airflow = show = lambda *_: None  # type: ignore[assignment]
        versions = "1"

        def layouts(self) -> dict[str, Any]:
            return {}

        def _versions(self) -> str:
            return self.versions

    verdicts = iter([False, True])
    monkeypatch.setattr(demo, "prepare", lambda: None)
    monkeypatch.setattr(
        demo, "compare", lambda *_, **__: SimpleNamespace(ok=next(verdicts), as_text=str)
    )
    run = Run("flights", {}, tmp_path / "airflow.log", "make demo")
    assert [demo.demo(run), demo.demo(run), demo.demo(run)] == [1, 0, 0]
    run.__class__.versions = "2"
    with pytest.raises(StopIteration):
        demo.demo(run)  # tables changed since: they are compared again


def test_a_broker_is_not_taken_for_another_program_and_is_used_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import kafka_broker

    (tmp_path / "server.properties").touch()
    with answering(b"") as address:
        (tmp_path / "port").write_text(address.rpartition(":")[2])
        with pytest.raises(TerminalError) as raised:
            kafka_broker.Broker(tmp_path).start()
        assert (
            raised.value.code == "broker-not-up" and "another program listens" in raised.value.found
        )
        with waiting(str(tmp_path / "server.properties")) as process:
            (tmp_path / "pid").write_text(str(process.pid))
            started = kafka_broker.Broker(tmp_path).start()
            started.stop()
            assert started.address == address.removeprefix("http://") and process.poll() is None
            assert kafka_broker.down(tmp_path) and process.poll() is not None
        assert not kafka_broker.down(tmp_path)


def test_airflow_is_as_patient_after_a_restart_as_without_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import airflow_local

    local = airflow_local.env({"DRAINDOWN_AIRFLOW_HOME": str(tmp_path)})
    names = [
        name for name in local if name.startswith(("AIRFLOW__SCHEDULER__", "AIRFLOW__WORKERS__"))
    ]
    assert len(names) == 5
    for name in ("airflow-apiserver", "airflow-scheduler", "airflow-dag-processor"):
        assert {n: SERVICES[name]["environment"].get(n) for n in names} == {
            n: local[n] for n in names
        }


def test_every_part_that_airflows_home_page_shows_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import airflow_local

    deployed = {
        str(service["command"]).split()[0] for service in SERVICES.values() if "command" in service
    }
    ours = set(airflow_local.PARTS | airflow_local.SHOWN)
    assert ours <= deployed
    assert {name.replace("_", "-") for name in airflow_local._ALL_COMPONENTS} - {
        "metadatabase"
    } <= ours


def test_what_a_task_of_the_demo_prints_is_where_airflow_looks_for_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from demo_run import TaskLogs

    run = "manual__2026-01-01T00:00:00+00:00"
    logs = TaskLogs(tmp_path)
    for task in ("plan-all", "flights.drain"):
        lines = (
            f"[info] [DAG TEST] starting task_id={task} map_index=-1",
            f"[info] \x1b[1m[DAG TEST] running task <TaskInstance: flights.{task} {run} [scheduled] ti_id=7>\x1b[0m",
            f"what {task} says",
            f"[info] [DAG TEST] end task task_id={task} map_index=-1",
            "between two tasks",
        )
        for line in lines:
            logs.add(line + "\n")
    ours = {
        file.relative_to(tmp_path): file.read_text().splitlines()
        for file in tmp_path.rglob("*.log")
    }
    assert {file.parts[:2] for file in ours} == {("dag_id=flights", f"run_id={run}")}
    for task in ("plan-all", "flights.drain"):
        (found,) = (
            text
            for file, text in ours.items()
            if file.parts[2:] == (f"task_id={task}", "attempt=1.log")
        )
        assert (
            f"what {task} says" in found
            and len(found) == 3
            and not any("\x1b" in line for line in found)
        )
