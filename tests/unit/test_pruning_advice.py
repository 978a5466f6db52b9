"""What is advised where a batch's keys do not lead to its files, by what the batch could say of
partitions.
"""

from __future__ import annotations

from typing import Any

import pytest

from draindown.config.models import PipelineSpec
from draindown.spark.batch.pruning_advice import Skipping
from draindown.spark.targets.pruning import Pruning
from draindown.spark.tuning import TUNING


@pytest.mark.parametrize(
    ("partition_by", "told", "advice"),
    [
        (["a"], Pruning(ranges={"a": [("1", "9")]}), "partition by something coarser than a, "),
        (["a"], Pruning(), "have the transform make a of columns in `keys` alone, "),
        ([], Pruning(), "add what never changes for a row"),
    ],
    ids=["too many values", "not of the keys", "no partitions"],
)
def test_advice_goes_by_what_a_batch_says_of_partitions(
    partition_by: list[str], told: Pruning, advice: str
) -> None:
    target: dict[str, Any] = {
        "keys": ["name", "a"],
        "sequence_by": ["at"],
        "partition_by": partition_by,
    }
    columns = {"name": "string not null", "a": "int not null", "at": "timestamp not null"}
    flow = {
        "source": {"files": "in/*.json", "format": "json"},
        "columns": columns,
        "target": target,
    }
    spec = PipelineSpec.model_validate({"pipeline": "p", "lake": "lake", "flows": {"f": flow}})
    found = Skipping(spec.layout("f"), spec.flows["f"], TUNING, told_by=told)._advice()
    assert found.startswith(advice), found
