"""The arithmetic over measured runs, what is published of it, and when a session counts as
failed.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import provenance, publish, samples
from benchmarks.bench import failed
from benchmarks.contenders import ALL as ALL_STEPS
from benchmarks.contenders import BASELINE, DAG, DRAIN, HAND_WRITTEN
from benchmarks.measure import Cost
from benchmarks.place import ROOT
from benchmarks.samples import Sample
from benchmarks.works import ALL, small


def _sample(
    wall: float,
    *,
    contender: str = DRAIN.name,
    kind: str = "drain",
    number: int = 1,
    exit_code: int = 0,
    verdict: str = "",
) -> Sample:
    return Sample(
        contender, kind, Cost(wall, wall * 2, round(wall * 100), exit_code), number, verdict=verdict
    )


def test_medians_are_held_against_the_baseline_of_the_same_kind() -> None:
    base = [_sample(wall, contender=BASELINE) for wall in (10, 30, 20)]
    other = [_sample(99, contender=BASELINE, kind="idle")]
    (kept, own, _) = samples.summary([*base, *(_sample(wall) for wall in (4, 5, 60)), *other])
    assert (kept["wall_s"], kept["wall_s_ratio"]) == (20, 1)
    assert (own["wall_s"], own["wall_s_ratio"], own["cpu_s_ratio"], own["rss_mb"]) == (
        5,
        0.25,
        0.25,
        500,
    )


def test_a_failed_run_is_told_in_place_of_its_rows() -> None:
    assert "1 of 2 runs failed" in publish.costs([_sample(1), _sample(1, exit_code=70)])


@pytest.mark.parametrize(
    ("sample", "code"),
    [
        (_sample(1, verdict="exact"), 0),
        (_sample(1), 0),
        (_sample(1, verdict="3 missing"), 1),
        (_sample(1, exit_code=70), 1),
        (_sample(1, contender=BASELINE, verdict="3 missing"), 0),
        (_sample(1, contender=BASELINE, exit_code=1), 1),
    ],
)
def test_a_session_fails_by_our_wrong_rows_and_by_anyones_exit_code(
    sample: Sample, code: int
) -> None:
    assert failed([sample], (DRAIN, HAND_WRITTEN)) == code


def test_the_dag_is_held_against_the_command_that_does_the_same_steps() -> None:
    def ran(contender: str, kind: str, wall: float) -> Sample:
        return _sample(wall, contender=contender, kind=kind)

    found = [
        ran(ALL_STEPS.name, "small", 20),
        ran(DAG.name, "small", 60),
        ran(DRAIN.name, "small", 15),
    ]
    found += [
        ran(ALL_STEPS.name, "idle", 1),
        ran(DAG.name, "idle", 9),
        ran(DAG.name, small.STANDING, 60),
    ]
    (finding,) = ALL["small"].findings(found)
    assert [(row["run"], row["wall"], row["CPU"]) for row in finding.rows] == [
        ("small", 3, 3),
        ("idle", 9, 9),
    ]
    assert "| servers, a minute idle | draindown, DAG | 60" in publish.costs(found)
    assert not ALL["small"].findings(found[-1:])[0].rows


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page to publish on, in a project of its own."""
    monkeypatch.setattr(publish, "RESULTS", tmp_path / "benchmarks" / "results")
    monkeypatch.setattr(publish, "PICTURES", tmp_path / "docs" / "pictures")
    monkeypatch.setattr(publish, "PAGE", tmp_path / "docs" / "page.md")
    for folder in ("benchmarks", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Page\n")
    return tmp_path / "docs" / "page.md"


def _links(page: Path) -> list[Path]:
    return [page.parent / link for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]


def test_what_is_published_has_every_sample_and_its_picture(page: Path) -> None:
    found = [_sample(wall, kind="small", number=at) for at, wall in enumerate((3.0, 4.0), start=1)]
    publish.publish(ALL["small"], found, {"fraction": 0.5, "commit": "abc1234"})
    text = page.read_text()
    assert all(
        part in text for part in ("| small | draindown, drain | 3.5 |", DRAIN.note, "fraction 0.5")
    )
    result, picture = _links(page)
    written = json.loads(result.read_text())
    assert [sample["wall_s"] for sample in written["samples"]] == [3, 4]
    assert (written["benchmark"], written["commit"]) == ("small", "abc1234")
    assert "<polyline" in picture.read_text()


def test_what_is_published_names_no_place_of_this_machine(page: Path) -> None:
    told = f"could not compare: TableNotFoundError: no log in {page}/_delta_log, file://{page.parent} or {ROOT}/x:1"
    publish.publish(
        ALL["drain"], [replace(_sample(1, verdict=told), wrong_rows=1)], {"fraction": 1.0}
    )
    (result,) = _links(page)
    kept = result.read_text()
    for text in (kept, page.read_text()):
        assert "could not compare: TableNotFoundError: no log in (a path)" in text
        assert not any(str(place) in text for place in (page.parent, ROOT, ROOT.parent))
    assert json.loads(kept)["samples"][0]["verdict"].endswith("or (a path):1")


def test_what_has_been_published_is_kept_and_traced() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert not [line for line in ignored if line.startswith("benchmarks/results")]
    for path in sorted(publish.RESULTS.glob("*.json")):
        kept = json.loads(path.read_text())
        assert kept["benchmark"] == path.stem
        assert {
            "commit",
            "date",
            "java",
            "heap",
            "pyspark",
            "delta-spark",
            "deltalake",
        } <= kept.keys()
        assert publish._placeless(path.read_text()) == path.read_text()


def _git(home: Path, *words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=home, check=True, capture_output=True)


def test_a_result_names_its_commit_and_what_was_changed_since(tmp_path: Path) -> None:
    assert provenance.commit(tmp_path) == "unknown"
    _git(tmp_path, "init", "-q")
    for path in (
        "src/a.py",
        "jobs/b.py",
        "benchmarks/results/c.json",
        "benchmarks/README.md",
        "docs/d.md",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "one")
    clean = provenance.commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    for path in (
        "benchmarks/results/c.json",
        "benchmarks/results/new.json",
        "benchmarks/README.md",
        "docs/d.md",
    ):
        (tmp_path / path).write_text("2")
    assert provenance.commit(tmp_path) == clean
    (tmp_path / "src" / "new file.py").write_text("3")
    assert provenance.commit(tmp_path) == f"{clean} with changes in src"
    (tmp_path / "jobs" / "b.py").unlink()
    assert provenance.commit(tmp_path) == f"{clean} with changes in jobs and src"
