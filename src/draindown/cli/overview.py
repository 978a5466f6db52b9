"""All pipelines of a project on one screen, as at the start of a shift."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from draindown.base.errors import DraindownError, next_steps
from draindown.base.exits import Exit, exit_for
from draindown.base.formatting import printable
from draindown.cli.context import Setting, new_run_id
from draindown.cli.output import Output

if TYPE_CHECKING:
    from draindown.audit.derived import Unaudited
    from draindown.audit.model import Audit
    from draindown.config.models import PipelineSpec

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
class Screen:
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
        self.data.append({"name": name, "error": error.as_dict()})
        self.tell(name, error)

    def tell(self, name: str, error: DraindownError) -> None:
        """Add the lines about an error, and its exit code."""
        found = printable(error.found.partition(chr(10))[0])
        self.lines.append(f"{name}  {error.code}: {found}")
        self.lines += [
            f"  {label}: {printable(step)}" for label, step in next_steps(error.as_dict())
        ]
        self.codes.add(exit_for(error))

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
        """Exit with the worst code: an error before findings."""
        worst = max(self.codes, default=Exit.DONE)
        if worst:
            raise typer.Exit(worst)


def doctor(here: Setting, out: Output) -> None:
    """Print what is wrong and what is worth knowing in every flow, and what is wrong with the
    set-up.
    """
    from draindown.doctor.examination import examine, examine_setup

    screen = Screen()
    for spec in screen.pipelines(here):
        for flow in spec.graph.order:
            health = examine(here.request(spec, flow, "plan", new_run_id()))
            screen.add(health.as_dict(), health.brief, health.exit)
    setup = examine_setup()
    screen.add(setup.as_dict(), setup.brief, setup.exit)
    if Exit.FINDINGS in screen.codes:  # is more than what could not be looked at
        screen.codes.discard(Exit.TRY_AGAIN)
    out.result(screen.data, "\n".join(screen.lines))
    screen.end()


def audit(here: Setting, out: Output, audited: Audited) -> None:
    """Audit every flow, and print what doesn't fit: of a clean one its first line alone."""
    screen = Screen()
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
