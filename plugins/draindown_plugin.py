"""Registers draindown's page with the Airflow UI. The package implements it."""

from airflow.plugins_manager import AirflowPlugin

from draindown.airflow.web import PREFIX, VIEWS, app


class DraindownPlugin(AirflowPlugin):
    name = "draindown"
    fastapi_apps = [{"app": app(), "url_prefix": PREFIX, "name": "draindown"}]  # noqa: RUF012  as in Airflow
    external_views = VIEWS
