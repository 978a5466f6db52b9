"""Write pipeline files from a program, for teams that generate them.

The files stay the truth: they are committed, reviewed and loaded as if they were written by hand.
A script that writes them runs in CI, before `git diff --exit-code`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from draindown.base.errors import TerminalError
from draindown.config import loader, yaml_text
from draindown.config.file_errors import PROJECT_FILE, Unset, described_keys
from draindown.config.layers import Layers

__all__ = ["write"]


def write(path: str | Path, pipeline: Mapping[str, Any]) -> bool:
    """Validate a pipeline and write its file, with a header that names the script that runs.

    `pipeline` has the keys of a pipeline file, in any of its forms: templates, `${NAME}` and
    `${var.NAME}` are allowed. It is checked with the project file of the project that `path` is in,
    in each environment. Environment variables need not be set. The same pipeline gives the same
    text. Return whether the file was changed. Raises TerminalError `invalid-pipeline`, which names
    each wrong key, and leaves the file as it was; TypeError for values that YAML has no form for.
    """
    file = Path(path)
    root = _root(file)
    text = _header(root) + yaml_text.written(pipeline)
    _check(file, text, root)
    if file.is_file() and file.read_bytes() == text.encode():
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    _replace(file, text)
    return True


def _root(file: Path) -> Path:
    """Return the project root of a pipeline file: the nearest directory above with a project file,
    else that which holds dags/pipelines.
    """
    parents = list(file.absolute().parents)
    for place in parents:
        if (place / PROJECT_FILE).exists():
            return place
    return next((one for one in parents if (one / loader.DIRECTORY).is_dir()), parents[0])


def _header(root: Path) -> str:
    script = Path(sys.argv[0] or "python").absolute()
    named = script.relative_to(root) if script.is_relative_to(root) else Path(script.name)
    return f"# Written by {named}. Edit that script, not this file.\n"


def _check(file: Path, text: str, root: Path) -> None:
    """Raise TerminalError `invalid-pipeline` if the text is not valid in an environment."""
    for given in loader.every_environment(root, {}):
        try:
            loader.of_text(file, text, {}, replace(given or Layers(), lenient=True))
        except Unset:
            continue
        except TerminalError as error:
            raise TerminalError(
                error.code,
                tried=f"write pipeline file {file}",
                found=described_keys(file, error.found),
                changed="nothing; the file is as it was",
                next=f"correct the script {Path(sys.argv[0]).name}, and run it again",
            ) from None


def _replace(file: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as made:
            made.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
