"""Small and often through Airflow's tasks, against a DAG written by hand."""

from __future__ import annotations

from benchmarks.contenders import ALL, DAG, HAND_WRITTEN_DAG
from benchmarks.work import FILE_ROWS, Asked, Work
from benchmarks.works import small

WORK = Work(
    "dag",
    f"{small.FILES_BEFORE} files of {FILE_ROWS:,} changes, then DAG runs of one file of {small.ROWS:,}, from the "
    "trigger to the end of the run, then runs with nothing new",
    small.measure,
    (HAND_WRITTEN_DAG, DAG, ALL),
    Asked(repeat=5),
    findings=small.findings,
)
