"""Scratch copies of a flow: the same pipeline on separate lakes, with copies of some of its real input files.

One directory holds `source/`, which all copies read, and one project per copy (`control/` and one per fault), in which
every command works: `draindown --root SCRATCH/FLOW/control doctor PIPELINE`.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.lake.layout import FlowLayout
from draindown.runs.request import Request
from draindown.sources.files.listing import SourceFile, list_source
from draindown.spec.loader import DIRECTORY, load
from draindown.spec.models import PipelineSpec
from draindown.spec.project import rooted
from draindown.spec.sources import FilesSource

BATCHES = 3
"""The least number of batches to aim for: a first, a middle and a last one."""
_SOURCE = "source"


@dataclass(frozen=True)
class Project:
    """One copy: a project root, and the pipeline with this flow only that its YAML file declares."""

    root: Path
    spec: PipelineSpec
    flow: str

    @property
    def layout(self) -> FlowLayout:
        """The paths of the copy's tables and files."""
        return self.spec.layout(self.flow)

    def request(self, run_id: str) -> Request:
        """Return a request to drain the copy."""
        return Request(spec=self.spec, flow=self.flow, step="drain", run_id=run_id, owner="drill", root=str(self.root))


@dataclass(frozen=True)
class Scratch:
    """The directory with the copies of one flow. `spec`: of every copy, with a lake path relative to the copy."""

    home: Path
    root: Path
    spec: PipelineSpec
    flow: str
    inputs: tuple[SourceFile, ...]

    def project(self, name: str) -> Project:
        """Make a copy with an empty lake."""
        root = self.home / name
        file = root / DIRECTORY / f"{self.spec.pipeline}.yaml"
        file.parent.mkdir(parents=True)
        # JSON is valid YAML, and its strings are quoted, so that none is read as a number
        file.write_text(json.dumps(_spelled(self.spec.model_dump(mode="json")), indent=1, ensure_ascii=False))
        for part in ("jobs", "expectations"):
            if (self.root / part).is_dir():
                (root / part).symlink_to(self.root / part, target_is_directory=True)
        return Project(root, rooted(load(file, {}), root), self.flow)

    def copy(self, of: Project, name: str) -> Project:
        """Make a copy with a copy of another one's lake."""
        made = self.project(name)
        shutil.copytree(of.spec.lake, made.spec.lake)
        return made


def prepare(home: Path, spec: PipelineSpec, flow: str, root: Path, *, max_files: int, max_bytes: int) -> Scratch:
    """Copy the flow's oldest files below `home`, and bound its batches.

    At least one file is taken, at most `max_files`, and no further one once `max_bytes` would be exceeded.

    Raises TerminalError `nothing-to-drill`, `source-missing`.
    """
    source = spec.flow(flow).source
    if not isinstance(source, FilesSource):
        raise TerminalError(
            "nothing-to-drill",
            tried=f"copy the input of flow {flow} of pipeline {spec.pipeline}",
            found=f"a drill copies files, and the flow reads {source.kind}",
            next=f"draindown plan {spec.pipeline}",
        )
    inputs = _some(list_source(source, root, now()).files, max_files, max_bytes)
    if not inputs:
        raise TerminalError(
            "nothing-to-drill",
            tried=f"find input for a drill of flow {flow} of pipeline {spec.pipeline}",
            found=f"no file at {source.files}",
            next=f"draindown plan {spec.pipeline}",
        )
    deliveries = _deliver(home / _SOURCE, inputs, source, max_bytes)
    document = spec.model_dump(mode="json")
    one = document["flows"][flow]
    one["source"] |= {
        "files": f"../{_SOURCE}/*/*",
        "settle": 0,
        "max_bytes_per_trigger": None,
        "max_files_per_trigger": max(1, deliveries // BATCHES),
    }
    # no other host mounts the copies, and after a kill a run can take a local lease at once
    document |= {"lake": "lake", "lease": {}, "schedule": None}
    document["flows"] = {flow: one | {"deadline": None, "max_batches": None}}
    return Scratch(home, root, PipelineSpec.model_validate(document), flow, tuple(inputs))


def _spelled(value: Any) -> Any:
    """Return values as a pipeline file spells them: `$`, which would start a variable, becomes `$$`."""
    if isinstance(value, dict):
        return {key: _spelled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_spelled(one) for one in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _some(files: Sequence[SourceFile], most: int, size: int) -> list[SourceFile]:
    found: list[SourceFile] = []
    for file in files[:most]:
        size -= file.size
        if found and size < 0:
            break
        found.append(file)
    return found


def _deliver(directory: Path, files: Sequence[SourceFile], source: FilesSource, size: int) -> int:
    """Copy the files in order, each into a numbered directory under its own name. Returns the number of copies.

    If there are too few files for BATCHES batches, text files are split by lines, and other files copied repeatedly.
    """
    parts = -(-BATCHES // len(files))
    number = 0
    for file in files:
        pieces: Sequence[bytes | None] = _pieces(Path(file.path), source, parts, size) if parts > 1 else []
        for piece in pieces or [None] * parts:
            number += 1
            place = directory / f"{number:05}" / Path(file.path).name
            place.parent.mkdir(parents=True)
            if piece is None:
                shutil.copy2(file.path, place)
            else:
                place.write_bytes(piece)
                os.utime(place, ns=(file.mtime_ns, file.mtime_ns))
    return number


def _pieces(path: Path, source: FilesSource, parts: int, size: int) -> list[bytes]:
    """Split a text file by lines into `parts` files of the same compression; an empty list if that is not possible."""
    if source.form.columnar:
        return []
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if zipped else path.open("rb") as text:
            raw = text.read(size + 1)
    except (OSError, EOFError, zlib.error):  # unreadable: the drain will park it
        return []
    lines = raw.splitlines(keepends=True) if len(raw) <= size else []
    head = lines[:1] if source.has_header else []
    body = lines[len(head) :]
    if len(body) < parts:
        return []
    pieces = (b"".join([*head, *some]) for some in _dealt(body, parts))
    return [gzip.compress(piece, mtime=0) if zipped else piece for piece in pieces]


def _dealt(lines: Sequence[bytes], parts: int) -> Iterator[Sequence[bytes]]:
    bounds = [len(lines) * part // parts for part in range(parts + 1)]
    return (lines[start:end] for start, end in pairwise(bounds))
