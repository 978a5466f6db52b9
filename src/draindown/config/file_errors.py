"""Read the files of a project as text, and report each problem of one with file, line and column."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from draindown.base.errors import TerminalError
from draindown.config.yaml_document import MAX_BYTES, Mark, Problem

PROJECT_FILE = "draindown.yaml"
"""The project file, which a project may have at its root."""
_SHOWN = 50


class Unset(TerminalError):
    """A pipeline of another environment, of which environment variables that are not set decide."""

    def __init__(self, path: Path, problems: Sequence[Problem], tried: str) -> None:
        lines = [problem_line(path, problem) for problem in problems]
        super().__init__("invalid-pipeline", tried=tried, found="\n".join(lines))


def read_text(path: Path) -> str:
    """Return the text of a file. Raises TerminalError `unreadable-pipeline`, `invalid-pipeline`."""
    data = read_bytes(path)
    if len(data) > MAX_BYTES:
        raise invalid(
            path,
            [Problem(Mark(1, 1), (), f"is larger than {MAX_BYTES} bytes; no pipeline file is")],
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise invalid(
            path, [Problem(Mark(line, column), (), "is not UTF-8; save it as UTF-8")]
        ) from None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, up to MAX_BYTES + 1 bytes. Raises TerminalError
    `unreadable-pipeline`.
    """
    found = None
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            what = "is a directory, as Docker makes one where a file to be mounted is missing"
            found = f"{path} {what if path.is_dir() else 'is no file'}"
        else:
            with path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        found = f"{path}: {getattr(error, 'strerror', None) or error}"
    raise TerminalError(
        "unreadable-pipeline",
        tried=f"read pipeline file {path}",
        found=found,
        next=f"ls -ld {shlex.quote(str(path))}",
    )


def invalid(
    path: Path,
    problems: Sequence[Problem],
    code: str = "invalid-pipeline",
    tried: str = "",
    again: str = "",
) -> TerminalError:
    """Return an error that lists the problems of a file, in the order of their positions.

    `tried`, `again`: what was tried and the command that checks it, if not those of a pipeline
    file.
    """
    problems = sorted(problems, key=_order)
    lines = [problem_line(path, problem) for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"and {len(problems) - _SHOWN} more")
    variables = dict.fromkeys(problem.variable for problem in problems if problem.variable)
    return TerminalError(
        code,
        tried=tried or f"load pipeline file {path}",
        found="\n".join(lines),
        next=[
            *(f"export {name}=..." for name in variables),
            again or f"draindown validate {shlex.quote(str(path))}",
        ],
        in_order=True,
    )


def problem_line(path: Path, problem: Problem) -> str:
    """Return one problem as a line. `path`: the file of positions that name none."""
    mark = problem.mark
    where = f"{mark.file or path}:{mark.line}:{mark.column}: "
    # A key may hold anything; it must not forge a line of its own.
    keys = "".join(map(_key, problem.path)).removeprefix(".")
    by = f" ({mark.by})" if mark.by else ""
    return where + (f"{keys}: " if keys else "") + problem.message + by


def described_keys(path: Path, found: str) -> str:
    """Return the lines of an error without positions in a file that was not written."""
    lines = (re.sub(rf"^{re.escape(str(path))}:\d+:\d+: ", "", line) for line in found.splitlines())
    return "\n".join(lines)


def _order(problem: Problem) -> tuple[str, Mark, tuple[str, ...]]:
    return problem.mark.file, problem.mark, problem.path


def _key(key: str) -> str:
    return f"[{key}]" if key.isdecimal() else f".{key if key.isprintable() else repr(key)}"
