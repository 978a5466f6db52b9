"""Every file in dags/pipelines/ becomes an Airflow DAG. There is nothing to edit here."""

from draindown.airflow.factory import dags

globals().update(dags(__file__))
