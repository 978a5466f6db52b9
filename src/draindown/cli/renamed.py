"""Old words of the command line, and the sentence that names the new form of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COMMANDS: Mapping[str, str] = {}
"""By a command as it was typed before version 1, what to type now."""

OPTIONS: Mapping[tuple[str, str], str] = {
    ("", "--flow"): "--flow FLOW is part of the target now: PIPELINE/FLOW",
}
"""By command and option as they were typed before version 1, what to type now. The command is empty
if the option is refused after every command.
"""
_VALUED = ("--root",)
"""Options before the command that take a value."""


def told(arguments: Sequence[str]) -> str | None:
    """Return the sentence about the first old word of a command line; None if it has none."""
    words = _after_global_options(arguments)
    command = next(
        (known for known in (" ".join(words[:2]), *words[:1]) if known in COMMANDS), None
    )
    if command is not None:
        return COMMANDS[command]
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    for known in (" ".join(words[:2]), *words[:1], ""):
        for option in options:
            if (known, option) in OPTIONS:
                return OPTIONS[known, option]
    return None


def _after_global_options(arguments: Sequence[str]) -> Sequence[str]:
    """Return the words from the command's name on."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in _VALUED else 1
    return arguments[at:]
