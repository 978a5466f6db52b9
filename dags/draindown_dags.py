"""Makes an Airflow DAG of every file in dags/pipelines/. This file needs no edits."""

from draindown.airflow.factory import dags

globals().update(dags(__file__))
