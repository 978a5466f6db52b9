"""Commands for sinks: list them, resync one with the table, give up a batch on its way to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.cli.context import (
    Flows,
    Json,
    OneFlow,
    Target,
    Yes,
    flows,
    new_run_id,
    not_empty,
    one_flow,
    person,
    refuse_without,
    setting,
)
from draindown.cli.output import Output, table

if TYPE_CHECKING:
    from draindown.runs.request import Request
    from draindown.spark.runs.sink_fill import Filled

sink = typer.Typer(
    no_args_is_help=True,
    help="Where batches go beside the table, and whether it holds all it should.",
)
SinkName = Annotated[str, typer.Argument(metavar="SINK", help="The sink, by its name in `sinks`.")]


@sink.command("list")
def list_(ctx: typer.Context, target: Flows, as_json: Json = False) -> None:
    """List the sinks with the newest batch that each got, and whether it must be resynced. Asks no
    sink.
    """
    here = setting(ctx)
    spec, rows = here.spec(target.pipeline), list[dict[str, Any]]()
    for name in flows(spec, target):
        rows += _states(here.request(spec, name, "plan", new_run_id()))
    names = ("flow", "sink", "kind", "from", "newest", "stale")
    cells = [
        [row["flow"], row["sink"], row["kind"], row["from"], row["newest"], row["stale"] or "no"]
        for row in rows
    ]
    Output(as_json).result(
        rows, table(names, cells) if rows else f"no flow of pipeline {spec.pipeline} has sinks"
    )


@sink.command()
def resync(
    ctx: typer.Context,
    target: OneFlow,
    name: SinkName,
    accept_missing: Annotated[
        bool,
        typer.Option(
            "--accept-missing",
            help="Go on if the version from before a rebuild is gone: keys it alone had may stay.",
        ),
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Send a sink what it lacks since a rebuild, else all it should hold; a database deletes what
    the table lacks.
    """
    from draindown.base.formatting import count

    request, out = _request(ctx, target, name), Output(as_json)
    (state,) = (row for row in _states(request) if row["sink"] == name)
    out.note(
        f"sink {name} of {request.spec.pipeline}/{request.flow} is stale: {state['stale'] or 'no'}"
    )
    refuse_without(yes)
    done = _resynced(request, name, out, accept_missing)
    gone = (
        "it can't delete what the table doesn't have"
        if done.deleted is None
        else f"{done.deleted:,} deleted there"
    )
    text = (
        f"resynced sink {name} from version {done.version}: {count(done.rows, 'row')} sent, {gone}"
    )
    if done.compared:
        bases = " and ".join(map(str, done.compared))
        since = f"compared version {done.version} with {bases}, from before a rebuild: {done.gone:,} deleted for it"
        text = (
            f"{since}; {text}"
            if done.whole
            else f"{since}, {count(done.rows, 'row')} sent to sink {name}"
        )
    misfits = f", {done.unsendable:,} it can't hold" if done.unsendable else ""
    out.result(done.as_dict(), text + misfits)


@sink.command()
def skip(
    ctx: typer.Context,
    target: OneFlow,
    name: SinkName,
    note: Annotated[
        str, typer.Option(help="Why, for those who read it later.", callback=not_empty)
    ],
    key: Annotated[
        str | None,
        typer.Option(
            help="Only the row with this key, as JSON: the error names it.", callback=not_empty
        ),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Give up a row that a sink refuses (`--key`), or what it got of a batch that the table
    lacks.
    """
    from dataclasses import asdict

    from draindown.base.formatting import count
    from draindown.flow import sink_columns, sink_state
    from draindown.recovery.opening import Needs, open_flow

    request, out = _request(ctx, target, name, had=key is None), Output(as_json)
    if key is not None:
        _skip_row(request, name, _key(request, name, key), note, yes, out)
        return
    waiting = sink_state.in_flight(request.layout).get(name)
    if waiting is None:
        out.result(
            [], f"the table has every batch that sink {name} has: there is nothing to give up"
        )
        return
    out.note(
        f"sink {name} has {count(waiting.rows, 'row')} of batch {waiting.number} of kind {waiting.kind}"
    )
    refuse_without(yes)
    with open_flow(
        request.spec, request.flow, Needs.FINISHED, owner=person(), run_id=request.run_id
    ) as opened:
        # a run finished it, or began another
        if sink_state.in_flight(opened.layout).get(name) != waiting:
            out.result(
                [], f"another batch is on its way to sink {name} now, or none: nothing was given up"
            )
            return
        lost = sink_state.give_up(opened.layout, name, by=person(), reason=note)
    again = f"draindown run {request.spec.pipeline}/{request.flow}"
    is_there = name in request.declared.sinks
    then = f"next: {again}" + f", then {sink_columns.fill_command(request, name)}" * is_there
    out.result(
        [asdict(one) for one in lost], f"gave up {count(len(lost), 'batch', 'batches')}; {then}"
    )


def _skip_row(
    request: Request, name: str, key: dict[str, str], note: str, yes: bool, out: Output
) -> None:
    from dataclasses import asdict

    from draindown.flow import sink_state
    from draindown.recovery.opening import Needs, open_flow

    where = f"{request.spec.pipeline}/{request.flow}"
    waiting, filling = sink_state.on_its_way(request.layout, name)
    if waiting is None and filling is None:
        out.result([], f"nothing is on its way to sink {name}: there is no row to give up")
        return
    what = f"batch {waiting.number} of kind {waiting.kind}" if waiting else "the fill in progress"
    out.note(f"the row with key {key} of {what} will not be sent to sink {name}")
    refuse_without(yes)
    with open_flow(
        request.spec, request.flow, Needs.FINISHED, owner=person(), run_id=request.run_id
    ) as opened:
        found = sink_state.skip_row(opened.layout, name, key, by=person(), reason=note)
    then = f"draindown run {where}" if waiting else f"draindown sink resync {where} {name} --yes"
    out.result([asdict(found)] if found else [], f"gave up the row; next: {then}")


def _key(request: Request, name: str, text: str) -> dict[str, str]:
    """Return the key that was typed. Raises a usage error unless it has exactly the columns of the
    sink's key.
    """
    from draindown.flow import sink_columns
    from draindown.sinks import refusals

    try:
        found = refusals.parsed(text)
    except ValueError as error:
        raise typer.BadParameter(f"--key {text!r}: {error}") from None
    wanted = sink_columns.key_names(request, request.declared.sinks[name])
    if sorted(found) != sorted(wanted):
        raise typer.BadParameter(
            f"--key has {', '.join(found)}; the key of sink {name} is {', '.join(wanted)}"
        )
    return found


def _resynced(request: Request, name: str, out: Output, accept_missing: bool) -> Filled:
    from draindown.flow.at_work import at_work
    from draindown.runs.driver_log import DriverLog
    from draindown.spark.runs.sink_fill import fill
    from draindown.spark.session import session, stop

    log = DriverLog.of(request.layout, request.run_id, request.step, request.start)
    out.note(f"starting Spark, which talks to {log.path}")
    spark = session(f"draindown {request.spec.pipeline}", size="small", log=log)
    try:
        # an error about the held lease points to `report --run`, which the note answers
        with at_work(request):
            return fill(request, spark, name, accept_missing=accept_missing, progress=out.progress)
    finally:
        out.progress_done()
        stop(spark)


def _request(ctx: typer.Context, target: Target, name: str, *, had: bool = False) -> Request:
    """Return the request about the flow that has the sink, or `had` it once. Raises a usage error
    if none does.
    """
    from draindown.flow import sink_state

    here = setting(ctx)
    spec = here.spec(target.pipeline)
    having = [one for one in flows(spec, target) if name in spec.declared(one).sinks]
    flow = having[0] if len(having) == 1 else one_flow(spec, target)
    request = here.request(spec, flow, "drain", new_run_id())
    known = request.declared.sinks
    if name not in known and not (had and name in sink_state.names(request.layout)):
        raise typer.BadParameter(
            f"flow {request.flow} has no sink {name}: it has {', '.join(known) or 'none'}"
        )
    return request


def _states(request: Request) -> list[dict[str, Any]]:
    from draindown.flow import sink_columns
    from draindown.flow.sink_state import SinkState

    stale = {one.subject: one.detail for one in sink_columns.findings(request, request.layout)}
    found = []
    for name, one in request.declared.sinks.items():
        newest = next(reversed(SinkState.read(request.layout, name).sendings), None)
        told = f"{newest.kind} {newest.number}" if newest else "none"
        row = {"flow": request.flow, "sink": name, "kind": one.kind}
        row |= {"from": one.taken_from, "newest": told}
        found.append({**row, "place": one.part.place, "stale": stale.get(name, "")})
    return found
