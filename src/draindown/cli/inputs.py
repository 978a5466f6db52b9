"""Commands for input that can't be read, or that nobody can tell is new: list, retry, discard,
accept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.base.errors import DraindownError
from draindown.base.exits import exit_for
from draindown.cli.context import (
    Flows,
    Json,
    Note,
    OneFlow,
    Yes,
    landing_flows,
    new_run_id,
    one_flow,
    person,
    refuse_without,
    request_of,
    setting,
)
from draindown.cli.output import Output, not_done, table
from draindown.lake.directories import absolute

if TYPE_CHECKING:
    from draindown.runs.request import Request

input_ = typer.Typer(
    no_args_is_help=True, help="Input that can't be read, or may be known, and what becomes of it."
)
_SHOWN = 10  # files of a selection
_Files = Annotated[list[str] | None, typer.Option("--file", help="This file. Repeatable.")]
_Ranges = Annotated[
    list[str] | None,
    typer.Option("--range", help="Offsets that are lost, as `input list` has them. Repeatable."),
]


@input_.command("list")
def list_(ctx: typer.Context, target: Flows, as_json: Json = False) -> None:
    """List parked files, and offsets that are lost at the brokers, each with the reason."""
    here, out = setting(ctx), Output(as_json)
    spec = here.spec(target.pipeline)
    names = landing_flows(spec, target)
    found, failed = list[dict[str, Any]](), list[DraindownError]()
    for name in names:
        try:
            found += _open(here.request(spec, name, "drain", new_run_id()))
        except DraindownError as error:  # brokers of the other flows may answer
            if len(names) == 1:
                raise
            failed.append(error)
            out.note(not_done(spec.pipeline, name, "looked at", error))
    rows = [[one["flow"], one["input"], _size(one["size"]), one["reason"]] for one in found]
    lines = [table(("flow", "input", "size", "reason"), rows, right=(2,))] if rows else []
    lines += dict.fromkeys(f"next: {one['next']}" for one in found if "next" in one)
    out.result(found, "\n".join(lines) or "no input waits for a decision")
    if failed:
        raise typer.Exit(max(map(exit_for, failed)))


def _open(request: Request) -> list[dict[str, Any]]:
    """Return the input of a flow that waits for a decision: parked files, then lost ranges."""
    from draindown.base.formatting import printable
    from draindown.recovery import losses
    from draindown.sources.files import parked

    flow = request.flow
    files = [
        {
            "flow": flow,
            "kind": "file",
            "input": printable(event.path),
            "size": event.size,
            "reason": ": ".join(filter(None, (event.reason, printable(event.detail)))),
        }
        for event in parked.open_files(request.layout)
    ]
    go_on = f'draindown input discard {request.spec.pipeline}/{flow} --all --note "..." --yes'
    ranges = [
        {"flow": flow, "kind": "range", "input": name, "size": None, "reason": printable(why)}
        | {"next": go_on}
        for name, why in losses.found(request).items()
    ]
    return [*files, *ranges]


def _size(number: int | None) -> str:
    from draindown.base.formatting import size

    return "" if number is None else size(number)


@input_.command()
def retry(
    ctx: typer.Context,
    target: OneFlow,
    files: _Files = None,
    note: Note = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Have the next run look at parked files again, after they were repaired: all, or those of
    --file.
    """
    from draindown.base.clock import now
    from draindown.base.formatting import count
    from draindown.recovery.opening import Needs, open_flow
    from draindown.sources.files import parked

    here, out = setting(ctx), Output(as_json)
    spec, run_id = here.spec(target.pipeline), new_run_id()
    flow = one_flow(spec, target, landing=True)
    layout = spec.layout(flow)
    wanted = _named(files) or [event.path for event in parked.open_files(layout)]
    _say(out, f"retry {count(len(wanted), 'file')} of {spec.pipeline}/{flow}", wanted)
    if wanted:
        refuse_without(yes)
        with open_flow(spec, flow, Needs.FINISHED, owner=person(), run_id=run_id):
            parked.retry(layout, wanted, by=person(), note=note, now=now())
    out.result({"files": wanted}, f"{count(len(wanted), 'file')} will be looked at again")


@input_.command()
def discard(
    ctx: typer.Context,
    target: OneFlow,
    files: _Files = None,
    ranges: _Ranges = None,
    every: Annotated[
        bool, typer.Option("--all", help="All that `input list` has of the flow now.")
    ] = False,
    note: Note = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Go on without input: parked files, files taken in that no batch has read yet, offsets that
    are lost at the brokers. The latter need a --note.
    """
    from draindown.base.formatting import count
    from draindown.recovery import losses
    from draindown.sources.files import parked

    here, out = setting(ctx), Output(as_json)
    spec = here.spec(target.pipeline)
    request = here.request(spec, one_flow(spec, target, landing=True), "drain", new_run_id())
    if not (files or ranges or every):
        raise typer.BadParameter("say which input: --file, --range, or --all that `input list` has")
    paths, lost = _named(files), list(ranges or ())
    if every:
        paths = [event.path for event in parked.open_files(request.layout)]
        lost = list(losses.found(request))
    what = f"{count(len(paths), 'file')} and {count(len(lost), 'range')}"
    _say(out, f"discard {what} of {spec.pipeline}/{request.flow}", [*paths, *lost])
    if lost and not note.strip():
        raise typer.BadParameter("say why, for those who ask later", param_hint="--note")
    if paths or lost:
        refuse_without(yes)
    if paths:
        _discard_files(request, paths, note)
    if lost:
        losses.accept(request, lost, by=person(), note=note)
    out.result({"files": paths, "ranges": lost}, f"discarded {what}")


def _discard_files(request: Request, paths: Sequence[str], note: str) -> None:
    from draindown.base.clock import now
    from draindown.flow import discards
    from draindown.recovery.losses import reading
    from draindown.recovery.opening import Needs, open_flow
    from draindown.sources.registry import source_of

    with open_flow(
        request.spec, request.flow, Needs.FINISHED, owner=person(), run_id=request.run_id
    ) as opened:
        unread, by = reading(request), person()
        opened.check()
        discards.discard_input(
            source_of(request), opened.layout, paths, by=by, note=note, at=now(), reading=unread
        )


def _named(files: Sequence[str] | None) -> list[str]:
    """Return the absolute paths of files, which are relative to the working directory."""
    return [absolute(path) for path in files or ()]


def _say(out: Output, plan: str, names: Sequence[str]) -> None:
    """Print what a command would do, and the first of the input that it would do it to."""
    from draindown.base.formatting import printable

    out.note(plan)
    for name in names[:_SHOWN]:
        out.note(f"  {printable(name)}")


@input_.command()
def accept(
    ctx: typer.Context,
    target: OneFlow,
    moved: Annotated[
        bool, typer.Option("--moved", help="They are the known files, in another directory.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="They are deliveries of their own.")] = False,
    note: Note = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Say what files are that equal known files of another directory. Without --moved or --new,
    list them.
    """
    from draindown.recovery import moved_files

    here, out = setting(ctx), Output(as_json)
    request = request_of(here, target)
    found = moved_files.find(request)
    where = f"{request.spec.pipeline}/{request.flow}"
    if found is None:
        out.result(
            {"moved": None}, f"{where}: no new file equals a known file of another directory"
        )
        return
    out.note(f"{where}: of {found.new:,} new files in {found.now}, {found}")
    data = {"before": found.before, "now": found.now, "files": found.files, "new": found.new}
    if moved == new:
        out.result({"moved": data}, "nothing was changed; say --moved or --new")
        return
    refuse_without(yes)
    moved_files.answer(request, found, same=moved, by=person(), note=note)
    done = (
        f"files of {found.before} are now in {found.now}"
        if moved
        else f"files in {found.now} are new deliveries"
    )
    out.result({"moved": data, "answer": "moved" if moved else "new"}, f"{where}: {done}")
