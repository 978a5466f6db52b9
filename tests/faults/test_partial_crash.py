"""kill -9 in every gap of a batch that is merged column by column, at random: the next run is right
(F3, F4).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.audit.recount import audit
from tests.faults.test_landed_history_crash import Events, play
from tests.faults.trial import Trial
from tests.spark.test_partial_target import MERGED, accounts, delete, folded, held, line

_SEEDS = 20
_TOGETHER = 4
FLOW: dict[str, Any] = {"target": MERGED}


class Records(Events):
    """A table that gets random columns of few keys, and all that came."""

    flow = FLOW

    def change(self) -> None:
        """Deliver records, some of them twice."""
        draw, lines = self.draw, list[str]()
        for _ in range(draw.randint(6, 14)):
            key, seq = draw.choice("abc"), draw.randrange(9)
            some = {
                name: draw.choice("xy") for name in ("b", "part", "region") if draw.random() < 0.4
            }
            some |= {"a": draw.choice((1, 2))} if draw.random() < 0.4 else {}
            lines.append(delete(key, seq) if draw.random() < 0.15 else line(key, seq, **some))
        self.it.deliver(*lines, *lines[:2])
        self.came += lines

    def hold(self, trial: Trial) -> None:
        """Each column is the fold of all records, and each record is counted once."""
        trial.promise(
            "the rows are the fold of each column", held(self.it) == folded(self.it, self.came)
        )
        records = sum(row.records for row in accounts(self.it))
        trial.promise("each record is counted once", records == self._delivered())
        trial.promise("the audit is clean", audit(self.it.spec, "f", root=self.it.home).clean)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, _SEEDS, _TOGETHER))
def test_rows_that_were_killed_in_gap_after_gap_are_right(
    tmp_path: Path, spark: SparkSession, first: int
) -> None:
    play(tmp_path, range(first, first + _TOGETHER), spark, Records, "merged rows")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_merged_rows_whose_driver_was_killed_are_right_after_its_next_run(
    tmp_path: Path, spark: SparkSession
) -> None:
    play(tmp_path, range(4, 5), spark, Records, "merged rows")
