"""Commands for sinks: list them, fill one from the table, give up a batch on its way to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.cli.context import (
    Flow,
    Json,
    OneFlow,
    PipelineName,
    Yes,
    flows,
    new_run_id,
    not_empty,
    one_flow,
    person,
    refuse_without,
    request_of,
    setting,
)
from draindown.cli.output import Output, table

if TYPE_CHECKING:
    from draindown.runs.request import Request
    from draindown.spark.runs.sink_fill import Filled

sink = typer.Typer(no_args_is_help=True, help="Where batches go beside the table, and whether it holds all it should.")
SinkName = Annotated[str, typer.Option("--sink", help="The sink, by its name in `also_to`.")]


@sink.command("list")
def list_(ctx: typer.Context, pipeline: PipelineName, flow: Flow = None, as_json: Json = False) -> None:
    """List the sinks with the newest batch that each got, and whether it must be filled. Asks no sink."""
    here = setting(ctx)
    spec, rows = here.spec(pipeline), list[dict[str, Any]]()
    for name in flows(spec, flow):
        rows += _states(here.request(spec, name, "plan", new_run_id()))
    names = ("flow", "sink", "kind", "of", "newest", "stale")
    cells = [[row["flow"], row["sink"], row["kind"], row["of"], row["newest"], row["stale"] or "no"] for row in rows]
    Output(as_json).result(rows, table(names, cells) if rows else f"no flow of pipeline {spec.pipeline} has sinks")


@sink.command()
def fill(
    ctx: typer.Context,
    pipeline: PipelineName,
    name: SinkName,
    flow: OneFlow = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Send a sink every row of the table that it should hold; a database also deletes what the table doesn't have."""
    from draindown.base.formatting import count

    request, out = _request(ctx, pipeline, flow, name), Output(as_json)
    (state,) = (row for row in _states(request) if row["sink"] == name)
    out.note(f"sink {name} of {request.spec.pipeline}/{request.flow} is stale: {state['stale'] or 'no'}")
    refuse_without(yes)
    done = _fill(request, name, out)
    gone = "it can't delete what the table doesn't have" if done.deleted is None else f"{done.deleted:,} deleted there"
    text = f"filled sink {name} from version {done.version}: {count(done.rows, 'row')} sent, {gone}"
    misfits = f", {done.unsendable:,} it can't hold" if done.unsendable else ""
    out.result(done.as_dict(), text + misfits)


@sink.command()
def skip(
    ctx: typer.Context,
    pipeline: PipelineName,
    name: SinkName,
    reason: Annotated[str, typer.Option(help="Why, for those who read it later.", callback=not_empty)],
    flow: OneFlow = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Give up what a sink got of a batch that the table lacks. Batches go on; the sink must be filled."""
    from dataclasses import asdict

    from draindown.base.formatting import count
    from draindown.flow import sink_columns, sink_state
    from draindown.recovery.opening import Needs, open_flow

    request, out = _request(ctx, pipeline, flow, name), Output(as_json)
    waiting = sink_state.in_flight(request.layout).get(name)
    if waiting is None:
        out.result([], f"the table has every batch that sink {name} has: there is nothing to give up")
        return
    out.note(f"sink {name} has {count(waiting.rows, 'row')} of batch {waiting.number} of kind {waiting.kind}")
    refuse_without(yes)
    with open_flow(request.spec, request.flow, Needs.FINISHED, owner=person(), run_id=request.run_id) as opened:
        lost = sink_state.give_up(opened.layout, name, by=person(), reason=reason)
    again = f"draindown run {request.spec.pipeline} --flow {request.flow}"
    then = f"next: {again}, then {sink_columns.fill_command(request, name)}"
    out.result([asdict(one) for one in lost], f"gave up {count(len(lost), 'batch', 'batches')}; {then}")


def _fill(request: Request, name: str, out: Output) -> Filled:
    from draindown.runs.driver_log import DriverLog
    from draindown.spark.runs.sink_fill import fill
    from draindown.spark.session import session, stop

    log = DriverLog.of(request.layout, request.run_id, request.step, request.start)
    out.note(f"starting Spark, which talks to {log.path}")
    spark = session(f"draindown {request.spec.pipeline}", short=True, log=log)
    try:
        return fill(request, spark, name, progress=out.progress)
    finally:
        out.progress_done()
        stop(spark)


def _request(ctx: typer.Context, pipeline: str, flow: str | None, name: str) -> Request:
    """Return the request about the flow that has the sink. Raises a usage error if it has no such sink."""
    here = setting(ctx)
    spec = here.spec(pipeline)
    having = [one for one in flows(spec, flow) if name in spec.declared(one).also_to]
    request = request_of(here, pipeline, having[0] if len(having) == 1 else one_flow(spec, flow))
    known = request.declared.also_to
    if name not in known:
        raise typer.BadParameter(f"flow {request.flow} has no sink {name}: it has {', '.join(known) or 'none'}")
    return request


def _states(request: Request) -> list[dict[str, Any]]:
    from draindown.flow import sink_columns
    from draindown.flow.sink_state import SinkState

    stale = {one.subject: one.detail for one in sink_columns.findings(request, request.layout)}
    found = []
    for name, one in request.declared.also_to.items():
        newest = next(reversed(SinkState.read(request.layout, name).sendings), None)
        told = f"{newest.kind} {newest.number}" if newest else "none"
        row = {"flow": request.flow, "sink": name, "kind": one.kind, "of": one.of, "newest": told}
        found.append({**row, "place": one.part.place, "stale": stale.get(name, "")})
    return found
