"""The command that breaks things on purpose, on scratch copies of a pipeline."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draindown.base.exits import Exit
from draindown.cli.context import Flow, Json, landing_flows, setting
from draindown.cli.output import Output, table

if TYPE_CHECKING:
    from draindown.drill.campaign import Campaign
    from draindown.drill.result import Drill


def drill(
    ctx: typer.Context,
    fault: Annotated[str | None, typer.Argument(metavar="FAULT", help="A fault, or `all`. Default: list them.")] = None,
    pipeline: Annotated[
        str | None, typer.Argument(metavar="PIPELINE", help="Name from dags/pipelines/, or a YAML file.")
    ] = None,
    flow: Flow = None,
    listed: Annotated[bool, typer.Option("--list", help="List the faults and do nothing.")] = False,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Strike this batch, counted from 1. Default: the middle one.")
    ] = None,
    max_files: Annotated[int, typer.Option(min=1, help="Take at most so many files, oldest first.")] = 30,
    max_bytes: Annotated[str, typer.Option(help="Take files of at most this size together; one at least.")] = "64mb",
    times: Annotated[int, typer.Option(min=1, help="kill-at-random: kill so many drivers in a row.")] = 3,
    seed: Annotated[int, typer.Option(help="kill-at-random: where its times are drawn from.")] = 1,
    scratch: Annotated[
        Path | None, typer.Option(help="Make the copies here. Default: a temporary directory.", file_okay=False)
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the copies although everything held.")] = False,
    as_json: Json = False,
) -> None:
    """Do a fault to a scratch copy of a pipeline, recover, and compare. Exit 1 if anything doesn't hold."""
    from draindown.drill.campaign import Campaign

    out = Output(as_json)
    if listed or fault is None:
        _list(out)
        return
    if pipeline is None:
        raise typer.BadParameter(f"say which pipeline: draindown drill {fault} PIPELINE", param_hint="PIPELINE")
    here = setting(ctx)
    spec = here.spec(pipeline)
    names, size = landing_flows(spec, flow), _bytes(max_bytes)
    where = scratch.resolve() if scratch else Path(tempfile.mkdtemp(prefix="draindown-drill-"))
    campaign = Campaign(spec, names, fault, here.root, where, max_files, size, batch, times, seed)
    _done(_play(campaign, out), where, keep, out)


def _play(campaign: Campaign, out: Output) -> Drill:
    from draindown.drill.campaign import play

    # else a driver that a drill froze would stay frozen for good
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        return play(campaign, out.note)
    except BaseException:
        with contextlib.suppress(OSError):
            campaign.scratch.rmdir()  # a temporary one that nothing came into
        if any((campaign.scratch / flow).exists() for flow in campaign.flows):
            out.note(f"the copies are kept in {campaign.scratch}")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _done(result: Drill, where: Path, keep: bool, out: Output) -> None:
    kept = keep or not result.held
    if not kept:
        shutil.rmtree(where)
    out.result(result.as_dict(kept=kept), str(result))
    if kept:
        out.note(f"the copies are kept in {where}")
    if not result.held:
        raise typer.Exit(Exit.FINDINGS)


def _bytes(text: str) -> int:
    from draindown.spec.units import parse_size

    try:
        return parse_size(int(text) if text.isdigit() else text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--max-bytes") from None


def _list(out: Output) -> None:
    from dataclasses import asdict

    from draindown.drill.faults import ALL, FAULTS

    rows = [[fault.name, fault.does] for fault in FAULTS] + [[ALL, "Do each of them that the flow can suffer."]]
    text = f"{table(('fault', 'what is done'), rows)}\n\nnext: draindown drill kill-after-merge PIPELINE"
    out.result([{name: v for name, v in asdict(fault).items() if name != "step"} for fault in FAULTS], text)
