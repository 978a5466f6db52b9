"""Plan a run: the backlog and the steps it needs. Looks at the source and reads Delta logs. Writes
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from draindown.base import clock
from draindown.base.errors import DraindownError, TerminalError
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.flow import altered, foreign, integrity, sink_columns
from draindown.flow.generations import refuse_lost
from draindown.flow.health import Health, backlog_of
from draindown.flow.state import FlowState
from draindown.lake import storage
from draindown.lake.home import FlowHome
from draindown.lake.presence import Lake
from draindown.ledger import table as ledger_table
from draindown.ledger import target_log
from draindown.ledger.rows import BatchRow
from draindown.planning import compaction, moved
from draindown.recovery import opening, replay
from draindown.runs import report, store
from draindown.runs.report import Backlog, Outcome, PlanPart, StepReport
from draindown.runs.request import Request, Step
from draindown.sources.batch_size import batch_seconds, bound_now
from draindown.sources.port import Look, Source
from draindown.sources.registry import source_of
from draindown.sources.tables import readers

_START_SECONDS = (
    12.0  # startup of a drain's JVM and its first batch, assumed if the flow has no history
)
_HISTORY = 20
_STARTS = 5


def look(
    request: Request, now: datetime, source: Source | None = None, state: FlowState | None = None
) -> Look:
    """Compare the source with intake and checkpoint: as they are now, or as `source` and `state`
    saw them.

    Raises TerminalError `source-missing`, `checkpoint-damaged`, `checkpoint-without-metadata`,
    `generation-damaged`, `intake-behind-checkpoint`, `intake-replaced`, and those of
    `Source.refuse_lost`.
    """
    state, source = state or FlowState.of(request.layout), source or source_of(request)
    state.live_checkpoint.verify()
    state.refuse_other_intake()
    first = state.live_checkpoint.first_unread
    source.refuse_lost(state, state.live_generation, first)
    return source.look(state, state.live_generation, first, now)


def backlog(request: Request, now: datetime, source: Source | None = None) -> Backlog:
    """Return the backlog: input that is new or in a slice not read yet. Arguments and errors as for
    `look`.
    """
    return backlog_of(look(request, now, source), now)


def planned(
    request: Request, left_out: Collection[Step] = (), source: Source | None = None
) -> StepReport:
    """Run the plan step: call `plan`, then write and return its report.

    `left_out`: steps to exclude from the run, even if necessary. `source`: to be shared with a
    later drain. Begins the lake of a pipeline that never ran. Raises like `plan`, after reporting
    the error unless the lake is missing, and TerminalError `lake-not-writable`, `disk-full`.
    """
    started = clock.now()
    _refuse_no_lake(request)
    with storage.named(request.layout, tried=_tried(request)):
        _lake(request).enter(request.owner)
    try:
        part, findings = of_request(request, started, source)
    except DraindownError as error:
        with suppress(OSError):  # the cause of the error may also prevent writing the report
            store.write(
                request.layout, report.of(request, started, "failed", error=error.as_dict())
            )
        raise
    return reported(
        request, started, part.model_copy(update={"left_out": tuple(left_out)}), findings
    )


def of_request(
    request: Request, now: datetime, source: Source | None = None
) -> tuple[PlanPart, list[Finding]]:
    """Return what `plan` returns, or `plan_replay` where the request is to read input again. Raises
    as they do.
    """
    return plan(request, now, source) if request.replay is None else plan_replay(request)


def reported(
    request: Request, started: datetime, part: PlanPart, findings: list[Finding]
) -> StepReport:
    """Write and return the report of a plan. Raises TerminalError `lake-not-writable`,
    `disk-full`.
    """
    outcome: Outcome = "done" if part.drain or part.check or part.compact else "idle"
    done = report.of(request, started, outcome, findings=findings, plan=part)
    with storage.named(request.layout, tried=_tried(request)):
        store.write(request.layout, done)
    return done


def plan_replay(request: Request) -> tuple[PlanPart, list[Finding]]:
    """Plan a replay: what it would read again, and which of the flow's other steps must run.

    A flow that appends is left out, with a finding, where all flows of the pipeline are to read
    input again.

    Raises like `replay.find`, and TerminalError `replay-input-gone`, `not-a-directory`,
    `lake-missing`.
    """
    _refuse_no_lake(request)
    state = FlowState.of(request.layout)
    source = source_of(request)
    if (
        request.replay is not None
        and request.replay.of_all
        and not request.declared.target.kind.idempotent
    ):
        return _not_replayed(request, state)
    wanted = replay.find(request, state)
    replay.refuse_gone(source, state, wanted.left)
    units, size = (
        sum(len(part.slice.units) for part in wanted.left),
        sum(part.slice.bytes for part in wanted.left),
    )
    recomputes = request.declared.source.begins_with_fill
    what = (
        f"what {count(len(wanted.left), 'slice')} touched"
        if recomputes
        else count(units, source.unit)
    )
    part = _part(
        request,
        Health(state, clock.now()),
        "" if not units else f"{what} to read again" + _apart(wanted, source.unit),
        backlog=Backlog(units=units, unit=source.unit, bytes=size),
        replay=f"{wanted.id}: {wanted.asked}",
        batches=len(wanted.left),
        seconds=_forecast_seconds(state, _ledger(state), size, len(wanted.left)) if units else None,
        idle=wanted.nothing_left + _apart(wanted, source.unit),
    )
    return part, []


def _not_replayed(request: Request, state: FlowState) -> tuple[PlanPart, list[Finding]]:
    assert request.replay is not None, "asked for by who calls"
    rebuild = f"draindown rebuild {request.spec.pipeline}/{request.flow}   # all input, into a fresh table"
    finding = Finding(
        kind="not-replayed", subject=request.flow, detail=replay.APPENDS, next=rebuild
    )
    asked = replay.wording(request.replay, source_of(request).unit)
    health = Health(state, clock.now())
    part = _part(request, health, "", replay=asked, backlog=Backlog(), idle=replay.APPENDS)
    return part, [finding]


def _apart(wanted: replay.Replay, unit: str) -> str:
    done = (
        f"; {count(wanted.done, 'batch', 'batches')} done before"
        if wanted.done and wanted.left
        else ""
    )
    return done + (
        f"; {count(wanted.waiting, unit)} first seen then wait to be drained"
        if wanted.waiting
        else ""
    )


def plan(
    request: Request, now: datetime, source: Source | None = None
) -> tuple[PlanPart, list[Finding]]:
    """Plan a run: the backlog, which steps must run, and the reason for each.

    Raises like `look` and `opening.unsettled`, and TerminalError `checkpoint-missing`,
    `table-behind-checkpoint`, `table-damaged`, `table-altered`, `table-feature`, `not-a-directory`,
    `lake-missing`, `table-of-another-flow`, `files-moved`, and those of the flow's sinks where
    there is something to drain.
    """
    _refuse_no_lake(request)
    state = FlowState.of(request.layout)
    state.refuse_damage()
    altered.refuse(state, request.declared)
    integrity.refuse_lost_files(state)
    source = source or source_of(request)
    seen = look(request, now, source, state)
    notes = moved.refuse(request, source, state, now)
    ledger = _ledger(state)
    live = [
        row.batch
        for row in ledger
        if (row.generation, row.kind) == (state.live_generation, "drain")
    ]
    refuse_lost(state, state.live_generation, max(live, default=None))
    state.refuse_behind()
    health = Health(state, now, seen)
    waiting = backlog_of(seen, now)
    expected = seen.forecast(bound_now(state, request.declared.source))
    batches = seen.pinned.slices + expected.slices
    part = _part(
        request,
        health,
        "; ".join(
            filter(None, (_why_drain(health, seen, ledger), readers.lacking(request, state)))
        ),
        backlog=waiting,
        parked=seen.kept_out,
        batches=batches,
        unpacked=seen.pinned.unpacked + expected.unpacked,
        seconds=_forecast_seconds(state, ledger, waiting.bytes, batches) if batches else None,
        idle="nothing new at the source, nothing in flight",
    )
    if part.drain:
        sink_columns.refuse_unready(request, state)
    return part, [
        *foreign.findings(state, request.declared),
        *seen.findings,
        *notes,
        *_unwritable(request.layout),
        *altered.findings(state, request.declared),
        *sink_columns.findings(request, state),
    ]


def _refuse_no_lake(request: Request) -> None:
    again = f"draindown plan {request.spec.pipeline}"
    storage.refuse_file_as_lake(request.layout.lake, tried=_tried(request), again=again)
    _lake(request).refuse_missing()


def _lake(request: Request) -> Lake:
    return Lake.look(request.layout.lake, Path(request.root), request.spec.pipeline)


def _tried(request: Request) -> str:
    return f"plan flow {request.flow} of pipeline {request.spec.pipeline}"


def _unwritable(layout: FlowHome) -> list[Finding]:
    error = storage.unwritable(layout)
    return (
        [Finding(kind="unwritable", subject=error.code, detail=error.found, next=error.next[0])]
        if error
        else []
    )


def _part(request: Request, health: Health, drain: str, *, idle: str, **found: Any) -> PlanPart:
    """Return the plan that follows from the drain's reason, `drain`; "" if there is none. `idle`:
    why there is none.
    """
    reasons = {
        "drain": drain,
        "check": "; ".join(filter(None, (_why_check(health), _AFTER if drain else ""))),
        "compact": _why_compact(request, health.state, bool(drain)),
    }
    return PlanPart(
        **found,
        unit=source_of(request).unit,
        drain=bool(drain),
        check=bool(reasons["check"]),
        compact=bool(reasons["compact"]),
        reasons={step: why or (_IDLE | {"drain": idle})[step] for step, why in reasons.items()},
    )


_AFTER = "judges what the drain changes, if it changes anything"
_IDLE = {
    "check": "nothing unpublished",
    "compact": "no partition has enough small files or deleted rows, no old files are due",
}


def _why_drain(health: Health, looked: Look, ledger: Sequence[BatchRow]) -> str:
    state = health.state
    reasons = list(looked.reasons)
    in_flight = state.live_checkpoint.in_flight
    if in_flight is not None:
        reasons.append(f"batch {in_flight} is in flight")
    unrecorded = _unrecorded(state, ledger)
    if unrecorded:
        missing = count(unrecorded, "batch", "batches")
        reasons.append(f"the ledger lacks {missing} that the table holds")
    unsettled = opening.unsettled(state)
    holder, _ = health.holder if unsettled else (None, "")
    if holder is None:  # else its run may be about to settle it
        reasons += unsettled
    return "; ".join(reasons)


def _unrecorded(state: FlowState, ledger: Sequence[BatchRow]) -> int:
    """Return how many batches among the table's newest commits the next drain adds to the
    ledger.
    """
    return sum(1 for _ in target_log.lacking(state, ledger, _HISTORY, state.live_generation))


def _why_check(health: Health) -> str:
    found = health.unpublished
    if found is None or not found.pending:
        return ""
    last = f"version {found.published.version}" if found.published else "nothing yet"
    return f"version {found.version} is unpublished; published is {last}"


def _why_compact(request: Request, state: FlowState, drain: bool) -> str:
    if request.force:
        return "asked for"
    if drain:
        return "evidence is weighed after the drain"
    due = compaction.work(state, request.declared.maintenance)
    return str(due) if due else ""


def _ledger(state: FlowState) -> list[BatchRow]:
    return ledger_table.costs(state, 2 * _HISTORY)


def _forecast_seconds(
    layout: FlowHome, ledger: Sequence[BatchRow], size: int, batches: int
) -> float | None:
    """Return the expected seconds for `batches` of `size` bytes in total with startup; None without
    similar history.
    """
    rows = [row for row in ledger if row.kind == "drain" and row.bytes]
    took = batch_seconds([(row.bytes, row.seconds) for row in rows], size / max(batches, 1))
    if took is None:
        return None
    return round(start_seconds(layout, (row.run_id for row in rows)) + took * batches, 1)


def start_seconds(layout: FlowHome, run_ids: Iterable[str]) -> float:
    """Return the seconds that a drain takes outside its batches; a default if no report says it.

    The minimum over the newest `_STARTS` runs whose drain did not fail: some include work that few
    runs do, such as the first listing of a large directory, or the swap of a rebuild.
    """
    spent = list[float]()
    for run_id in islice(dict.fromkeys(run_ids), _STARTS):
        drained = None
        # a report that can't be read tells no time; `report` names it
        with suppress(ValueError, TerminalError):
            drained = store.read(layout, run_id, "drain")
        if drained and drained.drain and drained.outcome != "failed":
            spent.append(
                drained.seconds
                - sum(float(batch.get("seconds", 0)) for batch in drained.drain.batches)
            )
    return max(0.0, min(spent, default=_START_SECONDS))
