"""The arithmetic over measured runs, what is published of it, and when a session counts as failed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import pictures, publish, samples
from benchmarks.bench import failed
from benchmarks.contenders import BASELINE, DRAIN, HAND_WRITTEN
from benchmarks.measure import Cost
from benchmarks.place import CHANGES, Place
from benchmarks.samples import Sample
from benchmarks.work import Failed, Work, result
from benchmarks.works import ALL, backlog, growth, longevity, upkeep


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


def test_a_run_is_looked_at_with_its_neighbours() -> None:
    series = [_sample(float(number), number=number) for number in range(1, 51)]
    assert samples.around(series, 5) == 5
    assert samples.around([*series, _sample(1000, number=50)], 48) == 48.5


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


def test_longevity_is_told_by_run_number_by_refresh_and_by_question() -> None:
    runs = [_sample(10 + number / 10, kind="run", number=number) for number in range(1, 51)]
    refreshes = [_sample(2, kind="refresh", number=number) for number in range(1, 10)] + [_sample(3, kind="refresh")]
    asked = replace(_sample(1, kind="end"), facts={"one key/fresh": 10, "one key/old": 15})
    times, questions = longevity.WORK.findings([*runs, *refreshes, asked])
    (row,) = times.rows
    assert (row["run 5, s"], row["run 48, s"]) == (10.5, 14.8)
    assert (row["late / early"], row["refresh 10 / mean of 1 to 9"]) == (1.41, 1.5)
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


def test_a_section_is_replaced_between_its_marks_or_added(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- bench drain: begin -->\nold\n<!-- bench drain: end -->\n\nafter\n")
    publish.replace_section(page, "drain", "new")
    publish.replace_section(page, "small", "more")
    assert page.read_text() == (
        "# Page\n\n<!-- bench drain: begin -->\nnew\n<!-- bench drain: end -->\n\nafter\n\n"
        "## Small\n\n<!-- bench small: begin -->\nmore\n<!-- bench small: end -->\n"
    )


def test_what_is_published_has_every_sample_and_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RESULTS", "PICTURES"):
        monkeypatch.setattr(publish, name, tmp_path / name.lower())
    monkeypatch.setattr(publish, "PERFORMANCE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text("# Page\n")
    found = [_sample(wall, kind="small", number=at) for at, wall in enumerate((3.0, 4.0), start=1)]
    publish.publish(ALL["small"], found, {"fraction": 0.5})
    written = json.loads((tmp_path / "results" / "small.json").read_text())
    assert [sample["cost"]["wall_s"] for sample in written["samples"]] == [3, 4]
    page = (tmp_path / "page.md").read_text()
    assert all(part in page for part in ("| small | draindown, drain | 3.5 |", DRAIN.note, "fraction 0.5"))
    (picture,) = re.findall(r"!\[[^]]+\]\(pictures/(.+)\)", page)
    assert "<polyline" in (tmp_path / "pictures" / picture).read_text()


@pytest.mark.parametrize("work", ALL.values(), ids=ALL)
def test_every_work_says_what_it_compares(work: Work) -> None:
    assert work.contenders
    assert any(c.name.startswith(work.chosen) for c in work.contenders)
    assert all(c.note for c in work.contenders)
    assert work.defaults.repeat >= 1


def _texts(svg: str) -> list[str]:
    nodes = ElementTree.fromstring(svg).iter()
    return [(node.text or "").strip() for node in nodes if node.tag.rsplit("}")[-1] in ("text", "tspan")]


def test_a_picture_is_svg_with_its_labels_and_units() -> None:
    chart = pictures.Chart("Runs & <files>", "run", "wall time, seconds")
    drawn = pictures.lines(chart, [pictures.Line("draindown", [(1, 10.0), (2, 12.0), (20, 11.0)])])
    assert {"Runs & <files>", "run", "wall time, seconds", "draindown", "0", "20"} <= set(_texts(drawn))
    assert "prefers-color-scheme: dark" in drawn


def test_bars_are_as_high_as_their_values() -> None:
    chart = pictures.Chart("t", "x", "y")
    svg = pictures.bars(chart, [pictures.Bar("a", "one", 10), pictures.Bar("b", "one", 5)])
    bars = [node for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect") if "y" in node.attrib]
    high, low = (float(bar.attrib["height"]) for bar in bars[:2])
    assert high == pytest.approx(2 * low, abs=0.2)
    assert {"a", "b", "10", "5"} <= set(_texts(svg))


def test_nothing_measured_draws_nothing() -> None:
    chart = pictures.Chart("t", "x", "y")
    assert pictures.lines(chart, []) == pictures.bars(chart, []) == ""
