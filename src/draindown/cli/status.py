"""The command `status`: all flows at a glance."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.base.errors import DraindownError
from draindown.cli.at_work import at_work, half_rebuilt
from draindown.cli.context import AnyFlows, Json, Setting, Target, flows, new_run_id, setting
from draindown.cli.failures import naming
from draindown.cli.late import number_open
from draindown.cli.output import Output, table
from draindown.cli.overview import Screen

if TYPE_CHECKING:
    from draindown.config.models import PipelineSpec
    from draindown.flow.standing import Standing
    from draindown.lease.holder import Card
    from draindown.sources.port import Look, Part

_PARTITION = ("partition", "next", "end")
_INPUT = ("waiting", "bytes", "oldest")
_FLOW = ("published", "quarantined", "late", "last run", "verdict")


def status(
    ctx: typer.Context,
    target: AnyFlows = None,
    partitions: Annotated[
        bool,
        typer.Option(
            "--partitions",
            help="Show each partition of a topic: its next offset, its end, what waits.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show each flow at a glance: what waits and how old the oldest is, the published version,
    quarantined and late rows, the newest run. Then what to type where something is not well.

    Exits 0 if every flow could be looked at. Starts no JVM.
    """
    here, out, screen = setting(ctx), Output(as_json), Screen()
    partition = _PARTITION if partitions else ()
    rows: list[Sequence[str]] = []
    for spec, flow in _asked(here, target, screen):
        one = _glance(here, spec, flow)
        rows += _rows(one, len(partition))
        screen.data.append(_data(one, partitions=partitions))
        _tell(screen, spec, one)
    header = ("flow", *partition, *_INPUT, *_FLOW)
    numbers = range(1 + (len(partition) > 0), len(header) - 2)
    lines = [table(header, rows, right=numbers)] if rows else []
    out.result(screen.data, "\n".join([*lines, *screen.lines]))
    screen.end()


@dataclass(frozen=True)
class _Glance:
    """One flow at a time.

    `facts`: those of `Health.as_dict`, and `late`, the number of late rows that wait for a decision
    (None of a flow that sets none aside). Empty if they can't be read. `holder`: who holds the lease,
    and how far its run is. `look`: None if the source can't be looked at. `errors`: why.
    """

    pipeline: str
    flow: str
    seen: datetime
    facts: Mapping[str, Any]
    newest: Standing | None
    holder: tuple[Card | None, str]
    look: Look | None
    errors: Sequence[DraindownError]


def _asked(
    here: Setting, target: Target | None, screen: Screen
) -> Iterator[tuple[PipelineSpec, str]]:
    """Yield the flows of the target, or all of the project."""
    if target is not None:
        spec = here.spec(target.pipeline)
        yield from ((spec, flow) for flow in flows(spec, target))
        return
    for spec in screen.present(here):
        yield from ((spec, flow) for flow in spec.graph.order)


def _glance(here: Setting, spec: PipelineSpec, flow: str) -> _Glance:
    """Look at a flow: its source as it is now, and what the lake has of it."""
    from draindown.base.clock import now
    from draindown.flow.health import Health
    from draindown.flow.state import FlowState
    from draindown.planning import plan

    at, errors, state = now(), list[DraindownError](), FlowState.of(spec.layout(flow))
    look, newest, facts = None, None, dict[str, Any]()
    holder: tuple[Card | None, str] = (None, "")
    try:
        with naming(f"draindown plan {spec.pipeline}/{flow}"):
            request = here.request(spec, flow, "plan", new_run_id())
            look = plan.look(request, at, state=state)
    except DraindownError as error:  # what the lake has of the flow may be readable
        errors.append(error)
    health = Health(state, at, look)
    try:
        with naming(f"draindown doctor {spec.pipeline}/{flow}"):
            newest, holder = health.newest_run, health.holder
            facts = health.as_dict() | {"late": number_open(state, spec.declared(flow))}
    except DraindownError as error:  # the other flows may be readable
        errors.append(error)
    return _Glance(spec.pipeline, flow, at, facts, newest, holder, look, errors)


def _rows(one: _Glance, blanks: int) -> list[Sequence[str]]:
    """Return the cells of a flow, and if there are `blanks` for them, of each partition."""
    from draindown.base.formatting import count, size

    rows: list[Sequence[str]] = [
        (f"{one.pipeline}/{one.flow}", *[""] * blanks, *_waiting(one), *_known(one))
    ]
    if one.look is None or not blanks:
        return rows
    for part in one.look.parts:
        place = ("", part.name, str(part.position), str(part.end))
        waits = (count(part.units, one.look.unit), size(part.bytes), _aged(_seconds(one, part)))
        rows.append((*place, *waits, *[""] * len(_FLOW)))
    return rows


def _waiting(one: _Glance) -> Sequence[str]:
    from draindown.base.formatting import count, size
    from draindown.flow.health import backlog_of

    if one.look is None:
        return ("?", "?", "?")
    whole = backlog_of(one.look, one.seen)
    return count(whole.units, whole.unit), size(whole.bytes), _aged(whole.oldest_seconds)


def _known(one: _Glance) -> Sequence[str]:
    from draindown.base.formatting import count

    if not one.facts:
        return ("?",) * len(_FLOW)
    version = one.facts["published"]
    published = "none" if version is None else f"version {version}"
    if one.facts["unpublished"]:
        published += ", newer waits"
    quarantined, late = sum(one.facts["quarantined"].values()), one.facts["late"]
    began, verdict = "-", "no run yet"
    if one.newest is not None:
        began = f"{one.newest.began:%Y-%m-%d %H:%M}" if one.newest.began else "-"
        verdict = one.newest.mark
    return published, count(quarantined), "-" if late is None else count(late), began, verdict


def _aged(seconds: float | None) -> str:
    from draindown.base.formatting import age

    return "-" if seconds is None else age(seconds)


def _data(one: _Glance, *, partitions: bool) -> dict[str, Any]:
    newest = one.newest
    about: dict[str, Any] = {"pipeline": one.pipeline, "flow": one.flow}
    about |= {"run_id": newest and newest.run_id, "started_at": newest and newest.began}
    about |= {"verdict": newest.said if newest else "no run left a report yet", **one.facts}
    if one.look is None:
        about |= {"waiting": None, "seen_at": None}
    if one.errors:
        about["error"] = one.errors[0].as_dict()
    if partitions:
        about["partitions"] = [_part(one, part) for part in one.look.parts] if one.look else []
    return about


def _part(one: _Glance, part: Part) -> dict[str, Any]:
    return {
        "partition": part.name,
        "next": part.position,
        "end": part.end,
        "units": part.units,
        "bytes": part.bytes,
        "oldest_seconds": _seconds(one, part),
    }


def _seconds(one: _Glance, part: Part) -> float | None:
    from draindown.flow.health import seconds_since

    return seconds_since(part.oldest, one.seen)


def _tell(screen: Screen, spec: PipelineSpec, one: _Glance) -> None:
    """Add the lines about what is not well, and who is at work."""
    for error in one.errors:
        screen.tell(f"{one.pipeline}/{one.flow}", error)
    newest = one.newest
    if newest is not None and newest.mark not in ("OK", "IDLE"):
        screen.lines.append(newest.said)
    if newest is not None and not newest.is_well:
        run = f" --run {shlex.quote(newest.run_id)}" if not newest.steps else ""
        screen.lines.append(f"  next: draindown report {one.pipeline}/{one.flow}{run}")
    holder, so_far = one.holder
    if holder is not None and (newest is None or holder.run_id != newest.run_id):
        screen.lines.append(at_work(f"{one.pipeline}/{one.flow}", holder, so_far))
    try:
        with naming(f"draindown doctor {one.pipeline}/{one.flow}"):
            screen.lines += half_rebuilt(spec, [one.flow])
    except DraindownError as error:
        if not one.errors:
            screen.tell(f"{one.pipeline}/{one.flow}", error)
