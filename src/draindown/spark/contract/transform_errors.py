"""The error of a transform that fails as a whole: with its function, the line, the column and a
value.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from draindown.base.errors import TerminalError, first_line, said
from draindown.base.formatting import shortened

_PYTHON = re.compile(r'File "([^"]+)", line (\d+)')
_QUERY = re.compile(r"was called from\s+(\S+):(\d+)")
_CODE, _STATE = re.compile(r"^\[[A-Z0-9_.]+\]\s*"), re.compile(r"\s*SQLSTATE: \w+")
Transform = Callable[[DataFrame], DataFrame]
"""A user's function of jobs/transforms/."""


def not_imported(path: Path, error: BaseException) -> TerminalError:
    """Return TerminalError `transform-failed` for a module that can't be imported."""
    inside = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    line = (
        getattr(error, "lineno", None)
        if isinstance(error, SyntaxError)
        else inside[-1]
        if inside
        else 1
    )
    return TerminalError(
        "transform-failed",
        tried=f"import {path}",
        found=f"{path}:{line or 1}: {type(error).__name__}: {shortened(first_line(error))}",
        next="correct the module, then run the pipeline again",
    )


def failed(
    dotted: str, transform: Transform, error: BaseException, column: str = "", value: str = ""
) -> TerminalError:
    """Return TerminalError `transform-failed`. `column`, `value`: what fails, and on which input,
    if that is known.
    """
    where = _where(transform, error)
    found = f"{where}: {_message(error)}"
    found += f"; column {column}" if column else ""
    found += f", first on {value}" if value else ""
    return TerminalError(
        "transform-failed",
        tried=f"apply transform {dotted}",
        found=found,
        changed="nothing of this batch is in the table",
        next="correct the transform, then run the pipeline again: the batch is repeated. Where text may not fit, "
        "let it give NULL (try_to_date, try_cast), or declare the column with its format",
    )


def _where(transform: Transform, error: BaseException) -> str:
    """Return file, line and function: the line of the transform's file where the error was raised,
    if it is known.
    """
    function = inspect.unwrap(transform)
    code = getattr(function, "__code__", None)
    path, line = (code.co_filename, code.co_firstlineno) if code else ("?", 0)
    inside = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    text = said(error)
    lines = (*_PYTHON.findall(text), *_QUERY.findall(text))
    told = [int(at) for file, at in lines if Path(file).name == Path(path).name]
    return f"{path}:{([line, *inside, *told])[-1]} in {getattr(function, '__name__', 'transform')}"


def _message(error: BaseException) -> str:
    """Return what is wrong in one line: of an error in Python code the last line of its trace."""
    text = said(error)
    if "Traceback (most recent call last)" in text:
        lines = [
            line.strip()
            for line in text.partition("JVM stacktrace")[0].splitlines()
            if line.strip()
        ]
        python = [
            line for line in lines if re.match(r"[A-Za-z_.]*(Error|Exception|Warning)\b", line)
        ]
        if python:
            return shortened(python[-1])
    line = _STATE.sub(
        "", _CODE.sub("", next(iter(re.findall(r"\[[A-Z0-9_.]+\][^\n]*", text)), first_line(error)))
    )
    return shortened(f"{type(error).__name__}: {line}")
