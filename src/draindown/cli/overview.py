"""All pipelines of a project on one screen, as at the start of a shift: doctor, report and audit without a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from draindown.base.errors import DraindownError, next_steps
from draindown.base.exits import Exit, exit_for
from draindown.base.formatting import printable
from draindown.cli.at_work import others
from draindown.cli.context import Setting, new_run_id
from draindown.cli.output import Output

if TYPE_CHECKING:
    from draindown.audit.derived import Unaudited
    from draindown.audit.model import Audit
    from draindown.spec.models import PipelineSpec

Audited = Callable[["PipelineSpec"], "dict[str, Audit | Unaudited | DraindownError]"]
"""Audits all flows of a pipeline."""


def refuse_choice(**given: object) -> None:
    """Refuse options that choose within one pipeline where none is named."""
    for name, value in given.items():
        if value:
            raise typer.BadParameter("it is about one pipeline: name that too", param_hint=f"--{name}")


def doctor(here: Setting, out: Output) -> None:
    """Print what is wrong and what is worth knowing in every flow, and what is wrong with the set-up."""
    from draindown.doctor.examination import examine, examine_setup

    data: list[dict[str, Any]] = []
    lines: list[str] = []
    codes: set[int] = set()
    for name, spec in _every(here):
        if isinstance(spec, DraindownError):
            _broken(name, spec, data, lines, codes)
            continue
        for flow in spec.graph.order:
            health = examine(here.request(spec, flow, "plan", new_run_id()))
            data.append(health.as_dict())
            lines.append(health.brief)
            codes.add(health.exit)
    setup = examine_setup()
    out.result([*data, setup.as_dict()], "\n".join([*lines, setup.brief]))
    _end(codes | {setup.exit})


def report(here: Setting, out: Output) -> None:
    """Print the verdict on the newest run of every flow, what to type where it failed, and who is at work."""
    data: list[dict[str, Any]] = []
    lines: list[str] = []
    codes: set[int] = set()
    for name, spec in _every(here):
        if isinstance(spec, DraindownError):
            _broken(name, spec, data, lines, codes)
            continue
        for flow in spec.graph.order:
            _newest(spec, flow, data, lines)
    out.result(data, "\n".join(lines))
    _end(codes)


def audit(here: Setting, out: Output, audited: Audited) -> None:
    """Audit every flow, and print what doesn't fit: of a clean one its first line alone."""
    data: list[dict[str, Any]] = []
    lines: list[str] = []
    codes: set[int] = set()
    for name, spec in _every(here):
        if isinstance(spec, DraindownError):
            _broken(name, spec, data, lines, codes)
            continue
        for flow, found in audited(spec).items():
            if isinstance(found, DraindownError):
                _broken(f"{name}/{flow}", found, data, lines, codes)
                continue
            data.append(found.asdict())
            brief = found.clean and not spec.is_derived(flow)
            lines.append(str(found).partition("\n")[0] if brief else str(found))
            codes.add(Exit.DONE if found.clean else Exit.FINDINGS)
    out.result({"clean": not any(codes), "flows": data}, "\n".join(lines))
    _end(codes)


def _every(here: Setting) -> Iterator[tuple[str, PipelineSpec | DraindownError]]:
    """Yield each pipeline of the project, or the error of its file. Raises TerminalError `no-pipelines`."""
    from draindown.spec.loader import DIRECTORY, BrokenPipeline, load_all
    from draindown.spec.project import rooted

    for found in load_all(here.root / DIRECTORY, here.environ):
        if isinstance(found, BrokenPipeline):
            yield found.name, found.error
        else:
            yield found.pipeline, rooted(found, here.root)


def _broken(name: str, error: DraindownError, data: list[dict[str, Any]], lines: list[str], codes: set[int]) -> None:
    data.append({"name": name, "error": error.as_dict()})
    lines.append(f"{name}  {error.code}: {printable(error.found.partition(chr(10))[0])}")
    lines += [f"  {label}: {printable(step)}" for label, step in next_steps(error.as_dict())]
    codes.add(exit_for(error))


def _newest(spec: PipelineSpec, flow: str, data: list[dict[str, Any]], lines: list[str]) -> None:
    """Add what the newest run of a flow came to."""
    from draindown.flow.at_work import of_reports
    from draindown.lake.table_log import Snapshot
    from draindown.runs import starts, store
    from draindown.runs.card import verdict

    state = Snapshot.of(spec.layout(flow))
    newest = next(iter(store.runs(state, 1)), None)
    steps = starts.newest(state, newest) if newest else []
    if not steps:
        data.append({"pipeline": spec.pipeline, "flow": flow, "run_id": None, "verdict": "no run left a report yet"})
        lines.append(f"{'-':<16}  {spec.pipeline}/{flow}  no run left a report yet")
    else:
        said = verdict(steps, next(iter(of_reports(lambda _: state, steps)), None))
        run = {"run_id": steps[0].run_id, "started_at": steps[0].started_at, "verdict": said}
        data.append({"pipeline": spec.pipeline, "flow": flow, **run})
        lines.append(f"{steps[0].started_at:%Y-%m-%d %H:%M}  {said}")
        if not said.startswith(("OK", "IDLE")):
            lines.append(f"{'':<16}  next: draindown report {spec.pipeline} --flow {flow}")
    lines += others(spec, [flow], steps)


def _end(codes: set[int]) -> None:
    """Exit with the worst code: an error before findings, findings before what could not be looked at."""
    errors = [code for code in codes if code > Exit.USAGE]
    worst = max(errors) if errors else Exit.FINDINGS if Exit.FINDINGS in codes else max(codes, default=Exit.DONE)
    if worst:
        raise typer.Exit(worst)
