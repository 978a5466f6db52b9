"""The Airflow that stands while runs of its DAG are measured has this pipeline only, and nobody
else reaches it.

That it is started, asked and ended shows in every measurement of the DAG: a run that fails, or
hangs, fails the work.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks import standing
from benchmarks.place import CHANGES, Place


def test_the_project_holds_this_pipeline_only_and_airflow_listens_on_the_loopback_interface(
    tmp_path: Path,
) -> None:
    place = Place(CHANGES, tmp_path / "landing", tmp_path / "lake", tmp_path)
    project = standing._project(place)
    settings = standing._settings(place, project)
    files = {
        str(path.relative_to(project))
        for path in project.rglob("*")
        if path.suffix in (".py", ".yaml", ".json")
    }
    assert {
        "dags/draindown_dags.py",
        "dags/pipelines/changes.yaml",
        "expectations/changes.json",
    } <= files
    assert {"jobs/drain.py", "jobs/check.py", "jobs/compact.py"} <= files
    assert "dags/pipelines/flights.yaml" not in files
    assert settings["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert urlsplit(settings["AIRFLOW__API__BASE_URL"]).port == int(settings["AIRFLOW__API__PORT"])
    assert settings["DRAINDOWN_ROOT"] == str(project)
    assert settings["AIRFLOW__CORE__DAGS_FOLDER"] == str(project / "dags")
    assert settings["AIRFLOW_HOME"] == str(place.home / "airflow")
    assert (settings["DRAINDOWN_LAKE"], settings["DRAINDOWN_LANDING"]) == (
        str(place.lake),
        str(place.landing),
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", int(settings["AIRFLOW__API__PORT"])))
    assert (place.home / "airflow" / "passwords.json").stat().st_mode & 0o077 == 0


def test_the_hand_written_dag_stands_alone_and_submits_the_hand_written_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(CHANGES, tmp_path / "landing", tmp_path / "lake", tmp_path)
    monkeypatch.setattr(standing, "class_path", lambda: "delta.jar")
    project = standing._by_hand(place)
    settings = standing._settings(place, project)
    assert [path.name for path in project.rglob("*.py")] == ["hand_written_dag.py"]
    assert settings["BENCH_SHAPE"] == place.shape.name and Path(settings["BENCH_PROGRAM"]).is_file()
    named = set(
        re.findall(r'environ\["(\w+)"\]', (project / "dags" / "hand_written_dag.py").read_text())
    )
    assert named <= settings.keys()
