"""What is measured, one module per kind of work; `ALL` by name."""

from __future__ import annotations

from benchmarks.work import Work
from benchmarks.works import (
    backlog,
    bulk,
    cluster,
    dag,
    derived,
    drain,
    fold,
    growth,
    kafka,
    kinds,
    longevity,
    scd2,
    seen,
    sinks,
    small,
    upkeep,
)

ALL: dict[str, Work] = {
    work.name: work
    for work in (
        drain.FLIGHTS,
        drain.CHANGES,
        small.WORK,
        dag.WORK,
        growth.WORK,
        growth.HISTORY,
        backlog.WORK,
        backlog.TINY,
        bulk.WORK,
        bulk.FILES,
        bulk.JSON,
        seen.WORK,
        kafka.WORK,
        kafka.BACKLOG,
        longevity.WORK,
        upkeep.WORK,
        derived.WORK,
        kinds.WORK,
        fold.WORK,
        scd2.WORK,
        cluster.WORK,
        sinks.WORK,
    )
}
