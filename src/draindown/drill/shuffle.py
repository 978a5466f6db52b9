"""Drain copies of flows again with their slices in another order, merged and split: the tables must
be the same.

Slices are written into the intake of a copy before it drains, with what the control pinned of each
file. So arrivals are the same, and a copy does what a drain does after its driver died with all
input pinned.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from draindown.base.errors import TerminalError
from draindown.base.exits import Exit
from draindown.base.formatting import count
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.config.sources import FilesSource
from draindown.drill import baseline, isolation, process, rounds
from draindown.drill.baseline import Tell
from draindown.drill.copied_files import copied
from draindown.drill.isolation import Before
from draindown.drill.material import Wanted
from draindown.drill.orders import Difference, differences
from draindown.drill.rounds import Rounds
from draindown.drill.sandbox import Project, refuse_bad_place, write_project
from draindown.lake.home import FlowHome
from draindown.sources import intake

_SOON = 60  # seconds within which a killed process must end
_STEPS = ("begun", "read", "merged", "recorded")
_NOT_KILLED = "its driver ended before it could be killed"
_LEAST = 2  # files of different content, for a second order
_PIECES = 3  # slices at least, where there are as many files: a round for each


@dataclass(frozen=True)
class Shuffle:
    """What to shuffle.

    `flows`: flows of the pipeline; `scratch`: the directory for the copies; `max_files`,
    `max_bytes`: how much input of each flow is copied; `seeds`: from which orders are drawn, a copy
    each.
    """

    spec: PipelineSpec
    flows: Sequence[str]
    root: Path
    scratch: Path
    max_files: int
    max_bytes: int
    seeds: Sequence[int]


@dataclass(frozen=True)
class Order:
    """One order of the slices, and what differs from the control.

    `slices`: by landing flow, the files of each slice, as their places in the control's order.
    `kills`: by landing flow, where its first driver was killed; empty where it ended before.
    `failed`: why the copy could not be drained; empty if it was. `rounds`: by landing flow, how
    many slices were drained each time before the derived flows ran; empty without derived flows.
    """

    seed: int
    slices: Mapping[str, Sequence[Sequence[int]]]
    kills: Mapping[str, str]
    differences: Sequence[Difference] = ()
    failed: str = ""
    rounds: Rounds = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether the copy was drained, and nothing differs."""
        return not self.failed and not self.differences


@dataclass(frozen=True)
class Shuffled:
    """All orders of one drill. `wrong`: changes outside of its copies; `unlooked`: what could not
    be checked.
    """

    pipeline: str
    scratch: str
    orders: Sequence[Order]
    wrong: Sequence[str] = ()
    unlooked: Sequence[str] = ()

    @property
    def held(self) -> bool:
        """Whether no order made a difference, and nothing else was changed."""
        return not self.wrong and all(one.held for one in self.orders)

    def as_dict(self, *, kept: bool) -> dict[str, Any]:
        """Return a JSON-ready dictionary. `kept`: the scratch directory still exists, so it is
        named.
        """
        orders = [asdict(one) | {"held": one.held} for one in self.orders]
        whole = {
            "pipeline": self.pipeline,
            "held": self.held,
            "orders": orders,
            "wrong": list(self.wrong),
        }
        return whole | {"unlooked": list(self.unlooked), "scratch": self.scratch if kept else None}

    def __str__(self) -> str:
        lines = []
        for one in self.orders:
            made = ", ".join(
                f"{flow}: {count(len(some), 'slice')}" for flow, some in one.slices.items()
            )
            made += f", {_in_rounds(one.rounds)}" if one.rounds else ""
            lines.append(f"seed {one.seed}  {'held' if one.held else 'DIFFERS'}  {made}")
            lines += [f"  {flow}: {where or _NOT_KILLED}" for flow, where in one.kills.items()]
            lines += [f"  {difference}" for difference in one.differences]
            lines += [f"  failed: {one.failed}"] if one.failed else []
        lines += [f"WRONG  {text}" for text in self.wrong] + [
            f"not looked at  {text}" for text in self.unlooked
        ]
        held = sum(one.held for one in self.orders)
        return "\n".join(
            [*lines, f"{held} of {count(len(self.orders), 'order')} made no difference"]
        )


def play(asked: Shuffle, tell: Tell) -> Shuffled:
    """Drain a control and a copy for each seed in `asked.scratch`, which must be empty or absent,
    and compare.

    The directory is removed if there is nothing to shuffle. Raises TerminalError
    `nothing-to-drill`, `source-missing`, `scratch-in-use`, `control-failed`.
    """
    flows, unlooked = _chosen(asked.spec, asked.flows)
    landing = [name for name in flows if not asked.spec.is_derived(name)]
    refuse_bad_place(asked.scratch, asked.spec, landing, asked.root)
    asked.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        spec, before = _copied(asked, flows, landing, tell)
    except TerminalError:
        shutil.rmtree(asked.scratch)
        raise
    control = _project(asked, spec, "control")
    tell("a drain in the order of the files, to compare with")
    if failed := _drain(control, flows):
        raise _control_failed(control, failed)
    for name in landing:
        _refuse_one_order(asked, control.spec.layout(name), name)
    orders = list(_each(asked, spec, control, flows, landing, tell))
    changes = [one.changes() for one in before]
    wrong = [text for changed, _ in changes for text in changed]
    unlooked += [text for _, unsure in changes for text in unsure]
    return Shuffled(spec.pipeline, str(asked.scratch), orders, wrong, unlooked)


def _chosen(spec: PipelineSpec, wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flows to drain in the order they run: those wanted, all that they read, and
    derived ones behind them.

    And of several wanted which can't be, each with why. Raises TerminalError `nothing-to-drill` if
    none can be.
    """
    hindered = {name: why for name in spec.graph.order if (why := _hindered(spec, name))}
    fit = [name for name in wanted if name not in hindered]
    if not fit:
        raise _nothing(spec, wanted[0], hindered[wanted[0]])
    found = set[str]()
    while fit:
        found.add(name := fit.pop())
        fit += [one for one in spec.graph.upstream(name) if one not in found]
    for name in spec.graph.order:
        above = spec.graph.upstream(name)
        if above and name not in hindered and found.issuperset(above):
            found.add(name)
    unlooked = [f"flow {name}: {hindered[name]}" for name in wanted if name in hindered]
    return [name for name in spec.graph.order if name in found], unlooked


def _hindered(spec: PipelineSpec, name: str) -> str:
    """Return why a flow can't be drained in another order; empty if it can."""
    declared = spec.declared(name)
    if isinstance(declared, DerivedFlow):
        other = [one for one in declared.source.read if one.pipeline]
        if other:
            return f"it reads table {other[0]}, and a drill copies one pipeline"
        return next((why for one in spec.graph.upstream(name) if (why := _hindered(spec, one))), "")
    if isinstance(declared.source, FilesSource):
        return ""
    return f"it reads {declared.source.kind}, whose positions have one order; files have any"


def _copied(
    asked: Shuffle, flows: Sequence[str], landing: Sequence[str], tell: Tell
) -> tuple[PipelineSpec, list[Before]]:
    """Copy the input of landing flows. Return the spec of every copy, and how lake and sources were
    before.
    """
    document, before = asked.spec.model_dump(mode="json"), list[Before]()
    made = {
        name: document["flows"][name] | {"max_duration": None, "max_batches": None, "sinks": {}}
        for name in flows
    }
    for name in landing:
        home = asked.scratch / "input" / name
        home.mkdir(parents=True)
        material = copied(
            Wanted(home, asked.spec, name, asked.root, asked.max_files, asked.max_bytes)
        )
        before.append(isolation.look(asked.spec.layout(name), material.read))
        fields = dict(material.source) | {"files": f"../input/{name}/source/*/*"}
        bounds = {
            "quarantine": {"warn": "100%", "fail": "100%"},
            "expectations": None,
        }  # a part of the input proves nothing
        made[name] |= {"source": made[name]["source"] | fields, **bounds}
        tell(f"{asked.spec.pipeline}/{name}: {material.told}, copies in {asked.scratch}")
    for name in set(flows) - set(landing):
        made[name] |= {"expectations": None}
    document |= {"lake": "lake", "lease": {}, "schedule": None, "flows": made}
    return PipelineSpec.model_validate(document), before


def _project(asked: Shuffle, spec: PipelineSpec, name: str) -> Project:
    root = asked.scratch / name
    return Project(root, write_project(root, spec, asked.root), asked.flows[0])


def _drain(project: Project, flows: Sequence[str]) -> str:
    """Run all flows of a copy until each has read what those before it published. Return why it
    failed, or nothing.
    """
    for _ in range(1 + sum(project.spec.is_derived(name) for name in flows)):
        done = baseline.call(project, rounds.PATIENCE, "run", project.spec.pipeline, "--no-compact")
        if done.code != Exit.DONE:
            (project.root / "run.log").write_text(done.out + done.err)
            return (
                f"{done.error.get('code') or f'exit {done.code}'}: see {project.root / 'run.log'}"
            )
        if all(report["step"] == "plan" for report in json.loads(done.out)["reports"]):
            break
    return ""


def _each(
    asked: Shuffle,
    spec: PipelineSpec,
    control: Project,
    flows: Sequence[str],
    landing: Sequence[str],
    tell: Tell,
) -> Iterator[Order]:
    for seed in asked.seeds:
        copy, draw = _project(asked, spec, f"seed-{seed}"), Random(seed)
        slices = {
            name: _pin(control.spec.layout(name), copy.spec.layout(name), draw) for name in landing
        }
        number = {name: len(some) for name, some in slices.items()}
        parts = rounds.divided(number, draw) if len(flows) > len(landing) else {}
        made = [f"{count(some, 'slice')} of {name}" for name, some in number.items()]
        tell(f"seed {seed}: {', '.join([*made, *([_in_rounds(parts)] if parts else [])])}")
        first = {name: parts[name][0] if parts else some for name, some in number.items()}
        kills = {
            name: _killed(replace(copy, flow=name), first[name], number[name], draw)
            for name in landing
        }
        failed = (rounds.run(copy, flows, parts) if parts else "") or _drain(copy, flows)
        order = Order(seed, slices, kills, failed=failed, rounds=parts)
        if not failed:
            order = replace(order, differences=list(differences(control.spec, copy.spec, flows)))
        tell(f"seed {seed}: {'no difference' if order.held else 'DIFFERS'}")
        yield order


def _refuse_one_order(asked: Shuffle, control: FlowHome, flow: str) -> None:
    """Refuse input that has one order only. Raises TerminalError `nothing-to-drill`, and removes
    the copies.
    """
    log = control.tables.intake(1)
    different = (
        len({row["sha256"] for row in log.rows("select sha256 from t")}) if log.exists else 0
    )
    if different < _LEAST:
        shutil.rmtree(asked.scratch)
        one = "its files have one content, so there is no second order; --max-files takes more of them"
        raise _nothing(
            asked.spec, flow, one if different else "no file can be read: all were parked"
        )


def _pin(control: FlowHome, copy: FlowHome, draw: Random) -> list[list[int]]:
    """Pin what the control pinned in slices of another order or size. Return the places in each,
    from 0.

    The control has files of at least two contents, so that there is another order.
    """
    log = control.tables.intake(1)
    rows, schema = (
        log.rows("select * from t order by slice, input"),
        log.query("select * from t limit 0").schema,
    )
    own = pa.schema([field for field in schema if field.name not in intake.COLUMNS.names])
    contents = [row["sha256"] for row in rows]
    in_order = [
        [contents[at] for at in some]
        for _, some in groupby(range(len(rows)), lambda at: rows[at]["slice"])
    ]
    places, slices = list(range(len(rows))), list[list[int]]()
    while not slices or [[contents[at] for at in some] for some in slices] == in_order:
        draw.shuffle(places)
        slices = list(_cut(places, draw))
    for number, some in enumerate(slices, 1):
        units = [
            {name: rows[at][name] for name in rows[at] if name not in ("slice", "first_seen")}
            for at in some
        ]
        intake.append(copy, 1, own, units, rows[0]["first_seen"], number)
    return slices


def _killed(copy: Project, first: int, slices: int, draw: Random) -> str:
    """Drain a copy's flow by a driver that is killed in a batch of the first ones. Return where;
    empty if it ended.
    """
    place = draw.choice(_STEPS), draw.randrange(max(first, 1))
    with baseline.struck(copy, place, "kill", most=first) as driver:
        jvm = process.wait_for_fault(copy.root, driver, rounds.PATIENCE)
        code = process.code_of(driver, _SOON if jvm else rounds.PATIENCE)
    is_dead = code == -signal.SIGKILL and jvm is not None and process.gone(jvm)
    return (
        f"its driver was killed in batch {place[1] + 1} of {slices}, {place[0]}" if is_dead else ""
    )


def _cut(places: Sequence[int], draw: Random) -> Iterator[list[int]]:
    """Yield the places in pieces of random sizes: some of one, some of many."""
    most = draw.randint(1, max(1, len(places) // _PIECES))
    at = 0
    while at < len(places):
        size = draw.randint(1, most)
        yield list(places[at : at + size])
        at += size


def _in_rounds(parts: Rounds) -> str:
    return f"in {count(max(map(len, parts.values())), 'round')}"


def _nothing(spec: PipelineSpec, flow: str, found: str) -> TerminalError:
    return TerminalError(
        "nothing-to-drill",
        tried=f"drain flow {flow} of pipeline {spec.pipeline} with its slices in another order",
        found=found,
        changed="nothing",
        next=f"draindown drill shuffle {spec.pipeline}/FLOW   # another one",
    )


def _control_failed(project: Project, failed: str) -> TerminalError:
    return TerminalError(
        "control-failed",
        tried="drain a copy in the order of its files",
        found=failed,
        next=[f"less {project.root / 'run.log'}", f"draindown run {project.spec.pipeline}"],
        in_order=True,
    )
