"""Commands as a person types them: results on stdout, the rest on stderr, exit codes as
documented.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake.exceptions import DeltaError

from draindown.base.clock import now
from draindown.base.errors import DraindownError, GateFailed, TransientError
from draindown.base.exits import Exit
from draindown.cli import context
from draindown.cli.program import main
from draindown.config import scaffold
from draindown.config.lease import LeaseSpec
from draindown.config.loader import load
from draindown.config.models import PipelineSpec
from draindown.flow import quarantine, schema_drift
from draindown.gate import suite_validation, waivers
from draindown.lake import delta, directories
from draindown.recovery.opening import lease_of
from draindown.runs import store
from draindown.runs.report import Backlog, PlanPart, StepReport, of
from draindown.runs.request import Request
from draindown.sources.files import parked

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DRAINDOWN_LAKE", raising=False)
    monkeypatch.chdir(tmp_path)
    scaffold.init(tmp_path, "orders")
    return tmp_path


@pytest.fixture
def spec(project: Path) -> PipelineSpec:
    loaded = load(project / "dags" / "pipelines" / "orders.yaml", {})
    return loaded.model_copy(update={"lake": str(project / "lake")})


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    heavy = "pyspark deltalake duckdb pandas pyarrow airflow great_expectations"
    script = "import sys; from draindown.cli.program import main; code = main(['--help'])\n"
    script += f"print(*[m for m in '{heavy}'.split() if m in sys.modules], file=sys.stderr); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "draindown audit flights" in done.stdout
    assert done.stderr.strip() == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from draindown import __version__

    assert typed(capsys, "--version") == (0, f"draindown {__version__}\n", "")


@pytest.mark.parametrize(
    "words",
    [
        *(["nonsense"], ["plan"], ["--root", "/no/such", "x"]),
        *(["run", "orders", "--max-batches", "0"], ["run", "orders", "--max-batchs", "3"]),
    ],
)
def test_a_wrong_command_line_is_usage(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code, out, err = typed(capsys, *words)
    assert (code, out) == (2, "") and err


def test_init_writes_a_pipeline_that_validates(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("new").mkdir()
    Path("new", "jobs").touch()  # in the way, once the files before it are written
    code, _, err = typed(capsys, "init", "new", "--name", "bills")
    assert (code, "project-not-writable" in err, "nothing was changed" in err) == (78, True, True)
    Path("new", "jobs").unlink()
    assert typed(capsys, "init", "new", "--name", "null")[0] == 78, "YAML reads another value"
    code, out, _ = typed(capsys, "init", "new", "--name", "bills")
    assert code == 0 and "draindown --root new run bills" in out
    assert typed(capsys, "--root", "new", "validate", "bills")[:2] == (0, "bills: valid\n")
    assert (project / "new" / "dags" / "draindown_dags.py").is_file()


def test_init_overwrites_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    code, out, err = typed(capsys, "init")
    assert (code, out) == (78, "") and "already-there" in err
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


def test_init_keeps_a_factory_a_page_and_jobs_that_are_there(project: Path) -> None:
    (project / "jobs" / "drain.py").write_text("# mine\n")
    ours = [project / "dags" / "draindown_dags.py", project / "plugins" / "draindown_plugin.py"]
    for path in ours:
        path.rename(path.with_name("other.py"))
    scaffold.init(project, "bills")
    assert not any(path.exists() for path in ours)
    assert (project / "jobs" / "drain.py").read_text() == "# mine\n"


@pytest.mark.parametrize("name", ["Orders", "../x", "", "a" * 64])
def test_init_refuses_what_is_no_name(
    project: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, _, err = typed(capsys, "init", "--name", name)
    assert code == 78 and "bad-name" in err


RUN = [
    "dags/draindown_dags.py",
    "plugins/draindown_plugin.py",
    "jobs/drain.py",
    "jobs/check.py",
    "jobs/compact.py",
]


@pytest.mark.parametrize("path", RUN)
def test_init_writes_what_this_repository_runs(project: Path, path: str) -> None:
    assert (project / path).read_text() == (Path(__file__).parents[2] / path).read_text()


def test_init_reads_where_files_land_from_the_environment(project: Path) -> None:
    found = load(
        project / "dags" / "pipelines" / "orders.yaml", {"DRAINDOWN_LANDING": "/data/landing"}
    )
    assert found.flows["orders"].source.files == "/data/landing/orders/*.json"


def test_what_keeps_a_plan_from_being_made_is_in_the_report(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(project / "landing")
    assert typed(capsys, "run", "orders")[0] == 78
    code, out, _ = typed(capsys, "report", "orders")
    assert code == 0 and out.startswith("FAILED  orders/orders  plan: source-missing")
    assert "next:" in out


def test_validate_names_every_error_of_every_file(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = project / "dags" / "pipelines"
    (home / "one.yaml").write_text("pipeline: one\nlake: lake\nflows: {}\n")
    (home / "two.yaml").write_text("pipeline: two\nlake: lake\nnonsense: 1\nflows: {}\n")
    code, out, err = typed(capsys, "validate")
    assert code == 78 and out == "orders: valid\n"
    assert "one.yaml:3" in err and "two.yaml:3" in err and "two.yaml:4" in err
    code, out, err = typed(capsys, "validate", "--json")
    found = json.loads(out)
    assert (code, err) == (78, "") and found["valid"] == ["orders"]
    assert [error["code"] for error in found["errors"]] == ["invalid-pipeline"] * 2


def test_validate_looks_for_the_suite(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "expectations" / "orders.json").unlink()
    code, _, err = typed(capsys, "validate", "orders")
    assert code == 78 and "bad-suite" in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no file {path}; did you mean 'order'?"),
        ('{\n "expectations": [}', "{path}:2:19: is no JSON: expecting value"),
        (
            '{\n "expectations": [\n{"type": "a"\n"kwargs": {}}]}',
            "{path}:4:1: is no JSON: expecting ',' delimiter",
        ),
        (
            '{"expectations": [\n {"type": "a", "kwargs": ["column"]}]}',
            "{path}:2: `kwargs` of an expectation must be",
        ),
        (
            '{"expectations": [\n\n {"type": "a", "meta": "x"}]}',
            "{path}:3: `meta` of an expectation must be",
        ),
        (
            '{"expectations": [{"type": "a"},\n 1]}',
            "{path}:2: `expectations` are no list of objects",
        ),
        ("[" * 100_000, "{path}:1: is nested too deeply"),
    ],
)
def test_a_suite_that_can_not_be_read_is_told_with_its_place(
    project: Path, capsys: pytest.CaptureFixture[str], content: str | None, words: str
) -> None:
    path = project / "expectations" / "orders.json"
    path.rename(path.with_name("order.json"))
    if content is not None:
        path.write_text(content)
    for command in ("validate", "run"):
        code, _, err = typed(capsys, command, "orders")
        assert code == 78 and err.startswith("bad-suite: ") and words.format(path=path) in err
        assert "Error" not in err


def test_a_suite_that_is_no_text_or_no_file_is_told(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / "expectations" / "orders.json"
    path.write_bytes(b'{\n"name": "\xff"}')
    assert f"bad-suite: {path}:2: is not UTF-8" in typed(capsys, "validate", "orders")[2]
    path.unlink()
    path.mkdir()
    assert (
        f"bad-suite: {path} can't be read: Is a directory" in typed(capsys, "validate", "orders")[2]
    )


BETWEEN = "expect_column_values_to_be_between"


@pytest.mark.parametrize(
    ("expectation", "words"),
    [
        (
            {"kwarg": {"column": "amount"}},
            f"{BETWEEN}: there is no key 'kwarg'; did you mean 'kwargs'?",
        ),
        (
            {"kwargs": {"column": "amount", "min_valu": 0}},
            f"{BETWEEN}:amount: there is no argument 'min_valu'; did you mean 'min_value'?",
        ),
        (
            {"kwargs": {"columns": "amount"}},
            f"{BETWEEN}: there is no argument 'columns'; did you mean 'column'?",
        ),
        ({"kwargs": {"min_value": 0}}, f"{BETWEEN}: the argument 'column' is required"),
        ({}, f"{BETWEEN}: the argument 'column' is required"),
        (
            {"kwargs": {"column": "amount"}, "severity": "warn"},
            f"{BETWEEN}:amount: severity is 'warn'; write critical, warning or info",
        ),
    ],
)
def test_misspelt_arguments_of_a_suite_are_told_with_the_near_miss(
    project: Path, capsys: pytest.CaptureFixture[str], expectation: dict[str, Any], words: str
) -> None:
    path = project / "expectations" / "orders.json"
    path.write_text(json.dumps({"expectations": [{"type": BETWEEN, **expectation}]}))
    code, _, err = typed(capsys, "validate", "orders")
    assert code == 78 and err.startswith(f"bad-suite: {path}:1: {words}\n  tried:")


@pytest.mark.parametrize(
    "content", ['{"expectation": []}', '{"expectations": null}', '{"expectations": ["x"]}', "[]"]
)
def test_a_suite_that_expects_nothing_by_mistake_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (project / "expectations" / "orders.json").write_text(content)
    code, _, err = typed(capsys, "validate", "orders")
    assert code == 78 and "bad-suite" in err and "list of objects" in err


def _suite(*expectations: tuple[str, dict[str, Any]]) -> str:
    return json.dumps(
        {"name": "orders", "expectations": [{"type": t, "kwargs": k} for t, k in expectations]},
        indent=2,
    )


@pytest.mark.parametrize(
    ("expectation", "line", "words"),
    [
        (
            ("expect_column_values_to_not_be_null", {"column": "statuss"}),
            10,
            "did you mean 'status'?",
        ),
        (
            ("expect_column_values_to_be_nul", {"column": "status"}),
            10,
            "did you mean 'expect_column_values_to_be_null'?",
        ),
        (
            ("expect_compound_columns_to_be_unique", {"column_list": ["order_id", "zzz"]}),
            10,
            "no column 'zzz'",
        ),
        (
            ("expect_column_pair_values_to_be_equal", {"column_A": "order_id", "column_B": "zzz"}),
            10,
            "no column 'zzz'",
        ),
    ],
)
def test_validate_refuses_what_no_run_could_judge(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    expectation: tuple[str, dict[str, Any]],
    line: int,
    words: str,
) -> None:
    path = project / "expectations" / "orders.json"
    path.write_text(_suite(("expect_table_row_count_to_be_between", {"min_value": 1}), expectation))
    code, out, err = typed(capsys, "validate", "orders")
    assert (code, out) == (78, "no valid pipeline\n") and err.startswith("bad-suite: ")
    assert f"{path}:{line}: " in err and words in err and "waive" not in err


@pytest.mark.parametrize(
    "expectation",
    [
        ("expect_column_to_exist", {"column": "zzz"}),  # a question about the table, and a fair one
        ("expect_column_values_to_not_be_null", {"column": "STATUS"}),
        ("expect_column_values_to_not_be_null", {"column": "_changed_at"}),
        ("expect_column_values_to_not_be_null", {"column": "details.zzz"}),
    ],
)
def test_validate_leaves_to_the_run_what_the_text_does_not_show(
    project: Path, capsys: pytest.CaptureFixture[str], expectation: tuple[str, dict[str, Any]]
) -> None:
    (project / "expectations" / "orders.json").write_text(_suite(expectation))
    assert typed(capsys, "validate", "orders")[0] == 0


def test_columns_that_a_transform_may_make_are_left_to_the_run(
    spec: PipelineSpec, project: Path
) -> None:
    flow = spec.flows["orders"]
    made = flow.model_copy(update={"transform": "orders.tidy"})
    added = flow.model_copy(update={"drift": flow.drift.model_copy(update={"new_columns": "add"})})
    assert (
        suite_validation.stored_columns(flow)
        and suite_validation.stored_columns(made) is suite_validation.stored_columns(added) is None
    )


def test_the_kinds_of_expectation_and_their_arguments_are_those_that_gx_has() -> None:
    script = (
        "import great_expectations; from great_expectations.expectations import registry as r\n"
    )
    script += "from draindown.gate.suite_arguments import arguments, Arguments\n"
    script += "from draindown.gate.suite_validation import kinds\n"
    script += (
        "print('unknown', len(set(r.list_registered_expectation_implementations()) - kinds()))\n"
    )
    script += "for kind in r.list_registered_expectation_implementations():\n"
    script += "    of_gx = r.get_expectation_impl(kind).__fields__\n"
    script += "    required = (name for name, field in of_gx.items() if field.required)\n"
    script += "    allowed = frozenset(of_gx) - {'library_metadata'}\n"
    script += "    print(kind, arguments(kind) == Arguments(allowed, frozenset(required)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "unknown 0" in done.stdout.splitlines(), done.stdout
    told = dict(line.split() for line in done.stdout.splitlines() if line.startswith("expect_"))
    assert len(told) > 50 and set(told.values()) == {"True"}, told


NEEDS = {
    "source-missing": lambda root: shutil.rmtree(root / "landing"),
    "transform-missing": lambda root: _transform(root, None),
    "processor-missing": lambda root: _processor(root),
    "secret-missing": lambda root: _sink(root, "postgresql://u:${secret:NOT_THERE}@127.0.0.1:1/d"),
}
_FOLDED = """
  folded:
    source: {table: orders}
    processor:
      class: orders.Basket
      group_by: [status]
      order_by: [updated_at]
      gap: 1 day
      columns: {n: bigint}
      state: {n: bigint}
"""
WITHOUT_FUNCTION = ["x = 1\n", "def other(df): ...\n", "def tidy(df:\n", "import tidied as other\n"]
WITH_FUNCTION = [
    "def tidy(df): ...\n",
    "from elsewhere import tidy\n",
    "tidy = print\n",
    "if 1:\n    def tidy(df): ...\n",
    "raise SystemExit\n\n\ndef tidy(df): ...\n",  # it is read, not run
]


def _transform(root: Path, text: str | None) -> None:
    path = root / "dags" / "pipelines" / "orders.yaml"
    path.write_text(
        path.read_text().replace("    target:", "    transform: orders.tidy\n    target:", 1)
    )
    module = root / "jobs" / "transforms" / "orders.py"
    module.write_text(text) if text is not None else module.unlink()


def _processor(root: Path) -> None:
    path = root / "dags" / "pipelines" / "orders.yaml"
    path.write_text(path.read_text().rstrip() + _FOLDED)


def _sink(root: Path, url: str) -> None:
    path = root / "dags" / "pipelines" / "orders.yaml"
    asked = f'sinks: {{alerts: {{postgres: {{url: "{url}", table: alerts, timeout: 1}}}}}}'
    path.write_text(path.read_text().replace("    target:", f"    {asked}\n    target:", 1))


def test_sinks_are_asked_where_validate_is_strict(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _sink(project, "postgresql://u@127.0.0.1:1/d")
    assert typed(capsys, "validate", "orders") == (0, "orders: valid\n", "")
    code, out, _ = typed(capsys, "validate", "orders", "--strict", "--json")
    assert code == 78 and [error["code"] for error in json.loads(out)["errors"]] == [
        "sink-unreachable"
    ]


@pytest.mark.parametrize("code", NEEDS)
def test_what_this_machine_lacks_is_a_warning_and_strict_makes_it_an_error(
    project: Path, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    NEEDS[code](project)
    exit_code, out, err = typed(capsys, "validate", "orders")
    assert (exit_code, out) == (0, "orders: valid\n")
    assert err.startswith(f"warning: {code}: {project / 'dags' / 'pipelines' / 'orders.yaml'}:")
    exit_code, out, err = typed(capsys, "validate", "orders", "--json")
    found = json.loads(out)
    assert (exit_code, err) == (0, "") and found["valid"] == ["orders"] and found["errors"] == []
    assert [warning["code"] for warning in found["warnings"]] == [code]
    exit_code, out, err = typed(capsys, "validate", "--strict")
    assert (exit_code, out) == (78, "no valid pipeline\n") and err.startswith(f"{code}: ")
    exit_code, out, _ = typed(capsys, "validate", "--strict", "--json")
    found = json.loads(out)
    assert (
        exit_code == 78
        and found["warnings"] == []
        and [error["code"] for error in found["errors"]] == [code]
    )


@pytest.mark.parametrize("text", [*WITHOUT_FUNCTION, *WITH_FUNCTION])
def test_a_transform_is_looked_up_without_being_run(
    project: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    _transform(project, text)
    code, _, err = typed(capsys, "validate", "orders")
    assert code == 0
    assert ("transform-missing" in err) == (text in WITHOUT_FUNCTION)


def test_a_pipeline_that_claims_what_another_does_is_refused_by_every_command(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = project / "dags" / "pipelines"
    (home / "other.yaml").write_text(
        (home / "orders.yaml").read_text().replace("pipeline: orders", "pipeline: other")
    )
    for name in ("orders", "other", "dags/pipelines/other.yaml"):
        code, _, err = typed(capsys, "plan", name)
        assert code == 78 and err.startswith("conflicting-pipelines")


def test_a_file_is_named_by_any_way_that_leads_to_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / "dags")
    assert directories.absolute("../landing/x.json") == str(project / "landing" / "x.json")


def test_an_unknown_pipeline_is_named_with_those_there_are(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = typed(capsys, "plan", "ordres", "--json")
    assert (code, out) == (78, "")
    error = json.loads(err)["error"]
    assert error["code"] == "pipeline-not-found" and "orders" in error["found"] and error["next"]


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(capsys, "validate", "--json-schema")
    assert code == 0 and json.loads(out)["title"] == "draindown pipeline"


def test_plan_shows_what_waits_and_why(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = typed(capsys, "plan", "orders")
    assert code == 0 and "waiting  1 file" in out and "drain    yes" in out
    code, out, _ = typed(capsys, "plan", "orders", "--json")
    assert json.loads(out)["flows"]["orders"]["plan"]["backlog"]["units"] == 1
    assert json.loads(out)["flows"]["orders"]["holder"] is None
    shared = LeaseSpec(mode="shared")
    with lease_of(spec.layout("orders"), shared, owner="me\x1b", run_id="r"):
        _, out, _ = typed(capsys, "plan", "orders")
        assert (
            "lease    held by me\\x1b (run r, process" in out and "epoch 1, heartbeat 1 seen" in out
        )


def test_the_root_is_the_nearest_above_that_has_pipelines(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = project / "landing" / "orders"
    assert context.nearest_root(deep) == project
    assert context.nearest_root(Path("/")) == Path("/")


def test_status_lists_every_flow_and_exits_zero(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = typed(capsys, "status")
    assert code == 0 and out.splitlines()[1].split()[:2] == ["orders/orders", "1"]
    for target in ("orders", "orders/orders", "dags/pipelines/orders.yaml/orders"):
        (told,) = json.loads(typed(capsys, "status", target, "--json")[1])
        assert told["waiting"]["units"] == 1 and told["verdict"] == "no run left a report yet"
        assert (told["published"], told["late"], told["quarantined"]) == (None, None, {})


@pytest.fixture
def second(project: Path) -> str:
    """A second flow of the pipeline, whose files are gone; its name."""
    path = project / "dags" / "pipelines" / "orders.yaml"
    flows = yaml.safe_load(path.read_text())
    broken = flows["flows"]["orders"] | {"source": {"files": "elsewhere/*.json", "format": "json"}}
    path.write_text(yaml.safe_dump(flows | {"flows": flows["flows"] | {"second": broken}}))
    return "second"


def test_the_status_of_other_flows_is_told_beside_one_that_is_broken(
    second: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = typed(capsys, "status")
    rows = [line.split() for line in out.splitlines()[1:]]
    assert code == 78 and (rows[0][:2], rows[1][:4]) == (
        ["orders/orders", "1"],
        [f"orders/{second}", "?", "?", "?"],
    )
    assert f"orders/{second}  source-missing: " in out and "mkdir -p" in out
    code, out, _ = typed(capsys, "status", "--json")
    well, broken = json.loads(out)
    assert (code, well["flow"], broken["flow"]) == (78, "orders", second)
    assert (well["waiting"]["units"], broken["waiting"]) == (1, None)
    assert broken["error"]["code"] == "source-missing"


def test_a_run_does_the_flows_before_one_that_cannot_be_planned(
    second: str, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "landing" / "orders" / "2026-01-01.json").unlink()
    monkeypatch.setitem(sys.modules, "draindown.spark.session", None)
    code, out, err = typed(capsys, "run", "orders")
    assert code == 78 and out.startswith("IDLE  orders/orders")
    assert f"FAILED  orders/{second}  plan: source-missing" in out and "next:" in out
    code, out, _ = typed(capsys, "run", "orders", "--json")
    found = json.loads(out)
    assert code == found["exit"] == 78
    assert [(one["flow"], one["outcome"]) for one in found["reports"]] == [
        ("orders", "idle"),
        (second, "failed"),
    ]
    code, out, err = typed(capsys, "run", f"orders/{second}")
    assert code == 78 and out == "" and "source-missing" in err


def test_what_a_run_left_out_is_in_its_plan(
    project: Path,
    spec: PipelineSpec,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (project / "landing" / "orders" / "2026-01-01.json").unlink()
    typed(capsys, "run", "orders", "--no-check", "--no-compact", "--json")
    run = store.runs(spec.layout("orders"))[0]
    found = store.read(spec.layout("orders"), run, "plan")
    assert (
        found is not None and found.plan is not None and found.plan.left_out == ("check", "compact")
    )


def test_an_idle_run_starts_no_jvm(
    project: Path,
    spec: PipelineSpec,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (project / "landing" / "orders" / "2026-01-01.json").unlink()
    monkeypatch.setitem(sys.modules, "draindown.spark.session", None)  # its import would fail
    code, out, _ = typed(capsys, "run", "orders")
    assert code == 0 and out.startswith("IDLE  orders/orders")
    code, out, _ = typed(capsys, "run", "orders", "--json")
    found = json.loads(out)
    assert found["exit"] == 0 and [step["outcome"] for step in found["reports"]] == ["idle"]
    assert len(store.runs(spec.layout("orders"))) == 2


@pytest.mark.parametrize(
    "words", ["run orders --max-duration soon", "gate waive orders x --note y --for ever"]
)
def test_a_time_that_is_none_is_usage(
    project: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    code, _, err = typed(capsys, *words.split())
    assert code == 2 and ("unit" in err or "duration" in err)


def _left_report(spec: PipelineSpec, run: str, **more: Any) -> None:
    fields = {
        "pipeline": "orders",
        "flow": "orders",
        "run_id": run,
        "step": "plan",
        "outcome": "idle",
    }
    ends = {"started_at": AT, "finished_at": AT, "plan": PlanPart(backlog=Backlog())}
    store.write(
        spec.layout(more.get("flow", "orders")), StepReport.model_validate(fields | ends | more)
    )


def test_report_shows_the_last_run_or_the_named_one(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"code": "lease-held", "tried": "t", "found": "f", "changed": "c", "next": ["wait"]}
    _left_report(spec, "first", outcome="failed", error=error)
    _left_report(spec, "second")
    assert typed(capsys, "report", "orders")[1].startswith("IDLE")
    code, out, _ = typed(capsys, "report", "orders", "--run", "first")
    assert code == 0 and out.startswith("FAILED") and "lease-held" in out
    listed = json.loads(typed(capsys, "report", "orders", "--list", "--json")[1])
    assert {row["run_id"] for row in listed} == {"first", "second"}
    code, _, err = typed(capsys, "report", "orders", "--run", "third")
    assert code == 78 and "no-report" in err and "second, first" in err


def test_report_takes_the_id_of_a_run_and_the_name_of_its_directory(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = ["scheduled__2026-01-01T00:00:00+00:00", "scheduled__2026-01-01T00_00_00+00_00"]
    for run in ids:
        _left_report(spec, run)
    listed = json.loads(typed(capsys, "report", "orders", "--list", "--json")[1])
    assert {row["run_id"] for row in listed} == set(ids)
    found = []
    for name in [*ids, *store.runs(spec.layout("orders"))]:
        code, out, _ = typed(capsys, "report", "orders", "--run", name, "--json")
        assert code == 0
        found += [step["run_id"] for step in json.loads(out)["reports"]]
    assert sorted(found) == sorted(ids * 2)


def test_report_lists_every_start_of_a_run_and_shows_the_newest(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"code": "lease-held", "tried": "t", "found": "f", "changed": "c", "next": ["wait"]}
    for start in ("a", "b"):
        _left_report(spec, "r", start=start, outcome="failed", error=error)
    _left_report(spec, "r", start="c")
    code, out, _ = typed(capsys, "report", "orders")
    assert code == 0 and out.startswith("IDLE") and "lease-held, 2 times" in out
    listed = json.loads(typed(capsys, "report", "orders", "--run", "r", "--json")[1])["reports"]
    assert [(one["start"], one["outcome"]) for one in listed] == [
        ("a", "failed"),
        ("b", "failed"),
        ("c", "idle"),
    ]


def test_a_run_with_one_start_of_each_step_is_listed_only_where_it_is_named(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    _left_report(spec, "r", start="only")
    assert "only" not in typed(capsys, "report", "orders")[1]
    assert "only" in typed(capsys, "report", "orders", "--run", "r")[1]


def test_the_refused_share_is_shown_and_waived_like_an_expectation(
    project: Path, spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "expects    quarantined_share" in typed(capsys, "gate", "show", "orders")[1]
    code, out, _ = typed(
        capsys, "gate", "waive", "orders", "quarantined_share", "--note", "a test of theirs"
    )
    assert code == 0 and "waived quarantined_share" in out
    assert "a test of theirs" in typed(capsys, "gate", "show", "orders")[1]
    assert typed(capsys, "gate", "waive", "orders", "quarantined_share", "--undo")[0] == 0


def test_audit_of_a_flow_that_never_ran(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = typed(capsys, "audit", "orders")
    assert (code, out) == (78, "") and "nothing-to-audit" in err


@pytest.mark.parametrize(("clean", "code"), [(True, 0), (False, 1)])
def test_audit_exits_with_findings(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    clean: bool,
    code: int,
) -> None:
    from draindown.audit.model import Audit, Residue

    found = Audit("orders", "orders", [] if clean else [Residue("lost-key", "id=1", "1", "2")])
    monkeypatch.setattr("draindown.audit.recount.audit", lambda *args, **more: found)
    ended, out, _ = typed(capsys, "audit", "orders", "--json")
    assert ended == code and json.loads(out)["clean"] is clean


@pytest.mark.parametrize(("residues", "code"), [([], 78), (["lost-key"], 1)])
def test_audit_looks_at_every_flow_although_one_has_no_table(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    residues: list[str],
    code: int,
) -> None:
    from draindown.audit import recount
    from draindown.audit.model import Audit, Residue

    path = project / "dags" / "pipelines" / "orders.yaml"
    document = yaml.safe_load(path.read_text())
    document["flows"] = dict.fromkeys(("a", "b", "c"), document["flows"]["orders"])
    path.write_text(yaml.safe_dump(document))
    real = recount.audit
    found = Audit("orders", "c", [Residue(kind, "id=1", "1", "2") for kind in residues])
    monkeypatch.setattr(
        recount,
        "audit",
        lambda spec, flow, **more: found if flow == "c" else real(spec, flow, **more),
    )
    ended, out, _ = typed(capsys, "audit", "orders", "--json")
    told = json.loads(out)
    assert (ended, told["clean"]) == (code, False)
    assert [flow.get("error", {}).get("code") for flow in told["flows"]] == [
        "nothing-to-audit",
        "nothing-to-audit",
        None,
    ]
    text = typed(capsys, "audit", "orders")[1]
    assert "orders/a  not audited\n  nothing-to-audit: " in text and "orders/c  " in text


def _refuse(spec: PipelineSpec) -> None:
    text = ("quarantine_id", "raw", "reason", "field", "detail", "kind", "run_id", "envelope")
    numbers = ("raw_length", "generation", "batch")
    row = (
        dict.fromkeys(text, "x")
        | dict.fromkeys(numbers, 1)
        | {"raw_bytes": None, "first_seen": AT, "quarantined_at": AT}
    )
    row |= {"origin": {"input": "x", "position": 1}, "arrived_at": AT}
    rows = [
        row | {"quarantine_id": "aa1", "raw": "=\x1b[2J"},
        row | {"quarantine_id": "bb2", "reason": "type"},
    ]
    delta.append(spec.layout("orders").tables.quarantine, pa.Table.from_pylist(rows))


def test_quarantine_lists_and_shows_encoded(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    _refuse(spec)
    code, out, _ = typed(capsys, "quarantine", "list", "orders")
    assert (
        code == 0 and "2 open of 2 quarantined" in out and "=\\x1b[2J" in out and "\x1b" not in out
    )
    some = typed(capsys, "quarantine", "list", "orders", "--reason", "x")[1]
    assert "bb2" not in some and "more with --limit" not in some and "more with --limit" not in out
    none = typed(capsys, "quarantine", "list", "orders", "--reason", "weather")[1]
    assert "none is meant by (reason weather)" in none and "none is meant" not in some + out
    assert (
        "1 shown; more with --limit"
        in typed(capsys, "quarantine", "list", "orders", "--limit", "1")[1]
    )
    assert "more with --limit" not in typed(capsys, "quarantine", "list", "orders")[1]
    code, out, _ = typed(capsys, "quarantine", "list", "orders", "--id", "aa")
    assert code == 0 and "raw            =\\x1b[2J" in out and "\x1b" not in out
    both = typed(capsys, "quarantine", "list", "orders", "--id", "aa", "--id", "bb")[1]
    assert "aa1" in both and "bb2" in both and "raw            " not in both
    assert "\x1b" not in typed(capsys, "quarantine", "list", "orders", "--json")[1]
    code, out, _ = typed(capsys, "quarantine", "list", "orders", "--id", "zz")
    assert code == 0 and "none is meant by (1 id)" in out
    assert quarantine.discard(spec.layout("orders"), ["aa1"], by="me", note="") == 1
    assert "aa1" not in typed(capsys, "quarantine", "list", "orders")[1]
    code, out, _ = typed(capsys, "quarantine", "list", "orders", "--id", "aa")
    assert code == 0 and "aa1" in out, "an id names its row whatever was decided about it"


def test_fields_that_the_contract_does_not_name_are_listed_until_it_does(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    _left_report(spec, "r")
    assert "DRIFT" not in typed(capsys, "report", "orders")[1]
    seen = {
        "generation": 1,
        "batch_kind": "drain",
        "batch": 0,
        "run_id": "r",
        "at": "2026-01-31T12:00:00+00:00",
    }
    known = next(iter(spec.flows["orders"].columns))
    fields = [
        schema_drift.Sighting(
            "new-field", name, **seen, input="/in/1.json", position=7, rows=3, type="int"
        )  # type: ignore[arg-type]
        for name in ("ga\x1bte", known)
    ]
    schema_drift.remember(spec.layout("orders"), fields)
    code, out, _ = typed(capsys, "report", "orders")
    header, row = out.split("\n\n")[-1].splitlines()
    assert code == 0 and header.split()[0] == "DRIFT"
    for said in ("new-field", "orders.ga\\x1bte", "int", "2026-01-31 12:00:00", "/in/1.json:7"):
        assert said in row
    code, out, _ = typed(capsys, "report", "orders", "--json")
    drift = json.loads(out)["drift"]
    assert [(row["flow"], row["name"]) for row in drift] == [("orders", "ga\x1bte")]
    code, out, _ = typed(capsys, "plan", "orders")
    assert "fields   1 field kept in _rescued_data: ga\\x1bte" in out
    code, out, _ = typed(capsys, "plan", "orders", "--json")
    assert [row["name"] for row in json.loads(out)["flows"]["orders"]["drift"]] == ["ga\x1bte"]


def test_quarantine_discard_needs_yes_and_prints_its_plan(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    _refuse(spec)
    layout = spec.layout("orders")
    code, out, err = typed(capsys, "quarantine", "discard", "orders", "--reason", "type")
    assert (code, out) == (2, "") and "discard 1 open row " in err and "--yes" in err
    assert quarantine.counts(layout).open == 2
    code, out, _ = typed(
        capsys, "quarantine", "discard", "orders", "--reason", "type", "--yes", "--json"
    )
    assert code == 0 and json.loads(out) == {"discarded": 1}
    assert (quarantine.counts(layout).open, quarantine.counts(layout).discarded) == (1, 1)


def test_gate_withdraw_refuses_what_needs_no_verdict(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = typed(capsys, "gate", "withdraw", "orders", "nonsense", "--yes")
    assert (
        (code, out) == (78, "")
        and "unknown-expectation" in err
        and "next:    draindown gate show orders" in err
    )


def test_quarantine_release_needs_yes(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    _refuse(spec)
    code, out, err = typed(capsys, "quarantine", "release", "orders")
    assert (code, out) == (2, "") and "release 2 open rows" in err
    assert typed(capsys, "quarantine", "release", "orders", "--reason", "none of it")[0] == 0


@pytest.mark.parametrize("words", [[], ["--note", "lost"]])
def test_input_discard_never_takes_a_part_for_all(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    layout = spec.layout("orders")
    parked.record(
        layout, [parked.Event("/in/a.gz", 5, 1, "parked", "corrupt-gzip", "is damaged")], AT
    )
    code, out, err = typed(capsys, "input", "discard", "orders", *words, "--yes")
    assert (code, out) == (2, "") and "--all" in err
    assert len(parked.open_files(layout)) == 1


@pytest.mark.parametrize("verb", ["discard", "release", "list"])
@pytest.mark.parametrize(
    "words", [["--reason", ""], ["--run", ""], ["--id", ""], ["--id", "a", "--id", ""]]
)
def test_a_choice_that_is_empty_chooses_nothing(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str], verb: str, words: list[str]
) -> None:
    """`--reason "$REASON"`, where nobody set it."""
    _refuse(spec)
    code, out, err = typed(
        capsys, "quarantine", verb, "orders", *words, *(["--yes"] if verb != "list" else [])
    )
    assert (code, out) == (2, "") and "it is empty" in err and words[0] in err
    assert quarantine.counts(spec.layout("orders")).open == 2


@pytest.mark.parametrize("verb", ["release", "discard"])
def test_a_choice_of_late_rows_that_is_empty_chooses_nothing(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    code, out, err = typed(capsys, "late", verb, "orders", "--id", "", "--yes")
    assert (code, out) == (2, "") and "it is empty" in err and "--id" in err


@pytest.mark.parametrize(("verb", "left"), [("retry", "retried"), ("discard", "discarded")])
def test_parked_files(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str], verb: str, left: str
) -> None:
    layout = spec.layout("orders")
    parked.record(
        layout, [parked.Event("/in/a.gz", 5, 1, "parked", "corrupt-gzip", "is damaged")], AT
    )
    assert "/in/a.gz" in typed(capsys, "input", "list", "orders")[1]
    words = ["input", verb, "orders", *(["--all"] if verb == "discard" else [])]
    assert typed(capsys, *words)[0] == 2
    assert len(parked.open_files(layout)) == 1
    assert typed(capsys, *words, "--yes")[0] == 0
    assert parked.latest(layout)["/in/a.gz"].state == left


def test_gate_waive_and_back(spec: PipelineSpec, capsys: pytest.CaptureFixture[str]) -> None:
    layout = spec.layout("orders")
    name = "expect_column_values_to_be_between:amount"
    code, out, _ = typed(
        capsys, "gate", "waive", "orders", name, "--note", "known", "--for", "2 days"
    )
    assert code == 0 and "known" in out
    assert waivers.waivers(layout)[name].until is not None
    code, out, _ = typed(capsys, "gate", "show", "orders")
    assert code == 0 and "published  none" in out and f"waived     {name} until" in out
    assert typed(capsys, "gate", "waive", "orders", name, "--undo")[0] == 0
    assert waivers.waivers(layout) == {}
    code, out, err = typed(capsys, "gate", "waive", "orders", name)
    assert (code, out) == (2, "") and "--note" in err
    code, _, err = typed(capsys, "gate", "waive", "orders", "nonsense", "--note", "x")
    assert code == 78 and "unknown-expectation" in err
    assert (
        json.loads(typed(capsys, "gate", "show", "orders", "--json")[1])["orders"]["waivers"] == {}
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GateFailed("gate-failed", tried="t", found="f"), 65),
        (TransientError("lease-held", tried="t", found="f"), 75),
        (DraindownError("other", tried="t", found="f"), 78),
        (RuntimeError("\x1b[2Jboom"), 70),
        (pa.ArrowInvalid("a file is gone"), 70),
        (DeltaError("a log is torn"), 70),
    ],
)
def test_errors_become_exit_codes(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
) -> None:
    def broken(*args: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(sys.modules["draindown.cli.plan"], "planned", broken)
    ended, out, err = typed(capsys, "plan", "orders")
    assert (ended, out) == (code, "") and "Traceback" not in err and "\x1b" not in err
    ended, _, err = typed(capsys, "plan", "orders", "--json")
    told = json.loads(err)["error"]
    assert ended == code and told["code"] == getattr(error, "code", "unforeseen")
    if code == 70:
        place = told["next"][1].split()[1]
        assert type(error).__name__ in Path(place).read_text()
        assert ("draindown doctor" in told["next"][0]) is not isinstance(error, RuntimeError)
        Path(place).unlink()


def test_several_flows_need_one_to_be_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / "dags" / "pipelines" / "orders.yaml"
    flow = "\n  second:\n    source: {files: x/*.json, format: json}\n    columns: {a: int}\n"
    path.write_text(path.read_text() + flow)
    code, _, err = typed(capsys, "quarantine", "discard", "orders")
    assert code == 2 and "say orders/orders or orders/second" in " ".join(err.split())
    code, _, err = typed(capsys, "plan", "orders/third")
    assert code == 78 and "unknown-flow" in err


DERIVED = """\
  by_status:
    source: {table: orders}
    query:
      keys: [status]
      sql: select status, count(*) as n from orders group by status
"""
LOOKS = {
    "plan": "plan orders",
    "status": "status orders",
    "input": "input list orders",
    "gate": "gate show orders",
    "doctor": "doctor orders",
    "validate": "validate orders",
    "quarantine": "quarantine list orders",
}


@pytest.mark.parametrize("words", LOOKS.values(), ids=LOOKS.keys())
def test_what_looks_at_a_pipeline_takes_derived_flows_along(
    project: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    path = project / "dags" / "pipelines" / "orders.yaml"
    path.write_text(path.read_text() + DERIVED)
    code, _, err = typed(capsys, *words.split())
    assert "derived-flow:" not in err and code in (0, 2), (code, err)


BRANCHES = {
    "a": {
        "source": {"files": "landing/a/*.json", "format": "json"},
        "columns": {"id": "string", "at": "timestamp"},
    },
    "b": {
        "source": {"files": "landing/b/*.json", "format": "json"},
        "columns": {"id": "string", "at": "timestamp"},
    },
    "of_a": {
        "source": {"table": "a"},
        "window": {"time": "at", "size": "1 hour", "measures": {"n": "count(*)"}},
    },
    "of_b": {
        "source": {"table": "b"},
        "window": {"time": "at", "size": "1 hour", "measures": {"n": "count(*)"}},
    },
    "of_of_a": {
        "source": {"table": "of_a"},
        "window": {"time": "window_start", "size": "1 day", "measures": {"n": "count(*)"}},
    },
}


@pytest.fixture
def branches(project: Path) -> Path:
    """A pipeline of two branches, without any files; its landing directories' parent."""
    path = project / "dags" / "pipelines" / "branches.yaml"
    path.write_text(yaml.safe_dump({"pipeline": "branches", "lake": "lake", "flows": BRANCHES}))
    for name in ("a", "b"):
        (project / "landing" / name).mkdir()
    return project / "landing"


def test_a_flow_that_cannot_be_planned_stops_only_those_that_read_it(
    branches: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (branches / "a").rmdir()
    monkeypatch.setitem(sys.modules, "draindown.spark.session", None)
    code, out, _ = typed(capsys, "run", "branches", "--json")
    found = json.loads(out)
    assert code == found["exit"] == 78
    told = {one["flow"]: one["outcome"] for one in found["reports"]}
    assert told == {"a": "failed", "b": "idle", "of_b": "idle"}
    assert found["not_run"].keys() == {"of_a", "of_of_a"}
    code, out, _ = typed(capsys, "run", "branches")
    assert code == 78 and "NOT RUN  branches/of_a  it reads what a did not get to" in out


@pytest.mark.parametrize(
    ("fails", "error", "ran", "not_run"),
    [
        (("a", "drain"), "table-mismatch", ["a", "b", "of_b"], {"of_a", "of_of_a"}),
        (("a", "check"), "gate-failed", ["a", "b", "of_b"], {"of_a", "of_of_a"}),
        (("of_a", "check"), "gate-failed", ["a", "b", "of_a", "of_b"], {"of_of_a"}),
        (("a", "compact"), "vacuum-below-floor", ["a", "b", "of_a", "of_b", "of_of_a"], set()),
        (("a", "compact"), "out-of-memory", ["a", "b", "of_a", "of_b", "of_of_a"], set()),
        (("of_of_a", "drain"), "lease-held", ["a", "b", "of_a", "of_b", "of_of_a"], set()),
        *(
            (("a", "drain"), code, ["a"], {"b", "of_a", "of_b", "of_of_a"})
            for code in ("stopped", "jvm-gone", "crash of Spark", "out-of-memory")
        ),
        (("a", "check"), "crash", ["a", "b", "of_b"], {"of_a", "of_of_a"}),
        (("b", "drain"), "crash", ["a", "b", "of_a", "of_of_a"], {"of_b"}),
    ],
)
def test_a_step_that_fails_stops_its_branch_and_one_that_takes_spark_along_the_run(
    branches: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fails: tuple[str, str],
    error: str,
    ran: list[str],
    not_run: set[str],
) -> None:
    from draindown.planning import plan
    from draindown.spark import session
    from draindown.spark.job import main

    every = PlanPart(backlog=Backlog(units=1), batches=1, drain=True, check=True, compact=True)
    monkeypatch.setattr(plan, "plan", lambda request, now, source=None: (every, []))
    steps: list[tuple[str, str]] = []

    def attempt(request: Request, work: Any, **_: Any) -> tuple[StepReport, Exit]:
        steps.append((request.flow, request.step))
        if steps[-1] != fails:
            return of(request, now(), "done"), Exit.DONE
        found = {"code": error.partition(" ")[0], "found": "so it is"}
        return of(request, now(), "failed", error=found), Exit.NEEDS_PERSON

    monkeypatch.setattr(main, "attempt", attempt)
    monkeypatch.setattr(session, "is_lost", lambda: error == "crash of Spark")
    code, out, _ = typed(capsys, "run", "branches", "--json")
    assert code == Exit.NEEDS_PERSON and json.loads(out)["not_run"].keys() == not_run
    assert list(dict.fromkeys(flow for flow, _ in steps)) == ran
    last = [step for flow, step in steps if flow == fails[0]][-1]
    assert last == fails[1]
    compacted = [step == "compact" for _, step in steps]
    assert compacted == sorted(compacted), "compaction comes when every flow is drained and judged"


def test_a_flow_whose_suite_is_broken_stops_only_those_that_read_it(
    branches: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = branches.parent / "dags" / "pipelines" / "branches.yaml"
    spec = yaml.safe_load(path.read_text())
    spec["flows"]["a"]["expectations"] = "torn"
    path.write_text(yaml.safe_dump(spec))
    (branches.parent / "expectations" / "torn.json").write_text("{")
    monkeypatch.setitem(sys.modules, "draindown.spark.session", None)
    code, out, _ = typed(capsys, "run", "branches", "--json")
    found = json.loads(out)
    assert code == found["exit"] == 78
    assert {one["flow"]: one["outcome"] for one in found["reports"]} == {
        "a": "failed",
        "b": "idle",
        "of_b": "idle",
    }


@pytest.mark.parametrize(
    ("command", "within", "ran", "not_run"),
    [
        ("run", ("a", "drain"), [("a", "drain")], {"b", "of_a", "of_b", "of_of_a"}),
        ("run", ("a", "check"), [("a", "drain"), ("a", "check")], {"b", "of_a", "of_b", "of_of_a"}),
        ("compact", ("a", "compact"), [("a", "compact")], {"b", "of_a", "of_b", "of_of_a"}),
    ],
)
def test_after_a_signal_no_step_begins(
    branches: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    within: tuple[str, str],
    ran: list[tuple[str, str]],
    not_run: set[str],
) -> None:
    from draindown.cli import running
    from draindown.planning import plan

    every = PlanPart(backlog=Backlog(units=1), batches=1, drain=True, check=True, compact=True)
    monkeypatch.setattr(plan, "plan", lambda request, now, source=None: (every, []))
    steps: list[tuple[str, str]] = []

    def work(_: Any, request: Request, *__: Any) -> StepReport:
        steps.append((request.flow, request.step))
        if steps[-1] == within:
            os.kill(os.getpid(), signal.SIGTERM)
        return of(request, now(), "done")

    monkeypatch.setattr(running, "_work", work)
    code, out, _ = typed(capsys, command, "branches", "--json")
    assert steps == ran and code == Exit.DONE and json.loads(out)["not_run"].keys() == not_run


@pytest.mark.parametrize("words", ["status", "plan orders", "run orders"])
def test_an_error_of_one_flow_that_nobody_foresaw_hides_no_other(
    second: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    tmp_path: Path,
) -> None:
    from draindown.planning import plan
    from draindown.runs import starts

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    newest = starts.newest
    idle = PlanPart(backlog=Backlog(units=1), batches=0, drain=False, check=False, compact=False)

    def plans(request: Request, *_: Any) -> Any:
        if request.flow == second:
            raise OSError(36, "File name too long")
        return idle, []

    def reports(layout: Any, run: str) -> Any:
        if layout.flow == second:
            raise KeyError("seconds")
        return newest(layout, run)

    monkeypatch.setattr(plan, "plan", plans)
    monkeypatch.setattr(starts, "newest", reports)
    for flow in ("orders", second):
        _left_report(context.Setting(Path.cwd(), os.environ).spec("orders"), "r1", flow=flow)
    code, out, err = typed(capsys, *words.split())
    assert code == (78 if words == "status" else 70)  # its source is missing, too
    assert "orders/orders" in out and "unforeseen" in out + err and "Traceback" not in out + err


def test_a_pipeline_of_derived_flows_has_no_refused_rows_to_decide_about(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    per = {"keys": ["status"], "sql": "select status, count(*) as n from orders group by status"}
    flow = {"source": {"table": "orders"}, "query": per}
    path = project / "dags" / "pipelines" / "reports.yaml"
    lake = yaml.safe_load((path.parent / "orders.yaml").read_text())["lake"]
    path.write_text(
        yaml.safe_dump({"pipeline": "reports", "lake": lake, "flows": {"by_status": flow}})
    )
    for words in ("quarantine release", "quarantine discard", "input retry"):
        code, _, err = typed(capsys, *words.split(), "reports", "--yes")
        assert code == 2 and "all of them are derived" in " ".join(err.split())


def test_a_waiver_for_longer_than_there_is_time_is_usage(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("gate", "waive", "orders", "x", "--note", "r", "--for", "9999999 days")
    code, _, err = typed(capsys, *words)
    assert code == 2 and "there is no such time" in err
