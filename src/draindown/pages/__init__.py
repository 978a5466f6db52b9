"""The page about pipelines and flows: lag, published version, open quarantine, newest runs.

It is made from the lake and needs neither Airflow nor Spark. The Airflow plugin mounts it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from draindown.base.formatting import percent
from draindown.flow import proven, quarantine
from draindown.flow.at_work import of_reports
from draindown.flow.state import FlowState
from draindown.gate.published import published
from draindown.lake.layout import FlowLayout
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import RUNS, BatchRow
from draindown.runs import starts, store
from draindown.runs.card import card, verdict
from draindown.runs.card_parts import backlog_words
from draindown.spec.loader import BrokenPipeline, load_all
from draindown.spec.models import PipelineSpec
from draindown.spec.project import rooted

_TEMPLATES = Environment(
    loader=PackageLoader("draindown.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
_RUNS = 10
_LEDGER = 30
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
    """A run of a flow: verdict and card. `refused` is the refused share of its records, as text."""

    run_id: str
    headline: str
    card: str
    refused: str = ""

    @property
    def failed(self) -> bool:
        """Whether a person should look at the run."""
        return self.headline.startswith(("FAILED", "REFUSED"))


@dataclass(frozen=True)
class FlowView:
    """A flow as the page shows it. `ledger` holds the newest batches, newest first.

    `proven`: what the newest proof of a derived table found. `problem` says what could not be read.
    """

    pipeline: str
    flow: str
    table: str
    waiting: str = "not planned yet"
    published: str = "nothing yet"
    proven: str = ""
    open_rows: Mapping[str, int] = field(default_factory=dict)
    runs: list[RunView] = field(default_factory=list)
    ledger: list[dict[str, object]] = field(default_factory=list)
    problem: str = ""

    @property
    def columns(self) -> Mapping[str, str]:
        """The shown columns of the ledger, as in _COLUMNS. All batches of a flow have one form."""
        return _COLUMNS[next((str(row["form"]) for row in self.ledger if row["form"] != "land"), "land")]


def flows(pipelines: Path, root: Path, only: Collection[str] | None = None) -> list[FlowView]:
    """Return every flow of every readable pipeline; with `only`, of the pipelines with these names."""
    found = (one for one in load_all(pipelines) if not isinstance(one, BrokenPipeline))
    wanted = [one for one in found if only is None or one.pipeline in only]
    return [_flow(spec, root, name) for spec in wanted for name in spec.flows]


def broken(pipelines: Path, only: Collection[str] | None = None) -> list[str]:
    """Return the errors of unreadable pipeline files; with `only`, of those whose DAG has one of these names."""
    found = (one for one in load_all(pipelines) if isinstance(one, BrokenPipeline))
    return [str(one.error) for one in found if only is None or one.name in only]


def render(views: Iterable[FlowView], errors: Iterable[str] = ()) -> str:
    """Return the page as HTML. Values from data or files are escaped."""
    return _TEMPLATES.get_template("flows.html").render(flows=list(views), errors=list(errors))


def _flow(spec: PipelineSpec, root: Path, name: str) -> FlowView:
    layout = spec.layout(name)
    try:
        layout = rooted(spec, root).layout(name)
        state = FlowState.of(layout)
        pointer = published(state)
        return FlowView(
            pipeline=spec.pipeline,
            flow=name,
            table=layout.table,
            waiting=_waiting(layout),
            published="nothing yet" if pointer is None else str(pointer.version),
            proven=str(proven.newest(state) or ""),
            open_rows=quarantine.counts(state).by_reason or {},
            runs=[_run(state, run_id) for run_id in store.runs(layout, _RUNS)],
            ledger=[_batch(row) for row in reversed(ledger_table.recent(state, _LEDGER))],
        )
    except Exception as error:  # noqa: BLE001  an unreadable flow must not hide the others
        return FlowView(spec.pipeline, name, layout.table, problem=f"{type(error).__name__}: {error}")


def _waiting(layout: FlowLayout) -> str:
    for run_id in store.runs(layout, _RUNS):
        drained, planned = store.read(layout, run_id, "drain"), store.read(layout, run_id, "plan")
        if drained and drained.drain and drained.drain.after is not None:
            return backlog_words(drained.drain.after)
        if planned and planned.plan and not planned.plan.replay:
            return backlog_words(planned.plan.backlog)
    return "not planned yet"


def _run(layout: FlowLayout, run_id: str) -> RunView:
    steps = starts.newest(layout, run_id)
    own_id = steps[0].run_id if steps else run_id
    share = next((step.run.refused_share for step in steps if step.run), None)
    refused = f"{percent(share)} refused" if share else ""
    unfinished = of_reports(lambda _: layout, steps)
    headline = verdict(steps, next(iter(unfinished), None)) if steps else "no reports"
    return RunView(own_id, headline, card(steps, unfinished), refused)


def _batch(row: BatchRow) -> dict[str, object]:
    return row.as_dict() | {"refused": percent(row.quarantined / row.records) if row.records else ""}
