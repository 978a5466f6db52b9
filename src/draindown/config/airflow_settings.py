"""What a pipeline file passes on to Airflow, by Airflow's own names."""

from __future__ import annotations

from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field

from draindown.config.base import Model

REFUSED = {
    "catchup": "a run drains all that waits, so missed runs need no catching up: leave it out. Trigger with mode "
    "replay, or run a backfill, to read old input again",
    "max_active_runs": "it is always 1, as two runs would drain the same flows: leave it out",
    "depends_on_past": "a run goes on where the one before ended, whatever became of that: leave it out",
    "start_date": "it decides nothing without catchup: leave it out. `schedule` says when runs start",
}
"""Settings of a DAG that draindown fixes, each with the reason."""


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise ValueError(f"{name!r} is no time zone; write a name such as Europe/Berlin") from None
    return name


class AirflowSpec(Model):
    """How Airflow runs the tasks of a pipeline."""

    retries: int = Field(
        default=2,
        ge=0,
        le=10,
        description="How often Airflow tries a task again when that may help.",
    )
    max_active_tasks: int = Field(
        default=1,
        ge=1,
        le=100,
        description="How many tasks of a run work at once, each with a Spark of its own.",
    )
    pool: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Pool of all tasks, which bounds those of several pipelines; absent: Airflow's default.",
        examples=["spark"],
    )
    queue: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Queue of all tasks, for workers that have Java; absent: the executor's default.",
        examples=["spark"],
    )
    timezone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC",
        min_length=1,
        description="Time zone in which `schedule` is evaluated.",
        examples=["Europe/Berlin"],
    )
