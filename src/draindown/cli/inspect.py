"""Read-only commands: doctor, and report with the drift of the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.base.formatting import printable
from draindown.cli import overview
from draindown.cli.at_work import half_rebuilt, others
from draindown.cli.context import (
    AnyFlows,
    Flows,
    Json,
    flows,
    new_run_id,
    setting,
)
from draindown.cli.output import Output, table

if TYPE_CHECKING:
    from draindown.config.models import PipelineSpec
    from draindown.flow.standing import Standing
    from draindown.lake.home import FlowHome
    from draindown.runs.report import StepReport
    from draindown.runs.starts import Start

_LOOKED, _KNOWN = 20, 5  # runs that are listed, and that are named where another one was asked for


def doctor(ctx: typer.Context, target: AnyFlows = None, as_json: Json = False) -> None:
    """Check a flow's state for consistency; print what is wrong and how to fix it. Changes nothing,
    starts no JVM.
    """
    from draindown.doctor.examination import examine, examine_setup

    here = setting(ctx)
    if target is None:
        overview.doctor(here, Output(as_json))
        return
    spec = here.load(target.pipeline)
    asked = (here.request(spec, name, "plan", new_run_id()) for name in flows(spec, target))
    found = [*map(examine, asked), examine_setup()]
    Output(as_json).result([health.as_dict() for health in found], "\n\n".join(map(str, found)))
    codes = {health.exit for health in found}
    worst = 1 if 1 in codes else max(codes)
    if worst:
        raise typer.Exit(worst)


def report(
    ctx: typer.Context,
    target: Flows,
    run: Annotated[str, typer.Option(help="Id of the run, or `last`.")] = "last",
    listing: Annotated[
        bool, typer.Option("--list", help="List the newest runs, with their verdicts.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the run card of a run: what became of every row, the gate, what failed and what to type
    next. Then the fields that the contract doesn't name, and the columns that files lacked.

    Of each step the newest start is shown. With --run, and where a step was started more than once,
    all are listed.
    """
    from draindown.flow.at_work import of_reports
    from draindown.runs import starts
    from draindown.runs.card import ALL_FINDINGS, card

    spec = setting(ctx).spec(target.pipeline)
    names = flows(spec, target)
    if listing:
        _list_runs(spec, names, Output(as_json))
        return
    states = {name: spec.layout(name).view() for name in names}
    chosen = {name: _chosen(states[name], run) for name in names}
    every = {
        name: starts.listed(states[name], one.run_id) if one and one.is_readable else []
        for name, one in chosen.items()
    }
    shown = [one for name in names for one in starts.with_sums(states[name], _shown(every[name]))]
    silent = {
        name: one
        for name, one in chosen.items()
        if one and not any(told.report for told in every[name])
    }
    if not shown and not silent:
        raise _no_report(spec, run)
    one_each = sum(map(len, every.values())) == len(shown)
    own = [
        step for step in shown if step.flow in states
    ]  # a report may have been put there by hand
    text = card(shown, of_reports(states.__getitem__, own), whole=True, findings=ALL_FINDINGS)
    parts = [
        text if shown else "",
        *[one.card for one in silent.values()],
        "" if one_each and run == "last" else _starts_text(every),
    ]
    if run == "last":
        parts += others(spec, names, {(name, one.run_id) for name, one in chosen.items() if one})
        parts += half_rebuilt(spec, names)
    drift = [row for name in names for row in unnamed(spec, name)]
    parts += [_proofs(spec, names), _drift_text(drift)]
    reports = [one.as_dict() | {"flow": name} for name in names for one in every[name]]
    Output(as_json).result({"reports": reports, "drift": drift}, "\n\n".join(filter(None, parts)))


def _proofs(spec: PipelineSpec, names: list[str]) -> str:
    """Return what the newest proofs of derived tables found, a line each."""
    from draindown.flow import proven

    found = {name: proven.newest(spec.layout(name)) for name in names if spec.is_derived(name)}
    return "\n".join(
        f"proof     {spec.pipeline}/{name} {last}" for name, last in found.items() if last
    )


def unnamed(spec: PipelineSpec, flow: str) -> list[dict[str, Any]]:
    """Return the drift that the contract does not cover yet: unnamed fields and missing columns,
    oldest first.
    """
    from dataclasses import asdict

    from draindown.flow.schema_drift import unnamed

    return [
        {"flow": flow, **asdict(one)} for one in unnamed(spec.layout(flow), spec.declared(flow))
    ]


def _drift_text(drift: Sequence[Mapping[str, Any]]) -> str:
    from draindown.base.formatting import count

    rows = [
        [
            row["kind"],
            printable(f"{row['flow']}.{row['name']}" if row["name"] else row["flow"]),
            row["type"],
            count(row["rows"]),
            row["at"][:19].replace("T", " "),
            printable(row["input"])
            + (f":{row['position']}" if row["position"] is not None else ""),
        ]
        for row in drift
    ]
    header = ("drift", "name", "like", "records", "since", "first in")
    return table(header, rows, right=(3,)) if rows else ""


def _chosen(layout: FlowHome, run: str) -> Standing | None:
    """Return how the run stands that the option `--run` selects; None if there is no such run of
    this flow.
    """
    from draindown.flow import standing

    if run != "last":
        return standing.of(layout, layout.pipeline, run)
    return next(standing.newest(layout, layout.pipeline, _LOOKED), None)


def _shown(every: list[Start]) -> list[StepReport]:
    """Return the reports that make up the card: those of the newest start of each step."""
    from draindown.runs.request import STEPS

    told = [one.report for one in every if one.report]
    newest = {report.step: report for report in told}
    return [newest[step] for step in STEPS if step in newest]


def _starts_text(every: Mapping[str, list[Start]]) -> str:
    """Return the starts of a run as a table. Consecutive starts of a step with the same error share
    one line.
    """
    from itertools import groupby

    from draindown.base.formatting import age, count

    rows = []
    for flow, found in every.items():
        for _, group in groupby(found, key=lambda one: (one.step, one.code or one.start)):
            same = list(group)
            last = same[-1]
            began = "?" if last.began is None else f"{last.began:%Y-%m-%d %H:%M:%S}"
            took = age(last.report.seconds) if last.report else ""
            what = last.code or last.outcome
            what += f", {count(len(same))} times" if len(same) > 1 else ""
            rows.append([flow, last.step, began, took, what, last.made, last.start])
    return table(("flow", "step", "began", "took", "ended", "committed", "start"), rows)


def _list_runs(spec: PipelineSpec, names: list[str], out: Output) -> None:
    from draindown.flow import standing

    rows: list[list[str]] = []
    data: list[dict[str, str]] = []
    for name in names:
        for one in standing.newest(spec.layout(name).view(), spec.pipeline, _LOOKED):
            began = f"{one.began:%Y-%m-%d %H:%M:%S}" if one.began else "?"
            rows.append([printable(one.run_id), began, one.said])
            data.append({"run_id": one.run_id, "flow": name, "verdict": one.said})
    out.result(data, table(("run", "started", "verdict"), rows) if rows else "no runs yet")


def _no_report(spec: PipelineSpec, run: str) -> Exception:
    from draindown.base.errors import TerminalError
    from draindown.runs import store

    known = [run for name in spec.flows for run in store.runs(spec.layout(name), _KNOWN)]
    known = list(dict.fromkeys(known))
    return TerminalError(
        "no-report",
        tried=f"show run {json.dumps(run)} of pipeline {spec.pipeline}",
        found=f"no such report; the newest are {', '.join(known[:_KNOWN])}"
        if known
        else "no run left a report yet",
        next=[f"draindown report {spec.pipeline} --list"]
        if known
        else [f"draindown run {spec.pipeline}"],
    )
