"""Data and spec that drift apart (F31)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.faults import lakes
from tests.faults.lakes import Control
from tests.faults.trial import Trial, conclude
from tests.landing import COLUMNS, Landing


def _flow(**columns: str | None) -> dict[str, Any]:
    changed = {name: kind for name, kind in (COLUMNS | columns).items() if kind}
    return lakes.FLOW | {"columns": changed}


def _two_of_three(
    home: Path, spark: SparkSession, flow: dict[str, Any] = lakes.FLOW, done: int = 1
) -> Landing:
    landing = lakes.lake(home, flow=flow)
    landing.drain(spark, max_batches=done)
    return landing


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_other_type_in_the_spec_is_red_until_it_is_put_back(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    trials = []
    for done, place in enumerate(lakes.PLACES[:2], 1):
        for kind in ("string", "bigint", "smallint"):
            landing = _two_of_three(tmp_path / f"{place}-{kind}", spark, done=done)
            trial = Trial(
                "F31", f"after the {place} batch, a: {kind}", "a column of the spec retyped"
            )
            trial.run(Landing(landing.home, **_flow(a=kind)), spark)
            trial.fired = f"int in the table, {kind} in the spec: {trial.runs[-1].error}"
            trial.promise("refused by name", trial.runs[-1].error == "table-mismatch")
            trial.run(landing, spark)
            lakes.hold(trial, landing, control)
            trials.append(trial)
    conclude(*trials)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_column_more_or_less_in_the_spec_and_back_again(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    """New spec, then the old one again over what the new one wrote."""
    trials = []
    changes = {
        "added": _flow(extra="int"),
        "dropped": _flow(part=None),
        "renamed": _flow(part=None, teil="string"),
    }
    for name, flow in changes.items():
        landing = _two_of_three(tmp_path / name, spark)
        trial = Trial(
            "F31",
            f"middle batch, {name}",
            "a column of the spec added, dropped, renamed; then the old spec",
        )
        trial.run(Landing(landing.home, **flow), spark, max_batches=1)
        trial.fired = f"batch 1 ran with {sorted(set(flow['columns']) ^ set(COLUMNS))} {name}"
        trial.promise("it goes on", trial.runs[-1].code == 0)
        trial.run(landing, spark)
        new = set(flow["columns"]) - set(COLUMNS)
        trial.promise("new columns stay", new <= set(landing.rows()[0]))
        found, expected = lakes.state(landing), control.keyed
        rows = {tuple((k, v) for k, v in row if k not in new) for row in found["rows"]}
        same = {frozenset(row) for row in rows} == {frozenset(row) for row in expected["rows"]}
        trial.promise("rows as in the control", same)
        for what in ("tombstones", "quarantine", "batches", "totals"):
            trial.promise(f"{what} as in the control", found[what] == expected[what])
        trial.wrong += lakes.wrong(landing)
        trials.append(trial)
    conclude(*trials)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_drift_in_the_data_is_kept_or_refused_row_by_row(
    tmp_path: Path, spark: SparkSession
) -> None:
    trials = []
    for batch, place in enumerate(lakes.PLACES, 1):
        landing = lakes.lake(tmp_path / place)
        file = landing.landing / f"{batch}.json"
        rows = [
            {"id": "new field", "seq": 9, "a": 1, "b": "x", "colour": "red"},
            {"id": "field gone", "seq": 9},
            {"id": "renamed", "seq": 9, "alpha": 1},
            {"id": "retyped", "seq": 9, "a": "many"},
            {"id": "wider", "seq": 9, "a": 2**40},
        ]
        with file.open("a") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)
        os.utime(file, (batch, batch))
        trial = Trial(
            "F31",
            f"{place} batch, data",
            "fields added, gone, renamed, retyped, too wide in a file",
        )
        trial.run(landing, spark)
        found = {row["id"]: row for row in landing.rows() if row["seq"] == 9}
        trial.fired = f"{len(rows)} rows of other shapes in batch {batch - 1}"
        trial.promise(
            "new fields are kept",
            json.loads(found["new field"]["_rescued_data"]) == {"colour": "red"},
        )
        trial.promise(
            "renamed ones too", json.loads(found["renamed"]["_rescued_data"]) == {"alpha": "1"}
        )  # as text
        trial.promise("missing ones are NULL", found["field gone"]["a"] is None)
        refused = {
            json.loads(r["raw"])["id"]: (r["reason"], r["field"])
            for r in landing.quarantine()
            if r["field"]
        }
        expected = {"retyped": ("type", "a"), "wider": ("type", "a")}
        trial.promise("what has no place is refused by field", expected.items() <= refused.items())
        trial.wrong += lakes.wrong(landing)
        landing.totals()
        trials.append(trial)
    conclude(*trials)
