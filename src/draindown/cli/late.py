"""Commands for rows that came later than a derived flow accepts: list, release, discard."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from draindown.cli.context import (
    Flows,
    Ids,
    Json,
    Note,
    Target,
    Yes,
    derived_flows,
    new_run_id,
    person,
    refuse_without,
    setting,
    several,
)
from draindown.cli.output import Output, table

if TYPE_CHECKING:
    from draindown.config.derived import DerivedFlow
    from draindown.config.landing import FlowSpec
    from draindown.config.models import PipelineSpec
    from draindown.lake.home import FlowHome
    from draindown.sources.tables.late import Action, Place
    from draindown.sources.tables.late import State as Shown

late = typer.Typer(
    no_args_is_help=True, help="Rows that came later than a flow accepts, and what becomes of them."
)
_SHOWN = 5  # rows of a selection
_MEANT = "All open ones, or those of --id."


class State(StrEnum):
    """The rows that `list` shows."""

    open = "open"
    released = "released"
    discarded = "discarded"
    gone = "gone"
    all = "all"


_ACTIONS: dict[str, Action] = {"release": "released", "discard": "discarded"}


@late.command("list")
def list_(
    ctx: typer.Context,
    target: Flows,
    state: Annotated[
        State, typer.Option(help="Which rows. `gone`: released, and the source has them no more.")
    ] = State.open,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows per flow.")] = 50,
    summary: Annotated[
        bool,
        typer.Option(
            "--summary",
            help="Say how late all rows of the sources came, and what each delay would cover.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List late rows with how late they came and what they missed: a window, or the key of a
    session or a join.
    """
    if summary:
        from draindown.cli.lateness import summarize

        summarize(setting(ctx).spec(target.pipeline), target, Output(as_json))
        return
    from draindown.base.formatting import count
    from draindown.sources.tables import late as rows_of

    spec, data, texts = setting(ctx).spec(target.pipeline), {}, []
    only = None if state is State.all else cast("Shown", state.value)
    for name in _accepting(spec, target):
        place = _place(spec.layout(name))
        sums = rows_of.counts(place)
        rows = rows_of.listed(place, only, (), limit)
        data[name] = {"counts": sums, "rows": rows}
        told = ", ".join(f"{count(number)} {what}" for what, number in sums.items())
        texts.append("\n".join([f"{spec.pipeline}/{name}  late rows: {told}", *_lines(rows)]))
    Output(as_json).result(
        data, "\n\n".join(texts) or f"no flow of pipeline {spec.pipeline} has `allowed_lateness`"
    )


@late.command(
    "discard",
    help="Leave late rows out for good, listed as discarded while the source has them. " + _MEANT,
)
@late.command(
    "release",
    help="Have late rows count from the next run on, which recomputes what they touch. " + _MEANT,
)
def decide(
    ctx: typer.Context,
    target: Flows,
    ids: Ids = None,
    note: Note = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Decide about late rows, as the name of the command says."""
    import pyarrow.compute as pc

    from draindown.base.clock import now
    from draindown.base.formatting import count
    from draindown.recovery.opening import Needs, open_flow
    from draindown.sources.tables import late as rows_of

    action, spec, out = (
        _ACTIONS[str(ctx.info_name)],
        setting(ctx).spec(target.pipeline),
        Output(as_json),
    )
    found = _accepting(spec, target)
    if not found:
        raise typer.BadParameter("no flow has `allowed_lateness`")
    if len(found) > 1:
        raise several(target, found)
    (name,) = found
    place = _place(spec.layout(name))
    rows = rows_of.chosen(place, ids or (), action)
    number = rows.num_rows
    out.note(f"{count(number, 'late row')} of {spec.pipeline}/{name} to be {action}")
    shown = rows["late_id"][:_SHOWN].to_pylist()
    for line in _lines(rows_of.listed(place, None, shown) if shown else []):
        out.note(line)
    if number:
        refuse_without(yes)
        with open_flow(spec, name, Needs.SETTLED, owner=person(), run_id=new_run_id()):
            # once more, under the lease: a run may have found more, or another person decided
            place = _place(spec.layout(name))
            still = rows_of.chosen(place, ids or (), action)
            rows = still.filter(pc.is_in(still["late_id"], rows["late_id"]))
            rows_of.decide(place, rows, action, by=person(), note=note, at=now())
    number = rows.num_rows
    then = f"; they count from the next run on: draindown run {spec.pipeline}/{name}"
    out.result(
        {action: number},
        f"{action} {count(number, 'late row')}{then if number and action == 'released' else ''}",
    )


def _accepting(spec: PipelineSpec, target: Target) -> list[str]:
    """Return the named flow, or all that have `allowed_lateness`. Raises a usage error if the named one has
    none.
    """
    found = [
        name
        for name in derived_flows(spec, target)
        if getattr(spec.declared(name), "allowed_lateness", None) is not None
    ]
    if target.flow is not None and not found:
        raise typer.BadParameter(
            f"flow {target.flow} has no `allowed_lateness`: nothing is late, its table is corrected"
        )
    return found


def number_open(layout: FlowHome, flow: FlowSpec | DerivedFlow) -> int | None:
    """Return the number of late rows of a flow that wait for a decision; None if it sets none
    aside.
    """
    from draindown.sources.tables import late as rows_of

    if getattr(flow, "allowed_lateness", None) is None:
        return None
    return rows_of.counts(_place(layout))["open"]


def _place(layout: FlowHome) -> Place:
    from draindown.flow import generations
    from draindown.sources.tables.late import Place

    generation = generations.generation(layout)
    return Place(layout, generation, generations.first_unread(layout, generation))


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    from draindown.base.formatting import age, printable

    cells = [
        [
            row["late_id"][:12],
            row["state"],
            row["source_table"],
            row["event_time"].isoformat(sep=" ", timespec="seconds"),
            age(float(row["lateness"])),
            row["window_start"].isoformat(sep=" ", timespec="seconds")
            if row["window_start"]
            else "",
            printable(row["groups"], 40),
            printable(row["record"], 60),
        ]
        for row in rows
    ]
    names = ("id", "state", "table", "time", "late by", "window", "groups", "row")
    return table(names, cells).splitlines() if cells else []
