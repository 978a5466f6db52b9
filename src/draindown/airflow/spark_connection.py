"""Airflow's connection to Spark: looked up once per task, and the provider's hook with it."""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

from draindown.base.errors import TerminalError, TransientError

VARIABLE = "DRAINDOWN_SPARK_CONN"
DEFAULT = "spark_default"
ALONE = "local[*]"
_HIDDEN = "its text is not shown: it may have the password"


class Hook(SparkSubmitHook):
    """The provider's hook with a connection that was found before. Its own lookup falls back to
    YARN if none is found.

    Raises TerminalError `bad-spark-connection`, `cluster-deploy-mode`.
    """

    def __init__(self, found: Connection, **kwargs: Any) -> None:
        self._found = found
        try:
            super().__init__(conn_id=found.conn_id, **kwargs)
        except (ValueError, RuntimeError) as error:
            raise _bad(found.conn_id, f"the Spark provider refuses it: {error}") from error
        if self._connection["deploy_mode"] == "cluster":
            raise TerminalError(
                "cluster-deploy-mode",
                tried=f"submit a job through connection {found.conn_id}",
                found="deploy-mode cluster: the driver would outlive its task",
                next=f"set deploy-mode client in the connection {found.conn_id}",
            )

    def get_connection(self, conn_id: str) -> Connection:  # type: ignore[override]
        """Return the connection."""
        del conn_id
        return self._found


def find(conn_id: str, *, named: bool) -> Connection:
    """Return the connection, or one to Spark on this machine if there is none and none was `named`.

    Airflow also raises not-found where it could not ask, or could not parse the value: work that
    was meant for a cluster must not begin on a worker.

    Raises TransientError `no-spark-connection`; TerminalError `bad-spark-connection`.
    """
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        if os.environ.get(variable):
            raise _bad(conn_id, f"what {variable} holds is no connection; {_HIDDEN}") from None
        if named:
            raise TransientError(
                "no-spark-connection",
                tried=f"look up the Airflow connection {conn_id}, which {VARIABLE} names",
                found="Airflow has none of that name, or could not ask where it keeps them: it says the same of both",
                next=f"airflow connections get {conn_id}   # where tasks run",
            ) from None
        return Connection(conn_id=conn_id, conn_type="spark", host=ALONE)
    except (AirflowException, ValueError, PermissionError) as error:
        raise _bad(conn_id, f"{type(error).__name__}; {_HIDDEN}") from None


def _bad(conn_id: str, found: str) -> TerminalError:
    return TerminalError(
        "bad-spark-connection",
        tried=f"read the Airflow connection {conn_id}",
        found=found,
        next=[
            f"airflow connections get {conn_id}   # where tasks run",
            f'AIRFLOW_CONN_{conn_id.upper()}=\'{{"conn_type":"spark","host":"local[*]"}}\'',
        ],
    )
