"""Commands for authors of pipelines: init, validate."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draindown.base.exits import Exit
from draindown.cli.context import Json, Setting, Yes, person, refuse_without, setting
from draindown.cli.output import Output

if TYPE_CHECKING:
    from draindown.base.errors import DraindownError, TerminalError
    from draindown.config.layers import Layers
    from draindown.config.models import PipelineSpec


_AS_FAR = " (as far as variables are set)"


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
    resolved: Annotated[
        bool,
        typer.Option(
            "--resolved", help="Print the pipelines after environment, defaults and templates."
        ),
    ] = False,
    json_schema: Annotated[
        bool,
        typer.Option(
            "--json-schema", help="Check nothing: print the JSON Schema of pipeline files."
        ),
    ] = False,
    project_schema: Annotated[
        bool,
        typer.Option("--project-schema", help="Check nothing: print that of draindown.yaml."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check pipeline files, in every environment, and their suites; errors name file and line. Exit
    78 if any is wrong.
    """
    if json_schema or project_schema:
        from draindown.config import json_schema as schemas

        text = schemas.project_schema_text() if project_schema else schemas.schema_text()
        typer.echo(text, nl=False)
        return
    if resolved:
        _print_resolved(setting(ctx), pipelines or [], as_json=as_json)
        return
    out, checked = Output(as_json), _checked(ctx, pipelines or [], strict=strict)
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
    where = {one.name: one.environments for one in checked}
    text = "\n".join(f"{name}: valid{_listed(where[name])}" for name in good)
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
    environments: Sequence[str] = ()

    def also(self, other: _Checked) -> _Checked:
        """Return the findings of this and of another environment, each once."""
        known = {error.found for error in self.errors}
        new = [error for error in other.errors if error.found not in known]
        both = [*self.environments, *other.environments]
        return _Checked(self.name, [*self.errors, *new], self.warnings, both)


def _listed(environments: Sequence[str]) -> str:
    named = [name for name in environments if name]
    return f" in {', '.join(named)}" if named else ""


def _checked(ctx: typer.Context, names: list[str], *, strict: bool) -> list[_Checked]:
    """Check pipelines in every environment of their project, the chosen one first."""
    from draindown.base.errors import DraindownError
    from draindown.config.file_errors import Unset
    from draindown.config.loader import every_environment

    here, found = setting(ctx), dict[str, _Checked]()
    for at, given in enumerate(every_environment(here.root, here.environ)):
        for name, loaded in _loaded(here, names, given):
            environment = given.environment if given else ""
            if isinstance(loaded, Unset):
                one = _Checked(name)
                environment += _AS_FAR
            elif isinstance(loaded, DraindownError):
                one = _Checked(name, [loaded])
            elif at:  # what a run needs besides is the same
                one = _Checked(name)
            else:
                one = _looked_at(loaded, here.root, strict=strict)
            one = replace(one, environments=[environment])
            found[name] = found[name].also(one) if name in found else one
    return list(found.values())


def _loaded(
    here: Setting, names: list[str], given: Layers | None
) -> Iterator[tuple[str, PipelineSpec | TerminalError]]:
    """Yield pipelines by name, all without names, or the error of each that can't be loaded."""
    from draindown.base.errors import TerminalError
    from draindown.config.loader import DIRECTORY, BrokenPipeline, load_given
    from draindown.config.project import each_rooted

    if not names:
        loaded = load_given(here.root / DIRECTORY, here.environ, given)
        for one in each_rooted(loaded, here.root):
            if isinstance(one, BrokenPipeline):
                yield one.name, one.error
            else:
                yield one.pipeline, one
    for name in names:
        try:
            spec = here.load_given(name, given)
        except TerminalError as error:
            yield name, error
        else:
            yield spec.pipeline, spec


def _print_resolved(here: Setting, names: list[str], *, as_json: bool) -> None:
    """Print pipelines with what their project gives them. Raises as `Setting.load`."""
    import json

    from draindown.config import loader, yaml_text
    from draindown.config.file_errors import read_text

    given = loader.given_in(here.root, here.environ)
    files = [loader.find(name, here.root) for name in names]
    found = {}
    for path in files or loader.files_in(here.root / loader.DIRECTORY):
        spec = here.load_given(str(path), given)
        document = loader.merged(path, read_text(path), here.environ, given)
        found[spec.pipeline] = document.value
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    where = f" in environment {given.environment}" if given and given.environment else ""
    texts = [
        f"# {name}{where}\n{yaml_text.written(yaml_text.literal(value))}"
        for name, value in found.items()
    ]
    typer.echo("---\n".join(texts), nl=False)


def _looked_at(spec: PipelineSpec, root: Path, *, strict: bool) -> _Checked:
    from draindown.planning import validation

    errors = list(validation.errors(spec, root))
    return _Checked(spec.pipeline, errors, list(validation.warnings(spec, root, strict=strict)))
