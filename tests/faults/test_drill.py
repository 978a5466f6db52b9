"""The drill as a user types it: real drivers are killed on copies, and the pipeline's own lake
stays as it is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from draindown.cli.program import main
from draindown.config import scaffold
from draindown.drill.faults import FAULTS

_APPEND = """\
pipeline: lines
lake: lake
flows:
  lines:
    source: {files: in/*.csv, format: csv, min_file_age: 0}
    columns: {id: string not null, n: int}
    rules: {sane: n >= 0}
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAINDOWN_MASTER", "local[2]")
    monkeypatch.delenv("DRAINDOWN_LAKE", raising=False)
    scaffold.init(tmp_path / "shop", "orders")
    monkeypatch.chdir(tmp_path / "shop")
    return tmp_path / "shop"


def _drilled(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["drill", *words, "--json"])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out)


def _everything(place: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in place.rglob("*")}


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_a_drill_kills_a_driver_and_shows_that_nothing_came_of_it(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _everything(shop)
    code, said = _drilled(
        capsys, "kill-after-merge", "orders", "--scratch", str(tmp_path / "scratch")
    )
    [result] = said["results"]
    assert code == 0 and said["held"] and result["held"], said
    assert "signal 9" in result["fired"] and result["where"] == "batch 2 of 3, merged"
    assert result["commands"] == ["draindown run orders/orders --no-check --no-compact"]
    assert result["recovery"] > 0 and said["wrong"] == said["unlooked"] == []
    assert not (tmp_path / "scratch").exists()
    assert _everything(shop) == before


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_every_fault_holds_on_a_keyed_flow(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    landed = shop / "landing" / "orders"
    lines = (landed / "2026-01-01.json").read_text()
    for day in (2, 3, 4):  # changes in every batch, so that every fault can happen
        (landed / f"2026-01-0{day}.json").write_text(
            lines.replace("2026-01-01T", f"2026-01-0{day}T")
        )
        os.utime(landed / f"2026-01-0{day}.json", (10**9 + day, 10**9 + day))
    before = _everything(shop)
    code, said = _drilled(capsys, "all", "orders")
    assert [result["fault"] for result in said["results"]] == [fault.name for fault in FAULTS]
    assert code == 0 and all(result["held"] for result in said["results"]), said
    assert _everything(shop) == before


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", ["kill-while-writing", "zombie", "lose-checkpoint"])
def test_faults_hold_on_a_flow_that_appends(
    shop: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    (shop / "dags" / "pipelines" / "lines.yaml").write_text(_APPEND)
    (shop / "in").mkdir()
    (shop / "in" / "1.csv").write_text(
        "id,n\n" + "".join(f"k{n},{n - 2}\n" for n in range(9)) + "torn,x\n"
    )
    code, said = _drilled(capsys, fault, "lines")
    assert code == 0 and said["results"][0]["held"], said
