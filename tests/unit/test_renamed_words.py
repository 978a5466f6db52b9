"""Words of the command line from before version 1 are refused by a sentence that names the new
form.
"""

from __future__ import annotations

import re

import pytest
import typer

from draindown.cli import renamed
from draindown.cli.program import app, main

ROWS = [
    *((old, sentence) for old, sentence in renamed.COMMANDS.items()),
    *(
        (f"{old.rpartition(' ')[0] or 'plan'} shop {old.rpartition(' ')[2]}", sentence)
        for old, sentence in renamed.OPTIONS.items()
    ),
]


@pytest.mark.parametrize(("typed", "sentence"), ROWS, ids=[typed for typed, _ in ROWS])
def test_an_old_word_exits_2_with_one_sentence(
    capsys: pytest.CaptureFixture[str], typed: str, sentence: str
) -> None:
    ways = [typed.split(), ["--root", "somewhere", *typed.split()], [*typed.split(), "x"]]
    ways += [f"{typed}=x".split()] if "--" in typed else []
    for words in ways:
        assert main(words) == 2
        said = capsys.readouterr()
        assert (said.out, said.err) == ("", f"{sentence}\n")


def _leaves(command: object, name: str = "") -> dict[str, object]:
    below = getattr(command, "commands", None)
    if below is None:
        return {name: command}
    return {
        words: leaf
        for word, part in below.items()
        for words, leaf in _leaves(part, f"{name} {word}".strip()).items()
    }


LEAVES = _leaves(typer.main.get_command(app))


def test_no_old_word_is_one_of_now() -> None:
    assert not renamed.COMMANDS.keys() & LEAVES.keys()
    for old in renamed.OPTIONS:
        command, _, option = old.rpartition(" ")
        for name, leaf in LEAVES.items():
            if f"{name} ".startswith(f"{command} ".lstrip()):
                known = {one for part in leaf.params for one in part.opts}  # type: ignore[attr-defined]
                assert option not in known, (name, option)


def test_what_to_type_now_exists() -> None:
    for sentence in (*renamed.COMMANDS.values(), *renamed.OPTIONS.values()):
        now = sentence.rpartition(" now")[0] or sentence
        for command in re.findall(r"draindown ((?:[a-z-]+ ?)+)", now):
            assert any(f"{command.strip()} ".startswith(f"{leaf} ") for leaf in LEAVES), sentence
