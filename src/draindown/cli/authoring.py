"""Commands for those who write pipelines: init, validate, schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draindown.base.exits import Exit
from draindown.cli.context import Json, setting
from draindown.cli.output import Output

if TYPE_CHECKING:
    from draindown.base.errors import TerminalError
    from draindown.spec.models import PipelineSpec


def init(
    directory: Annotated[Path | None, typer.Argument(metavar="DIR", help="Default: the project root.")] = None,
    name: Annotated[str, typer.Option(help="Name of the pipeline.")] = "orders",
    *,
    ctx: typer.Context,
    as_json: Json = False,
) -> None:
    """Write a small pipeline that runs, with a suite and sample data. Overwrites nothing."""
    from draindown.spec import scaffold

    home = directory or setting(ctx).root
    written = scaffold.init(home, name)
    into = f"draindown --root {directory}" if directory else "draindown"
    commands = [f"{into} {verb} {name}" for verb in ("validate", "run", "quarantine list", "audit")]
    lines = ["wrote", *(f"  {path}" for path in written), "next", *(f"  {command}" for command in commands)]
    Output(as_json).result({"written": [str(path) for path in written], "next": commands}, "\n".join(lines))


def validate(
    pipelines: Annotated[
        list[str] | None, typer.Argument(metavar="[PIPELINE]...", help="Names or YAML files. Default: all.")
    ] = None,
    *,
    ctx: typer.Context,
    as_json: Json = False,
) -> None:
    """Check pipeline files and their suites; every error at once, with file and line. Exit 78 if any is wrong."""
    out, good = Output(as_json), []
    errors: list[TerminalError] = []
    for name, found in _checked(ctx, pipelines or []):
        if found is None:
            good.append(name)
        else:
            errors.append(found)
    for error in errors:
        if not as_json:
            out.error(error)
    text = "\n".join(f"{name}: valid" for name in good)
    out.result({"valid": good, "errors": [error.as_dict() for error in errors]}, text or "no valid pipeline")
    if errors:
        raise typer.Exit(Exit.NEEDS_PERSON)


def schema() -> None:
    """Print the JSON Schema of pipeline files, for editors."""
    from draindown.spec.json_schema import schema_text

    typer.echo(schema_text(), nl=False)


def _checked(ctx: typer.Context, names: list[str]) -> list[tuple[str, TerminalError | None]]:
    from draindown.base.errors import TerminalError
    from draindown.spec.loader import DIRECTORY, BrokenPipeline, load_all

    here = setting(ctx)
    found: list[tuple[str, TerminalError | None]] = []
    if not names:
        for loaded in load_all(here.root / DIRECTORY, here.environ):
            if isinstance(loaded, BrokenPipeline):
                found.append((loaded.name, loaded.error))
            else:
                found.append((loaded.pipeline, _bad_suite(here.root, loaded)))
        return found
    for name in names:
        try:
            spec = here.spec(name)
            found.append((spec.pipeline, _bad_suite(here.root, spec)))
        except TerminalError as error:
            found.append((name, error))
    return found


def _bad_suite(root: Path, spec: PipelineSpec) -> TerminalError | None:
    from draindown.base.errors import TerminalError
    from draindown.spec.project import suite

    try:
        for flow in spec.flows.values():
            if flow.expectations:
                suite(root, flow.expectations)
    except TerminalError as error:
        return error
    return None
