"""Output of a command: the result to stdout, as text or JSON, everything else to stderr."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from draindown.base.errors import DraindownError
from draindown.base.formatting import columns, printable, printable_lines

global_options: ContextVar[str] = ContextVar("global_options", default="")
"""Options given before the command's name, quoted for a shell. Commands in the output repeat
them.
"""
by_path: ContextVar[Mapping[str, str]] = ContextVar("by_path", default=MappingProxyType({}))
"""By pipeline name, the path of each loaded file outside `dags/pipelines`. Printed commands use it,
not the name.
"""
_BARE = r"(?<![\w./-])draindown "
_COMMAND = re.compile(
    rf"{_BARE}(?=(?:init|validate|plan|run|compact|status|report|as-of|why|doctor|audit|drill|replay|reset|rebuild"
    r"|gate|quarantine|input|late|sink)\b)"
)


@dataclass(frozen=True)
class Output:
    """The output of one command. With `as_json`, stdout holds exactly one JSON document."""

    as_json: bool = False

    def result(self, data: Any, text: str) -> None:
        """Print the result of the command."""
        print(_json(data) if self.as_json else pasteable(text))

    def note(self, text: str) -> None:
        """Print a message that is not part of the result."""
        print(pasteable(text), file=sys.stderr, flush=True)

    def progress(self, text: str) -> None:
        """Print the progress: one line that updates on a terminal, separate lines elsewhere."""
        if sys.stderr.isatty():
            print(f"\r\x1b[2K{printable(text, 160)}", end="", file=sys.stderr, flush=True)
        else:
            self.note(printable(text))

    def progress_done(self) -> None:
        """End the updating line, if there is one."""
        if sys.stderr.isatty():
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)

    def error(self, error: DraindownError) -> None:
        """Print an error to stderr: its four parts, or one JSON object."""
        print(
            _json({"error": error.as_dict()}) if self.as_json else _colored(error),
            file=sys.stderr,
            flush=True,
        )

    def warning(self, error: DraindownError) -> None:
        """Print a warning to stderr, in the form of `error`."""
        self.note(printable_lines(f"warning: {error}"))


def pasteable(text: str) -> str:
    """Return text whose draindown commands work when pasted: with the global options and the paths
    of this one.
    """
    for name, path in by_path.get().items():
        text = _with_path(text, name, path)
    given = global_options.get()
    return _COMMAND.sub(lambda _: f"draindown {given} ", text) if given else text


def _with_path(text: str, name: str, path: str) -> str:
    words = re.compile(rf"{_BARE}((?:[a-z-]+ ){{1,2}}){re.escape(name)}(/\w+)?(?![\w./-])")
    return words.sub(
        lambda found: f"draindown {found[1]}{shlex.quote(path + (found[2] or ''))}", text
    )


def _json(data: Any) -> str:
    """Return data as JSON. Commands are what stands under a key `next`; other text may be a user's
    and stays as is.
    """
    return json.dumps(_with_options(data), indent=1, default=str, ensure_ascii=True)


def _with_options(data: Any, *, is_next: bool = False) -> Any:
    match data:
        case str():
            return pasteable(data) if is_next else data
        case Mapping():
            return {key: _with_options(value, is_next=key == "next") for key, value in data.items()}
        case list() | tuple():
            return [_with_options(value, is_next=is_next) for value in data]
        case _:
            return data


def not_done(pipeline: str, flow: str, done: str, error: DraindownError) -> str:
    """Return why one flow of several was not audited or proven."""
    return printable_lines(
        "\n".join([f"{pipeline}/{flow}  not {done}", *(f"  {x}" for x in str(error).splitlines())])
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return rows under a header as aligned lines. Untrusted text in them must already be
    printable.
    """
    return "\n".join(columns([[name.upper() for name in header], *rows], right))


def _colored(error: DraindownError) -> str:
    text = printable_lines(pasteable(str(error)))
    return f"\x1b[31m{text}\x1b[0m" if sys.stderr.isatty() else text
