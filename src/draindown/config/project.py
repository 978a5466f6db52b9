"""The project directory of a pipeline: paths are resolved from its root, whatever the working
directory is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from draindown.base.errors import TerminalError
from draindown.config.loader import DIRECTORY, BrokenPipeline
from draindown.config.models import PipelineSpec
from draindown.config.names import near
from draindown.config.sources import FilesSource
from draindown.config.yaml_document import DocumentError, parse

_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\^|]")
"""What deltalake takes for something else in the path of a table: `%20` for a blank, a backslash
for a slash, the rest for no path at all."""


def rooted(spec: PipelineSpec, root: Path) -> PipelineSpec:
    """Return the spec with its lake, and the code that its flows name, resolved against the project
    root.

    Raises TerminalError `lake-misread` if the tables of a lake there would be looked for elsewhere.
    """
    _refuse_misread(spec, str(root / spec.lake))
    if Path(spec.lake).is_absolute():
        return spec.placed(root)
    return spec.model_copy(update={"lake": str(root / spec.lake)}).placed(root)


def each_rooted(
    loaded: Iterable[PipelineSpec | BrokenPipeline], root: Path
) -> Iterator[PipelineSpec | BrokenPipeline]:
    """Yield the pipelines of a project as `rooted` returns them; one that it refuses does not hide
    the others.
    """
    for one in loaded:
        if isinstance(one, BrokenPipeline):
            yield one
            continue
        try:
            yield rooted(one, root)
        except TerminalError as error:
            yield BrokenPipeline(
                root / DIRECTORY, one.pipeline, error, one.schedule, one.lake, tuple(one.flows)
            )


def _refuse_misread(spec: PipelineSpec, lake: str) -> None:
    real = os.path.realpath(lake)  # deltalake follows links, also to a directory of another name
    found = _MISREAD.search(real)
    if not found:
        return
    raise TerminalError(
        "lake-misread",
        tried=f"find the lake of pipeline {spec.pipeline}",
        found=f"its path {real} contains {found[0]!r}, which the reader of Delta tables takes for something else: it "
        "would look for tables in another directory, or end",
        next=[
            f"draindown validate {spec.pipeline}   # once `lake`, or the variable that it names, is an absolute path "
            "without it",
            "move the project to a directory without it, if `lake` is a relative path",
        ],
    )


def relative(spec: PipelineSpec, flow: str) -> list[str]:
    """Return labels (`the lake`, `the files of flow F`) of the paths that are relative to the
    project root.
    """
    source = spec.flows[flow].source
    files = source.files if isinstance(source, FilesSource) else ""
    return relative_lake(spec.lake) + (
        [f"the files of flow {flow}"] if files and _is_relative(files) else []
    )


def relative_lake(lake: str) -> list[str]:
    """Return the label `the lake` if the path of a lake is relative to the project root; else
    nothing.
    """
    return [] if Path(lake).is_absolute() else ["the lake"]


def _is_relative(path: str) -> bool:
    choices = re.match(r"\{([^{}]*)\}", path)  # {/a,/b}/*.json
    return not all(one.startswith("/") for one in (choices[1].split(",") if choices else [path]))


def suite(root: Path, name: str) -> dict[str, Any]:
    """Return the Great Expectations suite of that name. Raises TerminalError `bad-suite`."""
    path, then = suite_path(root, name), "is corrected"
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = json.loads(text)
        problems = _shape(found, text)
        if not problems:
            return dict(found)
        wrong = "\n".join(f"{path}:{line}: {what}" for line, what in problems)
    except json.JSONDecodeError as error:
        wrong = f"{path}:{error.lineno}:{error.colno}: is no JSON: {error.msg[:1].lower()}{error.msg[1:]}"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        wrong = f"{path}:{line}: is not UTF-8; save it as UTF-8"
    except FileNotFoundError:
        then = "is there"
        wrong = f"there is no file {path}{near(name, (other.stem for other in path.parent.glob('*.json')))}"
    except OSError as error:
        wrong = f"{path} can't be read: {error.strerror}"
    except RecursionError:
        wrong = f"{path}:1: is nested too deeply"
    raise TerminalError(
        "bad-suite",
        tried=f"read {path}",
        found=wrong,
        next=f"draindown validate   # once expectations/{name}.json {then}",
    )


def suite_path(root: Path, name: str) -> Path:
    """Return where the suite of that name is, below the project root."""
    return root / "expectations" / f"{name}.json"


def expectation_lines(text: str, number: int) -> list[int]:
    """Return the line on which each expectation starts; 1 if unknown. JSON is read as YAML, for its
    positions.
    """
    try:
        document = parse(text.expandtabs(), {})
    except DocumentError:
        return [1] * number
    return [document.value_mark(("expectations", str(at))).line for at in range(number)]


def _shape(found: Any, text: str) -> list[tuple[int, str]]:
    """Return line and problem of each part that is not of the kind that a suite has there."""
    listed = found.get("expectations") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        return [(1, "holds no JSON object whose `expectations` are a list of objects")]
    problems, lines = [], expectation_lines(text, len(listed))
    for line, one in zip(lines, listed, strict=True):
        if not isinstance(one, dict):
            problems.append((line, "`expectations` are no list of objects"))
            continue
        problems += [
            (line, f"`{key}` of an expectation must be an object")
            for key in ("kwargs", "meta")
            if not isinstance(one.get(key) or {}, dict)
        ]
    return problems
