"""A local Airflow for development: SQLite, one process tree, loopback only, state under
`.work/airflow`.

    python scripts/airflow_local.py up | down | serve | env

`up` starts `serve` in the background: Airflow in the foreground, until SIGINT or SIGTERM. `env`
prints the settings for a shell: `eval "$(python scripts/airflow_local.py env)"`. The DAGs are those
of the project in DRAINDOWN_ROOT, by default of this clone.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import airflow_processes
import psutil

from draindown.airflow.process import die_with_parent
from draindown.base.errors import DraindownError, TerminalError
from draindown.base.exits import exit_for
from draindown.base.formatting import count

ROOT = Path(__file__).resolve().parent.parent
PORT_VARIABLE = "DRAINDOWN_AIRFLOW_PORT"
USER = "admin"
_SERVE = "serve"
UP_SECONDS = 240
DOWN_SECONDS = 120  # a running Spark task takes about a minute to end
LEFT_SECONDS = (
    20  # workers without a scheduler ignore SIGTERM; a killed driver continues in the next run
)
PARTS: dict[str, tuple[str, ...]] = {
    "api-server": (),
    "scheduler": ("--skip-serve-logs",),
    "dag-processor": (),
}
"""The Airflow processes that run DAGs, with their flags, as in docker-compose.yaml. Without its
flag the scheduler would serve logs on every interface; only the API server listens."""
SHOWN: dict[str, tuple[str, ...]] = {"triggerer": ("--skip-serve-logs",)}
"""Processes that draindown's DAGs don't need, as no task defers. Without them Airflow's home page
shows "unhealthy".
"""
_COMPONENTS = ("metadatabase", "scheduler")
_ALL_COMPONENTS = (*_COMPONENTS, "dag_processor", "triggerer")
_REPORT_SECONDS = 10.0
# no proxy: the server is this machine's
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_NO_PROXY = ("no_proxy", "NO_PROXY")  # programs prefer the one or the other
_JOB = "draindown "  # prefix of the names of draindown's Spark applications


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory that holds all state of this Airflow."""
    return Path(environ.get("DRAINDOWN_AIRFLOW_HOME") or ROOT / ".work" / "airflow")


def env(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings of the local Airflow. Creates missing secrets, readable by this user
    only.
    """
    place, port = home(environ), environ.get(PORT_VARIABLE) or "8080"
    place.mkdir(parents=True, exist_ok=True)
    project = Path(environ.get("DRAINDOWN_ROOT") or ROOT).resolve()
    chosen = {
        "AIRFLOW_HOME": place,
        "AIRFLOW__CORE__DAGS_FOLDER": project / "dags",
        "AIRFLOW__CORE__PLUGINS_FOLDER": ROOT / "plugins",
        "AIRFLOW__CORE__LOAD_EXAMPLES": False,
        "AIRFLOW__CORE__PARALLELISM": 4,
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": _passwords(place),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{place}/airflow.db",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": port,
        # tasks reach the server by this URL, which does not follow the port (apache/airflow#50739)
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API_AUTH__JWT_SECRET": _secret(place / "jwt-secret"),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": 10,
        # After a restart, adopt the tasks of a killed scheduler within half a minute, not five,
        # without using up a try because the server starts more slowly than the scheduler.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 30,
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 90,
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": 12,
        "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX": 10,
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": 30,
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": False,
        "AIRFLOW_CONN_SPARK_DEFAULT": environ.get("AIRFLOW_CONN_SPARK_DEFAULT")
        or json.dumps({"conn_type": "spark", "host": "local[*]"}),
        "DRAINDOWN_ROOT": project,
        # what runs here is asked for without a proxy, also by tasks, whose client takes it from
        # these
        **dict.fromkeys(_NO_PROXY, _past_proxy(environ)),
    }
    if project == ROOT:
        demo = Path(environ.get("DRAINDOWN_DEMO_HOME") or ROOT / "demo")
        chosen["DRAINDOWN_LAKE"] = environ.get("DRAINDOWN_LAKE") or demo / "lake"
        chosen["DRAINDOWN_LANDING"] = environ.get("DRAINDOWN_LANDING") or demo / "landing"
    return {name: str(value) for name, value in chosen.items()}


def up() -> None:
    """Start Airflow unless it runs, wait until it is healthy, and print its address."""
    settings = env()
    url, dags = settings["AIRFLOW__API__BASE_URL"], settings["AIRFLOW__CORE__DAGS_FOLDER"]
    _refuse_no_project(Path(dags))
    if _running() is None:
        _end_left()
        _refuse_busy_port(int(settings["AIRFLOW__API__PORT"]), settings["DRAINDOWN_ROOT"])
        _start(settings)
        _served().write_text(dags)
        _address().write_text(url)
    elif _address().exists():  # the port may have been another one then
        url = _address().read_text()
    _refuse_another_project(dags)
    _await_health(url)
    print(f"Airflow runs at {url}  (user {USER}, password in {_passwords(home())})")
    print(f"Its DAGs are those of {dags}    stop with: make down")
    if "DRAINDOWN_LAKE" not in settings and (lake := os.environ.get("DRAINDOWN_LAKE")):
        print(f"DRAINDOWN_LAKE is set: pipelines that name it write to {lake}")


def _refuse_no_project(dags: Path) -> None:
    if not (dags / "pipelines").is_dir():
        raise TerminalError(
            "no-pipelines",
            tried=f"start Airflow with the DAGs of {dags}",
            found=f"there is no {dags / 'pipelines'}",
            next="make up PROJECT=../shop   # the directory that `draindown init` wrote to",
        )


def _refuse_another_project(dags: str) -> None:
    served = _served().read_text() if _served().exists() else dags
    if served != dags:
        raise TerminalError(
            "another-project-served",
            tried=f"show the DAGs of {dags}",
            found=f"Airflow runs already, with those of {served}",
            changed="nothing",
            next=["make down", _make_up(str(Path(dags).parent))],
            in_order=True,
        )


def down() -> None:
    """Stop Airflow if it runs, and end the processes that it left."""
    pid = _running()
    if pid is not None:
        _stop(pid)
    ended = _end_left()
    _pid_file().unlink(missing_ok=True)
    print("Airflow does not run." if pid is None and not ended else "Stopped.")


def _stop(pid: int) -> None:
    print("Stopping Airflow ...", flush=True)
    os.kill(pid, signal.SIGTERM)
    if not _gone(pid, DOWN_SECONDS, tell=print):
        print(
            f"It did not end within {DOWN_SECONDS} s and is killed; its runs go on after the next start.",
            flush=True,
        )
        os.killpg(pid, signal.SIGKILL)
        _gone(pid, 10)


def _end_left() -> bool:
    """End the processes that an Airflow left which no longer runs. Return whether there were any.

    Raises TerminalError `airflow-not-stopped` if one of them survives SIGKILL.
    """
    left = airflow_processes.left(home())
    if not left:
        return False
    print(
        f"Ending {count(len(left), 'process', 'processes')} that Airflow left: {airflow_processes.described(left)}",
        flush=True,
    )
    if surviving := airflow_processes.end(left, LEFT_SECONDS):
        raise TerminalError(
            "airflow-not-stopped",
            tried="end the processes that Airflow left",
            found=f"{len(surviving)} of {len(left)} survived SIGKILL: {airflow_processes.described(surviving)}",
            changed=f"{count(len(left) - len(surviving), 'process was', 'processes were')} ended",
            next=f"ps -o pid,stat,wchan:30,args -p {','.join(str(process.pid) for process in surviving)}",
        )
    return True


def _start(settings: Mapping[str, str]) -> None:
    with _log().open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), _SERVE],
            env={**os.environ, **settings, **_started_by_up()},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _pid_file().write_text(str(process.pid))
    print(f"Starting Airflow, which takes half a minute; its log is {_log()}", flush=True)


def _started_by_up() -> dict[str, str]:
    path = f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', '')}"
    return {"PATH": path, airflow_processes.VARIABLE: str(home())}


def serve() -> None:
    """Run Airflow's processes until a signal. Raises TerminalError `airflow-ended` if one of them
    ends by itself.
    """
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    airflow = [sys.executable, "-m", "airflow"]
    subprocess.run([*airflow, "db", "migrate"], check=True)
    parts: dict[str, subprocess.Popen[bytes]] = {}
    held = airflow_processes.held(os.environ)
    try:
        for name, flags in (PARTS | SHOWN).items():
            # no process may outlive this one
            parts[name] = subprocess.Popen(
                [*airflow, name, *flags], preexec_fn=die_with_parent, pass_fds=held
            )
        while all(part.poll() is None for part in parts.values()):
            time.sleep(0.5)
        ended = {
            name: part.returncode for name, part in parts.items() if part.returncode is not None
        }
        again = _make_up(os.environ.get("DRAINDOWN_ROOT", str(ROOT)))
        raise TerminalError(
            "airflow-ended", tried="run Airflow", found=f"ended by itself: {ended}", next=again
        )
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for part in reversed(parts.values()):  # the server last: ending tasks report to it
            part.send_signal(signal.SIGINT)  # SIGTERM orphans a scheduler's children
            part.wait()


def _leave(*_: object) -> None:
    sys.exit(0)


def _await_health(url: str) -> None:
    until = time.monotonic() + UP_SECONDS
    while not healthy(url, _ALL_COMPONENTS):
        if _running() is None or time.monotonic() > until:
            raise TerminalError(
                "airflow-not-up",
                tried=f"start Airflow at {url}",
                found="it ended at once"
                if _running() is None
                else f"it does not answer after {UP_SECONDS} s",
                changed=f"the end of its log:\n{_tail(_log(), 15)}",
                next=[f"less {_log()}", "make down"],
                in_order=True,
            )
        time.sleep(1)


def healthy(url: str, names: Sequence[str] = _COMPONENTS) -> bool:
    """Return whether the API server answers and reports these components as healthy."""
    try:
        with _DIRECT.open(f"{url}/api/v2/monitor/health", timeout=3) as answer:
            parts = json.load(answer)
    except (OSError, ValueError, urllib.error.URLError):
        return False
    return all((parts.get(name) or {}).get("status") == "healthy" for name in names)


def _refuse_busy_port(port: int, project: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise TerminalError(
                "port-busy",
                tried=f"start Airflow on port {port}",
                found=f"{error.strerror}: another program listens there",
                next=f"{PORT_VARIABLE}={port + 1} {_make_up(project)}",
            ) from error


def _make_up(project: str) -> str:
    """Return the command that starts Airflow with this project."""
    return "make up" + ("" if project == str(ROOT) else f" PROJECT={shlex.quote(project)}")


def _running() -> int | None:
    """Return the process id of the Airflow that `up` started, or None if it has ended."""
    try:
        process = psutil.Process(int(_pid_file().read_text()))
        words, status = process.cmdline(), process.status()
    except (OSError, ValueError, psutil.Error):
        return None
    # the id may have been reused by another program
    is_server = [Path(word).name for word in words[-2:]] == [Path(__file__).name, _SERVE]
    return process.pid if is_server and status != psutil.STATUS_ZOMBIE else None


def _gone(pid: int, seconds: float, tell: Callable[..., None] = lambda *_, **__: None) -> bool:
    """Return whether the process ends in time. While waiting, call `tell` with the tasks that still
    run.
    """
    began = reported = time.monotonic()
    tasks: list[str] = []
    while _running() == pid:
        now = time.monotonic()
        if now - began > seconds:
            return False
        if (found := drivers(pid)) != tasks or now - reported > _REPORT_SECONDS:
            tasks, reported = found, now
            tell(
                f"  {now - began:3.0f} s of at most {seconds:.0f}: {_waits_for(tasks)}", flush=True
            )
        time.sleep(0.3)
    return True


def _waits_for(tasks: Sequence[str]) -> str:
    return (
        f"waiting for tasks at work: {', '.join(tasks)}"
        if tasks
        else "waiting for Airflow's processes"
    )


def drivers(pid: int) -> list[str]:
    """Return the names of the Spark applications below a process, such as `flights.flights
    drain`.
    """
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
    found = set()
    for process in below:
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            found |= {
                name for at, name in pairwise(words) if at == "--name" and name.startswith(_JOB)
            }
    return sorted(name.removeprefix(_JOB) for name in found)


def _pid_file() -> Path:
    return home() / "airflow.pid"


def _log() -> Path:
    return home() / "airflow.log"


def _tail(path: Path, lines: int) -> str:
    return (
        "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.is_file() else ""
    )


def _secret(path: Path) -> str:
    if not path.is_file():
        _write_private(path, secrets.token_hex(48))
    return path.read_text()


def _passwords(place: Path) -> Path:
    path = place / "passwords.json"
    if not path.is_file():
        _write_private(path, json.dumps({USER: secrets.token_urlsafe(12)}))
    return path


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(text)


def main(argv: list[str]) -> int:
    """Run one subcommand and return the exit code."""
    verbs = {"up": up, "down": down, _SERVE: serve, "env": _print_env}
    if len(argv) != 1 or argv[0] not in verbs:
        print(f"usage: airflow_local.py {' | '.join(verbs)}", file=sys.stderr)
        return 2
    try:
        verbs[argv[0]]()
    except DraindownError as error:
        print(error, file=sys.stderr)
        return int(exit_for(error))
    return 0


def _served() -> Path:
    return home() / "dags-folder"


def _address() -> Path:
    return home() / "address"


def _past_proxy(environ: Mapping[str, str]) -> str:
    given = [one for name in _NO_PROXY for one in environ.get(name, "").split(",") if one]
    return ",".join(dict.fromkeys([*given, "127.0.0.1", "localhost"]))


def _print_env() -> None:
    for name, value in env().items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
