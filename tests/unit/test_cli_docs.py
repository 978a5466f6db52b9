"""docs/cli.md names every command, every option and every kind of residue, and none that isn't
there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from draindown.base.exits import Exit
from draindown.cli.program import app

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "draindown"
TEXT = (ROOT / "docs" / "cli.md").read_text()


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    if not below or name == "draindown":
        yield name, command
    for word, part in below.items():
        yield from _commands(part, f"{name} {word}")


COMMANDS = dict(_commands(typer.main.get_command(app), "draindown"))
SECTIONS = dict(
    re.findall(r"^## (draindown[^\n]*)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
)


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert sorted(SECTIONS) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented_and_exists(name: str) -> None:
    options = {
        o for p in COMMANDS[name].params for o in (*p.opts, *p.secondary_opts) if o.startswith("--")
    }
    rows = "\n".join(
        line.split("|")[1] for line in SECTIONS[name].splitlines() if line.startswith("| `")
    )
    documented = set(re.findall(r"--[a-z][a-z-]*", rows))
    once = {"--help", "--json", "--yes"}
    assert documented - once == options - once


def test_what_most_commands_take_is_documented_once() -> None:
    rows = SECTIONS["draindown"].split("| option | means |")[1]
    assert all(f"| `{option}` |" in rows for option in ("--json", "--yes", "--version"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str) -> None:
    assert (COMMANDS[name].help or "").strip().endswith((".", "dest")), name
    for parameter in COMMANDS[name].params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name}"


def test_every_exit_code_is_documented() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}
    assert documented == {int(code) for code in Exit}


def test_every_kind_of_residue_is_documented() -> None:
    kinds: set[str] = set()
    for path in (ROOT / "src" / "draindown" / "audit").glob("*.py"):
        source = path.read_text()
        kinds |= set(re.findall(r'(?:expect|expect_once|_?[Rr]esidue)\(\s*"([a-z-]+)"', source))
        kinds |= set(re.findall(r'^    "([a-z-]+)": "', source, re.MULTILINE))
    kinds |= {f"intake-{what}" for what in ("lines", "blank")}
    documented = set(
        re.findall(
            r"`([a-z-]+)`",
            SECTIONS["draindown audit"].split("| residue |")[1].split("| option |")[0],
        )
    )
    assert documented == kinds


def _texts() -> Iterator[tuple[str, str]]:
    """Every text of the source that is no docstring, with `X` for what is filled in; and where it
    is.
    """
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        within = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node)
        }
        within |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values
                )
                yield f"{file.name}:{node.lineno}", "".join(parts)
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in within
            ):
                yield f"{file.name}:{node.lineno}", node.value


def test_commands_that_need_a_pipeline_are_printed_with_one() -> None:
    """A command that is printed as next is typed as it is printed."""
    needs = [
        name.removeprefix("draindown ")
        for name, command in COMMANDS.items()
        if any(part.required and part.param_type_name == "argument" for part in command.params)
    ]
    assert {"plan", "run", "sink resync"} <= set(needs)
    # a blank at the end: more is added
    bare = re.compile(rf"draindown ({'|'.join(needs)})( *#|\n|$)")
    said = list(_texts())
    assert any("draindown plan X" in text for _, text in said)
    assert [f"{where}: {text}" for where, text in said if bare.search(text)] == []


def test_commands_are_printed_with_options_that_they_have() -> None:
    known = {
        name: {option for part in command.params for option in (*part.opts, *part.secondary_opts)}
        | {"--help"}
        for name, command in COMMANDS.items()
        if name != "draindown"  # a verb is filled in
    }
    longest_first = "|".join(sorted(known, key=len, reverse=True))
    printed = re.compile(rf"({longest_first})(?![\w-])([^#\n`]*)")
    found = [
        (where, name, option)
        for where, text in _texts()
        for name, words in printed.findall(text)
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", words)
    ]
    assert len(found) > 110
    assert [one for one in found if one[2] not in known[one[1]]] == []
