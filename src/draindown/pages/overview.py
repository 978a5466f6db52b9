"""The page about pipelines and flows: lag, published version, open quarantine, newest runs.

It is made from the lake and needs neither Airflow nor Spark. The Airflow plugin mounts it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from draindown.base import panics
from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.base.formatting import percent, printable, printable_lines
from draindown.config.loader import BrokenPipeline, load_all
from draindown.config.models import PipelineSpec
from draindown.config.project import rooted
from draindown.flow import standing
from draindown.flow.health import NOT_PLANNED, Health, in_words
from draindown.flow.standing import Standing
from draindown.lake.home import FlowHome
from draindown.lake.presence import Lake
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import RUNS, BatchRow
from draindown.recovery import half_rebuilt
from draindown.recovery.half_rebuilt import HalfRebuilt

_TEMPLATES = Environment(
    loader=PackageLoader("draindown.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)
_LEDGER = 30
_LANDED = ("inputs", "records", "applied", "superseded", "duplicate", "quarantined", "share")
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "land": {name: name for name in _LANDED},
    "derive": {
        "inputs": "inputs",
        "changes": "records",
        "used": "used",
        "unused": "unused",
        "late": "late",
    }
    | {"recomputed": "recomputed"}
    | {name: name for name in ("inserted", "updated", "deleted", "unchanged", "empty")},
    "history": {name: name for name in (*_LANDED, *RUNS, "hidden")},
    "partial": {name: name for name in (*_LANDED, "inserted", "updated", "deleted", "tombstoned")},
}
"""Columns of the ledger as the page shows it, by form of the batches: heading to name in
`FlowView.ledger`.
"""


@dataclass(frozen=True)
class RunView:
    """A run of a flow: verdict and card.

    `mark`: the first words of the verdict, `what` the rest of it without the flow. `at`: when that
    was, as text. `quarantined` is the quarantined share of its records, as text, unless the verdict says
    it; `failed` whether a person should look at the run.
    """

    run_id: str
    mark: str
    what: str
    card: str
    at: str = ""
    quarantined: str = ""
    failed: bool = False

    @property
    def kind(self) -> str:
        """The mark as the name of a class of the page's style; `unknown` for a text that is none of
        the marks.
        """
        return self.mark.lower().replace(" ", "-") if self.mark in standing.MARKS else "unknown"


@dataclass(frozen=True)
class FlowView:
    """A flow as the page shows it. `ledger` holds the newest batches, newest first.

    `waiting`: what the newest step saw that looked. `unlooked`: why a newer plan did not look, if
    one did not. `proven`: what the newest proof of a derived table found. `rebuild`: what an
    unfinished rebuild left. `holder`: who holds the lease, unless a run that is shown is at work.
    `problem` says what could not be read.
    """

    pipeline: str
    flow: str
    table: str
    waiting: str = NOT_PLANNED
    unlooked: str = ""
    published: str = "nothing yet"
    proven: str = ""
    rebuild: HalfRebuilt | None = None
    holder: str = ""
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
    """Return every flow of every readable pipeline; with `only`, of the pipelines with these
    names.
    """
    found = (one for one in load_all(pipelines) if not isinstance(one, BrokenPipeline))
    wanted = [one for one in found if only is None or one.pipeline in only]
    return [_flow(spec, root, name) for spec in wanted for name in spec.flows]


def broken(pipelines: Path, only: Collection[str] | None = None) -> list[str]:
    """Return the errors of unreadable pipeline files; with `only`, of those whose DAG has one of
    these names.
    """
    found = (one for one in load_all(pipelines) if isinstance(one, BrokenPipeline))
    return [printable_lines(str(one.error)) for one in found if only is None or one.name in only]


def render(views: Iterable[FlowView], errors: Iterable[str] = ()) -> str:
    """Return the page as HTML. Values from data or files are escaped."""
    return _TEMPLATES.get_template("flows.html").render(flows=list(views), errors=list(errors))


def _flow(spec: PipelineSpec, root: Path, name: str) -> FlowView:
    layout = spec.layout(name)
    try:
        with panics.as_error():
            layout = rooted(spec, root).layout(name)
            Lake.look(layout.lake, root, spec.pipeline).refuse_missing()
            return _view(spec, name, layout)
    except Exception as error:  # noqa: BLE001  an unreadable flow must not hide the others
        problem = printable_lines(f"{type(error).__name__}: {error}")
        return FlowView(spec.pipeline, name, layout.tables.target.path, problem=problem)


def _view(spec: PipelineSpec, name: str, layout: FlowHome) -> FlowView:
    health = Health(layout, now())
    waiting = health.waiting
    return FlowView(
        pipeline=spec.pipeline,
        flow=name,
        table=layout.tables.target.path,
        waiting=str(waiting),
        unlooked=waiting.unlooked,
        published=_published(health),
        proven=_proven(health),
        rebuild=half_rebuilt.found(health.state),
        holder=_holder(health),
        open_rows=health.quarantine.by_reason or {},
        runs=[_run(one) for one in sorted(health.runs, key=lambda one: one.mark != "AT WORK")],
        ledger=[_batch(row) for row in reversed(ledger_table.recent(health.state, _LEDGER))],
    )


def _published(health: Health) -> str:
    """Return the version that readers get. A pointer to another table, or past this one's end,
    publishes nothing.
    """
    pointer, found = health.published, health.unpublished
    if pointer is None:
        return "nothing yet"
    if found is None or found.published is None:
        return f"nothing of the table as it is: version {pointer.version} is not one of its"
    return str(pointer.version)


def _proven(health: Health) -> str:
    try:
        return str(health.proof or "")
    except TerminalError as error:
        return printable_lines(f"can't be read: {error}")


def _holder(health: Health) -> str:
    """Return who holds the lease and how far it is; empty if nobody does, or if that run is shown
    as at work.
    """
    holder, so_far = health.holder
    if holder is None:
        return ""
    shown = (run.run_id for run in health.runs if run.mark == "AT WORK")
    return "" if holder.run_id in shown else printable(f"{holder}; {so_far}")


def _run(found: Standing) -> RunView:
    what = found.said.removeprefix(found.mark).strip().partition("  ")[2]
    share = next((step.run.quarantined_share for step in found.steps if step.run), None)
    quarantined = f"{percent(share)} quarantined" if share and "% quarantined" not in what else ""
    return RunView(
        found.run_id,
        found.mark,
        what,
        found.card,
        in_words(found.at),
        quarantined,
        failed=found.is_red,
    )


def _batch(row: BatchRow) -> dict[str, object]:
    shown = {
        "share": percent(row.quarantined / row.records) if row.records else "",
        "at": in_words(row.finished_at),
    }
    return row.as_dict() | shown
