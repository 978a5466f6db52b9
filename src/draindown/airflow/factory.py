"""One DAG per pipeline file. A file that can't be read becomes a red DAG of its own and takes no other down."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, BaseOperator, Param, TaskGroup, TriggerRule
from airflow.sdk.exceptions import AirflowFailException

from draindown.airflow.operators import PlanOperator, StepOperator
from draindown.airflow.wording import doc_of, doc_of_broken
from draindown.loader import BrokenPipeline, load_all
from draindown.request import Step
from draindown.spec import PipelineSpec

INVALID = "invalid-spec"
_BORN = datetime(2020, 1, 1, tzinfo=UTC)
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
    """Fail with what is wrong in the pipeline file: no retry helps until someone edits it."""

    ui_color = "#fde8e8"

    def __init__(self, *, error: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.error = error

    def execute(self, context: Any) -> None:  # noqa: ARG002  Airflow calls it so
        """Raise AirflowFailException with file, line and reason."""
        raise AirflowFailException(self.error)


def dags(dag_file: str, pipelines: Path | None = None) -> dict[str, DAG]:
    """Every pipeline of the directory (default: `pipelines/` beside `dag_file`) as a DAG, by dag_id.

    `dag_file` is the file Airflow parses: the DAGs say they are defined there.
    """
    made: dict[str, DAG] = {}
    for found in load_all(pipelines or Path(dag_file).parent / "pipelines"):
        dag = _broken(found) if isinstance(found, BrokenPipeline) else _pipeline(found)
        dag.fileloc = dag_file
        made[dag.dag_id] = dag
    return made


def params() -> dict[str, Param]:
    """What a person may choose when starting a run; each is checked against its JSON schema before anything runs."""
    return {
        "mode": Param("drain", type="string", enum=["drain"], description="drain: process what is waiting."),
        "max_batches": Param(
            None, type=["null", "integer"], minimum=1, description="Stop after this many batches; empty: no bound."
        ),
        "deadline_minutes": Param(
            None, type=["null", "number"], exclusiveMinimum=0, description="Start no batch after this many minutes."
        ),
        "force_compact": Param(False, type="boolean", description="Compact even without evidence that it pays."),
    }


def _pipeline(spec: PipelineSpec) -> DAG:
    with DAG(
        dag_id=spec.pipeline,
        description=spec.description or None,
        schedule=spec.schedule,
        start_date=_BORN,
        catchup=False,
        max_active_runs=1,
        default_args={"owner": spec.owner, "retries": spec.retries, **_PATIENT},
        params=params(),
        tags=["draindown", *spec.tags],
        doc_md=doc_of(spec),
    ) as dag:
        previous: BaseOperator | None = None
        for flow in spec.flows:
            steps = list(_steps(spec, flow))
            for task in steps:
                if previous is not None:
                    previous >> task
                previous = task
    return dag


def _steps(spec: PipelineSpec, flow: str) -> Iterator[BaseOperator]:
    asset = Asset(
        name=f"{spec.pipeline}/{spec.flows[flow].table_name(flow)}",
        uri=f"draindown://{spec.pipeline}/{spec.flows[flow].table_name(flow)}",
    )
    with TaskGroup(flow):
        yield PlanOperator(task_id="plan", spec=spec, flow=flow, **_behaviour("plan"))
        yield StepOperator(task_id="drain", spec=spec, flow=flow, step="drain", **_behaviour("drain"))
        yield StepOperator(task_id="check", spec=spec, flow=flow, step="check", asset=asset, **_behaviour("check"))
        yield StepOperator(task_id="compact", spec=spec, flow=flow, step="compact", **_behaviour("compact"))


def _behaviour(step: Step) -> dict[str, Any]:
    # a flow that was idle is no reason to skip what follows; only a failure is.
    # max_active_runs doesn't count runs of a backfill: the limit per task does.
    return {
        "trigger_rule": TriggerRule.NONE_FAILED,
        "max_active_tis_per_dag": 1,
        "execution_timeout": _TIMEOUTS[step],
    }


def _broken(found: BrokenPipeline) -> DAG:
    with DAG(
        dag_id=found.name,
        description=f"{found.path.name} can't be read",
        schedule=None,
        start_date=_BORN,
        tags=["draindown", INVALID],
        doc_md=doc_of_broken(found),
        default_args={"retries": 0},
    ) as dag:
        InvalidSpecOperator(task_id=INVALID, error=str(found.error))
    return dag
