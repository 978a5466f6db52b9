"""What the command line says where something about the call itself is wrong: true, and right to
paste.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
import typer

from draindown.base.errors import TerminalError
from draindown.cli import output
from draindown.cli.program import app, main
from draindown.config import scaffold


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DRAINDOWN_LAKE", raising=False)
    home = tmp_path / "a project"
    home.mkdir()
    scaffold.init(home, "orders")
    monkeypatch.chdir(tmp_path)
    return home


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code, _, err = typed(capsys, *words, "--json")
    return code, json.loads(err)["error"]


def lake_at(project: Path, place: str) -> None:
    path = project / "dags" / "pipelines" / "orders.yaml"
    path.write_text(path.read_text().replace("${DRAINDOWN_LAKE:-lake}", place))


def test_commands_in_errors_repeat_the_root(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = shlex.quote(project.name)
    code, error = error_of(capsys, "--root", project.name, "report", "orders")
    assert (code, error["code"], error["next"]) == (
        78,
        "no-report",
        [f"draindown --root {root} run orders"],
    )
    assert (
        f"next:    draindown --root {root} run orders"
        in typed(capsys, "--root", project.name, "report", "orders")[2]
    )


def test_commands_in_results_repeat_the_root(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = typed(capsys, "--root", project.name, "init", "--name", "bills")
    assert code == 0 and f"draindown --root {shlex.quote(project.name)} run bills" in out


def test_a_call_without_options_prints_commands_without(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(capsys, "--root", project.name, "report", "orders")
    os.chdir(project)
    assert "next:    draindown run orders" in typed(capsys, "report", "orders")[2]


def test_commands_name_a_pipeline_by_its_path_where_its_name_finds_none(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = project / "dags/pipelines/orders.yaml"
    inside.rename(project / "the orders.yaml")
    os.chdir(project)
    assert (
        "next:    draindown run 'the orders.yaml'" in typed(capsys, "report", "the orders.yaml")[2]
    )
    code, error = error_of(capsys, "--root", ".", "report", "the orders.yaml")
    assert (code, error["next"]) == (78, ["draindown --root . run 'the orders.yaml'"])
    for path in (
        "2.yaml",
        "2026/orders.yaml",
        "\\q/orders.yaml",
    ):  # no references of a regular expression
        Path(path).parent.mkdir(exist_ok=True)
        shutil.copy("the orders.yaml", path)
        assert f"next:    draindown run {shlex.quote(path)}" in typed(capsys, "report", path)[2]
    Path("the orders.yaml").rename(inside)
    assert "next:    draindown run orders" in typed(capsys, "report", str(inside))[2]


def test_a_flow_of_a_file_is_named_by_its_path_and_printed_so(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "dags/pipelines/orders.yaml").rename(project / "the orders.yaml")
    os.chdir(project)
    for target in ("the orders.yaml", "the orders.yaml/orders"):
        code, _, err = typed(capsys, "gate", "withdraw", target, "nonsense", "--yes")
        assert code == 78 and "next:    draindown gate show 'the orders.yaml/orders'" in err
    code, error = error_of(capsys, "plan", "the orders.yaml/bills")
    assert (code, error["code"]) == (78, "unknown-flow")


@pytest.mark.parametrize(
    ("target", "said"), [("orders/", "names no flow"), ("/orders", "names no pipeline")]
)
def test_a_target_with_an_empty_part_is_usage(
    project: Path, capsys: pytest.CaptureFixture[str], target: str, said: str
) -> None:
    """`orders/$FLOW`, where nobody set it."""
    os.chdir(project)
    for command in ("plan", "status", "reset"):
        code, out, err = typed(capsys, command, target)
        assert (code, out) == (2, "") and said in " ".join(err.split())


def test_init_quotes_its_directory(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(capsys, "init", "another project")
    assert code == 0 and "draindown --root 'another project' run orders" in out


def test_json_repeats_the_root_in_commands_only(capsys: pytest.CaptureFixture[str]) -> None:
    output.global_options.set("--root x")
    output.Output(as_json=True).result(
        {"raw": "draindown run a", "next": ["draindown run a"], "n": (1, None)}, ""
    )
    output.global_options.set("")
    found = {"raw": "draindown run a", "next": ["draindown --root x run a"], "n": [1, None]}
    assert json.loads(capsys.readouterr().out) == found


@pytest.mark.parametrize(
    "text", ["draindown --root y run a", "/opt/draindown run a", "draindown drained 2 files"]
)
def test_what_is_no_bare_command_is_printed_as_it_is(text: str) -> None:
    output.global_options.set("--root x")
    assert output.pasteable(text) == text
    output.global_options.set("")


def test_every_command_repeats_the_root() -> None:
    output.global_options.set("--root x")
    names = getattr(typer.main.get_command(app), "commands", {})
    assert names and [output.pasteable(f"draindown {name} a") for name in names] == [
        f"draindown --root x {name} a" for name in names
    ]
    output.global_options.set("")


def test_usage_names_repeated_arguments_as_shells_do(capsys: pytest.CaptureFixture[str]) -> None:
    for command, usage in (
        ("validate", "[PIPELINE]..."),
        ("status", "[TARGET]"),
        ("drill", "[FAULT] [TARGET]"),
    ):
        line = typed(capsys, command, "--help")[1].splitlines()[0]
        assert line.split(f"{command} [OPTIONS] ")[1] == usage


@pytest.mark.parametrize("words", [["plan", "orders"], ["validate"], ["status"]])
def test_a_root_that_does_not_exist_is_usage_and_starts_nothing_there(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code, out, err = typed(capsys, "--root", "nowhere", *words)
    assert (code, out) == (2, "") and "there is no directory nowhere" in err and "init" not in err


def test_a_root_that_does_not_exist_may_be_made(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        typed(capsys, "--root", "new", "init")[0] == 0 and Path("new", "dags", "pipelines").is_dir()
    )


def test_a_root_without_pipelines_is_told_in_our_words(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    code, error = error_of(capsys, "--root", "empty", "validate")
    found = f"{Path.cwd()}/empty/dags/pipelines does not exist"
    assert (code, error["code"], error["found"]) == (78, "no-pipelines", found)
    assert error["next"] == ["draindown --root empty init"]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("ordrs", "draindown plan orders"),
        ("zzz", "draindown status"),
        ("no.yaml", "draindown status"),
    ],
)
def test_an_unknown_pipeline_leads_to_one_there_is(
    project: Path, capsys: pytest.CaptureFixture[str], name: str, command: str
) -> None:
    os.chdir(project)
    code, error = error_of(capsys, "run", name)
    assert (code, error["code"], error["next"]) == (78, "pipeline-not-found", [command])


@pytest.mark.parametrize("place", ["a.file", "a.file/below"])
def test_init_where_a_directory_can_not_be_says_so(
    project: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    Path("a.file").write_text("")
    code, error = error_of(capsys, "init", place)
    assert (code, error["code"], error["changed"]) == (
        78,
        "project-not-writable",
        "nothing was changed",
    )
    assert "Not a directory" in str(error["found"]) and "Errno" not in str(error["found"])


def test_init_that_fails_in_the_middle_leaves_no_file_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.mkdir

    def denied(path: Path, *more: object, **named: object) -> None:
        if path.name == "expectations":
            raise PermissionError(13, "Permission denied", str(path))
        real(path, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(TerminalError) as caught:
        scaffold.init(tmp_path, "orders")
    assert caught.value.code == "project-not-writable"
    assert caught.value.changed == "nothing was changed"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    monkeypatch.undo()
    assert len(scaffold.init(tmp_path, "orders")) > 5


LOOKS = ["plan", "audit", "gate show", "report", "run", "reset", "quarantine list"]


@pytest.mark.parametrize("words", LOOKS)
def test_a_lake_that_is_a_file_is_named(
    project: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    os.chdir(project)
    lake_at(project, "a.file")
    Path("a.file").write_text("")
    code, error = error_of(capsys, *words.split(), "orders")
    assert (code, error["code"]) == (78, "not-a-directory")


@pytest.mark.parametrize(
    "words", [*LOOKS, "validate", "doctor", "status", "compact", "rebuild", "why"]
)
def test_a_lake_whose_path_deltalake_misreads_is_refused_by_every_command(
    project: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    os.chdir(project.rename(project.with_name("job%2Fbranch")))
    lines = (
        *words.split(),
        *(["orders/orders", "--key", "1"] if words == "why" else ["orders"]),
        "--json",
    )
    code, out, err = typed(capsys, *lines)
    errors = json.loads(out)["errors"] if words == "validate" else [json.loads(err)["error"]]
    assert (code, [error["code"] for error in errors]) == (78, ["lake-misread"])
    assert "job%2Fbranch/lake contains '%2F'" in errors[0]["found"]
    assert errors[0]["next"][0].startswith("draindown validate orders ")
    assert not Path("lake").exists() and not Path("../job").exists()


def test_a_lake_whose_path_is_misread_hides_no_other_pipeline(
    project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scaffold.init(project, "bills")
    lake_at(project, f"{tmp_path}/lake")
    os.chdir(project.rename(project.with_name("a[1]b")))
    code, out, _ = typed(capsys, "validate", "--json")
    assert (code, json.loads(out)["valid"]) == (78, ["orders"])
    for words in ("doctor", "status", "audit"):
        _, out, err = typed(capsys, words)
        assert "lake-misread" in out + err
        assert "orders/orders" in out


def test_doctor_and_status_tell_that_the_lake_is_a_file(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.chdir(project)
    lake_at(project, "a.file")
    Path("a.file").write_text("")
    code, out, _ = typed(capsys, "doctor", "orders", "--json")
    assert code == 1 and [one["code"] for one in json.loads(out)[0]["symptoms"]] == [
        "not-a-directory"
    ]
    code, out, _ = typed(capsys, "status", "--json")
    assert code == 78 and json.loads(out)[0]["error"]["code"] == "not-a-directory"


def test_a_lake_that_can_not_be_written_is_named_before_a_run(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chdir(project)
    Path("lake").mkdir()
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not str(path).endswith("/lake") and real(path, mode)
    )
    code, out, _ = typed(capsys, "plan", "orders", "--json")
    found = json.loads(out)["flows"]["orders"]["findings"]
    assert code == 0 and [(one["kind"], one["subject"]) for one in found] == [
        ("unwritable", "lake-not-writable")
    ]
    code, out, _ = typed(capsys, "doctor", "orders", "--json")
    assert code == 1 and [one["code"] for one in json.loads(out)[0]["symptoms"]] == [
        "lake-not-writable"
    ]
