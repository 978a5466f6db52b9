"""The page inside Airflow. Airflow mounts plugin apps without authentication, so every route requires a user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.configuration import conf
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse

from draindown import pages
from draindown.airflow.requests import project_root

PREFIX = "/draindown"
VIEWS: list[dict[str, Any]] = [
    {"name": "draindown", "href": f"{PREFIX}/", "destination": "nav", "url_route": "draindown"},
    {"name": "Flows", "href": f"{PREFIX}/dag/{{DAG_ID}}", "destination": "dag", "url_route": "flows"},
]


# the page runs no script and loads nothing; only Airflow may embed it in a frame
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def app() -> FastAPI:
    """Return the app with two routes: all DAGs that the user may read, and one DAG if the user may read it."""
    found = FastAPI(title="draindown", docs_url=None, redoc_url=None, openapi_url=None)

    # no requires_access_dag here: without a DAG in the path it checks the dag_id of the query string
    @found.get("/", response_class=HTMLResponse)
    def every_flow(user: GetUserDep) -> HTMLResponse:
        place, root = _places()
        readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
        return HTMLResponse(
            pages.render(pages.flows(place, root, readable), pages.broken(place, readable)), headers=_HEADERS
        )

    @found.get("/dag/{dag_id}", dependencies=[Depends(requires_access_dag(method="GET"))], response_class=HTMLResponse)
    def flows_of_dag(dag_id: str) -> HTMLResponse:
        place, root = _places()
        shown = pages.render(pages.flows(place, root, {dag_id}), pages.broken(place, {dag_id}))
        return HTMLResponse(shown, headers=_HEADERS)

    return found


def _places() -> tuple[Path, Path]:
    dags = Path(conf.get_mandatory_value("core", "dags_folder"))
    return dags / "pipelines", project_root(str(dags / "draindown_dags.py"))
