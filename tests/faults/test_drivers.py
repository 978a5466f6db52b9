"""One driver at a time, ended politely, rudely, or half."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, cast

import pytest

from draindown.exits import Exit
from draindown.report import read
from draindown.spark.drain import drain
from draindown.spark.runner import attempt
from tests.faults import lakes
from tests.landing import Landing


def _refused(landing: Landing) -> dict[str, Any]:
    """What a second driver is told. It is given no Spark session: it must leave before it wants one."""
    before = _everything(landing)
    request = landing.request(run_id="second")
    report, code = attempt(request, lambda stop: drain(request, cast(Any, None), stop=stop))
    assert code == Exit.TRY_AGAIN == 75
    assert report.error and report.error["code"] == "lease-held"
    assert _everything(landing) == before
    return report.error


def _everything(landing: Landing) -> dict[str, int]:
    """Every file of the lake but reports, with its time of change."""
    files = (path for path in Path(landing.spec.lake).rglob("*") if path.is_file() and "reports" not in path.parts)
    return {str(path): path.stat().st_mtime_ns for path in files}


@pytest.mark.timeout(300)
def test_driver_refuses_company_and_ends_politely(tmp_path: Path) -> None:
    _told_once(tmp_path)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_run_after_drivers_that_were_told_to_end_is_right(tmp_path: Path) -> None:
    """Three drivers in one test, because one fresh process then drains all their lakes."""
    control = lakes.lake(tmp_path / "control")
    polite = _told_once(tmp_path / "once")
    rude = _told_twice(tmp_path / "twice")
    half = _python_killed(tmp_path / "half")
    lakes.heal([control.home, polite, rude, half], tmp_path)
    for home in (polite, rude, half):
        assert lakes.state(home) == lakes.state(control.home), home.name


def _told_once(home: Path) -> Path:
    """It refuses company, and at SIGTERM ends after its batch with exit 0."""
    landing = lakes.lake(home)
    driver = lakes.start(home, fault=("read", 1), act="wait")
    lakes.fired(home, driver)
    assert "another driver is at work" in _refused(landing)["found"]
    driver.send_signal(signal.SIGTERM)
    (home / "go").touch()
    assert driver.wait(120) == 0
    assert json.loads((home / "outcome.json").read_text()) == {"outcome": "bounded", "code": 0}
    report = read(landing.layout, "r", "drain")
    assert report and report.drain and len(report.drain.batches) == 1 and report.drain.after.files == 1
    assert "SIGTERM" in report.drain.bound
    return home


def _told_twice(home: Path) -> Path:
    """The second SIGTERM ends it at once, JVM included."""
    landing = lakes.lake(home)
    driver = lakes.start(home, fault=("remembered", 1), act="wait")
    jvm = lakes.fired(home, driver)
    driver.send_signal(signal.SIGTERM)
    _wait_for(home / "driver.log", "stopping after this batch")
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(60) == -signal.SIGTERM
    assert lakes.gone(jvm)
    assert not landing.ledger()
    return home


def _python_killed(home: Path) -> Path:
    """A JVM that outlives its Python still holds the lease, whatever it is doing."""
    landing = lakes.lake(home)
    driver = lakes.start(home, fault=("read", 1), act="wait")
    jvm = lakes.fired(home, driver)
    os.kill(jvm, signal.SIGSTOP)
    try:
        driver.kill()
        driver.wait(30)
        assert "the JVM it started is still at work" in _refused(landing)["found"]
    finally:
        lakes.end(jvm)
    assert lakes.gone(jvm)
    return home


def _wait_for(log: Path, text: str) -> None:
    until = time.monotonic() + 60
    while text not in log.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
