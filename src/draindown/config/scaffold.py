"""The files that `draindown init` writes: a minimal working pipeline and sample data."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from pathlib import Path

from draindown.base.errors import TerminalError
from draindown.config.file_errors import PROJECT_FILE
from draindown.config.loader import DIRECTORY
from draindown.config.project_file import gives_lake

_PIPELINE = """\
pipeline: {name}
description: Order events, one row per order
# schedule: "*/15 * * * *"        # uncomment to run every 15 minutes; without it, manual runs only
owner: {name}-team
lake: ${{DRAINDOWN_LAKE:-lake}}     # root of everything the pipeline writes

flows:
  {name}:
    source:
      files: ${{DRAINDOWN_LANDING:-landing}}/{name}/*.json   # each file is read once
      format: json
    columns:                       # the contract; other fields are kept in `_rescued_data`
      order_id: string not null
      status: string not null
      amount: decimal(10,2)
      updated_at: timestamp not null
    rules:                         # a row that breaks one goes to quarantine, by the rule's name
      known_status: status in ('placed', 'paid', 'shipped', 'cancelled')
    # transform: {name}.tidy        # jobs/transforms/{name}.py: adds or changes columns
    target:
      keys: [order_id]             # the newest row per key wins
      sequence_by: [updated_at]
      apply_as_deletes: status = 'cancelled'
    expectations: {name}           # expectations/{name}.json
"""
_EVENTS = (
    '{"order_id": "A-1", "status": "placed", "amount": 12.50, "updated_at": "2026-01-01T09:00:00Z"}',
    '{"order_id": "A-2", "status": "placed", "amount": 99.00, "updated_at": "2026-01-01T09:05:00Z"}',
    '{"order_id": "A-1", "status": "paid", "amount": 12.50, "updated_at": "2026-01-01T09:10:00Z"}',
    '{"order_id": "A-3", "status": "placed", "amount": 7.25, "updated_at": "2026-01-01T09:12:00Z"}',
    '{"order_id": "A-2", "status": "cancelled", "updated_at": "2026-01-01T09:20:00Z"}',
    '{"order_id": "A-4", "status": "lost", "amount": 3.00, "updated_at": "2026-01-01T09:25:00Z"}',
    '{"order_id": "A-5", "status": "placed", "amo',
)
_TRANSFORM = '''\
"""Transforms of the flows in dags/pipelines/{name}.yaml. A flow names its own: `transform: {name}.tidy`."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def tidy(df: DataFrame) -> DataFrame:
    """Add the day of an order, and whether it is a large one. Columns of the row alone: no filter, no clock."""
    return df.withColumn("order_day", F.to_date("updated_at")).withColumn("is_large", F.col("amount") >= 50)
'''
_FACTORY = '''\
"""Makes an Airflow DAG of every file in dags/pipelines/. This file needs no edits."""

from draindown.airflow.factory import dags

globals().update(dags(__file__))
'''
_PLUGIN = '''\
"""Registers draindown's page with the Airflow UI. The package implements it."""

from airflow.plugins_manager import AirflowPlugin

from draindown.airflow.web import PREFIX, VIEWS, app


class DraindownPlugin(AirflowPlugin):
    name = "draindown"
    fastapi_apps = [{"app": app(), "url_prefix": PREFIX, "name": "draindown"}]  # noqa: RUF012  as in Airflow
    external_views = VIEWS
'''
_JOB = '''\
"""spark-submit main of the {step} step: `{step}.py --request <encoded request>`."""

from draindown.jobs import {step}_main

if __name__ == "__main__":
    {step}_main()
'''

_JOBS = {step: _JOB.format(step=step) for step in ("drain", "check", "compact")}


_YAML = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
"""Words that YAML reads as another value than a text, in one of its versions."""


def init(directory: Path, name: str) -> list[Path]:
    """Write a pipeline called `name` below `directory` and return the files written.

    Existing jobs, and an existing factory in dags/ or page in plugins/, are kept. Raises
    TerminalError `bad-name`, `already-there`, `project-not-writable`; then no file was written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name) or name in _YAML:
        raise TerminalError(
            "bad-name",
            tried=f"start a pipeline in {directory}",
            found=f"{name!r} is no name: lower-case letters, digits and _, a letter first, no word of YAML",
            next="draindown init --name orders",
        )
    written: list[Path] = []
    try:
        written += (
            _write(directory / path, text) for path, text in _wanted(directory, name).items()
        )
    except OSError as error:
        with suppress(OSError):  # the same command must not find them there
            for path in written:
                path.unlink(missing_ok=True)
        raise _not_writable(directory, error) from None
    return written


def _wanted(directory: Path, name: str) -> dict[Path, str]:
    """Return the files to write, by their path below `directory`. Raises TerminalError
    `already-there`.
    """
    files = _files(name)
    if (directory / PROJECT_FILE).exists() and gives_lake(directory / PROJECT_FILE):
        pipeline = DIRECTORY / f"{name}.yaml"
        lines = files[pipeline].splitlines(keepends=True)
        files[pipeline] = "".join(line for line in lines if not line.startswith("lake:"))
    there = [str(path) for path in files if (directory / path).exists()]
    if there:
        raise TerminalError(
            "already-there",
            tried=f"write pipeline {name} into {directory}",
            found=f"it would overwrite {', '.join(there)}",
            next=[
                f"draindown init {shlex.quote(str(directory))} --name another_name",
                f"draindown --root {shlex.quote(str(directory))} validate {name}",
            ],
        )
    if not _uses_draindown(directory / "dags"):
        files[Path("dags", "draindown_dags.py")] = _FACTORY
    if not _uses_draindown(directory / "plugins"):
        files[Path("plugins", "draindown_plugin.py")] = _PLUGIN
    jobs = {Path("jobs", f"{step}.py"): text for step, text in _JOBS.items()}
    files |= {path: text for path, text in jobs.items() if not (directory / path).exists()}
    return files


def _not_writable(directory: Path, error: OSError) -> TerminalError:
    there = next(place for place in (directory, *directory.absolute().parents) if place.exists())
    return TerminalError(
        "project-not-writable",
        tried=f"write a pipeline into {directory}",
        found=f"{error.filename or directory}: {error.strerror or error}",
        next=[
            f"ls -ld {shlex.quote(str(there))}",
            "draindown init DIR   # in a directory that you may write",
        ],
        in_order=True,
    )


def _files(name: str) -> dict[Path, str]:
    return {
        DIRECTORY / f"{name}.yaml": _PIPELINE.format(name=name),
        Path("expectations", f"{name}.json"): json.dumps(_suite(name), indent=2) + "\n",
        Path("jobs", "transforms", f"{name}.py"): _TRANSFORM.format(name=name),
        Path("landing", name, "2026-01-01.json"): "\n".join(_EVENTS) + "\n",
    }


def _suite(name: str) -> dict[str, object]:
    column = {"column": "amount"}
    return {
        "name": name,
        "expectations": [
            {"type": "expect_column_values_to_not_be_null", "kwargs": column, "meta": {}},
            {
                "type": "expect_column_values_to_be_between",
                "kwargs": column | {"min_value": 0},
                "meta": {},
            },
        ],
        "meta": {"great_expectations_version": "1.24.1"},
        "notes": None,
    }


def _uses_draindown(directory: Path) -> bool:
    return any(
        "draindown.airflow" in path.read_text(errors="replace") for path in directory.glob("*.py")
    )


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()
            raise
    return path
