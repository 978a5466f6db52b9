"""Commands for authors of pipelines: init, validate."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draindown.base.exits import Exit
from draindown.cli.context import Json, Setting, Yes, person, refuse_without, setting
from draindown.cli.output import Output

if TYPE_CHECKING:
    from draindown.base.errors import DraindownError, TerminalError
    from draindown.config.models import PipelineSpec


def init(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Default: the project root.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the pipeline.")] = "orders",
    *,
    ctx: typer.Context,
    lake: Annotated[
        str | None,
        typer.Option(
            metavar="PIPELINE",
            help="Write no pipeline: begin the lake of this one, or accept what is there.",
        ),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Write a small pipeline that runs, with a suite and sample data. Overwrites nothing."""
    from draindown.config import scaffold

    if lake is not None:
        _begin_lake(setting(ctx), lake, yes, Output(as_json))
        return
    home = directory or setting(ctx).root
    written = scaffold.init(home, name)
    into = f"draindown --root {shlex.quote(str(directory))}" if directory else "draindown"
    commands = [f"{into} {verb} {name}" for verb in ("validate", "run", "quarantine list", "audit")]
    lines = [
        "wrote",
        *(f"  {path}" for path in written),
        "next",
        *(f"  {command}" for command in commands),
    ]
    Output(as_json).result(
        {"written": [str(path) for path in written], "next": commands}, "\n".join(lines)
    )


def _begin_lake(here: Setting, pipeline: str, yes: bool, out: Output) -> None:
    """Begin or accept the lake of a pipeline, after printing what that does."""
    from draindown.lake import storage
    from draindown.lake.presence import Lake

    spec = here.load(pipeline)
    again = f"draindown init --lake {spec.pipeline} --yes"
    storage.refuse_file_as_lake(
        spec.lake, tried=f"begin the lake of pipeline {spec.pipeline}", again=again
    )
    found = Lake.look(spec.lake, here.root, spec.pipeline, here.environ)
    out.note(f"{found.state}\n  {found.acceptance}")
    refuse_without(yes)
    with storage.named(spec.layout(spec.graph.order[0]), tried=again):
        accepted = found.accept(person())
    out.result(
        {"lake": found.path, "id": accepted.id},
        f"pipeline {spec.pipeline} uses lake {accepted.id} at {found.path}",
    )


def validate(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(metavar="PIPELINE", help="Names or YAML files. Default: all."),
    ] = None,
    *,
    ctx: typer.Context,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Warnings are errors: all that a run needs must be on this machine."
        ),
    ] = False,
    json_schema: Annotated[
        bool,
        typer.Option(
            "--json-schema", help="Check nothing: print the JSON Schema of pipeline files."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check pipeline files and their suites; errors name file and line. Exit 78 if any is wrong."""
    if json_schema:
        from draindown.config.json_schema import schema_text

        typer.echo(schema_text(), nl=False)
        return
    out, checked = Output(as_json), list(_checked(ctx, pipelines or [], strict=strict))
    errors = [
        error for one in checked for error in (*one.errors, *(one.warnings if strict else ()))
    ]
    warnings = [] if strict else [error for one in checked for error in one.warnings]
    good = [one.name for one in checked if not one.errors and not (strict and one.warnings)]
    if not as_json:
        for warning in warnings:
            out.warning(warning)
        for error in errors:
            out.error(error)
    text = "\n".join(f"{name}: valid" for name in good)
    found = {
        "errors": [error.as_dict() for error in errors],
        "warnings": [warning.as_dict() for warning in warnings],
    }
    out.result({"valid": good, **found}, text or "no valid pipeline")
    if errors:
        raise typer.Exit(Exit.NEEDS_PERSON)


@dataclass(frozen=True)
class _Checked:
    """The findings of validating one pipeline."""

    name: str
    errors: Sequence[TerminalError] = ()
    warnings: Sequence[DraindownError] = ()


def _checked(ctx: typer.Context, names: list[str], *, strict: bool) -> Iterator[_Checked]:
    from draindown.base.errors import TerminalError
    from draindown.config.loader import DIRECTORY, BrokenPipeline, load_all
    from draindown.config.project import each_rooted

    here = setting(ctx)
    if not names:
        for loaded in each_rooted(load_all(here.root / DIRECTORY, here.environ), here.root):
            if isinstance(loaded, BrokenPipeline):
                yield _Checked(loaded.name, [loaded.error])
            else:
                yield _looked_at(loaded, here.root, strict=strict)
    for name in names:
        try:
            yield _looked_at(here.load(name), here.root, strict=strict)
        except TerminalError as error:
            yield _Checked(name, [error])


def _looked_at(spec: PipelineSpec, root: Path, *, strict: bool) -> _Checked:
    from draindown.planning import validation

    errors = list(validation.errors(spec, root))
    return _Checked(spec.pipeline, errors, list(validation.warnings(spec, root, strict=strict)))
