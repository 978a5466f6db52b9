"""The page inside Airflow: Airflow mounts plugin apps without any login, so every route asks for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.configuration import conf
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse

from draindown import pages
from draindown.airflow.identity import project_root

PREFIX = "/draindown"
VIEWS: list[dict[str, Any]] = [
    {"name": "draindown", "href": f"{PREFIX}/", "destination": "nav", "url_route": "draindown"},
    {"name": "Flows", "href": f"{PREFIX}/dag/{{DAG_ID}}", "destination": "dag", "url_route": "flows"},
]
# the page runs no script and loads nothing, and only Airflow may frame it
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def app() -> FastAPI:
    """The routes: all flows, and those of one DAG. Both need the right to read the DAGs they show."""
    found = FastAPI(title="draindown", docs_url=None, redoc_url=None, openapi_url=None)
    may_read = [Depends(requires_access_dag(method="GET"))]

    @found.get("/", dependencies=may_read, response_class=HTMLResponse)
    def every_flow() -> HTMLResponse:
        place, root = _places()
        return HTMLResponse(pages.render(pages.flows(place, root), pages.broken(place)), headers=_HEADERS)

    @found.get("/dag/{dag_id}", dependencies=may_read, response_class=HTMLResponse)
    def flows_of_dag(dag_id: str) -> HTMLResponse:
        place, root = _places()
        return HTMLResponse(pages.render(pages.flows(place, root, dag_id)), headers=_HEADERS)

    return found


def _places() -> tuple[Path, Path]:
    dags = Path(conf.get_mandatory_value("core", "dags_folder"))
    return dags / "pipelines", project_root(str(dags / "draindown_dags.py"))
