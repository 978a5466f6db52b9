"""The physical plan of the next run of a derived flow: the part of `plan --explain` that starts Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draindown.cli.context import Setting, new_run_id

if TYPE_CHECKING:
    from draindown.config.derived import DerivedFlow
    from draindown.config.models import PipelineSpec
    from draindown.sources.tables.followed import Followed, Piece
    from draindown.spark.derived.batch import DeriveBatch
    from draindown.spark.derived.physical import Physical


def physical(here: Setting, spec: PipelineSpec, flow: str) -> Physical | None:
    """Return the plan of the next batch of a derived flow; that of a comparison of all rows if
    nothing changed.

    None while a source table has published nothing.
    """
    from draindown.base.clock import now
    from draindown.config.derived import DerivedFlow
    from draindown.flow.state import FlowState
    from draindown.planning.explanation import next_pieces
    from draindown.runs.driver_log import DriverLog
    from draindown.sources.tables.followed import Followed
    from draindown.spark.derived.physical import physical as planned
    from draindown.spark.session import session, stop

    declared, state = spec.declared(flow), FlowState.of(spec.layout(flow))
    assert isinstance(declared, DerivedFlow)
    tables = [Followed(one, state) for one in declared.source.read]
    if not all(one.is_ready for one in tables):
        return None
    batch = _batch(
        spec,
        declared,
        flow,
        state.live_generation,
        tables,
        next_pieces(state, declared, tables, now()),
    )
    request = here.request(spec, flow, "drain", new_run_id())
    with DriverLog.of(request.layout, request.run_id, request.step) as log:
        spark = session(f"draindown {spec.pipeline} plan", log=log)
        try:
            return planned(spark, batch)
        finally:
            stop(spark)


def _batch(
    spec: PipelineSpec,
    flow: DerivedFlow,
    name: str,
    generation: int,
    tables: list[Followed],
    pieces: list[Piece],
) -> DeriveBatch:
    """Return the batch that would read these pieces. It is planned, never run."""
    from draindown.base.clock import now
    from draindown.spark.derived.batch import DeriveBatch, TableSlice, Versions
    from draindown.spark.targets.delta_target import TableWriter

    layout, (counted, decided) = spec.layout(name), pieces[0].decided
    is_idle = not any(piece.commits for piece in pieces) and counted == decided
    versions = [
        Versions(
            path=table.path,
            start=None if is_idle else piece.start,
            until=piece.until,
            rows=piece.rows,
            bytes=piece.bytes,
            changes=piece.changes,
        )
        for table, piece in zip(tables, pieces, strict=True)
    ]
    return DeriveBatch(
        writer=TableWriter(layout, flow, generation, 0, "drain"),
        flow=flow,
        slice=TableSlice(0, versions, decided=(counted, decided)),
        run_id="",
        changed_at=now(),
        started_at=now(),
    )
