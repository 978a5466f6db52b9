"""Which commits of others a table has, over random histories, against a model that keeps whole
tables.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from draindown.lake.commits import FENCE, Commit
from draindown.lake.home import FlowHome
from draindown.ledger.foreign import NONE, ForeignCommit, ForeignCommits, after, generation_before
from draindown.ledger.rows import BatchRow, Swap

LAYOUT = FlowHome("/lake", "p", "f", "t")
OTHERS: list[dict[str, Any]] = [
    {"operation": "DELETE", "metrics": {"numDeletedRows": "145"}},
    {"operation": "DELETE", "metrics": {"num_deleted_rows": 3}},
    {"operation": "UPDATE", "metrics": {"num_updated_rows": 1}},
    {"operation": "MERGE", "metrics": {"numTargetRowsInserted": "2", "numTargetRowsUpdated": "0"}},
    {"operation": "WRITE", "metrics": {"numOutputRows": "4"}},
    {"operation": "WRITE", "metrics": {"num_added_rows": 0}, "parameters": {"mode": "Overwrite"}},
    {"operation": "CREATE TABLE AS SELECT", "metrics": {"numOutputRows": "4"}},
    {"operation": "CREATE OR REPLACE TABLE AS SELECT", "metrics": {"numOutputRows": "0"}},
    {"operation": "COPY INTO"},
    {"operation": "TRUNCATE"},
    {"operation": "FSCK"},
    {"operation": "MERGE", "user_metadata": BatchRow("p", "other", 1, 0, "r").as_metadata()},
]
NEITHER: list[dict[str, Any]] = [
    {"operation": "OPTIMIZE", "metrics": {"numAddedFiles": "1"}},
    {"operation": "VACUUM END"},
    {"operation": "SET TBLPROPERTIES"},
    {"operation": "ADD CONSTRAINT"},
    {"operation": "CREATE TABLE"},
    {"operation": "ROW TRACKING BACKFILL"},
    {"operation": "REMOVE COLUMN MAPPING"},
    {"operation": "Deletion Vector Tombstones"},
    {"operation": "DOMAIN METADATA CLEANUP"},
    {"operation": "DELETE", "metrics": {"numDeletedRows": "0"}},
    {"operation": "MERGE", "metrics": {"numTargetRowsInserted": "0", "numTargetRowsDeleted": "0"}},
    {"operation": "WRITE", "user_metadata": json.dumps({FENCE: {}})},
]


def commit(version: int, **what: Any) -> Commit:
    return Commit(version=version, timestamp=1000 * version, **what)


def batch(version: int, generation: int = 1, **more: Any) -> Commit:
    said = BatchRow("p", "f", generation, version, "r", **more).as_metadata()
    return commit(
        version, operation="MERGE", metrics={"numTargetRowsInserted": "1"}, user_metadata=said
    )


def swap(version: int, generation: int) -> Commit:
    said = Swap("p", "f", generation, 1, 1, "r").as_metadata()
    return commit(version, operation="WRITE", parameters={"mode": "Overwrite"}, user_metadata=said)


def restore(version: int, to: int) -> Commit:
    return commit(version, operation="RESTORE", parameters={"version": str(to), "timestamp": None})


def known(commits: list[Commit], start: ForeignCommits = NONE, at: int = -1) -> ForeignCommits:
    return after(LAYOUT, start, at, commits)


def versions(found: ForeignCommits) -> list[int]:
    return [one.version for one in found.commits]


@pytest.mark.parametrize("what", OTHERS, ids=lambda what: what["operation"])
def test_a_commit_that_changed_rows_and_is_no_batch_is_foreign(what: dict[str, Any]) -> None:
    assert versions(
        known([commit(0, operation="CREATE TABLE"), batch(1), commit(2, **what), batch(3)])
    ) == [2]


@pytest.mark.parametrize("what", NEITHER, ids=lambda what: what["operation"])
def test_a_commit_that_changed_no_rows_is_not_foreign(what: dict[str, Any]) -> None:
    assert (
        versions(
            known([commit(0, operation="CREATE TABLE"), batch(1), commit(2, **what), batch(3)])
        )
        == []
    )


def test_the_metrics_say_what_became_of_rows() -> None:
    (found,) = known([batch(0), commit(1, **OTHERS[0], engine="by hand")]).commits
    assert (found.inserted, found.updated, found.deleted, found.engine) == (
        None,
        None,
        145,
        "by hand",
    )
    assert "145 rows deleted" in str(found)


def test_all_commits_before_the_first_batch_are_one() -> None:
    one, other = OTHERS[4], OTHERS[3]
    found = known(
        [
            commit(0, **one),
            commit(1, **other),
            commit(2, operation="OPTIMIZE"),
            batch(3),
            commit(4, **one),
        ]
    )
    assert [(each.first, each.version) for each in found.commits] == [(0, 1), (None, 4)]
    assert (
        versions(known([commit(0, operation="WRITE", metrics={"num_added_rows": 0}), batch(1)]))
        == []
    )


@pytest.mark.parametrize(
    ("batches", "before", "read_again"),
    [
        pytest.param([(2, 5), (2, 6)], 2, False, id="amid a generation"),
        pytest.param([(2, 5), (3, 0)], 2, True, id="and before the next one"),
        pytest.param([(2, 0), (2, 1)], 1, True, id="before a generation begins"),
        pytest.param([], 1, False, id="without a batch"),
    ],
)
def test_a_log_that_begins_amid_batches_tells_their_generation(
    batches: list[tuple[int, int]], before: int, read_again: bool
) -> None:
    rows = [
        BatchRow("p", "f", generation, number, "r").as_metadata() for generation, number in batches
    ]
    commits = [
        commit(7, **OTHERS[0]),
        *(commit(8 + at, user_metadata=row) for at, row in enumerate(rows)),
    ]
    assert generation_before(LAYOUT, commits) == before
    found = known(commits, ForeignCommits(generation=before), 6)
    assert [(one.version, one.generation, one.read_again) for one in found.commits] == [
        (7, before, read_again)
    ]


@pytest.mark.parametrize("to", [None, 1], ids=["a time", "a version from before"])
def test_a_restore_to_what_is_not_known_is_foreign_itself(to: int | None) -> None:
    back = commit(
        9, operation="RESTORE", parameters={"version": to and str(to), "timestamp": "then"}
    )
    before = known([batch(0), commit(1, **OTHERS[0]), batch(2), commit(3, **OTHERS[0])])
    assert versions(known([back], before, 8)) == ([1, 3, 9] if to is None else [1, 9])


@dataclass
class Model:
    """A table as the set of commits whose change it has, with every version kept."""

    state: dict[int, tuple[frozenset[int], int]] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    crossed: set[int] = field(default_factory=set)
    begun: int | None = None
    commits: list[Commit] = field(default_factory=list)

    def step(self, draw: random.Random, version: int) -> None:
        has, generation = self.state.get(version - 1, (frozenset[int](), 0))
        match draw.choice(
            ["batch", "batch", "others", "others", "neither", "restore", "reset", "swap"]
        ):
            case "others":
                # a table's first commit replaces no rows
                what = draw.choice(OTHERS) if version else OTHERS[4]
                self.commits.append(commit(version, **what))
                has |= {version}
            case "neither":
                self.commits.append(commit(version, **draw.choice(NEITHER)))
            case "restore" if version:
                to = draw.randrange(version)
                self.commits.append(restore(version, to))
                has = self.state[to][0]
                if any(at > to for at in self.batches):
                    has |= {version}
                    self.crossed.add(version)
            case "swap" if self.begun is not None:
                generation += 1
                self.commits.append(swap(version, generation))
                self.batches.append(version)
                has = frozenset()
            case "reset" if self.begun is not None:
                generation += 1
                self._batch(version, generation)
                has -= self.crossed
            case _:
                generation = max(generation, 1)
                self._batch(version, generation)
        self.state[version] = has, generation

    def _batch(self, version: int, generation: int) -> None:
        self.commits.append(batch(version, generation))
        self.batches.append(version)
        self.begun = version if self.begun is None else self.begun

    def of(self, version: int) -> list[int]:
        """The foreign commits at a version; of those before the first batch the last alone."""
        has = self.state[version][0]
        before = [one for one in has if self.begun is None or one < self.begun]
        return sorted([*has.difference(before), *([max(before)] if before else [])])


@pytest.mark.parametrize("seed", range(50))
def test_what_the_table_has_of_others_is_known_at_each_version(seed: int) -> None:
    draw, model = random.Random(seed), Model()
    for version in range(draw.randrange(2, 16)):
        model.step(draw, version)
        assert versions(known(model.commits)) == model.of(version)
    last = len(model.commits) - 1
    for kept in range(last):
        later = model.commits[kept + 1 :]
        back = [one.restored_version for one in later if one.restored_version is not None]
        if all(to >= kept for to in back):
            assert known(later, known(model.commits[: kept + 1]), kept) == known(model.commits), (
                "kept, then continued"
            )


def test_a_pointer_keeps_them_as_they_are() -> None:
    found = known([commit(0, **OTHERS[4]), batch(1), commit(2, **OTHERS[0])])
    assert (
        ForeignCommits.model_validate(json.loads(json.dumps(found.model_dump(mode="json"))))
        == found
    )
    assert isinstance(found.commits[0], ForeignCommit)
    assert known([batch(3, 2)], found, 2).commits[1] == replace_read(found.commits[1])


def replace_read(one: ForeignCommit) -> ForeignCommit:
    return one.model_copy(update={"read_again": True})
