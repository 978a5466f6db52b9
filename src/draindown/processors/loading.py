"""The file of a processor: where it is, its digest, and the class in it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType

from draindown.base.errors import TerminalError, TransientError, first_line
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
        return _digest(path_of(root, dotted).read_bytes())
    except OSError:
        return ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def load(root: str, dotted: str, code: str) -> tuple[type, ModuleType]:
    """Return the class `module.Class` of `<root>/jobs/processors/`, and its module. `code`: the
    digest of its file.

    Raises TerminalError `processor-missing`, `processor-failed`, TransientError
    `derivation-changed` if the file has another digest by now.
    """
    path, name = path_of(root, dotted), dotted.rpartition(".")[2]
    try:
        content = path.read_bytes()
    except OSError:
        raise missing(dotted, f"no file {path}") from None
    if _digest(content) != code:
        raise TransientError(
            "derivation-changed",
            tried=f"load processor {dotted} from {DIRECTORY}/",
            found=f"{path} was changed since this run began",
            changed="nothing of this batch is in the table",
            next="run the pipeline again",
        )
    module = _imported(content, path, dotted.rpartition(".")[0])
    found = getattr(module, name, None)
    if not isinstance(found, type) or not callable(getattr(found, "process", None)):
        raise missing(dotted, f"{path} has no class {name} with a method process(state, rows)")
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


class _Read(SourceLoader):
    """Loads a module from what was read of its file, whatever the file has by now."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path, self._content = str(path), content

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002
        """Return the path, for traces."""
        return self._path

    def get_data(self, path: str) -> bytes:  # noqa: ARG002
        """Return the content."""
        return self._content


def _imported(content: bytes, path: Path, name: str) -> ModuleType:
    qualified = f"draindown_processors.{name}"
    loader = _Read(path, content)
    spec = importlib.util.spec_from_loader(qualified, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module
    try:
        loader.exec_module(module)
    except Exception as error:
        raise TerminalError(
            "processor-failed",
            tried=f"import {path}",
            found=f"{type(error).__name__}: {shortened(first_line(error))}",
            changed="nothing of this batch is in the table",
            next="correct the module, then run the pipeline again",
        ) from error
    return module
