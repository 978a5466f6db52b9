"""Scratch copies of a flow: its pipeline on lakes of their own, over copies of some of its real files.

Below one directory: `source/`, which all copies read, and a project per copy (`control/`, one per fault) in which every
command works: `draindown --root SCRATCH/FLOW/control doctor PIPELINE`.
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
"""A first, a middle and a last one, at least."""
_SOURCE = "source"


@dataclass(frozen=True)
class Project:
    """One copy: a project root, the pipeline (of this one flow) that its file declares, and where it writes."""

    root: Path
    spec: PipelineSpec
    flow: str

    @property
    def layout(self) -> FlowLayout:
        """Where the copy's tables and files are."""
        return self.spec.layout(self.flow)

    def request(self, run_id: str) -> Request:
        """A request to drain the copy."""
        return Request(spec=self.spec, flow=self.flow, step="drain", run_id=run_id, owner="drill", root=str(self.root))


@dataclass(frozen=True)
class Scratch:
    """Where the copies of one flow are made. `spec` is that of all copies, its lake relative to each."""

    home: Path
    root: Path
    spec: PipelineSpec
    flow: str
    inputs: tuple[SourceFile, ...]

    def project(self, name: str) -> Project:
        """A copy with an empty lake."""
        root = self.home / name
        file = root / DIRECTORY / f"{self.spec.pipeline}.yaml"
        file.parent.mkdir(parents=True)
        # JSON is YAML whose strings can't be taken for numbers
        file.write_text(json.dumps(_spelled(self.spec.model_dump(mode="json")), indent=1, ensure_ascii=False))
        for part in ("jobs", "expectations"):
            if (self.root / part).is_dir():
                (root / part).symlink_to(self.root / part, target_is_directory=True)
        return Project(root, rooted(load(file, {}), root), self.flow)

    def copy(self, of: Project, name: str) -> Project:
        """A copy whose lake is that of another."""
        made = self.project(name)
        shutil.copytree(of.spec.lake, made.spec.lake)
        return made


def prepare(home: Path, spec: PipelineSpec, flow: str, root: Path, *, max_files: int, max_bytes: int) -> Scratch:
    """Link the flow's oldest files, at most so many and one at least, below `home`, and bound the batches.

    Raises TerminalError `nothing-to-drill`, `source-missing`.
    """
    source = spec.flow(flow).source
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
    # nobody else mounts the copies: a local lease lets a run follow a killed one at once
    document |= {"lake": "lake", "lease": {}, "schedule": None}
    document["flows"] = {flow: one | {"deadline": None, "max_batches": None}}
    return Scratch(home, root, PipelineSpec.model_validate(document), flow, tuple(inputs))


def _spelled(value: Any) -> Any:
    """Plain values as a pipeline file spells them: a dollar in one, which would begin a variable, is `$$`."""
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
    """Fill the directory, each file under its own name in a directory of its own, in their order; how many it are.

    Where there are too few for BATCHES batches, lines of text files are dealt out to several, and what is no text is
    delivered more than once.
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
    """The file's lines in so many files of the same kind; nothing where that can't be done."""
    if source.form.columnar:
        return []
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if zipped else path.open("rb") as text:
            raw = text.read(size + 1)
    except (OSError, EOFError, zlib.error):  # it will be parked
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
