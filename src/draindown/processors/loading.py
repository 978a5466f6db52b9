"""The file of a processor: where it is, its digest, and the class in it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from draindown.base.errors import TerminalError, first_line
from draindown.base.formatting import shortened

DIRECTORY = Path("jobs", "processors")
"""Where processors are, below the project root."""


def path_of(root: str, dotted: str) -> Path:
    """Return the file of `module.Class` below the project root."""
    module = dotted.rpartition(".")[0]
    return Path(root, DIRECTORY, *module.split(".")).with_suffix(".py")


def digest(root: str, dotted: str) -> str:
    """Return a digest of the file of a class; empty if it can't be read."""
    try:
        return hashlib.sha256(path_of(root, dotted).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def load(root: str, dotted: str) -> tuple[type, ModuleType]:
    """Return the class `module.Class` of `<root>/jobs/processors/`, and its module.

    Raises TerminalError `processor-missing`, `processor-failed`.
    """
    path, name = path_of(root, dotted), dotted.rpartition(".")[2]
    if not path.is_file():
        raise missing(dotted, f"no file {path}")
    module = _imported(path, dotted.rpartition(".")[0])
    found = getattr(module, name, None)
    if not isinstance(found, type) or not callable(getattr(found, "process", None)):
        raise missing(dotted, f"{path} has no class {name} with a method process(snapshot, rows)")
    return found, module


def missing(dotted: str, found: str) -> TerminalError:
    """Return TerminalError `processor-missing`."""
    return TerminalError(
        "processor-missing",
        tried=f"load processor {dotted} from {DIRECTORY}/",
        found=found,
        changed="nothing of this batch is in the table",
        next="put it there, then run the pipeline again",
    )


def _imported(path: Path, name: str) -> ModuleType:
    qualified = f"draindown_processors.{name}"
    spec = importlib.util.spec_from_file_location(qualified, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except Exception as error:
        raise TerminalError(
            "processor-failed",
            tried=f"import {path}",
            found=f"{type(error).__name__}: {shortened(first_line(error))}",
            changed="nothing of this batch is in the table",
            next="correct the module, then run the pipeline again",
        ) from error
    return module
