"""The command that breaks things on purpose, on scratch copies of a pipeline."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draindown.base.exits import Exit
from draindown.cli.context import Json, Target, flows, landing_flows, setting
from draindown.cli.output import Output, table

if TYPE_CHECKING:
    from draindown.drill.result import Drill
    from draindown.drill.shuffle import Shuffled

_SHUFFLE = "shuffle"
_BYTES = 64 * 1024**2
"""Files of at most this size together are taken, one at least."""
_TIMES = 3
"""Drivers that `kill-at-random` kills in a row."""
_SEED = 1
"""Where the times of `kill-at-random` are drawn from, and the first order of `shuffle`."""
_DOES = "Drain copies with their slices in random order, merged and split; compare tables and quarantines."


def drill(
    ctx: typer.Context,
    fault: Annotated[
        str | None, typer.Argument(metavar="FAULT", help="A fault, or `all`. Default: list them.")
    ] = None,
    target: Annotated[
        Target | None,
        typer.Argument(
            metavar="TARGET", help="PIPELINE, or PIPELINE/FLOW for one flow.", parser=Target.parsed
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the faults and do nothing.")] = False,
    max_files: Annotated[
        int, typer.Option(min=1, help="Take at most so many files, oldest first.")
    ] = 30,
    seeds: Annotated[
        int, typer.Option(min=1, help="shuffle: drain so many copies, each in an order of its own.")
    ] = 3,
    scratch: Annotated[
        Path | None,
        typer.Option(help="Make the copies here. Default: a temporary directory.", file_okay=False),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the copies although everything held.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Do a fault to a scratch copy of a pipeline, recover, and compare. Exit 1 if anything doesn't
    hold.
    """
    from draindown.drill import shuffle
    from draindown.drill.campaign import Campaign, play
    from draindown.drill.shuffle import Shuffle

    out = Output(as_json)
    if listed or fault is None:
        _list(out)
        return
    if target is None:
        raise typer.BadParameter(
            f"say which pipeline: draindown drill {fault} TARGET", param_hint="TARGET"
        )
    here = setting(ctx)
    spec = here.spec(target.pipeline)
    names = flows(spec, target) if fault == _SHUFFLE else landing_flows(spec, target)
    where = scratch.resolve() if scratch else Path(tempfile.mkdtemp(prefix="draindown-drill-"))
    result: Drill | Shuffled
    with _copies(where, out):
        if fault == _SHUFFLE:
            drawn = range(_SEED, _SEED + seeds)
            result = shuffle.play(
                Shuffle(spec, names, here.root, where, max_files, _BYTES, drawn), out.note
            )
        else:
            result = play(
                Campaign(spec, names, fault, here.root, where, max_files, _BYTES, _TIMES, _SEED),
                out.note,
            )
    _done(result, where, keep, out)


@contextlib.contextmanager
def _copies(scratch: Path, out: Output) -> Iterator[None]:
    """Do a drill in a directory, of which an error says whether something is left in it."""
    # else a driver that a drill froze would stay frozen for good, as after a terminal was closed
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    for one, how in before.items():
        if how != signal.SIG_IGN:  # under `nohup`
            signal.signal(one, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.rmdir()  # a temporary one that nothing came into
        if scratch.exists():
            out.note(f"the copies are kept in {scratch}")
        raise
    finally:
        for one, how in before.items():
            signal.signal(one, how)


def _done(result: Drill | Shuffled, where: Path, keep: bool, out: Output) -> None:
    kept = keep or not result.held
    if not kept:
        shutil.rmtree(where)
    out.result(result.as_dict(kept=kept), str(result))
    if kept:
        out.note(f"the copies are kept in {where}")
    if not result.held:
        raise typer.Exit(Exit.FINDINGS)


def _list(out: Output) -> None:
    from dataclasses import asdict

    from draindown.drill.faults import ALL, FAULTS

    rows = [[fault.name, fault.does] for fault in FAULTS] + [
        [ALL, "Do each of them that the flow can suffer."],
        [_SHUFFLE, _DOES],
    ]
    text = f"{table(('fault', 'what is done'), rows)}\n\nnext: draindown drill kill-after-merge PIPELINE"
    out.result(
        [{name: v for name, v in asdict(fault).items() if name != "step"} for fault in FAULTS], text
    )
