"""The project directory of a pipeline: paths are resolved from its root, whatever the working directory is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draindown.base.errors import TerminalError
from draindown.spec.models import PipelineSpec


def rooted(spec: PipelineSpec, root: Path) -> PipelineSpec:
    """Return the spec with its lake resolved against the project root."""
    if Path(spec.lake).is_absolute():
        return spec
    return spec.model_copy(update={"lake": str(root / spec.lake)})


def suite(root: Path, name: str) -> dict[str, Any]:
    """Return the Great Expectations suite of that name. Raises TerminalError `bad-suite`."""
    path = root / "expectations" / f"{name}.json"
    try:
        found = json.loads(path.read_text())
        expected = found.get("expectations") if isinstance(found, dict) else None
        if isinstance(expected, list) and all(isinstance(one, dict) for one in expected):
            return dict(found)
        problem = "it holds no JSON object whose `expectations` are a list of objects"
    except (OSError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise TerminalError(
        "bad-suite", tried=f"read {path}", found=problem, next=f"write the suite to expectations/{name}.json"
    )
