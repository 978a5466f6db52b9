"""A project in a DAG bundle: what would lie in the directory of one version is refused before
anything is written.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.dag_processing.bundles.base import BaseDagBundle

from draindown.airflow.factory import dags
from tests.airflow.steps import Steps

PIPELINE = """\
pipeline: p
lake: {lake}
airflow: {{retries: 0}}
flows:
  f:
    source: {{files: "{files}", format: json}}
    columns: {{id: string not null}}
"""
RELATIVE = {"lake": "lake", "files": "in/*"}


class Bundle(BaseDagBundle):
    """A bundle that has versions, as those of Git have."""

    supports_versioning = True

    @property
    def path(self) -> Path:
        """The directory of its version, or the one that follows the newest."""
        return self.versions_dir / self.version if self.version else self.base_dir / "tracking_repo"

    def get_current_version(self) -> str:
        """Name the newest version."""
        return "2f1c"

    def refresh(self) -> None:
        """Do nothing."""


@pytest.fixture(autouse=True)
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Airflow keeps its bundles."""
    monkeypatch.delenv("DRAINDOWN_ROOT", raising=False)
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path / "bundles"))
    return tmp_path / "bundles"


def run(root: Path, text: str) -> Steps:
    """What all tasks of the pipeline's DAG do, whose project is in `root`."""
    for place in ("jobs", "dags/pipelines"):
        (root / place).mkdir(parents=True)
    (root / "jobs" / "drain.py").touch()
    (root / "dags" / "pipelines" / "p.yaml").write_text(text)
    (dag,) = dags(str(root / "dags" / "draindown_dags.py")).values()
    steps = Steps(dag)
    steps.run()
    return steps


def version() -> Path:
    return Bundle(name="shop", version="2f1c").path


@pytest.mark.parametrize("absolute", ["", "lake", "files"])
def test_a_relative_path_in_a_version_of_a_bundle_is_refused(tmp_path: Path, absolute: str) -> None:
    paths = RELATIVE | ({absolute: str(tmp_path / RELATIVE[absolute])} if absolute else {})
    done = run(version(), PIPELINE.format(**paths))
    assert done.states["f.plan"] == "failed" and "lake-in-bundle" in done.errors["f.plan"]
    for what, name in (("lake", "the lake"), ("files", "the files of flow f")):
        assert (name in done.errors["f.plan"]) == (what != absolute)
    assert not (version() / "lake").exists()


def test_a_broken_file_leaves_no_lake_there(tmp_path: Path) -> None:
    done = run(version(), PIPELINE.format(**RELATIVE) + "retrys: 1\n")
    assert set(done.states.values()) == {"failed"} and not (version() / "lake").exists()


def test_a_misspelt_param_leaves_no_lake_there(tmp_path: Path) -> None:
    run(version(), PIPELINE.format(**RELATIVE))
    (dag,) = dags(str(version() / "dags" / "draindown_dags.py")).values()
    done = Steps(dag, {"max_batchs": 1})
    done.run("plan-all", "f.plan")
    assert "bad-params" in done.errors["f.plan"] and not (version() / "lake").exists()


@pytest.mark.parametrize("way", ["absolute", "unversioned", "beside"])
def test_what_stays_is_not_refused(tmp_path: Path, storage: Path, way: str) -> None:
    root = {"unversioned": Bundle(name="shop").path, "beside": storage / "versions" / "shop"}.get(
        way, version()
    )
    base = tmp_path if way == "absolute" else root
    paths = (
        {name: str(tmp_path / path) for name, path in RELATIVE.items()}
        if way == "absolute"
        else RELATIVE
    )
    (base / "in").mkdir(parents=True)
    done = run(root, PIPELINE.format(**paths))
    assert done.errors == {} and (base / "lake").is_dir()


def test_a_root_outside_is_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    (root / "jobs").mkdir(parents=True)
    (root / "jobs" / "drain.py").touch()
    (root / "in").mkdir()
    monkeypatch.setenv("DRAINDOWN_ROOT", str(root))
    assert run(version(), PIPELINE.format(**RELATIVE)).errors == {} and (root / "lake").is_dir()
