"""What an attacker would try, by the numbers of docs/security.md; what needs Airflow or Spark is
tested beside them.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import shlex
import stat
import subprocess
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.base.formatting import printable, printable_lines
from draindown.cli.output import Output
from draindown.cli.program import main
from draindown.config.lease import LeaseSpec
from draindown.config.loader import load
from draindown.doctor.model import Examination, Symptom
from draindown.gate import page as gate_page
from draindown.gate import suite, waivers
from draindown.lake.home import FlowHome, safe_name
from draindown.launch.settings import settings
from draindown.pages import overview
from draindown.pages.overview import FlowView, RunView
from draindown.recovery.opening import lease_of
from draindown.runs import store
from draindown.runs.card import card
from draindown.runs.report import (
    Backlog,
    CheckPart,
    CompactPart,
    DrainPart,
    Expectation,
    PlanPart,
    StepReport,
)
from draindown.runs.request import Request, Step

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("src", "jobs", "dags", "plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</pre></td></table><h1>published</h1>",
    "{{ 7 * 7 }}{% for x in () %}",
    "javascript:alert(1)",
    "&lt;b&gt;&#60;i&#62;",
)
TERMINAL = "\x1b[2J\x1b]0;owned\x07\r\nOK  p/f  drained\x9b31m\u202e\u2028\x00\x08"

PIPELINE = """\
pipeline: p
lake: {lake}
flows:
  f:
    source: {{files: in/*, format: json}}
    columns: {{id: string}}
"""


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    return FlowHome(str(tmp_path / "lake"), "p", "f", "f")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one flow."""
    (tmp_path / "dags/pipelines").mkdir(parents=True)
    (tmp_path / "dags/pipelines/p.yaml").write_text(PIPELINE.format(lake=tmp_path / "lake"))
    (tmp_path / "in").mkdir()
    return tmp_path


def reports(text: str, run_id: str = "r") -> list[StepReport]:
    """Every step's report with `text` wherever a report holds text."""
    at = now()
    error = dict.fromkeys(("code", "tried", "found", "changed"), text) | {"next": [text, text]}
    batch: dict[str, Any] = dict.fromkeys(
        ("inputs", "records", "applied", "superseded", "duplicate", "quarantined"), 1
    )
    batch |= {
        "generation": 1,
        "batch": 0,
        "seconds": 1.0,
        "kind": text,
        "reasons": {text: 3},
        "max_sequence": text,
    }
    judged = [
        Expectation(
            name=text,
            success=False,
            waived=waived,
            scope="changed",
            unexpected=1,
            judged=9,
            detail=text,
        ).model_copy(update={"sample": [text, {text: text}, [text], None, 1.5] * 2})
        for waived in (False, True)
    ]
    parts: dict[str, Any] = {
        "plan": PlanPart(
            backlog=Backlog(units=1), replay=text, reasons={"drain": text, text: text}
        ),
        "drain": DrainPart(
            generation=1, replay=text, bound=text, batches=[batch], totals={"records": 1}
        ),
        "check": CheckPart(
            version=2, published_before=1, changed_rows=9, expectations=judged, page=text
        ),
        "compact": CompactPart(evidence=text, partitions=[text], files_before=2),
    }
    findings = [Finding(kind="parked", subject=text, detail=text, next=text) for _ in range(2)]
    named: dict[str, Any] = {
        "pipeline": text,
        "flow": text,
        "run_id": run_id,
        "outcome": "failed",
        "findings": findings,
    }
    return [
        StepReport(
            step=step, started_at=at, finished_at=at, error=error, **named, **{step: parts[step]}
        )
        for step in get_args(Step)
    ]


class _Structure(HTMLParser):
    """The elements and attributes of a page, without text and without what ids and links are
    called.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(
            (tag, *(name if name in ("id", "href") else f"{name}={value}" for name, value in attrs))
        )

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}",))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", data))


def flows_page(text: str) -> str:
    steps = reports(text, run_id=text)
    batches = [row for step in steps if step.drain for row in step.drain.batches]
    run = RunView(text, text, card(steps), batches)
    fine = FlowView(
        text, text, text, waiting=text, published=text, open_rows={text: 3}, runs=[run, run]
    )
    return overview.render([fine, FlowView(text, text, text, problem=text)], [text])


def page_of_gate(text: str) -> str:
    part = next(step.check for step in reports(text) if step.check)
    named = dict.fromkeys(("pipeline", "flow", "table", "run_id", "at"), text)
    return gate_page.render({"verdict": "failed", **named, **part.model_dump(mode="json")})


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("page", [flows_page, page_of_gate])
def test_s9_no_element_and_no_attribute_of_a_page_comes_from_data(
    page: Callable[[str], str], hostile: str
) -> None:
    harmless, attacked = _Structure(page("x")).found, _Structure(page(hostile)).found
    assert attacked == harmless
    assert not {"script", "img", "iframe", "form"} & {tag for tag, *_ in attacked}
    assert hostile not in page(hostile) or not set("<>\"'&") & set(hostile)


def test_s9_the_parser_would_see_an_injection() -> None:
    assert _Structure(f"<p>{HOSTILE[0]}</p>").found != _Structure("<p>x</p>").found
    assert _Structure('<p title="' + HOSTILE[1]).found != _Structure('<p title="x">').found


def test_s10_a_card_and_a_page_of_doctor_are_lines_that_no_terminal_obeys() -> None:
    shown = card(reports(TERMINAL, run_id=TERMINAL))
    harmless = re.sub(r"\S", "x", printable(TERMINAL))
    assert len(shown.splitlines()) == len(card(reports(harmless, run_id=harmless)).splitlines())
    sick = Symptom("code", "wrong", "part", TERMINAL, TERMINAL)
    health = str(Examination("p/f", {"part": TERMINAL}, [sick], [TERMINAL]))
    for text in (shown, health):
        assert not [c for c in text if c != "\n" and not c.isprintable()]
    assert not any(line.startswith("OK") for line in shown.splitlines())


def test_s10_errors_are_printed_without_obeying_them(capsys: pytest.CaptureFixture[str]) -> None:
    error = TerminalError(
        "some-code", tried=TERMINAL, found=TERMINAL, changed=TERMINAL, next=TERMINAL
    )
    Output().error(error)
    Output(as_json=True).error(error)
    said = capsys.readouterr().err
    assert not [c for c in said if c != "\n" and not c.isprintable()]


ODD = (
    "a b",
    "it's",
    "a\u200cb",
    "\u202e'x\u200d'\\",
    "\u200d\\n",
    "tab\t\x85\xad",
    "no\udcff\udc80",
    "\U000e0001",
    "$x`y`",
)


@pytest.mark.parametrize("word", [*ODD, "/".join(ODD)])
def test_a_command_that_an_error_prints_means_the_same_to_bash(word: str) -> None:
    error = TerminalError(
        "some-code", tried="", found="", next=f"printf %s {shlex.quote(word)} end   # don't"
    )
    line = printable_lines(str(error)).splitlines()[-1]
    assert line.isprintable()
    environ = {"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", "-c", line.partition("next:")[2]], env=environ, capture_output=True, check=True
    )
    assert os.fsdecode(done.stdout) == f"{word}end"


@pytest.mark.parametrize(
    "run_id",
    [
        "../../../../outside",
        "/etc",
        "..",
        ".",
        "",
        "a/../../b",
        "x\x00y",
        "~",
        "%2e%2e%2f",
        "a\\..\\b",
        "r\n",
        "…/x" * 200,
    ],
)
def test_s3_no_run_id_leads_out_of_its_directory(layout: FlowHome, run_id: str) -> None:
    for path, home in (
        (layout.start(run_id, "drain").report.path, f"{layout.home}/reports"),
        (layout.start("r", "drain", run_id).report.path, f"{layout.home}/reports"),
        (layout.validations(run_id, "s") + "/x", f"{layout.home}/validations/{safe_name(run_id)}"),
        (layout.validations("r", run_id) + "/x", f"{layout.home}/validations/r"),
    ):
        assert Path(os.path.normpath(path)).parent.parent == Path(home)
        assert len(Path(path).parent.name.encode()) <= 255


def test_s3_a_report_outside_the_reports_is_not_shown(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = FlowHome(str(project / "lake"), "p", "f", "f")
    store.write(layout, reports("planted")[1])
    outside = Path(layout.home, "drain.json")
    outside.write_text(Path(layout.start("r", "drain").report.path).read_text())
    assert main(["--root", str(project), "report", "p", "--run", "r"]) == 0
    assert "planted" in capsys.readouterr().out
    for run_id in ("..", "r/../..", f"{project}/lake/_draindown/p/f"):
        assert main(["--root", str(project), "report", "p", "--run", run_id]) == 78
        assert "planted" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pipeline: p", "pipeline: ../p"),
        ("  f:", "  ../f:"),
        ("  f:", "  f.:"),
        ("lake: ", "lake: in/../../"),
        ("format: json}", "format: json}\n    target: {table: ../../x}"),
        ("format: json}", "format: json}\n    target: {table: 'delta.`/etc`'}"),
        ("format: json}", "format: json}\n    target: {table: 'file:///x'}"),
        ("format: json}", "format: json}\n    expectations: ../../etc/passwd"),
        ("format: json}", "format: json}\n    transform: ../../etc.passwd"),
        ("format: json}", "format: json}\n    transform: os..system"),
        ("format: json}", "format: json}\n    transform: /etc/x.tidy"),
        ("format: json}", "format: json}\n    rules: {'a`; drop table x': id is null}"),
        (
            "format: json}",
            "format: json}\n    rules: {a: \"reflect('java.lang.Runtime', 'getRuntime') is null\"}",
        ),
        ("{id: string}", "{'id` string, `x': string}"),
        ("{id: string}", "{id: 'string) using delta location (x'}"),
        ("in/*", "s3a://other/*"),
        ("in/*", '"in/*\\0"'),
    ],
)
def test_s3_s4_names_that_lead_elsewhere_are_refused(project: Path, old: str, new: str) -> None:
    path = project / "dags/pipelines/p.yaml"
    load(path, {})
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(TerminalError) as caught:
        load(path, {})
    assert caught.value.code == "invalid-pipeline"


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch {marker}']",
        "pipeline: !!python/object/new:os.system ['touch {marker}']",
        "pipeline: p\nlake: !!python/name:os.system\nflows: {{}}",
        "pipeline: p\npipeline: q\nlake: x\nflows: {{}}",
        "a: &a [x, x]\n"
        + "".join(
            f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}]\n"
            for p, c in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "a: " + "[" * 100_000,
        "x" * (50 * 1024**2),
    ],
    ids=["apply", "new", "name", "twice", "laughs", "deep", "big"],
)
def test_s6_yaml_makes_no_objects_and_has_bounds(tmp_path: Path, text: str) -> None:
    marker, path = tmp_path / "marker", tmp_path / "p.yaml"
    path.write_text(text.replace("{marker}", str(marker)).replace("{{}}", "{}"))
    with pytest.raises(TerminalError) as caught:
        load(path, {})
    assert caught.value.code == "invalid-pipeline"
    assert not marker.exists()


def _request(project: Path) -> Request:
    spec = load(project / "dags/pipelines/p.yaml", {})
    return Request(spec=spec, flow="f", step="drain", run_id="r", root=str(project))


def _argument(content: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(content)).decode()


def _changed(request: Request, **fields: Any) -> str:
    return _argument(json.dumps(json.loads(request.model_dump_json()) | fields).encode())


def test_a_request_survives_its_own_encoding(project: Path) -> None:
    request = _request(project)
    assert Request.decode(request.encode()) == request
    assert Request.decode(_changed(request)) == request


@pytest.mark.parametrize(
    "fields",
    [
        {"flow": "../../etc"},
        {"flow": "g"},
        {"step": "rm"},
        {"version": 2},
        {"callback": "os.system"},
        {"replay": {"since": "2026-01-01T00:00:00", "until": "2026-01-02T00:00:00"}},
        {"replay": {"since": "soon"}},
        {"replay": {"units": ["a"], "code": "x"}},
        {"replay": {"units": ["a"]}, "quarantine_ids": ["b"]},
        {"max_batches": "1; touch x"},
    ],
)
def test_s1_a_request_that_nobody_made_is_refused(project: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(TerminalError) as caught:
        Request.decode(_changed(_request(project), **fields))
    assert caught.value.code == "bad-request"


def test_a_field_that_no_request_has_is_named_with_the_nearest(project: Path) -> None:
    with pytest.raises(TerminalError) as caught:
        Request.decode(_changed(_request(project), max_batchs=3))
    assert caught.value.code == "bad-request"
    assert caught.value.found == "a request has no field 'max_batchs'; did you mean 'max_batches'?"


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "x",
        "--conf",
        "é",
        _argument(b"[" * 4_000_000),
        _argument(b" " * 200_000_000),
        _argument(b"\xff{}"),
        "QUJD",
    ],
    ids=["empty", "short", "option", "ascii", "deep", "bomb", "bytes", "plain"],
)
def test_s11_a_request_is_decoded_within_bounds(argument: str) -> None:
    with pytest.raises(TerminalError) as caught:
        Request.decode(argument)
    assert caught.value.code == "bad-request"
    assert len(caught.value.found) < 1000


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def _dangers(text: str) -> list[str]:
    """What a piece of source does that nothing here may do."""
    tree, found = ast.parse(text), list[str]()
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [name for name in names if name.split(".")[0] in _MODULES]
    for name, call in _calls(tree):
        shell = any(
            word.arg == "shell" and ast.unparse(word.value) != "False" for word in call.keywords
        )
        if name in _FUNCTIONS or shell or (name.startswith("yaml.") and "load" in name):
            found.append(name)
    return found


_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "telnetlib", "xmlrpc"}
_FUNCTIONS = {
    "eval",
    "exec",
    "compile",
    "os.system",
    "os.popen",
    "tempfile.mktemp",
    "__import__",
    "pickle.loads",
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_s1_s7_nothing_pickles_evaluates_or_asks_a_shell(path: Path) -> None:
    assert _dangers(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from dill import load",
        "eval('1')",
        "subprocess.run('x', shell=True)",
        "yaml.load(x)",
    ],
)
def test_s7_the_search_finds_what_it_looks_for(text: str) -> None:
    assert _dangers(text)


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_s14_what_a_flow_keeps_is_for_its_owner_whatever_the_umask(
    layout: FlowHome, umask: int
) -> None:
    before = os.umask(umask)
    try:
        with lease_of(layout, LeaseSpec(), owner="me", run_id="r"):
            path = store.write(layout, reports("x")[1])
        Path(layout.validations("r", "s")).mkdir(parents=True)
        waivers.waive(layout, "expectation", by="me", reason="known")
    finally:
        os.umask(before)
    for private in (layout.home, layout.waivers):
        assert stat.S_IMODE(Path(private).stat().st_mode) == 0o700
    (waived,) = Path(layout.waivers).iterdir()
    assert stat.S_IMODE(waived.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    for place in (Path(layout.home).parent, Path(layout.home).parent.parent):
        assert not stat.S_IMODE(place.stat().st_mode) & 0o022


def test_s14_no_temporary_file_has_a_name_that_can_be_guessed() -> None:
    for path in SOURCES:
        assert "/tm" + "p/" not in path.read_text(), path


def test_s13_a_driver_listens_on_this_machine_only_and_shows_no_page() -> None:
    # `make_setting` finds jars where set-up put them; which they are does not matter here
    conf = _settings()
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.authenticate"] == "true"
    assert {conf["spark.driver.host"], conf["spark.driver.bindAddress"]} == {"127.0.0.1"}
    assert "secret" in conf["spark.redaction.regex"]


def _settings() -> dict[str, str]:
    return dict(settings("local[*]"))


@pytest.fixture(autouse=True)
def _jars(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = tmp_path_factory.mktemp("jars")
    kafka = (
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
        "kafka-clients",
        "commons-pool2",
    )
    for name in ("delta-spark_4.1_2.13", "delta-storage", *kafka):
        (jars / f"{name}-1.0.0.jar").touch()
    monkeypatch.setenv("DRAINDOWN_JARS", str(jars))


_NULL = {"type": "expect_column_values_to_not_be_null"}


@pytest.mark.parametrize(
    "config",
    [
        {
            "type": "unexpected_rows_expectation",
            "kwargs": {"unexpected_rows_query": "select * from {batch}"},
        },
        {
            "type": "expect_query_results_to_match_comparison",
            "kwargs": {"base_query": "x", "comparison_query": "y"},
        },
        {
            **_NULL,
            "kwargs": {
                "column": "a",
                "row_condition": "java_method('java.lang.System', 'exit', 1) = 1",
            },
        },
        {**_NULL, "kwargs": {"column": "a", "row_condition": "`reflect`('x', 'y') = 1"}},
        {**_NULL, "kwargs": {"column": "a", "row_condition": "a in (select 1 from json.`/etc`)"}},
        {**_NULL, "kwargs": {"column": "a", "row_condition": "a = '${env:HOME}'"}},
        {"type": "x", "kwargs": {"json_schema": {"anyOf": [{"$ref": "file:///etc/passwd"}]}}},
        {"type": "x", "kwargs": {"json_schema": '{"$ref": "http://127.0.0.1/x"}'}},
    ],
)
def test_a_suite_that_asks_for_code_or_files_is_not_judged(config: dict[str, Any]) -> None:
    assert suite.unsafe(config)


@pytest.mark.parametrize(
    "kwargs",
    [
        {
            "column": "query",
            "row_condition": "a > 1 and reflect is not null and at < current_date()",
        },
        {
            "column": "a",
            "row_condition": 'col("a").notNull()',
            "condition_parser": "great_expectations",
        },
        {
            "column": "a",
            "json_schema": {"$ref": "#/definitions/x", "definitions": {"x": {"type": "string"}}},
        },
        {"column": "a", "regex": "select .*; --"},
        {},
    ],
)
def test_a_suite_of_plain_data_is_judged(kwargs: dict[str, Any]) -> None:
    assert suite.unsafe({**_NULL, "kwargs": kwargs}) == ""
    assert suite.unsafe(_NULL) == ""
