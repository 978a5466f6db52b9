"""Airflow's UI learns about draindown's page; everything else is in the package."""

from airflow.plugins_manager import AirflowPlugin

from draindown.airflow.web import PREFIX, VIEWS, app


class DraindownPlugin(AirflowPlugin):
    name = "draindown"
    fastapi_apps = [{"app": app(), "url_prefix": PREFIX, "name": "draindown"}]  # noqa: RUF012  Airflow's own shape
    external_views = VIEWS
