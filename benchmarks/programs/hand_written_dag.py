"""The DAG that a careful engineer writes around `hand_written.py`: one task that submits it.

Airflow parses it in the place of a project's DAGs (benchmarks/standing.py), and finds the rest in
its environment.
"""

from __future__ import annotations

import os
from datetime import datetime

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

SHAPE = os.environ["BENCH_SHAPE"]

with DAG(SHAPE, schedule=None, start_date=datetime(2020, 1, 1), max_active_runs=1, catchup=False):
    SparkSubmitOperator(
        task_id="drain",
        application=os.environ["BENCH_PROGRAM"],
        application_args=[
            *("--shape", SHAPE),
            *("--landing", os.environ["DRAINDOWN_LANDING"]),
            *("--lake", os.environ["DRAINDOWN_LAKE"]),
        ],
        conf={"spark.driver.extraClassPath": os.environ["BENCH_CLASS_PATH"]},
        retries=3,
    )
