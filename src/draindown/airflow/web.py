"""The page inside Airflow. Airflow mounts plugin apps without authentication, so every route
requires a user.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import API_ROOT_PATH, get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.configuration import conf
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse

from draindown.airflow.requests import project_root
from draindown.base.errors import TerminalError
from draindown.base.formatting import printable_lines
from draindown.pages import overview

PREFIX = "/draindown"
_ROOT = API_ROOT_PATH.rstrip("/")  # of `[api] base_url`: the UI takes links as they are
VIEWS: list[dict[str, Any]] = [
    {
        "name": "draindown",
        "href": f"{_ROOT}{PREFIX}/",
        "destination": "nav",
        "url_route": "draindown",
    },
    {
        "name": "Flows",
        "href": f"{_ROOT}{PREFIX}/dag/{{DAG_ID}}",
        "destination": "dag",
        "url_route": "flows",
    },
]


# the page runs no script and loads nothing; only Airflow may embed it in a frame
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def app() -> FastAPI:
    """Return the app with two routes: all DAGs that the user may read, and one DAG if the user may
    read it.
    """
    found = FastAPI(title="draindown", docs_url=None, redoc_url=None, openapi_url=None)

    # no requires_access_dag here: without a DAG in the path it checks the dag_id of the query
    # string
    @found.get("/", response_class=HTMLResponse)
    def every_flow(user: GetUserDep) -> HTMLResponse:
        return _page(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))

    @found.get(
        "/dag/{dag_id}",
        dependencies=[Depends(requires_access_dag(method="GET"))],
        response_class=HTMLResponse,
    )
    def flows_of_dag(dag_id: str) -> HTMLResponse:
        return _page({dag_id})

    return found


def _page(only: Collection[str]) -> HTMLResponse:
    """Return the page about the pipelines with these names, or what keeps it from being made."""
    try:
        dags = Path(conf.get_mandatory_value("core", "dags_folder"))
        place, root = dags / "pipelines", project_root(str(dags / "draindown_dags.py"))
        shown = overview.render(overview.flows(place, root, only), overview.broken(place, only))
    except TerminalError as error:
        shown = overview.render([], [printable_lines(str(error))])
    return HTMLResponse(shown, headers=_HEADERS)
