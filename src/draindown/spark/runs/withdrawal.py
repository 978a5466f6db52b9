"""Withdrawal: move unpublished rows that fail an expectation from the target to the quarantine.

A withdrawal is a batch of kind `gate` in the ledger, outside the stream, under the same lease. The
rows are written to the quarantine before they are deleted from the target. After a crash in
between, the quarantine has rows that nothing counts (see `flow.withdrawals`).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.clock import now
from draindown.base.errors import TerminalError, TransientError
from draindown.base.formatting import count
from draindown.base.progress import StepHook, ignore_step
from draindown.flow import drain_part, withdrawals
from draindown.gate import published, waivers
from draindown.gate import suite as gate_suite
from draindown.gate.published import Unpublished
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import WITHDRAW, BatchRow
from draindown.ledger.target_log import verify_written
from draindown.recovery.opening import Needs
from draindown.recovery.rebuild import refuse_begun
from draindown.runs import report
from draindown.runs.report import Expectation, StepReport
from draindown.runs.request import Request
from draindown.spark.batch import quarantine as quarantine_writer
from draindown.spark.checks.check import unpublished_rows
from draindown.spark.contract import json_rows
from draindown.spark.frames import TEXT, relation
from draindown.spark.runs.opening import open_flow
from draindown.spark.sql import ARRIVED_AT, ORIGIN, origin, quoted
from draindown.spark.targets.batch import BaseBatch
from draindown.spark.targets.commit import close, stamp_after
from draindown.spark.targets.delta_target import Writer
from draindown.spark.targets.outlets import outlets_of
from draindown.spark.targets.pruning import Pruning, measures, pruning, text_safe
from draindown.spark.targets.registry import strategy_of

MOST = 100_000
"""Maximum rows of one withdrawal, because GX collects them on the driver."""
_SHOWN = 5
_MARK, _RAW = "_mark", "_json"


@dataclass(frozen=True)
class Plan:
    """A proposed withdrawal, for the caller to approve.

    Attributes:
        pipeline: name of the pipeline.
        flow: name of the flow.
        expectation: name of the expectation.
        wants: what the expectation requires, for people.
        version: version of the target that was validated; -1 if nothing fails.
        judged: unpublished rows that were validated.
        rows: rows that fail.
        sample: keys, sequence and the expectation's columns of the first few failing rows, as text.
    """

    pipeline: str
    flow: str
    expectation: str
    wants: str = ""
    version: int = -1
    judged: int = 0
    rows: int = 0
    sample: tuple[dict[str, str | None], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a flat dictionary that can be serialized as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Found:
    """The failing rows, persisted, with the table's columns and _RAW. `table`: all rows that were
    validated.
    """

    plan: Plan
    rows: DataFrame
    table: DataFrame


def withdraw(
    request: Request,
    spark: SparkSession,
    expectation: str,
    *,
    agreed: Callable[[Plan], bool],
    reached: StepHook = ignore_step,
) -> StepReport:
    """Validate the unpublished rows against one expectation, and withdraw the failing ones if
    `agreed` returns true.

    The outcome is `idle` if no row fails or `agreed` returns false. A crash needs no cleanup.

    Raises TransientError `lease-held`, `lease-lost`, `table-moved`; TerminalError
    `withdraw-needs-keys`, `unknown-expectation`, `not-row-level`, `not-judged`, `too-many-rows`,
    `rows-not-told-apart`, `row-not-exact`, and the errors of resuming a flow.
    """
    started, layout, done = now(), request.layout, list[BatchRow]()
    refuse_impossible(request, expectation)
    with (
        open_flow(request, spark, Needs.RESUMED) as flow,
        _failing(request, spark, expectation) as found,
    ):
        if found is None:
            agreed(Plan(layout.pipeline, layout.flow, expectation))
        elif agreed(found.plan):
            refuse_begun(
                layout, f"withdraw rows of flow {layout.flow} of pipeline {layout.pipeline}"
            )
            done = [_take_out(request, spark, flow.generation, found, started, flow.guard(reached))]
    part, _ = drain_part.part(
        request, flow.generation, done, bound=f"unpublished rows that make {expectation} fail"
    )
    return report.of(request, started, "done" if done else "idle", drain=part)


@contextmanager
def _failing(request: Request, spark: SparkSession, expectation: str) -> Iterator[_Found | None]:
    """Yield the unpublished rows that fail the expectation; None if no row fails."""
    state = published.unpublished(request.layout)
    judged = (
        _judged(request, spark, expectation, state) if state is not None and state.pending else None
    )
    if state is None or judged is None:
        yield None
        return
    table, verdict, marks = judged
    names = [name for name in table.columns if name != _MARK]
    chosen = relation(spark, {_MARK: TEXT}, [(mark,) for mark in marks])
    rows = table.join(chosen, _MARK, "left_semi").select(
        *[F.col(quoted(name)) for name in names], json_rows.encode(names).alias(_RAW)
    )
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        plain = table.drop(_MARK)
        _refuse_unclear(request, rows, verdict, marks)
        _refuse_inexact(request, rows, plain)
        yield _Found(_plan(request, expectation, verdict, state, rows), rows, plain)
    finally:
        rows.unpersist()


def _judged(
    request: Request, spark: SparkSession, expectation: str, state: Unpublished
) -> tuple[DataFrame, Expectation, list[str]] | None:
    """Validate the unpublished rows. Return them with _MARK, the result, and the marks of the
    failing rows.

    None if the expectation succeeds.
    """
    from draindown.spark.checks import (
        gx,
    )  # imported late: importing GX takes seconds, and refusals don't need it

    keys = request.flow_spec.target.row_keys
    changed = unpublished_rows(spark, request.layout.tables.target.path, state).changed
    # a hash, because PySpark would change keys on the way to Python: it converts timestamps to the
    # local time zone
    changed = changed.withColumn(_MARK, F.sha2(json_rows.encode(keys), 256))
    try:
        verdict, marks = gx.failing(request.suite, expectation, changed, _MARK, MOST)
    except gx.NotRowLevel as error:
        raise _refusal(request, expectation, "not-row-level", str(error)) from None
    except gx.NotJudged as error:
        raise _refusal(request, expectation, "not-judged", f"it can't be judged: {error}") from None
    if verdict.success:
        return None
    if verdict.unexpected > MOST:
        raise _too_many(request, expectation, verdict)
    return changed, verdict, marks


def _plan(
    request: Request, expectation: str, verdict: Expectation, state: Unpublished, rows: DataFrame
) -> Plan:
    goal, layout = request.flow_spec.target, request.layout
    shown = dict.fromkeys([*goal.row_keys, *goal.sequence_by, *_columns(request, expectation)])
    columns = [
        F.col(quoted(name)).cast("string").alias(name) for name in shown if name in rows.columns
    ]
    first = (
        rows.orderBy(*[F.col(quoted(key)) for key in goal.row_keys])
        .select(*columns)
        .limit(_SHOWN)
        .collect()
    )
    return Plan(
        pipeline=layout.pipeline,
        flow=layout.flow,
        expectation=expectation,
        wants=verdict.detail,
        version=state.version,
        judged=verdict.judged,
        rows=verdict.unexpected,
        sample=tuple(row.asDict() for row in first),
    )


def _take_out(
    request: Request,
    spark: SparkSession,
    generation: int,
    found: _Found,
    started: datetime,
    reached: StepHook,
) -> BatchRow:
    layout, plan = request.layout, found.plan
    _refuse_moved(request, plan)
    batch = withdrawals.next_batch(layout, generation)
    writer = Writer(layout, request.flow_spec, generation, batch, kind=WITHDRAW)
    newest = ledger_table.recent(layout, 1)
    row = BatchRow(
        pipeline=layout.pipeline,
        flow=layout.flow,
        generation=generation,
        batch=batch,
        kind="withdraw",
        run_id=request.run_id,
        attempt=request.start,
        records=plan.rows,
        deleted=plan.rows,
        changed_at=stamp_after(newest[-1].changed_at if newest else None, started),
        started_at=started,
    )
    outlets, stamp = outlets_of(request), row.changed_at or started
    sending = BaseBatch(
        writer=writer, run_id=request.run_id, changed_at=stamp, started_at=started, reached=reached
    )
    rows, strategy = found.rows.drop(_RAW), strategy_of(request.flow_spec)
    with (
        outlets.opened(sending),
        strategy.withdrawal(writer, rows, row, _pruning(request, rows)) as change,
    ):
        quarantine_writer.keep(
            writer, _as_kept(request, writer, plan, change.kept), request.run_id, started
        )
        verify_written(change.row, layout.tables.quarantine.path, change.row.records, "withdrawn")
        reached("quarantined")
        change.remember()
        reached("remembered")
        row = outlets.send(spark, sending, change)
        change.write(row)
        return close(writer, row, reached)


def _as_kept(request: Request, writer: Writer, plan: Plan, rows: DataFrame) -> DataFrame:
    """Return the rows in the quarantine's columns. The id includes the batch, because a row can be
    withdrawn again.
    """
    own, name = request.flow_spec.target.essential, plan.expectation
    parts = [
        F.lit(WITHDRAW),
        F.lit(str(writer.generation)),
        F.lit(str(writer.batch)),
        json_rows.encode(own),
    ]
    return rows.withColumn(_RAW, json_rows.encode(rows.columns)).select(
        # can't collide with the id of a quarantined record, whose hash input begins with a path and so
        # with a slash
        F.sha2(F.concat_ws("\u0001", *parts), 256).alias("quarantine_id"),
        origin(F.lit(request.layout.tables.target.path), F.lit(plan.version)).alias(ORIGIN),
        ARRIVED_AT,
        F.col(_RAW).alias("raw"),
        F.lit(None).cast("binary").alias("raw_bytes"),
        F.octet_length(_RAW).alias("raw_length"),
        F.lit(f"{withdrawals.REASON}{name}").alias("reason"),
        F.lit(", ".join(_columns(request, name)) or None).cast("string").alias("field"),
        F.lit(plan.wants).alias("detail"),
    )


def _pruning(request: Request, rows: DataFrame) -> Pruning:
    """Return the file-skipping predicates for the MERGE: the partitions and key ranges of the rows.

    A history's neighbours of the rows, which may join, can lie in partitions of other events of the
    same keys.
    """
    goal, schema = request.flow_spec.target, rows.schema
    same = [name for name in goal.partition_by if name in goal.keys or goal.kind.memory != "hidden"]
    exact = text_safe(schema, same)
    found = rows.agg(F.count("*"), *measures(rows, exact, goal.keys, F.lit(True))).collect()
    return pruning(found, schema, exact, goal.keys)


def _columns(request: Request, expectation: str) -> list[str]:
    suite = request.suite
    configs = dict(zip(gate_suite.names(suite), gate_suite.expectations_of(suite), strict=True))
    return gate_suite.columns_of(configs[expectation])


def refuse_impossible(request: Request, expectation: str) -> None:
    """Check what can be checked without validating rows.

    Raises TerminalError `withdraw-needs-keys` or `unknown-expectation`.
    """
    kind = request.flow_spec.target.kind
    if not kind.addressable:
        raise TerminalError(
            "withdraw-needs-keys",
            tried=f"withdraw rows of flow {request.flow} of pipeline {request.spec.pipeline}",
            found=kind.inseparable,
            next=[
                _waive(request, expectation),
                "add a rule to the contract: it refuses such rows from now on",
            ],
        )
    waivers.refuse_unknown(
        request.layout, expectation, gate_suite.names(request.suite), _tried(request, expectation)
    )


def _refuse_unclear(
    request: Request, rows: DataFrame, verdict: Expectation, marks: list[str]
) -> None:
    number = rows.count()
    if not number == verdict.unexpected == len(set(marks)):
        raise TerminalError(
            "rows-not-told-apart",
            tried=f"find the {count(verdict.unexpected, 'row')} of "
            f"{request.layout.tables.target.path} that fail by their keys",
            found=f"{count(len(set(marks)), 'key')} in {count(number, 'row')}: a key stands there more than once",
            next=f"draindown audit {request.spec.pipeline}/{request.flow}",
        )


def _refuse_inexact(request: Request, rows: DataFrame, table: DataFrame) -> None:
    """Check that each row survives a round trip through JSON, so that a release can restore it
    unchanged.

    Raises TerminalError `row-not-exact`.
    """
    odd = json_rows.unwritable(table.schema)
    lost = 0 if odd else rows.where(~json_rows.comes_back(F.col(_RAW), table.schema)).count()
    if odd or lost:
        what = (
            f"the type of {', '.join(odd)} has none"
            if odd
            else f"{count(lost, 'row')} would come back changed"
        )
        raise TerminalError(
            "row-not-exact",
            tried=f"keep rows of {request.layout.tables.target.path} as JSON",
            found=what,
            next="have them corrected at the source, and delivered again with a later sequence",
        )


def _refuse_moved(request: Request, plan: Plan) -> None:
    """Check that the target is still at the version that was validated: a writer outside draindown
    may have changed it.

    Raises TransientError `table-moved`.
    """
    newest = request.layout.tables.target.version
    if newest != plan.version:
        raise TransientError(
            "table-moved",
            tried=f"withdraw rows as they were judged at version {plan.version} of {request.layout.tables.target.path}",
            found=f"version {newest}, by other hands than draindown's",
            next=_again(request, plan.expectation),
        )


def _too_many(request: Request, expectation: str, verdict: Expectation) -> TerminalError:
    return _refusal(
        request,
        expectation,
        "too-many-rows",
        f"{count(verdict.unexpected, 'row')} fail; at most {MOST:,} go into one withdrawal",
        "have the data corrected at the source, and add a rule to the contract: it refuses such rows one by one",
    )


def _refusal(
    request: Request, expectation: str, code: str, found: str, next: str | None = None
) -> TerminalError:
    return TerminalError(
        code,
        tried=_tried(request, expectation),
        found=found,
        next=next or _waive(request, expectation),
    )


def _tried(request: Request, expectation: str) -> str:
    return f"withdraw the rows of flow {request.flow} that make {expectation} fail"


def _waive(request: Request, expectation: str) -> str:
    return (
        f"draindown gate waive {request.spec.pipeline}/{request.flow} "
        f"{shlex.quote(expectation)} --note TEXT"
    )


def _again(request: Request, expectation: str) -> str:
    return f"draindown gate withdraw {request.spec.pipeline}/{request.flow} {shlex.quote(expectation)} --yes"
