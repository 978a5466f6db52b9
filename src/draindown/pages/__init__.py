"""The page about pipelines and flows: lag, published version, open quarantine, newest runs.

It is made from the lake and needs neither Airflow nor Spark. The Airflow plugin mounts it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from draindown.base.errors import TerminalError, next_steps
from draindown.base.formatting import percent, printable, printable_lines
from draindown.flow import proven, quarantine
from draindown.flow.at_work import look, of_reports
from draindown.flow.state import FlowState
from draindown.gate.published import published, unpublished
from draindown.lake.layout import FlowLayout
from draindown.lake.presence import Lake
from draindown.lake.table_log import log_of
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import RUNS, BatchRow
from draindown.runs import starts, store
from draindown.runs.card import card, verdict
from draindown.runs.card_parts import backlog_words
from draindown.runs.request import STEPS
from draindown.spec.loader import BrokenPipeline, load_all
from draindown.spec.models import PipelineSpec
from draindown.spec.project import rooted

_TEMPLATES = Environment(
    loader=PackageLoader("draindown.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
_RUNS = 10
_LEDGER = 30
_NOT_PLANNED = "not planned yet"
_LANDED = ("units", "records", "applied", "superseded", "duplicate", "quarantined", "refused")
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "land": {name: name for name in _LANDED},
    "derive": {"units": "units", "images": "records", "used": "used", "irrelevant": "irrelevant", "late": "late"}
    | {"keys": "touched"}
    | {name: name for name in ("inserted", "updated", "deleted", "unchanged", "absent")},
    "history": {name: name for name in (*_LANDED, *RUNS)} | {"hidden": "remembered"},
    "partial": {name: name for name in (*_LANDED, "inserted", "updated", "deleted", "remembered")},
}
"""Columns of the ledger as the page shows it, by form of the batches: heading to name in `FlowView.ledger`."""


@dataclass(frozen=True)
class RunView:
    """A run of a flow: verdict and card.

    `refused` is the refused share of its records, as text; `failed` whether a person should look at the run.
    """

    run_id: str
    headline: str
    card: str
    refused: str = ""
    failed: bool = False


@dataclass(frozen=True)
class FlowView:
    """A flow as the page shows it. `ledger` holds the newest batches, newest first.

    `proven`: what the newest proof of a derived table found. `problem` says what could not be read.
    """

    pipeline: str
    flow: str
    table: str
    waiting: str = _NOT_PLANNED
    published: str = "nothing yet"
    proven: str = ""
    open_rows: Mapping[str, int] = field(default_factory=dict)
    runs: list[RunView] = field(default_factory=list)
    ledger: list[dict[str, object]] = field(default_factory=list)
    problem: str = ""

    @property
    def columns(self) -> Mapping[str, str]:
        """The shown columns of the ledger, as in _COLUMNS. All batches of a flow have one form."""
        form = next((str(row["form"]) for row in self.ledger if row["form"] != "land"), "land")
        return _COLUMNS.get(form, _COLUMNS["land"])  # one of another version of draindown


def flows(pipelines: Path, root: Path, only: Collection[str] | None = None) -> list[FlowView]:
    """Return every flow of every readable pipeline; with `only`, of the pipelines with these names."""
    found = (one for one in load_all(pipelines) if not isinstance(one, BrokenPipeline))
    wanted = [one for one in found if only is None or one.pipeline in only]
    return [_flow(spec, root, name) for spec in wanted for name in spec.flows]


def broken(pipelines: Path, only: Collection[str] | None = None) -> list[str]:
    """Return the errors of unreadable pipeline files; with `only`, of those whose DAG has one of these names."""
    found = (one for one in load_all(pipelines) if isinstance(one, BrokenPipeline))
    return [printable_lines(str(one.error)) for one in found if only is None or one.name in only]


def render(views: Iterable[FlowView], errors: Iterable[str] = ()) -> str:
    """Return the page as HTML. Values from data or files are escaped."""
    return _TEMPLATES.get_template("flows.html").render(flows=list(views), errors=list(errors))


def _flow(spec: PipelineSpec, root: Path, name: str) -> FlowView:
    layout = spec.layout(name)
    try:
        layout = rooted(spec, root).layout(name)
        Lake.look(layout.lake, root, spec.pipeline).refuse_missing()
        state = FlowState.of(layout)
        newest = store.runs_and_silent(layout, _RUNS)
        return FlowView(
            pipeline=spec.pipeline,
            flow=name,
            table=layout.table,
            waiting=_waiting(layout, [run for run, is_silent in newest if not is_silent]),
            published=_published(state),
            proven=_proven(state),
            open_rows=quarantine.counts(state).by_reason or {},
            runs=list(_runs(spec.pipeline, state, newest)),
            ledger=[_batch(row) for row in reversed(ledger_table.recent(state, _LEDGER))],
        )
    except Exception as error:  # noqa: BLE001  an unreadable flow must not hide the others
        problem = printable_lines(f"{type(error).__name__}: {error}")
        return FlowView(spec.pipeline, name, layout.table, problem=problem)


def _published(state: FlowState) -> str:
    """Return the version that readers get. A pointer to another table, or past this one's end, publishes nothing."""
    pointer, found = published(state), unpublished(state)
    if pointer is None:
        return "nothing yet"
    if found is None or found.published is None:
        return f"nothing of the table as it is: version {pointer.version} is not one of its"
    return str(pointer.version)


def _proven(state: FlowState) -> str:
    """Return what the newest proof of this table found."""
    try:
        found, table = proven.newest(state), log_of(state, state.table)
    except TerminalError as error:
        return printable_lines(f"can't be read: {error}")
    return str(found) if found and table.exists and found.table_id == table.id else ""


def _waiting(layout: FlowLayout, runs: Sequence[str]) -> str:
    """Return what the newest of these runs that looked saw, after its drain if that has ended."""
    for run_id in runs:
        try:
            drained, planned = store.read(layout, run_id, "drain"), store.read(layout, run_id, "plan")
        except (ValueError, TerminalError):  # `_run` says so
            continue
        is_earlier = drained and planned and planned.order > drained.order  # of a run that was cleared
        if drained and not is_earlier and drained.drain and drained.drain.after is not None:
            return backlog_words(drained.drain.after)
        if planned and planned.plan and not planned.plan.replay:
            return backlog_words(planned.plan.backlog)
    return f"unknown: none of the newest {len(runs)} runs looked" if runs else _NOT_PLANNED


def _runs(pipeline: str, layout: FlowLayout, newest: Iterable[tuple[str, bool]]) -> Iterator[RunView]:
    """Yield the newest runs: those that left reports, and those at work or dead that left none."""
    for run_id, is_silent in newest:
        if not is_silent:
            yield _run(layout, run_id)
        elif (found := _silent_run(pipeline, layout, run_id)) is not None:
            yield found


def _silent_run(pipeline: str, layout: FlowLayout, run_id: str) -> RunView | None:
    found = (look(layout, pipeline, run_id, step) for step in STEPS)
    one = next((one for one in found if one.state in ("at work", "died")), None)
    if one is None:
        return None
    steps = "\n".join(f"{label}: {step}" for label, step in next_steps({"next": one.next}))
    head = printable(f"UNFINISHED  {pipeline}/{layout.flow}  {one}")
    return RunView(one.run_id, head, printable_lines(steps), failed=one.state == "died")


def _run(layout: FlowLayout, run_id: str) -> RunView:
    try:
        steps = starts.newest(layout, run_id)
    except (ValueError, TerminalError) as error:
        found = printable_lines(f"{layout.run_reports(run_id)}: {error}")
        return RunView(run_id, "FAILED  its reports can't be read", found, failed=True)
    own_id = steps[0].run_id if steps else run_id
    share = next((step.run.refused_share for step in steps if step.run), None)
    refused = f"{percent(share)} refused" if share else ""
    unfinished = of_reports(lambda _: layout, steps)
    headline = verdict(steps, next(iter(unfinished), None)) if steps else "no reports"
    is_dead = any(one.state in ("died", "not written") for one in unfinished)
    failed = is_dead or headline.startswith(("FAILED", "REFUSED", "WRONG"))
    return RunView(own_id, headline, card(steps, unfinished), refused, failed)


def _batch(row: BatchRow) -> dict[str, object]:
    return row.as_dict() | {"refused": percent(row.quarantined / row.records) if row.records else ""}
