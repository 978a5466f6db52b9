"""The arithmetic over measured runs, what is published of it, and when a session counts as failed."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import provenance, publish, samples, work
from benchmarks.bench import facts, failed
from benchmarks.contenders import ALL as ALL_STEPS
from benchmarks.contenders import BASELINE, DAG, DRAIN, HAND_WRITTEN
from benchmarks.measure import Cost
from benchmarks.place import CHANGES, ROOT, Failed, Place
from benchmarks.samples import Sample
from benchmarks.work import Asked, Bench, Work, result
from benchmarks.works import ALL, backlog, growth, longevity, small, upkeep


def _sample(
    wall: float,
    *,
    contender: str = DRAIN.name,
    kind: str = "drain",
    number: int = 1,
    exit_code: int = 0,
    verdict: str = "",
) -> Sample:
    return Sample(contender, kind, Cost(wall, wall * 2, round(wall * 100), exit_code), number, verdict=verdict)


def test_medians_are_held_against_the_baseline_of_the_same_kind() -> None:
    base = [_sample(wall, contender=BASELINE) for wall in (10, 30, 20)]
    other = [_sample(99, contender=BASELINE, kind="idle")]
    (kept, own, _) = samples.summary([*base, *(_sample(wall) for wall in (4, 5, 60)), *other])
    assert (kept["wall_s"], kept["wall_s_ratio"]) == (20, 1)
    assert (own["wall_s"], own["wall_s_ratio"], own["cpu_s_ratio"], own["rss_mb"]) == (5, 0.25, 0.25, 500)


def test_without_a_baseline_there_is_no_ratio() -> None:
    (row,) = samples.summary([_sample(5)])
    assert row["wall_s_ratio"] is None
    assert "ratio" not in publish.costs([_sample(5)])


def test_the_last_runs_are_held_against_the_first_of_a_series_that_is_long_enough() -> None:
    series = [_sample(wall, number=at) for at, wall in enumerate((1, 2, 3, 2, 2, 9, 9, 4, 4, 4, 4, 8), start=1)]
    assert samples.last_first(series) == 2
    assert samples.last_first(series[:9]) is None


def test_the_tenth_merge_is_held_against_the_mean_of_the_nine_before() -> None:
    assert samples.last_over_mean([*(_sample(wall) for wall in (1, 2, 3)), _sample(3)]) == 1.5
    assert samples.last_over_mean([_sample(1)]) is None


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
def test_a_session_fails_by_our_wrong_rows_and_by_anyones_exit_code(sample: Sample, code: int) -> None:
    assert failed([sample], (DRAIN, HAND_WRITTEN)) == code


@pytest.mark.parametrize("noise", ["", "Calculating: 0%\rCalculating: 100% {2}\n"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_result_is_the_object_at_the_end(tmp_path: Path, noise: str, indent: int | None) -> None:
    place = Place(CHANGES, tmp_path, tmp_path, tmp_path)
    (tmp_path / "out.txt").write_text(noise + json.dumps({"a": {"b": [{"c": 1}]}}, indent=indent) + "\n")
    assert result(place) == {"a": {"b": [{"c": 1}]}}
    (tmp_path / "out.txt").write_text("died\n")
    with pytest.raises(Failed, match="died"):
        result(place)


def test_many_tiny_files_are_held_against_the_job_by_hand_with_few() -> None:
    found = [
        Sample("hand-written", "1,000 files", Cost(900.0, 1600.0, 1, 0)),
        Sample("draindown, drain", "1,000 files", Cost(40.0, 50.0, 1, 0)),
        Sample("draindown, drain", "10,000 files", Cost(90.0, 160.0, 1, 0)),
    ]
    (finding,) = backlog.TINY.findings(found)
    assert finding.title == "Over the hand-written job's 1,000 files"
    assert finding.rows == [{"files": "10,000 files", "contender": "draindown, drain", "wall": 0.1, "CPU": 0.1}]
    assert not backlog.TINY.findings(found[1:])[0].rows


def test_cost_per_row_is_held_against_the_smaller_backlog() -> None:
    sizes = ((10, 40.0), (100, 20.0), (1000, 25.0))
    found = [replace(_sample(1, kind=f"{n} files"), facts={"us_per_row": us, "cpu_us_per_row": us}) for n, us in sizes]
    (finding,) = backlog.WORK.findings(found)
    assert [row["over the smaller"] for row in finding.rows] == [None, 0.5, 1.25]


def test_growth_is_the_big_table_over_the_small_one() -> None:
    sizes = (("1 M rows", 2.0), ("10 M rows", 3.0))
    found = [
        replace(_sample(wall, kind=f"{size}, {series}"), facts={"merge_ms": wall * 500, "files_removed": 3})
        for size, wall in sizes
        for series in growth.SERIES
    ]
    over, touched = growth.WORK.findings(found)
    assert [row["wall"] for row in over.rows] == [row["MERGE alone"] for row in over.rows] == [1.5] * len(growth.SERIES)
    assert {row["files removed"] for row in touched.rows} == {"3"}


def test_a_longer_history_is_held_against_the_shortest() -> None:
    days = (("90 days, 1 M rows", 2.0), ("900 days, 10 M rows", 2.2), ("2,700 days, 30 M rows", 2.4))
    found = [_sample(wall, kind=f"{size}, newest days") for size, wall in days]
    over, touched = growth.HISTORY.findings(found)
    assert [(row["table"], row["keys"], row["wall"]) for row in over.rows] == [
        ("900 days, 10 M rows / 90 days, 1 M rows", "newest days", 1.1),
        ("2,700 days, 30 M rows / 90 days, 1 M rows", "newest days", 1.2),
    ]
    assert not [column for row in touched.rows for column in row if " over " in column], "no plain MERGE took part"

    plain = [replace(one, contender=growth.PLAIN_PRUNED.name, cost=replace(one.cost, wall_s=4.8)) for one in found]
    _, touched = growth.HISTORY.findings([*found, *plain])
    ours = [row for row in touched.rows if row["contender"] == growth.DRAIN.name]
    assert [row["wall over pruned"] for row in ours] == [0.42, 0.46, 0.5]
    assert not [column for row in touched.rows for column in row if "tuned" in column or "defaults" in column]


def test_what_a_batch_costs_in_a_large_table_is_held_against_both_plain_merges() -> None:
    costs = ((growth.PLAIN, 8.0, 30.0), (growth.PLAIN_TUNED, 4.0, 10.0), (growth.DRAIN, 2.0, 3.0))
    found = [
        replace(one, contender=contender.name, cost=replace(one.cost, wall_s=wall, cpu_s=cpu))
        for series in growth.SERIES
        for one in [_sample(1, kind=f"1 M rows, {series}")]
        for contender, wall, cpu in costs
    ]
    _, touched = growth.WORK.findings(found)
    over = [f"{what} over {which}" for what in ("wall", "CPU") for which in ("defaults", "tuned")]
    ours = [[row[name] for name in over] for row in touched.rows if row["contender"] == growth.DRAIN.name]
    assert ours == [[0.25, 0.5, 0.1, 0.3]] * len(growth.SERIES)


def test_longevity_is_told_by_run_number_by_refresh_and_by_question() -> None:
    runs = [_sample(10 + number / 10, kind="run", number=number) for number in range(1, 51)]
    young = [_sample(8, kind="run of a young table", number=number) for number in range(3, 8)]
    refreshes = [_sample(2, kind="refresh", number=number) for number in range(1, 10)] + [_sample(3, kind="refresh")]
    asked = replace(_sample(1, kind="end"), facts={"one key/fresh": 10, "one key/old": 15})
    times, questions = longevity.WORK.findings([*runs, *young, *refreshes, asked])
    (row,) = times.rows
    assert (row["young, s"], row["old, s"]) == (8, 14.8)
    assert (row["old / young"], row["refresh 10 / mean of 1 to 9"]) == (1.85, 1.5)
    assert [row["old / fresh"] for row in questions.rows] == [1.5]


def test_the_check_is_held_against_the_whole_table_and_against_the_smallest() -> None:
    walls = {
        ("check, 1 M rows", "ours"): 4,
        ("check, 1 M rows", "gx"): 8,
        ("check, 10 M rows", "ours"): 5,
        ("check, 10 M rows", "gx"): 50,
    }
    names = {"ours": upkeep.CHECK.name, "gx": upkeep.WHOLE.name}
    found = [_sample(wall, kind=kind, contender=names[who]) for (kind, who), wall in walls.items()]
    (finding,) = upkeep.WORK.findings(found)
    assert [row["check / whole table, wall"] for row in finding.rows] == [0.5, 0.1]
    assert [row["over the smallest, wall"] for row in finding.rows] == [1, 1.25]


def test_the_dag_is_held_against_the_command_that_does_the_same_steps() -> None:
    def ran(contender: str, kind: str, wall: float) -> Sample:
        return _sample(wall, contender=contender, kind=kind)

    found = [ran(ALL_STEPS.name, "small", 20), ran(DAG.name, "small", 60), ran(DRAIN.name, "small", 15)]
    found += [ran(ALL_STEPS.name, "idle", 1), ran(DAG.name, "idle", 9), ran(DAG.name, small.STANDING, 60)]
    (finding,) = ALL["small"].findings(found)
    assert [(row["run"], row["wall"], row["CPU"]) for row in finding.rows] == [("small", 3, 3), ("idle", 9, 9)]
    assert "| servers, a minute idle | draindown, DAG | 60" in publish.costs(found)
    assert not ALL["small"].findings(found[-1:])[0].rows


def test_the_dag_takes_part_unless_others_are_asked_for() -> None:
    assert DAG in ALL["small"].contenders and DAG.name.startswith(ALL["small"].chosen)
    assert DAG.ours and DAG.keeps_refused and DAG.standing
    assert not [c for w in ALL.values() if w.name != "small" for c in w.contenders if c.standing]


def test_feeds_of_other_sizes_are_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "apart", lambda do, *given: do(*given))
    bench = Bench(tmp_path, Asked(), ())
    one, other = bench.feed([20, 20, 10]), bench.feed([20, 10, 10])
    assert [len(gzip.decompress(file.read_bytes()).splitlines()) for file in (*one, *other)] == [20, 20, 10, 20, 10, 10]
    assert bench.feed([20, 20, 10]) == one


def test_a_section_is_replaced_between_its_marks_or_added(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- bench drain: begin -->\nold\n<!-- bench drain: end -->\n\nafter\n")
    publish.replace_section(page, "drain", "new")
    publish.replace_section(page, "small", "more")
    assert page.read_text() == (
        "# Page\n\n<!-- bench drain: begin -->\nnew\n<!-- bench drain: end -->\n\nafter\n\n"
        "## Small\n\n<!-- bench small: begin -->\nmore\n<!-- bench small: end -->\n"
    )


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
    assert all(part in text for part in ("| small | draindown, drain | 3.5 |", DRAIN.note, "fraction 0.5"))
    result, picture = _links(page)
    written = json.loads(result.read_text())
    assert [sample["wall_s"] for sample in written["samples"]] == [3, 4]
    assert (written["benchmark"], written["commit"]) == ("small", "abc1234")
    assert "<polyline" in picture.read_text()


def test_a_kept_sample_is_one_short_line_that_has_what_it_has(page: Path) -> None:
    odd = replace(_sample(1.5, exit_code=1, verdict="3 missing"), wrong_rows=3, facts={"merge_ms": 12.3456789})
    publish.publish(ALL["tiny"], [replace(_sample(2), number=7), odd], {"date": "today"})
    (result,) = [link for link in _links(page) if link.suffix == ".json"]
    plain, full = [json.loads(line.strip().rstrip(",")) for line in result.read_text().splitlines()[-4:-2]]
    cost = {"wall_s": 2, "cpu_s": 4, "rss_mb": 200, "exit_code": 0}
    assert plain == {"contender": DRAIN.name, "kind": "drain", "number": 7, **cost}
    assert (full["wrong_rows"], full["verdict"], full["facts"]) == (3, "3 missing", {"merge_ms": 12.35})


def test_what_is_published_names_no_place_of_this_machine(page: Path) -> None:
    told = f"could not compare: TableNotFoundError: no log in {page}/_delta_log, file://{page.parent} or {ROOT}/x:1"
    publish.publish(ALL["drain"], [replace(_sample(1, verdict=told), wrong_rows=1)], {"fraction": 1.0})
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
        assert {"commit", "date", "java", "heap", "pyspark", "delta-spark", "deltalake"} <= kept.keys()
        assert publish._placeless(path.read_text()) == path.read_text()


def _git(home: Path, *words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=home, check=True, capture_output=True)


def test_a_result_names_its_commit_and_what_was_changed_since(tmp_path: Path) -> None:
    assert provenance.commit(tmp_path) == "unknown"
    _git(tmp_path, "init", "-q")
    for path in ("src/a.py", "jobs/b.py", "benchmarks/results/c.json", "benchmarks/README.md", "docs/d.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "one")
    clean = provenance.commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    for path in ("benchmarks/results/c.json", "benchmarks/results/new.json", "benchmarks/README.md", "docs/d.md"):
        (tmp_path / path).write_text("2")
    assert provenance.commit(tmp_path) == clean
    (tmp_path / "src" / "new file.py").write_text("3")
    assert provenance.commit(tmp_path) == f"{clean} with changes in src"
    (tmp_path / "jobs" / "b.py").unlink()
    assert provenance.commit(tmp_path) == f"{clean} with changes in jobs and src"


def test_facts_of_a_session_trace_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAINDOWN_DRIVER_MEMORY", "3g")
    told = facts(Asked(0.5, 2, (10, 1000)))
    lock = (ROOT / "requirements.lock").read_text()
    for package in ("pyspark", "delta-spark", "deltalake", "apache-airflow"):
        assert f"\n{package}=={told[package]} " in lock
    assert (told["heap"], told["fraction"], told["repeat"], told["sizes"]) == ("3g", 0.5, 2, "10 1,000")
    assert re.match(r"\d+", str(told["java"]))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert facts(Asked())["java"] == "unknown"


@pytest.mark.parametrize("work", ALL.values(), ids=ALL)
def test_every_work_says_what_it_compares(work: Work) -> None:
    assert work.contenders
    assert any(c.name.startswith(work.chosen) for c in work.contenders)
    assert all(c.note for c in work.contenders)
    assert work.defaults.repeat >= 1
