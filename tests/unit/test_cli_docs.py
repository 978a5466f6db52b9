"""docs/cli.md names every command, every option and every kind of residue, and none that isn't there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from draindown.base.exits import Exit
from draindown.cli import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "cli.md").read_text()


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    if not below or name == "draindown":
        yield name, command
    for word, part in below.items():
        yield from _commands(part, f"{name} {word}")


COMMANDS = dict(_commands(typer.main.get_command(app), "draindown"))
SECTIONS = dict(re.findall(r"^## (draindown[^\n]*)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert sorted(SECTIONS) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented_and_exists(name: str) -> None:
    options = {o for p in COMMANDS[name].params for o in (*p.opts, *p.secondary_opts) if o.startswith("--")}
    rows = "\n".join(line.split("|")[1] for line in SECTIONS[name].splitlines() if line.startswith("| `"))
    documented = set(re.findall(r"--[a-z][a-z-]*", rows))
    assert documented - {"--help"} == options - {"--help"}


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
        re.findall(r"`([a-z-]+)`", SECTIONS["draindown audit"].split("| residue |")[1].split("| option |")[0])
    )
    assert documented == kinds
