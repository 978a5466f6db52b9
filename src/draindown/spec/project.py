"""The project directory of a pipeline: paths are resolved from its root, whatever the working directory is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from draindown.base.errors import TerminalError
from draindown.spec.models import PipelineSpec
from draindown.spec.names import near
from draindown.spec.sources import FilesSource
from draindown.spec.yaml_document import DocumentError, parse


def rooted(spec: PipelineSpec, root: Path) -> PipelineSpec:
    """Return the spec with its lake, and the code that its flows name, resolved against the project root."""
    if Path(spec.lake).is_absolute():
        return spec.placed(root)
    return spec.model_copy(update={"lake": str(root / spec.lake)}).placed(root)


def relative(spec: PipelineSpec, flow: str) -> list[str]:
    """Return labels (`the lake`, `the files of flow F`) of the paths that are relative to the project root."""
    source = spec.flows[flow].source
    files = source.files if isinstance(source, FilesSource) else ""
    return relative_lake(spec.lake) + ([f"the files of flow {flow}"] if files and _is_relative(files) else [])


def relative_lake(lake: str) -> list[str]:
    """Return the label `the lake` if the path of a lake is relative to the project root; else nothing."""
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
    """Return the line on which each expectation starts; 1 if unknown. JSON is read as YAML, for its positions."""
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
