"""Shared by all commands: project root, pipelines by name, flows, requests, and common options."""

from __future__ import annotations

import getpass
import secrets
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from draindown.base.clock import now
from draindown.base.exits import Exit

if TYPE_CHECKING:
    from draindown.config.derived import DerivedFlow
    from draindown.config.landing import FlowSpec
    from draindown.config.layers import Layers
    from draindown.config.models import PipelineSpec
    from draindown.runs.request import Request, Step


_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Target:
    """The pipeline, or the one flow of a pipeline, that a command is about, as it was typed."""

    pipeline: str
    flow: str | None = None

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Return the target of `PIPELINE` or `PIPELINE/FLOW`; what ends in .yaml or .yml is a path.

        Raises a usage error if a part is empty.
        """
        pipeline, slash, flow = text.rpartition("/")
        if text.endswith(_YAML) or not slash:
            pipeline, flow = text, ""
        elif not flow:
            raise typer.BadParameter(f"{text!r} names no flow: say {pipeline}, or {pipeline}/FLOW")
        if not pipeline:
            raise typer.BadParameter(f"{text!r} names no pipeline: say PIPELINE or PIPELINE/FLOW")
        return cls(pipeline, flow or None)

    def of(self, flow: str) -> str:
        """Return how to type one flow of the pipeline."""
        return shlex.quote(f"{self.pipeline}/{flow}")


_PIPELINE = "A pipeline is a name from dags/pipelines/, or a YAML file."
Flows = Annotated[
    Target,
    typer.Argument(
        metavar="TARGET",
        help=f"PIPELINE for all its flows, or PIPELINE/FLOW. {_PIPELINE}",
        parser=Target.parsed,
    ),
]
AnyFlows = Annotated[
    Target | None,
    typer.Argument(
        metavar="TARGET",
        help=f"PIPELINE for all its flows, or PIPELINE/FLOW. {_PIPELINE} Default: all, in brief.",
        parser=Target.parsed,
    ),
]
OneFlow = Annotated[
    Target,
    typer.Argument(
        metavar="TARGET",
        help=f"PIPELINE/FLOW, or PIPELINE if it has one flow. {_PIPELINE}",
        parser=Target.parsed,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without it, only the plan is printed.")]
Note = Annotated[str, typer.Option(help="Why, for those who read it later.")]


def not_empty(value: str | list[str] | None) -> str | list[str] | None:
    """Refuse an empty value, such as an unset shell variable: it must not select every row."""
    if value == "" or (isinstance(value, list) and "" in value):
        raise typer.BadParameter("it is empty; leave it out to choose all")
    return value


Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id", help="Only this row; the start of an id will do. Repeatable.", callback=not_empty
    ),
]


@dataclass(frozen=True)
class Setting:
    """The project that a command runs in."""

    root: Path
    environ: Mapping[str, str]

    def of_environment(self, name: str) -> Setting:
        """Return the setting in an environment of the project.

        Raises TerminalError `environment-mismatch`, a usage error without environments, and as
        `project_file.environments`.
        """
        from draindown.config.environment import VARIABLE, refuse_other
        from draindown.config.file_errors import PROJECT_FILE

        tried = f"work in environment {name}, as --env says"
        refuse_other(
            name, self.environ, tried=tried, next=f"unset {VARIABLE}   # or leave --env out"
        )
        file = self.root / PROJECT_FILE
        known = []
        if file.exists():
            from draindown.config.project_file import environments

            known = environments(file)
        if not known:
            raise typer.BadParameter(f"{file} has no environments", param_hint="--env")
        return Setting(self.root, {**self.environ, VARIABLE: name})

    def spec(self, pipeline: str) -> PipelineSpec:
        """Return the pipeline of an argument, to work in its lake.

        Raises as `load` and `present` do.
        """
        spec = self.load(pipeline)
        self.present(spec)
        return spec

    def present(self, spec: PipelineSpec) -> None:
        """Raise TerminalError `not-a-directory`, `lake-missing` if the lake of a pipeline is not
        where it was.
        """
        from draindown.lake import storage
        from draindown.lake.presence import Lake

        tried = f"open the lake of pipeline {spec.pipeline}"
        storage.refuse_file_as_lake(
            spec.lake, tried=tried, again=f"draindown doctor {spec.pipeline}"
        )
        Lake.look(spec.lake, self.root, spec.pipeline, self.environ).refuse_missing()

    def load(self, pipeline: str) -> PipelineSpec:
        """Return the pipeline of an argument, its lake resolved from the project root.

        Raises as `loader.load_alone` and `project.rooted` do.
        """
        from draindown.config.loader import given_in

        return self.load_given(pipeline, given_in(self.root, self.environ))

    def load_given(self, pipeline: str, given: Layers | None) -> PipelineSpec:
        """Return the pipeline of an argument as `load` does, with what its project gives it."""
        from draindown.cli.output import by_path
        from draindown.config.loader import DIRECTORY, find, load_beside
        from draindown.config.project import rooted

        path = find(pipeline, self.root)
        spec = rooted(load_beside(path, self.root, self.environ, given), self.root)
        if (self.root / DIRECTORY).resolve() not in path.resolve().parents:
            by_path.set({**by_path.get(), spec.pipeline: pipeline})
        return spec

    def request(
        self, spec: PipelineSpec, flow: str, step: Step, run_id: str, **more: Any
    ) -> Request:
        """Return the request of one step, as the DAG would make it."""
        from draindown.config.project import suite
        from draindown.runs.request import Request

        flow_spec = spec.declared(flow)
        return Request(
            spec=spec,
            flow=flow,
            step=step,
            run_id=run_id,
            owner=person(),
            root=str(self.root),
            suite=suite(self.root, flow_spec.expectations) if flow_spec.expectations else None,
            **{name: value for name, value in more.items() if value is not None},
        )


def request_of(here: Setting, target: Target) -> Request:
    """Return the request of a command that repairs one flow. Raises as `Setting.spec` and
    `one_flow`.
    """
    spec = here.spec(target.pipeline)
    return here.request(spec, one_flow(spec, target), "drain", new_run_id())


def table_writers(
    here: Setting, name: str
) -> list[tuple[PipelineSpec, str, FlowSpec | DerivedFlow]]:
    """Return all flows of the project with the tables that they write; of PIPELINE/TABLE those of
    that pipeline.
    """
    from draindown.config.loader import DIRECTORY, BrokenPipeline, load_all
    from draindown.config.project import rooted

    pipeline = name.rpartition("/")[0]
    if pipeline:
        specs = [here.spec(pipeline)]
    else:
        loaded = load_all(here.root / DIRECTORY, here.environ)
        specs = [
            rooted(found, here.root) for found in loaded if not isinstance(found, BrokenPipeline)
        ]
    return [(spec, flow, one) for spec in specs for flow, one in spec.flows.items()]


def table_writer(here: Setting, name: str, known: str) -> tuple[PipelineSpec, str]:
    """Return the flow that writes TABLE, or PIPELINE/TABLE. Raises a usage error if none or several
    do, and as `Setting.present`.

    `known`: what there is instead, in words.
    """
    wanted = name.rpartition("/")[2]
    found = [
        (spec, flow)
        for spec, flow, one in table_writers(here, name)
        if one.table_name(flow) == wanted
    ]
    if len(found) > 1:
        ways = " or ".join(f"{spec.pipeline}/{wanted}" for spec, _ in found)
        raise typer.BadParameter(
            f"several pipelines write a table {wanted}: say {ways}", param_hint="TABLE"
        )
    if not found:
        raise typer.BadParameter(
            f"no flow that can be loaded writes table {wanted}; {known}", param_hint="TABLE"
        )
    here.present(found[0][0])
    return found[0]


def nearest_root(start: Path) -> Path:
    """Return the nearest directory, from `start` upwards, with a dags/pipelines; `start` itself if
    none has one.
    """
    return next(
        (place for place in (start, *start.parents) if (place / "dags" / "pipelines").is_dir()),
        start,
    )


def setting(ctx: typer.Context) -> Setting:
    """Return the setting of the running command."""
    found: Setting = ctx.obj
    return found


def flows(spec: PipelineSpec, target: Target) -> list[str]:
    """Return the named flow, or all flows in the order they run. Raises TerminalError
    `unknown-flow`.
    """
    if target.flow is None:
        return spec.graph.order
    spec.declared(target.flow)
    return [target.flow]


def landing_flows(spec: PipelineSpec, target: Target) -> list[str]:
    """Return the named flow, or all that read records. Raises TerminalError `unknown-flow`,
    `derived-flow`.
    """
    if target.flow is not None:
        spec.flow(target.flow)
        return [target.flow]
    return [name for name in spec.graph.order if not spec.is_derived(name)]


def derived_flows(spec: PipelineSpec, target: Target) -> list[str]:
    """Return the named flow, or all derived ones. Raises TerminalError `unknown-flow`, or a usage
    error.
    """
    found = [name for name in flows(spec, target) if spec.is_derived(name)]
    if target.flow is not None and not found:
        known = ", ".join(name for name in spec.graph.order if spec.is_derived(name))
        raise typer.BadParameter(
            f"flow {target.flow} is not derived; derived flows of {spec.pipeline}: {known or 'none'}"
        )
    return found


def one_flow(spec: PipelineSpec, target: Target, *, landing: bool = False) -> str:
    """Return the named flow, or the only one, of those that read records if `landing`; else raise a
    usage error.
    """
    found = (landing_flows if landing else flows)(spec, target)
    if not found:
        raise typer.BadParameter(
            f"no flow of pipeline {spec.pipeline} reads records: all of them are derived"
        )
    if len(found) > 1:
        raise several(target, found)
    return found[0]


def several(target: Target, flows: Sequence[str]) -> typer.BadParameter:
    """Return the usage error of a command that is about one flow, where any of these is meant."""
    ways = " or ".join(target.of(flow) for flow in flows)
    return typer.BadParameter(f"several flows are meant: say {ways}", param_hint="TARGET")


def person() -> str:
    """Return the current user as user@host."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return f"someone@{socket.gethostname()}"


def new_run_id() -> str:
    """Return a run id for a run that a person started. It sorts by time."""
    return f"cli__{now():%Y-%m-%dT%H-%M-%S}_{secrets.token_hex(2)}"


def refuse_without(yes: bool) -> None:
    """End a dangerous command after it printed its plan, unless `--yes` was given."""
    if not yes:
        typer.echo("nothing was changed; add --yes to do it", err=True)
        raise typer.Exit(Exit.USAGE)
