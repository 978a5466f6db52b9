"""All pipelines of a project on one screen, as at the start of a shift: doctor, report and audit
without a pipeline.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from draindown.base.errors import DraindownError, next_steps
from draindown.base.exits import Exit, exit_for
from draindown.base.formatting import printable
from draindown.cli.at_work import half_rebuilt, others
from draindown.cli.context import Setting, new_run_id
from draindown.cli.failures import naming
from draindown.cli.output import Output

if TYPE_CHECKING:
    from draindown.audit.derived import Unaudited
    from draindown.audit.model import Audit
    from draindown.config.models import PipelineSpec
    from draindown.flow.health import Health

Audited = Callable[["PipelineSpec"], "dict[str, Audit | Unaudited | DraindownError]"]
"""Audits all flows of a pipeline."""


def refuse_choice(**given: object) -> None:
    """Refuse options that choose within one pipeline where none is named."""
    for name, value in given.items():
        if value:
            raise typer.BadParameter(
                "it is about one pipeline: name that too", param_hint=f"--{name}"
            )


@dataclass
class _Screen:
    """What a command prints about all pipelines: as data and as lines, with the exit codes that it
    comes to.
    """

    data: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    codes: set[int] = field(default_factory=set)

    def add(self, data: dict[str, Any], line: str, code: int = Exit.DONE) -> None:
        """Add what was found of one flow."""
        self.data.append(data)
        self.lines.append(line)
        self.codes.add(code)

    def fail(self, name: str, error: DraindownError) -> None:
        """Add a pipeline or flow that could not be looked at."""
        found = printable(error.found.partition(chr(10))[0])
        self.add(
            {"name": name, "error": error.as_dict()},
            f"{name}  {error.code}: {found}",
            exit_for(error),
        )
        self.lines += [
            f"  {label}: {printable(step)}" for label, step in next_steps(error.as_dict())
        ]

    def pipelines(self, here: Setting) -> Iterator[PipelineSpec]:
        """Yield each pipeline of the project; one whose file is broken is added as such.

        Raises TerminalError `no-pipelines`.
        """
        from draindown.config.loader import DIRECTORY, BrokenPipeline, load_all
        from draindown.config.project import each_rooted

        for found in each_rooted(load_all(here.root / DIRECTORY, here.environ), here.root):
            if isinstance(found, BrokenPipeline):
                self.fail(found.name, found.error)
            else:
                yield found

    def present(self, here: Setting) -> Iterator[PipelineSpec]:
        """Yield each pipeline whose lake is where it was; one without is added as such. Raises like
        `pipelines`.
        """
        for spec in self.pipelines(here):
            try:
                here.present(spec)
            except DraindownError as error:
                self.fail(spec.pipeline, error)
                continue
            yield spec

    def end(self) -> None:
        """Exit with the worst code: an error before findings, findings before what could not be
        looked at.
        """
        errors = [code for code in self.codes if code > Exit.USAGE]
        if errors:
            raise typer.Exit(max(errors))
        worst = Exit.FINDINGS if Exit.FINDINGS in self.codes else max(self.codes, default=Exit.DONE)
        if worst:
            raise typer.Exit(worst)


def doctor(here: Setting, out: Output) -> None:
    """Print what is wrong and what is worth knowing in every flow, and what is wrong with the
    set-up.
    """
    from draindown.doctor.examination import examine, examine_setup

    screen = _Screen()
    for spec in screen.pipelines(here):
        for flow in spec.graph.order:
            health = examine(here.request(spec, flow, "plan", new_run_id()))
            screen.add(health.as_dict(), health.brief, health.exit)
    setup = examine_setup()
    screen.add(setup.as_dict(), setup.brief, setup.exit)
    out.result(screen.data, "\n".join(screen.lines))
    screen.end()


def report(here: Setting, out: Output) -> None:
    """Print the verdict on the newest run of every flow, what to type where it failed, and who is
    at work.
    """
    screen = _Screen()
    for spec in screen.present(here):
        for flow in spec.graph.order:
            try:
                with naming(f"draindown report {spec.pipeline}/{flow}"):
                    _newest(spec, flow, screen, as_json=out.as_json)
            except DraindownError as error:
                screen.fail(f"{spec.pipeline}/{flow}", error)
    out.result(screen.data, "\n".join(screen.lines))
    screen.end()


def audit(here: Setting, out: Output, audited: Audited) -> None:
    """Audit every flow, and print what doesn't fit: of a clean one its first line alone."""
    screen = _Screen()
    for spec in screen.present(here):
        for flow, found in audited(spec).items():
            if isinstance(found, DraindownError):
                screen.fail(f"{spec.pipeline}/{flow}", found)
                continue
            brief = found.clean and not spec.is_derived(flow)
            line = str(found).partition("\n")[0] if brief else str(found)
            screen.add(found.asdict(), line, Exit.DONE if found.clean else Exit.FINDINGS)
    out.result({"clean": not any(screen.codes), "flows": screen.data}, "\n".join(screen.lines))
    screen.end()


def _facts(health: Health) -> dict[str, Any]:
    """Return the facts about a flow, or why they can't be read, which hides no verdict."""
    try:
        with naming(f"draindown doctor {health.state.pipeline}/{health.state.flow}"):
            return health.as_dict()
    except DraindownError as error:
        return {"error": error.as_dict()}


def _newest(spec: PipelineSpec, flow: str, screen: _Screen, *, as_json: bool) -> None:
    """Add what the newest run of a flow came to; `as_json`: and all facts about the flow."""
    from draindown.base.clock import now
    from draindown.flow.health import Health

    health = Health(spec.layout(flow), now())
    newest = health.newest_run
    about: dict[str, Any] = {"pipeline": spec.pipeline, "flow": flow}
    if as_json:
        about["health"] = _facts(health)
    if newest is None:
        said = "no run left a report yet"
        screen.add(
            about | {"run_id": None, "verdict": said}, f"{'-':<16}  {spec.pipeline}/{flow}  {said}"
        )
    else:
        began = f"{newest.began:%Y-%m-%d %H:%M}" if newest.began else "-"
        run = {"run_id": newest.run_id, "started_at": newest.began, "verdict": newest.said}
        screen.add(about | run, f"{began:<16}  {newest.said}")
        if not newest.is_well:
            one = f" --run {shlex.quote(newest.run_id)}" if not newest.steps else ""
            screen.lines.append(f"{'':<16}  next: draindown report {spec.pipeline}/{flow}{one}")
    shown = {(flow, newest.run_id)} if newest else set()
    screen.lines += [*others(spec, [flow], shown), *half_rebuilt(spec, [flow])]
