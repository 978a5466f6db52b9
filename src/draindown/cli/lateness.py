"""How late rows come, and which delay would cover which share of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draindown.cli.context import Json, OneFlow, one_flow, setting
from draindown.cli.output import Output, table

if TYPE_CHECKING:
    from draindown.config.models import PipelineSpec
    from draindown.planning.lateness import Asked, Lateness

_SHOWN = 31  # newest days


def lateness(
    ctx: typer.Context,
    target: OneFlow,
    of: Annotated[
        str | None,
        typer.Option(
            "--table", help="Which of the tables that the flow reads. Default: the first."
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            help="Column with the time of a row. Default: that of the window, session or join."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw it into this file, as SVG.", dir_okay=False, writable=True),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say how late the rows come that a flow reads: arrival less their time, by day, and what each
    delay would cover.

    Of a derived flow the rows of its source, of a landing flow those of its own table. Exact;
    starts no JVM.
    """
    from draindown.planning.lateness import as_dict
    from draindown.planning.lateness import lateness as measured

    spec, out = setting(ctx).spec(target.pipeline), Output(as_json)
    name = one_flow(spec, target)
    asked, accept = _asked(spec, name, of, time)
    found = measured(asked, [] if accept is None else [accept])
    if plot is not None:
        plot.write_text(_picture(f"{spec.pipeline}/{found.table}: {found.time}", found, accept))
        out.note(f"drawn in {plot}")
    data = {"pipeline": spec.pipeline, "flow": name, "accept": accept, **as_dict(found)}
    out.result(data, _text(spec.pipeline, found, accept))


def _asked(
    spec: PipelineSpec, flow: str, of: str | None, time: str | None
) -> tuple[Asked, int | None]:
    """Return which rows are asked about, and which delay the flow accepts, in seconds. Raises a
    usage error.
    """
    from draindown.config.derived import DerivedFlow
    from draindown.planning.lateness import Asked

    declared, layout = spec.declared(flow), spec.layout(flow)
    tables = (
        {one.table: one for one in declared.source.read}
        if isinstance(declared, DerivedFlow)
        else {}
    )
    if of is not None and of not in (tables or [layout.table_name]):
        known = ", ".join(tables) or layout.table_name
        raise typer.BadParameter(f"flow {flow} has rows of {known}", param_hint="--table")
    if not isinstance(declared, DerivedFlow):
        if time is None:
            raise typer.BadParameter(
                f"say which column of table {layout.table_name} has the time of a row",
                param_hint="--time",
            )
        return Asked(layout, time), None
    table = tables[of or next(iter(tables))]
    column = time or declared.derivation.timed_by(table.table)
    if column is None:
        raise typer.BadParameter(
            f"a {declared.kind} has no time of its own: say which column of {table.table} has it",
            param_hint="--time",
        )
    return Asked.of_source(layout, table, column), declared.accept


def _text(pipeline: str, found: Lateness, accept: int | None) -> str:
    from draindown.base.formatting import count, percent

    untimed = f", {count(found.untimed)} without one" if found.untimed else ""
    said = f"{pipeline}/{found.table}  {count(found.rows, 'row')} by {found.time}{untimed}, of version {found.version}"
    if not found.rows:
        return said
    covers = [
        [
            f"{_delay(one.delay)}{' (accept)' if one.delay == accept else ''}",
            count(one.rows),
            percent(one.share),
        ]
        for one in found.covers
    ]
    quantiles = [
        [percent(share), _delay(one.delay)]
        for share, one in zip(_shares(), found.quantiles, strict=True)
    ]
    days = [
        [
            one.day.isoformat(),
            count(one.rows),
            *map(_delay, (one.median, one.p95, one.p99, one.most)),
        ]
        for one in found.days[-_SHOWN:]
    ]
    more = (
        [f"and {count(len(found.days) - _SHOWN, 'day')} before"] if len(found.days) > _SHOWN else []
    )
    return "\n".join(
        [
            said,
            "",
            table(("delay", "covers", "share"), covers, right=(1, 2)),
            "",
            table(("share", "needs a delay of"), quantiles, right=(0,)),
            "",
            table(("day", "rows", "median", "95%", "99%", "most"), days, right=(1,)),
            *more,
        ]
    )


def _shares() -> tuple[float, ...]:
    from draindown.planning.lateness import SHARES

    return SHARES


def _delay(seconds: float) -> str:
    from draindown.base.formatting import age

    return age(seconds) if seconds >= 0 else f"{age(-seconds)} early"


def _picture(title: str, found: Lateness, accept: int | None) -> str:
    from draindown.pages.lateness import DayBar, Point, picture

    curve = [Point(delay, at / 100) for at, delay in enumerate(found.percentiles, 1)]
    days = [DayBar(one.day.isoformat(), one.median, one.p95, one.most) for one in found.days]
    return picture(title, curve, days, accept)
