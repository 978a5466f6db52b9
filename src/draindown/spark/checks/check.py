"""The check step: judge unpublished rows, then publish the target's newest version or refuse it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.clock import EPOCH, now
from draindown.base.findings import Finding
from draindown.config.derived import DerivedFlow
from draindown.config.names import END_AT
from draindown.flow import foreign, generations, quarantined_share
from draindown.flow.open_windows import open_windows
from draindown.gate import page as gate_page
from draindown.gate import published, refusal, suite_validation, waivers
from draindown.gate import suite as gate_suite
from draindown.gate.published import Published, Unpublished
from draindown.lake.table import Table
from draindown.ledger import target_log
from draindown.runs import report
from draindown.runs.report import CheckPart, Expectation, StepReport
from draindown.runs.request import Request
from draindown.sources.slices import unread_after
from draindown.sources.tables.source import part_way
from draindown.spark import cluster
from draindown.spark.checks import aggregate, judge
from draindown.spark.sql import ARRIVED_AT, CHANGED_AT, ORIGIN

_FEW = 200_000  # at most so many changed rows are broadcast to look up their duplicates
_MANY = 3_000_000  # in a table with fewer rows, grouping all of them costs less than that lookup


@dataclass(frozen=True)
class Rows:
    """The rows to judge, of one version of the target. `changed`: the unpublished ones;
    `changed_at`: newest stamp.
    """

    table: DataFrame
    changed: DataFrame
    changed_rows: int
    changed_at: datetime | None


def check(request: Request, spark: SparkSession) -> StepReport:
    """Judge the unpublished rows and the quarantined share of the input, and publish the target's
    newest version.

    Raises TerminalError `bad-suite` if the suite is wrong, and `gate.Refused` (a GateFailed with
    all verdicts in `part`) if an expectation or the quarantined share fails without a waiver. Then
    nothing is published, even if no row changed. On a cluster, raises the errors of
    `cluster.refuse_unfit` first.
    """
    started = now()
    state = published.unpublished(request.layout)
    if state is None:
        return report.of(request, started, "idle")
    cluster.refuse_unfit(spark, request)
    if unpublishable := _part_way(request, state):
        return report.of(request, started, "idle", findings=[unpublishable])
    since = state.published.version if state.published else -1
    generation = generations.generation(request.layout)
    # a drain beside may not have closed its batch
    target_log.verify(request.layout, since, state.version, generation)
    rows = (
        unpublished_rows(spark, request.layout.tables.target.path, state)
        if state.pending and state.changed
        else None
    )
    rows = rows if rows and _anything(rows, state) else None
    expectations = [] if rows is None else _expectations(request, state, rows)
    share = quarantined_share.judged(request, state) if state.pending else []
    part = _part(request, state, 0 if rows is None else rows.changed_rows, [*expectations, *share])
    if rows is not None or not all(verdict.success for verdict in share):
        gate_page.write(request, part)
    if gate_page.verdict(part) == "failed":
        raise refusal.refusal(request.layout, part, keyed=request.declared.target.kind.addressable)
    others = [
        *foreign.findings(request.layout, request.declared, state),
        *refusal.findings(request.layout, part),
    ]
    if rows is None:
        return report.of(
            request, started, "idle", findings=others, check=_carried(request, state, part)
        )
    after = published.publish(request.layout, _pointer(request, state, rows, expectations)).version
    done = part.model_copy(update={"published_after": after})
    return report.of(request, started, "done", findings=others, check=done)


def _part_way(request: Request, state: Unpublished) -> Finding | None:
    """Return the finding that a derived table is between two versions of its source; None if it is
    not.
    """
    if not isinstance(request.declared, DerivedFlow):
        return None
    layout, generation = request.layout, generations.generation(request.layout)
    # by the transactions of the version that is judged: a drain may do further buckets meanwhile
    newest = Table(layout.tables.target.path, state.version).last(layout.app_id(generation, "rows"))
    part = part_way(layout, generation, unread_after(newest) - 1)
    if part is None and newest is not None:
        return None
    detail = "no batch of this generation is in the table yet, which a reset may have found between two versions"
    if part is not None:
        detail = f"{part[0]} of {part[1]} buckets of a range of versions are in the table: published once all are"
    then = f"draindown run {request.spec.pipeline}/{request.flow}"
    return Finding(kind="waiting", subject=request.layout.table_name, detail=detail, next=then)


def unpublished_rows(spark: SparkSession, path: str, state: Unpublished) -> Rows:
    """Return the rows of version `state.version` of the target at `path`, and those not published
    yet.
    """
    table = spark.read.format("delta").option("versionAsOf", state.version).load(path)
    changed = (
        table if state.since is None else table.where(F.col(CHANGED_AT) > _instant(state.since))
    )
    found = changed.agg(
        F.count("*").alias("rows"), F.unix_micros(F.max(CHANGED_AT)).alias("micros")
    ).first()
    assert found is not None  # an aggregate without groups has one row
    newest = None if found["micros"] is None else _from_micros(found["micros"])
    before = state.published.changed_at if state.published else None
    return Rows(
        table, changed, int(found["rows"]), max((t for t in (newest, before) if t), default=None)
    )


def _instant(at: datetime) -> Column:
    # a literal with its zone: Delta skips files only for a comparison of the bare column with a
    # literal
    return F.lit(at.astimezone(UTC).isoformat(sep=" ")).cast("timestamp")


def _from_micros(micros: int) -> datetime:
    # not collected as a timestamp: PySpark converts it to this machine's time zone
    return EPOCH + timedelta(microseconds=micros)


def _anything(rows: Rows, state: Unpublished) -> bool:
    return bool(rows.changed_rows or state.deleted or state.since is None)


def _expectations(request: Request, state: Unpublished, rows: Rows) -> list[Expectation]:
    if not gate_suite.expectations_of(request.suite):
        return []
    changed, table = (frame.drop(ARRIVED_AT, ORIGIN) for frame in (rows.changed, rows.table))
    _refuse_wrong_suite(
        request, table, waivers.holding(request.layout, state.table_id, state.version)
    )
    target = request.declared.target
    open_rows = None if target.history is None else table.where(F.col(END_AT).isNull())
    judged = judge.judge(
        request.suite, changed, table, target.row_keys, _proven(rows, state), open_rows
    )
    severities = gate_suite.severities(request.suite)
    return [one.model_copy(update={"severity": severities[one.name]}) for one in judged]


def _refuse_wrong_suite(request: Request, table: DataFrame, waived: Collection[str]) -> None:
    """Raise TerminalError `bad-suite` if expectations can't be judged for any rows, unless they are
    waived.
    """
    known = suite_validation.kinds() or frozenset()
    known |= {
        config["type"]
        for config in gate_suite.expectations_of(request.suite)
        if _brought(config["type"], known)
    }
    names = gate_suite.names(request.suite)
    wrong = [
        what
        for at, what in suite_validation.problems(request.suite, table.columns, known)
        if names[at] not in waived
    ]
    if wrong:
        suite = request.declared.expectations or request.flow
        raise suite_validation.bad(
            suite, f"check flow {request.flow} of pipeline {request.spec.pipeline}", wrong
        )


def _brought(kind: str, known: Collection[str]) -> bool:
    if kind in known:
        return True
    from draindown.spark.checks import gx  # importing GX takes seconds

    return gx.brings(kind)


def _proven(rows: Rows, state: Unpublished) -> tuple[str, ...]:
    """Return what is proven of the published rows, if looking up the changed rows costs less than
    grouping all.
    """
    before = state.published if state.since is not None else None
    pays = before is not None and rows.changed_rows <= _FEW and before.rows >= _MANY
    return before.distinct if before and pays else ()


def _part(
    request: Request, state: Unpublished, changed_rows: int, judged: list[Expectation]
) -> CheckPart:
    before = state.published.version if state.published else None
    declared = request.declared
    derived = declared if isinstance(declared, DerivedFlow) else None
    return CheckPart(
        version=state.version,
        published_before=before,
        published_after=before,
        changed_rows=changed_rows,
        expectations=waivers.apply_waivers(request.layout, judged, state.table_id, state.version),
        page=gate_page.path(request),
        open_windows=open_windows(request.layout, derived, state.version) if derived else "",
    )


def _carried(request: Request, state: Unpublished, part: CheckPart) -> CheckPart:
    """Move the published pointer past commits that changed no row, such as a compaction."""
    after = part.published_before
    if state.published is not None and after != state.version:
        moved = state.moved(published.foreign(request.layout, state))
        after = published.publish(request.layout, moved).version
    return part.model_copy(update={"published_after": after, "page": None})


def _pointer(
    request: Request, state: Unpublished, rows: Rows, judged: list[Expectation]
) -> Published:
    return Published(
        version=state.version,
        table_id=state.table_id,
        committed_ms=state.committed_ms,
        changed_at=rows.changed_at,
        at=now(),
        run_id=request.run_id,
        rows=rows.table.count(),
        distinct=tuple(aggregate.proofs(request.suite, rows.table.schema, judged)),
        changed_rows=rows.changed_rows,
        start=request.start if request.announces else "",
        foreign=published.foreign(request.layout, state),
    )
