"""What the documents say is there is there: commands, error codes, links, make targets, tests,
versions.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from draindown.cli.program import app
from draindown.cli.quarantine import HEADER
from draindown.config.derived import KINDS
from draindown.config.sinks import SINKS
from draindown.flow.quarantine import COLUMNS as QUARANTINE
from draindown.flow.quarantine import RESOLUTIONS
from draindown.lake.flow_tables import flow_tables
from draindown.lake.home import FlowHome
from draindown.ledger.inputs import SCHEMA as INPUTS
from draindown.ledger.rows import ACCOUNT
from draindown.ledger.table import SCHEMA as LEDGER
from draindown.runs.card_parts import APPLIED, FATES
from draindown.sources.files.parked import _SCHEMA as PARKED

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
)
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
TEXTS = dict(zip(NAMES, (path.read_text() for path in DOCUMENTS), strict=True))
EACH = pytest.mark.parametrize("name", NAMES)

_ERRORS = {
    "TerminalError",
    "TransientError",
    "GateFailed",
    "Refused",
    "Crash",
    "DraindownError",
    "Loss",
    "_error",
    "input_gone",
}
_CODE = re.compile(r"[a-z]+(-[a-z]+)*")


def _fences(text: str) -> str:
    return "\n".join(re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))


def _prose(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def _commands(text: str) -> list[str]:
    lines = re.findall(
        r"^ *(?:(?:[A-Z_]+=\S+|&&|\.venv/bin/) ?)*(draindown .*)$", _fences(text), re.MULTILINE
    )
    lines += re.findall(r"&& (draindown [^&\n]*)", _fences(text))
    lines += re.findall(r"`(?:[A-Z_]+=\S+ )*(draindown [^`\n]+)`", _prose(text))
    return lines


def _words(command: str) -> list[str]:
    """The words a shell would pass; `[--option X]` and `a | b` of a synopsis are not for typing."""
    plain = re.split(r"  +#|\s[>|]\s| && ", command)[0]
    return shlex.split(plain)[1:]


def _synopsis(command: str) -> bool:
    return "[" in command or "|" in command.split("#")[0]


@pytest.mark.parametrize("name", [name for name in NAMES if _commands(TEXTS[name])])
def test_every_command_parses(name: str) -> None:
    wrong = []
    for command in _commands(TEXTS[name]):
        if _synopsis(command):
            continue
        problem = _problem(_words(command))
        if problem:
            wrong.append(f"{command}: {problem}")
    assert not wrong


@pytest.mark.parametrize(
    "command", ["draindown audit flights --fast", "draindown quarantine rename x", "draindown run"]
)
def test_a_command_that_does_not_parse_is_found(command: str) -> None:
    assert _problem([*_words(command), "a", "b"] if command == "draindown run" else _words(command))


@cache
def _program() -> Any:
    return typer.main.get_command(app)


def _problem(words: list[str]) -> str | None:
    """What the command line says about these words, without doing what they ask for."""
    here = _program()
    while words[:1] in (["--root"], ["--env"]):
        words = words[2:]
    while words and words[0] in getattr(here, "commands", {}):
        here, words = here.commands[words[0]], words[1:]
    if hasattr(here, "commands"):
        return f"no command {words[0]}" if words and not words[0].startswith("-") else None
    if not words:
        return None  # named in a sentence
    try:
        here.make_context(here.name, list(words), resilient_parsing=False)
    except Exception as error:  # noqa: BLE001 - the parser's errors; their class moves with the library
        return str(error)
    return None


def _sources() -> Iterator[ast.AST]:
    for folder in ("src", "scripts", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            yield ast.parse(path.read_text())


@cache
def _codes() -> set[str]:
    found: set[str] = set()
    for node in (node for tree in _sources() for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and node.args and _called(node) in _ERRORS:
            found |= _texts(node.args[0])
        elif (
            isinstance(node, ast.Assign)
            and _is_named(node, "_CAUSES")
            and isinstance(node.value, ast.Tuple)
        ):
            # set-up tells pip's failures apart by a table
            found |= {
                code
                for row in node.value.elts
                if isinstance(row, ast.Tuple)
                for code in _texts(row.elts[0])
            }
    return found


def _called(call: ast.Call) -> str:
    function = call.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _is_named(node: ast.Assign, name: str) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == name


def _texts(node: ast.expr) -> set[str]:
    """String constants that an expression may come out as; not those it compares or joins with."""
    if isinstance(node, ast.IfExp):
        return _texts(node.body) | _texts(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_every_error_code_is_in_the_runbook() -> None:
    codes = _codes()
    assert {"lease-held", "checkpoint-damaged", "java-broken", "no-network", "gate-failed"} <= codes
    assert all(_CODE.fullmatch(code) for code in codes)
    assert not {code for code in codes if f"`{code}`" not in TEXTS["docs/runbook.md"]}


def test_the_runbook_explains_no_code_that_is_gone() -> None:
    headings = re.findall(r"^### (.*)$", TEXTS["docs/runbook.md"], re.MULTILINE)
    explained = {code for heading in headings for code in re.findall(r"`([a-z-]+)`", heading)}
    assert explained <= _codes()


@EACH
def test_every_relative_link_leads_somewhere(name: str) -> None:
    home = (ROOT / name).parent
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(TEXTS[name])):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (home / path).resolve() if path else ROOT / name
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert not broken


def _anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _prose(file.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EACH
def test_every_make_target_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    typed = re.findall(
        r"^\s*(?:\w+=\S+ )*make ([a-z][a-z0-9-]*)", _fences(TEXTS[name]), re.MULTILINE
    )
    typed += re.findall(r"`(?:[^`\n]* )?make ([a-z][a-z0-9-]*)[^`\n]*`", TEXTS[name])
    assert set(typed) <= targets


@EACH
def test_every_test_that_is_named_exists(name: str) -> None:
    for file, test in re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", TEXTS[name]):
        found = list((ROOT / "tests").rglob(file))
        assert found, file
        assert not test or any(f"def {test}(" in path.read_text() for path in found), (
            f"{file}::{test}"
        )


@EACH
def test_nothing_is_said_about_this_machine_or_a_package_index(name: str) -> None:
    # taken apart, or this file would hold what it looks for
    private = "|".join(
        ("/" + "work/", "/" + "tmp/", "/" + "root/", "py" + r"pi\b", "maven" + r"\.(?:org|com)")
    )
    found = re.search(rf"(?<![\w.])(?:{private})", TEXTS[name], re.IGNORECASE)
    assert not found, found
    assert "PLACEHOLDER" not in TEXTS[name]


@pytest.mark.parametrize("name", [name for name in NAMES if "/decisions/0" in name])
def test_a_decision_has_three_parts_and_a_place_in_the_list(name: str) -> None:
    assert re.findall(r"^\*\*(\w+)\.\*\*", TEXTS[name], re.MULTILINE) == [
        "Context",
        "Decision",
        "Consequences",
    ]
    assert Path(name).name in TEXTS["docs/decisions/README.md"]


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("ledger", set(LEDGER.names)),
        ("quarantine", set(QUARANTINE) | {"kind"}),
        ("inputs", set(INPUTS.names)),
        ("parked", set(PARKED.names)),
        ("resolutions", set(RESOLUTIONS.names)),
    ],
)
def test_columns_of_side_tables_are_listed(table: str, columns: set[str]) -> None:
    section = TEXTS["docs/architecture.md"].split("\n## Columns")[1]
    row = re.search(rf"^\| {table} \|(.*)\|$", section, re.MULTILINE)
    assert row
    named = set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row[1])))
    assert named == columns


def test_every_table_of_a_flow_is_documented_as_the_code_treats_it() -> None:
    section = TEXTS["docs/architecture.md"].split("\n## Files under the lake")[1].split("\n## ")[0]
    found = re.findall(
        r"^\| ([a-z ]+) \| `(\S+)` \| (.+) \| (.+) \| (yes|) ?\| (yes|) ?\|$", section, re.MULTILINE
    )
    listed = flow_tables(FlowHome("", "<pipeline>", "<flow>", "<table>", has_sinks=True), 1)
    assert found == [
        (
            one.name,
            one.path[1:],
            one.holds,
            one.restored,
            "yes" if one.writes else "",
            "yes" if one.compacted else "",
        )
        for one in listed
    ]


@pytest.mark.parametrize(
    ("part", "package"),
    [
        ("pyspark", "pyspark"),
        ("pyspark-client", "pyspark-client"),
        ("delta-spark (Python)", "delta-spark"),
        ("deltalake", "deltalake"),
        ("Great Expectations", "great-expectations"),
        ("Airflow", "apache-airflow"),
        ("Airflow's Spark provider", "apache-airflow-providers-apache-spark"),
        ("pandas", "pandas"),
        ("duckdb", "duckdb"),
    ],
)
def test_versions_are_those_of_the_lock(part: str, package: str) -> None:
    said = re.search(
        rf"^\| {re.escape(part)} \| ([\d.]+) ", TEXTS["docs/versions.md"], re.MULTILINE
    )
    locked = re.search(
        rf"^{package}==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    assert said and locked and said[1] == locked[1]


def test_versions_of_jars_are_those_of_the_lock() -> None:
    lock, text = (ROOT / "jars.lock").read_text(), TEXTS["docs/versions.md"]
    for jar in ("delta-storage", "spark-sql-kafka-0-10_2.13", "kafka-clients", "postgresql"):
        locked = re.search(rf":{re.escape(jar)}:(\S+) ", lock)
        assert locked and re.search(rf"[ ,|]{re.escape(locked[1])}[ ,|]", text), jar


_HOMES = [
    ROOT,
    *(ROOT / home for home in ("src/draindown", "src/draindown/spark", "tests", "benchmarks")),
]
_FILES = {
    path.name
    for home in ("src", "tests", "scripts", "benchmarks")
    for path in (ROOT / home).rglob("*.py")
}


def _unknown_modules(text: str) -> list[str]:
    """Python files and names within modules, in backquotes, that are not there: `spark/limits.py`,
    `lake.delta`.
    """
    paths = re.findall(r"`([\w./-]+\.py)(?:::\w+)?`", text)
    gone = [
        path
        for path in paths
        if not any((home / path).exists() for home in _HOMES) and path not in _FILES
    ]
    packages = "|".join(path.stem for path in (ROOT / "src" / "draindown").iterdir())
    dotted = re.findall(rf"`(draindown\.(?:{packages})\b(?:\.\w+)*)", text)
    return gone + [name for name in dotted if not _is_there(name)]


def _is_there(name: str) -> bool:
    parts, at = name.split("."), ROOT / "src"
    while parts and ((at / parts[0]).is_dir() or (at / f"{parts[0]}.py").is_file()):
        at = at / parts.pop(0)
    module = at.with_suffix(".py") if at.with_suffix(".py").is_file() else at / "__init__.py"
    return not parts or bool(
        re.search(rf"^(def|class) {parts[0]}\b|^{parts[0]}\b", module.read_text(), re.MULTILINE)
    )


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name != "CHANGELOG.md" and ".py" in TEXTS[name]]
)
def test_every_module_is_there(name: str) -> None:
    assert not _unknown_modules(TEXTS[name])


def test_every_name_that_an_engine_fact_relies_on_is_there() -> None:
    modules: dict[str, str] = {}
    for path in (ROOT / "src").rglob("*.py"):
        modules[path.stem] = modules.get(path.stem, "") + path.read_text()
    rows = [
        line.split(" | ")
        for line in TEXTS["docs/engine-facts.md"].splitlines()
        if line.startswith("| ")
    ]
    used = {
        pair for row in rows for pair in re.findall(r"`([a-z_]+)\.(?!py\b)([A-Za-z_]+)`", row[1])
    }
    assert ("swap", "swap") in used
    made = {
        (module, name)
        for module, name in used
        if re.search(rf"^(def|class) {name}\b", modules.get(module, ""), re.M)
    }
    assert used - made == set()


def test_the_columns_of_readme_are_those_of_the_command() -> None:
    (header,) = re.findall(r"^ID .*", TEXTS["README.md"], re.MULTILINE)
    assert header.split() == [name.upper() for name in HEADER]


@pytest.mark.parametrize("word", [*FATES, *APPLIED, *ACCOUNT])
def test_every_fate_is_in_the_glossary(word: str) -> None:
    assert f"**{word}**" in TEXTS["docs/glossary.md"]


def test_a_module_that_is_not_there_is_found() -> None:
    assert not _unknown_modules(
        "`spark/tuning.py`, `draindown.jobs`, `draindown.base.exits.exit_for`, `test_docs.py`"
    )
    gone = [
        "spark/batch/tuning.py",
        "damage.py",
        "draindown.spark.modes",
        "draindown.base.exits.nope",
    ]
    assert _unknown_modules(", ".join(f"`{name}`" for name in gone)) == gone


def test_what_is_said_not_to_be_built_is_not_built() -> None:
    """No kind of derivation or sink that pipeline files may ask for is among what is missing."""
    readme = TEXTS["README.md"].partition("Not yet:")[2].partition(". ")[0]
    promised = re.findall(r"^- ([^\n]*?): not built yet", TEXTS["docs/guarantees.md"], re.MULTILINE)
    assert readme and promised
    for said in (readme, *promised):
        missing = re.sub(r"sinks to anything but [^.;]*", "", said).lower()
        assert [
            word for word in (*(f"{kind}s" for kind in KINDS), *SINKS, "sinks") if word in missing
        ] == []


def test_the_processor_of_the_docs_passes_its_test_as_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXTS["docs/pipeline-files.md"], re.DOTALL)
    (shown,) = [block for block in blocks if "class Sessionizer" in block]
    (test,) = [block for block in blocks if "def test_events_within" in block]
    for name in ("processors", "processors.sessions"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    exec(shown, vars(sys.modules["processors.sessions"]))
    run: dict[str, Any] = {}
    exec(test, run)
    run["test_events_within_half_an_hour_are_one_session"]()
