"""Pipeline files: what is read, what is refused, and where an error points."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # its types are a package of their own
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from draindown.base.errors import TerminalError
from draindown.config.airflow_settings import AirflowSpec
from draindown.config.derived import DerivedFlow, TableSource
from draindown.config.join import Join
from draindown.config.json_schema import schema, schema_text
from draindown.config.kafka import KafkaCluster, KafkaSource
from draindown.config.landing import FlowSpec
from draindown.config.loader import BrokenPipeline, digest, find, load, load_all, load_alone
from draindown.config.lookup import Lookup
from draindown.config.models import PipelineSpec
from draindown.config.query import Query
from draindown.config.sources import FilesSource
from draindown.config.targets import Maintenance, Target
from draindown.config.tolerance import QuarantineBounds
from draindown.config.window import Window
from draindown.config.yaml_document import MAX_BYTES

ROOT = Path(__file__).parents[2]
GOOD = """\
pipeline: flights
lake: lake
flows:
  flights:
    source:
      files: landing/*.json
      format: json
    columns:
      id: string not null
      at: timestamp not null
    target:
      keys: [id]
      sequence_by: [at]
"""


def write(directory: Path, text: str, name: str = "flights.yaml") -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def refused(path: Path, **environ: str) -> TerminalError:
    with pytest.raises(TerminalError) as caught:
        load(path, environ)
    return caught.value


def outcome(path: Path) -> PipelineSpec | TerminalError:
    try:
        return load(path, {})
    except TerminalError as error:
        return error


def places(error: TerminalError) -> list[str]:
    """`line:column: path` of each problem."""
    found = [re.match(r".*?\.yaml:(\d+:\d+: [^:]*)", line) for line in error.found.splitlines()]
    assert all(found), error.found
    return [place[1] for place in found if place]


def test_a_good_file(tmp_path: Path) -> None:
    spec = load(write(tmp_path, GOOD), {})
    assert (spec.pipeline, list(spec.flows), spec.flows["flights"].target.keys) == (
        "flights",
        ["flights"],
        ["id"],
    )


@pytest.mark.parametrize(
    ("old", "new", "place", "reason"),
    [
        (
            "format: json",
            "formt: json",
            "7:7: flows.flights.source.formt",
            "did you mean 'format'?",
        ),
        ("format: json", "formt: json", "5:5: flows.flights.source.format", "is required"),
        (
            "format: json",
            "format: jsn",
            "7:15: flows.flights.source.format",
            "did you mean 'json'?",
        ),
        (
            "format: json",
            "format: avro",
            "7:15: flows.flights.source.format",
            "must be 'json', 'csv'",
        ),
        ("format: json", "format:", "7:14: flows.flights.source.format", "is empty"),
        (
            "format: json",
            "format: json\n      changes: t",
            "8:7: flows.flights.source.changes",
            "not supported yet",
        ),
        (
            "format: json",
            "format: json\n      kafka: t",
            "6:7: flows.flights.source",
            "exactly one of files, kafka",
        ),
        (
            "files: landing/*.json",
            "files: s3a://b/*",
            "6:14: flows.flights.source.files",
            "only local paths",
        ),
        (
            "files: landing/*.json",
            "files: [a]",
            "6:14: flows.flights.source.files",
            "must be text, not a list",
        ),
        (
            "files: landing/*.json",
            "files: 5",
            "6:14: flows.flights.source.files",
            "put it in quotes",
        ),
        ("lake: lake", "lakes: lake", "2:1: lakes", "did you mean 'lake'?"),
        ("lake: lake", "", "1:1: lake", "is required"),
        (
            "lake: lake",
            "lake: lake\nairflow: {retries: 1.5}",
            "3:20: airflow.retries",
            "must be a whole number, not 1.5",
        ),
        (
            "lake: lake",
            "lake: lake\nairflow: {retries: 11}",
            "3:20: airflow.retries",
            "must be at most 10, not 11",
        ),
        ("lake: lake", "lake: lake\ntags: a", "3:7: tags", "must be a list"),
        ("lake: lake", "lake: lake\ntags: [a, '']", "3:11: tags[1]", "is empty"),
        ("lake: lake", 'lake: lake\nschedule: "@once"', "3:11: schedule", "by hand"),
        (
            "    target:",
            "    drift: {new_columns: resque}\n    target:",
            "11:26: flows.flights.drift.new_columns",
            "did you mean 'rescue'?",
        ),
        (
            "id: string not null",
            "id: strng",
            "9:11: flows.flights.columns.id",
            "did you mean 'string'?",
        ),
        ("id: string not null", "id: string", "12:14: flows.flights.target.keys[0]", "can be null"),
        ("id: string not null", "_id: string", "9:7: flows.flights.columns._id", "reserved"),
        ("at: timestamp not null", "at: 5", "10:11: flows.flights.columns.at", "must be a type"),
        ("keys: [id]", "keys: [ID]", "12:14: flows.flights.target.keys[0]", "did you mean 'id'?"),
        (
            "keys: [id]",
            "cluster_by: [id]",
            "12:7: flows.flights.target.cluster_by",
            "not supported yet",
        ),
        ("keys: [id]", "table: t", "13:7: flows.flights.target.sequence_by", "needs keys"),
        (
            "sequence_by: [at]",
            "stored_as_scd_type: 2",
            "12:7: flows.flights.target.keys",
            "needs sequence_by",
        ),
        (
            "    target:",
            "    rules: {fresh: at < now()}\n    target:",
            "11:20: flows.flights.rules.fresh",
            "use arrived_at",
        ),
        (
            "    target:",
            "    rules: {Fresh: at < 1}\n    target:",
            "11:13: flows.flights.rules.Fresh",
            "is not a name",
        ),
        (
            "    target:",
            "    rules: {ok: true}\n    target:",
            "11:17: flows.flights.rules.ok",
            "not true: put it in quotes",
        ),
        (
            "    target:",
            "    rules:\n    target:",
            "11:11: flows.flights.rules",
            "is empty; write keys and values",
        ),
        (
            "    target:",
            "    watermark: {}\n    target:",
            "11:5: flows.flights.watermark",
            "write `allowed_lateness` of the derived flow",
        ),
        (
            "    target:",
            "    engine: {}\n    target:",
            "11:5: flows.flights.engine",
            "not supported yet",
        ),
        (
            "    target:",
            "    window: {}\n    target:",
            "11:5: flows.flights.window",
            "needs `source: {table: NAME}`",
        ),
        (
            "    target:",
            "    max_duration: 1:30\n    target:",
            "11:19: flows.flights.max_duration",
            "must be a duration",
        ),
        (
            "    target:",
            "    max_batches: 0\n    target:",
            "11:18: flows.flights.max_batches",
            "at least 1",
        ),
        (
            "    target:",
            "    maintenance: {retain: 1 day}\n    target:",
            "11:27: flows.flights.maintenance.retain",
            "7 days",
        ),
        (
            "    target:",
            "    columns: {a: int}\n    target:",
            "11:5: flows.flights.columns",
            "first on line 8",
        ),
    ],
)
def test_errors_point_at_their_place(
    tmp_path: Path, old: str, new: str, place: str, reason: str
) -> None:
    assert GOOD.count(old) == 1
    error = refused(write(tmp_path, GOOD.replace(old, new)))
    assert error.code == "invalid-pipeline"
    assert place in places(error)
    line = next(line for line in error.found.splitlines() if f".yaml:{place}" in line)
    assert line.startswith(str(tmp_path / "flights.yaml"))
    assert reason in line
    assert error.next == (f"draindown validate {tmp_path / 'flights.yaml'}",)


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", "1:1: is empty; a pipeline needs at least pipeline and flows, and a lake", ""),
        ("# nothing\n", "1:1: is empty", ""),
        ("- a\n- b\n", "1:1: must be keys and values", ""),
        ("flights", "1:1: must be keys and values", ""),
        ("a: 1\n\tb: 2\n", "2:1: a tab indents this line", ""),
        ("a:\n  - \tb: [\n", "2:5: a tab can't stand here", ""),
        ("a: [1, 2\nb: 3", "2:2: is not YAML", ""),
        ("a: b: c", "1:5: is not YAML", "quote a value"),
        ("a: !!python/object/apply:os.system ['id']", "1:4: tag", "refused"),
        ("a: !!str x", "1:4: tag", "refused"),
        ("pipeline: a\n---\npipeline: b\n", "2:1: a second document", ""),
        ("a: *b\n", "1:4: alias *b", ""),
        ("a: &a\n  b: *a\n", "2:6: alias *a", "no finished anchor"),
        ("a: \x07", "1:4: unprintable character U+0007", ""),
        ("a: 'x\ny: \x00'", "2:4: unprintable character U+0000", ""),
        ("x: " + "[" * 50 + "]" * 50, "1:44: is nested more than 40", ""),
        ("x: " + "[" * 100_000, "1:44: is nested more than 40", ""),
        ("[a, b]: 1\nc: 2", "1:1: a key must be a name", ""),
        ("a: 1\na: 2\n", "2:1: a: duplicate key", "line 1"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "3:3: c: merge keys", "refused"),
    ],
)
def test_what_is_no_document(tmp_path: Path, text: str, place: str, reason: str) -> None:
    path = write(tmp_path, text)
    error = refused(path)
    assert error.code == "invalid-pipeline"
    assert f"{path}:{place}" in error.found
    assert reason in error.found


def test_laughs_are_bounded(tmp_path: Path) -> None:
    laughs = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"] + [
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)
    ]
    error = refused(write(tmp_path, "\n".join(laughs)))
    assert "aliases and values come to more than" in error.found


def test_aliases_of_whole_values_work(tmp_path: Path) -> None:
    text = (
        GOOD.replace("source:", "source: &s") + "  more:\n    source: *s\n    columns: {a: int}\n"
    )
    spec = load(write(tmp_path, text), {})
    assert spec.flows["more"].source == spec.flows["flights"].source


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a: 1\nb: \xff\n", ":2:4: is not UTF-8"),
        (b"# " + b"x" * MAX_BYTES, ":1:1: is larger than"),
        ("a: ü".encode("utf-16"), "is not UTF-8"),
    ],
)
def test_bytes_that_are_no_text(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "flights.yaml"
    path.write_bytes(data)
    error = refused(path)
    assert (error.code, reason in error.found) == ("invalid-pipeline", True)


def test_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    spec = load(write(tmp_path, "\ufeff" + GOOD.replace("\n", "\r\n")), {})
    assert spec == load(write(tmp_path, GOOD), {})


@pytest.mark.parametrize("name", ["absent.yaml", ".", "a\x00b.yaml"])
def test_files_that_cant_be_read(tmp_path: Path, name: str) -> None:
    assert refused(tmp_path / name).code == "unreadable-pipeline"


def test_all_problems_at_once_sorted_by_line(tmp_path: Path) -> None:
    text = (
        GOOD.replace("format: json", "formt: json")
        .replace("pipeline: flights", "pipeline: F")
        .replace("id: str", "id: sr")
    )
    text = text.replace("lake: lake", "lake: ${LAKE}") + "airflow: {retries: 11}\n"
    error = refused(write(tmp_path, text))
    assert places(error) == [
        "1:11: pipeline",
        "2:7: lake",
        "5:5: flows.flights.source.format",
        "7:7: flows.flights.source.formt",
        "9:11: flows.flights.columns.id",
        "14:20: airflow.retries",
    ]
    assert error.next[0] == "export LAKE=..."


def test_only_so_many_problems_are_shown(tmp_path: Path) -> None:
    error = refused(write(tmp_path, GOOD + "".join(f"x{i}: 1\n" for i in range(70))))
    assert len(error.found.splitlines()) == 51
    assert error.found.endswith("and 20 more")


# environment


@pytest.mark.parametrize(
    ("written", "environ", "value"),
    [
        ("${D}", {"D": "x"}, "x"),
        ("a ${D} b ${E:-c}", {"D": "x"}, "a x b c"),
        ("${D:-c}", {"D": "x"}, "x"),
        ("${D:-c}", {"D": ""}, "c"),
        ("${D}", {"D": ""}, ""),
        ("${D:-}", {}, ""),
        ("'${D}'", {"D": "${E}", "E": "y"}, "${E}"),
        ("${D}", {"D": "$$"}, "$$"),
        ("${D}", {"D": "[1, 2]"}, "[1, 2]"),
        ("${D}", {"D": "x\nlake: y"}, "x\nlake: y"),
        ("${D}", {"D": "true"}, "true"),
        ("$${D}", {"D": "x"}, "${D}"),
        ("$$", {}, "$"),
        ("cost $5 and a$", {}, "cost $5 and a$"),
        ("${secret:TOKEN}", {"TOKEN": "x"}, "${secret:TOKEN}"),
    ],
)
def test_environment(tmp_path: Path, written: str, environ: dict[str, str], value: str) -> None:
    assert load(write(tmp_path, f"{GOOD}description: {written}\n"), environ).description == value


def test_keys_are_never_expanded(tmp_path: Path) -> None:
    error = refused(write(tmp_path, f"{GOOD}${{D}}: x\n"), D="owner")
    assert "14:1: ${D}: unknown key" in error.found


def test_a_key_cant_forge_a_line(tmp_path: Path) -> None:
    error = refused(write(tmp_path, f'{GOOD}"a\\nb.yaml:1:1: \\e[31m": x\n'))
    assert len(error.found.splitlines()) == 1
    assert error.found.isprintable()


def test_a_missing_variable_is_named_once(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("format: json", "format: ${FORMAT}"))
    error = refused(path)
    assert places(error) == ["7:15: flows.flights.source.format"]
    assert "export FORMAT=..." in error.found
    assert error.next == ("export FORMAT=...", f"draindown validate {path}")


@pytest.mark.parametrize("written", ["${", "${1}", "${A-b}", "${secret:}", "x ${ y }"])
def test_malformed_references(tmp_path: Path, written: str) -> None:
    error = refused(write(tmp_path, f"{GOOD}description: '{written}'\n"), A="a")
    assert places(error) == ["14:14: description"]


def test_sizes_and_durations_come_from_the_environment(tmp_path: Path) -> None:
    text = GOOD.replace(
        "format: json",
        "format: json\n      max_bytes_per_trigger: ${SIZE:-1mb}\n      min_file_age: ${S}",
    )
    source = load(write(tmp_path, text), {"S": "2 minutes"}).flows["flights"].source
    assert (source.max_bytes_per_trigger, source.min_file_age) == (1024**2, 120)


# directories


def test_a_broken_file_hides_no_other(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "a.yaml")
    write(tmp_path, "nonsense", "flights.yml")
    write(tmp_path, "", "b b.yaml")
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nowhere")
    for ignored in (".hidden.yaml", "notes.md", "d.yaml/x.txt"):
        write(tmp_path, "junk", ignored)
    found = load_all(tmp_path, {})
    assert [
        x.pipeline if isinstance(x, PipelineSpec) else (x.name, x.error.code) for x in found
    ] == [
        "flights",
        ("b_b", "invalid-pipeline"),
        ("d", "unreadable-pipeline"),
        ("dangling", "unreadable-pipeline"),
        ("flights_2", "invalid-pipeline"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "shared"),
    [
        ("pipeline: x", "pipeline: x", {"flow flights", "table flights"}),
        ("  flights:", "  other:", set()),
        ("  flights:", "  other:\n    target: {table: flights}", {"table flights"}),
        (
            "pipeline: x\nlake: lake",
            "pipeline: x\nlake: ./lake/",
            {"flow flights", "table flights"},
        ),
        ("pipeline: x\nlake: lake", "pipeline: x\nlake: elsewhere", set()),
        ("pipeline: x\nlake: lake", "pipeline: flights\nlake: elsewhere", {"pipeline flights"}),
    ],
)
def test_single_writers_across_files(tmp_path: Path, old: str, new: str, shared: set[str]) -> None:
    other = GOOD.replace("pipeline: flights", "pipeline: x")
    other = other[: other.index("    target:")]
    assert old in other
    write(tmp_path, GOOD, "a.yaml")
    write(tmp_path, other.replace(old, new), "b.yaml")
    write(tmp_path, GOOD.replace("flights", "third"), "c.yaml")
    first, second, third = load_all(tmp_path, {})
    assert isinstance(third, PipelineSpec)
    if not shared:
        assert isinstance(first, PipelineSpec)
        assert isinstance(second, PipelineSpec)
        return
    for broken, mine, others in ((first, "a.yaml", "b.yaml"), (second, "b.yaml", "a.yaml")):
        assert isinstance(broken, BrokenPipeline)
        assert broken.error.code == "conflicting-pipelines"
        lines = broken.error.found.splitlines()
        assert {" ".join(line.split(": ")[1].split()[:2]) for line in lines} == shared
        assert all(mine in line.split(": ")[0] and others in line for line in lines)


@pytest.mark.parametrize(
    ("written", "lake"), [("${LAKE}", ""), ("${LAKE}/x", ""), ("${LAKE:-lake}", "lake")]
)
def test_a_broken_file_has_no_lake_where_its_variable_is_not_set(
    tmp_path: Path, written: str, lake: str
) -> None:
    for broken in (GOOD + "airflow: {retries: 11}\n", GOOD + "{"):
        write(tmp_path, broken.replace("lake: lake", f"lake: {written}"), "a.yaml")
        (found,) = load_all(tmp_path, {})
        assert isinstance(found, BrokenPipeline)
        assert found.lake == lake


def test_a_link_that_leads_to_itself_keeps_no_other_file_from_being_read(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "dags/pipelines/flights.yaml")
    (path.parent / "a.yaml").symlink_to("a.yaml")
    assert load_alone(path, tmp_path, {}).pipeline == "flights"


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(TerminalError) as caught:
        load_all(tmp_path / "absent", {})
    assert caught.value.code == "no-pipelines"


def test_a_hundred_files_are_parsed_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[object] = []
    original = yaml.parse

    def counted(text: str, Loader: Any) -> Any:  # PyYAML's own name
        parsed.append(Loader)
        return original(text, Loader=Loader)

    monkeypatch.setattr(yaml, "parse", counted)
    for i in range(100):
        write(tmp_path, GOOD.replace("flights", f"p{i}"), f"p{i}.yaml")
    assert len([x for x in load_all(tmp_path, {}) if isinstance(x, PipelineSpec)]) == 100
    assert parsed == [yaml.CSafeLoader] * 100


# finding


def test_find_by_name_or_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GOOD, "dags/pipelines/flights.yaml")
    inner = write(
        tmp_path,
        GOOD.replace("pipeline: flights", "pipeline: 'weather'  # x"),
        "dags/pipelines/w.yml",
    )
    monkeypatch.chdir(tmp_path / "dags")
    assert find("flights", tmp_path) == path
    assert find("weather", tmp_path) == find("w", tmp_path) == inner
    assert find("dags/pipelines/flights.yaml", tmp_path) == path
    assert find(str(path), Path("/")) == path
    assert find("pipelines/flights.yaml", tmp_path).resolve() == path


@pytest.mark.parametrize("argument", ["flight", "Flights", "flights.yaml", "../flights", ""])
def test_find_lists_what_there_is(tmp_path: Path, argument: str) -> None:
    write(tmp_path, GOOD, "dags/pipelines/flights.yaml")
    write(tmp_path, GOOD.replace("pipeline: flights", "pipeline: weather"), "dags/pipelines/w.yaml")
    with pytest.raises(TerminalError) as caught:
        find(argument, tmp_path)
    assert caught.value.code == "pipeline-not-found"
    assert "there are flights, w, weather" in caught.value.found
    assert ("did you mean 'flights'?" in caught.value.found) == bool(argument)


def test_find_in_an_empty_project(tmp_path: Path) -> None:
    with pytest.raises(TerminalError) as caught:
        find("flights", tmp_path)
    assert (caught.value.code, caught.value.next) == ("pipeline-not-found", ("draindown init",))


# digest


def test_digest_follows_meaning_not_spelling(tmp_path: Path) -> None:
    spec = load(write(tmp_path, GOOD), {})
    respelled = GOOD.replace("string not null", "STRING  NOT NULL").replace(
        "lake: lake", "airflow: {retries: 2}\nlake: '${L}/'"
    )
    assert digest(spec) == digest(load(write(tmp_path, respelled), {"L": "lake"}))
    assert digest(spec) == digest(PipelineSpec.model_validate_json(spec.model_dump_json()))
    assert digest(spec) != digest(
        load(write(tmp_path, GOOD.replace("keys: [id]", "keys: [id, at]")), {})
    )
    assert re.fullmatch("[0-9a-f]{64}", digest(spec))


# any input

_lines = st.sampled_from(
    [
        *GOOD.splitlines(),
        "  - x",
        "\t",
        "a: &a [*a]",
        "? b",
        "---",
        "...",
        "%YAML 9",
        "'",
        "{",
        "${X}",
        "!!x y",
    ]
)


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.text(max_size=200) | st.lists(_lines, max_size=20).map("\n".join) | st.binary(max_size=200)
)
@example("%TAG ! tag:x,2000:\n---\n!a b")
@example("a: \ud7ff\x85\u2028b: \t")
@example("? ? ? a")
def test_anything_else_is_a_terminal_error(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "flights.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    found = outcome(path)
    if isinstance(found, TerminalError):
        assert found.code == "invalid-pipeline"
        assert re.match(r".*\.yaml:\d+:\d+: ", found.found)


_values = st.recursive(
    # JSON, and so its Schema, has no infinity and no NaN
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(inner for key, child in children for inner in _paths(child, (*path, key)))]


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_any_value_anywhere_is_read_or_refused_and_the_schema_is_never_narrower(
    tmp_path: Path, data: st.DataObject
) -> None:
    tree = {"root": yaml.safe_load(GOOD)}
    *parents, last = data.draw(st.sampled_from([path for path in _paths(tree) if path]))
    spot: Any = tree
    for part in parents:
        spot = spot[part]
    spot[last] = data.draw(_values)
    # JSON is YAML; what json spells NaN, YAML reads as text
    text = json.dumps(tree["root"], allow_nan=True, ensure_ascii=True)
    path = write(tmp_path, text)
    found = outcome(path)
    if isinstance(found, TerminalError):
        assert found.code == "invalid-pipeline"
    else:
        jsonschema.Draft202012Validator(schema()).validate(json.loads(text))


# documentation


def _examples() -> list[Any]:
    found = []
    pages = set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "project-file.md"}  # see there
    for page in (ROOT / "README.md", *sorted(pages)):
        text = page.read_text() if page.is_file() else ""
        for block in re.finditer(r"^```ya?ml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            if re.search(r"^pipeline:", block[1], re.MULTILINE):
                line = text.count("\n", 0, block.start()) + 1
                found.append(pytest.param(block[1], id=f"{page.relative_to(ROOT)}:{line}"))
    for place in ("dags/pipelines", "benchmarks/pipelines", "examples/*"):
        for file in sorted(ROOT.glob(f"{place}/*.y*ml")):
            found.append(pytest.param(file.read_text(), id=str(file.relative_to(ROOT))))
    return found


@pytest.mark.parametrize("text", _examples())
def test_examples_are_pipelines(tmp_path: Path, text: str) -> None:
    load(write(tmp_path, text), {})
    jsonschema.Draft202012Validator(schema()).validate(yaml.load(text, _Editors))


class _Editors(yaml.SafeLoader):
    """YAML 1.2, as editors read it: `on` is text."""


_Editors.add_constructor(
    "tag:yaml.org,2002:bool",
    lambda _, node: {"true": True, "false": False}.get(node.value, node.value),
)


def test_every_example_of_the_reference_is_a_whole_pipeline() -> None:
    text = (ROOT / "docs" / "pipeline-files.md").read_text()
    blocks = re.findall(r"^```ya?ml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    assert [block for block in blocks if not re.match(r"pipeline: ", block)] == []


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("Pipeline", PipelineSpec),
        ("Airflow", AirflowSpec),
        ("Flow", FlowSpec),
        ("Source", FilesSource),
        ("Kafka source", KafkaSource),
        ("Kafka cluster", KafkaCluster),
        ("Quarantine", QuarantineBounds),
        ("Target", Target),
        ("Derived flow", DerivedFlow),
        ("Table source", TableSource),
        ("Window", Window),
        ("Query", Query),
        ("Join", Join),
        ("Lookup", Lookup),
        ("Maintenance", Maintenance),
    ],
)
def test_every_key_is_in_the_reference(heading: str, model: Any) -> None:
    text = (ROOT / "docs" / "pipeline-files.md").read_text()
    section = re.split(r"^## ", text.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|", section, re.MULTILINE)
    elsewhere = {"lease"} if model is PipelineSpec else set()  # in the project file
    assert [name for name, _ in rows] == [one for one in model.model_fields if one not in elsewhere]
    for name, default in rows:
        assert (default == "required") == model.model_fields[name].is_required(), name


def test_the_schema_file_is_the_generated_one() -> None:
    written = (ROOT / "docs" / "pipeline.schema.json").read_text()
    assert written == schema_text(), (
        "run: python -m draindown.config.json_schema > docs/pipeline.schema.json"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("format: json", "formt: json"),
        ("format: json", "format: avro"),
        ("format: json", "format: json\n      min_file_age: 5 months"),
        ("pipeline: flights", "pipeline: Flights"),
        ("id: string not null", "_id: string"),
        ("keys: [id]", "keys: id"),
    ],
)
def test_the_schema_refuses_mistakes(old: str, new: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(GOOD.replace(old, new)))


def test_the_schema_describes_every_key_and_takes_references() -> None:
    generated = schema()
    jsonschema.Draft202012Validator.check_schema(generated)
    assert "$id" not in generated
    properties = [
        generated["properties"],
        *(d["properties"] for d in generated["$defs"].values() if "properties" in d),
    ]
    assert [
        name for group in properties for name, one in group.items() if not one.get("description")
    ] == []
    text = GOOD.replace(
        "format: json", "format: ${FORMAT:-json}\n      max_bytes_per_trigger: ${SIZE:-1mb}"
    )
    jsonschema.Draft202012Validator(generated).validate(yaml.safe_load(text))
