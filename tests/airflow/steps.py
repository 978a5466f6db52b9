"""The operators of a DAG one by one, in this process and without a scheduler: for whatever is the
operator's alone.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, DownstreamTasksSkipped

from draindown.airflow.outcome import StepFailed


class Steps:
    """The tasks of one DAG run. `states`, `errors`: how each ended; `events`: the extra of each
    asset event.

    `skipped`: the tasks that others skipped.
    """

    def __init__(
        self, dag: DAG, conf: dict[str, Any] | None = None, run_id: str = "manual__1"
    ) -> None:
        self.dag, self.conf, self.run_id = dag, conf or {}, run_id
        self.states: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.events: dict[str, dict[str, Any]] = {}
        self.skipped: set[str] = set()
        self._returned: dict[str, Any] = {}

    def run(self, *tasks: str) -> dict[str, str]:
        """Execute these tasks, each whatever became of those before, or all in order, but for those
        that are skipped.

        Return the state of each.
        """
        for task in tasks or [task.task_id for task in self.dag.topological_sort()]:
            self.states[task] = (
                "skipped" if not tasks and task in self.skipped else self._executed(task)
            )
        return self.states

    def _executed(self, task: str) -> str:
        outlets: dict[Any, Any] = defaultdict(lambda: SimpleNamespace(extra={}))
        try:
            self._returned[task] = self.dag.get_task(task).execute(self._context(task, outlets))
        except AirflowSkipException:
            return "skipped"
        except DownstreamTasksSkipped as told:
            self.skipped |= set(told.tasks)
            return "success"
        except (AirflowException, StepFailed) as error:
            self.errors[task] = str(error)
            return "failed"
        if outlets:
            (event,) = outlets.values()
            self.events[task] = event.extra
        return "success"

    def _context(self, task: str, outlets: dict[Any, Any]) -> dict[str, Any]:
        run = SimpleNamespace(conf=self.conf, run_id=self.run_id, run_type="manual")
        ti = SimpleNamespace(
            dag_id=self.dag.dag_id,
            task_id=task,
            try_number=1,
            xcom_pull=lambda task_ids: self._returned.get(task_ids),
            xcom_push=lambda key, value: self._returned.update({task: value}),
            get_first_reschedule_date=lambda context: None,
        )
        params = self.dag.params.dump() | self.conf
        return {
            "dag": self.dag,
            "dag_run": run,
            "ti": ti,
            "run_id": self.run_id,
            "params": params,
        } | {"outlet_events": outlets}
