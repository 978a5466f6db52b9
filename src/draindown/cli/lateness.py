"""How late rows come, and which delay would cover which share of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from draindown.base.errors import DraindownError
from draindown.base.exits import Exit, exit_for
from draindown.cli.context import Target, derived_flows
from draindown.cli.output import Output, not_done, table

if TYPE_CHECKING:
    from draindown.config.models import PipelineSpec
    from draindown.planning.lateness import Asked, Lateness

_SHOWN = 31  # newest days


def summarize(spec: PipelineSpec, target: Target, out: Output) -> None:
    """Print how late the rows came that derived flows read: arrival less their time, by day, and
    what each delay would cover.

    Of a join each side by its own time. Raises TerminalError `no-arrival` and a usage error.
    """
    from draindown.planning.lateness import as_dict, lateness

    data, texts, codes = list[dict[str, Any]](), list[str](), list[Exit]()
    timed = [(flow, one) for flow in derived_flows(spec, target) for one in _timed(spec, flow)]
    if not timed:
        raise typer.BadParameter("no flow of the target compares the time of its rows")
    for flow, asked in timed:
        allowed = getattr(spec.declared(flow), "allowed_lateness", None)
        about = {"pipeline": spec.pipeline, "flow": flow, "allowed_lateness": allowed}
        try:
            found = lateness(asked, [] if allowed is None else [allowed])
        except DraindownError as error:  # the other tables can be summarized
            if len(timed) == 1:
                raise
            codes.append(exit_for(error))
            data.append(about | {"error": error.as_dict()})
            texts.append(not_done(spec.pipeline, flow, "summarized", error))
            continue
        data.append({**about, **as_dict(found)})
        texts.append(_text(f"{spec.pipeline}/{flow}", found, allowed))
    out.result(data, "\n\n".join(texts))
    if codes:
        raise typer.Exit(max(codes))


def _timed(spec: PipelineSpec, flow: str) -> list[Asked]:
    """Return, by table that a derived flow reads and has a time of, which rows are asked about."""
    from draindown.config.derived import DerivedFlow
    from draindown.planning.lateness import Asked

    declared, layout = spec.declared(flow), spec.layout(flow)
    assert isinstance(declared, DerivedFlow)
    times = [(table, declared.derivation.timed_by(table.table)) for table in declared.source.read]
    return [Asked.of_source(layout, table, time) for table, time in times if time is not None]


def _text(flow: str, found: Lateness, allowed: int | None) -> str:
    from draindown.base.formatting import count, percent

    untimed = f", {count(found.untimed)} without one" if found.untimed else ""
    said = f"{flow} of {found.table}  {count(found.rows, 'row')} by {found.time}{untimed}, of version {found.version}"
    if not found.rows:
        return said
    covers = [
        [
            f"{_delay(one.delay)}{' (allowed_lateness)' if one.delay == allowed else ''}",
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
