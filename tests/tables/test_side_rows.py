"""Few rows of a side table are written once, by this process, as Spark would have written them;
else Spark does.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.base.errors import TransientError
from draindown.lake.table import Table
from draindown.spark.targets import side_rows
from tests.flowfiles import request

AT = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # an hour that a clock in Berlin repeats
SCHEMA = pa.schema([("id", pa.string()), ("batch", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def rows(batch: int, number: int, zone: str = "Europe/Berlin") -> pa.Table:
    """Rows as Spark hands them out: moments in the session's zone."""
    at = [AT.astimezone(ZoneInfo(zone))] * number
    columns = [[f"{batch}.{n}" for n in range(number)], [batch] * number, at]
    kinds = [pa.string(), pa.int64(), pa.timestamp("us", zone)]
    return pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)],
        list(SCHEMA.names),
    )


def written(root: Path, path: str, batch: int, number: int) -> bool:
    frame: Any = SimpleNamespace(toArrow=lambda: rows(batch, number), columns=SCHEMA.names)
    return side_rows.written(
        frame, path, (request(root).layout.app_id(1, "quarantine", "drain"), batch), number
    )


def held(path: str) -> dict[int, int]:
    """Rows by batch."""
    found = Table(path).rows("select batch, count(*) as n from t group by batch")
    return {row["batch"]: row["n"] for row in found}


@pytest.mark.parametrize("seed", range(5))
def test_each_batch_is_written_once_whatever_is_tried_again(tmp_path: Path, seed: int) -> None:
    path, chance = str(tmp_path / "side"), random.Random(seed)
    write_deltalake(path, rows(0, 1, "UTC"))
    model, batch = {0: 1}, 1
    for _ in range(12):
        batch += chance.random() < 0.6
        number = chance.choice([0, 1, 7, side_rows.FEW, side_rows.FEW + 1])
        mine = batch not in model and 0 < number <= side_rows.FEW
        assert written(tmp_path, path, batch, number) == mine
        if mine:
            model[batch] = number
    assert held(path) == model
    assert {row["at"] for row in Table(path).rows("select at from t")} == {AT}


def test_a_table_that_is_not_there_or_has_features_is_left_to_spark(tmp_path: Path) -> None:
    path = str(tmp_path / "side")
    assert not written(tmp_path, path, 1, 3) and not Path(path).exists()
    write_deltalake(path, rows(0, 1, "UTC").append_column("more", pa.array([1])))
    assert not written(tmp_path, path, 1, 3) and held(path) == {0: 1}, "it has other columns"
    path = str(tmp_path / "other")
    features: dict[str, str | None] = {"delta.enableDeletionVectors": "true"}
    write_deltalake(path, rows(0, 1, "UTC"), configuration=features)
    assert not written(tmp_path, path, 1, 3) and held(path) == {0: 1}


def test_a_driver_whose_batch_another_one_wrote_meanwhile_ends_before_it_writes_over_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "side")
    write_deltalake(path, rows(0, 1, "UTC"))
    takes = side_rows._takes

    def slow(*asked: Any) -> bool:
        found = takes(*asked)
        monkeypatch.setattr(side_rows, "_takes", takes)
        assert written(tmp_path, path, 1, 2)
        return found

    monkeypatch.setattr(side_rows, "_takes", slow)
    with pytest.raises(TransientError) as caught:
        written(tmp_path, path, 1, 3)
    assert caught.value.code == "lease-lost" and held(path) == {0: 1, 1: 2}
