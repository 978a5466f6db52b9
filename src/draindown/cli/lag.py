"""The command `lag`: what waits, by flow and by partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.base.errors import DraindownError
from draindown.cli.context import Json, Setting, new_run_id, setting
from draindown.cli.failures import naming
from draindown.cli.output import Output, table

if TYPE_CHECKING:
    from draindown.config.loader import BrokenPipeline
    from draindown.config.models import PipelineSpec
    from draindown.runs.report import Backlog
    from draindown.sources.port import Part


@dataclass(frozen=True)
class Lag:
    """What waits for a flow, seen at a time. `error`: why it is not known; then there is no
    backlog.

    `flow` is empty for a pipeline that can't be loaded.
    """

    pipeline: str
    flow: str
    seen: datetime
    backlog: Backlog | None = None
    parts: Sequence[Part] = ()
    error: DraindownError | None = None


def lag(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(metavar="PIPELINE", help="Names or YAML files. Default: all."),
    ] = None,
    *,
    ctx: typer.Context,
    partitions: Annotated[
        bool,
        typer.Option(
            "--partitions",
            help="Show each partition of a topic: its next offset, its end, what waits.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what waits per flow, its bytes, and how old the oldest is. Names what can't be read.
    Always exits 0.
    """
    here, out = setting(ctx), Output(as_json)
    found = [
        one for spec in _asked(here, pipelines or ()) for one in _of(here, spec, partitions, out)
    ]
    for one in found:
        if one.error is not None and one.flow:
            where = f"{one.pipeline}/{one.flow}  {one.error.code}"
            out.note(f"{where}, see: draindown plan {one.pipeline}/{one.flow}")
    header = ["flow", *["partition", "next", "end"] * partitions, "input", "bytes", "oldest"]
    rows = [row for one in found for row in _rows(one, partitions)]
    out.result(
        [_data(one, partitions) for one in found],
        table(header, rows, right=range(1 + partitions, len(header))),
    )


def _of(
    here: Setting, spec: PipelineSpec | BrokenPipeline, partitions: bool, out: Output
) -> list[Lag]:
    """Return what waits for each flow of a pipeline; of one that can't be loaded, its error, which
    is printed.
    """
    from draindown.base.clock import now
    from draindown.config.loader import BrokenPipeline

    if not isinstance(spec, BrokenPipeline):
        return [_lag(here, spec, flow, partitions) for flow in spec.flows]
    out.error(spec.error)
    return [Lag(spec.name, "", now(), error=spec.error)]


def _lag(here: Setting, spec: PipelineSpec, flow: str, partitions: bool) -> Lag:
    from draindown.base.clock import now
    from draindown.planning import plan
    from draindown.sources.registry import source_of

    at = now()
    request = here.request(spec, flow, "plan", new_run_id())
    source = source_of(request)
    try:
        with naming(f"draindown plan {spec.pipeline}/{flow}"):
            backlog = plan.plan(request, at, source)[0].backlog
            # the source was looked at: to look again asks it nothing
            parts = plan.look(request, at, source).parts if partitions else ()
        return Lag(spec.pipeline, flow, at, backlog, parts)
    except DraindownError as error:  # the other pipelines may be readable
        return Lag(spec.pipeline, flow, at, error=error)


def _rows(one: Lag, partitions: bool) -> list[list[str]]:
    from draindown.base.formatting import age, count, size

    name, blank = f"{one.pipeline}/{one.flow or '?'}", [""] * 3 * partitions
    if one.backlog is None:
        return [[name, *blank, "?", "?", "?"]]
    whole = one.backlog
    oldest = "-" if whole.oldest_seconds is None else age(whole.oldest_seconds)
    rows = [[name, *blank, count(whole.units, whole.unit), size(whole.bytes), oldest]]
    for part in one.parts if partitions else ():
        seconds = _seconds(one, part)
        place = ["", part.name, str(part.position), str(part.end)]
        waits = [
            count(part.units, whole.unit),
            size(part.bytes),
            "-" if seconds is None else age(seconds),
        ]
        rows.append(place + waits)
    return rows


def _data(one: Lag, partitions: bool) -> dict[str, Any]:
    from draindown.runs.report import Backlog

    where = {"pipeline": one.pipeline, "flow": one.flow or None}
    if one.error is not None or one.backlog is None:
        error = one.error.as_dict() if one.error else None
        return where | dict.fromkeys(Backlog.model_fields) | {"error": error}
    more = {"partitions": [_part(one, part) for part in one.parts]} if partitions else {}
    return where | one.backlog.model_dump(mode="json") | more


def _part(one: Lag, part: Part) -> dict[str, Any]:
    return {
        "partition": part.name,
        "next": part.position,
        "end": part.end,
        "units": part.units,
        "bytes": part.bytes,
        "oldest_seconds": _seconds(one, part),
    }


def _seconds(one: Lag, part: Part) -> float | None:
    from draindown.flow.health import seconds_since

    return seconds_since(part.oldest, one.seen)


def _asked(here: Setting, pipelines: Sequence[str]) -> Iterator[PipelineSpec | BrokenPipeline]:
    """Yield the named pipelines, or all of the project."""
    from draindown.config.loader import DIRECTORY, load_all
    from draindown.config.project import each_rooted

    yield from map(here.load, pipelines)
    yield from (
        () if pipelines else each_rooted(load_all(here.root / DIRECTORY, here.environ), here.root)
    )
