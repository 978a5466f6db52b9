"""A driver that lost a shared lease: what it has in flight can't be committed, and what follows it
is right.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.audit.recount import audit
from draindown.base.clock import now
from draindown.base.errors import TransientError
from draindown.base.exits import Exit
from draindown.config.lease import LeaseSpec
from draindown.doctor.examination import examine
from draindown.gate import published
from draindown.gate.published import Published
from draindown.lake.table import Table
from draindown.lease import locks
from draindown.lease.shared import RELEASED, Epochs
from draindown.recovery.opening import lease_of
from draindown.spark.job.main import attempt
from draindown.spark.runs.drain import drain
from draindown.spark.sql import CHANGED_AT
from draindown.spark.targets import delta_target
from draindown.spark.targets.delta_target import Clauses, Writer
from draindown.spark.targets.pruning import Pruning
from draindown.spark.targets.resolution import FATE
from tests.flowfiles import take_in
from tests.landing import Landing

SHARED = LeaseSpec.model_construct(mode="shared", duration=8)


class SharedLanding(Landing):
    """A landing flow whose lease expires sooner than a pipeline file may ask for."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, source={"max_files_per_trigger": 1})
        self.spec = self.spec.model_copy(update={"lease": SHARED})
        self.epochs = Epochs(f"{self.layout.lease}/epochs", SHARED.duration)

    def values(self) -> list[tuple[str, int]]:
        return sorted((row["id"], row["a"]) for row in self.rows("id, a"))

    def agrees(self) -> None:
        """Neither doctor nor audit takes a fence for more than it is."""
        health = examine(self.request())
        assert health.exit == 0, str(health)
        found = audit(self.spec, "f", root=self.home)
        assert found.clean, str(found)


def merge_overtaken(spark: SparkSession, landing: SharedLanding, once: Path) -> None:
    """A MERGE of batch 1 in whose middle another host takes the lease over, fences, and leaves."""
    layout, terms, root = landing.layout, SHARED.duration, str(Path(__file__).parents[2])

    def overtake() -> None:
        try:
            once.touch(exist_ok=False)
        except FileExistsError:
            return
        import sys

        sys.path[:0] = [root, f"{root}/src"]
        from draindown.config.lease import LeaseSpec
        from draindown.lease import locks

        locks._kernel = lambda: "another"
        shared = LeaseSpec.model_construct(mode="shared", duration=terms)
        with lease_of(layout, shared, owner="another", run_id="another"):
            pass

    held = spark.read.format("delta").load(layout.tables.target.path)
    late = (
        held.limit(1)
        .withColumn("id", F.udf(lambda value: overtake() or value, "string")(F.lit("late")))
        .withColumn(CHANGED_AT, F.lit(now()))
    )
    fated = late.withColumn("_delete", F.lit(False)).withColumn(FATE, F.lit("insert")).coalesce(1)
    writer = Writer(layout, landing.spec.flows["f"], 1, 1)
    clauses = Clauses(delete="s._delete", update="NOT s._delete", insert="NOT s._delete")
    delta_target.merge(writer, fated, "t.id = s.id", clauses, Pruning(), "{}")


@pytest.mark.full
def test_merge_in_flight_is_fenced_and_the_flow_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = SharedLanding(tmp_path)
    layout, app = landing.layout, landing.layout.app_id(1, "rows")
    landing.deliver('{"id": "x", "seq": 1, "a": 1}', '{"id": "y", "seq": 1, "op": "d"}', "no json")
    landing.drain(spark)
    assert landing.epochs.pulse(1) == RELEASED
    pointer = Published(
        version=layout.tables.target.version, table_id=layout.tables.target.id, changed_at=now(), at=now(),
        run_id="r", rows=1,
    )  # fmt: skip
    published.publish(layout, pointer)

    with (
        pytest.raises(TransientError) as caught,
        lease_of(layout, SHARED, owner="old", run_id="old") as old,
    ):
        old.hand_to_jvm(spark._jvm)
        assert old._heart
        old._heart._over.set()  # as if this process, not its JVM, were frozen
        merge_overtaken(spark, landing, tmp_path / "overtaken")
    assert caught.value.code == "lease-lost"
    assert "CONCURRENT_TRANSACTION" in str(caught.value.__cause__)
    assert (landing.epochs.newest(), landing.epochs.pulse(3)) == (3, RELEASED)
    assert landing.values() == [("x", 1)]

    for path in (
        layout.tables.target.path,
        layout.tables.tombstones.path,
        layout.tables.quarantine.path,
    ):
        assert Table(path).commits(1)[0].is_fence, path
    assert layout.tables.target.last(app) == 0
    assert layout.tables.target.version == pointer.version + 1
    state = published.unpublished(layout)
    assert state is not None
    assert not state.pending, "a fence is nothing to judge"
    carried = published.carry(layout)
    assert carried is not None
    assert carried.version == pointer.version + 1
    landing.agrees()

    landing.deliver(
        '{"id": "x", "seq": 2, "a": 2}',
        '{"id": "z", "seq": 1, "a": 3}',
        '{"id": "y", "seq": 0, "a": 9}',
    )
    landing.drain(spark)
    assert layout.tables.target.last(app) == 1
    assert landing.values() == [("x", 2), ("z", 3)]
    version = layout.tables.target.version
    landing.forget_last_batch()
    landing.drain(spark)
    assert layout.tables.target.version == version
    assert landing.totals()["applied"] == 4
    landing.agrees()


@pytest.mark.campaign
def test_driver_that_was_followed_stops_at_its_next_step(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Before the first batch is committed too: the fence says that nothing is there yet, and the
    batch is no replay.
    """
    landing = SharedLanding(tmp_path)
    landing.deliver('{"id": "x", "seq": 1, "a": 1}')
    landing.deliver('{"id": "x", "seq": 2, "a": 2}')
    for step in ("quarantined", "remembered", "merged"):
        before = landing.epochs.newest()

        def reached(at: str, step: str = step, follower: int = before + 2) -> None:
            if at == step:  # a host that saw no heartbeat, and died itself
                assert landing.epochs.claim(
                    follower, {"owner": "another", "expires": SHARED.duration}
                )

        request = landing.request(run_id=step)
        work = partial(drain, request, spark, progress=str, reached=reached)
        report, code = attempt(request, lambda stop, work=work: work(stop=stop))  # type: ignore[misc]
        assert code == Exit.TRY_AGAIN, report.error
        assert report.error
        assert report.error["code"] == "lease-lost"
        assert landing.epochs.is_open(before + 2)
        held = landing.layout.tables.target.exists and landing.values()
        assert held == {"quarantined": False, "remembered": [], "merged": [("x", 1)]}[step]
    assert landing.ledger() == []
    landing.drain(spark)
    assert landing.values() == [("x", 2)]
    assert [row["batch"] for row in landing.ledger()] == [0, 1]
    fences = [commit.is_fence for commit in landing.layout.tables.target.commits(20)]
    assert fences.count(True) == 2
    assert DeltaTable.forPath(spark, landing.layout.tables.target.path).toDF().count() == 1
    landing.agrees()


def test_intake_of_a_driver_that_was_followed_takes_no_file_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It had listed the source when another host took the same files in."""
    landing = SharedLanding(tmp_path)
    landing.deliver('{"id": "z", "seq": 1, "a": 1}')
    from draindown.sources.files import source as files

    right = files.sort_out

    def slow(*given: object) -> object:
        sorted_out = right(*given)  # type: ignore[arg-type]
        with (
            mock.patch.object(files, "sort_out", right),
            mock.patch.object(locks, "_kernel", lambda: "another"),
        ):
            take_in(landing.request(), heap_bytes=2**30, now=now())
        return sorted_out

    with mock.patch.object(files, "sort_out", slow), pytest.raises(TransientError) as caught:
        landing.drain(spark)
    assert caught.value.code == "lease-lost"
    assert sorted(row["slice"] for row in landing.read(landing.layout.tables.intake(1).path)) == [1]
    landing.drain(spark)
    assert landing.values() == [("z", 1)]
    landing.agrees()
