"""Files that grow, change, vanish, or have odd times (F28 to F30)."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown.sources.files import parked
from tests.faults import lakes
from tests.faults.lakes import Control
from tests.faults.trial import Trial, conclude
from tests.landing import Injected, Landing


def _rows_as_in(trial: Trial, landing: Landing, control: Control) -> None:
    """What must be the same whatever the order of batches."""
    found = lakes.contents(landing)
    for what in ("rows", "tombstones"):
        trial.promise(f"{what} as in the control", found[what] == control.contents[what])
    trial.wrong += lakes.wrong(landing)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_file_that_grows_is_never_half_read_in_silence(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    trials = []
    for batch, place in enumerate(lakes.PLACES, 1):
        landing = lakes.lake(tmp_path / place)
        growing = landing.landing / f"{batch}.json"
        whole = growing.read_bytes()
        growing.write_bytes(whole[: len(whole) // 2 + 7])
        os.utime(growing, (batch, batch))
        trial = Trial(
            "F28", f"{place} batch, in place", "a file taken in when half of it was written"
        )
        trial.run(landing, spark)
        growing.write_bytes(whole)
        trial.fired = f"{len(whole) // 2 + 7} of {len(whole)} bytes were read"
        trial.run(landing, spark)
        trial.promise("red, by name", trial.runs[-1].error == "input-changed")
        lakes.deliver(landing, batch, f"{batch}-again.json")
        trial.run(landing, spark)
        trial.promise("what was named is done with: green", trial.runs[-1].code == 0)
        trial.promise(
            "the file is still named",
            [Path(e.path).name for e in parked.open_files(landing.layout)],
        )
        trial.wrong += [words for words in lakes.wrong(landing) if "file-changed" not in words]
        found = lakes.contents(landing)
        for what in ("rows", "tombstones"):
            trial.promise(f"{what} as in the control", found[what] == control.contents[what])
        trials.append(trial)
    conclude(*trials)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_file_that_settles_or_is_renamed_is_read_whole(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    patient = lakes.FLOW | {"source": lakes.FLOW["source"] | {"min_file_age": "30 seconds"}}
    trials = []
    for name, flow in (("age", patient), ("rename", lakes.FLOW)):
        landing = lakes.lake(tmp_path / name, flow=flow)
        growing = landing.landing / "3.json"
        whole = growing.read_bytes()
        trial = Trial("F28", f"last batch, {name}", f"a slow writer, and {name} as the manual says")
        target = growing if name == "age" else growing.with_name("3.json.tmp")
        growing.unlink()
        target.write_bytes(whole[:100])
        trial.run(landing, spark)
        trial.fired = f"100 of {len(whole)} bytes were there"
        trial.promise("the half file waits", len(landing.ledger()) == lakes.BATCHES - 1)
        target.write_bytes(whole)
        os.utime(target, (3, 3))
        target.rename(growing)
        trial.run(landing, spark)
        lakes.hold(trial, landing, control)
        trials.append(trial)
    conclude(*trials)


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_container_that_is_half_written_is_read_once_it_is_whole(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    landing = lakes.lake(tmp_path / "gz")
    for file in landing.landing.iterdir():
        packed = gzip.compress(file.read_bytes())
        file.unlink()
        zipped = file.with_name(f"{file.name}.gz")
        zipped.write_bytes(packed)
        os.utime(zipped, (int(file.stem), int(file.stem)))
    growing = landing.landing / "2.json.gz"
    whole = growing.read_bytes()
    growing.write_bytes(whole[: len(whole) // 2])
    trial = Trial("F28", "middle batch, gzip", "a gzip file of which half is there")
    trial.run(landing, spark)
    trial.fired = f"parked: {[e.reason for e in parked.open_files(landing.layout)]}"
    growing.write_bytes(whole)
    trial.run(landing, spark)
    _rows_as_in(trial, landing, control)
    trial.promise("nothing is parked any more", not parked.open_files(landing.layout))
    conclude(trial)


def _change(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"a": 3', b'"a": 4'))


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("damage", [Path.unlink, _change], ids=["deleted", "changed"])
def test_input_that_is_not_what_it_was_is_refused_before_its_batch_is_repeated(
    tmp_path: Path, spark: SparkSession, control: Control, damage: Callable[[Path], None]
) -> None:
    trials = []
    word = "deleted" if damage is Path.unlink else "changed"
    for batch, place in enumerate(lakes.PLACES, 1):
        landing = lakes.lake(tmp_path / place)
        landing.drain(spark, max_batches=batch - 1) if batch > 1 else None
        trial = Trial(
            "F29",
            f"{place} batch, {word}",
            f"a crash inside the batch, its file {word}, then put back",
        )
        trial.run(landing, spark, reached=_dies("remembered"))
        file = landing.landing / f"{batch}.json"
        was, stamp = file.read_bytes(), file.stat().st_mtime_ns
        damage(file)
        before = lakes.contents(landing)["rows"]
        trial.run(landing, spark)
        trial.fired = f"batch {batch - 1} died; {file.name} {word}; then {trial.runs[-1].error}"
        trial.promise("refused by name", trial.runs[-1].error == "input-changed")
        trial.promise("nothing of it is in the table", lakes.contents(landing)["rows"] == before)
        file.write_bytes(was)
        os.utime(file, ns=(stamp, stamp))
        trial.run(landing, spark)
        lakes.hold(trial, landing, control)
        trials.append(trial)
    conclude(*trials)


def _dies(at: str) -> Callable[[str], None]:
    def reached(step: str) -> None:
        if step == at:
            raise Injected(step)

    return reached


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_input_that_is_lost_for_good_is_given_up_by_command(
    tmp_path: Path, spark: SparkSession
) -> None:
    trials = []
    for batch, place in enumerate(lakes.PLACES, 1):
        landing = lakes.lake(tmp_path / place)
        landing.drain(spark, max_batches=batch - 1) if batch > 1 else None
        trial = Trial(
            "F29", f"{place} batch, lost", "a crash inside the batch, its file gone for good"
        )
        trial.run(landing, spark, reached=_dies("remembered"))
        (landing.landing / f"{batch}.json").unlink()
        trial.run(landing, spark)
        trial.fired = f"batch {batch - 1} died; its file is gone; then {trial.runs[-1].error}"
        trial.promise("refused by name", trial.runs[-1].error == "input-changed")
        trial.follow(landing, "input discard")
        trial.run(landing, spark)
        trial.wrong += lakes.wrong(landing)
        trial.wrong += lakes.against_oracle(landing)
        trial.promise("rows are those of the other files", not trial.wrong)
        trials.append(trial)
    conclude(*trials)


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_odd_times_hide_no_file(tmp_path: Path, spark: SparkSession, control: Control) -> None:
    day = 86400
    now = time.time()
    odd = {
        "zero": (0, 0, 0),
        "old, future, now": (now - 8 * day, now + 30 * day, now),
        "future, old, zero": (now + 30 * day, now - 8 * day, 0),
        "equal": (now, now, now),
    }
    trials = []
    for name, times in odd.items():
        landing = lakes.lake(tmp_path / name.replace(", ", "-"))
        trial = Trial(
            "F30",
            f"first, middle, last batch: {name}",
            "os.utime before the first run, and between runs",
        )
        for batch, at in enumerate(times, 1):
            os.utime(landing.landing / f"{batch}.json", (at, at))
        trial.fired = str([int(file.stat().st_mtime) for file in sorted(landing.landing.iterdir())])
        trial.run(landing, spark, max_batches=1)
        trial.run(landing, spark)
        trial.promise("all are read", landing.totals()["inputs"] == lakes.BATCHES)
        _rows_as_in(trial, landing, control)
        trials.append(trial)
    conclude(*trials)
