"""Scratch copies of a flow: the same pipeline on separate lakes, with copies of some of its real
input files.

One directory holds what all copies read, unless brokers have it, and one project per copy
(`control/` and one per fault), in which every command works: `draindown --root SCRATCH/FLOW/control
doctor PIPELINE`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draindown.base.errors import TerminalError
from draindown.config.kafka import KafkaSource
from draindown.config.loader import DIRECTORY, load
from draindown.config.models import PipelineSpec
from draindown.config.project import rooted
from draindown.config.sources import FilesSource
from draindown.drill import copied_files, topic_ends
from draindown.drill.material import Material, Wanted
from draindown.lake import lake_records
from draindown.lake.home import FlowHome
from draindown.runs.request import Request, Step
from draindown.sources.files.listing import directory_of

_MATERIALS: Mapping[str, Callable[[Wanted], Material]] = {
    FilesSource.kind: copied_files.copied,
    KafkaSource.kind: topic_ends.newest,
}


@dataclass(frozen=True)
class Project:
    """One copy: a project root, and the pipeline with this flow only that its YAML file
    declares.
    """

    root: Path
    spec: PipelineSpec
    flow: str

    @property
    def layout(self) -> FlowHome:
        """The paths of the copy's tables and files."""
        return self.spec.layout(self.flow)

    def request(self, run_id: str, step: Step = "drain", most: int | None = None) -> Request:
        """Return a request to do a step of the copy, a drain of at most so many batches."""
        return Request(
            spec=self.spec,
            flow=self.flow,
            step=step,
            run_id=run_id,
            owner="drill",
            root=str(self.root),
            max_batches=most,
        )


@dataclass(frozen=True)
class Scratch:
    """The directory with the copies of one flow. `spec`: of every copy, with a lake path relative
    to the copy.
    """

    home: Path
    root: Path
    spec: PipelineSpec
    flow: str
    material: Material

    def project(self, name: str) -> Project:
        """Make a copy with an empty lake."""
        root = self.home / name
        made = Project(root, write_project(root, self.spec, self.root), self.flow)
        self.material.plant(made.layout)
        return made

    def empty(self, of: Project) -> None:
        """Make the lake of a copy as empty as it was, with what confines it to its input."""
        shutil.rmtree(of.spec.lake)
        lake_records.forget(of.root)
        self.material.plant(of.layout)

    def copy(self, of: Project, name: str) -> Project:
        """Make a copy with a copy of another one's lake."""
        made = self.project(name)
        shutil.copytree(of.spec.lake, made.spec.lake, dirs_exist_ok=True)
        return made


def prepare(
    home: Path, spec: PipelineSpec, flow: str, root: Path, *, max_files: int, max_bytes: int
) -> Scratch:
    """Gather input for copies below `home`, at most so much of it, and bound its batches.

    Raises TerminalError `nothing-to-drill`, `source-missing`, and what the source raises that can't
    be looked at.
    """
    wanted = Wanted(home, spec, flow, root, max_files, max_bytes)
    kind = spec.flow(flow).source.kind
    if kind not in _MATERIALS:
        raise wanted.nothing(f"a drill knows no way to copy what a flow of {kind} reads")
    material = _MATERIALS[kind](wanted)
    document = spec.model_dump(mode="json")
    one = document["flows"][flow]
    one["source"] |= material.source
    # no other host mounts the copies, and after a kill a run can take a local lease at once;
    # nothing leaves them
    document |= {"lake": "lake", "lease": {}, "schedule": None}
    document["flows"] = {flow: one | {"max_duration": None, "max_batches": None, "sinks": {}}}
    return Scratch(home, root, PipelineSpec.model_validate(document), flow, material)


def refuse_bad_place(scratch: Path, spec: PipelineSpec, flows: Sequence[str], root: Path) -> None:
    """Raise TerminalError `scratch-in-use` if the directory is not empty, or if it and the lake or
    a source overlap.

    `flows`: landing flows, whose input is copied.
    """
    scratch = scratch.resolve()
    read = [spec.flow(flow).source for flow in flows]
    sources = [directory_of(source, root) for source in read if isinstance(source, FilesSource)]
    taken = [place.resolve() for place in (Path(spec.lake), *sources)]
    crossed = [
        place for place in taken if scratch.is_relative_to(place) or place.is_relative_to(scratch)
    ]
    if not crossed and not (scratch.exists() and any(scratch.iterdir())):
        return
    raise TerminalError(
        "scratch-in-use",
        tried=f"make copies of pipeline {spec.pipeline} in {scratch}",
        found=f"one of it and {crossed[0]} lies in the other"
        if crossed
        else "the directory is not empty",
        next="draindown drill all PIPELINE --scratch NEW_DIRECTORY",
    )


def write_project(place: Path, spec: PipelineSpec, root: Path) -> PipelineSpec:
    """Make a project of one pipeline, with the transforms and suites of the project at `root`.
    Return its spec.
    """
    file = place / DIRECTORY / f"{spec.pipeline}.yaml"
    file.parent.mkdir(parents=True)
    # JSON is valid YAML, and its strings are quoted, so that none is read as a number
    document = spec.model_dump(mode="json", exclude={"lease"})  # a copy's is local
    file.write_text(json.dumps(_spelled(document), indent=1, ensure_ascii=False))
    for part in ("jobs", "expectations"):
        if (root / part).is_dir():
            (place / part).symlink_to(root / part, target_is_directory=True)
    return rooted(load(file, {}), place)


def _spelled(value: Any) -> Any:
    """Return values as a pipeline file spells them: `$`, which would start a variable, becomes
    `$$`.
    """
    if isinstance(value, dict):
        return {key: _spelled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_spelled(one) for one in value]
    return value.replace("$", "$$") if isinstance(value, str) else value
