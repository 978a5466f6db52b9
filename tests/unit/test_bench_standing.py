"""An Airflow that stands while runs of its DAG are measured: started once, asked as a person asks, and always ended.

The Airflow here is a stand-in with the same commands, addresses and tables, so that it can fail on demand; what the
real one does with the project that it is given is in tests/airflow and tests/faults.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from benchmarks import standing
from benchmarks.place import CHANGES, Failed, Place

STAND_IN = '''
import json, os, signal, sqlite3, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOME = Path(os.environ["AIRFLOW_HOME"])
MOOD = (HOME.parent / "mood").read_text() if (HOME.parent / "mood").exists() else ""


def ask(*question):
    with sqlite3.connect(HOME / "airflow.db", timeout=30) as db:
        return db.execute(*question).fetchall()


def run(name):
    """What the scheduler does with a run: some work in a process of its own, then an end."""
    ask("insert into dag_run (dag_id, run_id, state) values ('changes', ?, 'running')", [name])
    burn = "import time\\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", burn])
    state = "failed" if MOOD == "fails" else "success"
    ask("insert into task_instance values ('changes.drain', 2, ?, ?)", [state, name])
    log = HOME / "logs" / "dag_id=changes" / f"run_id={name}" / "task_id=changes.drain" / "attempt=2.log"
    log.parent.mkdir(parents=True)
    log.write_text("it broke")
    if MOOD != "hangs":
        ask("update dag_run set state = ? where run_id = ?", [state, name])


class Server(BaseHTTPRequestHandler):
    def answer(self, code, content):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def do_GET(self):
        well = {"status": "healthy"}
        self.answer(200, {"metadatabase": well, "scheduler": well} if self.path.endswith("/health") else {})

    def do_POST(self):
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/auth/token":
            known = json.loads((HOME / "passwords.json").read_text())
            ok = known.get(content["username"]) == content["password"]
            self.answer(201 if ok else 401, {"access_token": "let me in"})
        elif self.headers["Authorization"] != "Bearer let me in" or self.path != "/api/v2/dags/changes/dagRuns":
            self.answer(403, {})
        else:
            name = f"manual__{time.monotonic_ns()}"
            threading.Thread(target=run, args=[name]).start()
            while not ask("select 1 from dag_run where run_id = ?", [name]):
                time.sleep(0.01)
            self.answer(200, {"dag_run_id": name, **content})


command = sys.argv[1:]
(HOME / "commands").open("a").write(json.dumps(command) + "\\n")
if command == ["db", "migrate"]:
    if MOOD == "no database":
        sys.exit("disk full")
    ask("create table dag (dag_id text, is_paused int)")
    ask("create table dag_run (id integer primary key, dag_id text, run_id text, state text)")
    ask("create table task_instance (task_id text, try_number int, state text, run_id text)")
elif command == ["api-server"]:
    host, port = "127.0.0.1", int(os.environ["AIRFLOW__API__PORT"])
    ThreadingHTTPServer((host, port), Server).serve_forever()
elif command == ["dag-processor"]:
    if MOOD == "no processor":
        sys.exit(1)
    found = list(Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).glob("pipelines/*.yaml"))
    for one in found:
        ask("insert into dag values (?, 0)", [one.stem])
    time.sleep(600)
elif command == ["scheduler", "--skip-serve-logs"]:
    if MOOD == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)  # as a driver has a session of its own
    time.sleep(600)
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place at which `python -m airflow` is the stand-in."""
    package = tmp_path / "packages" / "airflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}:{os.environ.get('PYTHONPATH', '')}")
    home = tmp_path / "home"
    home.mkdir()
    return Place(CHANGES, home / "landing", home / "lake", home)


def _mood(place: Place, mood: str) -> None:
    (place.home / "mood").write_text(mood)


def _below() -> set[psutil.Process]:
    return {one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE}


def _ends_with_nothing_left(before: set[psutil.Process], seen: set[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(seen - before, timeout=20)
    return not {one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE}


def test_runs_of_the_dag_are_measured_one_by_one(place: Place) -> None:
    before = _below()
    with standing.airflow(place):
        seen = _below()
        assert len(seen - before) >= 4
        first, second = standing.dag_run(place), standing.dag_run(place)
    assert _ends_with_nothing_left(before, seen)
    for cost in (first, second):
        assert (cost.exit_code, cost.wall_s > 0.4, cost.rss_mb > 0) == (0, True, True)
        assert 0.4 <= cost.cpu_s < 5
    assert (place.home / "err.txt").read_text() == ""
    commands = [json.loads(line) for line in (place.home / "airflow" / "commands").read_text().splitlines()]
    assert commands[0] == ["db", "migrate"]
    assert sorted(commands[1:]) == [["api-server"], ["dag-processor"], ["scheduler", "--skip-serve-logs"]]


def test_servers_that_idle_cost_what_they_burn(place: Place) -> None:
    with standing.airflow(place):
        cost = standing.idle(1.2)
    assert cost.exit_code == 0
    assert cost.wall_s >= 1.2
    assert cost.rss_mb > 0


def test_a_run_that_fails_says_what_its_tasks_said(place: Place) -> None:
    _mood(place, "fails")
    with standing.airflow(place):
        assert standing.dag_run(place).exit_code == 1
    assert (place.home / "err.txt").read_text() == "changes.drain: try 2, failed\nit broke"


def test_a_run_that_never_ends_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    _mood(place, "hangs")
    monkeypatch.setattr(standing, "_RUN_SECONDS", 1.0)
    before = _below()
    with pytest.raises(Failed, match="does not end"), standing.airflow(place):
        seen = _below()
        standing.dag_run(place)
    assert _ends_with_nothing_left(before, seen)


@pytest.mark.parametrize(("mood", "said"), [("no database", "disk full"), ("no processor", "a part of Airflow ended")])
def test_an_airflow_that_does_not_start_fails_the_work_and_leaves_nothing(place: Place, mood: str, said: str) -> None:
    _mood(place, mood)
    before = _below()
    with pytest.raises(Failed, match=said), standing.airflow(place):
        pytest.fail("it stands")
    assert _below() <= before


def test_whatever_happens_while_it_stands_it_is_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a scheduler that does not listen, and what that started."""
    _mood(place, "deaf")
    monkeypatch.setattr(standing, "_DOWN_SECONDS", 0.5)
    before = _below()
    with pytest.raises(KeyboardInterrupt), standing.airflow(place):
        _until(lambda: any(one.name() == "sleep" for one in _below() - before))
        seen = _below()
        raise KeyboardInterrupt
    assert _ends_with_nothing_left(before, seen)


def test_the_project_holds_this_pipeline_only_and_airflow_listens_on_the_loopback_interface(place: Place) -> None:
    project = standing._project(place)
    settings = standing._settings(place, project)
    files = {str(path.relative_to(project)) for path in project.rglob("*") if path.suffix in (".py", ".yaml", ".json")}
    assert {"dags/draindown_dags.py", "dags/pipelines/changes.yaml", "expectations/changes.json"} <= files
    assert {"jobs/drain.py", "jobs/check.py", "jobs/compact.py"} <= files
    assert "dags/pipelines/flights.yaml" not in files
    assert settings["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert urlsplit(settings["AIRFLOW__API__BASE_URL"]).port == int(settings["AIRFLOW__API__PORT"])
    assert settings["DRAINDOWN_ROOT"] == str(project)
    assert settings["AIRFLOW__CORE__DAGS_FOLDER"] == str(project / "dags")
    assert settings["AIRFLOW_HOME"] == str(place.home / "airflow")
    assert (settings["DRAINDOWN_LAKE"], settings["DRAINDOWN_LANDING"]) == (str(place.lake), str(place.landing))
    with socket.socket() as free:
        free.bind(("127.0.0.1", int(settings["AIRFLOW__API__PORT"])))
    assert (place.home / "airflow" / "passwords.json").stat().st_mode & 0o077 == 0


def _until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)
