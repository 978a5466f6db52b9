"""Build one DAG per pipeline file. A file that can't be read becomes a failing DAG and does not
affect the others.

Such a DAG keeps the pipeline's name and schedule, so its failing runs appear where people look for
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import (
    DAG,
    Asset,
    BaseOperator,
    CronDataIntervalTimetable,
    Param,
    TaskGroup,
    TriggerRule,
)

from draindown.airflow import unreached
from draindown.airflow.operators import StepOperator
from draindown.airflow.outcome import OnlyIfItHelps, fail_with, say_next
from draindown.airflow.plans import PlanAllOperator, PlanOperator
from draindown.airflow.requests import ENVIRONMENT_PARAM
from draindown.airflow.wording import doc_of, doc_of_broken
from draindown.base import clock
from draindown.base.errors import TerminalError
from draindown.base.exits import Exit
from draindown.config.loader import BrokenPipeline, load_all
from draindown.config.models import PipelineSpec
from draindown.config.outline import FALLBACK
from draindown.runs.request import Step

INVALID = "invalid-spec"
PLAN_ALL = "plan-all"  # no flow has a hyphen in its name
_BORN = datetime(2020, 1, 1, tzinfo=UTC)
_REPLAY = "Replay"
# `(?![\s\S])`, not `$`: `$` also matches before a trailing newline
_MOMENT = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})?(?![\s\S])"
)
_TIMEOUTS: dict[Step, timedelta] = {
    "plan": timedelta(minutes=10),
    "drain": timedelta(hours=6),
    "check": timedelta(hours=2),
    "compact": timedelta(hours=2),
}
_PATIENT = {
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}


class InvalidSpecOperator(BaseOperator):
    """Fail with the errors of the pipeline file. Retries can't succeed before someone edits the
    file.
    """

    ui_color = "#fde8e8"

    def __init__(
        self, *, error: dict[str, Any], lake: str, flows: Sequence[str], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.error, self.lake, self.flows = error, lake, flows

    def execute(self, context: Any) -> None:
        """Fail with file, line and reason, after leaving a report in each flow that is known."""
        known = unreached.layouts(self.lake, self.dag_id, self.flows, self.dag.fileloc)
        unreached.leave(known, "plan", context, self.error, clock.now())
        fail_with(self.error, Exit.NEEDS_PERSON)


def dags(dag_file: str, pipelines: Path | None = None) -> dict[str, DAG]:
    """Return a DAG for every pipeline of the directory (default: `pipelines/` beside `dag_file`),
    by dag_id.

    `dag_file` is the file that Airflow parses; it becomes the `fileloc` of the DAGs.
    """
    made: dict[str, DAG] = {}
    home = pipelines or Path(dag_file).parent / "pipelines"
    for found in load_all(home):
        dag = _broken(found) if isinstance(found, BrokenPipeline) else _accepted(found, home)
        dag.fileloc = dag_file
        made[dag.dag_id] = dag
    return made


def _accepted(spec: PipelineSpec, home: Path) -> DAG:
    """Return the pipeline's DAG, or a failing DAG if Airflow refuses what the file says."""
    try:
        dag = _pipeline(spec)
        dag.timetable.validate()
        dag.validate()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - one pipeline must not keep the others from their DAGs
        refused = TerminalError(
            "invalid-pipeline",
            tried=f"make a DAG of pipeline {spec.pipeline} in {home}",
            found=f"Airflow refuses it: {type(error).__name__}: {error}",
            next=f"draindown validate {spec.pipeline}",
        )
        known = (spec.lake, tuple(spec.flows))
        return _broken(
            BrokenPipeline(home / spec.pipeline, spec.pipeline, refused, _scheduled(spec), *known)
        )
    return dag


def _scheduled(spec: PipelineSpec) -> str | None:
    """Return the schedule of the pipeline, or FALLBACK if Airflow refuses it."""
    try:
        timetable = _timetable(spec.schedule, spec.airflow.timezone)
        if timetable is not None:
            timetable.validate()
    except Exception:  # noqa: BLE001 - the schedule is what Airflow refused
        return FALLBACK
    return spec.schedule


def params(flows: Iterable[str], environment: str = "") -> dict[str, Param]:
    """Return the params of a run, in the order of the trigger form.

    `environment`: for which the DAG is built; "" without environments.

    Airflow validates each one against its JSON schema before the run starts. `requests` validates
    their combination.
    """
    bound: dict[str, Any] = {"section": "Bounds"}
    return _environment_param(environment) | {
        "mode": Param(
            "drain",
            title="Mode",
            type="string",
            enum=["drain", "replay"],
            values_display={
                "drain": "drain: process what is waiting",
                "replay": "replay: read input again",
            },
            description="A replay reads again what was drained before and first seen in a range of time. "
            "Newer rows stay as they are.",
        ),
        "from": _moment("From", "first seen at this time or later"),
        "to": _moment("To", "first seen before this time"),
        "again": Param(
            False,
            title="Again",
            type="boolean",
            section=_REPLAY,
            description="Even if the same range was replayed before.",
        ),
        "flow": Param(
            None,
            title="Flow",
            type=["null", "string"],
            enum=[None, *flows],
            description="Only this flow; empty: all of them.",
        ),
        "max_batches": Param(
            None,
            title="Batches",
            type=["null", "integer"],
            minimum=1,
            maximum=1_000_000,
            description="Stop after this many batches; empty: no bound.",
            **bound,
        ),
        "max_minutes": Param(
            None,
            title="Minutes",
            type=["null", "number"],
            exclusiveMinimum=0,
            maximum=100_000,
            description="Start no batch after this many minutes; empty: no bound.",
            **bound,
        ),
        "force_compact": Param(
            False,
            title="Compact",
            type="boolean",
            description="Compact even without evidence that it pays.",
        ),
    }


def _environment_param(environment: str) -> dict[str, Param]:
    if not environment:
        return {}
    said = Param(
        environment,
        title="Environment",
        type="string",
        enum=[environment],
        description="The environment that this DAG is built for.",
    )
    return {ENVIRONMENT_PARAM: said}


def _moment(title: str, what: str) -> Param:
    # the format gives the form a date picker; the pattern checks the value, as a server may lack
    # the format's library
    return Param(
        None,
        title=title,
        type=["null", "string"],
        format="date-time",
        pattern=_MOMENT,
        section=_REPLAY,
        description=f"Mode replay: input {what}, such as 2026-01-31T12:00:00Z. UTC unless it says otherwise.",
    )


def _timetable(schedule: str | None, timezone: str = "UTC") -> CronDataIntervalTimetable | None:
    # for a plain cron string Airflow gives runs no data interval; a backfill replays its interval
    return CronDataIntervalTimetable(schedule, timezone=timezone) if schedule else None


def _default_args(spec: PipelineSpec) -> dict[str, Any]:
    """Return the arguments of all tasks. Without pool and queue, Airflow's own settings choose."""
    settings = spec.airflow
    given = {"pool": settings.pool, "queue": settings.queue}
    chosen = {name: value for name, value in given.items() if value is not None}
    return {"owner": spec.owner, "retries": settings.retries, **_PATIENT, **chosen}


def _pipeline(spec: PipelineSpec) -> DAG:
    with DAG(
        dag_id=spec.pipeline,
        description=spec.description or None,
        schedule=_timetable(spec.schedule, spec.airflow.timezone),
        start_date=_BORN,
        catchup=False,
        max_active_runs=1,
        max_active_tasks=spec.airflow.max_active_tasks,
        default_args=_default_args(spec),
        params=params(spec.flows, spec.environment),
        tags=["draindown", *spec.tags],
        doc_md=doc_of(spec),
    ) as dag:
        plan_all = PlanAllOperator(task_id=PLAN_ALL, spec=spec, **_behaviour("plan"))
        checks: dict[str, BaseOperator] = {}
        for flow in spec.graph.order:
            plan, drain, check, compact = _steps(spec, flow)
            plan >> drain >> check >> compact
            for upstream in spec.graph.upstream(flow):
                checks[upstream] >> plan  # which publishes what this flow reads
            if not spec.graph.upstream(flow):
                plan_all >> plan
            checks[flow] = check
    return dag


def _steps(spec: PipelineSpec, flow: str) -> Iterator[BaseOperator]:
    asset = Asset(
        name=f"{spec.pipeline}/{spec.flows[flow].table_name(flow)}",
        uri=f"draindown://{spec.pipeline}/{spec.flows[flow].table_name(flow)}",
    )
    with TaskGroup(flow):
        yield PlanOperator(task_id="plan", spec=spec, flow=flow, **_behaviour("plan"))
        yield StepOperator(
            task_id="drain", spec=spec, flow=flow, step="drain", **_behaviour("drain")
        )
        yield StepOperator(
            task_id="check", spec=spec, flow=flow, step="check", asset=asset, **_behaviour("check")
        )
        yield StepOperator(
            task_id="compact", spec=spec, flow=flow, step="compact", **_behaviour("compact")
        )


def _behaviour(step: Step) -> dict[str, Any]:
    # Skipped tasks of an idle flow must not skip those that follow; only a failure stops them.
    # max_active_runs does not count the runs of a backfill (apache/airflow#42686), the limit per
    # task does.
    return {
        "trigger_rule": TriggerRule.NONE_FAILED,
        "max_active_tis_per_dag": 1,
        "execution_timeout": _TIMEOUTS[step],
        "retry_policy": OnlyIfItHelps(),
        "on_failure_callback": say_next,
        "on_retry_callback": say_next,
    }


def _broken(found: BrokenPipeline) -> DAG:
    with DAG(
        dag_id=found.name,
        description=f"{found.path.name} can't be read",
        schedule=_timetable(found.schedule),
        start_date=_BORN,
        catchup=False,
        max_active_runs=1,
        tags=["draindown", INVALID],
        doc_md=doc_of_broken(found),
        default_args={"retries": 0},
    ) as dag:
        InvalidSpecOperator(
            task_id=INVALID,
            error=found.error.as_dict(),
            lake=found.lake,
            flows=list(found.flows),
            on_failure_callback=say_next,
        )
    return dag
