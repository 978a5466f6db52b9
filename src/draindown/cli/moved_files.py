"""The command accept-files: what files are that equal known files of another directory."""

from __future__ import annotations

from typing import Annotated

import typer

from draindown.cli.context import (
    Json,
    Note,
    OneFlow,
    Yes,
    person,
    refuse_without,
    request_of,
    setting,
)
from draindown.cli.output import Output


def accept_files(
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
