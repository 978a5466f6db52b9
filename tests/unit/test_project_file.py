"""The project file: what it gives to pipelines, what is refused, and where an error points."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # its types are a package of their own
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from draindown.authoring import write as write_pipeline
from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.config import loader, scaffold, yaml_text
from draindown.config.json_schema import project_schema, project_schema_text, schema
from draindown.config.lease import LeaseSpec
from draindown.config.loader import BrokenPipeline, load_all, load_alone
from draindown.config.models import PipelineSpec
from draindown.config.nodes import Budget, merged
from draindown.config.project import rooted
from draindown.config.project_file import Environment, ProjectFile
from draindown.config.yaml_document import MappingNode, build, parse, read
from draindown.runs import report
from draindown.runs.card import card
from draindown.runs.request import Request
from draindown.spark.job import main as job
from draindown.spark.job import steps

ROOT = Path(__file__).parents[2]
FLOW = "{source: {files: 'in/*.json', format: json}, columns: {id: string}}"
SHOP = f"pipeline: shop\nflows:\n  orders: {FLOW}\n"
ENVIRONMENTS = "environments:\n  dev: {lake: dev}\n  prod: {lake: prod}\n"
CDC = """\
lake: lake
templates:
  cdc:
    source: {files: "in/${flow}/*.json", format: json}
    target: {keys: "${param.keys}", sequence_by: [at]}
"""


def project(home: Path, file: str | None, **pipelines: str) -> Path:
    """Write a project. Return its root."""
    where = home / loader.DIRECTORY
    where.mkdir(parents=True, exist_ok=True)
    if file is not None:
        (home / "draindown.yaml").write_text(file)
    for name, text in pipelines.items():
        (where / f"{name}.yaml").write_text(text)
    return home


def spec_of(root: Path, **environ: str) -> PipelineSpec:
    return load_alone(root / loader.DIRECTORY / "shop.yaml", root, environ)


def refused(root: Path, **environ: str) -> TerminalError:
    with pytest.raises(TerminalError) as caught:
        spec_of(root, **environ)
    (found, *_) = load_all(root / loader.DIRECTORY, environ)
    assert isinstance(found, BrokenPipeline)
    assert found.error.found == caught.value.found
    return caught.value


def lines(error: TerminalError, root: Path) -> list[str]:
    """The problems of an error, with paths below the root."""
    return (
        error.found.replace(f"{root}/{loader.DIRECTORY}/", "").replace(f"{root}/", "").split("\n")
    )


# without a project file


def test_without_the_file_nothing_else_is_imported() -> None:
    code = (
        "import sys; from pathlib import Path; from draindown.config.loader import load_all;"
        f"load_all(Path({str(ROOT / 'dags' / 'pipelines')!r}), {{}});"
        "print([m for m in sys.modules if m.startswith('draindown.config.') and m.rsplit('.')[-1]"
        " in ('layers', 'nodes', 'connections', 'project_file')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_without_the_file_a_pipeline_needs_a_lake(tmp_path: Path) -> None:
    assert lines(refused(project(tmp_path, None, shop=SHOP)), tmp_path) == [
        "shop.yaml:1:1: lake: is required"
    ]


def test_an_empty_file_gives_nothing(tmp_path: Path) -> None:
    assert spec_of(project(tmp_path, "# nothing yet\n", shop=SHOP + "lake: own\n")).lake == "own"


# what is given


def test_lake_and_lease_are_of_the_project(tmp_path: Path) -> None:
    root = project(tmp_path, "lake: l\nlease: {mode: shared, duration: 2 minutes}\n", shop=SHOP)
    spec = spec_of(root)
    assert (spec.lake, spec.lease.mode, spec.lease.duration) == ("l", "shared", 120)
    assert spec.environment == ""


def test_a_pipelines_own_values_win(tmp_path: Path) -> None:
    file = "lake: l\ndefaults: {owner: us, schedule: '@daily', tags: [a], airflow: {retries: 5, pool: p}}\n"
    own = "lake: own\nschedule: manual\ntags: [b]\nairflow: {retries: 1}\n"
    spec = spec_of(project(tmp_path, file, shop=SHOP + own))
    assert (spec.lake, spec.owner, spec.schedule, spec.tags) == ("own", "us", None, ["b"])
    assert (spec.airflow.retries, spec.airflow.pool) == (1, "p")


def test_maps_merge_and_the_nearest_default_wins(tmp_path: Path) -> None:
    file = (
        "lake: l\ndefaults:\n  flow: {quarantine: {warn: 2%, fail: 20%}, "
        "maintenance: {retain: 14 days}, columns: {at: timestamp}}\n"
    )
    own = SHOP + "defaults: {quarantine: {fail: 30%}, max_batches: 3}\n"
    flow = spec_of(project(tmp_path, file, shop=own)).flow("orders")
    assert (flow.quarantine.warn, flow.quarantine.fail) == (0.02, 0.3)
    assert (flow.maintenance.retain, flow.max_batches) == (14 * 86_400, 3)
    assert list(flow.columns) == ["id", "at"]  # the flow's own first


@pytest.mark.parametrize(
    ("flow", "has", "lacks"),
    [
        (FLOW, {"quarantine", "source.timezone"}, {"source.delimiter", "source.multiline"}),
        (FLOW.replace("json", "csv"), {"source.delimiter"}, {"source.multiline"}),
        (
            "{source: {kafka: {topics: [t], bootstrap_servers: 'b:1'}, format: json}, columns: {id: string}}",
            {"quarantine", "source.timezone"},
            {"source.delimiter", "source.max_files_per_trigger"},
        ),
        (
            "{source: {table: first}, window: {time: at, size: 1 hour, measures: {n: count(*)}}}",
            {"maintenance"},
            {"quarantine", "source.timezone"},
        ),
    ],
)
def test_a_default_is_for_flows_that_have_the_key(
    tmp_path: Path, flow: str, has: set[str], lacks: set[str]
) -> None:
    file = (
        "lake: l\ndefaults: {flow: {quarantine: {fail: 20%}, maintenance: {retain: 9 days}, "
        "source: {timezone: Europe/Berlin, delimiter: ';', max_files_per_trigger: 7}}}\n"
    )
    first = "{source: {files: in/*, format: json}, columns: {id: string, at: timestamp}}"
    shop = f"pipeline: shop\nflows:\n  first: {first}\n  one: {flow}\n"
    root = project(tmp_path, file, shop=shop)
    spec_of(root)
    path = root / loader.DIRECTORY / "shop.yaml"
    value: Any = loader.merged(path, shop, {}, loader.given_in(root, {})).value
    one = value["flows"]["one"]
    there = {*one, *(f"source.{key}" for key in one["source"])}
    assert has <= there
    assert not lacks & there


# environments


def test_an_environment_replaces_what_pipelines_say(tmp_path: Path) -> None:
    file = ENVIRONMENTS.replace("{lake: dev}", "{lake: dev, schedule: manual}")
    root = project(tmp_path, file, shop=SHOP + "schedule: '@hourly'\n")
    dev, prod = spec_of(root, DRAINDOWN_ENV="dev"), spec_of(root, DRAINDOWN_ENV="prod")
    assert (dev.lake, dev.schedule, dev.environment) == ("dev", None, "dev")
    assert (prod.lake, prod.schedule, prod.environment) == ("prod", "@hourly", "prod")
    assert rooted(dev, root).environment == "dev"


@pytest.mark.parametrize(
    ("chosen", "code", "hint"),
    [
        ("", "environment-not-chosen", "has environments dev, prod"),
        ("prd", "unknown-environment", "did you mean 'prod'?"),
    ],
)
def test_an_environment_is_chosen_by_name(
    tmp_path: Path, chosen: str, code: str, hint: str
) -> None:
    error = refused(project(tmp_path, ENVIRONMENTS, shop=SHOP), DRAINDOWN_ENV=chosen)
    assert (error.code, hint in error.found) == (code, True)
    assert "draindown --env dev ..." in error.next


def test_a_broken_project_keeps_the_schedules(tmp_path: Path) -> None:
    root = project(tmp_path, ENVIRONMENTS, shop=SHOP + "schedule: '@daily'\n", b="pipeline: b\n")
    found = load_all(root / loader.DIRECTORY, {})
    assert [(one.name, one.schedule) for one in found if isinstance(one, BrokenPipeline)] == [
        ("b", "@hourly"),
        ("shop", "@daily"),
    ]


def test_a_machine_may_choose_although_a_project_has_no_environments(tmp_path: Path) -> None:
    assert spec_of(project(tmp_path, "lake: l\n", shop=SHOP), DRAINDOWN_ENV="prod").lake == "l"


def test_vars_are_filled_in_with_their_types(tmp_path: Path) -> None:
    file = (
        "vars: {n: 7, dir: common}\nenvironments:\n"
        "  dev: {lake: a, vars: {n: 8, keys: [id]}}\n  prod: {lake: b, vars: {dir: '${LANDING}/x'}}\n"
    )
    shop = SHOP.replace("in/*.json", "${var.dir}/${var.none:-in}/*.json") + (
        "airflow: {retries: '${var.n}'}\n"
    )
    root = project(tmp_path, file, shop=shop)
    dev = spec_of(root, DRAINDOWN_ENV="dev")
    prod = spec_of(root, DRAINDOWN_ENV="prod", LANDING="$x")
    assert (dev.airflow.retries, prod.airflow.retries) == (8, 7)
    assert [one.flow("orders").source.place for one in (dev, prod)] == [
        "common/in/*.json",
        "$x/x/in/*.json",
    ]


LAKES = [
    (
        "environments: {dev: {lake: l}, prod: {lake: ./l/}}\n",
        "",
        "draindown.yaml:1:45: environments.prod.lake",
    ),
    (
        "lake: l\nenvironments: {dev: {}, prod: {}}\n",
        "",
        "draindown.yaml:1:7: environments.prod.lake",
    ),
    (
        "lake: ${L}\nenvironments: {dev: {}, prod: {}}\n",
        "",
        "draindown.yaml:1:7: environments.prod.lake",
    ),
    ("environments: {dev: {}, prod: {}}\n", "lake: own\n", "shop.yaml:4:7: lake"),
    (ENVIRONMENTS, "lake: own\n", "shop.yaml:4:1: lake"),
]


@pytest.mark.parametrize(("file", "own", "place"), LAKES)
def test_two_environments_have_two_lakes(tmp_path: Path, file: str, own: str, place: str) -> None:
    error = refused(project(tmp_path, file, shop=SHOP + own), DRAINDOWN_ENV="dev")
    assert [
        line.rpartition(": ")[0].startswith(place) or line.startswith(place)
        for line in lines(error, tmp_path)
    ] == [True]


def test_a_pipeline_may_have_a_lake_for_each_environment(tmp_path: Path) -> None:
    file = "environments: {dev: {vars: {l: a}}, prod: {vars: {l: b}}}\n"
    root = project(tmp_path, file, shop=SHOP + "lake: ${var.l}/shop\n")
    assert spec_of(root, DRAINDOWN_ENV="prod").lake == "b/shop"


# templates


def test_a_template_is_a_flow_with_holes(tmp_path: Path) -> None:
    shop = (
        "pipeline: shop\nflows:\n"
        "  orders: {template: cdc, params: {keys: [id, n]}, columns: "
        "{id: string not null, n: int not null, at: date not null}}\n"
        "  users: {template: cdc, params: {keys: [id]}, source: "
        "{files: u/*}, columns: {id: string not null, at: date not null}}\n"
    )
    spec = spec_of(project(tmp_path, CDC, shop=shop))
    assert [flow.target.keys for flow in spec.flows.values()] == [["id", "n"], ["id"]]
    assert [flow.source.files for flow in spec.flows.values()] == ["in/orders/*.json", "u/*"]


COLUMNS = "columns: {id: string not null, at: date not null}"


@pytest.mark.parametrize(
    ("flow", "found"),
    [
        (
            "{template: cdk}",
            [
                "shop.yaml:3:22: flows.orders.template: no template 'cdk' in "
                "draindown.yaml: there are cdc; did you mean 'cdc'?"
            ],
        ),
        ("{template: [cdc]}", ["shop.yaml:3:22: flows.orders.template: must be a name"]),
        (
            "{params: {a: 1}, source: {files: x, format: json}}",
            ["shop.yaml:3:12: flows.orders.params: is for a flow with a `template`"],
        ),
        (
            "{template: cdc, params: 3}",
            [
                "shop.yaml:3:35: flows.orders.params: must be keys and values",
                "draindown.yaml:5:20: flows.orders.target.keys: "
                "${param.keys} has no value: give it in `params` of the flow "
                "(template cdc, used at shop.yaml:3:12)",
            ],
        ),
        (
            "{template: cdc, params: {keys: [id], key: 1}, " + COLUMNS + "}",
            [
                "shop.yaml:3:48: flows.orders.params.key: template cdc has "
                "no hole ${param.key}; it has keys; did you mean 'keys'?"
            ],
        ),
        (
            "{template: cdc, " + COLUMNS + "}",
            [
                "draindown.yaml:5:20: flows.orders.target.keys: "
                "${param.keys} has no value: give it in `params` of the flow "
                "(template cdc, used at shop.yaml:3:12)"
            ],
        ),
        (
            "{template: cdc, params: {keys: id}, " + COLUMNS + "}",
            [
                "shop.yaml:3:42: flows.orders.target.keys: must be a list, such as [name], not 'id' "
                "(value of ${param.keys} at draindown.yaml:5:20)"
            ],
        ),
        (
            "{template: cdc, params: {keys: [no]}, " + COLUMNS + "}",
            [
                "shop.yaml:3:43: flows.orders.target.keys[0]: 'no' is in no "
                "column, and there is no transform to make it "
                "(value of ${param.keys} at draindown.yaml:5:20)"
            ],
        ),
        (
            "{template: cdc, params: {keys: [id]}, columns: {id: string not null}}",
            [
                "draindown.yaml:5:51: flows.orders.target.sequence_by[0]: "
                "'at' is in no column, and there is no transform to make it "
                "(template cdc, used at shop.yaml:3:12)"
            ],
        ),
        (
            "{source: {files: '${param.x}', format: json}, columns: {id: string}}",
            [
                "shop.yaml:3:28: flows.orders.source.files: ${param.x} is a "
                "hole of a template; a value elsewhere has none"
            ],
        ),
    ],
)
def test_errors_of_templates_name_both_places(tmp_path: Path, flow: str, found: list[str]) -> None:
    root = project(tmp_path, CDC, shop=f"pipeline: shop\nflows:\n  orders: {flow}\n")
    assert sorted(lines(refused(root), tmp_path)) == sorted(found)


@pytest.mark.parametrize(
    ("written", "param", "value"),
    [
        ("${param.d}", "[1]", None),
        ("a ${param.d} b", "x", "a x b"),
        ("a ${param.d} b", "7", "a 7 b"),
        ("${param.d:-other}", None, "other"),
        ("$${param.d}", None, "${param.d}"),
        ("${param.d}", "'${HOME_}'", "home"),
        ("${param.d}", "'$${HOME_}'", "${HOME_}"),
        ("x ${param.d}", "'$${HOME_}'", "x ${HOME_}"),
        ("${flow}-${flow}", None, "orders-orders"),
    ],
)
def test_holes(tmp_path: Path, written: str, param: str | None, value: str | None) -> None:
    file = f"lake: l\ntemplates:\n  t:\n    transform: a.b\n    expectations: null\n    rules: {{r: '{written}'}}\n"
    params = f"params: {{d: {param}}}, " if param else ""
    shop = (
        f"pipeline: shop\nflows:\n  orders: {{template: t, "
        f"{params}source: {{files: x, format: json}}, columns: {{id: string}}}}\n"
    )
    root = project(tmp_path, file, shop=shop)
    path = root / loader.DIRECTORY / "shop.yaml"
    environ = {"HOME_": "home"}
    found: Any = loader.merged(path, shop, environ, loader.given_in(root, environ)).value
    assert found["flows"]["orders"]["rules"]["r"] == ([1] if value is None else value)


# connections


def test_connections_are_merged_where_they_are_named(tmp_path: Path) -> None:
    file = (
        "lake: l\nconnections: {shop: {kafka: {bootstrap_servers: 'b:1', request_timeout: 9}}, "
        "crm: {postgres: {url: '${secret:CRM}'}}, other: {kafka: {bootstrap_servers: '${UNSET}'}}}\n"
    )
    shop = (
        "pipeline: shop\nconnections: {shop: {kafka: {bootstrap_servers: 'own:1'}}}\nflows:\n  orders:\n"
        "    source: {kafka: {connection: shop, topics: [t]}, format: json}\n    columns: {id: string}\n"
        "    sinks:\n      a: {kafka: {connection: shop, topic: u}}\n"
        "      b: {postgres: {connection: crm, table: t}}\n"
    )
    flow = spec_of(project(tmp_path, file, shop=shop)).flow("orders")
    assert (flow.source.kafka.bootstrap_servers, flow.source.kafka.request_timeout) == ("own:1", 9)
    assert flow.sinks["a"].kafka.bootstrap_servers == "own:1"
    assert flow.sinks["b"].postgres.url == "${secret:CRM}"


@pytest.mark.parametrize(
    ("kafka", "found"),
    [
        (
            "connection: shp",
            "3:41: flows.orders.source.kafka.connection: no connection "
            "'shp' in `connections`: there are shop, crm; did you mean 'shop'?",
        ),
        (
            "connection: crm",
            "3:41: flows.orders.source.kafka.connection: connection crm is of postgres, not of kafka",
        ),
        (
            "connection: shop, bootstrap_servers: 'x:1'",
            "3:47: flows.orders.source.kafka.bootstrap_servers: "
            "connection shop sets it, too (draindown.yaml:3): keep one of the two",
        ),
    ],
)
def test_errors_of_connections(tmp_path: Path, kafka: str, found: str) -> None:
    file = (
        "lake: l\nconnections:\n  shop: {kafka: {bootstrap_servers: "
        "'b:1'}}\n  crm: {postgres: {url: 'postgresql://a/b'}}\n"
    )
    shop = (
        f"pipeline: shop\nflows:\n  orders: {{source: {{kafka: "
        f"{{{kafka}, topics: [t]}}, format: json}}, columns: {{id: string}}}}\n"
    )
    (line,) = lines(refused(project(tmp_path, file, shop=shop)), tmp_path)
    assert line == f"shop.yaml:{found}"


def test_connections_need_no_project_file(tmp_path: Path) -> None:
    shop = SHOP + "lake: l\nconnections: {a: {kafka: {bootstrap_servers: 'b:1'}}}\n"
    shop = shop.replace("files: 'in/*.json'", "kafka: {connection: a, topics: [t]}")
    assert (
        spec_of(project(tmp_path, None, shop=shop)).flow("orders").source.kafka.bootstrap_servers
        == "b:1"
    )
    error = refused(project(tmp_path, None, shop=shop.replace("connection: a,", "connection: b,")))
    assert "no connection 'b' in `connections`: there are a" in error.found


# problems of the files themselves


@pytest.mark.parametrize(
    ("file", "found"),
    [
        (
            "lak: l\n",
            "1:1: lak: unknown key; allowed: lake, lease, connections, "
            "defaults, vars, environments, templates; did you mean 'lake'?",
        ),
        ("[lake]\n", "1:1: must be keys and values, such as `lake: lake`"),
        ("lake: {\n", "2:1: is not YAML"),
        ("lake: s3://b/c\n", "1:7: lake: s3:// is no directory"),
        (
            "lease: {form: shared}\n",
            "1:9: lease.form: is `mode` in version 1; write `mode: shared`",
        ),
        ("lease: {mode: remote}\n", "1:15: lease.mode: must be 'local' or 'shared', not 'remote'"),
        ("lease: {duration: 90s}\n", "1:9: lease.duration: counts for mode shared only"),
        (
            "defaults: {ownr: x}\n",
            "1:12: defaults.ownr: unknown key; allowed: owner, schedule, tags, airflow, flow; did you mean 'owner'?",
        ),
        (
            "defaults: {airflow: {retires: 1}}\n",
            "1:22: defaults.airflow.retires: unknown key; allowed: retries,",
        ),
        (
            "defaults: {airflow: {catchup: true}}\n",
            "1:22: defaults.airflow.catchup: not supported: a run drains all that waits",
        ),
        (
            "defaults: {flow: {quarantin: {}}}\n",
            "1:19: defaults.flow.quarantin: unknown key; allowed: source,",
        ),
        (
            "defaults: {flow: {source: {delimter: x}}}\n",
            "1:28: defaults.flow.source.delimter: unknown key; allowed: ",
        ),
        ("defaults: {flow: {template: x}}\n", "1:19: defaults.flow.template: unknown key"),
        ("defaults: {flow: 3}\n", "1:18: defaults.flow: must be keys and values, not 3"),
        ("defaults: {schedule: '@often'}\n", "1:22: defaults.schedule: unknown preset '@often'"),
        (
            "environments: {dev: {flows: {}}}\n",
            "1:22: environments.dev.flows: unknown key; allowed: lake, lease, schedule, connections, vars",
        ),
        ("environments: {dev: {}, Dev: {}}\n", "1:25: environments.Dev: 'Dev' is not a name"),
        ("environments: dev\n", "1:15: environments: must be keys and values, not 'dev'"),
        ("templates: {t: 3}\n", "1:16: templates.t: must be keys and values, not 3"),
        (
            "templates: {t: {columnz: {}}}\n",
            "1:17: templates.t.columnz: unknown key; allowed: source, ",
        ),
        (
            "templates: {t: {template: u}}\n",
            "1:17: templates.t.template: a template can't use another one",
        ),
        (
            "templates: {t: {source: {fils: x}}}\n",
            "1:26: templates.t.source.fils: unknown key; allowed: ",
        ),
        ("connections: {c: {}}\n", "1:15: connections.c: needs one of kafka, postgres"),
        (
            "connections: {c: {kafka: {topics: [a]}}}\n",
            "1:27: connections.c.kafka.topics: unknown key; allowed: bootstrap_servers, ",
        ),
        (
            "connections: {c: {kafka: {bootstrap_servers: b}}}\n",
            "1:46: connections.c.kafka.bootstrap_servers: 'b' is no list of brokers",
        ),
        (
            "connections: {c: {kafka: {sasl_password: hunter2}}}\n",
            "1:42: connections.c.kafka.sasl_password: must be a reference",
        ),
    ],
)
def test_problems_of_a_project_file(tmp_path: Path, file: str, found: str) -> None:
    error = refused(project(tmp_path, file, shop=SHOP + "lake: l\n"), DRAINDOWN_ENV="dev")
    assert error.code == "invalid-project"
    assert found in lines(error, tmp_path)[0].removeprefix("draindown.yaml:")
    assert error.next == ("draindown validate",)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("lease: {form: shared}\n", "4:1: lease: belongs to the lake, so it is in draindown.yaml"),
        (
            "retries: 3\n",
            "4:1: retries: is `airflow.retries` in version 1; write `airflow: {retries: 3}`",
        ),
        (
            "max_active_tasks: 3\n",
            "4:1: max_active_tasks: is `airflow.max_active_tasks` in version 1",
        ),
        (
            "airflow: {start_date: x}\n",
            "4:11: airflow.start_date: not supported: it decides nothing",
        ),
        (
            "airflow: {depends_on_past: true}\n",
            "4:11: airflow.depends_on_past: not supported: a run goes on",
        ),
        (
            "airflow: {max_active_runs: 2}\n",
            "4:11: airflow.max_active_runs: not supported: it is always 1",
        ),
        ("airflow: {timezone: Mars}\n", "4:21: airflow.timezone: 'Mars' is no time zone"),
        ("defaults: {ruls: {}}\n", "4:12: defaults.ruls: unknown key; allowed: source,"),
        ("defaults: 3\n", "4:11: defaults: must be keys and values, those of a flow"),
        ("connections: {c: {}}\n", "4:15: connections.c: needs one of kafka, postgres"),
        (
            "owner: ${var.me}\n",
            "4:8: owner: ${var.me} has no value: give it in `vars` of the environment",
        ),
    ],
)
@pytest.mark.parametrize("file", [None, "lake: l\n"])
def test_problems_of_a_pipeline_file(
    tmp_path: Path, file: str | None, more: str, found: str
) -> None:
    shop = SHOP + more + ("" if file else "lake: l\n")
    (line,) = lines(refused(project(tmp_path, file, shop=shop)), tmp_path)
    assert line.startswith(f"shop.yaml:{found}")


@pytest.mark.parametrize(
    ("file", "found"),
    [
        (
            "lake: l\ndefaults: {flow: {max_batches: 0}}\n",
            "draindown.yaml:2:32: flows.orders.max_batches: must be at least 1, not 0",
        ),
        (
            "lake: l\ndefaults: {flow: {target: {keys: [nope]}}}\n",
            "draindown.yaml:2:28: flows.orders.target.keys: needs sequence_by",
        ),
        ("lake: ${NOWHERE}\n", "draindown.yaml:1:7: lake: environment variable NOWHERE is not set"),
    ],
)
def test_a_given_value_is_wrong_where_it_was_written(tmp_path: Path, file: str, found: str) -> None:
    error = refused(project(tmp_path, file, shop=SHOP))
    assert error.code == "invalid-pipeline"
    assert lines(error, tmp_path)[0].startswith(found)


def test_aliases_do_not_make_merges_explode(tmp_path: Path) -> None:
    names = [f"a{at}" for at in range(30)]
    anchors = "\n".join(
        f"  {name}: &{name} {{x: *{before}, y: *{before}}}"
        for before, name in itertools.pairwise(names)
    )
    bomb = f"vars:\n  a0: &a0 {{z: 1}}\n{anchors}\nlake: l\ndefaults: {{flow: {{rules: *a29}}}}\n"
    root = project(tmp_path, bomb, shop=SHOP)
    begun = time.monotonic()
    assert refused(root).code in ("invalid-project", "invalid-pipeline")
    assert time.monotonic() - begun < 5


# merges as rules

_keys = st.sampled_from(["a", "b", "c"])
_trees = st.recursive(
    st.integers(0, 9) | st.sampled_from(["x", "y"]) | st.lists(st.integers(0, 3), max_size=2),
    lambda inner: st.dictionaries(_keys, inner, max_size=3),
    max_leaves=8,
)
_maps = st.dictionaries(_keys, _trees, max_size=3)


def _model(over: Any, under: Any) -> Any:
    if not (isinstance(over, dict) and isinstance(under, dict)):
        return over
    both = {
        key: _model(value, under[key]) if key in under else value for key, value in over.items()
    }
    return both | {key: value for key, value in under.items() if key not in over}


def _node(value: Any, file: str) -> MappingNode:
    node = read(json.dumps(value, indent=1), file)
    assert isinstance(node, MappingNode)
    return node


@given(_maps, _maps)
def test_a_merge_is_that_of_dicts_and_keeps_positions(over: Any, under: Any) -> None:
    nodes = _node(over, "over"), _node(under, "under")
    found = build(merged(*nodes, Budget()), {})
    assert found.value == _model(over, under)
    assert list(found.value) == list(_model(over, under))  # type: ignore[arg-type]
    again = build(merged(*nodes, Budget()), {})
    assert (again.value, again.values, again.keys) == (found.value, found.values, found.keys)
    own = {file: build(node, {}) for file, node in zip(("over", "under"), nodes, strict=True)}
    for path, mark in found.values.items():
        assert own[mark.file].values[path] == mark
    for path, mark in found.keys.items():
        assert own[mark.file].keys[path] == mark


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5, alphabet="abyes01"),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(10**6), 10**6)
            | st.floats(-1e6, 1e6)
            | st.text(max_size=12)
            | st.sampled_from(["1e5", "on", "1:30", "~", "0x1", "a: b", "${X}", "a\nb"]),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.text(max_size=4, alphabet="abc"), inner, max_size=2)
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_written_values_are_read_again(value: Any) -> None:
    assert parse(yaml_text.written(yaml_text.literal(value)), {}).value == value
    assert yaml_text.written(value) == yaml_text.written(json.loads(json.dumps(value)))


# many


def test_a_hundred_pipelines_are_read_in_a_second(tmp_path: Path) -> None:
    file = (
        CDC
        + "defaults: {owner: us, flow: {quarantine: {fail: 20%}, maintenance: {retain: 14 days}}}\n"
    )
    texts = {
        f"p{at}": f"pipeline: p{at}\nflows:\n  f{at}: {{template: cdc, params: {{keys: [id]}}, {COLUMNS}}}\n"
        for at in range(100)
    }
    root = project(tmp_path, file, **texts)
    begun = time.process_time()
    found = load_all(root / loader.DIRECTORY, {})
    assert time.process_time() - begun < 1
    assert len([one for one in found if isinstance(one, PipelineSpec)]) == 100


def test_the_project_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = project(
        tmp_path,
        "lake: l\n",
        shop=SHOP,
        b="pipeline: b\n" + SHOP.partition("\n")[2].replace("orders", "o"),
    )
    parsed: list[str] = []
    original = yaml.parse
    monkeypatch.setattr(
        yaml, "parse", lambda text, Loader: parsed.append(text) or original(text, Loader=Loader)
    )
    load_all(root / loader.DIRECTORY, {})
    assert len(parsed) == 3


# commands


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DRAINDOWN_ENV", raising=False)
    (tmp_path / "in").mkdir()
    return project(tmp_path, ENVIRONMENTS, shop=SHOP)


def test_validate_checks_every_environment(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = f"--root={two}"
    assert run(capsys, root, "validate")[:2] == (0, "shop: valid in dev, prod\n")
    assert run(capsys, root, "--env", "prod", "validate")[1] == "shop: valid in prod, dev\n"
    (two / "draindown.yaml").write_text(ENVIRONMENTS + "  test: {lake: t, schedule: often}\n")
    code, _, said = run(capsys, root, "--env", "prod", "validate")
    assert (code, "draindown.yaml:4:29: environments.test.schedule" in said) == (78, True)


def test_variables_of_other_environments_need_not_be_set(
    two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (two / "draindown.yaml").write_text(
        "environments:\n  dev: {lake: l, vars: {n: 1}}\n"
        "  prod: {lake: '${A_LAKE}', vars: {n: '${A_NUMBER}'}}\n"
    )
    (two / loader.DIRECTORY / "shop.yaml").write_text(SHOP + "airflow: {retries: '${var.n}'}\n")
    root = f"--root={two}"
    code, out, _ = run(capsys, root, "--env", "dev", "validate")
    assert (code, out) == (0, "shop: valid in dev, prod (as far as variables are set)\n")
    code, _, said = run(capsys, root, "--env", "prod", "validate")
    assert (code, "export A_LAKE=..." in said) == (78, True)


def test_resolved_is_the_pipeline_as_it_is_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = (
        f"pipeline: shop\ndescription: costs $$5 $${{X}}\nflows:\n  "
        f"orders: {{template: cdc, params: {{keys: [id]}}, {COLUMNS}, "
        "sinks: {a: {postgres: {url: '${secret:CRM}', table: t}}}}\n"
    )
    root = project(tmp_path, CDC, shop=shop)
    code, out, _ = run(capsys, f"--root={root}", "validate", "--resolved", "shop")
    assert (code, out.startswith("# shop\n"), "${secret:CRM}" in out) == (0, True, True)
    assert PipelineSpec.model_validate(parse(out, {}).value) == spec_of(root)
    code, out, _ = run(capsys, f"--root={root}", "validate", "--resolved", "--json")
    assert PipelineSpec.model_validate(json.loads(out)["shop"]) == spec_of(root)


def test_a_command_needs_an_environment_that_there_is(
    two: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"--root={two}"
    assert run(capsys, root, "plan", "shop")[0] == 78
    assert run(capsys, root, "--env", "tset", "plan", "shop")[0] == 78
    code, _, said = run(capsys, root, "--env", "dev", "plan", "shop")
    assert code == 0, said
    monkeypatch.setenv("DRAINDOWN_ENV", "prod")
    code, _, said = run(capsys, root, "--env", "dev", "plan", "shop")
    assert (code, said.startswith("environment-mismatch: ")) == (78, True)
    (two / "draindown.yaml").write_text("lake: l\n")
    monkeypatch.delenv("DRAINDOWN_ENV")
    assert run(capsys, root, "--env", "dev", "plan", "shop")[0] == 2


def _request(root: Path, environment: str) -> Request:
    spec = rooted(spec_of(root, DRAINDOWN_ENV=environment), root)
    return Request(spec=spec, flow="orders", step="drain", run_id="r", root=str(root))


def test_a_request_carries_its_environment(two: Path) -> None:
    asked = _request(two, "dev")
    read_again = Request.decode(asked.encode())
    assert (asked.environment, read_again.environment, read_again.spec.environment) == ("dev",) * 3
    assert read_again.following("check").environment == "dev"
    told = report.of(asked, job.now(), "idle")
    assert told.environment == "dev"
    assert " shop/orders (dev)  " in card([told]).splitlines()[0]


def test_a_job_of_another_environment_ends_before_it_looks(
    two: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = _request(two, "dev")
    monkeypatch.setenv("DRAINDOWN_ENV", "prod")
    with pytest.raises(SystemExit) as ended:
        steps.job_main("drain", ["--request", asked.encode()])
    assert ended.value.code == 78
    assert '"code": "environment-mismatch"' in capsys.readouterr().out
    told: list[Any] = []
    found, code = job.attempt(asked, lambda _: pytest.fail("it ran"), tell=told.append)
    assert (code, found.outcome, told[0].code) == (78, "failed", "environment-mismatch")
    assert "DRAINDOWN_ENV=dev draindown run shop" in told[0].next[0]
    assert not (two / "dev").exists()
    assert not (two / "prod").exists()
    monkeypatch.delenv("DRAINDOWN_ENV")
    job.refuse_other_environment(asked)


# writing


def test_a_script_writes_files(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (two / "draindown.yaml").write_text(CDC.replace("lake: lake\n", ENVIRONMENTS))
    monkeypatch.setattr(sys, "argv", [str(two / "scripts" / "make_shop.py")])
    columns = {"id": "string not null", "at": "date not null"}
    flows = {
        name: {"template": "cdc", "params": {"keys": ["id"]}, "columns": columns}
        for name in ("z", "a")
    }
    content = {
        "pipeline": "shop",
        "schedule": "@hourly",
        "description": "${NOT_SET}",
        "flows": flows,
    }
    file = two / loader.DIRECTORY / "shop.yaml"
    assert write_pipeline(file, content)
    text = file.read_text()
    assert text.startswith("# Written by scripts/make_shop.py. Edit that script, not this file.\n")
    assert not write_pipeline(file, content)
    assert list(spec_of(two, DRAINDOWN_ENV="dev", NOT_SET="").flows) == ["z", "a"]
    broken = content | {"flows": flows | {"b": {"template": "cdk"}}, "ownr": "x"}
    with pytest.raises(TerminalError) as caught:
        write_pipeline(file, broken)
    assert caught.value.found.startswith("flows.b.template: no template 'cdk' in draindown.yaml")
    assert file.read_text() == text
    with pytest.raises(TypeError, match="can't hold a PosixPath"):
        write_pipeline(file, content | {"lake": Path("x")})
    assert [one.name for one in file.parent.iterdir()] == ["shop.yaml"]


# schema


def test_the_schema_of_the_project_file_is_the_generated_one() -> None:
    written = (ROOT / "docs" / "project.schema.json").read_text()
    assert written == project_schema_text(), (
        "run: python -m draindown.config.json_schema project > docs/project.schema.json"
    )


@pytest.mark.parametrize(
    ("heading", "model"),
    [("Keys", ProjectFile), ("Lease", LeaseSpec), ("Environments", Environment)],
)
def test_every_key_is_in_the_reference(heading: str, model: type[BaseModel]) -> None:
    text = (ROOT / "docs" / "project-file.md").read_text()
    section = re.split(r"^## ", text.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert rows == list(model.model_fields)


def test_examples_are_pipelines_of_a_project(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "project-file.md").read_text()
    first, *blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    files = {name: block for block in blocks for name in re.findall(r"^pipeline: (\w+)", block)}
    assert len(files) == 3
    root = project(tmp_path, first, **files)
    found = load_all(root / loader.DIRECTORY, {})
    assert [one.pipeline for one in found if isinstance(one, PipelineSpec)] == sorted(files)
    for block in files.values():
        jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(block))


def test_schemas_take_what_the_loader_takes(tmp_path: Path) -> None:
    whole = jsonschema.Draft202012Validator(project_schema())
    jsonschema.Draft202012Validator.check_schema(whole.schema)
    pages = (ROOT / "docs" / "project-file.md").read_text()
    blocks = re.findall(r"^```yaml\n(# draindown.yaml\n.*?)^```", pages, re.MULTILINE | re.DOTALL)
    assert blocks
    for text in (CDC, ENVIRONMENTS, *blocks):
        whole.validate(yaml.safe_load(text))
    with pytest.raises(jsonschema.ValidationError):
        whole.validate({"lak": "x"})
    flow = {"template": "cdc", "params": {"keys": ["id"]}, "columns": {"id": "string"}}
    jsonschema.Draft202012Validator(schema()).validate({"pipeline": "a", "flows": {"f": flow}})
    for wrong in ({"tmplate": "cdc"}, {**flow, "colums": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema()).validate(
                {"pipeline": "a", "flows": {"f": wrong}}
            )
    del tmp_path


def test_the_lease_of_an_environment_replaces_that_of_the_project(tmp_path: Path) -> None:
    """Half of each would be `local` with a duration, which is refused."""
    text = (
        "lease: {mode: shared, duration: 2 minutes}\n"
        "environments: {dev: {lake: d, lease: {mode: local}}, prod: {lake: p}}\n"
    )
    flow = "{source: {files: x/*.json, format: json}, columns: {a: int}}"
    root = project(tmp_path, text, a=f"pipeline: a\nflows:\n  f: {flow}\n")
    found = {
        name: load_all(root / loader.DIRECTORY, {"DRAINDOWN_ENV": name}) for name in ("dev", "prod")
    }
    modes = {
        name: one.lease.mode for name, (one,) in found.items() if isinstance(one, PipelineSpec)
    }
    assert modes == {"dev": "local", "prod": "shared"}


def test_a_variable_of_an_environment_that_is_written_as_one_of_the_process_is_an_error(
    tmp_path: Path,
) -> None:
    """Also where variables need not be set: nobody sets what `vars` has."""
    text = "environments: {dev: {lake: d, vars: {landing: in}}}\n"
    flow = "{source: {files: '${landing}/*.json', format: json}, columns: {a: int}}"
    root = project(tmp_path, text, a=f"pipeline: a\nflows:\n  f: {flow}\n")
    (given,) = loader.every_environment(root, {})
    (found,) = loader.load_given(root / loader.DIRECTORY, {}, given)
    assert isinstance(found, BrokenPipeline)
    assert "`vars` has landing: write ${var.landing}" in found.error.found


def test_an_old_word_in_defaults_and_templates_is_refused_with_the_new_one(tmp_path: Path) -> None:
    text = "lake: l\ndefaults: {flow: {deadline: 5m, source: {settle: 1m}}}\n"
    text += "templates: {t: {also_to: {}, nullValue: x}}\n"
    root = project(tmp_path, text, a="pipeline: a\nflows: {f: {template: t}}\n")
    (found,) = load_all(root / loader.DIRECTORY, {})
    assert isinstance(found, BrokenPipeline)
    for word in ("max_duration", "min_file_age", "sinks", "null_marker"):
        assert f"`{word}`" in found.error.found, word


def test_defaults_of_keyed_targets_are_not_given_to_other_targets(tmp_path: Path) -> None:
    text = "lake: l\ndefaults: {flow: {target: {stored_as_scd_type: 2, sequence_by: [at]}}}\n"
    columns = "columns: {k: string not null, at: timestamp not null}"
    flows = (
        f"  keyed: {{source: {{files: x/*.json, format: json}}, {columns}, target: {{keys: [k]}}}}\n"
        f"  plain: {{source: {{files: y/*.json, format: json}}, {columns}}}\n"
        "  hourly: {source: {table: plain}, window: {time: at, size: 1 hour, measures: {n: count(*)}}}\n"
    )
    root = project(tmp_path, text, a=f"pipeline: a\nflows:\n{flows}")
    (found,) = load_all(root / loader.DIRECTORY, {})
    assert isinstance(found, PipelineSpec), found
    kinds = {name: found.flows[name].target.kind.name for name in found.flows}
    assert kinds["keyed"] == "history" and kinds["plain"] == "append"


def test_a_first_pipeline_names_no_lake_where_the_project_does(tmp_path: Path) -> None:
    text = "environments: {dev: {lake: d}}\n"
    (tmp_path / "draindown.yaml").write_text(text)
    scaffold.init(tmp_path, "orders")
    (found,) = load_all(tmp_path / loader.DIRECTORY, {"DRAINDOWN_ENV": "dev"})
    assert isinstance(found, PipelineSpec) and found.lake.endswith("d")
