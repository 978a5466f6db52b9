"""Secrets of a pipeline from Airflow connections, for the process that needs them and no longer
than it needs them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

from draindown.base.errors import TerminalError
from draindown.base.secrets import VARIABLE, is_at_hand, names_in
from draindown.config.models import PipelineSpec

PREFIX = "draindown_"
"""Of the ids of connections whose password is a secret: no reference reaches a connection that was
not made for it.
"""


def of_connections(spec: PipelineSpec, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return environment variables for those secrets of the pipeline that neither environment nor
    file has.

    A secret that no connection has is left out: who needs it says that it is missing. Raises
    TerminalError `secret-unreadable` if Airflow can't read a connection.
    """
    lacking = {name for name in names_in(spec.model_dump_json()) if not is_at_hand(name, environ)}
    found = {name: _password(PREFIX + name) for name in sorted(lacking)}
    return {VARIABLE + name: word for name, word in found.items() if word}


@contextmanager
def in_environment(spec: PipelineSpec) -> Iterator[None]:
    """Let this process find the secrets, in the block only. Raises as `of_connections`."""
    found = of_connections(spec)
    os.environ.update(found)
    try:
        yield
    finally:
        for name in found:
            os.environ.pop(name, None)


def _password(connection: str) -> str | None:
    try:
        found: str | None = BaseHook.get_connection(connection).password
    except AirflowNotFoundException:
        return None
    except (AirflowException, ValueError, PermissionError) as error:
        raise TerminalError(
            "secret-unreadable",
            tried=f"read the Airflow connection {connection}",
            found=f"{type(error).__name__}, whose text is not shown: it may have the password",
            next=f"airflow connections get {connection}   # it needs an id, a type and a password",
        ) from None
    return found
